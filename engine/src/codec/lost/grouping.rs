//! The number of grouping sets of an aggregate whose sets are all empty: its message counts sets by their columns.

use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use serde::{Deserialize, Serialize};

/// Maximum number of empty sets of an aggregate: each is a row.
const MOST: usize = 1 << 16;

/// Number of empty sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EmptySets(usize);

impl EmptySets {
    pub(super) fn of(plan: &dyn ExecutionPlan) -> Option<Self> {
        let groups = plan.downcast_ref::<AggregateExec>()?.group_expr();
        let empty = groups.has_grouping_set() && groups.expr().is_empty();
        empty.then(|| Self(groups.groups().len()))
    }

    /// Adds the sets to an aggregate that was decoded without them.
    pub(super) fn restore(self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(aggregate) = plan.downcast_ref::<AggregateExec>() else {
            return internal_err!("{} has no grouping sets", plan.name());
        };
        if self.0 > MOST {
            return internal_err!("{} empty grouping sets, expected at most {MOST}", self.0);
        }
        let sets = PhysicalGroupBy::new(vec![], vec![], vec![vec![]; self.0], true);
        let restored = AggregateExec::try_new(
            *aggregate.mode(),
            sets,
            aggregate.aggr_expr().to_vec(),
            aggregate.filter_expr().to_vec(),
            Arc::clone(aggregate.input()),
            aggregate.input_schema(),
        )?;
        let limit = aggregate.limit_options();
        Ok(Arc::new(restored.with_limit_options(limit)))
    }
}
