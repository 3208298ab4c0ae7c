//! Query on the cluster, as a plan of one operator: submitted when its rows are read, cancelled when they are dropped
//! before their end, and run again if they are lost before any was returned.
//!
//! The rows of a finished job stay on the executors that made them until the client has fetched them. If an executor is
//! lost in between, so is its part of the rows, and since the job is over, only the client can repair it. So the first
//! rows are held back until all have arrived or [`HOLD_BYTES`] are reached: a smaller result is complete or is computed
//! again, and only a larger one can end in [`Error::ResultLost`] after some of its rows.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::record_batch::RecordBatch;
use ballista_core::extension::SessionConfigExt;
use ballista_core::serde::protobuf::ExecuteQueryParams;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::utils::GrpcClientConfig;
use datafusion::arrow::datatypes::{Fields, Schema, SchemaRef};
use datafusion::common::tree_node::TreeNode;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use datafusion::prelude::SessionConfig;
use datafusion_proto::logical_plan::AsLogicalPlan;
use datafusion_proto::protobuf::LogicalPlanNode;
use futures::stream::{BoxStream, try_unfold};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use uuid::Uuid;
use volley_engine::error::External;
use volley_engine::object_stores::Stores;
use volley_engine::operator;
use volley_engine::{VolleyLogicalCodec, as_planned, declared_stores, unjoined};
use volley_proto::limits::{self, MESSAGE_LIMIT};
use volley_proto::stack::deep;

use super::await_scheduler;
use super::loss::{PlanKind, Verdict, judge};
use super::{casts, copy, file_names, nesting, settings};
use crate::Error;
use crate::cluster::{Cluster, Order, REDIAL, RETURN, Submitted};

/// Time that a scheduler which does not take a query is waited for.
const AGAIN: Duration = Duration::from_secs(10);

/// Limit of rows held back until all have arrived, in bytes.
const HOLD_BYTES: usize = 16 << 20;

/// Query that runs on the cluster.
#[derive(Debug)]
pub(super) struct QueryExec {
    query: Arc<ClusterQuery>,
    properties: Arc<PlanProperties>,
}

#[derive(Debug)]
struct ClusterQuery {
    plan: LogicalPlan,
    kind: PlanKind,
    order: Order,
    session_id: String,
    cluster: Arc<Cluster>,
    /// Latest job of the query.
    job: Mutex<Option<String>>,
}

impl QueryExec {
    pub(super) fn new(plan: LogicalPlan, session_id: &str, cluster: Arc<Cluster>) -> Self {
        let properties = properties(Arc::clone(plan.schema().inner()));
        let query = ClusterQuery {
            kind: PlanKind::of(&plan),
            order: order_of(&plan),
            plan,
            session_id: session_id.to_owned(),
            cluster,
            job: Mutex::default(),
        };
        Self {
            query: Arc::new(query),
            properties: Arc::new(properties),
        }
    }

    /// Returns the same query with all columns nullable: the consumer of its rows must check for NULLs.
    pub(super) fn with_nulls(&self) -> Self {
        let planned = self.schema();
        let fields = planned.fields().iter().map(|field| {
            let field = field.as_ref().clone();
            field.with_nullable(true)
        });
        let schema = Schema::new(fields.collect::<Fields>());
        Self {
            query: Arc::clone(&self.query),
            properties: Arc::new(properties(Arc::new(schema))),
        }
    }

    /// Returns the query's job, once the scheduler has assigned its id. A query that runs again because its rows were
    /// lost becomes another job.
    pub(super) fn job_id(&self) -> Option<String> {
        self.query.job.lock().clone()
    }

    /// Submits the query, and leaves it to the cluster. Returns the job's id.
    ///
    /// # Errors
    /// When the query cannot be encoded, or the scheduler refuses it.
    pub(super) async fn submit(&self, config: &SessionConfig) -> crate::Result<String> {
        let job = self.query.submit(config).await?;
        let id = job.id().to_owned();
        job.leave();
        Ok(id)
    }
}

/// Returns the properties of a plan with one stream of rows.
fn properties(schema: SchemaRef) -> PlanProperties {
    PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    )
}

impl ClusterQuery {
    async fn submit(&self, config: &SessionConfig) -> crate::Result<Submitted> {
        nesting::check(&self.plan)?;
        if let Some(what) = unjoined(&self.plan)? {
            return Err(Error::NotSupported { what });
        }
        let plan = deep(|| {
            let codec = VolleyLogicalCodec::default();
            let mut encoded = Vec::new();
            LogicalPlanNode::try_from_logical_plan(&self.plan, &codec)?.try_encode(&mut encoded)?;
            Ok::<_, DataFusionError>(encoded)
        })?;
        let mut config = config.clone();
        copy::settle(&self.plan, config.options_mut())?;
        file_names::settle(&self.plan, config.options_mut())?;
        let config = &config;
        let mut job = settings::job(config);
        let stores = Stores::of(config).external()?;
        job.stores = declared_stores(&self.plan, &stores)?;
        let settings = settings::to_send(config, &job);
        let query = ExecuteQueryParams {
            query: Some(Query::LogicalPlan(plan)),
            settings,
            session_id: self.session_id.clone(),
            operation_id: Uuid::now_v7().to_string(),
        };
        let grpc = GrpcClientConfig::from(&config.ballista_config());
        let limit = MESSAGE_LIMIT.min(grpc.max_message_size);
        let bytes = limits::bytes(&query);
        if bytes > limit {
            return Err(Error::QueryTooLarge { bytes, limit });
        }
        let began = Instant::now();
        let job = loop {
            match self.cluster.submit(query.clone(), grpc.clone()).await {
                // The scheduler may be restarting, or another one may take over. If it has taken the query all the
                // same, it answers with that job; if it has lost the job before it was recorded, what the job had
                // written may be there.
                Err(Error::Request { .. })
                    if self.kind != PlanKind::Writes && began.elapsed() < RETURN =>
                {
                    await_scheduler(self.cluster.scheduler_address(), AGAIN).await?;
                    sleep(REDIAL).await;
                }
                submitted => break submitted?,
            }
        };
        *self.job.lock() = Some(job.id().to_owned());
        Ok(job)
    }

    /// Runs the query once. Dropping the future cancels the job; its rows outlive it.
    async fn run(
        self: Arc<Self>,
        config: Arc<SessionConfig>,
    ) -> crate::Result<BoxStream<'static, crate::Result<RecordBatch>>> {
        let begun = SystemTime::now();
        let mut job = self.submit(&config).await?;
        let mut trace = self.cluster.trace(job.id(), begun);
        let rows = job.success(self.kind == PlanKind::Trains).await;
        let rows = rows.inspect_err(|error| trace.fails(error))?;
        let rows = rows.fetch(self.order);
        let schema = Arc::clone(self.plan.schema().inner());
        // An empty batch would only tell the columns, which are known.
        let rows = rows.try_filter(|batch| std::future::ready(batch.num_rows() > 0));
        let rows = rows.map(move |batch| {
            trace.reads(&batch);
            Ok(as_planned(batch?, &schema)?)
        });
        Ok(rows.boxed())
    }
}

impl DisplayAs for QueryExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueryExec: scheduler={}", self.query.cluster.address())
    }
}

impl ExecutionPlan for QueryExec {
    operator!("QueryExec");

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.is_empty() {
            true => Ok(self),
            false => Err(DataFusionError::Internal("QueryExec has no inputs".into())),
        }
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let query = Arc::clone(&self.query);
        let config = Arc::new(context.session_config().clone());
        let mut is_again = false;
        let run = move || {
            let is_again = std::mem::replace(&mut is_again, true);
            let (query, config) = (Arc::clone(&query), Arc::clone(&config));
            async move {
                if is_again {
                    // The scheduler may have ended with the rows.
                    await_scheduler(query.cluster.scheduler_address(), RETURN).await?;
                }
                query.run(config).await
            }
        };
        let query = Arc::clone(&self.query);
        let rows = rerun_lost(self.query.kind, HOLD_BYTES, run);
        let rows =
            rows.map_err(move |error| DataFusionError::from(casts::explained(&query.plan, error)));
        let rows = RecordBatchStreamAdapter::new(self.schema(), rows);
        Ok(Box::pin(rows))
    }
}

/// Decides whether the order of a plan's partitions matters: if the plan sorts anywhere, or writes rows or trains.
fn order_of(plan: &LogicalPlan) -> Order {
    let sorts = plan.exists(|node| Ok(matches!(node, LogicalPlan::Sort(_))));
    match (PlanKind::of(plan), sorts) {
        (PlanKind::Reads, Ok(false)) => Order::Any,
        _ => Order::Kept,
    }
}

/// Streams the rows of a query, which runs again if allowed. Rows are held back until all have arrived, or more than
/// `hold` bytes. The stream ends with the first error.
fn rerun_lost<Rows, Run>(
    kind: PlanKind,
    hold: usize,
    run: impl FnMut() -> Run + Send,
) -> impl futures::Stream<Item = crate::Result<RecordBatch>> + Send
where
    Rows: futures::Stream<Item = crate::Result<RecordBatch>> + Send + Unpin,
    Run: Future<Output = crate::Result<Rows>> + Send,
{
    let attempts = Attempts {
        run,
        kind,
        hold,
        rows: None,
        attempt: 1,
        held: VecDeque::new(),
        held_bytes: 0,
        delivery: Delivery::Held,
        rows_read: 0,
    };
    try_unfold(attempts, |mut attempts| async move {
        let batch = attempts.next().await?;
        Ok(batch.map(|batch| (batch, attempts)))
    })
}

/// Attempts at one query; the latest one is running.
struct Attempts<R, Rows> {
    run: R,
    kind: PlanKind,
    /// Maximum size of rows held back, in bytes, including the batch that exceeds it.
    hold: usize,
    rows: Option<Rows>,
    /// Number of the attempt, from 1.
    attempt: usize,
    /// Rows that have arrived and were not returned yet.
    held: VecDeque<RecordBatch>,
    held_bytes: usize,
    delivery: Delivery,
    /// Number of returned rows.
    rows_read: usize,
}

/// State of the delivery of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// Rows are held back, because the query may have to run again.
    Held,
    /// Rows are returned.
    Streamed,
    /// All rows have arrived.
    Ended,
}

impl<R, Rows, Run> Attempts<R, Rows>
where
    R: FnMut() -> Run,
    Rows: futures::Stream<Item = crate::Result<RecordBatch>> + Unpin,
    Run: Future<Output = crate::Result<Rows>>,
{
    async fn next(&mut self) -> crate::Result<Option<RecordBatch>> {
        loop {
            if self.delivery != Delivery::Held {
                if let Some(batch) = self.held.pop_front() {
                    self.rows_read += batch.num_rows();
                    return Ok(Some(batch));
                }
                if self.delivery == Delivery::Ended {
                    return Ok(None);
                }
            }
            let rows = match &mut self.rows {
                Some(rows) => rows,
                None => match (self.run)().await {
                    Ok(rows) => self.rows.insert(rows),
                    Err(error) => {
                        self.loses(error)?;
                        continue;
                    }
                },
            };
            match rows.next().await.transpose() {
                Ok(Some(batch)) => self.take(batch),
                Ok(None) => self.delivery = Delivery::Ended,
                Err(error) => self.loses(error)?,
            }
        }
    }

    /// Prepares another attempt after rows, or the job itself, are lost.
    ///
    /// # Errors
    /// When there is no other attempt.
    fn loses(&mut self, error: Error) -> crate::Result<()> {
        let verdict = || judge(self.kind, self.attempt, self.rows_read);
        match error {
            Error::ResultLost {
                job,
                holder,
                source,
                ..
            } => match verdict() {
                Verdict::GiveUp(advice) => {
                    return Err(Error::ResultLost {
                        job,
                        holder,
                        advice,
                        source,
                    });
                }
                Verdict::RunAgain => tracing::warn!(
                    "the rows of job {job} were lost with {holder} before any was read: running it \
                     again"
                ),
            },
            Error::SchedulerRestarted { ref job, .. } => match verdict() {
                Verdict::GiveUp(_) => return Err(error),
                Verdict::RunAgain => tracing::warn!(
                    "the scheduler was restarted and does not know job {job}: running it again"
                ),
            },
            error => return Err(error),
        }
        self.attempt += 1;
        self.rows = None;
        self.held.clear();
        self.held_bytes = 0;
        Ok(())
    }

    fn take(&mut self, batch: RecordBatch) {
        if self.delivery == Delivery::Held {
            self.held_bytes += batch.get_array_memory_size();
            if self.held_bytes > self.hold {
                self.delivery = Delivery::Streamed;
            }
        }
        self.held.push_back(batch);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use arrow::array::Int64Array;

    use super::*;

    /// Item that an attempt yields: a batch of one row, or the loss of the rest.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Yield {
        Row(i64),
        Lost,
        Broken,
    }

    fn yielded(item: Yield) -> crate::Result<RecordBatch> {
        match item {
            Yield::Row(value) => {
                let column = Arc::new(Int64Array::from(vec![value])) as _;
                Ok(RecordBatch::try_from_iter([("n", column)]).unwrap())
            }
            Yield::Lost => Err(Error::ResultLost {
                job: "J1".into(),
                holder: "executor e-1".into(),
                advice: String::new(),
                source: Box::new(Error::not_supported("x")),
            }),
            Yield::Broken => Err(DataFusionError::Execution("Job J1 failed: boom".into()).into()),
        }
    }

    /// Returns the number of rows read, the final result, and the number of attempts left in the script.
    async fn read(
        kind: PlanKind,
        hold: usize,
        script: &[&[Yield]],
    ) -> (usize, crate::Result<()>, usize) {
        let mut attempts: VecDeque<_> = script.iter().map(|yields| yields.to_vec()).collect();
        let left = Arc::new(Mutex::new(attempts.len()));
        let counted = Arc::clone(&left);
        let run = move || {
            let yields = attempts.pop_front().unwrap();
            *counted.lock() = attempts.len();
            async { Ok(futures::stream::iter(yields).map(yielded)) }
        };
        let mut rows = Box::pin(rerun_lost(kind, hold, run));
        let mut count = 0;
        let ended = loop {
            match rows.try_next().await {
                Ok(Some(batch)) => count += batch.num_rows(),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let left = *left.lock();
        (count, ended, left)
    }

    #[tokio::test]
    async fn rows_lost_before_any_was_given_out_are_made_again() {
        use Yield::{Lost, Row};
        let scripts: [&[&[Yield]]; 2] = [
            &[&[Lost], &[Lost], &[Row(1), Row(2)]],
            // Rows before the loss are held back, and do not come twice.
            &[&[Row(1), Lost], &[Row(1), Row(2), Lost], &[Row(1), Row(2)]],
        ];
        for script in scripts {
            let (count, ended, left) = read(PlanKind::Reads, HOLD_BYTES, script).await;
            assert!(ended.is_ok(), "{ended:?}");
            assert_eq!((count, left), (2, 0));
        }
    }

    #[tokio::test]
    async fn no_more_rows_are_held_back_than_is_allowed() {
        use Yield::{Lost, Row};
        let bytes = yielded(Row(1)).unwrap().get_array_memory_size();
        let script: &[&[Yield]] = &[&[Row(1), Row(2), Row(3), Row(4), Lost], &[Row(1)]];
        for (hold, given_out) in [(0, 4), (2 * bytes, 4), (3 * bytes, 4)] {
            let (count, ended, left) = read(PlanKind::Reads, hold, script).await;
            assert!(matches!(ended, Err(Error::ResultLost { .. })), "{ended:?}");
            assert_eq!((count, left), (given_out, 1), "{hold} bytes");
        }
        let (count, ended, left) = read(PlanKind::Reads, 4 * bytes, script).await;
        assert!(ended.is_ok(), "{ended:?}");
        assert_eq!((count, left), (1, 0));
    }

    #[tokio::test]
    async fn it_is_said_why_rows_are_not_made_again() {
        use Yield::{Broken, Lost, Row};
        type Case<'a> = (PlanKind, &'a [&'a [Yield]], usize, &'a str);
        let again: &[Yield] = &[Row(1)];
        let cases: &[Case<'_>] = &[
            (
                PlanKind::Reads,
                &[&[Lost], &[Lost], &[Lost], again],
                0,
                "this happened 3 times",
            ),
            (
                PlanKind::Reads,
                &[&[Row(1), Lost], again],
                1,
                "1 of them were read",
            ),
            (
                PlanKind::Writes,
                &[&[Lost], again],
                0,
                "its files are written",
            ),
            (PlanKind::Trains, &[&[Lost], again], 0, "SHOW MODELS"),
            (PlanKind::Reads, &[&[Broken], again], 0, "boom"),
        ];
        for (kind, script, read_before, said) in cases {
            let (count, ended, left) = read(*kind, 0, script).await;
            let error = ended.unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
            assert_eq!((count, left), (*read_before, 1), "{error}");
        }
    }
}
