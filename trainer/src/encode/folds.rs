//! Cross-validation: the fold of each row, which one member of an ensemble holds out.
//!
//! Rows with equal hashes are in the same fold. All ranks' rows together decide whether folds are needed.

use super::load::LoadedShards;
use super::shard::Part;
use super::stored::Stored;

impl LoadedShards {
    /// Counts the rows in each of `folds` folds.
    pub(crate) fn rows_by_fold(&self, folds: usize) -> Vec<f64> {
        let mut rows = vec![0.0; folds];
        for fold in self.shards.iter().flat_map(|shard| &shard.folds) {
            rows[usize::from(*fold)] += 1.0;
        }
        rows
    }

    /// Keeps the folds and trains on all rows, each held out by one member; or drops the folds.
    pub(crate) fn settle_folds(&mut self, cross_validates: bool) {
        for shard in &mut self.shards {
            match cross_validates {
                true => shard.parts.fill(Part::Train),
                false => shard.folds = Stored::default(),
            }
        }
    }
}
