//! The scheduler as a running server: one port, Ballista's services and ours.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::middleware::{from_fn, from_fn_with_state};
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_scheduler::api::get_routes;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::cluster::memory::InMemoryJobState;
use ballista_scheduler::config::SchedulerConfig as BallistaConfig;
use ballista_scheduler::scheduler_process::create_scheduler;
use ballista_scheduler::scheduler_server::SessionBuilder;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use volley_proto::connections::{Listener, server};
use volley_proto::limits::{LAUNCH_LIMIT, MESSAGE_LIMIT};
use volley_proto::object_stores::Stores;
use volley_proto::plan::{VolleyLogicalCodec, VolleyPhysicalCodec};
use volley_proto::settings::session_config;
use volley_proto::tls::{ClientCertificate, url};

use crate::access::{self, Access, Submissions, admit};
use crate::attendance::attendance_service;
use crate::ballista::{
    BallistaScheduler, Graphs, JobIds, Losses, VolleyClusterState, VolleyJobState, session_builder,
};
use crate::dial::ToExecutors;
use crate::heard::Heard;
use crate::jobs::{Book, Door, Keeper, Patience, jobs_service};
use crate::probes::Prober;
use crate::requests::check_message;
use crate::slots::Slots;
use crate::tables::{Tables, cluster_service};
use crate::training::{Runs, services};
use crate::web::{Hosts, check_host};
use crate::{Error, Result, SchedulerConfig, web};

/// A scheduler that listens; dropping it stops it.
pub struct Scheduler {
    address: String,
    serving: JoinSet<Result<()>>,
    stop: CancellationToken,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Starts a scheduler; it listens when this returns.
    ///
    /// # Errors
    /// When the address cannot be listened on, or Ballista's scheduler does not start.
    pub async fn start(config: SchedulerConfig) -> Result<Self> {
        let bind = |source| Error::Bind {
            address: config.listen.to_string(),
            source,
        };
        let listener = config.listen.listen().map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let listener = TcpListener::from_std(listener).map_err(bind)?;
        let bound = listener.local_addr().map_err(bind)?;
        let access = Arc::new(Access::open(&config, bound)?);

        let (book, commands) = Book::new(Runs::default());
        let losses = Arc::new(Losses::new(book.clone()));
        let events = Arc::clone(&losses);
        let slots = Slots::default();
        let cluster = Arc::new(VolleyClusterState::new(events, slots.clone()));
        let stores = Stores::default();
        let sessions = session_builder(Arc::clone(&cluster), &stores);
        let sessions = sessions.map_err(|error| Error::Start(error.into()))?;
        let submissions = Submissions::new(&sessions, access.paths().clone());
        let submissions = submissions.map_err(|error| Error::Start(error.into()))?;
        let jobs = (book.clone(), slots.clone());
        let begun = start_ballista(
            &config,
            (bound, &access),
            (Arc::clone(&cluster), stores.clone()),
            sessions,
            jobs,
        );
        let (ballista, jobs) = begun.await?;
        losses.observe(&ballista.state);

        let address = format!("{}:{}", config.listen.advertise_host(), bound.port());
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        let services = Services {
            hosts: Arc::new(Hosts::of(&config.listen)),
            access,
            submissions,
            ballista: ballista.clone(),
            slots,
            stores,
            prober: Prober::new(Arc::clone(&cluster), address.clone(), config.tls.clone()),
            tables: Tables {
                graphs: Graphs::new(ballista.clone(), jobs),
                cluster: Arc::clone(&cluster),
                book: book.clone(),
                heard: Heard::default(),
            },
        };
        let tls = config.tls.clone();
        let tls = tls.map(|tls| (tls, ClientCertificate::Optional));
        let listener = Listener::new(listener, tls);
        serving.spawn(services.serve(listener, bound, stop.clone()));
        let keeper = Keeper {
            ballista,
            book,
            cluster,
            client_timeout: config.client_timeout,
            patience: Patience {
                unread: config.rows_timeout,
                idle: config.reader_timeout,
            },
        };
        serving.spawn(async move {
            keeper.run(commands).await;
            Ok(())
        });
        tracing::info!(%bound, address, "scheduler listens");
        Ok(Self {
            address,
            serving,
            stop,
        })
    }

    /// `HOST:PORT` for executors and clients to dial.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Serves until told to stop or until serving fails.
    ///
    /// # Errors
    /// Why serving ended, if nobody asked for it.
    pub async fn run_until(mut self, told: impl Future<Output = ()>) -> Result<()> {
        let ended = tokio::select! {
            () = told => Ok(()),
            Some(Ok(ended)) = self.serving.join_next() => ended,
        };
        self.stop.cancel();
        ended
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn start_ballista(
    config: &SchedulerConfig,
    (address, access): (SocketAddr, &Access),
    (cluster, stores): (Arc<VolleyClusterState>, Stores),
    sessions: SessionBuilder,
    (book, slots): (Book, Slots),
) -> Result<(BallistaScheduler, Arc<VolleyJobState>)> {
    let timeout = config.executor_timeout.as_secs().max(1);
    let to_executors = ToExecutors {
        tls: config.tls.clone(),
        secret: access.secret().clone(),
        patience: config.executor_timeout,
    };
    let scheduler = BallistaConfig {
        external_host: config.listen.advertise_host().to_owned(),
        bind_host: address.ip().to_string(),
        bind_port: address.port(),
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: 1,
        // The jobs' keeper ends what waits on an empty cluster.
        no_executors_grace_period_seconds: u64::from(u32::MAX),
        // It also removes rows that nobody reads; Ballista would after a time, whoever reads them.
        finished_job_data_clean_up_interval_seconds: 0,
        // Graphs go with the jobs that they are of: see `VolleyJobState`.
        finished_job_state_clean_up_interval_seconds: 0,
        grpc_client_max_message_size: LAUNCH_LIMIT,
        override_create_grpc_client_endpoint: Some(Arc::new(move |endpoint| {
            to_executors.endpoint(endpoint)
        })),
        // The root is ours; Ballista's sends the browser to a page on the internet.
        web_tui_route: "/ballista".to_owned(),
        // With none given, it has pages of two other sites ask.
        cors_allowed_origins: url(
            &format!("{}:{}", config.listen.advertise_host(), address.port()),
            config.tls.is_some(),
        ),
        use_tls: config.tls.is_some(),
        // Of tasks, only ranks that meet again end in a way that Ballista retries.
        task_max_failures: usize::MAX,
        job_id_generator: Some(Arc::new(JobIds::default())),
        override_logical_codec: Some(Arc::new(VolleyLogicalCodec::default())),
        override_physical_codec: Some(Arc::new(VolleyPhysicalCodec::default())),
        ..Default::default()
    };
    let stores = Arc::new(stores);
    let jobs = InMemoryJobState::new(
        scheduler.scheduler_id.clone(),
        sessions,
        Arc::new(move || session_config().with_extension(Arc::clone(&stores))),
    );
    let jobs = Arc::new(VolleyJobState::new(jobs, book, slots));
    let cluster = BallistaCluster::new(cluster, Arc::clone(&jobs) as _);
    let ballista = create_scheduler(cluster, Arc::new(scheduler)).await;
    Ok((ballista.map_err(Error::Start)?, jobs))
}

/// What is behind the port.
struct Services {
    hosts: Arc<Hosts>,
    access: Arc<Access>,
    submissions: Submissions,
    ballista: BallistaScheduler,
    slots: Slots,
    stores: Stores,
    prober: Prober,
    tables: Tables,
}

impl Services {
    async fn serve(
        self,
        listener: Listener,
        address: SocketAddr,
        stop: CancellationToken,
    ) -> Result<()> {
        let Self {
            hosts,
            access,
            submissions,
            ballista,
            slots,
            stores,
            prober,
            tables,
        } = self;
        let book = tables.book.clone();
        let guard = (submissions, access.secret().clone());
        let door = Door::new(ballista.clone(), book.clone(), slots.clone(), stores, guard);
        let door = SchedulerGrpcServer::new(door)
            .max_encoding_message_size(MESSAGE_LIMIT)
            .max_decoding_message_size(MESSAGE_LIMIT);
        let (rendezvous, training) = services(book.clone());
        let told = (access.secret(), prober.probes());
        let attendance = attendance_service(ballista.clone(), &tables, slots, told);
        let mut routes = RoutesBuilder::default();
        routes.add_service(door);
        routes
            .add_service(rendezvous)
            .add_service(training)
            .add_service(attendance)
            .add_service(jobs_service(book))
            .add_service(cluster_service(tables.clone(), prober));
        let router = get_routes(Arc::new(ballista))
            .merge(web::routes(tables))
            .merge(routes.routes().into_axum_router())
            .merge(access::routes(Arc::clone(&access)))
            .layer(from_fn(check_message))
            .layer(from_fn_with_state(access, admit))
            .layer(from_fn_with_state(hosts, check_host));
        // HTTP/1, for the web page, has a deadline for a request's head.
        server()
            .accept_http1(true)
            .add_routes(Routes::from(router))
            .serve_with_incoming_shutdown(listener.into_stream(), stop.cancelled_owned())
            .await
            .map_err(|source| Error::Serve {
                address,
                source: std::io::Error::other(source),
            })
    }
}
