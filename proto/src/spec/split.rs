//! Which rows are for evaluation.

use std::fmt;

use super::{Split, TrainSpec};
use crate::splitmix::{at, mix, part, unit};

/// The row is trained on.
pub const TRAIN: &str = "TRAIN";
/// The row is evaluated after each epoch, never trained on.
pub const EVAL: &str = "EVAL";
/// The row lends its values to the vocabularies and nothing else; its label is not read.
pub const TEST: &str = "TEST";

/// The column of the rows' hashes, where a random share of them is evaluated.
pub const HASH: &str = "__volley_row_hash";

/// What keeps these draws apart from others of the same seed.
const PURPOSE: u64 = 5;

/// Draws a number in `0..1` for each hash of a row. Rows below the share that is evaluated are evaluated.
#[derive(Debug, Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// The draws of a seed.
    pub fn of(seed: u64) -> Self {
        Self(part(mix(seed), PURPOSE))
    }

    /// The number that the hash of a row draws.
    #[inline]
    pub fn number(self, hash: u64) -> f64 {
        unit(at(part(self.0, hash), 0))
    }
}

impl TrainSpec {
    /// Whether members of an ensemble are cross-validated, as far as there are [folds](Self::folds).
    pub fn cross_validates(&self) -> bool {
        matches!(self.split, Split::CrossValidation(_))
    }

    /// Folds of a cross-validation of so many rows, one for each member of the ensemble: none without an ensemble, or where
    /// its members share parameters.
    pub fn folds(&self, rows: u64) -> Option<usize> {
        let members = self.network.members(rows);
        let has_folds = members > 1 && !self.network.shares_parameters();
        (self.cross_validates() && has_folds).then_some(members)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Column(column) => write!(f, "column {column}"),
            Self::Sequential { column, share } => {
                write!(f, "the last by {column}, {share} evaluated")
            }
            Self::Random(share) => write!(f, "random, {share} evaluated"),
            Self::CrossValidation(_) => f.write_str(
                "cross-validation: each member of the ensemble is evaluated by a fold of its own",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_spread_over_their_range() {
        let numbers = (0..10_000).map(|hash| Draw::of(3).number(hash));
        let mean = numbers.sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert_ne!(Draw::of(3).number(1), Draw::of(4).number(1));
    }
}
