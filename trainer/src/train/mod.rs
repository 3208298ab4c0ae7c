//! Training: one rank's way from loaded shards to a model, in step with the other ranks.
//!
//! ```text
//!  agree      values, defects, failures of all ranks ─▶ the same vocabularies, or the same error
//!  settle     shards in canonical order; census of rows ─▶ steps an epoch
//!  fit        epoch: step … step │ evaluate │ add up ─▶ record
//!               step: gather rows ─ all-reduce moments ─ forward, backward ─ all-reduce gradient ─ Adam
//!  publish    rank 0: the kept epoch's weights as files
//! ```
//!
//! The invariant: what is trained depends on the spec, the rows and the number of steps in an
//! epoch, and not on how shards are spread over ranks. `n` ranks with batches of `b` rows compute
//! what one rank with batches of `n·b` does, up to the rounding of sums.
//!
//! Blocking: a rank has an OS thread of its own. The backend is picked here and nowhere else.

mod adam;
mod agree;
mod batch;
mod dropout;
mod fit;
mod loss;
mod metrics;
mod publish;
mod schedule;
#[cfg(test)]
mod tests;

use std::time::Instant;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::AutodiffBackend;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::TrainSpec;
use volley_proto::store::{EpochRecord, Manifest};

use crate::collective::Communicator;
use crate::device::{Backend, ResolvedDevice};
use crate::encode::{LoadedShards, Settled, Vocabulary, settle};
use crate::network::Architecture;
use crate::{Error, Result};
use agree::{Census, World};
use fit::Fit;

/// Hears how training goes. Called on the rank's thread: do not block.
pub trait Observer: Send + Sync {
    /// This rank's rows are loaded.
    fn loaded(&self, rows: u64, seconds: f64);
    /// An epoch is over; the record is the same on every rank but for its seconds.
    fn epoch(&self, record: &EpochRecord);
}

/// What a rank works with.
#[allow(missing_debug_implementations)] // an observer has no Debug
pub struct Rank<'a> {
    /// The other ranks.
    pub communicator: &'a mut Communicator,
    /// Where to compute.
    pub device: ResolvedDevice,
    /// Hears how training goes.
    pub observer: &'a dyn Observer,
    /// Ends training at the next step.
    pub cancel: &'a CancellationToken,
}

/// What a rank comes back with.
#[derive(Debug)]
pub struct Outcome {
    /// What this rank did.
    pub report: RankReport,
    /// The model to publish; on rank 0 only.
    pub artifacts: Option<Artifacts>,
}

/// What a rank did.
#[derive(Debug, Clone, PartialEq)]
pub struct RankReport {
    /// Rows that this rank trained on in each epoch.
    pub train_rows: u64,
    /// Rows that this rank evaluated after each epoch.
    pub eval_rows: u64,
    /// Epochs done.
    pub epochs: usize,
    /// The kept epoch, over all ranks.
    pub kept: EpochRecord,
    /// Seconds from the first row to the last.
    pub load_seconds: f64,
    /// Seconds of everything after that.
    pub train_seconds: f64,
}

/// A trained model, to be published.
#[derive(Debug)]
pub struct Artifacts {
    /// Its manifest; the version is the store's to give.
    pub manifest: Manifest,
    /// Its other files.
    pub files: Vec<(&'static str, Bytes)>,
}

/// Trains on this rank's shards, in step with the other ranks, which must call it too.
///
/// It takes what [`load`](crate::load) came back with, also when that is an error: then all ranks
/// learn of it and end, instead of waiting for this one.
///
/// # Errors
/// This rank's own failure to load; else [`Error::Peer`] with another's; [`Error::Defect`] with
/// the same rows on every rank; [`Error::Cancelled`]; [`Error::Collective`] when a rank is lost.
pub fn train(spec: &TrainSpec, loaded: Result<LoadedShards>, rank: Rank<'_>) -> Result<Outcome> {
    match rank.device.backend() {
        Backend::Cpu(device) => run::<Autodiff<Flex>>(spec, loaded, rank, device),
        #[cfg(feature = "cuda")]
        Backend::Cuda(device) => run::<Autodiff<burn_cuda::Cuda>>(spec, loaded, rank, device),
    }
}

fn run<B: AutodiffBackend>(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    rank: Rank<'_>,
    device: B::Device,
) -> Result<Outcome> {
    let Rank {
        communicator,
        observer,
        cancel,
        ..
    } = rank;
    let start = Instant::now();
    if let Ok(loaded) = &loaded {
        observer.loaded(loaded.rows(), loaded.seconds());
    }
    let (loaded, vocabularies) = agree::on_values(loaded, communicator)?;
    let load_seconds = loaded.seconds();
    let features = loaded.features;
    let settled = |shard| settle(shard, &vocabularies, &spec.split, spec.seed);
    let shards: Vec<Settled> = loaded.shards.into_iter().map(settled).collect();
    let world = agree::on_rows(Census::take(&shards, features.len()), communicator)?;

    let architecture = architecture(spec, &vocabularies, &world)?;
    let values = architecture.initial_values(spec.seed);
    agree::on_start(spec, &values, communicator)?;
    let observer = |record: &EpochRecord| observer.epoch(record);
    let mut fit = Fit::<B>::new(spec, &architecture, values, &world, &shards, &device);
    let kept = fit.run(communicator, &observer, cancel)?;

    let sum = |rows: fn(&Settled) -> usize| shards.iter().map(|s| rows(s) as u64).sum();
    let report = RankReport {
        train_rows: sum(|shard| shard.train.len()),
        eval_rows: sum(|shard| shard.eval.len()),
        epochs: spec.epochs,
        kept: kept.history[kept.epoch - 1].clone(),
        load_seconds,
        train_seconds: start.elapsed().as_secs_f64(),
    };
    let artifacts = kept.weights.map(|weights| {
        let trained = publish::Trained {
            spec,
            features,
            vocabularies: &vocabularies,
            architecture: &architecture,
            world: &world,
            world_size: communicator.world_size(),
            history: kept.history,
            kept_epoch: kept.epoch,
        };
        trained.publish(weights)
    });
    Ok(Outcome { report, artifacts })
}

fn architecture(
    spec: &TrainSpec,
    vocabularies: &[Vocabulary],
    world: &World,
) -> Result<Architecture> {
    use volley_proto::spec::Output;
    let output_scale = match spec.network.output {
        Output::Identity | Output::Sigmoid => 1.0,
        Output::ScaledSigmoid if world.largest_label > 0.0 => 1.2 * world.largest_label,
        Output::ScaledSigmoid => {
            return Err(Error::OutputScale {
                largest: world.largest_label,
            });
        }
    };
    let table_rows = vocabularies.iter().map(Vocabulary::codes).sum();
    Ok(Architecture::new(spec, table_rows, output_scale))
}
