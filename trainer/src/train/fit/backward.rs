//! The gradient of one rank's rows of a step, in pieces that bound the memory in use.
//!
//! It does not sum over ranks: the step does.

use volley_proto::spec::PIECE;

use super::Fit;
use crate::Result;
use crate::network::{Compute, Input, Piece};
use crate::train::batch::Batch;
use crate::train::schedule::Place;
use crate::train::{dropout, loss};

/// Rows whose losses one thread sums.
const BLOCK: usize = 256;

impl<C: Compute> Fit<'_, C> {
    /// Computes this rank's part of the gradient of a global batch of weight `all`. Returns the weighted sum
    /// of its losses.
    pub(super) fn backward(&mut self, places: &[Place], batch: Batch, all: f64) -> Result<f64> {
        let rows = batch.len();
        if rows == 0 {
            self.network.zero_gradient(&mut self.gradient[..self.len])?;
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
        let gradient = &mut self.gradient[..self.len];
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
        // A step whose rows all have weight 0 changes nothing.
        let (loss, label) = (&self.spec.loss, &self.spec.label);
        let share = if all > 0.0 { all.recip() } else { 0.0 };
        let outputs = self.architecture.outputs;
        let members = self.architecture.members;
        // With cross-validation, each row trains all members but one, and each member all folds but one.
        let trained = members - usize::from(self.cross_validates);
        let share = share * members as f64 / trained as f64;
        let width = members * outputs;
        // Losses are summed by blocks, so the number of threads does not affect the sum.
        let mut losses = vec![0.0; rows.div_ceil(BLOCK)];
        let threads = &self.threads;
        let slopes = |all: &[f32]| {
            let mut slopes = vec![0.0; all.len()];
            let blocks = slopes.chunks_mut(BLOCK * width).zip(&mut losses);
            threads.each_of(blocks.enumerate().collect(), |_, (at, (slopes, total))| {
                let mut of_member = vec![0.0; outputs];
                let first = at * BLOCK;
                let labels = batch.labels.chunks_exact(label.columns.len());
                let of_rows = all.chunks_exact(width).zip(labels.zip(&batch.weights));
                let of_rows = of_rows.enumerate().skip(first);
                for ((row, (of_row, (labels, weight))), slopes) in
                    of_rows.zip(slopes.chunks_exact_mut(width))
                {
                    let holds_out = batch.folds.get(row).map(|fold| usize::from(*fold));
                    let weight = f64::from(*weight);
                    let weights = &label.loss_weights;
                    // Each member has its own loss; the loss is not that of the members' mean.
                    let of_members = of_row
                        .chunks_exact(outputs)
                        .zip(slopes.chunks_exact_mut(outputs));
                    for (member, (of_row, slopes)) in of_members.enumerate() {
                        if holds_out == Some(member) {
                            continue;
                        }
                        *total +=
                            weight * loss::of_labels(loss, weights, of_row, labels, &mut of_member);
                        for (slope, of_member) in slopes.iter_mut().zip(&of_member) {
                            *slope = (weight * share * of_member) as f32;
                        }
                    }
                }
            });
            slopes
        };
        self.network.gradient(input, slopes, piece, gradient)?;
        Ok(losses.iter().sum::<f64>() / trained as f64)
    }
}
