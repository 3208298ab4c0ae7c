//! The order of inner joins, by estimated sizes.
//!
//! SQL gives an order and the planner keeps it. In TPC-DS query 72 it joins two fact tables by one column, which makes
//! a billion rows, before any dimension filters either. Here each maximal tree of inner joins is taken apart and put
//! together in the order with the smallest estimated intermediate results:
//!
//! ```text
//!  plan ──flatten──► relations, equal columns, filters ──estimate──► graph ──search──► order ──rebuild──► plan
//! ```
//!
//! The rows stay the same; their order does not, so this rule precedes the rules that sort. Outer, semi and anti joins,
//! aggregates, limits and all other operators bound a tree. So semi and anti joins are first [pushed down](semi) to a
//! relation, and the rows of [groups](groups) reduced to those that a join matches. A tree keeps its order if it has a
//! relation of unknown size, fewer than three relations, or no clearly better order; all trees do if
//! `datafusion.optimizer.join_reordering` is off. Later rules decide which side of a join is hashed, and how rows get
//! there.

mod classes;
mod estimate;
mod flatten;
mod graph;
mod groups;
mod rebuild;
mod search;
mod semi;
mod sizes;

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use self::flatten::{JoinTree, flatten, is_join, replace_relations};
use self::groups::reduce_groups;
use self::search::best_tree;
use self::semi::push_semi_join;
use self::sizes::Sizes;

/// Largest share of the old cost at which an order is clearly better.
const CLEARLY: f64 = 0.8;
/// Smallest share of the relations' rows that a better order saves.
const WORTHWHILE: f64 = 0.05;
/// Smallest number of rows that a better order saves: a single batch is not worth it.
const BATCH: f64 = 8192.0;

/// Puts the inner joins of a plan in a better order, where there is one.
pub(crate) fn order_joins(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !config.optimizer.join_reordering {
        return Ok(plan);
    }
    let pushed = plan.transform_up(|node| {
        Ok(match push_semi_join(&node)? {
            Some(pushed) => Transformed::yes(pushed),
            None => Transformed::no(node),
        })
    });
    order(reduce_groups(pushed.data()?, config)?)
}

fn order(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if !is_join(&plan) {
        let children = plan.children().into_iter().cloned().map(order);
        let children = children.collect::<Result<Vec<_>>>()?;
        return match children.is_empty() {
            true => Ok(plan),
            false => replace_children_if_necessary(plan, children),
        };
    }
    let tree = flatten(&plan)?;
    let relations = tree.relations.iter().cloned().map(order);
    let relations = relations.collect::<Result<Vec<_>>>()?;
    let changed = relations
        .iter()
        .zip(&tree.relations)
        .any(|(new, old)| !Arc::ptr_eq(new, old));
    let (plan, tree) = match changed {
        false => (plan, tree),
        true => {
            let plan = replace_relations(&plan, &mut relations.into_iter())?;
            let tree = flatten(&plan)?;
            (plan, tree)
        }
    };
    Ok(reordered(&plan, &tree)?.unwrap_or(plan))
}

/// Estimates the rows of a tree of inner joins, if the plan is one, and its relations are known. DataFusion's own
/// estimate considers one column of a key, and each join separately.
pub(crate) fn rows(plan: &Arc<dyn ExecutionPlan>) -> Option<f64> {
    if !is_join(plan) {
        return None;
    }
    let tree = flatten(plan).ok()?;
    let known = (2..=graph::MOST).contains(&tree.relations.len());
    let graph = known.then(|| estimate::graph(&tree).ok()).flatten()??;
    Some(Sizes::new(&graph).rows(graph.all()))
}

/// Rebuilds the tree in a clearly better order.
fn reordered(
    plan: &Arc<dyn ExecutionPlan>,
    tree: &JoinTree,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if !(3..=graph::MOST).contains(&tree.relations.len()) {
        return Ok(None);
    }
    let Some(graph) = estimate::graph(tree)? else {
        return Ok(None);
    };
    let mut sizes = Sizes::new(&graph);
    let Some(best) = best_tree(&mut sizes) else {
        return Ok(None);
    };
    let (old, new) = (sizes.cost(&tree.order), sizes.cost(&best));
    let read: f64 = graph.relations.iter().map(|relation| relation.rows).sum();
    let saved = old - new;
    let better = new <= CLEARLY * old && saved >= BATCH && saved >= WORTHWHILE * read;
    // A join without keys compares all pairs in one task, so a new order has no more of them than the old one.
    if !better || sizes.products(&best) > sizes.products(&tree.order) {
        return Ok(None);
    }
    let rebuilt = rebuild::rebuild(tree, &mut sizes, &best, &plan.schema())?;
    Ok((rebuilt.schema() == plan.schema()).then_some(rebuilt))
}

#[cfg(test)]
mod tests;
