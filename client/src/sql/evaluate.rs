//! `ML.EVALUATE`: metrics of predictions against labels, as an ordinary aggregate over the prediction, for all rows or
//! per group.
//!
//! Rows without a label are left out. If rows have the model's weight column, means are weighted, as in training, and
//! rows of weight 0 are left out too. Names are BigQuery ML's where it has them, and scikit-learn's for quantiles. For
//! models that predict classes it is a query: see [`class_queries`](super::class_queries).

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Column;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::functions::expr_fn::{abs, ln, sqrt};
use datafusion::functions_aggregate::expr_fn::{avg, count, sum, var_pop};
use datafusion::functions_nested::expr_ext::IndexAccessor;
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, col, lit, when,
};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::Ident;
use volley_proto::spec::named_field;
use volley_proto::store::{ClassType, Classes, Manifest, Scale};

/// Lower bound of labels in `rmspe`, as in training; smaller labels are left out.
const LEAST_LABEL: f64 = 0.001;

/// Checks that the input has the label columns that predictions are compared with.
///
/// `labels` are the model's own columns, or columns computed by its TRANSFORM.
pub(super) fn check_labels(
    manifest: &Manifest,
    labels: &[String],
    input: &LogicalPlan,
) -> crate::Result<()> {
    let mut columns = manifest.spec.label.columns.iter().zip(labels);
    columns.try_for_each(|(column, label)| check_label(manifest, column, label, input))
}

fn check_label(
    manifest: &Manifest,
    column: &str,
    label: &str,
    input: &LogicalPlan,
) -> crate::Result<()> {
    let schema = input.schema().as_arrow();
    let role = "the rows that are judged (it is the model's label)";
    let field = named_field(schema, label, role)?;
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
        column: column.to_owned(),
        role: "the label",
        actual: field.data_type().to_string(),
        expected,
    }
    .into())
}

/// Returns the weight column, if the model and the input have one: a column computed by the model's TRANSFORM, or the
/// rows' own.
///
/// # Errors
/// When the column is not numeric.
pub(super) fn weight<'m>(
    manifest: &'m Manifest,
    computed: Option<&'m str>,
    input: &LogicalPlan,
) -> crate::Result<Option<&'m str>> {
    let Some(column) = computed.or(manifest.spec.sample_weight.as_deref()) else {
        return Ok(None);
    };
    match input.schema().as_arrow().field_with_name(column) {
        Err(_) => Ok(None),
        Ok(field) if field.data_type().is_numeric() => Ok(Some(column)),
        Ok(field) => Err(volley_proto::Error::ColumnType {
            column: column.to_owned(),
            role: "sample_weight_col",
            actual: field.data_type().to_string(),
            expected: "a number".to_owned(),
        }
        .into()),
    }
}

/// Returns the columns of the input that rows are grouped by.
///
/// # Errors
/// Names a missing column, or a column named `label` if the model has several labels.
pub(super) fn groups(
    manifest: &Manifest,
    by: &[Ident],
    names: &IdentNormalizer,
    input: &LogicalPlan,
) -> crate::Result<Vec<String>> {
    let schema = input.schema().as_arrow();
    let group = |column: &Ident| -> crate::Result<String> {
        let column = names.normalize(column.clone());
        if column == "label" && !manifest.spec.label.several().is_empty() {
            let message = "not supported: BY label of a model with several labels, whose rows have a column \
                of this name: rename it in a query";
            return Err(DataFusionError::Plan(message.to_owned()).into());
        }
        named_field(schema, &column, "BY")?;
        Ok(column)
    };
    by.iter().map(group).collect()
}

/// Returns the name of a group's column below its metrics, whose names it may share.
pub(super) fn group_name(at: usize) -> String {
    format!("__volley_by_{at}")
}

/// Name of the label's index below the metrics, for several labels.
const PLACE: &str = "__volley_label";

/// Repeats each row once per label, with the label's index.
fn for_each_label(labels: usize, rows: LogicalPlan) -> Result<LogicalPlan> {
    let places = (0..labels).map(|at| vec![lit(at as i64)]).collect();
    let places = LogicalPlanBuilder::values(places)?
        .project([col("column1").alias(PLACE)])?
        .build()?;
    // The left side is collected.
    LogicalPlanBuilder::from(places).cross_join(rows)?.build()
}

/// Selects the expression of the row's label, given one expression per label.
fn of_place(mut each: Vec<Expr>) -> Result<Expr> {
    let Some(last) = each.pop() else {
        let message = "a model has a label".to_owned();
        return Err(DataFusionError::Internal(message));
    };
    let mut others = each.into_iter().enumerate().rev();
    others.try_fold(last, |others, (at, own)| {
        when(col(PLACE).eq(lit(at as i64)), own).otherwise(others)
    })
}

/// Returns the name of one of a row's quantiles below its metrics.
fn quantile_name(at: usize) -> String {
    format!("__volley_quantile_{at}")
}

/// Returns the averaged expressions for quantiles of these levels: the mean of their losses and, for the interval
/// between the outermost two, whether it covers the label and its width.
fn of_quantiles(shares: &[f64]) -> Result<[Averaged; 3]> {
    let quantile = |at: usize| col(quantile_name(at));
    let losses = shares.iter().enumerate().map(|(at, share)| {
        let error = || col("label") - quantile(at);
        when(error().gt_eq(lit(0.0)), lit(*share) * error()).otherwise(lit(share - 1.0) * error())
    });
    let losses = losses.collect::<Result<Vec<_>>>()?;
    let sum = losses.into_iter().fold(lit(0.0), |sum, loss| sum + loss);
    let (low, high) = (quantile(0), quantile(shares.len() - 1));
    let is_in = col("label").between(low.clone(), high.clone());
    let is_in = when(is_in, lit(1.0)).otherwise(lit(0.0))?;
    Ok([
        ("mean_pinball_loss", sum / lit(shares.len() as f64)),
        ("interval_coverage", is_in),
        ("mean_interval_width", high - low),
    ])
}

/// Least variance that is not attributed to rounding, as a share of the mean of squares.
const ROUNDING: f64 = 1e-13;

/// Name of a row's weight below the metrics.
const WEIGHT: &str = "__volley_weight";

/// Name of a mean over rows, and the expression that is averaged.
type Averaged = (&'static str, Expr);

/// Returns the name of the sum of weights of the rows where the averaged expression is not NULL.
fn weight_of(name: &str) -> String {
    format!("__volley_weight_of_{name}")
}

/// Returns the aggregates of a weighted mean: two sums.
fn weighed((name, of): Averaged) -> Result<[Expr; 2]> {
    let weight = || col(WEIGHT);
    let known = when(of.clone().is_not_null(), weight()).end()?;
    Ok([
        sum(weight() * of).alias(name),
        sum(known).alias(weight_of(name)),
    ])
}

/// Returns the distance of labels from their means in training, if they were standardized. The variance of labels far
/// from 0 equals that of their distances, which is more precise.
fn distance(manifest: &Manifest) -> Result<Expr> {
    let mean = |scale: &Scale| {
        let mean = match manifest.spec.loss.has_log_link() {
            true => scale.unit,
            false => scale.undo(0.0),
        };
        lit(if manifest.exponentiates() {
            mean.exp()
        } else {
            mean
        })
    };
    let means = manifest.label_scales.iter().map(mean).collect();
    Ok(col("label") - of_place(means)?)
}

/// Plans the metrics of a model that predicts numbers: a row over all predicted rows, or one per group; with several
/// labels, a row per label, with its name.
///
/// All metrics are in the label's scale except `transformed_mae`, which is in the scale of training. With several
/// quantiles, the error is that of the quantile that is the prediction; the metrics of all quantiles follow.
pub(super) fn metrics(
    manifest: &Manifest,
    labels: &[String],
    weight: Option<&str>,
    predicted: LogicalPlan,
    by: &[String],
) -> Result<LogicalPlan> {
    let several = manifest.spec.label.several();
    let predicted = match several {
        [] => predicted,
        several => for_each_label(several.len(), predicted)?,
    };
    let column = |name: &str| -> Result<Expr> {
        let (qualifier, field) = predicted
            .schema()
            .qualified_field_with_unqualified_name(name)?;
        Ok(Expr::Column(Column::from((qualifier, field))))
    };
    let number = |name: &str| column(name)?.cast_to(&DataType::Float64, predicted.schema());
    let label = labels
        .iter()
        .map(|label| number(label))
        .collect::<Result<_>>()?;
    let predictions = manifest.predicted();
    let prediction = predictions.names().map(number).collect::<Result<_>>()?;
    let mut read = vec![
        of_place(label)?.alias("label"),
        of_place(prediction)?.alias("prediction"),
    ];
    let shares = manifest.spec.loss.shares().unwrap_or_default();
    for at in 0..shares.len() {
        let all = column(&predictions.quantiles())?;
        let value = all.index(lit(at as i64 + 1)).field("value");
        let value = value.cast_to(&DataType::Float64, predicted.schema())?;
        read.push(value.alias(quantile_name(at)));
    }
    let of_quantiles = match shares {
        [] => vec![],
        shares => of_quantiles(shares)?.to_vec(),
    };
    if let Some(name) = weight {
        read.push(number(name)?.alias(WEIGHT));
    }
    for (at, name) in by.iter().enumerate() {
        read.push(column(name)?.alias(group_name(at)));
    }
    let mut groups: Vec<_> = (0..by.len()).map(|at| col(group_name(at))).collect();
    let named = by.iter().enumerate();
    let named = named.map(|(at, name)| col(group_name(at)).alias(name));
    let mut of_label = None;
    if !several.is_empty() {
        read.push(col(PLACE));
        groups.push(col(PLACE));
        let names = several.iter().map(|name| lit(name.as_str())).collect();
        of_label = Some(of_place(names)?.alias("label"));
    }
    let named = of_label.into_iter().chain(named);

    let error = || col("label") - col("prediction");
    let relative = || error() / col("label");
    let above = |least: f64, then: Expr| when(col("label").gt(lit(least)), then).end();
    let transformed = if manifest.exponentiates() {
        above(0.0, abs(ln(col("label")) - ln(col("prediction"))))?
    } else {
        abs(error())
    };
    let shown_of_quantiles: Vec<_> = of_quantiles.iter().map(|(name, _)| col(*name)).collect();
    let mut averages = vec![
        ("mean_absolute_error", abs(error())),
        ("mean_squared_error", error() * error()),
        ("mspe", above(LEAST_LABEL, relative() * relative())?),
        ("transformed_mae", transformed),
    ];
    averages.extend(of_quantiles);
    let rows = count(lit(1_i64)).alias("rows");
    let read = LogicalPlanBuilder::from(predicted)
        .project(read)?
        .filter(col("label").is_not_null())?;
    let measured = match weight {
        None => {
            let variance = var_pop(col("label")).alias("variance");
            let averages = averages.into_iter();
            let averages = averages.map(|(name, of)| avg(of).alias(name));
            read.aggregate(groups, [rows, variance].into_iter().chain(averages))?
        }
        Some(_) => {
            let distance = distance(manifest)?;
            averages.push(("distance", distance.clone()));
            averages.push(("square_of_distance", distance.clone() * distance));
            let mean = |name: &str| col(name) / col(weight_of(name));
            let square = mean("square_of_distance");
            let variance = square.clone() - mean("distance") * mean("distance");
            // Rounding leaves a small variance for equal labels: it counts as 0.
            let least = lit(ROUNDING) * square;
            let variance = when(variance.clone().gt(least), variance).otherwise(lit(0.0))?;
            let means = averages.iter().map(|(name, _)| mean(name).alias(*name));
            let kept = groups.iter().cloned().chain([col("rows")]);
            let means: Vec<_> = kept
                .chain(means)
                .chain([variance.alias("variance")])
                .collect();
            let sums = averages.into_iter().map(weighed);
            let sums: Vec<_> = sums.collect::<Result<_>>()?;
            read.filter(col(WEIGHT).gt(lit(0.0)))?
                .aggregate(groups, [rows].into_iter().chain(sums.into_iter().flatten()))?
                .project(means)?
        }
    };
    let shown = [
        col("rows"),
        col("mean_absolute_error"),
        col("mean_squared_error"),
        (lit(1.0) - col("mean_squared_error") / col("variance")).alias("r2_score"),
        sqrt(col("mspe")).alias("rmspe"),
        col("transformed_mae"),
    ];
    measured
        .project(named.chain(shown).chain(shown_of_quantiles))?
        .build()
}
