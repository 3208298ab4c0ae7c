//! Redundant sort keys of aggregates (duplicates and constants), which are dropped.
//!
//! A duplicate makes DataFusion 55 panic. Its planner drops constants too, but only where it knows them: behind an
//! exchange, it would refuse two aggregates whose orderings differ only in constants as conflicting.

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::{map_named, top_down};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Cast, Distinct, Expr, JoinType, LogicalPlan, Operator};
use datafusion::optimizer::OptimizerConfig;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "aggregate_orders",
    wrong: "a sort key that an aggregate has twice is an error or a panic",
    upstream: Upstream::Thread("apache/datafusion#25398"),
    query: include_str!("query.sql"),
    acts: &[Act::FirstPlanned(|| {
        top_down("drop_redundant_sort_keys", drop_redundant_sort_keys)
    })],
};

/// Drops duplicate and constant sort keys of aggregates.
pub(crate) fn drop_redundant_sort_keys(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Aggregate(aggregate) = &plan else {
        return Ok(Transformed::no(plan));
    };
    let input = aggregate.input.clone();
    map_named(plan, |expr| {
        expr.transform_up(|expr| {
            let Expr::AggregateFunction(mut call) = expr else {
                return Ok(Transformed::no(expr));
            };
            // The sort key of WITHIN GROUP is the aggregated value.
            if call.func.supports_within_group_clause() {
                return Ok(Transformed::no(Expr::AggregateFunction(call)));
            }
            let before = call.params.order_by.len();
            let mut seen: Vec<Expr> = vec![];
            call.params.order_by.retain(|key| {
                let is_needed = !seen.contains(&key.expr) && !is_constant(&key.expr, &input);
                seen.push(key.expr.clone());
                is_needed
            });
            let changed = call.params.order_by.len() < before;
            let call = Expr::AggregateFunction(call);
            Ok(Transformed::new(call, changed, TreeNodeRecursion::Continue))
        })
    })
}

/// Checks whether an expression is a literal, or a column that equals one in all rows of a plan.
fn is_constant(expr: &Expr, plan: &LogicalPlan) -> bool {
    let column = match expr {
        Expr::Literal(..) => return true,
        Expr::Alias(alias) => return is_constant(&alias.expr, plan),
        Expr::Cast(Cast { expr, .. }) => return is_constant(expr, plan),
        Expr::Column(column) => column,
        _ => return false,
    };
    let Some(index) = plan.schema().maybe_index_of_column(column) else {
        return false;
    };
    // Looks the column up in an input whose columns start at `place` among the plan's columns.
    let from = |place: usize, input: &LogicalPlan| {
        let columns = input.schema().columns();
        let column = index
            .checked_sub(place)
            .and_then(|index| columns.get(index));
        column.is_some_and(|column| is_constant(&Expr::Column(column.clone()), input))
    };
    let below = |input: &LogicalPlan| from(0, input);
    match plan {
        LogicalPlan::Projection(projection) => {
            is_constant(&projection.expr[index], &projection.input)
        }
        LogicalPlan::Filter(filter) => {
            let conditions = split_conjunction(&filter.predicate);
            conditions
                .into_iter()
                .any(|condition| equals_literal(condition, expr))
                || below(&filter.input)
        }
        LogicalPlan::SubqueryAlias(alias) => below(&alias.input),
        LogicalPlan::Distinct(Distinct::All(input)) => below(input),
        LogicalPlan::Sort(sort) => below(&sort.input),
        LogicalPlan::Limit(limit) => below(&limit.input),
        LogicalPlan::Window(window) => below(&window.input),
        // Grouping sets, which have NULL keys, are a single expression, which is not constant.
        LogicalPlan::Aggregate(aggregate) => aggregate
            .group_expr
            .get(index)
            .is_some_and(|key| is_constant(key, &aggregate.input)),
        LogicalPlan::Join(join) => {
            let (left, right) = (&join.left, &join.right);
            let columns = left.schema().fields().len();
            match join.join_type {
                JoinType::Inner => below(left) || from(columns, right),
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => below(left),
                JoinType::Right => from(columns, right),
                _ => false,
            }
        }
        _ => false,
    }
}

/// Checks whether a condition is an equality of the expression and a literal.
fn equals_literal(condition: &Expr, expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = condition
    else {
        return false;
    };
    let is_literal = |side: &Expr| matches!(side, Expr::Literal(..));
    (**left == *expr && is_literal(right)) || (**right == *expr && is_literal(left))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn constants_are_found_where_they_are_made() {
        let session = SessionContext::new();
        let table = session.sql("CREATE TABLE t AS SELECT 1 AS k, 2 AS v").await;
        table.unwrap().collect().await.unwrap();
        for (rows, expected) in [
            ("SELECT 1 AS c FROM t", true),
            ("SELECT CAST('1' AS BIGINT) AS c FROM t", true),
            ("SELECT DISTINCT 'x' AS c, v FROM t", true),
            (
                "SELECT c FROM (SELECT 1 AS c, v FROM t) u WHERE v > 1 ORDER BY v LIMIT 1",
                true,
            ),
            ("SELECT k AS c FROM t WHERE v > 1 AND k = 1", true),
            ("SELECT 1 AS c, count(*) FROM t GROUP BY 1", true),
            ("SELECT k AS c, count(*) FROM t GROUP BY k", false),
            (
                "SELECT c FROM (SELECT 1 AS c, k FROM t) u GROUP BY GROUPING SETS ((c), (k))",
                false,
            ),
            (
                "SELECT u.c, row_number() OVER () FROM t JOIN (SELECT 1 AS c) u ON true",
                true,
            ),
            ("SELECT v AS c FROM t JOIN (SELECT 1 AS k) u ON true", false),
            ("SELECT k AS c FROM t WHERE v > 1 OR k = 1", false),
            ("SELECT k AS c FROM t WHERE k = v", false),
            ("SELECT v AS c FROM t", false),
            ("SELECT random() AS c FROM t", false),
            ("SELECT 1 AS c FROM t UNION ALL SELECT 2 AS c FROM t", false),
            (
                "SELECT c FROM t LEFT JOIN (SELECT 1 AS c, k AS l FROM t) u ON l = k",
                false,
            ),
        ] {
            let frame = session.sql(&format!("SELECT x.c FROM ({rows}) x")).await;
            let LogicalPlan::Projection(read) = frame.unwrap().into_unoptimized_plan() else {
                panic!("a projection");
            };
            assert_eq!(is_constant(&read.expr[0], &read.input), expected, "{rows}");
        }
    }
}
