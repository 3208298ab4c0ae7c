//! Scalar subqueries as one-row relations that are joined.
//!
//! DataFusion computes an uncorrelated scalar subquery before everything else, and keeps its value in the process.
//! Across several processes it is a relation like others: one row with one column, ensured by [`single_value`], crossed
//! with the rows that the expression reads. This holds wherever the expression occurs: in a projection, a condition, a
//! join's `ON`, a window, an aggregate's argument, an order. Correlated subqueries are not handled here; DataFusion's
//! rules join those.

use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, not_impl_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::OptimizerConfig;

use crate::mends::correlated_names::outer_references;
use crate::operators::single_value::single_value;

/// Joins the uncorrelated scalar subqueries.
///
/// The rule visits the plan itself: a subquery that other rules turn into a join is visited after they have.
pub(crate) fn join_scalar_subqueries(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let names = config.alias_generator();
    plan.transform_down(|node| joined(node, names))
}

/// Joins the subqueries of an operator's expressions to its inputs, if there are any.
fn joined(plan: LogicalPlan, names: &Arc<AliasGenerator>) -> Result<Transformed<LogicalPlan>> {
    let plan = with_columns_as_keys(plan, names)?;
    let named = NamePreserver::new(&plan);
    let mut inputs: Vec<LogicalPlan> = plan.inputs().into_iter().cloned().collect();
    let mut found = false;
    let mut exprs = vec![];
    for expr in plan.expressions() {
        let name = named.save(&expr);
        // Each condition of a join reads its own subqueries.
        let conditions = match &plan {
            LogicalPlan::Join(_) => split_conjunction_owned(expr),
            _ => vec![expr],
        };
        let mut replaced = vec![];
        for condition in conditions {
            let mut values = vec![];
            let expr = replace(condition, names, &mut values)?;
            if values.is_empty() {
                replaced.push(expr);
                continue;
            }
            found = true;
            // Cross the input that is compared with the subquery, so that rows are filtered out before the join.
            let reads = |input: &LogicalPlan| {
                let mut columns = expr.column_refs().into_iter();
                columns.any(|column| input.schema().has_column(column))
            };
            let at = match &plan {
                // The result is named after the right side, whose columns it lacks.
                LogicalPlan::Join(join) if !has_both(join.join_type) => 0,
                _ => inputs.iter().position(reads).unwrap_or(0),
            };
            let Some(input) = inputs.get_mut(at) else {
                return not_impl_err!("a subquery in the place of a value in {}", plan.display());
            };
            for value in values {
                let crossed = LogicalPlanBuilder::from(input.clone()).cross_join(value)?;
                *input = crossed.build()?;
            }
            replaced.push(expr);
        }
        exprs.extend(conjunction(replaced).map(|expr| name.restore(expr)));
    }
    if !found {
        return Ok(Transformed::no(plan));
    }
    let joined = plan.with_new_exprs(exprs, inputs)?;
    if joined.schema().fields().len() == plan.schema().fields().len() {
        return Ok(Transformed::yes(joined));
    }
    let columns = plan.schema().columns().into_iter().map(Expr::Column);
    let joined = LogicalPlanBuilder::from(joined).project(columns)?.build()?;
    Ok(Transformed::yes(joined))
}

/// Describes a subquery that no rule has turned into a join, or the column outside it that a lateral one still reads.
///
/// # Errors
/// When the plan cannot be walked.
pub fn unjoined(plan: &LogicalPlan) -> Result<Option<String>> {
    let mut unjoined = None;
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| match expr {
                Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_) => {
                    unjoined = Some(format!(
                        "the subquery of {expr} at this place; IN and EXISTS can be in WHERE, HAVING and \
                         QUALIFY, and a subquery can depend on the query directly around it, by equal columns \
                         below an aggregate"
                    ));
                    Ok(TreeNodeRecursion::Stop)
                }
                Expr::OuterReferenceColumn(_, column) => {
                    unjoined = Some(format!(
                        "LATERAL that reads {column} in its SELECT list, or in a WHERE under LIMIT, ORDER BY, \
                         HAVING or UNION; compute with it in the outer SELECT list (with a list's entries \
                         too: SELECT k, unnest(l) FROM t), and \
                         number rows with row_number() OVER (PARTITION BY …)"
                    ));
                    Ok(TreeNodeRecursion::Stop)
                }
                _ => Ok(TreeNodeRecursion::Continue),
            })
        })
    })?;
    Ok(unjoined)
}

/// Checks whether a join returns the columns of both sides.
fn has_both(join: JoinType) -> bool {
    matches!(
        join,
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full
    )
}

/// Moves expressions with subqueries out of grouping sets. An expression in a set has no name to keep, so it is
/// computed below under another name, and gets its own name back above.
fn with_columns_as_keys(plan: LogicalPlan, names: &AliasGenerator) -> Result<LogicalPlan> {
    let LogicalPlan::Aggregate(aggregate) = &plan else {
        return Ok(plan);
    };
    let [Expr::GroupingSet(sets)] = &aggregate.group_expr[..] else {
        return Ok(plan);
    };
    let asks = |expr: &Expr| expr.exists(|expr| Ok(matches!(expr, Expr::ScalarSubquery(_))));
    let mut computed = vec![];
    for key in sets.distinct_expr() {
        if asks(key)? {
            computed.push((key.clone(), names.next("__key")));
        }
    }
    if computed.is_empty() {
        return Ok(plan);
    }
    let sets = Expr::GroupingSet(sets.clone()).transform_down(|expr| {
        let mut computed = computed.iter();
        match computed.find(|(key, _)| *key == expr) {
            Some((_, name)) => {
                let column = Expr::Column(Column::new_unqualified(name));
                Ok(Transformed::new(column, true, TreeNodeRecursion::Jump))
            }
            None => Ok(Transformed::no(expr)),
        }
    });
    let columns = aggregate.input.schema().columns().into_iter();
    let keys = computed.iter().map(|(key, name)| key.clone().alias(name));
    let grouped = LogicalPlanBuilder::from(aggregate.input.as_ref().clone())
        .project(columns.map(Expr::Column).chain(keys))?
        .aggregate([sets.data()?], aggregate.aggr_expr.clone())?;
    let columns = grouped.schema().columns().into_iter();
    let columns = columns.zip(aggregate.schema.columns());
    let named = columns.map(|(column, name)| match column == name {
        true => Expr::Column(column),
        false => Expr::Column(column).alias(name.name),
    });
    let named: Vec<_> = named.collect();
    grouped.project(named)?.build()
}

/// Replaces each subquery of an expression by a column, and adds its relation to `values`.
fn replace(expr: Expr, names: &Arc<AliasGenerator>, values: &mut Vec<LogicalPlan>) -> Result<Expr> {
    expr.transform_up(|expr| match expr {
        Expr::ScalarSubquery(subquery) if outer_references(&subquery.subquery).is_empty() => {
            let alias = names.next("__scalar_sq");
            let (value, column) = value(&subquery.subquery, &alias)?;
            values.push(value);
            Ok(Transformed::yes(Expr::Column(column)))
        }
        other => Ok(Transformed::no(other)),
    })
    .data()
}

/// Builds the one-row relation of a subquery, and returns its column.
fn value(subquery: &LogicalPlan, alias: &str) -> Result<(LogicalPlan, Column)> {
    let [column] = &subquery.schema().columns()[..] else {
        return not_impl_err!("a subquery of several columns in the place of a value");
    };
    let mut value = LogicalPlanBuilder::from(subquery.clone());
    if !has_one_row(subquery) {
        let only = Expr::AggregateFunction(AggregateFunction::new_udf(
            single_value(),
            vec![Expr::Column(column.clone())],
            false,
            None,
            vec![],
            None,
        ));
        value = value.aggregate(Vec::<Expr>::new(), [only.alias(&column.name)])?;
    }
    let value = value.alias(alias)?.build()?;
    Ok((value, Column::new(Some(alias), &column.name)))
}

/// Checks whether a relation always has exactly one row.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Window(_) => {
            plan.inputs().into_iter().all(has_one_row)
        }
        _ => false,
    }
}
