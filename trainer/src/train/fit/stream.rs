//! Rows of an epoch's steps for a device that does not hold them: gathered from shards in memory or in files.
//!
//! It does not decide when: the device's windows do.

use std::ops::Range;

use crate::encode::Settled;
use crate::network::{RowSource, RowsMut};
use crate::threads::Threads;
use crate::train::batch::gather_into;
use crate::train::schedule::{Epoch, Place};

/// Bytes of rows in files that are read ahead at a time.
pub(super) const READ_AHEAD: usize = 16 << 20;

/// Rows of an epoch, in its order.
#[derive(Debug)]
pub(super) struct EpochSource<'a> {
    pub(super) epoch: &'a Epoch,
    pub(super) shards: &'a [Settled],
    /// The shards' global numbers.
    pub(super) ids: &'a [usize],
    /// The first step that is taken of the epoch, until it is.
    pub(super) first: Option<u64>,
    pub(super) threads: &'a Threads,
}

impl RowSource for EpochSource<'_> {
    fn gather(&self, steps: Range<usize>, to: RowsMut<'_>) {
        let mut places: Vec<Place> = Vec::new();
        for step in steps.start as u64..steps.end as u64 {
            let first = self.first == Some(step);
            self.epoch.read_ahead(step, first, READ_AHEAD);
            places.extend(self.epoch.step(step));
        }
        let of = |place: &Place| {
            let rows = self.epoch.rows(place.shard as usize, self.shards);
            (rows, place.at as usize)
        };
        let RowsMut {
            keys,
            codes,
            numbers,
            labels,
            weights,
            folds,
            shards,
            places: in_shards,
        } = to;
        gather_into(keys, &places, of, |rows| &rows.keys, self.threads);
        gather_into(codes, &places, of, |rows| &rows.codes, self.threads);
        gather_into(numbers, &places, of, |rows| &rows.continuous, self.threads);
        gather_into(labels, &places, of, |rows| &rows.labels, self.threads);
        for (to, place) in weights.iter_mut().zip(&places) {
            let (rows, at) = of(place);
            *to = rows.weight(at);
        }
        for (to, place) in folds.iter_mut().zip(&places) {
            let (rows, at) = of(place);
            *to = u32::from(rows.folds[at]);
        }
        for (to, place) in shards.iter_mut().zip(&places) {
            *to = self.ids[place.shard as usize] as u32;
        }
        for (to, place) in in_shards.iter_mut().zip(&places) {
            *to = place.row;
        }
    }
}
