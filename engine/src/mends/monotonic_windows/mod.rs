//! Monotonic aggregates over windows that are NULL at first.
//!
//! A running maximum only grows, so DataFusion 55 takes it for sorted; but it is NULL until the first value, and these
//! NULLs come first no matter where the query wants them. So a window is fenced if an ordering above it reads one of
//! its nullable aggregates.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr};
use datafusion::physical_expr::{OrderingRequirements, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::fence::FenceExec;
use crate::rules::names::JOIN_SELECTION;
use crate::rules::physical::{Rewrite, rule};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "monotonic_windows",
    wrong: "rows with NULL come first in an order by a growing aggregate",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::After(JOIN_SELECTION, || {
        rule("forget_monotonicity", Rewrite::Whole(forget_monotonicity))
    })],
};

type Plan = Arc<dyn ExecutionPlan>;

/// Fences windows below an ordering by one of their nullable aggregates.
pub(crate) fn forget_monotonicity(plan: Plan, _: &ConfigOptions) -> Result<Plan> {
    without_monotonicity(&plan, &BTreeSet::new())
}

/// Fences windows below a node; `asked` are the node's columns that orderings above it read.
fn without_monotonicity(node: &Plan, asked: &BTreeSet<usize>) -> Result<Plan> {
    let inputs = node.children().into_iter().enumerate();
    let inputs = inputs.map(|(number, input)| {
        let mut asked = asked_of_input(node, asked, input);
        let order = node.downcast_ref::<SortExec>().map(|sort| sort.expr());
        let keys = order.into_iter().flatten().map(|key| &key.expr);
        for key in keys {
            asked.extend(collect_columns(key).iter().map(Column::index));
        }
        let required = node
            .required_input_ordering()
            .into_iter()
            .nth(number)
            .flatten();
        let required = required.map(OrderingRequirements::into_single);
        for key in required.iter().flatten() {
            asked.extend(collect_columns(&key.expr).iter().map(Column::index));
        }
        let fenced = without_monotonicity(input, &asked)?;
        Ok(match is_monotonic(&fenced, &asked) {
            true => Arc::new(FenceExec::new(fenced)),
            false => fenced,
        })
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(node), inputs)
}

/// Returns the columns of an input that the `asked` columns of an operator come from, as far as their order may.
fn asked_of_input(node: &Plan, asked: &BTreeSet<usize>, input: &Plan) -> BTreeSet<usize> {
    let schema = node.schema();
    let of = |exprs: Vec<&Arc<dyn PhysicalExpr>>| {
        let exprs = asked
            .iter()
            .filter_map(|column| exprs.get(*column).copied());
        let columns = exprs.flat_map(collect_columns);
        columns.map(|column| column.index()).collect()
    };
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        return of(projection
            .expr()
            .iter()
            .map(|projected| &projected.expr)
            .collect());
    }
    if let Some(groups) = node.downcast_ref::<AggregateExec>() {
        let exprs = groups.group_expr().expr().iter();
        return of(exprs.map(|(expr, _)| expr).collect());
    }
    // Other operators keep the names of their input's columns.
    let names: Vec<_> = asked
        .iter()
        .filter_map(|column| schema.fields().get(*column))
        .map(|field| field.name())
        .collect();
    let fields = input.schema();
    let fields = fields.fields().iter().enumerate();
    let named = fields.filter(|(_, field)| names.contains(&field.name()));
    named.map(|(column, _)| column).collect()
}

/// Recognizes a window with a nullable aggregate among these columns, which DataFusion may take for monotonic.
fn is_monotonic(node: &Plan, asked: &BTreeSet<usize>) -> bool {
    let (input, exprs) = if let Some(window) = node.downcast_ref::<BoundedWindowAggExec>() {
        (window.input(), window.window_expr())
    } else if let Some(window) = node.downcast_ref::<WindowAggExec>() {
        (window.input(), window.window_expr())
    } else {
        return false;
    };
    let before = input.schema().fields().len();
    exprs.iter().enumerate().any(|(number, expr)| {
        let expr = expr.as_any();
        let is_aggregate =
            expr.is::<PlainAggregateWindowExpr>() || expr.is::<SlidingAggregateWindowExpr>();
        let column = before + number;
        let schema = node.schema();
        let field = schema.fields().get(column);
        is_aggregate && asked.contains(&column) && field.is_some_and(|field| field.is_nullable())
    })
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionConfig;

    use crate::mends::testing::{column, session};

    #[tokio::test]
    async fn monotonic_aggregates_are_sorted_where_they_may_be_null() {
        let create = "CREATE TABLE t AS SELECT column1 AS id, column2 AS k FROM (VALUES (1, NULL), (2, 7), (3, 9))";
        let session = session(SessionConfig::new(), &[create]).await;
        for (query, due) in [
            (
                "SELECT id FROM (SELECT id, max(k) OVER (ORDER BY id) AS m FROM t) ORDER BY m",
                "231",
            ),
            (
                "SELECT id FROM (SELECT id, max(k) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) \
                 AS m FROM t) ORDER BY m, id",
                "312",
            ),
            (
                "SELECT id FROM (SELECT id, row_number() OVER (ORDER BY m, id) AS r FROM \
                 (SELECT id, max(k) OVER (ORDER BY id) AS m FROM t)) ORDER BY r",
                "231",
            ),
        ] {
            assert_eq!(column(&session, query).await, due, "{query}");
        }
    }
}
