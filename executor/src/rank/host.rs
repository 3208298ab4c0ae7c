//! The executor's side of barrier stages: gives each task a seat, runs it, and tells how it ended.

use std::path::PathBuf;

use async_trait::async_trait;
use ballista_core::error::BallistaError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use tonic::transport::Channel;
use volley_proto::runtime::{RankRuntime, RankTask};
use volley_proto::spec::{Device, TrainSpec};
use volley_trainer::collective::Listener;
use volley_trainer::{ResolvedDevice, resolve_device};

use super::rendezvous::Rendezvous;
use super::run::{RankRun, Seat};
use crate::ExecutorConfig;
use crate::error::RankError;

/// Runs ranks on this executor.
#[derive(Debug)]
pub(crate) struct RankHost {
    executor: String,
    host: String,
    socket_dir: PathBuf,
    device: Device,
    scheduler: Channel,
}

impl RankHost {
    pub(crate) fn new(config: &ExecutorConfig, scheduler: Channel) -> Self {
        Self {
            executor: config.id.clone(),
            host: config.bind.to_string(),
            socket_dir: config.work_dir.clone(),
            device: config.device,
            scheduler,
        }
    }

    async fn try_run(&self, task: RankTask) -> Result<RecordBatch, RankError> {
        let RankTask {
            spec,
            identity,
            shards,
            cancel,
        } = task;
        let train = spec.train_id;
        let start = |source| RankError::Start {
            executor: self.executor.clone(),
            source,
        };
        let device = self.device(&spec).map_err(start)?;
        let rendezvous = Rendezvous::new(self.scheduler.clone(), train, self.executor.clone());
        let listener = Listener::bind(&self.host, Some(&self.socket_dir))
            .map_err(|source| start(source.into()))?;
        let membership = rendezvous
            .join(&identity, listener.endpoint(), spec.rendezvous_timeout)
            .await?;
        let run = RankRun {
            executor: &self.executor,
            device,
            seat: Seat::of(&membership),
            rendezvous: &rendezvous,
            spec: &spec,
            cancel: &cancel,
        };
        tracing::info!(%train, seat = ?run.seat, "rank joined");
        let shards = identity.partitions.iter().copied().zip(shards).collect();
        match run.run(listener, membership, shards).await {
            Err(_) if cancel.is_cancelled() => Err(RankError::Cancelled {
                train: train.to_string(),
            }),
            Err(error) => Err(run.root_cause(error).await),
            Ok(row) => Ok(row),
        }
    }

    /// The device for a job: its own wish, else the executor's.
    fn device(&self, spec: &TrainSpec) -> Result<ResolvedDevice, volley_trainer::Error> {
        resolve_device(match spec.device {
            Device::Auto => self.device,
            wish => wish,
        })
    }
}

#[async_trait]
impl RankRuntime for RankHost {
    async fn run(&self, task: RankTask) -> Result<RecordBatch, DataFusionError> {
        self.try_run(task).await.map_err(|error| match error {
            RankError::Cancelled { .. } => {
                DataFusionError::External(Box::new(BallistaError::Cancelled))
            }
            error => DataFusionError::External(Box::new(error)),
        })
    }
}
