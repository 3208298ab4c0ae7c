//! How well predictions of classes fit labels: `ML.EVALUATE`, `ML.CONFUSION_MATRIX` and `ML.ROC_CURVE` as queries over
//! `ML.PREDICT`, which run like any other. Rows without a label are left out. Names are BigQuery ML's.

use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::Query;
use volley_proto::store::{ClassType, Classes, Manifest};

use super::call::{Call, Function};
use super::derived::{self, ROWS, quoted};
use crate::Error;

/// The least probability that a class is taken to have: the logarithm of 0 has no number.
const LEAST_PROBABILITY: &str = "1e-15";
/// Classes that a confusion matrix has columns for.
const MOST_COLUMNS: usize = 500;
/// Points of a ROC curve, about.
const POINTS: usize = 100;

/// The query that a call of one of these functions is, over its rows.
///
/// # Errors
/// When the model's classes do not suit the function.
pub(super) fn query(
    manifest: &Manifest,
    classes: &Classes,
    call: &Call,
    rows: Box<Query>,
) -> crate::Result<Box<Query>> {
    let refuse = |reason: String| {
        Err(Error::MlFunction {
            function: call.function.name().to_owned(),
            reason,
        })
    };
    let literals = literals(classes)?;
    let rest = match call.function {
        Function::ConfusionMatrix if classes.len() > MOST_COLUMNS => {
            return refuse(format!(
                "the model has {} classes, and there are columns for {MOST_COLUMNS}: count the rows of \
                 ML.PREDICT by the label and the prediction",
                classes.len()
            ));
        }
        Function::RocCurve if classes.len() != 2 => {
            return refuse(format!(
                "it is of models with two classes, this one has {}",
                classes.len()
            ));
        }
        Function::ConfusionMatrix => confusion_matrix(classes, &literals),
        Function::RocCurve => roc_curve(&literals),
        _ => metrics(&literals),
    };
    let text = format!("{}{rest}", given(manifest, classes, call));
    Ok(derived::query(&text, rows)?)
}

/// `given`: the label, the likeliest class, and the probabilities of all, of rows that have a label.
fn given(manifest: &Manifest, classes: &Classes, call: &Call) -> String {
    let label = quoted(&manifest.spec.label.column);
    let predicted = manifest.predicted();
    let (class, probabilities) = (quoted(&predicted.name), quoted(&predicted.probabilities()));
    let data_type = derived::sql_type(classes.class_type());
    let model = derived::model(call);
    format!(
        "WITH given AS (
           SELECT CAST({label} AS {data_type}) AS label, {class} AS predicted, {probabilities} AS probs
           FROM ml.predict({model}, (SELECT * FROM {ROWS}))
           WHERE {label} IS NOT NULL
         )"
    )
}

/// One row of metrics.
///
/// Precision, recall and F1 are means over the classes that labels have (macro averages); one that is never predicted
/// has a precision of 0. The area under the ROC curve is that of two classes, by the second's probability.
fn metrics(classes: &[String]) -> String {
    let (all, first) = (classes.join(", "), &classes[0]);
    let (second, area) = match classes.len() {
        2 => (
            "CAST(probs[2]['prob'] AS DOUBLE)",
            "sum(n * (below - level / 2.0)) FILTER (WHERE NOT is_first) \
             / (sum(n) FILTER (WHERE is_first) * 1.0 * sum(n) FILTER (WHERE NOT is_first))",
        ),
        _ => ("0.0", "CAST(NULL AS DOUBLE)"),
    };
    format!(
        ", known AS (
           SELECT label, predicted, {second} AS second,
             CAST(probs[CAST(array_position(make_array({all}), label) AS BIGINT)]['prob'] AS DOUBLE) AS probability
           FROM given
         ), counted AS (
           SELECT label, predicted, second, label = {first} AS is_first, count(*) AS n,
             sum(-ln(greatest(coalesce(probability, 0.0), {LEAST_PROBABILITY}))) AS loss
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
    )
}

/// A row for each label, a column for each class: how many rows of the label were taken for the class.
fn confusion_matrix(classes: &Classes, literals: &[String]) -> String {
    let names = classes.texts();
    let columns = names.iter().zip(literals).map(|(name, literal)| {
        let name = quoted(name);
        format!("count(*) FILTER (WHERE predicted = {literal}) AS {name}")
    });
    let columns: Vec<_> = columns.collect();
    format!(
        " SELECT label AS expected_label, {} FROM given GROUP BY label",
        columns.join(", ")
    )
}

/// Rows that are taken for the second class from some probabilities on.
fn roc_curve(classes: &[String]) -> String {
    let (first, second) = (&classes[0], &classes[1]);
    format!(
        ", counted AS (
           SELECT CAST(probs[2]['prob'] AS DOUBLE) AS threshold, count(*) FILTER (WHERE label = {second}) AS positives,
             count(*) FILTER (WHERE label = {first}) AS negatives
           FROM given GROUP BY CAST(probs[2]['prob'] AS DOUBLE)
         ), summed AS (
           SELECT threshold, sum(positives) OVER (ORDER BY threshold DESC) AS true_positives,
             sum(negatives) OVER (ORDER BY threshold DESC) AS false_positives,
             sum(positives) OVER () AS all_positives, sum(negatives) OVER () AS all_negatives,
             CAST(row_number() OVER (ORDER BY threshold DESC) AS BIGINT) AS place, count(*) OVER () AS places
           FROM counted
         )
         SELECT threshold, true_positives * 1.0 / all_positives AS recall,
           false_positives * 1.0 / all_negatives AS false_positive_rate, true_positives, false_positives,
           all_negatives - false_positives AS true_negatives, all_positives - true_positives AS false_negatives
         FROM summed
         WHERE place = 1 OR place = places OR place * {POINTS} / places <> (place - 1) * {POINTS} / places"
    )
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
