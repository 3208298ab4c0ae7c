//! The state of a training between two steps, in host memory.
//!
//! It holds everything on which the rest of the training depends besides the spec and the rows: any device
//! and any number of ranks can continue from it at exactly the next step. It needs no random number state:
//! random numbers are keyed by seed, epoch and row, so the position determines them. It contains whole steps
//! only.
//!
//! It records its [`Basis`], and is refused if that has changed.

mod basis;
mod file;

use serde::{Deserialize, Serialize};
use volley_proto::spec::{Optimizer, Rule, TrainSpec};
use volley_proto::store::{EpochRecord, Position};

pub(super) use basis::{Basis, ShardRows};

use super::coverage::Covered;
use super::optimizer;
use crate::encode::Scaling;
use crate::network::{Architecture, Normalization, Parameter};
use crate::{Error, Result};

/// A training between two steps: independent of the device and of the number of ranks.
///
/// A rank returns it when training is [interrupted](crate::Interrupted), and training continues from it as
/// [`Origin::State`](crate::Origin::State).
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingState {
    pub(super) basis: Basis,
    /// Rows per step over all ranks, as set by the first world, whatever world continues.
    pub(super) global_batch: u64,
    /// Scaling of its rows.
    pub(super) scaling: Scaling,
    pub(super) position: Position,
    pub(super) weights: Weights,
    /// Optimizer's numbers per weight, in the order of the parameters.
    pub(super) slots: Vec<Vec<f32>>,
    pub(super) progress: EpochProgress,
    /// Records of the finished epochs.
    pub(super) history: Vec<EpochRecord>,
    /// The best epoch so far, if the best is to be kept.
    pub(super) kept: Option<Kept>,
    /// Epochs before a refit, once that has begun.
    pub(super) selected: Option<Selected>,
}

/// Best number of epochs, by evaluated rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selected {
    /// Epochs finished before the refit.
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

/// Totals of the current epoch, over all ranks and generations.
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
    /// Its loss, by which epochs are compared.
    pub(super) score: f64,
    pub(super) weights: Weights,
}

impl TrainingState {
    /// Creates a training before its first step.
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

    /// Creates a refit on `rows` rows before its first step, after a finished training, with these weights. A rule that
    /// needs the exact gradient gets all rows in each step.
    ///
    /// # Panics
    /// If no epoch is finished.
    pub(super) fn refit(self, optimizer: &Optimizer, rows: u64, weights: Weights) -> Self {
        let len = weights.values.iter().map(Vec::len).sum();
        assert!(!self.history.is_empty(), "a training has an epoch at least");
        let epochs = self.history.len();
        Self {
            weights,
            global_batch: match optimizer.rule {
                Rule::Lbfgs { .. } => rows,
                _ => self.global_batch,
            },
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

    /// Returns the position of the next step.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Checks that a training on this basis, with this spec, can continue from here.
    ///
    /// # Errors
    /// Names the option, the shard or the column that has changed.
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

    /// Checks lengths against the network; decoding checks only the file itself.
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

    /// Returns the epochs, the kept one, and its weights; after a refit, the last weights.
    ///
    /// # Panics
    /// If no epoch is finished.
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
