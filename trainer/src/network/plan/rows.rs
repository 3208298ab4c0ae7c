//! Training rows on a device: all rows of a rank's shards, or [windows](super::windows) of them.
//!
//! It does not decide which rows fit.

use super::step::{Objective, ShardRows};
use crate::Result;
use crate::device::{Address, Memory, Runtime};
use crate::network::Architecture;
use std::rc::Rc;

/// Columns of rows in a device's memory, with C categorical features, N numbers and L labels.
#[derive(Debug)]
pub(super) struct RowMemory {
    /// `[rows]`
    pub(super) keys: Memory,
    /// `[rows × C]`
    pub(super) codes: Memory,
    /// `[rows × N]`
    pub(super) numbers: Memory,
    /// `[rows × L]`
    pub(super) labels: Memory,
    /// `[rows]`, unless all weights are 1.
    pub(super) weights: Option<Memory>,
    /// `[rows]`, with cross-validation.
    pub(super) folds: Option<Memory>,
    /// `[rows]`: the global number of each row's shard.
    pub(super) shards: Memory,
    /// `[rows]`: the index of each row in its shard.
    pub(super) places: Memory,
    /// Row that fills the places beyond a step's rows.
    pub(super) spare: usize,
}

/// Widths and presence of the columns of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Widths {
    pub(super) categorical: usize,
    pub(super) continuous: usize,
    pub(super) labels: usize,
    pub(super) weighted: bool,
    pub(super) folded: bool,
}

impl Widths {
    pub(super) fn of(
        architecture: &Architecture,
        shards: &[ShardRows<'_>],
        objective: &Objective<'_>,
    ) -> Self {
        Self {
            categorical: architecture.categorical,
            continuous: architecture.continuous,
            labels: objective.labels,
            weighted: shards.iter().any(|rows| !rows.weights.is_empty()),
            folded: shards.iter().any(|rows| !rows.folds.is_empty()),
        }
    }

    /// Returns the bytes of a row's part of each column, in the order of [`RowMemory::addresses`].
    pub(super) fn bytes(self) -> [usize; 8] {
        [
            8,
            4 * self.categorical,
            4 * self.continuous,
            4 * self.labels,
            4 * usize::from(self.weighted),
            4 * usize::from(self.folded),
            4,
            4,
        ]
    }

    /// Returns the bytes of a row.
    pub(super) fn row(self) -> usize {
        self.bytes().iter().sum()
    }
}

/// A row that can be computed but belongs to no shard.
struct Filler {
    codes: Vec<u32>,
    numbers: Vec<f32>,
    labels: Vec<f32>,
}

impl Filler {
    fn of(architecture: &Architecture, labels: usize) -> Self {
        let tables = architecture.tables().first();
        let widths = tables.map_or(&[][..], |table| &table.widths);
        // The first code of each feature.
        let firsts = widths.iter().scan(0, |end, (codes, _)| {
            let first = *end;
            *end += *codes as u32;
            Some(first)
        });
        Self {
            codes: firsts.collect(),
            numbers: vec![0.0; architecture.continuous],
            labels: vec![0.0; labels],
        }
    }
}

impl RowMemory {
    /// Copies all rows to the device.
    pub(super) fn whole(
        runtime: &Rc<dyn Runtime>,
        architecture: &Architecture,
        shards: &[ShardRows<'_>],
        widths: Widths,
    ) -> Result<Self> {
        let count: usize = shards.iter().map(|rows| rows.keys.len()).sum();
        let (mut ids, mut places) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut weights = Vec::new();
        for rows in shards {
            let len = rows.keys.len();
            ids.extend(std::iter::repeat_n(rows.shard as u32, len));
            places.extend(0..len as u32);
            if widths.weighted {
                let rest = std::iter::repeat_n(1.0, len - rows.weights.len());
                weights.extend(rows.weights.iter().copied().chain(rest));
            }
        }
        let folds = shards
            .iter()
            .flat_map(|rows| rows.folds)
            .map(|fold| u32::from(*fold));
        let folds: Vec<u32> = folds.collect();
        let filler = Filler::of(architecture, widths.labels);
        // A rank without rows holds one that fills the places of its steps.
        let one = [ShardRows {
            codes: &filler.codes,
            numbers: &filler.numbers,
            labels: &filler.labels,
            keys: &[0],
            ..ShardRows::default()
        }];
        let shards = match count {
            0 => {
                (ids, places) = (vec![0], vec![0]);
                &one[..]
            }
            _ => shards,
        };
        Ok(Self {
            keys: Memory::of_parts(runtime, shards.iter().map(|rows| rows.keys))?,
            codes: Memory::of_parts(runtime, shards.iter().map(|rows| rows.codes))?,
            numbers: Memory::of_parts(runtime, shards.iter().map(|rows| rows.numbers))?,
            labels: Memory::of_parts(runtime, shards.iter().map(|rows| rows.labels))?,
            weights: Memory::of_some(runtime, &weights)?,
            folds: Memory::of_some(runtime, &folds)?,
            shards: Memory::of(runtime, &ids)?,
            places: Memory::of(runtime, &places)?,
            spare: 0,
        })
    }

    /// Allocates room for this many rows, and one that fills the places beyond a step's rows.
    pub(super) fn room(
        runtime: &Rc<dyn Runtime>,
        architecture: &Architecture,
        rows: usize,
        widths: Widths,
    ) -> Result<Self> {
        let column = |bytes: usize| Memory::new(runtime, bytes * (rows + 1));
        let [keys, codes, numbers, labels, weights, folds, shards, places] = widths.bytes();
        let some = |bytes: usize| (bytes > 0).then(|| column(bytes)).transpose();
        let room = Self {
            keys: column(keys)?,
            codes: column(codes)?,
            numbers: column(numbers)?,
            labels: column(labels)?,
            weights: some(weights)?,
            folds: some(folds)?,
            shards: column(shards)?,
            places: column(places)?,
            spare: rows,
        };
        // All other columns of this row are 0.
        room.codes
            .write(codes * rows, &Filler::of(architecture, 0).codes)?;
        Ok(room)
    }

    /// Returns the address of each column, in the order of [`Widths::bytes`]; 0 for one that is not there.
    pub(super) fn addresses(&self) -> [Address; 8] {
        let optional = |memory: &Option<Memory>| memory.as_ref().map_or(0, Memory::at);
        [
            self.keys.at(),
            self.codes.at(),
            self.numbers.at(),
            self.labels.at(),
            optional(&self.weights),
            optional(&self.folds),
            self.shards.at(),
            self.places.at(),
        ]
    }
}
