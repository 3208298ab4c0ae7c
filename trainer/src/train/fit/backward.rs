//! The gradient of one rank's rows of a step, in pieces that bound what is in memory at once.
//!
//! Sums over ranks are the step's.

use volley_proto::spec::PIECE;

use super::Fit;
use crate::Result;
use crate::network::{Compute, Input, Piece};
use crate::train::batch::Batch;
use crate::train::schedule::Place;
use crate::train::{dropout, loss};

impl<C: Compute> Fit<'_, C> {
    /// Computes this rank's part of the gradient of the global batch, of this weight. Returns its losses' weighted sum.
    pub(super) fn backward(&mut self, places: &[Place], batch: Batch, all: f64) -> Result<f64> {
        let rows = batch.len();
        if rows == 0 {
            let len = self.optimizer.len();
            self.network.zero_gradient(&mut self.gradient[..len])?;
            return Ok(0.0);
        }
        let piece = rows.div_ceil(self.spec.accumulate).min(PIECE);
        if rows <= piece {
            return self.backward_piece(places, batch, all, Piece::WHOLE);
        }
        let mut total = 0.0;
        for (at, places) in places.chunks(piece).enumerate() {
            let start = at * piece;
            let part = batch.slice(start, places.len());
            let piece = Piece {
                first: at == 0,
                last: start + places.len() == rows,
            };
            total += self.backward_piece(places, part, all, piece)?;
        }
        Ok(total)
    }

    fn backward_piece(
        &mut self,
        places: &[Place],
        batch: Batch,
        all: f64,
        piece: Piece,
    ) -> Result<f64> {
        let rows = batch.len();
        let gradient = &mut self.gradient[..self.optimizer.len()];
        let key = dropout::key(self.spec.seed, self.position.epoch);
        let dropouts = self.architecture.dropouts().iter().enumerate();
        let dropout = dropouts.map(|(at, dropout)| {
            let mask = || dropout::mask(key.with(at as u64), &self.ids, places, *dropout);
            (dropout.share > 0.0).then(mask)
        });
        let dropout = dropout.collect();
        let input = Input {
            rows,
            codes: batch.codes,
            continuous: batch.continuous,
            dropout,
        };
        // A step whose rows all weigh nothing changes nothing.
        let (loss, label) = (&self.spec.loss, &self.spec.label);
        let share = if all > 0.0 { all.recip() } else { 0.0 };
        let mut total = 0.0;
        let mut of_member = vec![0.0; self.architecture.outputs];
        let members = self.architecture.members;
        // With cross-validation, each row trains all members but one, and each member all folds but one.
        let trained = members - usize::from(self.cross_validates);
        let share = share * members as f64 / trained as f64;
        let slopes = |outputs: &[f32]| {
            let mut slopes = Vec::with_capacity(outputs.len());
            let outputs = outputs.chunks_exact(members * of_member.len());
            let labels = batch.labels.chunks_exact(label.columns.len());
            let rows = outputs.zip(labels.zip(&batch.weights)).enumerate();
            for (row, (outputs, (labels, weight))) in rows {
                let holds_out = batch.folds.get(row).map(|fold| usize::from(*fold));
                let weight = f64::from(*weight);
                let weights = &label.loss_weights;
                // Each member has a loss of its own, not one of their mean.
                for (member, outputs) in outputs.chunks_exact(of_member.len()).enumerate() {
                    if holds_out == Some(member) {
                        slopes.extend(of_member.iter().map(|_| 0.0));
                        continue;
                    }
                    total +=
                        weight * loss::of_labels(loss, weights, outputs, labels, &mut of_member);
                    let slopes_of_member = of_member.iter();
                    slopes.extend(slopes_of_member.map(|slope| (weight * share * slope) as f32));
                }
            }
            slopes
        };
        self.network.gradient(input, slopes, piece, gradient)?;
        Ok(total / trained as f64)
    }
}
