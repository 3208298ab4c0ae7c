//! The gradient of one rank's rows of a step, in pieces that bound the memory in use.
//!
//! The step sums it over ranks afterwards. Only where sums are worth [overlapping](Fit::overlaps) with the computation
//! are they asked for here: then the last piece's gradient is computed in buckets, and the communicator sums each of
//! them while the next is computed.

use std::cell::Cell;
use std::ops::Range;

use volley_proto::spec::PIECE;

use super::{Fit, TAIL, write_tail};
use crate::Result;
use crate::collective::{BufferPart, Communicator};
use crate::network::{Compute, Input, Piece};
use crate::train::agree::gather;
use crate::train::batch::Batch;
use crate::train::schedule::Place;
use crate::train::trace;
use crate::train::{dropout, loss};

/// Rows whose losses one thread sums.
const BLOCK: usize = 256;

/// Destination of a piece's gradient.
enum Target<'s, 'b> {
    /// The gradient as a whole.
    Flat,
    /// Buckets, which are handed over once they are complete. The one with the tail gets the weighted sum of the losses
    /// of all pieces, of which `before` is that of the pieces before.
    Buckets {
        parts: Vec<BufferPart<'b>>,
        sum: &'s mut dyn FnMut(BufferPart<'b>),
        before: f64,
    },
}

impl<C: Compute> Fit<'_, C> {
    /// Computes this rank's part of the gradient of a global batch of weight `all`. Returns the weighted sum
    /// of its losses.
    pub(super) fn backward(&mut self, places: &[Place], batch: Batch, all: f64) -> Result<f64> {
        let rows = batch.len();
        if rows == 0 {
            self.network
                .zero_gradient(&mut self.tools.gradient[..self.len])?;
            return Ok(0.0);
        }
        let pieces = self.pieces(rows);
        if pieces.len() == 1 {
            return self.backward_piece(places, batch, all, Piece::WHOLE, Target::Flat);
        }
        let mut total = 0.0;
        for (own, piece) in pieces {
            let part = batch.slice(own.start, own.len());
            total += self.backward_piece(&places[own], part, all, piece, Target::Flat)?;
        }
        Ok(total)
    }

    /// Returns the rows of each piece of a batch.
    fn pieces(&self, rows: usize) -> Vec<(Range<usize>, Piece)> {
        let most = rows.div_ceil(self.spec.accumulate).clamp(1, PIECE);
        let pieces = (0..rows).step_by(most).map(|start| {
            let end = rows.min(start + most);
            let piece = Piece {
                first: start == 0,
                last: end == rows,
            };
            (start..end, piece)
        });
        pieces.collect()
    }

    /// Agrees with the other ranks on whether sums overlap with the computation of gradients: only if every rank can
    /// hand over buckets, there are several, and they go to other hosts or devices compute all of them. Within a host a
    /// sum costs processor time alone, which the computation on a CPU would lack. Linked devices sum by themselves.
    pub(super) fn agree_on_overlap(&mut self, communicator: &mut Communicator) -> Result<bool> {
        if communicator.world_size() == 1 || self.tools.linked {
            return Ok(false);
        }
        let own = [
            self.network.buckets().len() > 1,
            communicator.has_distant_peers(),
            self.network.leaves_processor(),
        ];
        let all = gather(&own, "buckets", communicator)?;
        let can = all.iter().all(|[several, ..]| *several);
        let are_distant = all.iter().any(|[_, distant, _]| *distant);
        let on_devices = all.iter().all(|[.., on_device]| *on_device);
        Ok(can && (are_distant || on_devices))
    }

    /// Returns the ranges of the gradient's buckets with its tail, which belongs to the last parameters'.
    pub(super) fn summed_ranges(&mut self) -> Vec<Range<usize>> {
        let mut ranges = self.network.buckets();
        for range in &mut ranges {
            if range.end == self.len {
                range.end += TAIL;
            }
        }
        ranges
    }

    /// Computes the gradient as [`backward`](Self::backward) does, and sums it and its tail over the ranks: each bucket
    /// while the next ones are computed.
    pub(super) fn backward_and_reduce(
        &mut self,
        places: &[Place],
        batch: Batch,
        all: f64,
        communicator: &mut Communicator,
    ) -> Result<()> {
        let ranges = self.summed_ranges();
        let mut pieces = self.pieces(batch.len());
        let last = pieces.pop();
        let mut before = 0.0;
        for (own, piece) in pieces {
            let part = batch.slice(own.start, own.len());
            before += self.backward_piece(&places[own], part, all, piece, Target::Flat)?;
        }
        let number = self.position.steps + 1;
        let mut gradient = std::mem::take(&mut self.tools.gradient);
        let summed = communicator.all_reduce_sum_beside(&mut gradient, &ranges, |parts, sum| {
            match last {
                None => {
                    for mut part in parts {
                        // The tail is a loss of zero.
                        part.fill(0.0);
                        sum(part);
                    }
                }
                Some((own, piece)) => {
                    let batch = match piece {
                        Piece::WHOLE => batch,
                        _ => batch.slice(own.start, own.len()),
                    };
                    let target = Target::Buckets { parts, sum, before };
                    self.backward_piece(&places[own], batch, all, piece, target)?;
                }
            }
            // The rest of the sums is what the computation did not hide.
            self.tools.trace.ends(trace::Part::Backward, number);
            Ok(())
        });
        self.tools.gradient = gradient;
        summed
    }

    fn backward_piece(
        &mut self,
        places: &[Place],
        batch: Batch,
        all: f64,
        piece: Piece,
        target: Target<'_, '_>,
    ) -> Result<f64> {
        let rows = batch.len();
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
        let threads = &self.tools.threads;
        // The loss is known before the gradient is, and goes with a bucket of it.
        let total = Cell::new(0.0);
        let slopes = |all: &[f32]| {
            // Losses are summed by blocks, so the number of threads does not affect the sum.
            let mut losses = vec![0.0; rows.div_ceil(BLOCK)];
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
            total.set(losses.iter().sum::<f64>() / trained as f64);
            slopes
        };
        let (network, end) = (&mut self.network, self.len + TAIL);
        match target {
            Target::Flat => {
                let gradient = &mut self.tools.gradient[..self.len];
                network.gradient(input, slopes, piece, gradient)?;
            }
            Target::Buckets { parts, sum, before } => {
                network.gradient_in_buckets(input, slopes, piece, parts, &mut |mut part| {
                    write_tail(&mut part, end, before + total.get());
                    sum(part);
                })?;
            }
        }
        Ok(total.get())
    }
}
