//! Split of the rows into training and evaluation.

use std::fmt;

use super::{Split, TrainSpec};
use crate::splitmix::{at, mix, part, unit};

/// Value of rows that are trained on.
pub const TRAIN: &str = "TRAIN";
/// Value of rows that are evaluated after each epoch, never trained on.
pub const EVAL: &str = "EVAL";
/// Value of rows that contribute values to the vocabularies and nothing else; their labels are not read.
pub const TEST: &str = "TEST";

/// Column of the rows' hashes, by which a random share of them is evaluated.
pub const HASH: &str = "__volley_row_hash";

/// Purpose that keeps these draws apart from others of the same seed.
const PURPOSE: u64 = 5;

/// Random draws in `0..1`, one per row hash. A row is evaluated if its number is below the evaluated share.
#[derive(Debug, Clone, Copy)]
pub struct Draw(u64);

impl Draw {
    /// Returns the draws of a seed.
    pub fn of(seed: u64) -> Self {
        Self(part(mix(seed), PURPOSE))
    }

    /// Returns the number of a row's hash.
    #[inline]
    pub fn number(self, hash: u64) -> f64 {
        unit(at(part(self.0, hash), 0))
    }
}

impl TrainSpec {
    /// Checks whether members of an ensemble are cross-validated, if there are [folds](Self::folds).
    pub fn cross_validates(&self) -> bool {
        matches!(self.split, Split::CrossValidation(_))
    }

    /// Returns the number of folds of a cross-validation of `rows` rows, one for each member of the ensemble; `None`
    /// without an ensemble, or if its members share parameters.
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
                "cross-validation: each member of the ensemble is evaluated on its own fold",
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
