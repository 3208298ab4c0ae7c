//! Quantified comparisons: `x > ANY (SELECT …)`, `x <= ALL (SELECT …)`.
//!
//! DataFusion 55 rewrites them as `EXISTS` by adding a condition to the subquery, in which it confuses a column of the
//! query's row with a column of the subquery of the same name: `i > ANY (SELECT i FROM t)` for a row of `t` compares
//! each row of the subquery with itself. So this rule gives the compared value a unique name. `= ANY` and `<> ALL` are
//! `IN` and `NOT IN`, and planned as those.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Operator, Subquery};
use datafusion::optimizer::OptimizerConfig;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "quantified",
    wrong: "`x > ANY (…)` and `x > ALL (…)` compare a column of the subquery with itself, if the row has one of its name",
    upstream: Upstream::Thread("apache/datafusion#25258"),
    query: include_str!("query.sql"),
    acts: &[Act::FirstSent(|| top_down("name_compared", name_compared))],
};

/// Renames the compared value, or rewrites the comparison as `IN`.
fn name_compared(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let named = |comparison: SetComparison| {
        let SetComparison {
            expr,
            subquery,
            op,
            quantifier,
        } = comparison;
        let negated = match (op, quantifier) {
            (Operator::Eq, SetQuantifier::Any) => Some(false),
            (Operator::NotEq, SetQuantifier::All) => Some(true),
            _ => None,
        };
        if let Some(negated) = negated {
            let within = InSubquery::new(expr, subquery, negated);
            return Ok(Expr::InSubquery(within));
        }
        let name = config.alias_generator().next("__compared");
        let columns = subquery.subquery.schema().columns();
        let compared = columns
            .into_iter()
            .map(|column| Expr::Column(column).alias(&name));
        let rows = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone())
            .project(compared)?
            .build()?;
        let subquery = Subquery {
            subquery: Arc::new(rows),
            ..subquery
        };
        Ok(Expr::SetComparison(SetComparison::new(
            expr, subquery, op, quantifier,
        )))
    };
    plan.map_expressions(|expr| {
        expr.transform_up(|expr| match expr {
            Expr::SetComparison(comparison) => named(comparison).map(Transformed::yes),
            expr => Ok(Transformed::no(expr)),
        })
    })
}
