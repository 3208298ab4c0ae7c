//! A physical plan becomes stages.
//!
//! It is cut where rows change tasks: at a hash exchange, and where partitions are gathered into one.
//! The side of a join that every task needs whole is gathered too, unless it is no more than a few
//! small files, which each task reads for itself.

use std::sync::Arc;

use crate::nodes::one_task::OneTaskExec;
use crate::planning::reread::{is_reread, spreads_over_threads};
use datafusion::common::not_impl_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{LexOrdering, Partitioning};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use super::check::{check, check_wire};
use super::enforce::{enforce_order, enforce_orders};
use super::runs::lengthen_runs;
use super::stage::{StageExec, StageInput, partitions};

/// Cuts a plan into stages, the last one on top. Its rows come in `order`, if one is given.
///
/// # Errors
/// When an operator, which the error names, cannot run in stages or would not reach an executor unchanged.
pub fn stages(
    plan: Arc<dyn ExecutionPlan>,
    order: Option<LexOrdering>,
    context: &TaskContext,
) -> Result<Arc<dyn ExecutionPlan>> {
    Planner { context }.stage(plan, order)
}

/// Returns the order of a plan's rows, where no operator of the last stage establishes it.
///
/// The ordering that a plan reports may be shorter than the requested one, or list its columns in another sequence
/// where columns of some partitions are constant: an operator that sorts knows the order exactly.
pub fn order_to_keep(plan: &Arc<dyn ExecutionPlan>) -> Option<LexOrdering> {
    let mut node = plan;
    loop {
        if node.is::<SortExec>() || node.is::<SortPreservingMergeExec>() {
            return None;
        }
        match node.children()[..] {
            [input] if node.maintains_input_order() == [true] && !node.is::<RepartitionExec>() => {
                node = input;
            }
            _ => return plan.output_ordering().cloned(),
        }
    }
}

struct Planner<'a> {
    context: &'a TaskContext,
}

impl Planner<'_> {
    fn stage(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        order: Option<LexOrdering>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut inputs = Vec::new();
        let plan = self.cut(plan, &mut inputs)?;
        let mut plan = enforce_orders(plan)?;
        if let Some(order) = order {
            plan = enforce_order(plan, order.into())?;
        }
        let plan = lengthen_runs(plan, self.context.session_config().batch_size())?;
        let message = check_wire(&plan, self.context)?;
        // What is known of values tells that rows are spread as they must be. But orders are concluded otherwise
        // where columns are known to be equal or constant, and those above were made without.
        let plan = match check(&plan) {
            Ok(()) => plan,
            Err(_) => {
                let plan = with_values(plan)?;
                check(&plan)?;
                plan
            }
        };
        Ok(Arc::new(StageExec::new(plan, inputs, message.into())))
    }

    /// Returns the stage's own part of the plan, and adds the exchanges that it reads to `inputs`.
    fn cut(
        &self,
        node: Arc<dyn ExecutionPlan>,
        inputs: &mut Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(exchange) = node.downcast_ref::<RepartitionExec>() {
            let input = Arc::clone(exchange.input());
            return match exchange.partitioning() {
                Partitioning::Hash(..) => {
                    let partitioning = exchange.partitioning().clone();
                    let index = inputs.len();
                    let reads = StageInput::new(index, &input, partitioning.clone(), None);
                    let input = self.stage(input, None)?;
                    let exchange = RepartitionExec::try_new(input, partitioning)?;
                    inputs.push(Arc::new(exchange));
                    Ok(Arc::new(reads))
                }
                _ if spreads_over_threads(node.as_ref()) => self.cut(input, inputs),
                other => not_impl_err!("an exchange by {other}"),
            };
        }
        if let Some(one_task) = node.downcast_ref::<OneTaskExec>() {
            return self.cut(Arc::clone(one_task.input()), inputs);
        }
        if let Some(gather) = node.downcast_ref::<CoalescePartitionsExec>() {
            if partitions(gather.input()) > 1 {
                let input = self.gather(Arc::clone(gather.input()), None, inputs)?;
                return replace_children_if_necessary(node, vec![input]);
            }
        } else if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() {
            if partitions(merge.input()) > 1 {
                let order = merge.expr().clone();
                let input = self.gather(Arc::clone(merge.input()), Some(order), inputs)?;
                return replace_children_if_necessary(node, vec![input]);
            }
        } else if let Some([whole, spread]) = replicated(node.as_ref()) {
            let [whole, spread] = [Arc::clone(whole), Arc::clone(spread)];
            let apart = partitions(&spread) > 1 && partitions(&whole) == 1;
            let whole = if is_reread(&whole, self.context.session_config().options())? {
                in_one_task(whole)?
            } else if apart && !gathers(&whole) {
                self.gather(whole, None, inputs)?
            } else {
                self.cut(whole, inputs)?
            };
            let spread = self.cut(spread, inputs)?;
            return replace_children_if_necessary(node, vec![whole, spread]);
        }
        if let Some(query) = node.downcast_ref::<RecursiveQueryExec>() {
            let first = self.cut(Arc::clone(query.static_term()), inputs)?;
            let recursive = in_one_process(Arc::clone(query.recursive_term()))?;
            return replace_children_if_necessary(node, vec![first, recursive]);
        }
        if node.is::<InterleaveExec>() {
            let partitioning = node.output_partitioning();
            let children = node.children().into_iter();
            let children = children.map(|child| self.cut_spread(child, partitioning, inputs));
            let children = children.collect::<Result<Vec<_>>>()?;
            return Ok(Arc::new(InterleaveExec::try_new(children)?));
        }
        let children = node.children().into_iter();
        let children = children.map(|child| self.cut(Arc::clone(child), inputs));
        let children = children.collect::<Result<Vec<_>>>()?;
        // What inputs say of NULL may have changed since these were made, as where a value is known from
        // statistics: it says the same here as where it is made from its message.
        if node.is::<UnionExec>() {
            return UnionExec::try_new(children);
        }
        with_own_schema(replace_children_if_necessary(node, children)?)
    }

    /// Cuts a plan, with its rows partitioned in this way. If that was derived from columns known to be equal, which an
    /// exchange does not pass on to its reader, the rows are exchanged once more.
    fn cut_spread(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        partitioning: &Partitioning,
        inputs: &mut Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let before = inputs.len();
        let cut = self.cut(Arc::clone(plan), inputs)?;
        if cut.output_partitioning() == partitioning {
            return Ok(cut);
        }
        inputs.truncate(before);
        let exchange = RepartitionExec::try_new(Arc::clone(plan), partitioning.clone())?;
        self.cut(Arc::new(exchange), inputs)
    }

    /// Makes another stage of a plan, whose partitions are all read by each task that needs them.
    fn gather(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        order: Option<LexOrdering>,
        inputs: &mut Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let stage = self.stage(Arc::clone(&plan), order.clone())?;
        let partitioning = Partitioning::UnknownPartitioning(partitions(&stage));
        let reads = StageInput::new(inputs.len(), &plan, partitioning, order);
        inputs.push(Arc::new(CoalescePartitionsExec::new(stage)));
        Ok(Arc::new(reads))
    }
}

/// Replaces a plan's inputs by ones that have the known properties of their values.
fn with_values(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match node.downcast_ref::<StageInput>() {
        Some(input) => Ok(Transformed::yes(Arc::new(input.with_values()))),
        None => Ok(Transformed::no(node)),
    })
    .data()
}

/// Unwraps [`OneTaskExec`] in a plan whose exchanges stay in one process: its task runs all of it, round after round.
fn in_one_process(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match node.downcast_ref::<OneTaskExec>() {
        Some(marked) => Ok(Transformed::yes(Arc::clone(marked.input()))),
        None => Ok(Transformed::no(node)),
    })
    .data()
}

/// Returns the two sides of a join whose first side every task needs whole.
fn replicated(node: &dyn ExecutionPlan) -> Option<[&Arc<dyn ExecutionPlan>; 2]> {
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let whole = *join.partition_mode() == PartitionMode::CollectLeft;
        return whole.then(|| [join.left(), join.right()]);
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        return Some([join.left(), join.right()]);
    }
    let join = node.downcast_ref::<CrossJoinExec>()?;
    Some([join.left(), join.right()])
}

/// Checks whether the plan's root gathers partitions, which ends a stage.
fn gathers(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let gathered = if let Some(gather) = plan.downcast_ref::<CoalescePartitionsExec>() {
        gather.input()
    } else if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        merge.input()
    } else {
        return false;
    };
    partitions(gathered) > 1
}

/// Returns a plan of which one task runs all partitions.
fn in_one_task(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| match spreads_over_threads(node.as_ref()) {
        true => Ok(Transformed::yes(Arc::clone(node.children()[0]))),
        false => with_own_schema(node).map(Transformed::yes),
    })
    .data()
}

/// Recomputes a projection's schema, so that its columns are as nullable as its expressions and input.
fn with_own_schema(node: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(projection) = node.downcast_ref::<ProjectionExec>() else {
        return Ok(node);
    };
    let exprs = projection.expr().iter().cloned();
    let anew = ProjectionExec::try_new(exprs, Arc::clone(projection.input()))?;
    Ok(match anew.schema() == node.schema() {
        true => node,
        false => Arc::new(anew),
    })
}
