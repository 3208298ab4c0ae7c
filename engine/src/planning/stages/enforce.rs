//! Sorts, where a plan has promised an order that an exchange forgets.
//!
//! DataFusion's own enforcement also takes sorts away, moves them, and turns windows around, by what is
//! known of a plan as a whole. Here nothing but sorts is added, which have the limits that relied on the order.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, LexRequirement, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use super::stage::partitions;

/// Adds every order that an operator requires of its inputs to a plan.
pub(super) fn enforce_orders(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        // A limit that no number of rows reaches, and no message can hold.
        let endless = node
            .fetch()
            .is_some_and(|rows| i64::try_from(rows).is_err());
        let node = match endless {
            true => node.with_fetch(None).unwrap_or(node),
            false => node,
        };
        let stopping = without_useless_limit(Arc::clone(&node));
        let changed = endless || !Arc::ptr_eq(&stopping, &node);
        let node = stopping;
        let required = node.required_input_ordering();
        let mut sorted = false;
        let mut inputs = Vec::with_capacity(required.len());
        for (input, required) in node.children().into_iter().zip(required) {
            let order = required.map(|required| required.into_single());
            let input = match order {
                Some(order) => {
                    let with_order = enforce_order(Arc::clone(input), order)?;
                    sorted |= !Arc::ptr_eq(&with_order, input);
                    with_order
                }
                None => Arc::clone(input),
            };
            inputs.push(input);
        }
        match sorted {
            true => replace_children_if_necessary(node, inputs).map(Transformed::yes),
            false => Ok(Transformed::new(node, changed, TreeNodeRecursion::Continue)),
        }
    })
    .data()
}

/// Removes a limit that an aggregate cannot apply; other operators stay unchanged.
pub(super) fn without_useless_limit(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let limited = plan.downcast_ref::<AggregateExec>();
    let limited = limited.filter(|aggregate| has_useless_limit(aggregate));
    let unlimited = limited.map(|aggregate| aggregate.with_new_limit_options(None));
    unlimited.map_or(plan, |aggregate| Arc::new(aggregate))
}

/// Checks whether an aggregate has a limit from above that DataFusion 55 cannot apply. Without a direction
/// and over sorted rows, DataFusion makes another operator, which fails. With a direction, that operator takes each NaN
/// of a float key for a group of its own, and fails when it should drop one.
fn has_useless_limit(aggregate: &AggregateExec) -> bool {
    let Some(limit) = aggregate.limit_options() else {
        return false;
    };
    let schema = aggregate.schema();
    let keys = aggregate.group_expr().expr().len();
    let mut keys = schema.fields().iter().take(keys);
    match limit.descending {
        None => !aggregate.is_unordered_unfiltered_group_by_distinct(),
        Some(_) => keys.any(|key| key.data_type().is_floating()),
    }
}

/// Sorts each partition of a plan.
pub(super) fn enforce_order(
    plan: Arc<dyn ExecutionPlan>,
    order: LexRequirement,
) -> Result<Arc<dyn ExecutionPlan>> {
    let known = plan.equivalence_properties();
    if known.ordering_satisfy_requirement(order.clone())? {
        return Ok(plan);
    }
    if let Some(limit) = plan.downcast_ref::<GlobalLimitExec>() {
        let input = enforce_order(Arc::clone(limit.input()), order)?;
        return replace_children_if_necessary(plan, vec![input]);
    }
    let order: LexOrdering = order.into();
    let (plan, limit) = match plan.is::<UnionExec>() {
        true => {
            let union = union_in_order(&plan, &order)?;
            let known = union.equivalence_properties();
            if known.ordering_satisfy(order.clone())? {
                return Ok(union);
            }
            (union, None)
        }
        false => without_limit(plan)?,
    };
    let spread = partitions(&plan) > 1;
    let sort = SortExec::new(order, plan).with_preserve_partitioning(spread);
    Ok(Arc::new(sort.with_fetch(limit)))
}

/// Returns a union of sorted inputs, each of which may have a limit of its own.
fn union_in_order(
    union: &Arc<dyn ExecutionPlan>,
    order: &LexOrdering,
) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs = union.children().into_iter().map(|input| {
        let schema = input.schema();
        let named = order.iter().cloned().map(|mut key| {
            let renamed = Arc::clone(&key.expr).transform(|expr| {
                let Some(column) = expr.downcast_ref::<Column>() else {
                    return Ok(Transformed::no(expr));
                };
                let name = schema.field(column.index()).name();
                let renamed = Column::new(name, column.index());
                Ok(Transformed::yes(Arc::new(renamed) as _))
            })?;
            key.expr = renamed.data;
            Ok(key)
        });
        let named = named.collect::<Result<Vec<PhysicalSortExpr>>>()?;
        match LexOrdering::new(named) {
            Some(order) => enforce_order(Arc::clone(input), order.into()),
            None => Ok(Arc::clone(input)),
        }
    });
    UnionExec::try_new(inputs.collect::<Result<_>>()?)
}

/// Separates a plan from the limit of each of its partitions. The limit takes the first rows of an order that is lost
/// here: it is applied once the rows are sorted again.
fn without_limit(plan: Arc<dyn ExecutionPlan>) -> Result<(Arc<dyn ExecutionPlan>, Option<usize>)> {
    // These make the order that they take the first rows of.
    if plan.is::<SortExec>() || plan.is::<SortPreservingMergeExec>() {
        return Ok((plan, None));
    }
    // No rows are in any order, and nothing can sort for the first none.
    if plan.fetch() == Some(0) {
        return Ok((plan, None));
    }
    if let Some(limit) = plan.downcast_ref::<LocalLimitExec>() {
        let (input, below) = without_limit(Arc::clone(limit.input()))?;
        return Ok((input, least(below, Some(limit.fetch()))));
    }
    let limit = plan.fetch();
    let plan = match limit.and_then(|_| plan.with_fetch(None)) {
        Some(unlimited) => unlimited,
        None => plan,
    };
    // Each of its rows is one of its input's, in the same place.
    let [input] = plan.children()[..] else {
        return Ok((plan, limit));
    };
    if !plan.is::<ProjectionExec>() {
        return Ok((plan, limit));
    }
    let (input, below) = without_limit(Arc::clone(input))?;
    let plan = replace_children_if_necessary(plan, vec![input])?;
    Ok((plan, least(below, limit)))
}

fn least(a: Option<usize>, b: Option<usize>) -> Option<usize> {
    a.into_iter().chain(b).min()
}
