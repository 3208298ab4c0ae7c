//! `NOT IN` a subquery that depends on the query's rows, as `NOT EXISTS`.
//!
//! DataFusion 55 turns `NOT IN` into an anti join that knows of NULLs, and has it for one key only: with what the
//! subquery depends on there are more, and it fails. A row is kept when no row of the subquery is equal to
//! it and none leaves it open: when there is none for which the equality is not false. That is an anti join
//! with a condition, which there is.
//! It is here for conditions that stand alone or beside others, not inside of `OR` or `CASE`, where what is
//! open differs from what is false; and for subqueries whose rows do not come about together, as aggregates do.

use std::sync::Arc;

use datafusion::common::{DFSchema, plan_err};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
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
    let can_be = depends && depends_on_rows_alone(&subquery.subquery);
    (can_be && !expr.exists(is_joined).ok()?).then_some((expr.as_ref(), subquery))
}

/// Whether what a subquery depends on decides about each of its rows alone.
fn depends_on_rows_alone(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().into_iter().all(depends_on_rows_alone)
        }
        other => other.all_out_ref_exprs().is_empty(),
    }
}

/// No row of the subquery of which it is not false that it is equal to the value.
fn not_exists(value: &Expr, subquery: &Subquery, outside: &DFSchema) -> Result<Expr> {
    // What it computes is in the condition: names beside it could not be told from what it depends on.
    let (rows, column) = match subquery.subquery.as_ref() {
        LogicalPlan::Projection(projection) => {
            let computed = projection.expr.first().cloned();
            (projection.input.as_ref(), computed.map(Expr::unalias))
        }
        rows => {
            let columns = rows.schema().columns();
            (rows, columns.into_iter().next().map(Expr::Column))
        }
    };
    let Some(column) = column else {
        return plan_err!("a subquery without columns after NOT IN");
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
    let open_or_equal = value.data()?.eq(column).is_not_false();
    let rows = LogicalPlanBuilder::from(rows.clone());
    Ok(Expr::Exists(Exists {
        subquery: Subquery {
            subquery: Arc::new(rows.filter(open_or_equal)?.build()?),
            outer_ref_columns: outer,
            spans: subquery.spans.clone(),
        },
        negated: true,
    }))
}
