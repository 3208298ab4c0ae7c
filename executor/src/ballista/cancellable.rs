//! A plan whose streams end when a token is cancelled.
//!
//! Ballista cancels a task by dropping the future that waits for it, while the plan goes on in
//! tasks of its own. This decorator stands in for the operator below the stage's writer: once its
//! token is cancelled, its streams fail and drop the operator's, which stops all below. It takes
//! the operator's place in every other respect, so that metrics and downcasts see no difference.

use std::fmt;
use std::sync::Arc;

use ballista_core::error::BallistaError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, replace_children_if_necessary,
};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Cancellable {
    plan: Arc<dyn ExecutionPlan>,
    cancel: CancellationToken,
}

impl Cancellable {
    pub(super) fn new(plan: Arc<dyn ExecutionPlan>, cancel: CancellationToken) -> Self {
        Self { plan, cancel }
    }
}

impl DisplayAs for Cancellable {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt_as(form, f)
    }
}

impl ExecutionPlan for Cancellable {
    fn name(&self) -> &str {
        self.plan.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.plan.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.plan.apply_expressions(f)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = replace_children_if_necessary(Arc::clone(&self.plan), children)?;
        Ok(Arc::new(Self::new(plan, self.cancel.clone())))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.plan.execute(partition, context)?;
        let schema = rows.schema();
        let cancelled = self.cancel.clone().cancelled_owned();
        let token = self.cancel.clone();
        // The rows end when the token is cancelled; the error after them makes whoever reads them
        // give up and drop the operator's stream.
        let end = futures::stream::once(async move { token.is_cancelled() }).filter_map(
            |cancelled| async move {
                cancelled.then(|| {
                    Err(DataFusionError::External(Box::new(
                        BallistaError::Cancelled,
                    )))
                })
            },
        );
        let stream = rows.take_until(cancelled).chain(end);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}
