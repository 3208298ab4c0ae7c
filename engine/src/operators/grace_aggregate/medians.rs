//! Medians of one group whose values exceed the memory: the middle of the values in sorted files.
//!
//! The values are counted, sorted by DataFusion, which spills, and read up to the middle. The function itself computes its
//! result from the one or two values there.
//!
//! Not here: `percentile_cont`, which interpolates between values that depend on their number.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::{SortOptions, concat, filter};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{exec_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::StreamingTableExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use futures::StreamExt;

use super::super::spilled::{Once, Rows};
use super::{Plan, aggregate_of, keeps_values};

/// Checks whether a call is one that [`middles`] computes.
fn is_median(call: &AggregateFunctionExpr) -> bool {
    call.fun().name() == "median" && !call.is_distinct()
}

/// Checks whether an aggregate over rows keeps values only for medians.
pub(super) fn has_medians_only(plan: &Plan) -> Result<bool> {
    let aggregate = aggregate_of(plan)?;
    let is_over_rows = matches!(
        aggregate.mode(),
        AggregateMode::Single | AggregateMode::SinglePartitioned
    );
    let mut calls = aggregate.aggr_expr().iter();
    Ok(is_over_rows && calls.all(|call| is_median(call) || !keeps_values(call)))
}

/// Computes the row of an aggregate of one group.
pub(super) async fn middles(
    plan: &Plan,
    rows: &Arc<Rows>,
    context: &Arc<TaskContext>,
) -> Result<RecordBatch> {
    let aggregate = aggregate_of(plan)?;
    let calls = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
    let others = calls.clone().filter(|(call, _)| !is_median(call));
    let (others, filters): (Vec<_>, Vec<_>) = others
        .map(|(call, filter)| (Arc::clone(call), filter.clone()))
        .unzip();
    // The keys of the group, and the other calls.
    let mut known = vec![];
    if !aggregate.group_expr().is_empty() || !others.is_empty() {
        let others = AggregateExec::try_new(
            AggregateMode::Single,
            aggregate.group_expr().clone(),
            others,
            filters,
            rows.plan()?,
            aggregate.input_schema(),
        )?;
        let row = collect(Arc::new(others), Arc::clone(context)).await?;
        match &row[..] {
            [row] if row.num_rows() == 1 => known = row.columns().to_vec(),
            // Their hashes are the same.
            _ => return exec_err!("several groups that exceed the memory cannot be told apart"),
        }
    }
    let mut known = known.into_iter();
    let mut columns: Vec<_> = known
        .by_ref()
        .take(aggregate.group_expr().expr().len())
        .collect();
    for (call, filter) in calls {
        let column = match is_median(call) {
            true => Some(middle(call, filter.as_ref(), rows, context).await?),
            false => known.next(),
        };
        columns.extend(column);
    }
    Ok(RecordBatch::try_new(plan.schema(), columns)?)
}

/// Computes the median of the values of rows.
async fn middle(
    call: &AggregateFunctionExpr,
    condition: Option<&Arc<dyn PhysicalExpr>>,
    rows: &Rows,
    context: &Arc<TaskContext>,
) -> Result<ArrayRef> {
    let mut count = 0;
    let mut all = values(call, condition, rows)?;
    while let Some(batch) = all.next().await.transpose()? {
        count += batch.num_rows();
    }
    let mut accumulator = call.create_accumulator()?;
    if count > 0 {
        let all = values(call, condition, rows)?;
        let schema = all.schema();
        let once = vec![Arc::new(Once::new(Arc::clone(&schema), all)) as _];
        let once = StreamingTableExec::try_new(schema, once, None, None, false, None)?;
        let column = Arc::new(Column::new(VALUE, 0));
        let order = PhysicalSortExpr::new(column, SortOptions::default());
        let sorted = SortExec::new(LexOrdering::from([order]), Arc::new(once));
        let mut sorted = sorted.execute(0, Arc::clone(context))?;
        let (mut from, mut due) = ((count - 1) / 2, 2 - count % 2);
        let mut middle = vec![];
        while due > 0
            && let Some(batch) = sorted.next().await.transpose()?
        {
            let skipped = from.min(batch.num_rows());
            let taken = due.min(batch.num_rows() - skipped);
            middle.push(batch.column(0).slice(skipped, taken));
            (from, due) = (from - skipped, due - taken);
        }
        let middle: Vec<_> = middle.iter().map(AsRef::as_ref).collect();
        accumulator.update_batch(&[concat(&middle)?])?;
    }
    accumulator.evaluate()?.to_array()
}

/// Name of the column of values.
const VALUE: &str = "value";

/// Reads the values of rows that meet a call's condition, without NULLs.
fn values(
    call: &AggregateFunctionExpr,
    condition: Option<&Arc<dyn PhysicalExpr>>,
    rows: &Rows,
) -> Result<SendableRecordBatchStream> {
    let rows = rows.read()?;
    let [value] = &call.expressions()[..] else {
        return internal_err!("a median of several values");
    };
    let (value, condition) = (Arc::clone(value), condition.cloned());
    let field = Field::new(VALUE, value.data_type(&rows.schema())?, true);
    let schema = Arc::new(Schema::new(vec![field]));
    let output = Arc::clone(&schema);
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let count = batch.num_rows();
        let mut values = value.evaluate(&batch)?.into_array(count)?;
        if let Some(condition) = &condition {
            let meets = condition.evaluate(&batch)?.into_array(count)?;
            values = filter(&values, meets.as_boolean())?;
        }
        if let Some(valid) = values.logical_nulls() {
            values = filter(&values, &valid.into_inner().into())?;
        }
        Ok(RecordBatch::try_new(Arc::clone(&output), vec![values])?)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}
