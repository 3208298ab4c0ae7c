//! `ML.GLOBAL_EXPLAIN`: the permutation importance of features.
//!
//! The permutation importance of Breiman (2001), as in scikit-learn: each feature is permuted by itself, five times,
//! and its attribution is the mean drop of the score. The score is `r2_score` for numbers and `accuracy` for classes.
//! The call becomes a query over `ML.PREDICT`, which runs like any other. A hash of their contents assigns rows to
//! sixteen parts and orders them; each row takes the next one's value, and the last of a part takes the first's. So the
//! same rows get the same attributions. Rows without a label are left out, and so are rows of weight 0 if the rows have
//! the model's weight column.

use datafusion::sql::sqlparser::ast::Query;
use volley_proto::store::{Classes, Manifest};

use super::call::Call;
use super::derived::{self, Judged, ROWS, quoted};
use super::transform;

/// Builds the query of a call over its rows.
///
/// The permuted columns are the features, or the columns from which a TRANSFORM computes them.
pub(super) fn query(
    manifest: &Manifest,
    call: &Call,
    judged: Judged<'_>,
) -> crate::Result<Box<Query>> {
    let label = quoted(judged.label);
    let weighs = judged.weighs();
    let predicted = quoted(&manifest.predicted().name);
    let class = manifest.classes.as_ref().map(Classes::class_type);
    let label_type = class.map_or("DOUBLE", derived::sql_type);
    let score = match class {
        None => format!(
            "1.0 - avg(power(__volley_label - CAST({predicted} AS DOUBLE), 2.0)) / nullif(var_pop(__volley_label), 0.0)"
        ),
        Some(_) => format!("avg(CASE WHEN __volley_label = {predicted} THEN 1.0 ELSE 0.0 END)"),
    };
    let features = manifest.features.iter().map(|feature| &feature.column);
    let features: Vec<_> = match &manifest.spec.transform {
        None => features.cloned().collect(),
        Some(transform) => {
            let of_features = |column: &str| features.clone().any(|feature| feature == column);
            let read = transform::only(transform, of_features)?.inputs.into_iter();
            read.map(|input| input.column).collect()
        }
    };
    let names = features.iter();
    let columns: Vec<_> = names.clone().map(|name| quoted(name)).collect();
    let each = |text: fn(usize, &str) -> String| {
        let numbered = columns.iter().enumerate();
        let texts: Vec<_> = numbered.map(|(at, column)| text(at + 1, column)).collect();
        texts.join(", ")
    };
    let texts = each(|_, column| format!("CAST({column} AS VARCHAR)"));
    let others = each(|at, column| {
        let by = "PARTITION BY __volley_repeat, substr(__volley_draw, 1, 1)";
        format!(
            "CASE WHEN row_number() OVER ({by} ORDER BY __volley_draw) = count(*) OVER ({by}) \
             THEN first_value({column}) OVER ({by} ORDER BY __volley_draw) \
             ELSE lead({column}) OVER ({by} ORDER BY __volley_draw) END AS __volley_other_{at}"
        )
    });
    let permuted = each(|at, column| {
        format!(
            "CASE WHEN __volley_permuted = {at} THEN __volley_other_{at} ELSE {column} END AS {column}"
        )
    });
    let numbers = each(|at, _| format!("({at})"));
    let names = names.enumerate().map(|(at, name)| {
        let text = name.replace('\'', "''");
        format!("WHEN {} THEN '{text}'", at + 1)
    });
    let names: Vec<_> = names.collect();
    let text = format!(
        "WITH drawn AS (
           SELECT {columns}, CAST({label} AS {label_type}) AS __volley_label, __volley_repeat,
             md5(concat_ws('|', CAST(__volley_repeat AS VARCHAR), CAST({label} AS VARCHAR), {texts})) AS __volley_draw
           FROM {ROWS} CROSS JOIN (VALUES (1), (2), (3), (4), (5)) AS repeats(__volley_repeat)
           WHERE {label} IS NOT NULL{weighs}
         ), placed AS (
           SELECT *, {others} FROM drawn
         ), permuted AS (
           SELECT __volley_repeat, __volley_permuted, __volley_label, {permuted}
           FROM placed CROSS JOIN (VALUES (0), {numbers}) AS features(__volley_permuted)
         ), scored AS (
           SELECT __volley_repeat, __volley_permuted, {score} AS score
           FROM ml.predict({model}, (SELECT * FROM permuted))
           GROUP BY __volley_repeat, __volley_permuted
         ), compared AS (
           SELECT __volley_permuted,
             max(CASE WHEN __volley_permuted = 0 THEN score END) OVER (PARTITION BY __volley_repeat) - score AS fall
           FROM scored
         )
         SELECT CASE __volley_permuted {names} END AS feature, avg(fall) AS attribution,
           stddev_pop(fall) AS attribution_stddev
         FROM compared WHERE __volley_permuted > 0 GROUP BY __volley_permuted",
        columns = columns.join(", "),
        model = derived::model(call),
        names = names.join(" "),
    );
    Ok(derived::query(&text, judged.rows)?)
}
