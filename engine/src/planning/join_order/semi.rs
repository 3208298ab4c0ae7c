//! Pushdown of semi and anti joins below inner joins, to the relation whose columns they compare.
//!
//! ```text
//!   LeftSemi: orders.id                  Inner
//!     ├ Inner                      →       ├ LeftSemi: orders.id
//!     │   ├ orders                         │   ├ orders
//!     │   └ lines                          │   └ large orders
//!     └ large orders                       └ lines
//! ```
//!
//! SQL's `IN` and `EXISTS` are planned above all joins of their query, which then make rows in vain, and they block a
//! better order. A relation with no more rows than the joins is the better place. Not here: the choice of the hashed
//! side.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use super::estimate;
use super::flatten::{JoinTree, flatten, is_join, replace_relations};
use super::graph::MOST;
use super::sizes::Sizes;
use crate::planning::reread::is_volatile_operator;

type Plan = Arc<dyn ExecutionPlan>;

/// Moves a semi or anti join above inner joins to one of their relations, if that is better.
pub(super) fn push_semi_join(node: &Plan) -> Result<Option<Plan>> {
    let Some(join) = node.downcast_ref::<HashJoinExec>() else {
        return Ok(None);
    };
    let side = match join.join_type() {
        JoinType::LeftSemi | JoinType::LeftAnti => JoinSide::Left,
        JoinType::RightSemi | JoinType::RightAnti => JoinSide::Right,
        _ => return Ok(None),
    };
    let kept = match side {
        JoinSide::Left => join.left(),
        _ => join.right(),
    };
    let stays = join.null_aware
        || join.contains_projection()
        || node.fetch().is_some()
        || !join.dynamic_expressions_produced().is_empty();
    if stays || !is_join(kept) || is_volatile_operator(join)? {
        return Ok(None);
    }
    let tree = flatten(kept)?;
    let Some(relation) = smallest(&tree, join, side)? else {
        return Ok(None);
    };
    let moved = at_relation(&tree, relation, join, side)?;
    let relations = tree.relations.iter().enumerate();
    let mut relations = relations.map(|(at, plan)| match at == relation {
        true => Arc::clone(&moved),
        false => Arc::clone(plan),
    });
    let plan = replace_relations(kept, &mut relations)?;
    Ok((plan.schema() == node.schema()).then_some(plan))
}

/// Returns the smallest relation that has all columns which a join compares, if it has no more rows than the tree.
fn smallest(tree: &JoinTree, join: &HashJoinExec, side: JoinSide) -> Result<Option<usize>> {
    if !(2..=MOST).contains(&tree.relations.len()) {
        return Ok(None);
    }
    let Some(graph) = estimate::graph(tree)? else {
        return Ok(None);
    };
    let rows = |relation: usize| graph.relations[relation].rows;
    let has_all = |relation: &usize| place(tree, *relation, join, side).is_some();
    let relations = (0..tree.relations.len()).filter(has_all);
    let smallest = relations.min_by(|a, b| rows(*a).total_cmp(&rows(*b)));
    let joined = Sizes::new(&graph).rows(graph.all());
    Ok(smallest.filter(|relation| rows(*relation) <= joined))
}

/// Positions in a relation of the columns that a join compares.
struct Place {
    keys: Vec<usize>,
    /// Positions of the columns that the join's filter reads, in order.
    filtered: Vec<usize>,
}

fn place(tree: &JoinTree, relation: usize, join: &HashJoinExec, side: JoinSide) -> Option<Place> {
    let keys = join.on().iter().map(|(left, right)| {
        let key = if side == JoinSide::Left { left } else { right };
        let column = tree.output[key.downcast_ref::<Column>()?.index()];
        tree.equal_in(relation, column)
    });
    let read = join
        .filter()
        .into_iter()
        .flat_map(JoinFilter::column_indices);
    let filtered = read.filter(|column| column.side == side).map(|column| {
        // Equal values may differ, such as 0.0 and -0.0, so the filter needs the very column.
        let (of, index) = tree.place(tree.output[column.index]);
        (of == relation).then_some(index)
    });
    Some(Place {
        keys: keys.collect::<Option<_>>()?,
        filtered: filtered.collect::<Option<_>>()?,
    })
}

/// Builds the join with a relation as its kept side.
fn at_relation(
    tree: &JoinTree,
    relation: usize,
    join: &HashJoinExec,
    side: JoinSide,
) -> Result<Plan> {
    let plan = Arc::clone(&tree.relations[relation]);
    let Some(place) = place(tree, relation, join, side) else {
        return datafusion::common::internal_err!("a relation lacks columns that it had");
    };
    let schema = plan.schema();
    let keys = join.on().iter().zip(place.keys);
    let keys = keys.map(|((left, right), at)| {
        let key = Arc::new(Column::new(schema.field(at).name(), at)) as _;
        match side {
            JoinSide::Left => (key, Arc::clone(right)),
            _ => (Arc::clone(left), key),
        }
    });
    let mut filtered = place.filtered.into_iter();
    let filter = join.filter().map(|filter| {
        let columns = filter.column_indices().iter().map(|column| {
            let own = column.side == side;
            let index = own.then(|| filtered.next()).flatten();
            ColumnIndex {
                index: index.unwrap_or(column.index),
                side: column.side,
            }
        });
        let condition = Arc::clone(filter.expression());
        JoinFilter::new(condition, columns.collect(), Arc::clone(filter.schema()))
    });
    let (left, right) = match side {
        JoinSide::Left => (plan, Arc::clone(join.right())),
        _ => (Arc::clone(join.left()), plan),
    };
    let keys = keys.collect();
    let joined = HashJoinExec::try_new(
        left,
        right,
        keys,
        filter,
        join.join_type(),
        None,
        *join.partition_mode(),
        join.null_equality(),
        false,
    )?;
    Ok(Arc::new(joined))
}
