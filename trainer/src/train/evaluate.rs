//! Evaluation: this rank's evaluation rows through the network as it stands.

use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::fit::{Fit, check};
use super::metrics::Sums;
use super::schedule::Place;
use crate::Result;
use crate::encode::Settled;
use crate::network::{Compute, Input};

/// Rows of one batch.
const BATCH: usize = 4096;

impl<C: Compute> Fit<'_, C> {
    /// Adds up the metrics of this rank's evaluation rows.
    pub(super) fn evaluate(&mut self, sums: &mut Sums, cancel: &CancellationToken) -> Result<()> {
        let eval_rows = |(shard, settled): (usize, &Settled)| {
            let rows = settled.eval.len() as u32;
            (0..rows).map(move |row| Place {
                shard: shard as u32,
                row,
            })
        };
        let places: Vec<Place> = self.shards.iter().enumerate().flat_map(eval_rows).collect();
        for places in places.chunks(BATCH) {
            check(cancel)?;
            let mut batch = Batch::gather(self.shards, |shard| &shard.eval, places);
            if self.architecture.batch_norm {
                self.running.apply(&mut batch.continuous);
            }
            let Batch {
                codes,
                continuous,
                labels,
                ..
            } = batch;
            let input = Input {
                rows: labels.len(),
                codes,
                continuous,
                dropout: None,
            };
            let predictions = self.network.predict(input);
            let transform = self.spec.label.transform;
            for (y, label) in predictions.iter().zip(labels) {
                sums.evaluated(self.spec.loss, transform, f64::from(*y), f64::from(label));
            }
        }
        Ok(())
    }
}
