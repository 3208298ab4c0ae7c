//! Windows of rows, for a shard larger than the device: rows of the next steps are gathered and copied while the device
//! computes.
//!
//! ```text
//!  host           gather w+1 ──▶ pinned buffer 1 ┐        gather w+2 ──▶ pinned buffer 0 ┐
//!  second stream                                 └ copy ┐                                └ copy …
//!  device rows    window w in half 0              window w+1 in half 1
//!  work           steps of w ───────────────────▶ steps of w+1 ───────────────────────▶ …
//! ```
//!
//! A window is some consecutive steps of an epoch, in the epoch's order; halves and buffers take turns. A half is copied
//! to only after the last step over what it held, and a step waits for the copy of its rows, both on the device: the
//! host waits only to reuse a pinned buffer. Rows come at most a window ahead of the steps, and about two for each step
//! that is queued, so that gathering them takes no longer than a turn.
//!
//! The same rows are in the same places of the same steps as if the device held all of them. It does not gather rows:
//! a [`RowSource`] does.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use volley_proto::spec::WINDOW;

use super::rows::{RowMemory, Widths};
use crate::Result;
use crate::device::{Pinned, Runtime, Transfer};

/// Steps whose rows are brought ahead for each step that is queued.
const AHEAD: usize = 2;
/// Bytes that the rounding of allocations may take.
const ROUNDING: usize = 4 << 10;

/// Rows of an epoch in host memory.
pub(crate) trait RowSource: fmt::Debug {
    /// Copies the rows of these steps, step after step.
    fn gather(&self, steps: Range<usize>, to: RowsMut<'_>);
}

/// Room for consecutive rows in host memory, with C categorical features, N numbers and L labels.
#[derive(Debug)]
pub(crate) struct RowsMut<'a> {
    /// `[rows]`
    pub(crate) keys: &'a mut [u64],
    /// `[rows × C]`
    pub(crate) codes: &'a mut [u32],
    /// `[rows × N]`
    pub(crate) numbers: &'a mut [f32],
    /// `[rows × L]`
    pub(crate) labels: &'a mut [f32],
    /// `[rows]`; empty where all weights are 1.
    pub(crate) weights: &'a mut [f32],
    /// `[rows]`; empty without cross-validation.
    pub(crate) folds: &'a mut [u32],
    /// `[rows]`: the global number of each row's shard.
    pub(crate) shards: &'a mut [u32],
    /// `[rows]`: the index of each row in its shard.
    pub(crate) places: &'a mut [u32],
}

/// Sizes of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowSize {
    /// Steps of a window.
    pub(super) steps: usize,
    /// Rows of a window, at most.
    pub(super) rows: usize,
}

impl WindowSize {
    /// Returns the size of windows for steps of at most `step` rows, in `free` bytes of a device; `None` if two steps do
    /// not fit.
    pub(super) fn fitting(widths: Widths, step: usize, free: u64) -> Option<Self> {
        let step = step.max(1);
        let free = usize::try_from(free).unwrap_or(usize::MAX);
        let half = free.saturating_sub(ROUNDING + widths.row()) / 2;
        let steps = half.min(WINDOW) / (step * widths.row());
        // One step may be larger than a window of several.
        let steps = match steps {
            0 if step * widths.row() <= half => 1,
            steps => steps,
        };
        (steps > 0).then_some(Self {
            steps,
            rows: steps * step,
        })
    }
}

/// Windows of an epoch's rows.
#[derive(Debug)]
pub(super) struct Windows {
    buffers: [Pinned; 2],
    pub(super) size: WindowSize,
    widths: Widths,
    /// Offset of each step's first row in the epoch, and the end of the last step.
    starts: Vec<u32>,
    /// First step of the first window.
    begun: usize,
    /// First step whose rows are not brought.
    brought: usize,
}

impl Windows {
    /// Pins the buffers; the device's memory for rows must have been allocated before.
    ///
    /// # Errors
    /// When the host does not pin so much memory.
    pub(super) fn new(runtime: &Rc<dyn Runtime>, size: WindowSize, widths: Widths) -> Result<Self> {
        let buffer = || Pinned::new(runtime, size.rows * widths.row());
        Ok(Self {
            buffers: [buffer()?, buffer()?],
            size,
            widths,
            starts: vec![0],
            begun: 0,
            brought: 0,
        })
    }

    /// Begins an epoch, or the rest of one. Returns the place of each step's first row.
    ///
    /// # Panics
    /// If a step has more rows than was announced.
    pub(super) fn begin(&mut self, starts: &[u32], step: usize) -> Result<Vec<u32>> {
        for buffer in &self.buffers {
            // Rows of an epoch that ended early may be on their way.
            buffer.arrive()?;
            buffer.retire()?;
        }
        self.starts = starts.to_vec();
        (self.begun, self.brought) = (step, step);
        let most = starts.windows(2).map(|step| step[1] - step[0]).max();
        let each = self.size.rows / self.size.steps;
        assert!(
            most.unwrap_or(0) as usize <= each,
            "a step's rows have room"
        );
        let places = (0..self.steps()).map(|at| match at < step {
            true => 0,
            false => self.place(at) as u32,
        });
        Ok(places.collect())
    }

    /// Queues steps with `take`, one after the other, and brings rows for those that follow.
    pub(super) fn run(
        &mut self,
        steps: Range<usize>,
        memory: &RowMemory,
        rows: &dyn RowSource,
        mut take: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut at = steps.start;
        while at < steps.end {
            self.bring(at + 1, memory, rows)?;
            let end = self.end(at);
            let until = steps.end.min(end).min(self.brought);
            let half = self.window(at) % 2;
            self.buffers[half].arrive()?;
            for _ in at..until {
                take()?;
            }
            if until == end {
                self.buffers[half].retire()?;
            }
            let ahead = (AHEAD * (until - at)).min(self.size.steps);
            at = until;
            self.bring(at + ahead, memory, rows)?;
        }
        Ok(())
    }

    /// Brings the rows of the steps before `until`, which must be within the window after that of the next step.
    fn bring(&mut self, until: usize, memory: &RowMemory, rows: &dyn RowSource) -> Result<()> {
        let until = until.min(self.steps());
        while self.brought < until {
            let steps = self.brought..until.min(self.end(self.brought));
            let window = self.window(steps.start);
            let base = self.starts[self.first(window)] as usize;
            let [first, last] = [steps.start, steps.end].map(|at| self.starts[at] as usize - base);
            let (buffer, widths, size) = (&self.buffers[window % 2], self.widths, self.size);
            buffer.fill(|bytes| {
                let to = columns(bytes, widths, size.rows, first..last);
                rows.gather(steps.clone(), to);
            })?;
            let (mut transfers, mut from) = (Vec::with_capacity(8), 0);
            for (width, to) in widths.bytes().into_iter().zip(memory.addresses()) {
                let at = (window % 2) * size.rows + first;
                let transfer = Transfer {
                    offset: from + width * first,
                    at: to + (width * at) as u64,
                    bytes: width * (last - first),
                };
                transfers.extend((transfer.bytes > 0).then_some(transfer));
                from += width * size.rows;
            }
            buffer.transfer(&transfers)?;
            self.brought = steps.end;
        }
        Ok(())
    }

    /// Returns the number of the epoch's steps.
    fn steps(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the window of a step.
    fn window(&self, step: usize) -> usize {
        (step - self.begun) / self.size.steps
    }

    /// Returns the first step of a window.
    fn first(&self, window: usize) -> usize {
        self.begun + window * self.size.steps
    }

    /// Returns the end of a step's window.
    fn end(&self, step: usize) -> usize {
        self.first(self.window(step) + 1).min(self.steps())
    }

    /// Returns the place of a step's first row on the device.
    fn place(&self, step: usize) -> usize {
        let window = self.window(step);
        let base = self.starts[self.first(window)];
        (window % 2) * self.size.rows + (self.starts[step] - base) as usize
    }
}

/// Returns some of the rows in a buffer for `capacity` rows, which lie in it column after column.
fn columns(bytes: &mut [u8], widths: Widths, capacity: usize, rows: Range<usize>) -> RowsMut<'_> {
    let mut rest = bytes;
    let columns = widths.bytes().map(|width| {
        let (column, others) = std::mem::take(&mut rest).split_at_mut(width * capacity);
        rest = others;
        &mut column[width * rows.start..width * rows.end]
    });
    let [keys, codes, numbers, labels, weights, folds, shards, places] = columns;
    RowsMut {
        keys: bytemuck::cast_slice_mut(keys),
        codes: bytemuck::cast_slice_mut(codes),
        numbers: bytemuck::cast_slice_mut(numbers),
        labels: bytemuck::cast_slice_mut(labels),
        weights: bytemuck::cast_slice_mut(weights),
        folds: bytemuck::cast_slice_mut(folds),
        shards: bytemuck::cast_slice_mut(shards),
        places: bytemuck::cast_slice_mut(places),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Emulated, Factors};
    use crate::network::plan::tests::{FEATURES, OBJECTIVE, ROWS, Rows, UPDATE, rossmann, rows};
    use crate::network::plan::{
        AllRows, EpochRows, Objective, PlanDevice, Resident, ShardRows, Slot, StepTotal,
    };
    use crate::network::{Compute, Normalization, Plan};

    /// Most rows of a step; the last has fewer.
    const STEP: usize = 7;
    const STEPS: usize = ROWS.div_ceil(STEP);

    #[derive(Debug)]
    struct Shard {
        rows: Rows,
        order: Vec<u32>,
        starts: Vec<u32>,
    }

    impl Shard {
        fn new() -> Self {
            Self {
                rows: rows(),
                order: (0..ROWS).map(|at| (at * 37 % ROWS) as u32).collect(),
                starts: (0..=STEPS).map(|at| (at * STEP).min(ROWS) as u32).collect(),
            }
        }

        fn rows(&self) -> ShardRows<'_> {
            ShardRows {
                shard: 5,
                codes: &self.rows.codes,
                numbers: &self.rows.continuous,
                labels: &self.rows.labels,
                keys: &self.rows.keys,
                ..ShardRows::default()
            }
        }

        /// Returns a plan over these rows on a device with this much memory, if a step fits.
        fn plan(&self, bytes: u64) -> Option<(Rc<Emulated>, Plan, Vec<Slot>)> {
            let runtime = Emulated::of(bytes)?;
            let architecture = rossmann(1);
            let device = PlanDevice {
                runtime: Rc::clone(&runtime) as Rc<dyn Runtime>,
                factors: Factors::F32,
            };
            let values = architecture.initial_values(1);
            let len = values.iter().map(Vec::len).sum();
            let mut plan = Plan::new(&architecture, values, &device).ok()?;
            let slots = [0, 1].map(|_| plan.upload(vec![0.0; len]));
            let slots = slots.into_iter().collect::<Result<_>>().ok()?;
            let objective = Objective {
                rows: STEP,
                evaluated: STEP,
                ..OBJECTIVE
            };
            let held = plan.hold(&[self.rows()], &objective);
            held.unwrap_or(false).then_some((runtime, plan, slots))
        }

        fn begin(&self, plan: &mut Plan, step: usize) {
            let dropouts: Vec<u64> = (0..rossmann(1).dropouts().len() as u64).collect();
            let epoch = EpochRows {
                order: if plan.streams() { &[] } else { &self.order },
                starts: &self.starts,
                numbers: &[UPDATE.numbers(); STEPS],
                dropouts: &dropouts,
                running: &Normalization::unit(FEATURES),
                step,
            };
            plan.begin(&epoch).unwrap();
        }

        /// Takes the rest of an epoch in turns of so many steps.
        fn train(&self, plan: &mut Plan, slots: &[Slot], turn: usize) -> Vec<StepTotal> {
            let mut totals = vec![];
            loop {
                let some = plan.run(turn, slots, self).unwrap();
                if some.is_empty() {
                    return totals;
                }
                totals.extend(some);
            }
        }

        /// Returns plans that hold windows of different sizes.
        fn windowed(&self) -> Vec<(Rc<Emulated>, Plan, Vec<Slot>)> {
            let mut found: Vec<(Rc<Emulated>, Plan, Vec<Slot>)> = vec![];
            for bytes in (1..).map(|at| at << 10) {
                let Some(plan) = self.plan(bytes) else {
                    assert!(bytes < 1 << 30, "a step fits");
                    continue;
                };
                if !plan.1.streams() {
                    break;
                }
                let size = |plan: &Plan| plan.held.as_ref().unwrap().windows().size;
                if found
                    .last()
                    .is_none_or(|last| size(&last.1) != size(&plan.1))
                {
                    found.push(plan);
                }
            }
            assert!(found.len() > 2, "{} sizes", found.len());
            found
        }
    }

    impl RowSource for Shard {
        fn gather(&self, steps: Range<usize>, to: RowsMut<'_>) {
            let rows = self.starts[steps.start] as usize..self.starts[steps.end] as usize;
            assert!(to.weights.is_empty() && to.folds.is_empty());
            for (at, row) in self.order[rows].iter().enumerate() {
                let from = *row as usize;
                let of = |at: usize| at * FEATURES..(at + 1) * FEATURES;
                to.codes[of(at)].copy_from_slice(&self.rows.codes[of(from)]);
                to.numbers[of(at)].copy_from_slice(&self.rows.continuous[of(from)]);
                to.labels[at] = self.rows.labels[from];
                to.keys[at] = self.rows.keys[from];
                (to.shards[at], to.places[at]) = (5, *row);
            }
        }
    }

    #[test]
    fn windows_give_the_same_bits_and_each_row_is_copied_once() {
        let shard = Shard::new();
        let Some((_, mut whole, kept)) = shard.plan(u64::MAX) else {
            return;
        };
        let initial = whole.values().unwrap();
        for (runtime, mut plan, slots) in shard.windowed() {
            let size = plan.held.as_ref().unwrap().windows().size;
            assert!(2 * size.steps < STEPS, "{size:?}");
            for (step, turn) in [(0, STEPS), (0, 1), (4, 3), (STEPS - 1, 2), (3, 5)] {
                for plan in [&mut whole, &mut plan] {
                    plan.put(&initial).unwrap();
                    shard.begin(plan, step);
                }
                for slot in kept.iter().chain(&slots) {
                    slot.memory
                        .write(0, &vec![0.0_f32; slot.layers.layout.len()])
                        .unwrap();
                }
                let due = shard.train(&mut whole, &kept, turn);
                let before = runtime.counters().get();
                let found = shard.train(&mut plan, &slots, turn);
                let after = runtime.counters().get();
                assert_eq!(found, due, "{size:?}, {step}, {turn}");
                assert_eq!(plan.values().unwrap(), whole.values().unwrap());
                assert_eq!(plan.running().unwrap(), whole.running().unwrap());
                let steps = STEPS - step;
                assert_eq!(after.replays - before.replays, steps as u64);
                assert_eq!(after.launches, before.launches);
                assert_eq!(after.writes, before.writes);
                // The totals of each turn are all that is read.
                assert_eq!(after.reads - before.reads, steps.div_ceil(turn) as u64);
                let rows = ROWS - step * STEP;
                let bytes = rows * (8 + 4 * (2 * FEATURES + 3));
                let copied = after.bytes_transferred - before.bytes_transferred;
                assert_eq!(copied, bytes as u64);
            }
            let pinned = 2 * size.rows * (8 + 4 * (2 * FEATURES + 3));
            assert_eq!(runtime.counters().get().bytes_pinned, pinned as u64);
            drop((plan, slots));
            let left = runtime.counters().get();
            assert_eq!((left.bytes_pinned, left.bytes_held), (0, 0));
        }
    }

    #[test]
    fn steps_that_end_early_leave_nothing_behind() {
        let shard = Shard::new();
        let Some((_, mut whole, kept)) = shard.plan(u64::MAX) else {
            return;
        };
        shard.begin(&mut whole, 2);
        let due = shard.train(&mut whole, &kept, 4);
        for (_, mut plan, slots) in shard.windowed() {
            let initial = plan.values().unwrap();
            for taken in [0, 1, 2, 5] {
                shard.begin(&mut plan, 0);
                plan.run(taken, &slots, &shard).unwrap();
            }
            plan.put(&initial).unwrap();
            for slot in &slots {
                slot.memory
                    .write(0, &vec![0.0_f32; slot.layers.layout.len()])
                    .unwrap();
            }
            shard.begin(&mut plan, 2);
            assert_eq!(shard.train(&mut plan, &slots, 4), due);
        }
    }

    #[test]
    fn steps_that_are_shared_with_peers_have_the_same_rows() {
        let shard = Shard::new();
        let Some((_, mut whole, _)) = shard.plan(u64::MAX) else {
            return;
        };
        for (_, mut plan, _) in shard.windowed() {
            for first in [0, 4] {
                shard.begin(&mut whole, first);
                shard.begin(&mut plan, first);
                for step in first..STEPS {
                    let due = whole.gather(step, &shard).unwrap();
                    assert_eq!(plan.gather(step, &shard).unwrap(), due);
                    let all = AllRows {
                        weight: 20.0,
                        statistics: &Normalization::unit(FEATURES),
                    };
                    let loss = whole.backward(&all).unwrap();
                    let mut due = vec![0.0; whole.layers.layout.count()];
                    let mut found = vec![f32::NAN; due.len()];
                    whole.read_gradient(&mut due).unwrap();
                    if step % 2 == 0 {
                        assert_eq!(plan.backward(&all).unwrap(), loss);
                        plan.read_gradient(&mut found).unwrap();
                    } else {
                        let ranges = plan.buckets();
                        let mut next = ranges.iter();
                        let taken = plan.backward_in_buckets(&all, &mut |of_losses, copy| {
                            assert_eq!(of_losses, loss);
                            copy(&mut found[next.next().unwrap().start..]);
                        });
                        taken.unwrap();
                    }
                    assert_eq!(found, due);
                }
            }
        }
    }

    #[test]
    fn windows_are_bounded_and_hold_at_least_a_step() {
        let widths = Widths {
            categorical: 20,
            continuous: 10,
            labels: 1,
            weighted: true,
            folded: false,
        };
        assert_eq!(widths.row(), 8 + 4 * (20 + 10 + 1 + 1 + 2));
        let row = widths.row();
        let fitting = |step, free| WindowSize::fitting(widths, step, free);
        let least = (2 * 100 * row + row + ROUNDING) as u64;
        assert_eq!(fitting(100, least - 1), None);
        let one = WindowSize {
            steps: 1,
            rows: 100,
        };
        assert_eq!(fitting(100, least), Some(one));
        let most = fitting(100, 80 << 30).unwrap();
        assert_eq!(most.steps, WINDOW / (100 * row));
        assert_eq!(most.rows, 100 * most.steps);
        // A step larger than that is a window of its own.
        let rows = 2 * WINDOW / row;
        let large = WindowSize { steps: 1, rows };
        assert_eq!(fitting(rows, 80 << 30), Some(large));
        assert_eq!(fitting(rows, 2 * WINDOW as u64), None);
    }
}
