//! Steps and epochs of a training: as the spec gives them, or by the number of rows.
//!
//! These are pure functions. Learning rates, and whether training stops early, are the trainer's.

use super::{Rule, TrainSpec};

/// Minimum steps of a training whose epochs are not given.
const LEAST_STEPS: u64 = 4000;
/// Minimum and maximum epochs of a training whose epochs are not given.
const EPOCHS: [u64; 2] = [20, 400];
/// Maximum passes over all rows for a rule that ends by itself, if epochs are not given.
const MOST_PASSES: usize = 1000;
/// Minimum and maximum rows per step of a training whose batch size is not given, and the steps that an epoch has
/// between them.
const STEP_ROWS: [u64; 2] = [32, 256];
const STEPS: u64 = 32;

impl TrainSpec {
    /// Returns the rows per step of `ranks` ranks that train on `rows` rows. By default they are enough for a gradient
    /// that is not mostly noise, and few enough that a small table makes several steps.
    pub fn global_batch(&self, rows: u64, ranks: usize) -> u64 {
        match (self.step_rows(ranks), &self.optimizer.rule) {
            (_, Rule::Lbfgs { .. }) => rows,
            (Some(rows), _) => rows,
            (None, _) => {
                let [least, most] = STEP_ROWS;
                (rows / STEPS).next_power_of_two().clamp(least, most)
            }
        }
    }

    /// Returns the maximum number of epochs of so many steps each: as given, or as many as give enough steps.
    pub fn planned_epochs(&self, steps_per_epoch: u64) -> usize {
        if let (None, Rule::Lbfgs { .. }) = (self.epochs, &self.optimizer.rule) {
            return MOST_PASSES;
        }
        self.epochs.unwrap_or_else(|| {
            let [least, most] = EPOCHS;
            LEAST_STEPS
                .div_ceil(steps_per_epoch.max(1))
                .clamp(least, most) as usize
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::BatchSize;
    use crate::store::Manifest;

    #[test]
    fn small_tables_get_more_epochs_and_smaller_steps() {
        let old = include_str!("../__fuzz__/manifest/corpus/whole.json");
        let given = serde_json::from_str::<Manifest>(old).unwrap().spec;
        let mut spec = given.clone();
        (spec.epochs, spec.batch_size) = (None, None);
        let epochs = [1, 100, 10_000].map(|steps| spec.planned_epochs(steps));
        assert_eq!(epochs, [400, 40, 20]);
        let rows = [1, 353, 4000, 1_000_000].map(|rows| spec.global_batch(rows, 3));
        assert_eq!(rows, [32, 32, 128, 256]);
        spec.batch_size = Some(BatchSize::OfRank(10));
        assert_eq!(spec.global_batch(1_000_000, 3), 30 * spec.accumulate as u64);
        assert_eq!(Some(given.planned_epochs(1)), given.epochs);
    }
}
