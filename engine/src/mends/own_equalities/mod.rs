//! Filters that compare a column with an expression of columns, as in `abs(x) = x`.
//!
//! DataFusion 55 substitutes one for the other in orderings, also within the expression itself, and again each time: an
//! ordering then no longer equals itself. The expression may contain the column through another column that equals it,
//! so this mend casts the column to its own type in every such equality, and no equivalence is derived. It leaves join
//! keys alone.
//!
//! Remove when a release does not substitute within what it has substituted.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::names::JOIN_SELECTION;
use crate::rules::physical::{Rewrite, rule};
use datafusion::arrow::datatypes::Schema;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "own_equalities",
    wrong: "an order by a column that equals an expression of itself is refused",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::After(JOIN_SELECTION, || {
        rule("hide_own_equalities", Rewrite::Each(hide_own_equalities))
    })],
};

type Expr = Arc<dyn PhysicalExpr>;

/// Rewrites a filter so that no equivalence of a column and an expression is derived from it.
pub(crate) fn hide_own_equalities(
    node: &Arc<dyn ExecutionPlan>,
    _: &ConfigOptions,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else {
        return Ok(None);
    };
    let schema = filter.input().schema();
    let mut changed = false;
    let mut conditions = vec![];
    for condition in split_conjunction(filter.predicate()) {
        let hidden = hidden(condition, &schema)?;
        changed |= hidden.is_some();
        conditions.push(hidden.unwrap_or_else(|| Arc::clone(condition)));
    }
    if !changed {
        return Ok(None);
    }
    let filter = FilterExecBuilder::from(filter).with_predicate(conjunction(conditions));
    Ok(Some(Arc::new(filter.build()?)))
}

/// Casts the column in an equality of a column and an expression of columns.
fn hidden(condition: &Expr, schema: &Schema) -> Result<Option<Expr>> {
    let Some(equality) = condition.downcast_ref::<BinaryExpr>() else {
        return Ok(None);
    };
    let (left, right) = (equality.left(), equality.right());
    let computes = |expr: &Expr| !expr.is::<Column>() && !collect_columns(expr).is_empty();
    let cast = |column: &Expr| -> Result<Expr> {
        let own_type = column.data_type(schema)?;
        Ok(Arc::new(CastExpr::new(Arc::clone(column), own_type, None)))
    };
    let (left, right) = if *equality.op() != Operator::Eq {
        return Ok(None);
    } else if left.is::<Column>() && computes(right) {
        (cast(left)?, Arc::clone(right))
    } else if right.is::<Column>() && computes(left) {
        (Arc::clone(left), cast(right)?)
    } else {
        return Ok(None);
    };
    Ok(Some(Arc::new(BinaryExpr::new(left, Operator::Eq, right))))
}
