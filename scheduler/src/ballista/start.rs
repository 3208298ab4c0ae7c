//! Ballista's scheduler, started with Volley's parts in it.

use std::net::SocketAddr;
use std::sync::Arc;

use ballista_core::config::TaskSchedulingPolicy;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::cluster::memory::InMemoryJobState;
use ballista_scheduler::config::SchedulerConfig as BallistaConfig;
use ballista_scheduler::scheduler_process::create_scheduler;
use volley_engine::object_stores::Stores;
use volley_engine::settings::session_config;
use volley_engine::{VolleyLogicalCodec, VolleyPhysicalCodec};
use volley_proto::failure::chain;
use volley_proto::limits::LAUNCH_LIMIT;
use volley_proto::tls::url;
use volley_proto::version::WIRE;

use super::cluster_state::VolleyClusterState;
use super::copies::Copies;
use super::dial::ToExecutors;
use super::graphs::Graphs;
use super::handover::{Departures, Moved};
use super::job_ids::JobIds;
use super::job_state::VolleyJobState;
use super::kept::Kept;
use super::optimized::PlanKey;
use super::permissions::Permissions;
use super::planner::session_builder;
use super::reading::Reading;
use super::small_results::SmallResults;
use super::submissions::Submissions;
use super::{BallistaScheduler, Driver, JobGateway};
use crate::access::Access;
use crate::control::Event;
use crate::handle::Control;
use crate::record::{self, Record};
use crate::tables::StageRows;
use crate::{Error, Result, SchedulerConfig};

/// Ballista's scheduler and the parts that belong to it.
pub(crate) struct Ballista {
    pub(crate) scheduler: BallistaScheduler,
    /// Service for clients and executors.
    pub(crate) gateway: JobGateway,
    /// Driver that carries out the controller's commands.
    pub(crate) driver: Driver,
    /// Source of the stages of Ballista's graphs.
    pub(crate) stages: StageRows,
}

/// Starts Ballista's scheduler, reachable at `address`, with the submissions that an earlier scheduler kept.
///
/// # Errors
/// When it does not start.
pub(crate) async fn start(
    config: &SchedulerConfig,
    (address, access): (SocketAddr, &Access),
    control: &Control,
    (record, recorded): (Record, Vec<record::Kept>),
) -> Result<Ballista> {
    let timeout = config.executor_timeout.as_secs().max(1);
    let to_executors = Arc::new(ToExecutors {
        tls: config.tls.clone(),
        secret: access.secret().clone(),
        patience: config.executor_timeout,
    });
    let dialled = Arc::clone(&to_executors);
    let scheduler = BallistaConfig {
        external_host: config.listen.advertise_host().to_owned(),
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: 1,
        // The controller ends jobs that wait on an empty cluster.
        no_executors_grace_period_seconds: u64::from(u32::MAX),
        // The controller also removes rows without readers; Ballista would remove them after a time, readers or not.
        finished_job_data_clean_up_interval_seconds: 0,
        // Graphs are evicted with their jobs: see `VolleyJobState`.
        finished_job_state_clean_up_interval_seconds: 0,
        grpc_client_max_message_size: LAUNCH_LIMIT,
        override_create_grpc_client_endpoint: Some(Arc::new(move |endpoint| {
            dialled.endpoint(endpoint)
        })),
        // The root is Volley's; Ballista's sends the browser to a page on the internet.
        web_tui_route: "/ballista".to_owned(),
        // If none is given, Ballista allows pages of two other sites.
        cors_allowed_origins: url(
            &format!("{}:{}", config.listen.advertise_host(), address.port()),
            config.tls.is_some(),
        ),
        use_tls: config.tls.is_some(),
        // Ballista retries only tasks whose ranks regroup; these have no limit.
        task_max_failures: usize::MAX,
        job_id_generator: Some(Arc::new(JobIds::default())),
        override_logical_codec: Some(Arc::new(VolleyLogicalCodec::default())),
        override_physical_codec: Some(Arc::new(VolleyPhysicalCodec::default())),
        ..Default::default()
    };
    let stores = Stores::within(access.paths().clone());
    let sessions = session_builder(control.clone(), &stores);
    let sessions = sessions.map_err(|error| Error::Start(error.into()))?;
    let permissions = Permissions::new(&sessions, access.paths().clone());
    let permissions = permissions.map_err(|error| Error::Start(error.into()))?;
    let of_sessions = Arc::new(stores.clone());
    let settings = move || {
        let config = session_config().with_option_extension(PlanKey::default());
        config.with_extension(Arc::clone(&of_sessions))
    };
    let id = scheduler.scheduler_id.clone();
    let jobs = InMemoryJobState::new(id, sessions, Arc::new(settings));
    let small_results = SmallResults::default();
    let (kept, moved) = (Kept::default(), Moved::default());
    let of_jobs = (small_results.clone(), kept.clone(), moved.clone());
    let jobs = Arc::new(VolleyJobState::new(jobs, control.clone(), of_jobs));
    let cluster = Arc::new(VolleyClusterState::new(
        control.clone(),
        kept.clone(),
        moved.clone(),
    ));
    let cluster = BallistaCluster::new(cluster, Arc::clone(&jobs) as _);
    let scheduler = create_scheduler(cluster, Arc::new(scheduler)).await;
    let scheduler: BallistaScheduler = scheduler.map_err(Error::Start)?;
    let submissions = Submissions::default();
    for kept in recorded {
        let job = kept.job.clone();
        let restored = match kept.wire {
            WIRE => submissions
                .restore(&stores, kept)
                .map_err(|error| chain(&error)),
            other => Err(format!(
                "it was submitted to a scheduler of wire {other}, and this one is of wire {WIRE}: submit it again"
            )),
        };
        let allowed = restored.and_then(|submission| permissions.check_restored(&submission));
        if let Err(error) = allowed {
            control.on(Event::ResubmissionFailed { job, error });
        }
    }
    let reading = Reading::default();
    let departures = Departures {
        ballista: scheduler.clone(),
        control: control.clone(),
        moved,
        to_executors,
        needed: Arc::default(),
    };
    Ok(Ballista {
        gateway: JobGateway {
            ballista: scheduler.clone(),
            control: control.clone(),
            submissions: submissions.clone(),
            small_results: small_results.clone(),
            departures: departures.clone(),
            kept: kept.clone(),
            reading: reading.clone(),
            permissions,
            stores: stores.clone(),
            secret: access.secret().clone(),
            record: record.clone(),
        },
        driver: Driver {
            ballista: scheduler.clone(),
            control: control.clone(),
            submissions,
            small_results,
            kept,
            departures,
            copies: Copies::new(stores),
            record,
        },
        stages: Graphs::new(scheduler.clone(), jobs, reading).into_rows(),
        scheduler,
    })
}
