//! `ML.EVALUATE`: how well predictions fit labels, as an ordinary aggregate over the prediction.
//!
//! Rows without a label are left out. Names are BigQuery ML's where it has them. Of numbers the plan is put together
//! here; of classes it is a query, which is longer.

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::Column;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions::expr_fn::{abs, ln, sqrt};
use datafusion::functions_aggregate::expr_fn::{avg, count, var_pop};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, col, lit, when,
};
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{Cte, Ident, Query, TableAlias, With};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use volley_proto::did_you_mean;
use volley_proto::store::{ClassType, Classes, Manifest};

use super::call::Call;

/// Below this, a label is left out of `rmspe`, as in training.
const LEAST_LABEL: f64 = 0.001;

/// Fails unless the input has the label that predictions are compared with.
pub(super) fn check_label(manifest: &Manifest, input: &LogicalPlan) -> crate::Result<()> {
    let label = &manifest.spec.label.column;
    let schema = input.schema().as_arrow();
    let Ok(field) = schema.field_with_name(label) else {
        let names = schema.fields().iter().map(|field| field.name().as_str());
        let hint = did_you_mean(label, names);
        let role = "ML.EVALUATE's input (it is the model's label)";
        return Err(volley_proto::Error::UnknownColumn {
            column: label.clone(),
            role,
            hint,
        }
        .into());
    };
    let class = manifest.classes.as_ref().map(Classes::class_type);
    let (fits, expected) = match class {
        None => (field.data_type().is_numeric(), "a number".to_owned()),
        Some(class) => {
            let known = class.data_type();
            let plain = match field.data_type() {
                DataType::Dictionary(_, values) => values,
                plain => plain,
            };
            let fits = match class {
                ClassType::Integer => plain.is_integer(),
                ClassType::Text => plain.is_string(),
                ClassType::Boolean | ClassType::Date => *plain == known,
            };
            (fits, format!("{known}, as the model's classes are"))
        }
    };
    if fits {
        return Ok(());
    }
    Err(volley_proto::Error::ColumnType {
        column: label.clone(),
        role: "the label",
        actual: field.data_type().to_string(),
        expected,
    }
    .into())
}

/// One row of metrics over predicted rows, of a model that predicts numbers.
///
/// All are in the label's scale, but `transformed_mae`, which is in the scale that was trained in.
pub(super) fn metrics(manifest: &Manifest, predicted: LogicalPlan) -> Result<LogicalPlan> {
    let number = |name: &str| {
        let (qualifier, field) = predicted
            .schema()
            .qualified_field_with_unqualified_name(name)?;
        let column = Expr::Column(Column::from((qualifier, field)));
        column.cast_to(&DataType::Float64, predicted.schema())
    };
    let label = number(&manifest.spec.label.column)?.alias("label");
    let prediction = number(&manifest.predicted().name)?.alias("prediction");

    let error = || col("label") - col("prediction");
    let relative = || error() / col("label");
    let above = |least: f64, then: Expr| when(col("label").gt(lit(least)), then).end();
    let transformed = if manifest.exponentiates() {
        above(0.0, abs(ln(col("label")) - ln(col("prediction"))))?
    } else {
        abs(error())
    };
    LogicalPlanBuilder::from(predicted)
        .project([label, prediction])?
        .filter(col("label").is_not_null())?
        .aggregate(
            Vec::<Expr>::new(),
            [
                count(lit(1_i64)).alias("rows"),
                avg(abs(error())).alias("mean_absolute_error"),
                avg(error() * error()).alias("mean_squared_error"),
                var_pop(col("label")).alias("variance"),
                avg(above(LEAST_LABEL, relative() * relative())?).alias("mspe"),
                avg(transformed).alias("transformed_mae"),
            ],
        )?
        .project([
            col("rows"),
            col("mean_absolute_error"),
            col("mean_squared_error"),
            (lit(1.0) - col("mean_squared_error") / col("variance")).alias("r2_score"),
            sqrt(col("mspe")).alias("rmspe"),
            col("transformed_mae"),
        ])?
        .build()
}

/// The least probability that a class is taken to have: the logarithm of 0 has no number.
const LEAST_PROBABILITY: &str = "1e-15";

/// What the caller's rows are called in the query of [`class_metrics`].
const ROWS: &str = "__volley_rows";

/// A query of one row of metrics over a call's rows, of a model that predicts classes.
///
/// Precision, recall and F1 are means over the classes that labels have (macro averages); one that is never predicted
/// has a precision of 0. The area under the ROC curve is that of two classes, by the second's probability.
pub(super) fn class_metrics(
    manifest: &Manifest,
    classes: &Classes,
    call: &Call,
    rows: Box<Query>,
) -> Result<Box<Query>> {
    let label = quoted(&manifest.spec.label.column);
    let predicted = manifest.predicted();
    let (class, probabilities) = (quoted(&predicted.name), quoted(&predicted.probabilities()));
    let data_type = match classes.class_type() {
        ClassType::Integer => "BIGINT",
        ClassType::Text => "VARCHAR",
        ClassType::Boolean => "BOOLEAN",
        ClassType::Date => "DATE",
    };
    let literals = literals(classes)?;
    let (all, first) = (literals.join(", "), &literals[0]);
    let model = quoted(&call.model.value);
    let model = match call.model.quote_style {
        Some(_) => model,
        None => call.model.value.clone(),
    };
    let version = match call.version {
        Some(version) => format!(", version => {version}"),
        None => String::new(),
    };
    let (second, area) = match classes.len() {
        2 => (
            "CAST(probs[2]['prob'] AS DOUBLE)",
            "sum(n * (below - level / 2.0)) FILTER (WHERE NOT is_first) \
             / (sum(n) FILTER (WHERE is_first) * 1.0 * sum(n) FILTER (WHERE NOT is_first))",
        ),
        _ => ("0.0", "CAST(NULL AS DOUBLE)"),
    };
    let text = format!(
        "WITH given AS (
           SELECT CAST({label} AS {data_type}) AS label, {class} AS predicted, {probabilities} AS probs
           FROM ml.predict(model => {model}{version}, (SELECT * FROM {ROWS}))
           WHERE {label} IS NOT NULL
         ), known AS (
           SELECT label, predicted, {second} AS second,
             greatest(coalesce(CAST(probs[CAST(array_position(make_array({all}), label) AS BIGINT)]['prob'] AS DOUBLE), 0.0),
               {LEAST_PROBABILITY}) AS probability
           FROM given
         ), counted AS (
           SELECT label, predicted, second, label = {first} AS is_first, count(*) AS n, sum(-ln(probability)) AS loss
           FROM known GROUP BY label, predicted, second
         ), compared AS (
           SELECT label, predicted, is_first, n, loss,
             sum(n) OVER (PARTITION BY label) AS support,
             sum(n) OVER (PARTITION BY predicted) AS chosen,
             sum(CASE WHEN is_first THEN n ELSE 0 END) OVER (ORDER BY second) AS below,
             sum(CASE WHEN is_first THEN n ELSE 0 END) OVER (PARTITION BY second) AS level
           FROM counted
         )
         SELECT CAST(coalesce(sum(n), 0) AS BIGINT) AS \"rows\",
           coalesce(sum(n * 1.0 / chosen) FILTER (WHERE label = predicted), 0.0) / count(DISTINCT label) AS \"precision\",
           coalesce(sum(n * 1.0 / support) FILTER (WHERE label = predicted), 0.0) / count(DISTINCT label) AS recall,
           coalesce(sum(n) FILTER (WHERE label = predicted), 0) * 1.0 / sum(n) AS accuracy,
           coalesce(sum(n * 2.0 / (support + chosen)) FILTER (WHERE label = predicted), 0.0)
             / count(DISTINCT label) AS f1_score,
           sum(loss) / sum(n) AS log_loss,
           {area} AS roc_auc
         FROM compared"
    );
    let mut query = parse(&text)?;
    let with = query.with.get_or_insert_with(|| With {
        with_token: AttachedToken::empty(),
        recursive: false,
        cte_tables: vec![],
    });
    with.cte_tables.insert(0, cte(ROWS, rows));
    Ok(query)
}

fn cte(name: &str, query: Box<Query>) -> Cte {
    Cte {
        alias: TableAlias {
            explicit: true,
            name: Ident::new(name),
            columns: vec![],
            at: None,
        },
        query,
        from: None,
        materialized: None,
        closing_paren_token: AttachedToken::empty(),
    }
}

fn parse(text: &str) -> Result<Box<Query>> {
    let query = Parser::new(&GenericDialect {})
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_query());
    query.map_err(|error| DataFusionError::Internal(error.to_string()))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The classes as they are written in SQL.
fn literals(classes: &Classes) -> Result<Vec<String>> {
    let array = classes.array();
    let literal = |at: usize| -> Result<String> {
        let text = array_value_to_string(&array, at)?;
        Ok(match classes.class_type() {
            ClassType::Integer => format!("CAST({text} AS BIGINT)"),
            ClassType::Text => format!("'{}'", text.replace('\'', "''")),
            ClassType::Boolean => text,
            ClassType::Date => format!("DATE '{text}'"),
        })
    };
    (0..classes.len()).map(literal).collect()
}
