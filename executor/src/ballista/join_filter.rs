//! A join's filter that fails when its task is to stop.
//!
//! A join combines rows of both sides and evaluates its filter over them, one batch of pairs at a time. While no
//! pair passes, it emits nothing and polls nothing, until one batch of one side has met the whole other side.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::BooleanArray;
use datafusion::arrow::datatypes::{FieldRef, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder, SortMergeJoinExec,
};

use super::tasks::Running;

/// Makes a join stop with its task even while its filter passes no rows. Returns `None` for operators without a filter.
///
/// # Errors
/// When a join cannot be rebuilt from its own parts.
pub(super) fn stop_in_filter(
    node: &Arc<dyn ExecutionPlan>,
    task: &Running,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let stopping = |filter: &JoinFilter| {
        let expression = Arc::new(Stopping {
            filter: Arc::clone(filter.expression()),
            task: task.clone(),
        });
        let (columns, schema) = (filter.column_indices().to_vec(), filter.schema());
        Some(JoinFilter::new(expression, columns, Arc::clone(schema)))
    };
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>()
        && let Some(filter) = join.filter()
    {
        let join = NestedLoopJoinExecBuilder::from(join).with_filter(stopping(filter));
        return Ok(Some(Arc::new(join.build()?)));
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>()
        && let Some(filter) = join.filter()
    {
        let join = join.builder().with_filter(stopping(filter));
        return join.build_exec().map(Some);
    }
    if let Some(join) = node.downcast_ref::<SortMergeJoinExec>()
        && let Some(filter) = join.filter()
    {
        return Ok(Some(Arc::new(SortMergeJoinExec::try_new(
            Arc::clone(join.left()),
            Arc::clone(join.right()),
            join.on().to_vec(),
            stopping(filter),
            join.join_type(),
            join.sort_options().to_vec(),
            join.null_equality(),
        )?)));
    }
    Ok(None)
}

/// Expression that fails once its task is to stop.
#[derive(Debug)]
struct Stopping {
    filter: Arc<dyn PhysicalExpr>,
    task: Running,
}

impl PartialEq for Stopping {
    fn eq(&self, other: &Self) -> bool {
        self.filter.eq(&other.filter)
    }
}

impl Eq for Stopping {}

impl Hash for Stopping {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.filter.hash(state);
    }
}

impl fmt::Display for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.filter.fmt(f)
    }
}

impl PhysicalExpr for Stopping {
    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.filter.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.task.check()?;
        self.filter.evaluate(batch)
    }

    fn evaluate_selection(
        &self,
        batch: &RecordBatch,
        selection: &BooleanArray,
    ) -> Result<ColumnarValue> {
        self.task.check()?;
        self.filter.evaluate_selection(batch, selection)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.filter]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let filter = children.pop();
        Ok(Arc::new(Self {
            filter: filter.unwrap_or_else(|| Arc::clone(&self.filter)),
            task: self.task.clone(),
        }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.filter.fmt_sql(f)
    }
}
