//! `NOT IN` a subquery that depends on the query's rows, as `NOT EXISTS`.
//!
//! DataFusion 55 turns `NOT IN` into an anti join that knows of NULLs, and has it for one key only: with what the
//! subquery depends on there are more, and it fails. A row is kept when no row of the subquery is equal to
//! it and none leaves it open: when there is none for which the equality is not false. That is an anti join
//! with a condition, which there is.
//! It is here for conditions that stand alone or beside others, not inside of `OR` or `CASE`, where what is
//! open differs from what is false; and for subqueries whose rows do not come about together, as aggregates do.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, LogicalPlanBuilder, Subquery};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Makes `NOT EXISTS` of it.
#[derive(Debug)]
pub(super) struct CorrelatedNotIn;

impl OptimizerRule for CorrelatedNotIn {
    fn name(&self) -> &'static str {
        "correlated_not_in"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = plan else {
            return Ok(Transformed::no(plan));
        };
        let mut found = false;
        let mut conditions = vec![];
        for condition in split_conjunction_owned(filter.predicate.clone()) {
            conditions.push(match not_in(&condition) {
                Some((value, subquery)) => {
                    found = true;
                    not_exists(value, subquery, filter.input.schema())?
                }
                None => condition,
            });
        }
        match conjunction(conditions) {
            Some(predicate) if found => {
                let filter = Filter::try_new(predicate, filter.input)?;
                Ok(Transformed::yes(LogicalPlan::Filter(filter)))
            }
            _ => Ok(Transformed::no(LogicalPlan::Filter(filter))),
        }
    }
}

/// The value and the subquery of a `NOT IN` that is put otherwise.
fn not_in(condition: &Expr) -> Option<(&Expr, &Subquery)> {
    let within = match condition {
        Expr::Not(inner) => match inner.as_ref() {
            Expr::InSubquery(within) if !within.negated => within,
            _ => return None,
        },
        Expr::InSubquery(within) if within.negated => within,
        _ => return None,
    };
    let InSubquery { expr, subquery, .. } = within;
    let is_joined = |expr: &Expr| {
        let own = match expr {
            Expr::ScalarSubquery(subquery) => !subquery.outer_ref_columns.is_empty(),
            expr => matches!(
                expr,
                Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
            ),
        };
        Ok(own || matches!(expr, Expr::OuterReferenceColumn(..)))
    };
    let depends = !subquery.outer_ref_columns.is_empty();
    let can_be = depends && parts(&subquery.subquery).is_some();
    (can_be && !expr.exists(is_joined).ok()?).then_some((expr.as_ref(), subquery))
}

/// The rows of a subquery, its condition and what it computes, where it depends on the query's rows in the latter
/// two alone: such a row comes about without others.
fn parts(subquery: &LogicalPlan) -> Option<(&LogicalPlan, Option<&Expr>, Expr)> {
    // What is computed is compared as it is: names beside it could not be told from what it depends on.
    let (rows, computed) = match subquery {
        LogicalPlan::Projection(projection) => {
            (projection.input.as_ref(), projection.expr.first()?.clone())
        }
        rows => (
            rows,
            Expr::Column(rows.schema().columns().into_iter().next()?),
        ),
    };
    let (rows, condition) = match rows {
        LogicalPlan::Filter(filter) => (filter.input.as_ref(), Some(&filter.predicate)),
        rows => (rows, None),
    };
    let is_own = rows.all_out_ref_exprs().is_empty();
    is_own.then(|| (rows, condition, computed.unalias()))
}

/// No row of the subquery of which it is not false that it is equal to the value.
fn not_exists(value: &Expr, subquery: &Subquery, outside: &DFSchema) -> Result<Expr> {
    let Some((rows, condition, computed)) = parts(&subquery.subquery) else {
        return internal_err!("NOT IN a subquery of another form");
    };
    let mut outer = subquery.outer_ref_columns.clone();
    let value = value.clone().transform_up(|expr| match expr {
        Expr::Column(column) => {
            let field = Arc::clone(outside.qualified_field_from_column(&column)?.1);
            let reference = Expr::OuterReferenceColumn(field, column);
            if !outer.contains(&reference) {
                outer.push(reference.clone());
            }
            Ok(Transformed::yes(reference))
        }
        other => Ok(Transformed::no(other)),
    });
    let open_or_equal = value.data()?.eq(computed).is_not_false();
    let condition = match condition {
        Some(condition) => condition.clone().and(open_or_equal),
        None => open_or_equal,
    };
    let rows = LogicalPlanBuilder::from(rows.clone()).filter(condition)?;
    Ok(Expr::Exists(Exists {
        subquery: Subquery {
            subquery: Arc::new(rows.build()?),
            outer_ref_columns: outer,
            spans: subquery.spans.clone(),
        },
        negated: true,
    }))
}
