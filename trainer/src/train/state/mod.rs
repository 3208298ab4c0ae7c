//! The state of a training between two steps, in host memory.
//!
//! It is all that the rest of the training depends on besides the spec and the rows: whoever goes
//! on from it, on whatever device and with however many ranks, goes on at the very step. Random
//! numbers need no place in it: they are keyed by seed, epoch and row, so the position says them
//! all. Only whole steps are ever in it.
//!
//! It knows what it was made from, its [`Basis`], and is refused where that has changed.

mod basis;
mod file;

use serde::{Deserialize, Serialize};
use volley_proto::spec::{Optimizer, TrainSpec};
use volley_proto::store::{EpochRecord, Position};

pub(super) use basis::{Basis, ShardRows};

use super::coverage::Covered;
use super::optimizer;
use crate::encode::Scaling;
use crate::network::{Architecture, Normalization, Parameter};
use crate::{Error, Result};

/// A training between two steps: independent of the device and of how many ranks there are.
///
/// A rank hands it back when training is [interrupted](crate::Interrupted), and training goes on
/// from it as [`Origin::State`](crate::Origin::State).
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingState {
    pub(super) basis: Basis,
    /// Rows of a step over all ranks: those of the first world, whatever became of it.
    pub(super) global_batch: u64,
    /// What its rows were scaled by.
    pub(super) scaling: Scaling,
    pub(super) position: Position,
    pub(super) weights: Weights,
    /// What the optimizer keeps of each weight, in the order of the parameters.
    pub(super) slots: Vec<Vec<f32>>,
    pub(super) progress: EpochProgress,
    /// The epochs that are over.
    pub(super) history: Vec<EpochRecord>,
    /// The best epoch so far, where the best is to be kept.
    pub(super) kept: Option<Kept>,
    /// What epochs came to before a refit, once that has begun.
    pub(super) selected: Option<Selected>,
}

/// How many epochs are the best, by rows that were evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selected {
    /// Epochs done until then.
    pub(super) epochs: usize,
    /// The best of them.
    pub(super) kept: usize,
}

/// A network's numbers in host memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weights {
    /// Parameter by parameter.
    pub(super) values: Vec<Vec<f32>>,
    /// Batch norm's running statistics.
    pub(super) running: Normalization,
}

/// What the epoch under way has come to, over all ranks and generations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct EpochProgress {
    /// The weighted sum of the losses of its rows.
    pub(super) loss: f64,
    /// The sum of their weights.
    pub(super) weight: f64,
    pub(super) covered: Covered,
}

/// An epoch whose weights are kept.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    pub(super) epoch: usize,
    /// Its loss, by which it is compared.
    pub(super) score: f64,
    pub(super) weights: Weights,
}

impl TrainingState {
    /// A training before its first step.
    pub(super) fn begin(
        basis: Basis,
        optimizer: &Optimizer,
        global_batch: u64,
        scaling: Scaling,
        weights: Weights,
    ) -> Self {
        let len = weights.values.iter().map(Vec::len).sum();
        Self {
            basis,
            global_batch,
            scaling,
            position: Position::START,
            weights,
            slots: optimizer::fresh_slots(optimizer, len),
            progress: EpochProgress::default(),
            history: Vec::new(),
            kept: None,
            selected: None,
        }
    }

    /// A refit before its first step, after a training that has ended, with these weights.
    ///
    /// # Panics
    /// If no epoch is over.
    pub(super) fn refit(self, optimizer: &Optimizer, weights: Weights) -> Self {
        let len = weights.values.iter().map(Vec::len).sum();
        assert!(!self.history.is_empty(), "a training has an epoch at least");
        let epochs = self.history.len();
        Self {
            weights,
            slots: optimizer::fresh_slots(optimizer, len),
            selected: Some(Selected {
                epochs,
                kept: self.kept.map_or(epochs, |kept| kept.epoch),
            }),
            kept: None,
            progress: EpochProgress::default(),
            ..self
        }
    }

    /// What comes next, and how much is done.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Checks that training on this basis, as a spec says, can go on from here.
    ///
    /// # Errors
    /// Names the option, the shard or the column that is not as it was.
    pub(super) fn check(
        &self,
        now: &Basis,
        spec: &TrainSpec,
        architecture: &Architecture,
    ) -> Result<()> {
        self.basis.check(now, self.position)?;
        let Position { epoch, step, .. } = self.position;
        let begun = if step == 0 { epoch - 1 } else { epoch };
        let begun = self.selected.map_or(begun, |selected| selected.epochs);
        if let Some(epochs) = spec.epochs.filter(|epochs| begun > *epochs) {
            return Err(Error::StateOption {
                position: self.position,
                option: "epochs".into(),
                then: format!("at least {begun}"),
                now: epochs.to_string(),
            });
        }
        self.check_lengths(&spec.optimizer, architecture)
    }

    /// A state's own checks are of its file; these are of the network it is for.
    fn check_lengths(&self, optimizer: &Optimizer, architecture: &Architecture) -> Result<()> {
        let parameters = architecture.parameters();
        let normalized = architecture.normalized();
        let kept = self.kept.as_ref().map(|kept| &kept.weights);
        let fits = [Some(&self.weights), kept]
            .into_iter()
            .flatten()
            .all(|weights| weights.fits(parameters, normalized));
        let len = parameters.iter().map(Parameter::len).sum::<usize>();
        let slots = optimizer::slots(optimizer).len();
        if fits && self.slots.len() == slots && self.slots.iter().all(|slot| slot.len() == len) {
            Ok(())
        } else {
            Err(Error::StateFile {
                problem: "its tensors are not of the network's shapes".into(),
                source: None,
            })
        }
    }

    /// The epochs, the one that is kept, and its weights; after a refit, its last weights.
    ///
    /// # Panics
    /// If no epoch is over.
    pub(super) fn finish(self) -> (Vec<EpochRecord>, usize, Weights) {
        assert!(!self.history.is_empty(), "a training has an epoch at least");
        let last = self.history.len();
        let (epoch, weights) = match self.kept {
            Some(kept) => (kept.epoch, kept.weights),
            None => (last, self.weights),
        };
        let epoch = self.selected.map_or(epoch, |selected| selected.kept);
        (self.history, epoch, weights)
    }
}

impl Weights {
    fn fits(&self, parameters: &[Parameter], normalized: usize) -> bool {
        let lengths = parameters.iter().map(Parameter::len);
        lengths.eq(self.values.iter().map(Vec::len))
            && self.running.mean.len() == normalized
            && self.running.variance.len() == normalized
    }
}
