//! Dropping a query cancels its job.
//!
//! Ballista's own query node polls the scheduler until the job ends; when nobody polls any more,
//! the job runs on. [`CancelOnDrop`] wraps the node, so that whatever way a query is run (SQL, a
//! `DataFrame`, an estimator), rows dropped before their end cancel the job.
//!
//! ```text
//! rows dropped ── job known? ── no: keep polling until it is ─┐
//!                     └ yes ──────────────────────────────────┴─> CancelJob to the scheduler
//! ```
//!
//! Rows that end in an error cancel nothing where the job has ended, or where the scheduler does
//! not answer: what becomes of the job then is a setting (`volley.on_client_loss`).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::CancelJobParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::LogicalPlanNode;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::loss::{Effects, explain};
use crate::Error;

/// How long a cancellation may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a query that is being dropped is asked for its job.
const GLANCE: Duration = Duration::from_millis(20);

/// Cancellations under way.
#[derive(Debug)]
pub(super) struct Cancellations {
    scheduler_url: String,
    tasks: Mutex<JoinSet<bool>>,
}

impl Cancellations {
    pub(super) fn new(scheduler_url: String) -> Self {
        Self {
            scheduler_url,
            tasks: Mutex::default(),
        }
    }

    /// Waits for those under way. Returns whether all were delivered in time.
    pub(super) async fn settle(&self, deadline: Duration) -> bool {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let delivered = tokio::time::timeout(deadline, tasks.join_all()).await;
        delivered.is_ok_and(|delivered| delivered.into_iter().all(|done| done))
    }

    /// Cancels the job of a query that has been polled, once it is known.
    fn start(self: Arc<Self>, runtime: &Handle, mut query: Query) {
        let this = Arc::clone(&self);
        let cancel = async move {
            let cancelled = async {
                match query.await_job().await {
                    Some(job) => this.send(job, &query.config).await,
                    None => Ok(()), // it never became a job
                }
            };
            match tokio::time::timeout(PATIENCE, cancelled).await {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a dropped query could not be cancelled");
                    false
                }
                Err(_) => {
                    tracing::warn!("a dropped query could not be cancelled in {PATIENCE:?}");
                    false
                }
            }
        };
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(cancel, runtime);
    }

    async fn send(
        &self,
        job_id: String,
        config: &SessionConfig,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let grpc = GrpcClientConfig::from(&config.ballista_config());
        let mut endpoint = create_grpc_client_endpoint(self.scheduler_url.clone(), Some(&grpc))?;
        if let Some(customize) = config.ballista_override_create_grpc_client_endpoint() {
            endpoint = customize.configure_endpoint(endpoint)?;
        }
        let interceptor = config.ballista_grpc_interceptor().as_ref().clone();
        let channel = endpoint.connect().await?;
        let mut scheduler = SchedulerGrpcClient::with_interceptor(channel, interceptor);
        tracing::info!(job_id, "cancelling the job of a dropped query");
        scheduler.cancel_job(CancelJobParams { job_id }).await?;
        Ok(())
    }
}

/// A plan that runs on the cluster, whose rows cancel it when they are dropped before their end.
#[derive(Debug)]
pub(super) struct CancelOnDrop {
    inner: Arc<dyn ExecutionPlan>,
    effects: Effects,
    cancellations: Arc<Cancellations>,
}

impl CancelOnDrop {
    pub(super) fn new(
        inner: Arc<dyn ExecutionPlan>,
        effects: Effects,
        cancellations: Arc<Cancellations>,
    ) -> Self {
        Self {
            inner,
            effects,
            cancellations,
        }
    }
}

/// Whether a plan runs on the cluster.
pub(super) fn is_distributed(plan: &Arc<dyn ExecutionPlan>) -> bool {
    distributed(plan).is_some()
}

/// The job of a plan that runs on the cluster, once it has one.
pub(super) fn job_id(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    Some(distributed(plan)?.job_id()?.to_string())
}

/// Submits the job of a plan that runs on the cluster, and leaves it there. Returns its id.
pub(super) async fn submit(
    plan: &Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<String> {
    let query = distributed(plan).ok_or_else(|| {
        DataFusionError::Internal("a plan that does not run on the cluster is no job".into())
    })?;
    let mut rows = query.execute(0, context)?;
    loop {
        let polled = tokio::time::timeout(GLANCE, rows.next()).await;
        match (query.job_id(), polled) {
            (Some(job), _) => return Ok(job.to_string()),
            (None, Err(_) | Ok(Some(Ok(_)))) => {}
            (None, Ok(Some(Err(error)))) => return Err(error),
            (None, Ok(None)) => {
                return Err(DataFusionError::Internal(
                    "a job ended without an id".into(),
                ));
            }
        }
    }
}

type ClusterQuery = DistributedQueryExec<LogicalPlanNode>;

/// The node of a plan that submits the job, if there is one.
fn distributed(plan: &Arc<dyn ExecutionPlan>) -> Option<&ClusterQuery> {
    let here = plan.downcast_ref::<ClusterQuery>();
    here.or_else(|| plan.children().into_iter().find_map(distributed))
}

impl DisplayAs for CancelOnDrop {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelOnDrop")
    }
}

impl ExecutionPlan for CancelOnDrop {
    fn name(&self) -> &str {
        "CancelOnDrop"
    }

    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.inner.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.inner]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(inner), true) => {
                let cancellations = Arc::clone(&self.cancellations);
                Ok(Arc::new(Self::new(inner, self.effects, cancellations)))
            }
            _ => Err(DataFusionError::Internal(
                "CancelOnDrop has one child".into(),
            )),
        }
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let config = context.session_config().clone();
        let earlier = distributed(&self.inner).and_then(DistributedQueryExec::job_id);
        let query = Query {
            rows: self.inner.execute(partition, context)?,
            plan: Arc::clone(&self.inner),
            earlier: earlier.map(|job| job.to_string()),
            config,
        };
        Ok(Box::pin(Guarded {
            schema: self.schema(),
            query: Some(query),
            effects: self.effects,
            polled: false,
            runtime: Handle::try_current().ok(),
            cancellations: Arc::clone(&self.cancellations),
        }))
    }
}

/// A query in flight.
struct Query {
    rows: SendableRecordBatchStream,
    plan: Arc<dyn ExecutionPlan>,
    /// The job of the plan's last execution, which the plan names until it knows the new one.
    earlier: Option<String>,
    config: SessionConfig,
}

impl Query {
    fn job(&self) -> Option<String> {
        let job = distributed(&self.plan)?.job_id()?.to_string();
        (self.earlier.as_ref() != Some(&job)).then_some(job)
    }

    /// The job, once the scheduler has named it; `None` when there is none to cancel.
    async fn await_job(&mut self) -> Option<String> {
        loop {
            if let Some(job) = self.job() {
                return Some(job);
            }
            match tokio::time::timeout(GLANCE, self.rows.next()).await {
                Err(_) | Ok(Some(Ok(_))) => {}
                Ok(None | Some(Err(_))) => return self.job(),
            }
        }
    }
}

/// Rows that cancel their job unless they are read to their end.
struct Guarded {
    schema: SchemaRef,
    /// Gone once there is nothing left to cancel.
    query: Option<Query>,
    effects: Effects,
    polled: bool,
    runtime: Option<Handle>,
    cancellations: Arc<Cancellations>,
}

impl Stream for Guarded {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.polled = true;
        let Some(query) = &mut self.query else {
            return Poll::Ready(None);
        };
        let polled = query.rows.poll_next_unpin(cx);
        let Poll::Ready(Some(Err(error))) = polled else {
            if let Poll::Ready(None) = polled {
                self.query = None;
            }
            return polled;
        };
        let Some(job) = query.job() else {
            self.query = None; // it never became a job
            return Poll::Ready(Some(Err(error)));
        };
        let failed = error.to_string().contains(&format!("Job {job} failed"));
        let error = explain(error, &job, self.effects);
        // After any other error the job may still run.
        if failed || is_lost(&error) {
            self.query = None;
        }
        Poll::Ready(Some(Err(error)))
    }
}

/// Whether there is nothing left to cancel, or nobody to ask for it.
fn is_lost(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(own) => matches!(
            own.downcast_ref(),
            Some(Error::ResultLost { .. } | Error::SchedulerLost { .. })
        ),
        _ => false,
    }
}

impl RecordBatchStream for Guarded {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let Some(query) = self.query.take().filter(|_| self.polled) else {
            return;
        };
        match &self.runtime {
            Some(runtime) => Arc::clone(&self.cancellations).start(runtime, query),
            None => tracing::warn!("a query was dropped outside of a runtime: it runs on"),
        }
    }
}
