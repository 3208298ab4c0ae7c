//! Estimate of a plan's number of rows, before anything is read.
//!
//! DataFusion's estimates are for choosing between plans: a filter keeps a fifth, and each key of a join divides the
//! estimate again, so that features joined from seven tables end up as a handful of rows. This module estimates the
//! needs of training, so it returns about the maximum: filters keep all rows, and a row of the larger side of a join
//! meets one row of the smaller.

use std::sync::Arc;

use datafusion::common::stats::Precision;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

/// Number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    Exact(u64),
    Estimated(u64),
    Unknown,
}

impl Rows {
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        match known(plan) {
            Precision::Exact(rows) => Self::Exact(rows as u64),
            _ => most(plan).map_or(Self::Unknown, Self::Estimated),
        }
    }

    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Exact(rows) | Self::Estimated(rows) => Some(rows),
            Self::Unknown => None,
        }
    }
}

/// Returns DataFusion's statistics of the number of rows.
fn known(plan: &Arc<dyn ExecutionPlan>) -> Precision<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::default());
    statistics.map_or(Precision::Absent, |statistics| statistics.num_rows)
}

/// Estimates the maximum number of rows of a plan.
fn most(plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    let (inputs, known) = (plan.children(), known(plan));
    let rows = if inputs.is_empty() || matches!(known, Precision::Exact(_)) {
        known.get_value().map(|rows| *rows as u64)?
    } else {
        let mut inputs = inputs.into_iter().map(most);
        if plan.is::<UnionExec>() || plan.is::<InterleaveExec>() {
            inputs.try_fold(0, |sum: u64, rows| Some(sum.saturating_add(rows?)))?
        } else if plan.is::<CrossJoinExec>() || plan.is::<NestedLoopJoinExec>() {
            inputs.try_fold(1, |product: u64, rows| Some(product.saturating_mul(rows?)))?
        } else {
            inputs.try_fold(0, |largest: u64, rows| Some(largest.max(rows?)))?
        }
    };
    Some(plan.fetch().map_or(rows, |fetch| rows.min(fetch as u64)))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;
    use volley_engine::with_rules;

    use super::*;

    /// Returns the estimate for a query over `facts`, about 10,000 rows, and `days`, about 100.
    async fn rows(query: &str) -> Rows {
        let state = SessionStateBuilder::new_with_default_features().build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        let dir = tempfile::tempdir().unwrap();
        for (table, rows) in [("facts", 10_000), ("days", 100)] {
            // Only the file's size is read. A number and its separator are five bytes.
            let file = dir.path().join(format!("{table}.csv"));
            File::create(&file).unwrap().set_len(rows * 15).unwrap();
            let create = format!(
                "CREATE EXTERNAL TABLE {table} (a INT, b INT, c INT) STORED AS CSV LOCATION '{}'",
                file.display()
            );
            session.sql(&create).await.unwrap();
        }
        let query = session.sql(query).await.unwrap();
        Rows::of(&query.create_physical_plan().await.unwrap())
    }

    #[tokio::test]
    async fn facts_keep_their_rows_when_more_is_known_of_them() {
        let join = "SELECT * FROM facts JOIN days ON facts.a = days.a AND facts.b = days.b";
        for (query, expected) in [
            ("SELECT * FROM facts".to_owned(), 10_000),
            (join.to_owned(), 10_000),
            (format!("{join} WHERE facts.c > 0"), 10_000),
            (
                "SELECT * FROM facts UNION ALL SELECT * FROM days".to_owned(),
                10_100,
            ),
            ("SELECT * FROM facts LIMIT 7".to_owned(), 7),
            (
                "SELECT facts.*, last FROM facts CROSS JOIN (SELECT max(a) AS last FROM days)"
                    .to_owned(),
                10_000,
            ),
            (
                "SELECT facts.* FROM facts CROSS JOIN days".to_owned(),
                1_000_000,
            ),
        ] {
            assert_eq!(rows(&query).await, Rows::Estimated(expected), "{query}");
        }
        assert_eq!(rows("SELECT count(*) FROM facts").await, Rows::Exact(1));
    }
}
