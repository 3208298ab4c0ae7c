//! Evaluation of class predictions: `ML.EVALUATE`, `ML.CONFUSION_MATRIX`, `ML.ROC_CURVE` and `ML.CALIBRATION` as
//! queries over `ML.PREDICT`, which run like any other. Rows without a label are left out, and so are rows of weight 0
//! if the rows have the model's weight column. `ML.EVALUATE` is then weighted; the other functions count rows. Names
//! are BigQuery ML's where it has them.

use datafusion::arrow::util::display::array_value_to_string;
use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::Query;
use volley_proto::store::{ClassType, Classes, Manifest};

use super::call::{Call, Function};
use super::derived::{self, Judged, ROWS, quoted};
use super::evaluate::group_name;
use crate::Error;

/// Lower bound of a class's probability, because the logarithm of 0 is not finite.
const LEAST_PROBABILITY: &str = "1e-15";
/// Maximum number of classes in a confusion matrix.
const MOST_COLUMNS: usize = 500;
/// Number of bins of probabilities in a calibration.
const BINS: usize = 10;
/// Approximate number of points of a ROC curve.
const POINTS: usize = 100;

/// Builds the query of a call of one of these functions over its rows.
///
/// # Errors
/// When the model's classes do not suit the function.
pub(super) fn query(
    manifest: &Manifest,
    classes: &Classes,
    call: &Call,
    judged: Judged<'_>,
) -> crate::Result<Box<Query>> {
    let by = judged.by;
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
                "expected a model with two classes, and this one has {}",
                classes.len()
            ));
        }
        Function::ConfusionMatrix => confusion_matrix(classes, &literals),
        Function::RocCurve => roc_curve(&literals),
        Function::Calibration => calibration(&literals),
        _ => metrics(&literals, by),
    };
    let text = format!("{}{rest}", given(manifest, classes, call, &judged));
    Ok(derived::query(&text, judged.rows)?)
}

/// Returns the text of `given`: the label, likeliest class, probabilities of all classes, weight and groups of the rows
/// that have a label and a positive weight.
fn given(manifest: &Manifest, classes: &Classes, call: &Call, judged: &Judged<'_>) -> String {
    let (label, by) = (quoted(judged.label), judged.by);
    let predicted = manifest.predicted();
    let (class, probabilities) = (quoted(&predicted.name), quoted(&predicted.probabilities()));
    let data_type = derived::sql_type(classes.class_type());
    let model = derived::model(call);
    let (weight, weighs) = (judged.weight(), judged.weighs());
    let weight = weight.unwrap_or_else(|| "1".to_owned());
    let groups = by.iter().enumerate();
    let groups: String = groups
        .map(|(at, name)| format!(", {} AS {}", quoted(name), group_name(at)))
        .collect();
    format!(
        "WITH given AS (
           SELECT CAST({label} AS {data_type}) AS label, {class} AS predicted, {probabilities} AS probs,
             {weight} AS weight{groups}
           FROM ml.predict({model}, (SELECT * FROM {ROWS}))
           WHERE {label} IS NOT NULL{weighs}
         )"
    )
}

/// Returns the query of the metrics: one row, or one per group.
///
/// Precision, recall and F1 are means over the classes that occur among the labels (macro averages); a class that is
/// never predicted has a precision of 0. The area under the ROC curve is for two classes, by the second's probability.
fn metrics(classes: &[String], by: &[String]) -> String {
    let groups: String = (0..by.len())
        .map(|at| format!("{}, ", group_name(at)))
        .collect();
    let each: String = by
        .iter()
        .enumerate()
        .map(|(at, name)| format!("{} AS {}, ", group_name(at), quoted(name)))
        .collect();
    let keys = groups.trim_end_matches(", ");
    let of_group = if by.is_empty() {
        String::new()
    } else {
        format!("PARTITION BY {keys}")
    };
    let by_group = if by.is_empty() {
        String::new()
    } else {
        format!("GROUP BY {keys}")
    };
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
           SELECT {groups}label, predicted, weight, {second} AS second,
             CAST(probs[CAST(array_position(make_array({all}), label) AS BIGINT)]['prob'] AS DOUBLE) AS probability
           FROM given
         ), counted AS (
           SELECT {groups}label, predicted, second, label = {first} AS is_first, count(*) AS \"rows\", sum(weight) AS n,
             sum(weight * -ln(greatest(coalesce(probability, 0.0), {LEAST_PROBABILITY}))) AS loss
           FROM known GROUP BY {groups}label, predicted, second
         ), compared AS (
           SELECT {groups}label, predicted, is_first, \"rows\", n, loss,
             sum(n) OVER (PARTITION BY {groups}label) AS support,
             sum(n) OVER (PARTITION BY {groups}predicted) AS chosen,
             sum(CASE WHEN is_first THEN n ELSE 0 END) OVER ({of_group} ORDER BY second) AS below,
             sum(CASE WHEN is_first THEN n ELSE 0 END) OVER (PARTITION BY {groups}second) AS level
           FROM counted
         )
         SELECT {each}CAST(coalesce(sum(\"rows\"), 0) AS BIGINT) AS \"rows\",
           coalesce(sum(n * 1.0 / chosen) FILTER (WHERE label = predicted), 0.0) / count(DISTINCT label) AS \"precision\",
           coalesce(sum(n * 1.0 / support) FILTER (WHERE label = predicted), 0.0) / count(DISTINCT label) AS recall,
           coalesce(sum(n) FILTER (WHERE label = predicted), 0) * 1.0 / sum(n) AS accuracy,
           coalesce(sum(n * 2.0 / (support + chosen)) FILTER (WHERE label = predicted), 0.0)
             / count(DISTINCT label) AS f1_score,
           sum(loss) / sum(n) AS log_loss,
           {area} AS roc_auc
         FROM compared {by_group}"
    )
}

/// Returns the query of a confusion matrix: a row per label, a column per class, with counts of predicted rows.
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

/// Returns the query of a ROC curve: counts of rows classified as the second class at each threshold.
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

/// Returns the query of a calibration: the observed frequency of predictions per tenth of probability, for each tenth
/// that has rows. For two classes the probability is the second's; for more it is the likeliest one's (Guo et al.
/// 2017).
fn calibration(classes: &[String]) -> String {
    let (probability, is_true) = match classes {
        [_, second] => (
            "CAST(probs[2]['prob'] AS DOUBLE)".to_owned(),
            format!("label = {second}"),
        ),
        all => {
            let all = all.join(", ");
            let at = format!("CAST(array_position(make_array({all}), predicted) AS BIGINT)");
            (
                format!("CAST(probs[{at}]['prob'] AS DOUBLE)"),
                "label = predicted".to_owned(),
            )
        }
    };
    format!(
        ", known AS (
           SELECT {probability} AS probability, CASE WHEN {is_true} THEN 1.0 ELSE 0.0 END AS is_true FROM given
         ), binned AS (
           SELECT probability, is_true, least(CAST(floor(probability * {BINS}) AS BIGINT), {BINS} - 1) AS bin FROM known
         )
         SELECT CAST(bin AS DOUBLE) / {BINS} AS above, count(*) AS \"rows\", avg(probability) AS mean_probability,
           avg(is_true) AS true_share
         FROM binned GROUP BY bin"
    )
}

/// Returns the classes as SQL literals.
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
