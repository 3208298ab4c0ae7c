//! `ML.FEATURE_INFO`: statistics of the features in training, and the drift of other rows from them.
//!
//! Names are BigQuery ML's where it has them. Without rows, the result is read from the manifest; with rows, it is a
//! query over them, whose `drift` is the difference of a feature's means in training's standard deviations.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::Query;
use volley_proto::spec::FeatureKind;
use volley_proto::store::{FeatureSummary, Manifest, Numbers};

use super::Known;
use super::derived::{self, ROWS, quoted};

const NAME: &str = "feature_info";

/// Returns the features' statistics in training, one row per feature.
pub(super) fn published(manifest: &Manifest) -> Result<LogicalPlan> {
    let features = || manifest.features.iter();
    let number = |of: fn(&Numbers) -> f64| -> ArrayRef {
        let numbers = features().map(|feature| feature.numbers.as_ref().map(of));
        Arc::new(numbers.collect::<Float64Array>())
    };
    let whole = |of: &dyn Fn(&FeatureSummary) -> Option<u64>| -> ArrayRef {
        let numbers = features().map(|feature| of(feature).and_then(|n| i64::try_from(n).ok()));
        Arc::new(numbers.collect::<Int64Array>())
    };
    let text = |of: fn(&FeatureSummary) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(features().map(of)))
    };
    let columns = [
        ("input", text(|feature| &feature.column)),
        ("data_type", text(|feature| &feature.data_type)),
        ("min", number(|numbers| numbers.min)),
        ("max", number(|numbers| numbers.max)),
        ("mean", number(|numbers| numbers.mean)),
        ("stddev", number(|numbers| numbers.stddev)),
        (
            "category_count",
            whole(&|feature| feature.vocabulary.and_then(|n| u64::try_from(n).ok())),
        ),
        (
            "null_count",
            whole(&|feature| feature.numbers.map(|numbers| numbers.nulls)),
        ),
    ];
    let columns = columns.map(|(name, column)| (name, column, true));
    Known::plan(NAME, RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Builds the query of a call with rows.
pub(super) fn query(manifest: &Manifest, rows: Box<Query>) -> Result<Box<Query>> {
    let features = || (1..).zip(&manifest.features);
    let measures = features().map(|(at, feature)| {
        let column = quoted(&feature.column);
        let nulls = format!("count(*) - count({column}) AS nulls_{at}");
        match feature.kind {
            FeatureKind::Categorical => format!("count(DISTINCT {column}) AS values_{at}, {nulls}"),
            FeatureKind::Continuous => {
                let number = number(feature, &column);
                format!(
                    "min({number}) AS min_{at}, max({number}) AS max_{at}, avg({number}) AS mean_{at}, \
                     stddev_pop({number}) AS stddev_{at}, {nulls}"
                )
            }
        }
    });
    let measures: Vec<_> = measures.collect();
    // Picks a measure for each feature that has it.
    let choose = |name: &str, has: fn(&FeatureSummary) -> bool, sql_type: &str| {
        let cases = features().filter(|(_, feature)| has(feature));
        let cases: String = cases
            .map(|(at, _)| format!(" WHEN {at} THEN {name}_{at}"))
            .collect();
        match cases.is_empty() {
            true => format!("CAST(NULL AS {sql_type})"),
            false => format!("CASE __volley_feature{cases} END"),
        }
    };
    let is_number = |feature: &FeatureSummary| feature.kind == FeatureKind::Continuous;
    let number = |name: &str| choose(name, is_number, "DOUBLE");
    let values = choose(
        "values",
        |feature| feature.kind == FeatureKind::Categorical,
        "BIGINT",
    );
    let nulls = choose("nulls", |_| true, "BIGINT");
    let known = features().map(|(at, feature)| {
        let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let trained = feature.numbers.filter(|numbers| numbers.stddev > 0.0);
        let [mean, stddev] = match trained {
            Some(numbers) => [numbers.mean, numbers.stddev].map(|x| format!("{x:e}")),
            None => ["NULL".to_owned(), "NULL".to_owned()],
        };
        let [name, data_type] = [&feature.column, &feature.data_type].map(|name| text(name));
        format!("({at}, {name}, {data_type}, CAST({mean} AS DOUBLE), CAST({stddev} AS DOUBLE))")
    });
    let known: Vec<_> = known.collect();
    let text = format!(
        "WITH measured AS (SELECT {measures} FROM {ROWS})
         SELECT input, data_type, {min} AS \"min\", {max} AS \"max\", {mean} AS mean, {stddev} AS stddev,
           {values} AS category_count, {nulls} AS null_count,
           abs({mean} - __volley_mean) / __volley_stddev AS drift
         FROM measured CROSS JOIN (VALUES {known})
           AS features(__volley_feature, input, data_type, __volley_mean, __volley_stddev)",
        measures = measures.join(", "),
        min = number("min"),
        max = number("max"),
        mean = number("mean"),
        stddev = number("stddev"),
        known = known.join(", "),
    );
    derived::query(&text, rows)
}

/// Returns a continuous feature as the number used in training: days since 1970 for dates and times.
fn number(feature: &FeatureSummary, column: &str) -> String {
    let is_time = ["Date", "Timestamp"].map(|name| feature.data_type.starts_with(name));
    match is_time.contains(&true) {
        true => format!("(date_part('epoch', {column}) / 86400.0)"),
        false => format!("CAST({column} AS DOUBLE)"),
    }
}
