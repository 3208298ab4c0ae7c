//! The selectivity of filters, the share of rows that they keep, where DataFusion does not know it.
//!
//! DataFusion computes it from the ranges of columns, for comparisons of numbers and dates with constants. For a filter
//! with any other condition, it assumes a fifth of the rows, be it `LIKE`, `NOT LIKE` or an equality of text. Here each
//! condition of such a filter is estimated separately, and the filter gets the product, by which joins are ordered and
//! chosen. A wrong estimate makes a plan slower or faster, but never changes its rows.

use std::sync::Arc;

use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, NotExpr,
};
use datafusion::physical_expr::intervals::utils::check_support;
use datafusion::physical_expr::{
    AnalysisContext, PhysicalExpr, analyze, conjunction_opt, split_conjunction,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// Selectivities of an equality without statistics, and of any other condition: the guesses of Selinger et al. (see
/// `join_order::sizes`).
pub(crate) const EQUALITY: f64 = 0.1;
pub(crate) const CONDITION: f64 = 1.0 / 3.0;
/// Selectivity of a pattern, which is about as rare as a value.
const PATTERN: f64 = EQUALITY;
/// Largest selectivity of a list, however many values it has.
const MOST_OF_LIST: f64 = 0.5;

type Expr = Arc<dyn PhysicalExpr>;

/// Sets the selectivity of a filter, before joins are ordered.
pub(crate) fn estimate_filter(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else {
        return Ok(None);
    };
    let known =
        StatisticsContext::new().compute(filter.input().as_ref(), &StatisticsArgs::new())?;
    let input = Input {
        filter,
        known: &known,
    };
    // Range conditions are estimated together: two bounds of a column are one range.
    let conditions = split_conjunction(filter.predicate()).into_iter().cloned();
    let (of_ranges, others): (Vec<_>, Vec<_>) =
        conditions.partition(|condition| check_support(condition, &filter.input().schema()));
    let of_ranges = conjunction_opt(of_ranges);
    let conditions = of_ranges.iter().chain(&others);
    let share: f64 = conditions.map(|condition| input.share(condition)).product();
    let percent = (share * 100.0).round().clamp(1.0, 100.0) as u8;
    let estimated = FilterExecBuilder::from(filter).with_default_selectivity(percent);
    Ok(Some(Arc::new(estimated.build()?)))
}

/// Input of a filter, with its statistics.
struct Input<'a> {
    filter: &'a FilterExec,
    known: &'a Statistics,
}

impl Input<'_> {
    /// Estimates the share of rows that a condition holds for.
    fn share(&self, condition: &Expr) -> f64 {
        if let Some(share) = self.by_ranges(condition) {
            return share;
        }
        if let Some(binary) = condition.downcast_ref::<BinaryExpr>() {
            let sides = || [binary.left(), binary.right()].map(|side| self.share(side));
            return match binary.op() {
                Operator::And => sides().into_iter().product(),
                Operator::Or => {
                    1.0 - sides()
                        .into_iter()
                        .map(|share| 1.0 - share)
                        .product::<f64>()
                }
                Operator::Eq | Operator::IsNotDistinctFrom => EQUALITY,
                Operator::NotEq | Operator::IsDistinctFrom => 1.0 - EQUALITY,
                _ => CONDITION,
            };
        }
        if let Some(not) = condition.downcast_ref::<NotExpr>() {
            return 1.0 - self.share(not.arg());
        }
        if let Some(like) = condition.downcast_ref::<LikeExpr>() {
            return unless(like.negated(), PATTERN);
        }
        if let Some(list) = condition.downcast_ref::<InListExpr>() {
            let values = list.list().len() as f64 * EQUALITY;
            return unless(list.negated(), values.min(MOST_OF_LIST));
        }
        if let Some(null) = condition.downcast_ref::<IsNullExpr>() {
            return self.nulls(null.arg()).unwrap_or(EQUALITY);
        }
        if let Some(value) = condition.downcast_ref::<IsNotNullExpr>() {
            return 1.0 - self.nulls(value.arg()).unwrap_or(EQUALITY);
        }
        CONDITION
    }

    /// Returns the selectivity that DataFusion computes from the ranges of columns, where it can.
    fn by_ranges(&self, condition: &Expr) -> Option<f64> {
        let schema = self.filter.input().schema();
        if !check_support(condition, &schema) {
            return None;
        }
        let columns = &self.known.column_statistics;
        let context = AnalysisContext::try_from_statistics(&schema, columns).ok()?;
        analyze(condition, context, &schema).ok()?.selectivity
    }

    /// Returns the share of NULLs in a column, if they were counted.
    fn nulls(&self, of: &Expr) -> Option<f64> {
        let column = of.downcast_ref::<Column>()?.index();
        let rows = *self.known.num_rows.get_value()?;
        let nulls = *self.known.column_statistics[column]
            .null_count
            .get_value()?;
        (rows > 0).then(|| (nulls as f64 / rows as f64).min(1.0))
    }
}

fn unless(negated: bool, share: f64) -> f64 {
    if negated { 1.0 - share } else { share }
}

#[cfg(test)]
mod tests {
    use datafusion::common::stats::Precision;
    use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};

    use super::*;

    /// Estimates how many of a thousand rows pass: `a` is 0 to 999, `t` is a text, and every fourth `n` is a number.
    async fn passing(condition: &str) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.parquet");
        let file = file.to_str().unwrap();
        let session =
            SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        let write = format!(
            "COPY (SELECT value AS a, 'text' || value AS t, CASE WHEN value % 4 = 0 THEN value END AS n \
             FROM range(1000)) TO '{file}'"
        );
        session.sql(&write).await.unwrap().collect().await.unwrap();
        let options = ParquetReadOptions::default();
        session.register_parquet("t", file, options).await.unwrap();
        let query = format!("SELECT * FROM t WHERE {condition}");
        let plan = session.sql(&query).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let estimated = estimate_filter(&plan, &ConfigOptions::new()).unwrap();
        let estimated =
            estimated.unwrap_or_else(|| panic!("{condition}: no filter at the top: {plan:?}"));
        let statistics =
            StatisticsContext::new().compute(estimated.as_ref(), &StatisticsArgs::new());
        match statistics.unwrap().num_rows {
            Precision::Exact(rows) | Precision::Inexact(rows) => rows,
            Precision::Absent => panic!("{condition}: nothing is known"),
        }
    }

    #[tokio::test]
    async fn each_condition_counts() {
        for (condition, expected) in [
            ("t = 'text7'", 100),
            ("t <> 'text7'", 900),
            ("t LIKE '%7%'", 100),
            ("t NOT LIKE '%7%'", 900),
            ("t IN ('a', 'b', substr(t, 2))", 270),
            ("n IS NULL", 750),
            ("n IS NOT NULL", 250),
            ("NOT (t LIKE '%7%' OR t LIKE '%8%')", 810),
            ("t < 'text7'", 330),
            // A half by its range, and a tenth of these.
            ("a < 500 AND t = 'text7'", 50),
            ("a >= 400 AND a < 500 AND t = 'text7'", 10),
            // DataFusion's own estimate.
            ("a < 500", 500),
        ] {
            let found = passing(condition).await;
            assert!(
                found.abs_diff(expected) <= 10,
                "{condition}: {found} rows, not {expected}"
            );
        }
    }
}
