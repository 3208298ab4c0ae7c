//! The running executor: Ballista's executor and the runtimes it offers to plans.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use volley_engine::runtime::Runtimes;
use volley_proto::access::{Authorized, ExposureOptions, may_listen};
use volley_proto::scratch::{FolderOwner, FolderTaken};
use volley_proto::traces::{Exporter, Service};
use volley_trainer::resolve_device;

use crate::attendance;
use crate::ballista::{self, Process};
use crate::counts::Counts;
use crate::metrics::{self, Vitals};
use crate::models::Models;
use crate::rank::{Parking, Prepared, RankHost};
use crate::{Error, ExecutorConfig, Result};

/// Pause between two attempts to register again.
const RETRY: Duration = Duration::from_millis(500);
/// Longest pause after the scheduler has rejected the executor, which grows from [`RETRY`]: waiting changes less there.
const REJECTED_RETRY: Duration = Duration::from_secs(10);
/// Most reasons that are remembered as told.
const REASONS: usize = 16;

/// Options of the executor's address, and of its token.
const OPTIONS: ExposureOptions = ExposureOptions {
    bind: "--bind",
    tokens: "--join-token FILE",
};

/// Executor registered with its scheduler; dropping it stops it.
pub struct Executor {
    config: ExecutorConfig,
    /// Channel to the scheduler.
    channel: Authorized,
    runtimes: Runtimes,
    /// Token of the executor's planned departure.
    leaving: CancellationToken,
    /// Training states that ranks leave for their successors; kept when the executor starts over.
    parking: Parking,
    /// Encoded rows that are kept between trainings.
    prepared: Prepared,
    vitals: Arc<Vitals>,
    /// Server of metrics and probes, if there is one.
    page: JoinSet<()>,
    process: Process,
    /// Exporter of traces of jobs, if there is one.
    exporter: Option<Exporter>,
    /// Id of this process, and the number of its restarts.
    incarnation: (Uuid, u64),
    /// Ownership of the work folder, given up after all that uses the folder.
    owner: Option<FolderOwner>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Executor {
    /// Starts an executor. It is registered when this returns.
    ///
    /// # Errors
    /// When the work folder, the device or the address cannot be used, traces cannot be sent as configured, or the
    /// scheduler does not answer or rejects the executor.
    pub async fn start(config: ExecutorConfig) -> Result<Self> {
        // The executor's ports always ask for proofs.
        let tls = config.tls.is_some();
        may_listen(config.listen.bind(), true, tls, config.insecure, OPTIONS)
            .map_err(Error::Exposed)?;
        let work_dir = |source| Error::WorkDir {
            path: config.work_dir.clone(),
            source,
        };
        std::fs::create_dir_all(&config.work_dir).map_err(work_dir)?;
        let owner = FolderOwner::take(&config.work_dir).map_err(|taken| match taken {
            FolderTaken::Owned { process } => Error::WorkDirInUse {
                path: config.work_dir.clone(),
                process: process.map_or_else(String::new, |id| format!(" (process {id})")),
            },
            FolderTaken::Io(source) => work_dir(source),
        })?;
        ballista::disks::warn_of_little_space(&config.work_dir);
        ballista::shuffle_dir::clear(&config.work_dir).map_err(work_dir)?;
        let device = resolve_device(config.device).map_err(|source| Error::Device {
            device: config.device.to_string(),
            source: Box::new(source),
        })?;
        tracing::info!(executor = %config.id, %device, "ranks compute on this device");
        let (parking, leaving) = (Parking::default(), CancellationToken::new());
        let counts = Arc::<Counts>::default();
        let exporter = config.otlp.as_ref().map(|to| {
            let instance = config.id.clone();
            let name = "volley-executor";
            Exporter::start(to, &Service { name, instance })
        });
        let traces = exporter.as_ref().map(|exporter| exporter.traces().clone());
        let vitals = Vitals::new(
            config.clone(),
            Arc::clone(&counts),
            parking.clone(),
            leaving.clone(),
        );
        let vitals = Arc::new(vitals.traced(traces.clone()));
        let mut page = JoinSet::new();
        if let Some(metrics) = &config.metrics {
            let listener = metrics::listen(&config, metrics)?;
            page.spawn(metrics::serve(
                listener,
                metrics.clone(),
                Arc::clone(&vitals),
            ));
        }
        let channel = ballista::connect(&config).await?;
        let prepared = Prepared::new(config.prepared_space.as_u64());
        let ranks = RankHost::new(
            &config,
            channel.clone(),
            (parking.clone(), prepared.clone()),
            leaving.clone(),
            (counts, traces),
        );
        let runtimes = Runtimes {
            ranks: Arc::new(ranks),
            models: Arc::new(Models::new(&config)),
        };
        let deadline = Instant::now() + config.connect_timeout;
        let mut incarnation = (Uuid::now_v7(), 0);
        let process = loop {
            let started = start(&config, channel.clone(), &runtimes, &vitals, incarnation);
            match started.await {
                // The connection may have been lost in between.
                Err(error @ Error::Register { .. }) if Instant::now() < deadline => {
                    tracing::warn!(executor = %config.id, %error, "trying again");
                    incarnation.1 += 1;
                    sleep(RETRY).await;
                }
                started => break started?,
            }
        };
        Ok(Self {
            config,
            channel,
            runtimes,
            leaving,
            parking,
            prepared,
            vitals,
            page,
            process,
            exporter,
            incarnation,
            owner: Some(owner),
        })
    }

    /// Runs until told to leave, by `leave` or by the scheduler, and nothing here is needed any more, or until told to
    /// stop; then takes leave of the scheduler. An executor and a scheduler that have lost each other start over: the
    /// work that ran here has ended, and the executor registers again.
    ///
    /// # Errors
    /// When the scheduler is gone for longer than the configuration allows.
    pub async fn run_until(
        mut self,
        leave: impl Future<Output = ()>,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let (exporter, owner) = (self.exporter.take(), self.owner.take());
        let work_dir = self.config.work_dir.clone();
        let ended = self.run(leave, stop).await;
        // Tasks that were stopped may have written while their folder was removed.
        if let Err(error) = ballista::shuffle_dir::clear(&work_dir) {
            tracing::debug!(work_dir = %work_dir.display(), %error, "shuffle files are left");
        }
        drop(owner);
        if let Some(exporter) = exporter {
            exporter.finish().await;
        }
        ended
    }

    async fn run(
        self,
        leave: impl Future<Output = ()>,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        let Self {
            config,
            channel,
            runtimes,
            leaving,
            parking,
            prepared,
            vitals,
            // It answers until the executor has ended.
            page: _page,
            mut process,
            // They are taken before.
            exporter: _,
            owner: _,
            mut incarnation,
        } = self;
        let released = async {
            tokio::select! {
                () = leave => leaving.cancel(),
                () = leaving.cancelled() => {}
            }
            let (executor, limit) = (&config.id, config.drain_timeout);
            let told = humantime::format_duration(limit);
            tracing::info!(%executor, "leaves once its data is no longer needed, after {told} at the latest");
            // Whatever is lost later is lost as planned.
            if let Err(error) = attendance::leave(&config, channel.clone()).await {
                tracing::warn!(%executor, %error, "cannot tell the scheduler that the executor leaves");
            }
            let released = attendance::until_released(&config, channel);
            if timeout(limit, released).await.is_err() {
                tracing::warn!(%executor, "leaves after {told}, although its tasks or data are still needed");
            }
        };
        tokio::pin!(released, stop);
        // Removals of the folders of earlier registrations.
        let mut removals = JoinSet::new();
        loop {
            let reason = tokio::select! {
                () = &mut stop => {
                    process.take_leave().await;
                    return Ok(());
                }
                () = &mut released => {
                    process.take_leave().await;
                    return Ok(());
                }
                reason = process.until_over(
                    |train| {
                        parking.forget(train);
                        prepared.finishes(train);
                    },
                    |id| prepared.forget(id),
                    &leaving,
                ) => reason,
            };
            vitals.loses_scheduler();
            let shuffle_dir = process.shuffle_dir().to_owned();
            drop(process);
            if leaving.is_cancelled() {
                // There is nothing to come back for.
                tracing::warn!(executor = %config.id, reason, "leaves");
                return Ok(());
            }
            tracing::warn!(executor = %config.id, reason, "starting over");
            while removals.try_join_next().is_some() {}
            let removal =
                ballista::shuffle_dir::remove_left(shuffle_dir, ballista::shuffle_dir::AGAIN);
            removals.spawn(removal);
            process = tokio::select! {
                () = &mut stop => return Ok(()),
                // Polled for its wait for `leave`, which ends this as well.
                () = &mut released => return Ok(()),
                () = leaving.cancelled() => {
                    tracing::info!(executor = %config.id, "leaves before it has registered again");
                    return Ok(());
                }
                started = start_over(&config, &runtimes, &vitals, &mut incarnation) => started?,
            };
        }
    }
}

/// Registers with the scheduler, whose tasks are then those of the executor.
async fn start(
    config: &ExecutorConfig,
    channel: Authorized,
    runtimes: &Runtimes,
    vitals: &Arc<Vitals>,
    incarnation: (Uuid, u64),
) -> Result<Process> {
    let observed = (Arc::clone(&vitals.counts), vitals.traces.clone());
    let told = metrics::tell_vitals(config.clone(), channel.clone(), Arc::clone(vitals));
    let started = ballista::start(config, channel, runtimes.clone(), observed, incarnation);
    let mut process = started.await?;
    vitals.attends(process.tasks().clone());
    process.serve(told);
    Ok(process)
}

/// Connects and registers again, retrying until the scheduler is back.
async fn start_over(
    config: &ExecutorConfig,
    runtimes: &Runtimes,
    vitals: &Arc<Vitals>,
    incarnation: &mut (Uuid, u64),
) -> Result<Process> {
    let started = Instant::now();
    let (mut pause, mut said) = (RETRY, BTreeSet::new());
    loop {
        // Each attempt has its own number; otherwise the end of one could be taken for the end of the next.
        incarnation.1 += 1;
        let incarnation = *incarnation;
        let tried = config.scheduler.current().to_owned();
        let attempt = async {
            let channel = ballista::connect(config).await?;
            start(config, channel, runtimes, vitals, incarnation).await
        };
        match attempt.await {
            Ok(process) => {
                tracing::info!(executor = %config.id, "registered again");
                return Ok(process);
            }
            Err(source) if started.elapsed() >= config.reconnect_timeout => {
                return Err(Error::SchedulerLost {
                    id: config.id.clone(),
                    address: config.scheduler.to_string(),
                    waited: config.reconnect_timeout,
                    source: Box::new(source),
                });
            }
            Err(error) => {
                pause = match error {
                    Error::Attend { .. } => (pause * 2).min(REJECTED_RETRY),
                    _ => RETRY,
                };
                let reason = error.to_string();
                // The same reason is told once.
                if !said.contains(&reason) {
                    tracing::warn!(executor = %config.id, error = reason, "trying again");
                    // A reason may name an address or a time that changes.
                    if said.len() == REASONS {
                        said.clear();
                    }
                    said.insert(reason);
                }
            }
        }
        // Another of several schedulers may lead.
        config.scheduler.distrust(&tried);
        sleep(pause).await;
    }
}
