//! The estimated size of a plan's rows, for decisions that depend on whether they are few.
//!
//! Not here: estimates of files (`estimates`), filters (`selectivity`) and trees of inner joins (`join_order`), which
//! this module uses.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{JoinType, Statistics};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::nodes::one_task::OneTaskExec;
use crate::planning::join_order;

/// Cost of hashing a row, in bytes that are read in the same time.
pub(crate) const HASH_BYTES: u64 = 32;

type Plan = Arc<dyn ExecutionPlan>;

/// Estimated size of a plan's rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Number of rows; 0 if only bytes are known.
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl Size {
    fn new(rows: u64, schema: &Schema) -> Self {
        let row = u64::try_from(row_bytes(schema)).unwrap_or(u64::MAX);
        Self {
            rows,
            bytes: rows.saturating_mul(row),
        }
    }

    /// Returns the cost of reading and hashing the rows, in bytes.
    pub(crate) fn cost(self) -> u64 {
        let hashed = self.rows.saturating_mul(HASH_BYTES);
        self.bytes.saturating_add(hashed)
    }
}

/// Estimates the size of a plan's rows; `None` if it is unknown.
pub(crate) fn size(plan: &Plan) -> Option<Size> {
    if let Some(rows) = join_order::rows(plan) {
        return Some(Size::new(rows as u64, &plan.schema()));
    }
    if let Some(one) = plan.downcast_ref::<OneTaskExec>() {
        return size(one.input());
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let kept = match join.join_type() {
            JoinType::LeftSemi | JoinType::LeftAnti => Some(join.left()),
            JoinType::RightSemi | JoinType::RightAnti => Some(join.right()),
            _ => None,
        };
        // The sizes of inner joins are better known here than in DataFusion.
        if let Some(kept) = kept.and_then(size).filter(|kept| kept.rows > 0) {
            let found = statistics_of(plan).and_then(|known| known.num_rows.get_value().copied());
            let found = found.and_then(|rows| u64::try_from(rows).ok());
            let rows = found.map_or(kept.rows, |rows| rows.min(kept.rows));
            return Some(Size::new(rows, &plan.schema()));
        }
    }
    let statistics = statistics_of(plan)?;
    // `total_byte_size` is as often the size of files as of rows, and 0 where it is unknown.
    if let Some(rows) = statistics.num_rows.get_value() {
        return Some(Size::new(u64::try_from(*rows).ok()?, &plan.schema()));
    }
    let bytes = u64::try_from(*statistics.total_byte_size.get_value()?).ok()?;
    Some(Size { rows: 0, bytes })
}

fn statistics_of(plan: &Plan) -> Option<Arc<Statistics>> {
    let statistics = StatisticsContext::new();
    statistics
        .compute(plan.as_ref(), &StatisticsArgs::new())
        .ok()
}

/// Estimates the bytes of a row in memory.
pub(crate) fn row_bytes(schema: &Schema) -> usize {
    let field = |data_type: &DataType| data_type.primitive_width().unwrap_or(32);
    let fields = schema.fields().iter();
    fields.map(|f| field(f.data_type())).sum::<usize>().max(8)
}
