//! A rank as its host sees it: what it works with, what it tells, and what it comes back with.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::RankDevice;
use volley_proto::store::{EpochRecord, Manifest, Position};

use super::origin::{Beginning, Origin};
use super::state::TrainingState;
use crate::Error;
use crate::collective::Communicator;
use crate::device::ResolvedDevice;
use crate::network::CustomLayers;

/// Hears how training goes. Called on the rank's thread: do not block.
pub trait Observer: Send + Sync {
    /// This rank's rows are loaded.
    fn loaded(&self, rows: u64, seconds: f64);
    /// All ranks have agreed on where training starts.
    fn started(&self, beginning: Beginning);
    /// A step is done. Called for every step: be quick.
    fn step(&self, step: &Step);
    /// An epoch is over; the record is the same on every rank.
    fn epoch(&self, record: &EpochRecord);
    /// The state to be stored, [encoded](TrainingState::encode): on rank 0 only, after every epoch
    /// and as often as the spec says.
    fn checkpoint(&self, position: Position, state: Bytes);
}

/// A step of all ranks that is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// What comes next.
    pub next: Position,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Epochs that there are, at most.
    pub epochs: usize,
    /// Rows of all ranks.
    pub rows: u64,
    /// The sum of their losses, without the L2 term.
    pub loss: f64,
    /// How long this rank has been in collectives since it met its peers, waiting included.
    pub reducing: Duration,
}

/// What a rank works with.
#[allow(missing_debug_implementations)] // an observer has no Debug
pub struct Rank<'a> {
    /// The other ranks.
    pub communicator: &'a mut Communicator,
    /// Where to compute.
    pub device: ResolvedDevice,
    /// How many threads compute on the CPU, with the one that calls. What is computed does not depend on it.
    pub threads: NonZeroUsize,
    /// The custom layers that networks may name.
    pub layers: &'a CustomLayers,
    /// Hears how training goes.
    pub observer: &'a dyn Observer,
    /// Ends training at the next step. To end it within one too, the communicator is connected
    /// with the same token.
    pub cancel: &'a CancellationToken,
    /// What this rank brings to start from.
    pub origin: Origin,
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
    /// Epochs done, by earlier generations too.
    pub epochs: usize,
    /// The kept epoch, over all ranks.
    pub kept: EpochRecord,
    /// The mean loss of training rows (a sample of them) by the kept weights, as rows are evaluated, over all ranks.
    pub eval_train_loss: f64,
    /// Device and precision that it computed with.
    pub computed: RankDevice,
    /// Rows that this rank trained on in each epoch of a refit, where there was one.
    pub refit_rows: Option<u64>,
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

/// Training that ended before its time. Its text and its sources are the error's.
#[derive(Debug)]
pub struct Interrupted {
    /// Why.
    pub error: Error,
    /// The state after the last whole step, to go on from; what this rank brought, where the ranks
    /// had not agreed on a state yet.
    pub state: Option<Box<TrainingState>>,
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
