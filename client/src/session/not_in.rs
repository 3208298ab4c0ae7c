//! `NOT IN` a subquery that depends on the query's rows, as `NOT EXISTS`.
//!
//! DataFusion 55 turns `NOT IN` into an anti join that knows of NULLs, and has it for one key only: with what the
//! subquery depends on there are more, and it fails. A row is kept when no row of the subquery is equal to
//! it and none leaves it open: when there is none for which the equality is not false. That is an anti join
//! with a condition, which there is.
//! It is here for conditions that stand alone or beside others, not inside of `OR` or `CASE`, where what is
//! open differs from what is false; and for subqueries whose rows do not come about together, as aggregates do.

use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Subquery,
};
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
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = plan else {
            return Ok(Transformed::no(plan));
        };
        let mut found = false;
        let mut conditions = vec![];
        for condition in split_conjunction_owned(filter.predicate.clone()) {
            let outside = filter.input.schema();
            conditions.push(match not_in(&condition) {
                Some((value, subquery)) if may_be_open(value, subquery, outside)? => {
                    found = true;
                    not_exists(value, subquery, outside, config.alias_generator())?
                }
                _ => condition,
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
    let depends = !subquery.outer_ref_columns.is_empty();
    let can_be = depends && parts(&subquery.subquery).is_some();
    (can_be && stands_alone(expr)).then_some((expr.as_ref(), subquery))
}

/// Whether an expression reads only the rows that it is computed of.
fn stands_alone(expr: &Expr) -> bool {
    let others = expr.exists(|expr| {
        Ok(match expr {
            Expr::ScalarSubquery(subquery) => !subquery.outer_ref_columns.is_empty(),
            expr => is_joined(expr) || matches!(expr, Expr::OuterReferenceColumn(..)),
        })
    });
    matches!(others, Ok(false))
}

/// Whether an expression is a subquery that becomes a join.
fn is_joined(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
    )
}

/// Whether the equality may be open; where it is not, the engine's anti join has any number of keys.
fn may_be_open(value: &Expr, subquery: &Subquery, outside: &DFSchema) -> Result<bool> {
    let computed = subquery.subquery.schema().fields().first();
    Ok(value.nullable(outside)? || computed.is_none_or(|field| field.is_nullable()))
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
    // A subquery of theirs has columns of these rows under names that are given up below.
    let has_subquery = |expr: &Expr| {
        let found =
            expr.exists(|expr| Ok(is_joined(expr) || matches!(expr, Expr::ScalarSubquery(_))));
        !matches!(found, Ok(false))
    };
    let is_own = rows.all_out_ref_exprs().is_empty()
        && !has_subquery(&computed)
        && !condition.is_some_and(has_subquery);
    is_own.then(|| (rows, condition, computed.unalias()))
}

/// No row of the subquery of which it is not false that it is equal to the value.
fn not_exists(
    value: &Expr,
    subquery: &Subquery,
    outside: &DFSchema,
    names: &AliasGenerator,
) -> Result<Expr> {
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
    // The engine tells columns of a subquery apart by their bare names, and from the query's by nothing.
    let columns = rows.schema().columns();
    let columns: Vec<_> = columns
        .into_iter()
        .map(|column| (column, names.next("__not_in")))
        .collect();
    let renamed = |expr: Expr| {
        let expr = expr.transform_up(|expr| {
            let Expr::Column(column) = &expr else {
                return Ok(Transformed::no(expr));
            };
            let at = rows.schema().index_of_column(column)?;
            let name = Column::new_unqualified(&columns[at].1);
            Ok(Transformed::yes(Expr::Column(name)))
        });
        expr.data()
    };
    let open_or_equal = value.data()?.eq(renamed(computed)?).is_not_false();
    let condition = match condition {
        Some(condition) => renamed(condition.clone())?.and(open_or_equal),
        None => open_or_equal,
    };
    let named = columns.iter();
    let named = named.map(|(column, name)| Expr::Column(column.clone()).alias(name));
    let rows = LogicalPlanBuilder::from(rows.clone())
        .project(named)?
        .filter(condition)?;
    Ok(Expr::Exists(Exists {
        subquery: Subquery {
            subquery: Arc::new(rows.build()?),
            outer_ref_columns: outer,
            spans: subquery.spans.clone(),
        },
        negated: true,
    }))
}
