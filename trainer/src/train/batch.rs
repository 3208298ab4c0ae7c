//! Batches: rows gathered from shards.

use bytemuck::Pod;

use super::schedule::Place;
use crate::encode::{Rows, Stored};
use crate::threads::Threads;

/// The rows of a batch, one after the other; continuous features are not normalized.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) codes: Vec<u32>,
    pub(super) continuous: Vec<f32>,
    /// Values of all labels.
    pub(super) labels: Vec<f32>,
    pub(super) weights: Vec<f32>,
    /// Ensemble member that holds out each row; empty without cross-validation.
    pub(super) folds: Vec<u8>,
    /// The wrapping sum of the rows' keys.
    pub(super) checksum: u64,
}

impl Batch {
    /// Copies the rows at `places`; `rows` returns a shard's rows by its index.
    pub(super) fn gather<'r>(
        rows: impl Fn(usize) -> &'r Rows + Sync,
        places: &[Place],
        threads: &Threads,
    ) -> Self {
        let of = |place: &Place| (rows(place.shard as usize), place.at as usize);
        Self {
            codes: gathered(places, of, |rows| &rows.codes, threads),
            continuous: gathered(places, of, |rows| &rows.continuous, threads),
            ..Self::labels(&rows, places)
        }
    }

    /// Copies the rows at `places` without their features.
    pub(super) fn labels<'r>(rows: impl Fn(usize) -> &'r Rows, places: &[Place]) -> Self {
        let of = |place: &Place| (rows(place.shard as usize), place.at as usize);
        let mut batch = Self::default();
        for place in places {
            let (rows, at) = of(place);
            batch
                .labels
                .extend_from_slice(row(&rows.labels, rows.len(), at));
            batch.weights.push(rows.weight(at));
            batch.folds.extend(rows.folds.get(at));
            batch.checksum = batch.checksum.wrapping_add(rows.keys[at]);
        }
        batch
    }

    /// Returns a range of its rows; the checksum remains that of all rows.
    pub(super) fn slice(&self, first: usize, rows: usize) -> Self {
        let part = |values: &[f32]| {
            let width = values.len() / self.len();
            values[first * width..(first + rows) * width].to_vec()
        };
        let width = self.codes.len() / self.len();
        Self {
            codes: self.codes[first * width..(first + rows) * width].to_vec(),
            continuous: part(&self.continuous),
            labels: part(&self.labels),
            weights: part(&self.weights),
            folds: match self.folds.is_empty() {
                true => vec![],
                false => self.folds[first..first + rows].to_vec(),
            },
            checksum: self.checksum,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.weights.len()
    }
}

/// Copies one kind of value of the rows at `places`, one row after the other.
fn gathered<'a, T: Pod + Send + Sync>(
    places: &[Place],
    of: impl Fn(&Place) -> (&'a Rows, usize) + Sync,
    values: fn(&Rows) -> &Stored<T>,
    threads: &Threads,
) -> Vec<T> {
    let width = places.first().map_or(0, |place| {
        let (rows, at) = of(place);
        row(values(rows), rows.len(), at).len()
    });
    let mut all = vec![T::zeroed(); places.len() * width];
    gather_into(&mut all, places, of, values, threads);
    all
}

/// Copies one kind of value of the rows at `places` to `all`, one row after the other.
pub(super) fn gather_into<'a, T: Pod + Send + Sync>(
    all: &mut [T],
    places: &[Place],
    of: impl Fn(&Place) -> (&'a Rows, usize) + Sync,
    values: fn(&Rows) -> &Stored<T>,
    threads: &Threads,
) {
    let width = all.len() / places.len().max(1);
    threads.rows(all, width, 4, |own, all| {
        for (place, to) in places[own].iter().zip(all.chunks_exact_mut(width)) {
            let (rows, at) = of(place);
            to.copy_from_slice(row(values(rows), rows.len(), at));
        }
    });
}

fn row<T>(values: &[T], rows: usize, at: usize) -> &[T] {
    let width = values.len() / rows;
    &values[at * width..(at + 1) * width]
}
