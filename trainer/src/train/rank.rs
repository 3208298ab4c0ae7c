//! A rank as its host sees it: its inputs, its reports, and its results.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::RankDevice;
use volley_proto::store::{EpochRecord, Manifest, Position};

use super::origin::{Beginning, Origin};
use super::state::TrainingState;
use crate::collective::Communicator;
use crate::device::ResolvedDevice;
use crate::encode::{ArrivingShards, LoadedShards};
use crate::network::CustomLayers;
use crate::{Error, Result};

/// Receiver of training events, each of which is ignored by default. Called on the rank's thread: do not block.
pub trait Observer: Send + Sync {
    /// Reports that this rank's rows are loaded.
    fn loaded(&self, _rows: u64, _seconds: f64) {}
    /// Reports that all ranks have agreed on the beginning of training.
    fn started(&self, _beginning: Beginning) {}
    /// Reports what computes instead of the plan on this rank's GPU, and why.
    fn fell_back(&self, _computed: RankDevice, _reason: &str) {}
    /// Reports a note on how all ranks train. Called on rank 0.
    fn noted(&self, _note: &str) {}
    /// Reports a finished step. Called for every step: be quick.
    fn step(&self, _step: &Step) {}
    /// Reports a finished epoch; the record is the same on every rank.
    fn epoch(&self, _record: &EpochRecord) {}
    /// Returns true if training is to end after the epoch under way, a refit excepted. One rank's true ends it on all.
    /// Default: false.
    fn is_stopped(&self) -> bool {
        false
    }
    /// Reports the state to store, [encoded](TrainingState::encode): on rank 0 only, after every epoch and as
    /// often as the spec says.
    fn checkpoint(&self, _position: Position, _state: Bytes) {}
}

/// A finished step of all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Position of the next step.
    pub next: Position,
    /// Steps per epoch.
    pub steps_per_epoch: u64,
    /// Maximum number of epochs, including those of a refit that follows.
    pub epochs: usize,
    /// Maximum number of epochs before a refit that follows; `epochs` if none does.
    pub selecting: usize,
    /// Rows of all ranks.
    pub rows: u64,
    /// Sum of their losses, without the L2 term.
    pub loss: f64,
    /// Time that this rank has spent in collectives since it met its peers, waiting included.
    pub reducing: Duration,
}

/// A rank's shards, or the reason why it has none.
#[derive(Debug)]
pub enum Shards {
    /// All of them, by [`load`](crate::load()).
    Loaded(Result<LoadedShards>),
    /// Shards that are still being encoded, by [`load_early`](crate::load_early), for a training that begins early. All of
    /// its ranks have such.
    Arriving(Result<ArrivingShards>),
}

impl Shards {
    /// Replaces shards by an error, unless there is one.
    pub(super) fn or(self, error: Error) -> Self {
        match self {
            Self::Loaded(loaded) => Self::Loaded(loaded.and(Err(error))),
            Self::Arriving(arriving) => Self::Arriving(arriving.and(Err(error))),
        }
    }
}

impl From<Result<LoadedShards>> for Shards {
    fn from(loaded: Result<LoadedShards>) -> Self {
        Self::Loaded(loaded)
    }
}

impl From<Result<ArrivingShards>> for Shards {
    fn from(arriving: Result<ArrivingShards>) -> Self {
        Self::Arriving(arriving)
    }
}

/// Inputs of a rank.
#[allow(missing_debug_implementations)] // an observer has no Debug
pub struct Rank<'a> {
    /// The other ranks.
    pub communicator: &'a mut Communicator,
    /// Device that computes.
    pub device: ResolvedDevice,
    /// Number of threads that compute on the CPU, the caller's included. Results do not depend on it.
    pub threads: NonZeroUsize,
    /// Custom layers that networks may name.
    pub layers: &'a CustomLayers,
    /// Receiver of training events.
    pub observer: &'a dyn Observer,
    /// Cancellation at the next step. To cancel within a step too, connect the communicator with the same
    /// token.
    pub cancel: &'a CancellationToken,
    /// Initial state that this rank brings.
    pub origin: Origin,
}

/// Results of a rank.
#[derive(Debug)]
pub struct Outcome {
    /// Report on this rank.
    pub report: RankReport,
    /// The model to publish; on rank 0 only.
    pub artifacts: Option<Artifacts>,
}

/// Report of a rank's work.
#[derive(Debug, Clone, PartialEq)]
pub struct RankReport {
    /// Rows that this rank trained on in each epoch.
    pub train_rows: u64,
    /// Rows that this rank evaluated after each epoch.
    pub eval_rows: u64,
    /// Epochs done, by earlier generations too.
    pub epochs: usize,
    /// The kept epoch, over all ranks.
    pub kept: EpochRecord,
    /// Mean loss of a sample of training rows by the kept weights, computed as in evaluation, over all ranks.
    pub eval_train_loss: f64,
    /// Device and precision that it computed with.
    pub computed: RankDevice,
    /// Rows that this rank trained on in each epoch of a refit, if there was one.
    pub refit_rows: Option<u64>,
    /// Seconds before the first step: rows are read, encoded, settled with the other ranks, and scaled.
    pub load_seconds: f64,
    /// Seconds from then on.
    pub train_seconds: f64,
}

/// A trained model, ready to publish.
#[derive(Debug)]
pub struct Artifacts {
    /// Manifest; the store assigns the version.
    pub manifest: Manifest,
    /// The other files.
    pub files: Vec<(&'static str, Bytes)>,
}

/// Training that ended early. Its text and its sources are the error's.
#[derive(Debug)]
pub struct Interrupted {
    /// The cause.
    pub error: Error,
    /// State after the last whole step, to continue from; the state that this rank brought, if the ranks had
    /// not yet agreed on one.
    pub state: Option<Box<TrainingState>>,
}

impl Interrupted {
    /// Ends a training that can continue from this state.
    pub(super) fn with(error: impl Into<Error>, state: TrainingState) -> Self {
        Self {
            error: error.into(),
            state: Some(Box::new(state)),
        }
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Interrupted {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
