//! `ML.EVALUATE`: how well predictions fit labels, as an ordinary aggregate over the prediction.
//!
//! Rows without a label are left out. Names are BigQuery ML's where it has them. Of models that predict classes it is
//! a query: see [`class_queries`](super::class_queries).

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Column;
use datafusion::error::Result;
use datafusion::functions::expr_fn::{abs, ln, sqrt};
use datafusion::functions_aggregate::expr_fn::{avg, count, var_pop};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, col, lit, when,
};
use volley_proto::did_you_mean;
use volley_proto::store::{ClassType, Classes, Manifest};

/// Below this, a label is left out of `rmspe`, as in training.
const LEAST_LABEL: f64 = 0.001;

/// Fails unless the input has the label that predictions are compared with.
pub(super) fn check_label(manifest: &Manifest, input: &LogicalPlan) -> crate::Result<()> {
    let label = &manifest.spec.label.column;
    let schema = input.schema().as_arrow();
    let Ok(field) = schema.field_with_name(label) else {
        let names = schema.fields().iter().map(|field| field.name().as_str());
        let hint = did_you_mean(label, names);
        let role = "the rows that are judged (it is the model's label)";
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
