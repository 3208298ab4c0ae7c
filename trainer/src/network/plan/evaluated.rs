//! Outputs of rows that a device holds: evaluation without copying rows to it.
//!
//! It computes what [`Compute::predict`](crate::network::Compute::predict) does from rows in host memory. Losses and
//! metrics are the host's.

use std::ops::Range;

use super::Plan;
use super::layers::{Batch, Pass};
use super::step::ShardRows;
use super::words::Arguments;
use crate::Result;
use crate::device::{Address, Memory};
use crate::network::Normalization;

/// Rows that a device may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Training,
    Evaluation,
}

/// Rows of a part on the device, from the addresses on.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    /// `[rows × C]`
    codes: Address,
    /// `[rows × N]`
    numbers: Address,
    rows: usize,
}

/// Evaluation rows on a device, with C categorical features and N numbers.
#[derive(Debug)]
pub(super) struct EvaluatedRows {
    codes: Memory,
    numbers: Memory,
    rows: usize,
}

impl Plan {
    /// Copies evaluation rows to the device if they fit and leave `due` bytes free. Returns `None` if not, or if there
    /// are none.
    pub(super) fn evaluated(
        &self,
        shards: &[ShardRows<'_>],
        due: u64,
    ) -> Result<Option<EvaluatedRows>> {
        let architecture = &self.layers.architecture;
        let rows: usize = shards.iter().map(|rows| rows.keys.len()).sum();
        let bytes = 4 * rows * (architecture.categorical + architecture.continuous);
        if rows == 0 || due.saturating_add(bytes as u64) > self.runtime.free()? {
            return Ok(None);
        }
        Ok(Some(EvaluatedRows {
            codes: Memory::of_parts(&self.runtime, shards.iter().map(|of| of.codes))?,
            numbers: Memory::of_parts(&self.runtime, shards.iter().map(|of| of.numbers))?,
            rows,
        }))
    }

    /// Returns the place of a part's rows, if the device holds them.
    pub(super) fn place_of(&self, part: Part) -> Option<At> {
        let held = self.held.as_ref()?;
        match part {
            Part::Training => held.whole().map(|(rows, count)| At {
                codes: rows.codes.at(),
                numbers: rows.numbers.at(),
                rows: count,
            }),
            Part::Evaluation => held.evaluated.as_ref().map(|of| At {
                codes: of.codes.at(),
                numbers: of.numbers.at(),
                rows: of.rows,
            }),
        }
    }

    /// Returns the outputs of some of these rows: the members' mean, `[B × K]`, or those of each, `[B × M·K]`.
    ///
    /// # Panics
    /// If the device does not hold them.
    pub(super) fn outputs_of(
        &self,
        part: Part,
        rows: Range<usize>,
        running: &Normalization,
        mean: bool,
    ) -> Result<Vec<f32>> {
        let at = self.place_of(part).expect("the device holds the rows");
        assert!(rows.end <= at.rows, "rows of a part");
        let architecture = &self.layers.architecture;
        let each = if mean { 1 } else { architecture.members };
        let mut found = vec![0.0; rows.len() * each * architecture.outputs];
        if found.is_empty() {
            return Ok(found);
        }
        let room = self.room(rows.len())?;
        let (width, normalized) = (architecture.continuous, architecture.normalized());
        let statistics = &self.held().statistics;
        if normalized > 0 {
            statistics.write(0, &[&running.mean[..], &running.variance[..]].concat())?;
        }
        let mut work = Vec::new();
        if width > 0 {
            let statistics = if normalized > 0 { statistics.at() } else { 0 };
            let arguments = Arguments::new()
                .address(at.numbers + 4 * (rows.start * width) as u64)
                .address(statistics)
                .tensor(room.batch.numbers);
            let of = [rows.len(), 1, width];
            work.push(self.layers.grid.rows("normalised", of, arguments));
        }
        let batch = Batch {
            codes: at.codes + 4 * (rows.start * architecture.categorical) as u64,
            ..room.batch
        };
        let pass = Pass {
            rows: rows.len(),
            ..Pass::of(batch, &room.places, self.weights.at())
        };
        work.extend(self.layers.forward(&pass));
        let z = self.layers.output(&pass);
        work.push(self.layers.activate(z, pass.rows, mean, room.outputs.at()));
        self.runtime.run(&work)?;
        room.outputs.read(0, &mut found)?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::device::{Emulated, Runtime};
    use crate::network::plan::Resident;
    use crate::network::plan::tests::{FEATURES, ROWS, begun, rows};
    use crate::network::{Compute, Input};

    #[test]
    fn rows_on_the_device_are_evaluated_as_rows_that_are_sent_to_it() {
        let Some(runtime) = Emulated::find() else {
            return;
        };
        for members in [1, 3] {
            let (mut plan, _slots) = begun(&runtime, members, 0.0);
            assert!(plan.holds(Part::Training) && !plan.holds(Part::Evaluation));
            // Two shards, one after the other.
            let (all, cut) = (rows(), 31);
            let part = |from: usize, to: usize| ShardRows {
                codes: &all.codes[from * FEATURES..to * FEATURES],
                numbers: &all.continuous[from * FEATURES..to * FEATURES],
                labels: &all.labels[from..to],
                keys: &all.keys[from..to],
                ..ShardRows::default()
            };
            plan.hold_evaluated(&[part(cut, ROWS), part(0, cut)])
                .unwrap();
            let running = Normalization {
                mean: (0..FEATURES).map(|at| 0.1 * at as f64).collect(),
                variance: (0..FEATURES).map(|at| 0.5 + at as f64).collect(),
            };
            for rows in [0..ROWS, 3..40, ROWS - 1..ROWS, 5..5] {
                for (of, shift) in [(Part::Training, 0), (Part::Evaluation, cut)] {
                    let own = rows.clone().map(|row| (row + shift) % ROWS);
                    let values = |row: usize| row * FEATURES..(row + 1) * FEATURES;
                    let codes = own.clone().flat_map(|row| &all.codes[values(row)]);
                    let numbers = own.clone().flat_map(|row| &all.continuous[values(row)]);
                    let mut numbers: Vec<f32> = numbers.copied().collect();
                    running.apply(&mut numbers);
                    let input = Input {
                        rows: rows.len(),
                        codes: codes.copied().collect(),
                        continuous: numbers,
                        dropout: vec![],
                    };
                    let [mean, each] = [true, false].map(|mean| {
                        let before = runtime.counters().get();
                        let found = plan.evaluate(of, rows.clone(), &running, mean).unwrap();
                        let after = runtime.counters().get();
                        let written = after.bytes_written - before.bytes_written;
                        let statistics = 2 * 8 * FEATURES;
                        let due = if rows.is_empty() { 0 } else { statistics };
                        assert_eq!(written, due as u64, "statistics, and no rows");
                        found
                    });
                    assert_eq!(plan.predict(input.clone()).unwrap(), mean);
                    assert_eq!(plan.predict_by_member(input).unwrap(), each);
                }
            }
        }
    }

    #[test]
    fn evaluation_rows_that_would_take_the_memory_of_a_step_are_not_held() {
        let Some(free) = Emulated::of(u64::MAX) else {
            return;
        };
        let runtime: Rc<dyn Runtime> = free.clone();
        let (mut plan, _slots) = begun(&runtime, 1, 0.0);
        let all = rows();
        let shard = ShardRows {
            codes: &all.codes,
            numbers: &all.continuous,
            keys: &all.keys,
            ..ShardRows::default()
        };
        let bytes = (8 * ROWS * FEATURES) as u64;
        for (due, fits) in [(u64::MAX / 2, true), (u64::MAX - bytes, false)] {
            assert_eq!(plan.evaluated(&[shard], due).unwrap().is_some(), fits);
        }
        assert!(plan.evaluated(&[], 0).unwrap().is_none());
        plan.hold_evaluated(&[]).unwrap();
        assert!(!plan.holds(Part::Evaluation));
    }
}
