//! Ballista's executor, assembled from its parts.
//!
//! Ballista's own entry point needs its ports in advance, takes over the process's signals, which an executor inside
//! a client must not do, and serves any client that reaches its ports. The parts are the same: a task server, a
//! runner that reports task statuses, heartbeats, and a Flight service over the work folder. Each server listens on
//! its own port, with or without TLS, and admits only clients that prove they belong to the cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ballista_core::ConfigProducer;
use ballista_core::error::BallistaError;
use ballista_core::extension::SessionConfigExt;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{ExecutorStoppedParams, RegisterExecutorParams};
use ballista_executor::execution_engine::ExecutionEngine;
use ballista_executor::executor::Executor as BallistaExecutor;
use ballista_executor::executor_process::{ExecutorProcessConfig, structure_executor_metadata};
use ballista_executor::metrics::LoggingMetricsCollector;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionConfig;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use uuid::Uuid;
use volley_engine::object_stores::{Stores, Traffic};
use volley_engine::runtime::Runtimes;
use volley_engine::settings::JobSettings;
use volley_engine::{VolleyLogicalCodec, VolleyPhysicalCodec};
use volley_proto::access::{Authorized, Bearer, ClusterSecret, Holder};
use volley_proto::address::ListenAddress;
use volley_proto::connections::Listener;
use volley_proto::limits::{LAUNCH_LIMIT, MESSAGE_LIMIT};
use volley_proto::tls::{self, ClientCertificate};
use volley_proto::traces::Traces;
use volley_proto::{PreparedId, TrainId};

use super::connections::Connections;
use super::engine::VolleyEngine;
use super::handover::Rows;
use super::proof::Proven;
use super::runner::{Runner, Scheduler, heartbeats, report};
use super::runtime::TaskRuntimes;
use super::task_server::{self, TaskServer};
use super::tasks::Tasks;
use super::{flight, shuffle_dir, watchdog};
use crate::attendance::{self, Asked, Attendance, TaskKey};
use crate::counts::Counts;
use crate::probe;
use crate::{Error, ExecutorConfig, Result};

/// Minimum interval between pings of the connection to the scheduler.
const LEAST_TRIED: Duration = Duration::from_millis(500);
/// Tasks, and reports of tasks, that may wait per slot.
const WAITING: usize = 50;
/// Maximum number of ended tasks in one request to the scheduler.
const ENDED_AT_ONCE: usize = 256;
/// Maximum number of probes that wait to begin.
const PROBES: usize = 32;

/// Running Ballista executor; dropping it stops it.
pub(crate) struct Process {
    config: ExecutorConfig,
    attendance: Attendance,
    tasks: Tasks,
    /// Probes that the scheduler asks for.
    probes: mpsc::Sender<Asked>,
    /// Folder of the shuffle files; it goes with the registration, after which no task fetches them.
    shuffle_dir: TempDir,
    scheduler: Scheduler,
    services: JoinSet<()>,
    /// Heartbeat task; it ends when the scheduler does not accept heartbeats.
    heart: JoinSet<()>,
    stop_requests: mpsc::Receiver<bool>,
    stop: CancellationToken,
}

/// Connects to the scheduler, retrying until the deadline. The channel carries the executor's credentials.
pub(crate) async fn connect(config: &ExecutorConfig) -> Result<Authorized> {
    let address = || Error::SchedulerAddress {
        address: config.scheduler.to_string(),
    };
    let endpoint = Endpoint::from_shared(format!("http://{}", config.scheduler.current()))
        .map_err(|_| address())?
        .connect_timeout(Duration::from_secs(2))
        .tcp_nodelay(true)
        // A scheduler that is cut off closes nothing, and TCP resends to it at ever longer intervals: once it is
        // back, the connection would stay unusable for as long again as the scheduler was gone.
        .http2_keep_alive_interval((config.scheduler_timeout / 4).max(LEAST_TRIED))
        .keep_alive_timeout(config.scheduler_timeout)
        .keep_alive_while_idle(true);
    let deadline = Instant::now() + config.connect_timeout;
    loop {
        let tried = config.scheduler.current().to_owned();
        match tls::connect(endpoint.clone(), &config.scheduler, config.tls.as_ref()).await {
            Ok(channel) => {
                let bearer = Bearer::new(
                    &config.join_token,
                    config.scheduler.clone(),
                    Holder::Executor,
                );
                let bearer = bearer.map_err(Error::JoinToken)?;
                return Ok(bearer.over(channel));
            }
            Err(source) if Instant::now() >= deadline => {
                let (address, waited) = (config.scheduler.to_string(), config.connect_timeout);
                if let Some(reason) = tls::disagreement(&source) {
                    return Err(Error::Tls { address, reason });
                }
                return Err(Error::Connect {
                    address,
                    waited,
                    source,
                });
            }
            Err(_) => {
                config.scheduler.distrust(&tried);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Starts the services and registers with the scheduler.
pub(crate) async fn start(
    config: &ExecutorConfig,
    channel: Authorized,
    runtimes: Runtimes,
    (counts, traces): (Arc<Counts>, Option<Traces>),
    (process, number): (Uuid, u64),
) -> Result<Process> {
    let cannot_listen = |source| Error::Bind {
        address: config.listen.to_string(),
        source,
    };
    let (flight, flight_port) = listen(&config.listen).map_err(cannot_listen)?;
    let (tasks_listener, tasks_port) = listen(&config.listen).map_err(cannot_listen)?;
    let options = Arc::new(process_config(config, flight_port, tasks_port));
    let cannot_use = |source| Error::WorkDir {
        path: config.work_dir.clone(),
        source,
    };
    let shuffle_dir = shuffle_dir::create(&config.work_dir).map_err(cannot_use)?;
    let work_dir = shuffle_dir.path();
    let stop = CancellationToken::new();
    let (tasks, ended) = Tasks::new(stop.clone());
    let incarnation = format!("{process}/{number}");
    let attendance = Attendance::begin(config, channel.clone(), &incarnation).await?;
    let secret = attendance.secret();
    let connections = Arc::new(Connections::new(config.tls.clone(), secret.clone()));
    let engine = Arc::new(VolleyEngine::new(
        &config.id,
        Arc::clone(&connections) as _,
        tasks.clone(),
        config.allowed_paths.clone(),
    ));
    let of_ballista = Arc::clone(&engine) as Arc<dyn ExecutionEngine>;
    let executor = ballista_executor(
        (config, &options, work_dir),
        (runtimes, &counts.traffic),
        of_ballista,
    );
    let executor = Arc::new(executor.map_err(|source| cannot_use(std::io::Error::other(source)))?);

    let mut services = JoinSet::new();
    let over =
        |listener, wanted| Listener::new(listener, config.tls.clone().map(|tls| (tls, wanted)));
    let proven = |port| proven(config, secret, port);
    let rows = Rows {
        work_dir: work_dir.to_owned(),
        connections,
        proven: proven(flight_port),
        counts: Arc::clone(&counts),
    };
    let listener = over(flight, ClientCertificate::Optional);
    let serving = flight::serve(listener, rows, stop.clone());
    services.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the Flight service ended");
        }
    });
    services.spawn(say_ended(config.clone(), channel.clone(), ended));
    services.spawn(watchdog::watch(tasks.clone(), Arc::clone(&counts)));
    let (probes, asked) = mpsc::channel(PROBES);
    services.spawn(probe::answer(config.clone(), channel.clone(), asked));

    let waiting = WAITING * config.vcores.max(1);
    let (launched, queued) = mpsc::channel(waiting);
    let (reports, reported) = mpsc::channel(waiting);
    let (request_stop, stop_requests) = mpsc::channel(1);
    let server = TaskServer {
        executor: Arc::clone(&executor),
        codec: BallistaCodec::new(
            Arc::new(VolleyLogicalCodec::default()),
            Arc::new(VolleyPhysicalCodec::default()),
        ),
        tasks: launched,
        stop: request_stop,
    };
    // Only the scheduler launches tasks: its certificate must be for the host name that the executor dials.
    let of_scheduler = ClientCertificate::MemberAt(config.scheduler.hosts());
    let listener = over(tasks_listener, of_scheduler);
    let serving = task_server::serve(server, listener, proven(tasks_port), stop.clone());
    services.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the task server ended");
        }
    });
    let runner = Runner {
        executor: Arc::clone(&executor),
        engine,
        reports,
        counts,
        traces,
    };
    services.spawn(runner.run(queued));

    // Requests may be as large as the scheduler accepts.
    let mut scheduler = SchedulerGrpcClient::new(channel.clone())
        .max_encoding_message_size(MESSAGE_LIMIT)
        .max_decoding_message_size(MESSAGE_LIMIT);
    register(config, &mut scheduler, &executor).await?;
    tracing::info!("listens for tasks on port {tasks_port} and for rows on port {flight_port}");
    let reports = report(channel, config.id.clone(), tasks.clone(), reported);
    services.spawn(reports);
    let mut heart = JoinSet::new();
    heart.spawn(heartbeats(scheduler.clone(), executor, config.heartbeat));
    Ok(Process {
        config: config.clone(),
        attendance,
        tasks,
        probes,
        shuffle_dir,
        scheduler,
        services,
        heart,
        stop_requests,
        stop,
    })
}

/// Registers with the scheduler, which then checks that it reaches the task server.
async fn register(
    config: &ExecutorConfig,
    scheduler: &mut Scheduler,
    executor: &BallistaExecutor,
) -> Result<()> {
    let refused = |source| Error::Register {
        address: config.scheduler.to_string(),
        id: config.id.clone(),
        source,
    };
    let params = RegisterExecutorParams {
        metadata: Some(executor.metadata.clone()),
    };
    let answer = scheduler.register_executor(params).await;
    let answer = answer.map_err(|status| refused(status.into()))?;
    match answer.into_inner().success {
        true => {
            tracing::info!(executor = %config.id, "registered with the scheduler");
            Ok(())
        }
        false => Err(refused(BallistaError::General(
            "it gives no reason".to_owned(),
        ))),
    }
}

impl Process {
    /// Returns the tasks of the process.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Returns the folder of its shuffle files.
    pub(crate) fn shuffle_dir(&self) -> &Path {
        self.shuffle_dir.path()
    }

    /// Runs a service for as long as the process is registered; it does not end by itself.
    pub(crate) fn serve(&mut self, service: impl Future<Output = ()> + Send + 'static) {
        self.services.spawn(service);
    }

    /// Waits until the executor and its scheduler have lost each other, and returns the reason. Meanwhile passes on
    /// finished training runs, dropped prepared rows, and that the executor is to leave.
    pub(crate) async fn until_over(
        &mut self,
        finished: impl Fn(TrainId),
        dropped: impl Fn(PreparedId),
        leave: &CancellationToken,
    ) -> String {
        tokio::select! {
            reason = self.attendance.until_over(
                (finished, dropped),
                |tasks| self.tasks.stop(tasks),
                // A full queue drops the probe: the scheduler's wait for it is limited.
                |probe| drop(self.probes.try_send(probe)),
                leave,
            ) => reason,
            _ = self.stop_requests.recv() => "the scheduler told it to stop".to_owned(),
            _ = self.heart.join_next() => "the scheduler does not accept heartbeats".to_owned(),
            // The status task gives up on a scheduler that does not accept statuses.
            _ = self.services.join_next() => "one of its services ended".to_owned(),
        }
    }

    /// Ends heartbeats, which would register the executor again, and tells the scheduler that it leaves.
    pub(crate) async fn take_leave(mut self) {
        self.heart.shutdown().await;
        let goodbye = self.scheduler.executor_stopped(ExecutorStoppedParams {
            executor_id: self.config.id.clone(),
            reason: "stopped".to_owned(),
        });
        if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), goodbye).await {
            tracing::warn!(%error, "the scheduler did not accept the executor's departure");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Removing shuffle files takes a while, in which the executor no longer serves anything.
        self.heart.abort_all();
        self.stop.cancel();
    }
}

/// Reports ended tasks to the scheduler, for as long as this is polled.
async fn say_ended(
    config: ExecutorConfig,
    channel: Authorized,
    mut ended: mpsc::UnboundedReceiver<TaskKey>,
) {
    let mut tasks = Vec::new();
    while ended.recv_many(&mut tasks, ENDED_AT_ONCE).await > 0 {
        let told = attendance::end(&config, channel.clone(), std::mem::take(&mut tasks));
        if let Err(error) = told.await {
            // The scheduler asks again for tasks that it waits for.
            tracing::debug!(%error, "cannot report ended tasks to the scheduler");
        }
    }
    // The engine holds the sender for as long as the process exists.
    std::future::pending().await
}

/// Returns the admission policy of one port.
fn proven(config: &ExecutorConfig, secret: &ClusterSecret, port: u16) -> Proven {
    let address = format!("{}:{port}", config.listen.advertise_host());
    Proven::new(secret.clone(), address)
}

/// Listens on one of the executor's ports.
fn listen(address: &ListenAddress) -> std::io::Result<(TcpListener, u16)> {
    let listener = address.listen()?;
    let port = listener.local_addr()?.port();
    listener.set_nonblocking(true)?;
    Ok((TcpListener::from_std(listener)?, port))
}

fn process_config(config: &ExecutorConfig, port: u16, grpc_port: u16) -> ExecutorProcessConfig {
    ExecutorProcessConfig {
        executor_id: config.id.clone(),
        bind_host: config.listen.bind_host(),
        external_host: Some(config.listen.advertise_host().to_owned()),
        port,
        grpc_port,
        vcores: config.vcores,
        executor_heartbeat_interval_seconds: config.heartbeat.as_secs().max(1),
        grpc_max_decoding_message_size: LAUNCH_LIMIT,
        ..Default::default()
    }
}

/// Returns the functions that plans may name: those of a session, including array functions, which Ballista's
/// default leaves out.
fn functions() -> BallistaFunctionRegistry {
    let session = SessionStateBuilder::new_with_default_features().build();
    BallistaFunctionRegistry::from(&session)
}

fn ballista_executor(
    (config, options, work_dir): (&ExecutorConfig, &Arc<ExecutorProcessConfig>, &Path),
    (runtimes, traffic): (Runtimes, &Arc<Traffic>),
    engine: Arc<dyn ExecutionEngine>,
) -> datafusion::error::Result<BallistaExecutor> {
    let vcores = u32::try_from(config.vcores).unwrap_or(u32::MAX);
    let memory = usize::try_from(config.memory.as_u64()).unwrap_or(usize::MAX);
    let stores = Stores::counted_within(config.allowed_paths.clone(), Arc::clone(traffic));
    let stores = Arc::new(stores);
    let of_tasks = TaskRuntimes::new(work_dir, memory / config.vcores.max(1), &stores)?;
    let shared = of_tasks.shared();
    let runtimes = Arc::new(runtimes);
    let sessions: ConfigProducer = Arc::new(move || {
        SessionConfig::new_with_ballista()
            .with_option_extension(JobSettings::default())
            .with_extension(Arc::clone(&runtimes))
            .with_extension(Arc::clone(&stores))
    });
    let executor = BallistaExecutor::new(
        structure_executor_metadata(options, vcores),
        &work_dir.display().to_string(),
        // Plans are decoded with this runtime.
        Arc::new(move |_| Ok(Arc::clone(&shared))),
        sessions,
        Arc::new(functions()),
        Arc::new(LoggingMetricsCollector::default()),
        config.vcores,
        engine,
    );
    Ok(executor.with_session_runtime_cache(Some(Arc::new(of_tasks))))
}
