//! Unique names for the columns of correlated subqueries.
//!
//! DataFusion 55 pulls the correlated conditions out of a subquery, with the columns that they read, and distinguishes
//! these columns by their bare names. It confuses `a.id` and `c.id` in a join, or `id` and a computed value named `id`,
//! and silently returns wrong rows. If names repeat, this rule gives new ones to the rows that the subquery reads. To
//! be dropped when a release compares qualified names.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, internal_err, not_impl_err};
use datafusion::error::Result;
use datafusion::logical_expr::utils::find_out_reference_exprs;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Subquery};
use datafusion::optimizer::OptimizerConfig;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "correlated_names",
    wrong: "two columns of one name in a correlated subquery are taken for one",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::BeforeSent("decorrelate_predicate_subquery", || {
        top_down("unique_correlated_columns", unique_correlated_columns)
    })],
};

/// Renames the rows of an operator's correlated subqueries, if names repeat.
fn unique_correlated_columns(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let names = config.alias_generator();
    if let LogicalPlan::Subquery(mut lateral) = plan {
        let renamed = rename(&mut lateral, names)?;
        let plan = LogicalPlan::Subquery(lateral);
        return Ok(Transformed::new(plan, renamed, TreeNodeRecursion::Continue));
    }
    plan.map_expressions(|expr| {
        expr.transform_up(|expr| match expr {
            Expr::ScalarSubquery(mut subquery) => {
                let renamed = rename(&mut subquery, names)?;
                let expr = Expr::ScalarSubquery(subquery);
                Ok(Transformed::new(expr, renamed, TreeNodeRecursion::Continue))
            }
            Expr::InSubquery(mut within) => {
                let renamed = rename(&mut within.subquery, names)?;
                let expr = Expr::InSubquery(within);
                Ok(Transformed::new(expr, renamed, TreeNodeRecursion::Continue))
            }
            Expr::Exists(mut exists) => {
                let renamed = rename(&mut exists.subquery, names)?;
                let expr = Expr::Exists(exists);
                Ok(Transformed::new(expr, renamed, TreeNodeRecursion::Continue))
            }
            expr => Ok(Transformed::no(expr)),
        })
    })
}

/// Gives the rows of a subquery new names, if it needs them.
fn rename(subquery: &mut Subquery, names: &AliasGenerator) -> Result<bool> {
    let plan = subquery.subquery.as_ref();
    if outer_references(plan).is_empty() || !repeats(plan)? {
        return Ok(false);
    }
    let renamed = renamed(plan, names)?;
    // The outer query reads the subquery's columns by their names.
    let old = plan.schema().iter();
    let old: Vec<_> = old
        .map(|(qualifier, field)| (qualifier.cloned(), field.name().clone()))
        .collect();
    let columns = renamed.schema().columns();
    let is_same = |(old, new): (&(_, String), &Column)| old.0 == new.relation && old.1 == new.name;
    let has_names = old.iter().zip(&columns).all(is_same);
    let plan = match has_names {
        true => renamed,
        false => {
            let named = columns.into_iter().zip(old);
            let named = named.map(|(column, (qualifier, name))| {
                Expr::Column(column).alias_qualified(qualifier, name)
            });
            let named: Vec<_> = named.collect();
            LogicalPlanBuilder::from(renamed).project(named)?.build()?
        }
    };
    subquery.subquery = Arc::new(plan);
    Ok(true)
}

/// Returns the operators of a subquery from the top down to the rows without outer references, and these rows; `None`
/// if there are other operators in between, such as joins.
fn parts(plan: &LogicalPlan) -> Option<(Vec<&LogicalPlan>, &LogicalPlan)> {
    let mut operators = vec![];
    let mut rows = plan;
    while !outer_references(rows).is_empty() {
        let is_known = matches!(
            rows,
            LogicalPlan::Projection(_)
                | LogicalPlan::Filter(_)
                | LogicalPlan::Aggregate(_)
                | LogicalPlan::SubqueryAlias(_)
                | LogicalPlan::Distinct(_)
                | LogicalPlan::Sort(_)
                | LogicalPlan::Limit(_)
        );
        if !is_known {
            return None;
        }
        operators.push(rows);
        rows = rows.inputs().into_iter().next()?;
    }
    Some((operators, rows))
}

/// Checks whether a column of the rows could be mistaken for another column, or for a value computed from them.
///
/// # Errors
/// When it could, and the rows without outer references are not in one place.
fn repeats(plan: &LogicalPlan) -> Result<bool> {
    let repeat = |schema: &DFSchema| {
        let mut names = HashSet::new();
        !schema
            .fields()
            .iter()
            .all(|field| names.insert(field.name().clone()))
    };
    let Some((operators, rows)) = parts(plan) else {
        let found = plan.exists(|node| {
            let asks = !outer_references(node).is_empty();
            Ok(asks && matches!(node, LogicalPlan::Join(_)) && repeat(node.schema()))
        })?;
        return match found {
            true => not_impl_err!(
                "not supported: a subquery that joins what depends on the row with another relation, where two of \
                 their columns have one name: give one of them another name (AS …) in a derived table"
            ),
            false => Ok(false),
        };
    };
    if repeat(rows.schema()) {
        return Ok(true);
    }
    let is_another = |expr: &Expr| match expr {
        Expr::Alias(alias) => {
            let is_itself =
                matches!(alias.expr.as_ref(), Expr::Column(column) if column.name == alias.name);
            let mut fields = rows.schema().fields().iter();
            !is_itself && fields.any(|field| *field.name() == alias.name)
        }
        _ => false,
    };
    Ok(operators
        .iter()
        .any(|plan| plan.expressions().iter().any(is_another)))
}

/// Returns the same columns, computed from rows with new names.
fn renamed(plan: &LogicalPlan, names: &AliasGenerator) -> Result<LogicalPlan> {
    if outer_references(plan).is_empty() {
        let columns = plan.schema().columns().into_iter();
        let named = columns.map(|column| Expr::Column(column).alias(names.next("__own")));
        return LogicalPlanBuilder::from(plan.clone())
            .project(named)?
            .build();
    }
    let Some(input) = plan.inputs().into_iter().next() else {
        return Ok(plan.clone());
    };
    let below = renamed(input, names)?;
    let columns = below.schema().columns();
    let exprs = plan.expressions().into_iter();
    let exprs = exprs.map(|expr| on(expr, input.schema(), &columns));
    let mut exprs: Vec<_> = exprs.collect::<Result<_>>()?;
    if let LogicalPlan::Projection(_) = plan {
        let named = exprs.into_iter().zip(plan.schema().iter());
        let named = named.map(|(expr, (qualifier, field))| {
            expr.unalias()
                .alias_qualified(qualifier.cloned(), field.name())
        });
        exprs = named.collect();
    }
    plan.with_new_exprs(exprs, vec![below])
}

/// Moves an expression onto the columns in the same positions, also within its subqueries.
pub(crate) fn on(expr: Expr, schema: &DFSchema, columns: &[Column]) -> Result<Expr> {
    let new = |column: &Column| {
        let at = schema.maybe_index_of_column(column)?;
        Some(columns[at].clone())
    };
    let within = |subquery: &mut Subquery| -> Result<()> {
        let plan = subquery.subquery.as_ref().clone();
        let plan = plan.transform_up_with_subqueries(|plan| {
            plan.map_expressions(|expr| {
                expr.transform_up(|expr| match expr {
                    Expr::OuterReferenceColumn(field, column) => Ok(match new(&column) {
                        Some(new) => Transformed::yes(Expr::OuterReferenceColumn(field, new)),
                        None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
                    }),
                    expr => Ok(Transformed::no(expr)),
                })
            })
        });
        subquery.subquery = Arc::new(plan.data()?);
        subquery.outer_ref_columns = subquery.subquery.all_out_ref_exprs();
        Ok(())
    };
    let expr = expr.transform_up(|expr| {
        Ok(match expr {
            Expr::Column(column) => match new(&column) {
                Some(new) => Transformed::yes(Expr::Column(new)),
                None => return internal_err!("{column} is not among the columns that are renamed"),
            },
            Expr::ScalarSubquery(mut subquery) => {
                within(&mut subquery)?;
                Transformed::yes(Expr::ScalarSubquery(subquery))
            }
            Expr::InSubquery(mut asked) => {
                within(&mut asked.subquery)?;
                Transformed::yes(Expr::InSubquery(asked))
            }
            Expr::Exists(mut asked) => {
                within(&mut asked.subquery)?;
                Transformed::yes(Expr::Exists(asked))
            }
            expr => Transformed::no(expr),
        })
    });
    expr.data()
}

/// Returns a plan's references to outer rows, without those from a lateral join's right side to its left side.
pub(crate) fn outer_references(plan: &LogicalPlan) -> Vec<Expr> {
    let mut found: Vec<_> = plan
        .expressions()
        .iter()
        .flat_map(find_out_reference_exprs)
        .collect();
    for input in plan.inputs() {
        found.extend(outer_references(input));
    }
    if let LogicalPlan::Join(join) = plan {
        let first = join.left.schema();
        found.retain(|reference| match reference {
            Expr::OuterReferenceColumn(_, column) => !first.has_column(column),
            _ => true,
        });
    }
    found
}
