//! The scheduler as a running server: one port with Ballista's services and Volley's.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::middleware::{from_fn, from_fn_with_state};
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpcServer;
use ballista_scheduler::api::get_routes;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use url::Url;
use volley_proto::connections::{Listener, server};
use volley_proto::disk::make_private;
use volley_proto::limits::MESSAGE_LIMIT;
use volley_proto::store::Log;
use volley_proto::tls::{ClientCertificate, Tls};
use volley_proto::traces::{Exporter, Service};
use volley_proto::wire::queries_server::QueriesServer;
use volley_proto::wire::tasks_server::TasksServer;

use crate::access::{self, Access, OnRefusal, admit};
use crate::ballista::{self, Ballista, BallistaScheduler, JobGateway, QueryService};
use crate::control::{Event, Policy, Queues, RetentionPolicy};
use crate::grpc::{
    Prober, attendance_service, check_message, cluster_service, jobs_service, rendezvous_service,
    training_service,
};
use crate::handle::Control;
use crate::record::{LEASE, Leader, Led, lead};
use crate::tables::Tables;
use crate::web::{Hosts, check_host};
use crate::{Error, Result, SchedulerConfig, web};

/// A scheduler that listens; dropping it stops it.
pub struct Scheduler {
    address: String,
    serving: JoinSet<Result<()>>,
    control: Control,
    /// Writer of the record of jobs.
    writer: Option<JoinHandle<Result<()>>>,
    /// Exporter of traces of jobs, if there is one.
    exporter: Option<Exporter>,
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
    /// When the scheduler cannot or may not listen on the address, when tokens, keys or queues are invalid, when traces
    /// cannot be sent as configured, or when Ballista's scheduler does not start.
    pub async fn start(config: SchedulerConfig) -> Result<Self> {
        let bind = |source| Error::Bind {
            address: config.listen.to_string(),
            source,
        };
        let listener = config.listen.listen().map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let bound = listener.local_addr().map_err(bind)?;
        let address = format!("{}:{}", config.listen.advertise_host(), bound.port());
        let tls = config.tls.clone();
        let tls = tls.map(|tls| (tls, ClientCertificate::Optional));
        let led = match &config.record {
            Some(url) => Some(take_over(url, &address, (&listener, tls.clone())).await?),
            None => None,
        };
        let access = Arc::new(Access::open(&config, bound).await?);
        let record = led
            .as_ref()
            .map(|led| led.record.clone())
            .unwrap_or_default();

        let policy = Policy {
            executor_timeout: config.executor_timeout,
            client_timeout: config.client_timeout,
            retention: RetentionPolicy {
                unread: config.rows_timeout,
                idle: config.reader_timeout,
            },
            queues: Queues::new(&config.queues).map_err(Error::Queues)?,
            reservation_limit: config.reservation_limit,
        };
        let exporter = config.otlp.as_ref().map(|to| {
            let instance = address.clone();
            let name = "volley-scheduler";
            Exporter::start(to, &Service { name, instance })
        });
        let traces = exporter.as_ref().map(|exporter| exporter.traces().clone());
        let (control, commands) = Control::new(policy, record.clone(), traces);
        let (writer, kept) = match led {
            Some(Led {
                writer,
                jobs,
                executors,
                usage,
                kept,
                ..
            }) => {
                if let Some(usage) = usage {
                    control.ask(|control, _| control.restore_usage(usage));
                }
                control.ask(|control, now| control.restore(jobs, executors, now));
                (Some(writer), kept)
            }
            None => (None, Vec::new()),
        };
        let Ballista {
            scheduler,
            gateway,
            driver,
            stages,
        } = ballista::start(&config, (bound, &access), &control, (record, kept)).await?;

        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        let services = Services {
            hosts: Arc::new(Hosts::of(&config.listen)),
            access,
            prober: Prober::new(control.clone(), address.clone(), config.tls.clone()),
            tables: Tables::new(control.clone(), stages),
            control: control.clone(),
            ballista: scheduler,
            gateway,
        };
        let listener = TcpListener::from_std(listener).map_err(bind)?;
        let listener = Listener::new(listener, tls);
        serving.spawn(services.serve(listener, bound, stop.clone()));
        serving.spawn(async move {
            driver.run(commands).await;
            Ok(())
        });
        let stops = stop.clone();
        let url = config.record.map(String::from).unwrap_or_default();
        let writer = writer.map(|writer| {
            tokio::spawn(async move {
                match writer.run(stops.cancelled_owned()).await {
                    true => Ok(()),
                    false => Err(Error::Superseded { url }),
                }
            })
        });
        tracing::info!(%bound, address, "scheduler listens");
        Ok(Self {
            address,
            serving,
            control,
            writer,
            exporter,
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
    /// When serving ends before `told` does, with the cause.
    pub async fn run_until(mut self, told: impl Future<Output = ()>) -> Result<()> {
        let exporter = self.exporter.take();
        let ended = self.run(told).await;
        if let Some(exporter) = exporter {
            exporter.finish().await;
        }
        ended
    }

    async fn run(mut self, told: impl Future<Output = ()>) -> Result<()> {
        let mut writer = self.writer.take();
        let superseded = async {
            match &mut writer {
                Some(writer) => match writer.await {
                    Ok(ended) => ended,
                    Err(panic) => std::panic::resume_unwind(panic.into_panic()),
                },
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = told => Ok(()),
            Some(Ok(ended)) = self.serving.join_next() => ended,
            ended = superseded => return ended,
        };
        self.control.ask(|control, now| control.record_usage(now));
        self.stop.cancel();
        if let Some(writer) = writer {
            // It writes what is left, within a deadline.
            writer.await.ok();
        }
        ended
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Takes over the record of jobs. While another scheduler leads, requests are answered that this one stands by.
///
/// # Errors
/// When the record cannot be used.
async fn take_over(
    url: &Url,
    address: &str,
    (listener, tls): (&std::net::TcpListener, Option<(Tls, ClientCertificate)>),
) -> Result<Led> {
    let bind = |source| Error::Bind {
        address: address.to_owned(),
        source,
    };
    let unusable = |source: volley_proto::Error| Error::Record {
        url: url.to_string(),
        source: source.into(),
    };
    let log = Log::open(url).map_err(unusable)?;
    if let Some(folder) = log.folder() {
        make_private(&folder).map_err(unusable)?;
    }
    let leader = Arc::new(Mutex::new(None));
    let (known, news) = (Arc::clone(&leader), Notify::new());
    let leads = lead((log, LEASE), Leader::here(address), |leader| {
        tracing::info!(
            address = leader.address,
            "another scheduler leads: this one stands by"
        );
        *known.lock() = Some(leader.address.clone());
        news.notify_one();
    });
    tokio::pin!(leads);
    tokio::select! {
        led = &mut leads => return led.map_err(unusable),
        () = news.notified() => {}
    }
    let accepted = listener.try_clone().and_then(TcpListener::from_std);
    let listener = Listener::new(accepted.map_err(bind)?, tls);
    let leads_now = move || leader.lock().clone().unwrap_or_default();
    tokio::select! {
        led = leads => led.map_err(unusable),
        // It answers for as long as the other leads.
        never = web::stand_by(listener, leads_now) => match never {},
    }
}

/// Services behind the port.
struct Services {
    hosts: Arc<Hosts>,
    access: Arc<Access>,
    control: Control,
    ballista: BallistaScheduler,
    gateway: JobGateway,
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
            control,
            ballista,
            gateway,
            prober,
            tables,
        } = self;
        let gateway = Arc::new(gateway);
        let queries = QueryService(Arc::clone(&gateway));
        let tasks = TasksServer::new(queries.clone())
            .max_encoding_message_size(MESSAGE_LIMIT)
            .max_decoding_message_size(MESSAGE_LIMIT);
        let queries = QueriesServer::new(queries)
            .max_encoding_message_size(MESSAGE_LIMIT)
            .max_decoding_message_size(MESSAGE_LIMIT);
        let gateway = SchedulerGrpcServer::from_arc(gateway)
            .max_encoding_message_size(MESSAGE_LIMIT)
            .max_decoding_message_size(MESSAGE_LIMIT);
        let (secret, probes) = (access.secret().clone(), prober.probes());
        let told = control.clone();
        let refuses: OnRefusal = Arc::new(move |reason| told.on(Event::ExecutorRefused { reason }));
        let door = (Arc::clone(&access), refuses);
        let mut routes = RoutesBuilder::default();
        routes.add_service(gateway);
        routes
            .add_service(queries)
            .add_service(tasks)
            .add_service(rendezvous_service(control.clone()))
            .add_service(training_service(control.clone()))
            .add_service(attendance_service(control.clone(), secret, probes))
            .add_service(jobs_service(control.clone()))
            .add_service(cluster_service(control, tables.clone(), prober));
        let router = get_routes(Arc::new(ballista))
            .merge(web::routes(tables, Arc::clone(access.counts())))
            .merge(routes.routes().into_axum_router())
            .merge(access::routes(Arc::clone(&access)))
            .layer(from_fn(check_message))
            .layer(from_fn_with_state(door, admit))
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
