//! Refit: training again on all rows, once evaluated rows have determined the number of epochs.
//!
//! Metrics are those of the first training.

use serde::{Deserialize, Serialize};

use super::{Split, Start, TrainSpec};
use crate::{Error, Result};

/// Rule for training a network again on all rows, for the number of epochs with the best evaluation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refit {
    /// Never refit: evaluated rows are never trained on.
    #[default]
    Never,
    /// Refit if there are at most [`SMALL`](Self::SMALL) rows: there a fifth more of them is worth the time.
    Small,
    /// Refit for any number of rows.
    Always,
}

impl Refit {
    /// Maximum rows, to train on and to evaluate, of a small table.
    pub const SMALL: u64 = 50_000;

    /// Checks whether a training of `rows` rows, some of which were evaluated if `evaluates`, is followed by a refit.
    pub fn is_due(self, rows: u64, evaluates: bool) -> bool {
        match self {
            _ if !evaluates => false,
            Self::Never => false,
            Self::Small => rows <= Self::SMALL,
            Self::Always => true,
        }
    }
}

impl TrainSpec {
    pub(super) fn check_refit(&self) -> Result<()> {
        match (self.refit, &self.split, &self.start) {
            (Refit::Always, Split::None, _) => Err(Error::option(
                "refit",
                "true",
                "expected with rows that are evaluated: with data_split_method = 'no_split' all are trained on",
            )),
            (Refit::Always, _, Start::Warm(_)) => Err(Error::option(
                "refit",
                "true",
                "expected without warm_start: a refit starts from weights drawn by the seed",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refit;

    #[test]
    fn small_tables_are_refit_where_rows_were_evaluated() {
        let due = |refit: Refit| {
            [(100, true), (50_001, true), (80, false)]
                .map(|(rows, evaluates)| refit.is_due(rows, evaluates))
        };
        assert_eq!(due(Refit::Never), [false; 3]);
        assert_eq!(due(Refit::Small), [true, false, false]);
        assert_eq!(due(Refit::Always), [true, true, false]);
    }
}
