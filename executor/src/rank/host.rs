//! The executor's side of barrier stages: gives each task a seat, runs its rank, and reports how it ended.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use ballista_core::error::BallistaError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use tokio_util::sync::CancellationToken;
use volley_engine::runtime::{RankRuntime, RankTask};
use volley_proto::GpuId;
use volley_proto::access::Authorized;
use volley_proto::address::ListenAddress;
use volley_proto::failure::chain;
use volley_proto::spec::{Device, DeviceKind, TrainSpec};
use volley_proto::tls::Tls;
use volley_proto::traces::{Span, Traces};
use volley_trainer::collective::Listener;
use volley_trainer::custom::CustomLayers;
use volley_trainer::{GpuLock, ResolvedDevice, resolve_device, resolve_gpu};

use super::parking::Parking;
use super::prepared::Prepared;
use super::rendezvous::{Joined, Rendezvous, Seat};
use super::run::RankRun;
use super::trace::RankTrace;
use crate::ExecutorConfig;
use crate::counts::Counts;
use crate::error::RankError;

/// Runs ranks on this executor.
#[derive(Debug)]
pub(crate) struct RankHost {
    executor: String,
    listen: ListenAddress,
    socket_dir: PathBuf,
    /// Device of ranks whose training names none.
    own: Device,
    layers: CustomLayers,
    /// Slots of the executor, the maximum number of a rank's threads.
    slots: NonZeroUsize,
    /// Memory limit of a rank, in bytes.
    memory: u64,
    scheduler: Authorized,
    parking: Parking,
    prepared: Prepared,
    /// Token of the executor's planned departure.
    leaving: CancellationToken,
    counts: Arc<Counts>,
    /// Handle by which spans of ranks are sent, if jobs are traced.
    traces: Option<Traces>,
    tls: Option<Tls>,
}

impl RankHost {
    pub(crate) fn new(
        config: &ExecutorConfig,
        scheduler: Authorized,
        (parking, prepared): (Parking, Prepared),
        leaving: CancellationToken,
        (counts, traces): (Arc<Counts>, Option<Traces>),
    ) -> Self {
        Self {
            executor: config.id.clone(),
            listen: config.listen.clone(),
            socket_dir: config.work_dir.clone(),
            own: config.device,
            layers: config.layers.clone(),
            slots: NonZeroUsize::new(config.vcores).unwrap_or(NonZeroUsize::MIN),
            memory: config.rank_memory.as_u64(),
            scheduler,
            parking,
            prepared,
            leaving,
            counts,
            traces,
            tls: config.tls.clone(),
        }
    }

    async fn try_run(&self, task: RankTask) -> Result<RecordBatch, RankError> {
        let RankTask {
            spec,
            identity,
            cancel,
            ..
        } = &task;
        let (train, begun_at) = (spec.train_id, SystemTime::now());
        let start = |source| RankError::Start {
            executor: self.executor.clone(),
            source,
        };
        // Checks that the layers exist, on any device.
        let checked = self.layers.check(&spec.network, ResolvedDevice::CPU);
        checked.map_err(start)?;
        let place = self.parking.enter(train).await;
        let place = place.ok_or_else(|| RankError::Occupied {
            train: train.to_string(),
            executor: self.executor.clone(),
        })?;
        let rendezvous = Rendezvous::new(
            self.scheduler.clone(),
            train,
            identity.clone(),
            self.executor.clone(),
        );
        let listener = Listener::bind(&self.listen, Some(&self.socket_dir))
            .map_err(|source| start(source.into()))?
            .with_tls(self.tls.clone());
        let Joined {
            membership,
            gpu,
            begun,
        } = rendezvous
            .join(listener.endpoint(), spec.rendezvous_timeout)
            .await?;
        let seat = Seat::of(&membership);
        // The device is found before rows are streamed.
        let device = match self.device(spec, gpu).map_err(start) {
            Ok(device) => device,
            Err(error) => {
                // The other ranks have met, and would wait for this one.
                rendezvous.fail(&seat, chain(&error), false).await;
                return Err(error);
            }
        };
        let trace = self.traces.as_ref().map(|traces| {
            let describe = |span: Span| {
                span.with("volley.train.id", train.to_string())
                    .with("volley.model", spec.model.to_string())
                    .with("volley.generation", seat.generation)
                    .with("volley.rank", seat.rank)
                    .with("volley.world_size", seat.world_size)
                    .with("volley.device", device.to_string())
            };
            RankTrace::begin(
                traces,
                (self.executor.as_str(), identity),
                begun_at,
                describe,
            )
        });
        let trace = trace.unwrap_or_default();
        let enter = |id| Arc::new(self.prepared.enter(id, train, &task.folder));
        let lease = task.prepared.map(enter);
        let threads = spec.threads.map_or(self.slots, |most| most.min(self.slots));
        let run = RankRun {
            executor: &self.executor,
            device,
            alone: gpu.filter(|_| !spec.device_share).map(GpuLock::of),
            threads,
            memory: self.memory,
            layers: &self.layers,
            seat,
            begun,
            rendezvous: &rendezvous,
            spec,
            // The end of the generation also stops the rank.
            stop: cancel.child_token(),
            leaving: &self.leaving,
            lease,
            counts: &self.counts,
            trace: trace.clone(),
        };
        tracing::info!(%train, ?seat, %device, threads, "rank joined");
        let trained = tokio::select! {
            trained = run.run(listener, membership, &task, place) => trained,
            never = run.hold_seat() => match never {},
            error = run.overstay() => Err(error),
        };
        let ended = match trained {
            Err(_) if cancel.is_cancelled() => Err(RankError::Cancelled {
                train: train.to_string(),
            }),
            Err(error) => Err(run.root_cause(error).await),
            Ok(row) => Ok(row),
        };
        trace.ends(&ended);
        ended
    }

    /// Finds the rank's assigned device and checks that the network can be computed there.
    fn device(
        &self,
        spec: &TrainSpec,
        gpu: Option<GpuId>,
    ) -> Result<ResolvedDevice, volley_trainer::Error> {
        let is_wgpu = |device: Device| device.kind() == Some(DeviceKind::Wgpu);
        let device = match gpu {
            Some(gpu) => resolve_gpu(gpu, spec.device == Device::Auto)?,
            // The scheduler does not assign these.
            None if is_wgpu(spec.device) => resolve_device(spec.device)?,
            None if spec.device == Device::Auto && is_wgpu(self.own) => {
                resolve_device(self.own)?.or_cpu()
            }
            None => ResolvedDevice::CPU,
        };
        self.layers.check(&spec.network, device)?;
        Ok(device)
    }
}

#[async_trait]
impl RankRuntime for RankHost {
    async fn run(&self, task: RankTask) -> Result<RecordBatch, DataFusionError> {
        self.try_run(task).await.map_err(|error| match error {
            // Ballista restarts a cancelled task unless its job has ended.
            RankError::Cancelled { .. } | RankError::Regroup { .. } => {
                tracing::info!(%error, "rank ends");
                DataFusionError::External(Box::new(BallistaError::Cancelled))
            }
            error => DataFusionError::External(Box::new(error)),
        })
    }
}
