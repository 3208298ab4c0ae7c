//! Packing: copies of a matrix's blocks in the order in which a micro-kernel reads them.
//!
//! A micro-panel has some lanes, rows of the left-hand matrix or columns of the right-hand one. It holds, for each
//! depth, the numbers of its lanes side by side.

use std::ops::Range;

use super::kernel::{Processor, prefetch_early};
use super::{LINE, Matrix};

/// Source of panels: a matrix of depths × lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    data: &'a [f32],
    /// Length of a row of `data`.
    row: usize,
    /// A row of `data` holds a depth's lanes; otherwise, a lane's depths.
    across: bool,
}

impl<'a> Source<'a> {
    pub(super) fn of(matrix: Matrix<'a>) -> Self {
        let across = !matrix.transposed;
        Self {
            data: matrix.data,
            row: if across { matrix.columns } else { matrix.rows },
            across,
        }
    }

    /// Fills lanes of a panel that is as deep as the range. The panel's other lanes are unspecified.
    pub(super) fn pack<P, const MR: usize, const NR: usize, const LANES: usize>(
        &self,
        processor: P,
        lanes: Range<usize>,
        depth: Range<usize>,
        panel: &mut [[f32; LANES]],
    ) where
        P: Processor<MR, NR>,
    {
        if self.across {
            let from = &self.data[depth.start * self.row + lanes.start..];
            let rows = panel.iter_mut().zip(from.chunks(self.row));
            if lanes.len() == LANES {
                rows.for_each(|(to, from)| to.copy_from_slice(&from[..LANES]));
            } else {
                let lanes = lanes.len();
                rows.for_each(|(to, from)| to[..lanes].copy_from_slice(&from[..lanes]));
            }
            return;
        }
        // The last lane stands in for missing ones.
        let rows = std::array::from_fn(|lane| {
            let lane = (lanes.start + lane).min(lanes.end - 1);
            &self.data[lane * self.row..][depth.clone()]
        });
        processor.transpose(rows, panel);
    }

    /// Returns the cache lines that a panel is copied from.
    pub(super) fn lines(&self, lanes: Range<usize>, depth: Range<usize>) -> Lines<'a> {
        let (rows, columns) = if self.across {
            (depth, lanes)
        } else {
            (lanes, depth)
        };
        Lines {
            data: self.data,
            row: self.row,
            at: columns.start,
            rows: if columns.is_empty() { 0..0 } else { rows },
            columns,
            share: 0,
        }
    }
}

/// Rectangle of a matrix, as cache lines.
#[derive(Debug, Default)]
pub(super) struct Lines<'a> {
    data: &'a [f32],
    row: usize,
    /// Remaining rows.
    rows: Range<usize>,
    columns: Range<usize>,
    /// Next column of the first remaining row.
    at: usize,
    /// Lines to prefetch during a tile.
    share: usize,
}

impl<'a> Lines<'a> {
    /// Returns the cache lines of these numbers.
    pub(super) fn of(data: &'a [f32]) -> Self {
        Self {
            data,
            row: data.len(),
            rows: 0..usize::from(!data.is_empty()),
            columns: 0..data.len(),
            at: 0,
            share: 0,
        }
    }

    /// Distributes the lines over this many tiles.
    pub(super) fn over(mut self, tiles: usize) -> Self {
        let lines = self.rows.len() * self.columns.len().div_ceil(LINE);
        self.share = lines.div_ceil(tiles);
        self
    }

    /// Returns the number of lines to prefetch during a tile.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// Prefetches the next lines into the second-level cache. Each is named by its last number: if rows are not aligned,
    /// its first number is in the line before, which belongs to the neighbouring panel.
    #[inline(always)]
    pub(super) fn prefetch(&mut self, count: usize) {
        for _ in 0..count {
            if self.rows.is_empty() {
                return;
            }
            let end = self.columns.end.min(self.at + LINE);
            let last = self.rows.start * self.row + end - 1;
            prefetch_early(self.data.as_ptr().wrapping_add(last));
            self.at = end;
            if end == self.columns.end {
                self.rows.start += 1;
                self.at = self.columns.start;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Portable;
    use super::*;

    /// Packs some lanes, from the second one on, of a matrix whose data has a lane in each row.
    fn assert_packed<const LANES: usize>(count: usize) {
        const DEPTHS: usize = 19;
        let data: Vec<f32> = (0..(LANES + 1) * DEPTHS).map(|at| at as f32).collect();
        let matrix = Matrix::new(&data, LANES + 1, DEPTHS).transposed();
        let mut panel = vec![[f32::NAN; LANES]; DEPTHS];
        let (lanes, depth) = (1..1 + count, 0..DEPTHS);
        Source::of(matrix).pack::<_, 6, 8, LANES>(Portable, lanes, depth, &mut panel);
        for (depth, packed) in panel.iter().enumerate() {
            for (lane, number) in packed.iter().enumerate().take(count) {
                let expected = ((lane + 1) * DEPTHS + depth) as f32;
                assert_eq!(
                    *number, expected,
                    "{lane} of {count} of {LANES}, at {depth}"
                );
            }
        }
    }

    /// Covers the panel sizes of every kind of processor.
    #[test]
    fn lanes_of_any_number_are_transposed() {
        (1..=6).for_each(assert_packed::<6>);
        (1..=8).for_each(assert_packed::<8>);
        (1..=12).for_each(assert_packed::<12>);
        (1..=16).for_each(assert_packed::<16>);
        (1..=32).for_each(assert_packed::<32>);
    }
}
