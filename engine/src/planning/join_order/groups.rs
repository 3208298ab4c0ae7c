//! Semi-join reduction below a grouping: groups that a join does not match are not built.
//!
//! ```text
//!   LeftSemi: part.id = part                      LeftSemi: part.id = part
//!     ├ …  ─ part, filtered                 →       ├ …  ─ part, filtered
//!     └ AggregateExec: gby=[part]                   └ AggregateExec: gby=[part]
//!         └ lines                                       └ RightSemi: part.id = part
//!                                                           ├ part, filtered
//!                                                           └ lines
//! ```
//!
//! A correlated subquery with an aggregate is planned as one group for each key of its table, of which the query needs
//! few (the magic sets of Mumick et al., "Magic is relevant", SIGMOD 1990, <https://doi.org/10.1145/93597.98734>). The
//! few keys are those of a relation that the join's other side reads anyway.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinSide, JoinType};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{
    ExecutionPlan, PhysicalExpr, displayable, replace_children_if_necessary,
};

use super::estimate::{distinct, unfiltered};
use super::flatten::{flatten, is_join};
use super::semi::push_semi_join;
use crate::planning::joins::{are_exact, is_read, pays_to_send};
use crate::planning::reread::is_repeatable;
use crate::planning::size::size;

type Plan = Arc<dyn ExecutionPlan>;

/// Largest estimated share of keys that may match for a reduction. A filter has to cause it: a table with fewer keys
/// than the range of another's proves nothing.
const SELECTIVITY: f64 = 0.25;

/// Reduces the rows of groups to those that the joins above them match.
pub(super) fn reduce_groups(plan: Plan, config: &ConfigOptions) -> Result<Plan> {
    let groups = Groups {
        plan: &plan,
        config,
        count: OnceCell::new(),
    };
    let reduced = |node: Plan| {
        Ok(match groups.of_join(&node)? {
            Some(reduced) => Transformed::yes(reduced),
            None => Transformed::no(node),
        })
    };
    Arc::clone(&plan).transform_up(reduced).data()
}

/// Aggregates of a plan.
struct Groups<'a> {
    plan: &'a Plan,
    config: &'a ConfigOptions,
    /// Number of times that each aggregate occurs in the plan, by its text.
    count: OnceCell<HashMap<String, usize>>,
}

impl Groups<'_> {
    /// Reduces the groups of a join.
    fn of_join(&self, node: &Plan) -> Result<Option<Plan>> {
        let Some(join) = node
            .downcast_ref::<HashJoinExec>()
            .filter(|join| !join.null_aware)
        else {
            return Ok(None);
        };
        for (grouped, at) in [(JoinSide::Right, 1), (JoinSide::Left, 0)] {
            if !drops_unmatched(*join.join_type(), grouped) {
                continue;
            }
            let sides = [join.left(), join.right()];
            for (left, right) in join.on() {
                let keys = [left, right].map(|key| key.downcast_ref::<Column>());
                let (Some(key), Some(asked)) = (keys[at], keys[1 - at]) else {
                    continue;
                };
                let keys = Keys {
                    side: sides[1 - at],
                    column: asked.index(),
                    join,
                };
                if let Some(reduced) = self.reduced(sides[at], key.index(), &keys)? {
                    let mut sides = sides.map(Arc::clone);
                    sides[at] = reduced;
                    let join = replace_children_if_necessary(Arc::clone(node), sides.into())?;
                    return Ok(Some(join));
                }
            }
        }
        Ok(None)
    }

    /// Reduces groups to the keys that a join matches in a column.
    fn reduced(&self, plan: &Plan, column: usize, keys: &Keys<'_>) -> Result<Option<Plan>> {
        let input = if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            let column = projection.expr()[column].expr.downcast_ref::<Column>();
            column.map(|column| (projection.input(), column.index()))
        } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            let projection = filter.projection().as_ref();
            let column = projection.map_or(column, |projection| projection[column]);
            Some((filter.input(), column))
        } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
            let by = aggregate.group_expr();
            let key = by.expr().get(column).filter(|_| by.is_single());
            let column = key.and_then(|(key, _)| key.downcast_ref::<Column>());
            let column = column.filter(|_| aggregate.limit_options().is_none());
            column.map(|column| (aggregate.input(), column.index()))
        } else {
            None
        };
        let Some((input, column)) = input.filter(|_| plan.fetch().is_none()) else {
            return Ok(None);
        };
        let reduced = match plan.downcast_ref::<AggregateExec>() {
            Some(aggregate) if reads_rows(*aggregate.mode()) => {
                let semi_join = keys.semi_join(input, column, self.config)?;
                semi_join.filter(|_| !self.is_repeated(plan))
            }
            _ => self.reduced(input, column, keys)?,
        };
        reduced
            .map(|input| replace_children_if_necessary(Arc::clone(plan), vec![input]))
            .transpose()
    }

    /// Checks whether the plan has an aggregate twice, which one stage computes for both.
    fn is_repeated(&self, aggregate: &Plan) -> bool {
        let text = |plan: &Plan| displayable(plan.as_ref()).indent(true).to_string();
        let count = self.count.get_or_init(|| {
            let mut count = HashMap::new();
            let visited = self.plan.apply(|node| {
                if node.is::<AggregateExec>() {
                    *count.entry(text(node)).or_default() += 1;
                }
                Ok(TreeNodeRecursion::Continue)
            });
            debug_assert!(visited.is_ok());
            count
        });
        count.get(&text(aggregate)).is_some_and(|count| *count > 1)
    }
}

/// Checks whether a join drops the unmatched rows of a side.
fn drops_unmatched(kind: JoinType, side: JoinSide) -> bool {
    match side {
        JoinSide::Right => matches!(
            kind,
            JoinType::Inner
                | JoinType::Left
                | JoinType::LeftSemi
                | JoinType::LeftAnti
                | JoinType::LeftMark
        ),
        _ => matches!(
            kind,
            JoinType::Inner
                | JoinType::Right
                | JoinType::RightSemi
                | JoinType::RightAnti
                | JoinType::RightMark
        ),
    }
}

/// Checks whether an aggregate reads rows, not states of groups.
fn reads_rows(mode: AggregateMode) -> bool {
    match mode {
        AggregateMode::Partial | AggregateMode::Single | AggregateMode::SinglePartitioned => true,
        AggregateMode::Final | AggregateMode::FinalPartitioned | AggregateMode::PartialReduce => {
            false
        }
    }
}

/// Keys that a join matches: a column of its other side.
struct Keys<'a> {
    side: &'a Plan,
    column: usize,
    join: &'a HashJoinExec,
}

impl Keys<'_> {
    /// Builds the semi join of the rows with these keys, if the keys are few enough.
    fn semi_join(
        &self,
        rows: &Plan,
        column: usize,
        config: &ConfigOptions,
    ) -> Result<Option<Plan>> {
        let schema = rows.schema();
        let field = schema.field(column);
        let known = StatisticsContext::new().compute(rows.as_ref(), &StatisticsArgs::new())?;
        let Some(count) = known.num_rows.get_value() else {
            return Ok(None);
        };
        let Some(values) = distinct(&known.column_statistics[column], *count as f64) else {
            return Ok(None);
        };
        let Some(many) = size(rows) else {
            return Ok(None);
        };
        let key = |plan: &Plan, at: usize| {
            let name = plan.schema().field(at).name().clone();
            Arc::new(Column::new(&name, at)) as Arc<dyn PhysicalExpr>
        };
        for (few, at) in &relations(self.side, self.column)? {
            let of = few.schema();
            let exact = are_exact(&of.project(&[*at])?);
            let same = of.field(*at).data_type() == field.data_type();
            let Some((sent, all)) = size(few).zip(size(unfiltered(few).0)) else {
                continue;
            };
            let is_few =
                all.rows > 0 && sent.rows as f64 <= SELECTIVITY * values.min(all.rows as f64);
            let pays = is_few && pays_to_send(sent, many, config);
            if !exact || !same || !pays || !is_repeatable(few)? {
                continue;
            }
            // Two scans of one plan would share their work queue.
            let semi_join: Plan = Arc::new(HashJoinExec::try_new(
                reset_plan_states(Arc::clone(few))?,
                Arc::clone(rows),
                vec![(key(few, *at), key(rows, column))],
                None,
                &JoinType::RightSemi,
                None,
                *self.join.partition_mode(),
                self.join.null_equality(),
                false,
            )?);
            return Ok(Some(push_semi_join(&semi_join)?.unwrap_or(semi_join)));
        }
        Ok(None)
    }
}

/// Returns the relations that have all values of a plan's column, and are read from files, smallest first.
fn relations(plan: &Plan, column: usize) -> Result<Vec<(Plan, usize)>> {
    let mut found = Vec::new();
    add_relations(plan, column, &mut found)?;
    found.sort_by_key(|(plan, _)| size(plan).map_or(u64::MAX, |size| size.rows));
    Ok(found)
}

fn add_relations(plan: &Plan, column: usize, found: &mut Vec<(Plan, usize)>) -> Result<()> {
    if is_join(plan) {
        let tree = flatten(plan)?;
        for relation in 0..tree.relations.len() {
            if let Some(column) = tree.equal_in(relation, tree.output[column]) {
                add_relations(&tree.relations[relation], column, found)?;
            }
        }
        return Ok(());
    }
    if is_read(plan) {
        found.push((Arc::clone(plan), column));
        return Ok(());
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return match projection.expr()[column].expr.downcast_ref::<Column>() {
            Some(column) => add_relations(projection.input(), column.index(), found),
            None => Ok(()),
        };
    }
    let join = plan.downcast_ref::<HashJoinExec>();
    let Some(join) = join.filter(|join| !join.contains_projection()) else {
        return Ok(());
    };
    let (kept, other) = match join.join_type() {
        JoinType::LeftSemi => (join.left(), Some(join.right())),
        JoinType::RightSemi => (join.right(), Some(join.left())),
        JoinType::LeftAnti => (join.left(), None),
        JoinType::RightAnti => (join.right(), None),
        _ => return Ok(()),
    };
    add_relations(kept, column, found)?;
    let Some(other) = other else {
        return Ok(());
    };
    let is_left = *join.join_type() == JoinType::LeftSemi;
    for (left, right) in join.on() {
        let (own, others) = if is_left {
            (left, right)
        } else {
            (right, left)
        };
        let columns = (
            own.downcast_ref::<Column>(),
            others.downcast_ref::<Column>(),
        );
        let (Some(own), Some(others)) = columns else {
            continue;
        };
        if own.index() == column {
            add_relations(other, others.index(), found)?;
        }
    }
    Ok(())
}
