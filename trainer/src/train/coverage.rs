//! Coverage of training: the number of rows trained on, and a checksum of their keys.
//!
//! The checksum is a wrapping sum of hashes, so order does not matter: any split of the same rows over steps,
//! ranks and generations gives the same one, and a row that is left out, used twice or replaced by another
//! changes it.

use std::fmt;

use serde::{Deserialize, Serialize};
use volley_proto::store::Coverage;

use crate::{Error, Result};

/// Number of rows, and the wrapping sum of their keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Covered {
    pub(crate) rows: u64,
    pub(crate) checksum: u64,
}

impl Covered {
    pub(super) fn add(&mut self, other: Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }

    /// Formats the checksum.
    pub(super) fn hex(self) -> String {
        format!("{:016x}", self.checksum)
    }

    pub(super) fn record(self) -> Coverage {
        Coverage {
            rows: self.rows,
            checksum: self.hex(),
        }
    }
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows, checksum {:016x}", self.rows, self.checksum)
    }
}

/// Checks that an epoch used the rows of the manifest, by the account named `account`.
///
/// # Errors
/// `Error::Coverage`, with both numbers of rows and both checksums.
pub(super) fn check(
    epoch: usize,
    account: &'static str,
    expected: Covered,
    actual: Covered,
) -> Result<()> {
    if actual == expected {
        return Ok(());
    }
    Err(Error::Coverage {
        epoch,
        account,
        expected: expected.record(),
        actual: actual.record(),
    })
}

/// Pieces in which a checksum is summed.
pub(super) const PIECES: usize = 3;
const PIECE_BITS: usize = 22;

/// Splits a checksum into numbers whose sums over up to 2³¹ ranks are exact in `f64`.
pub(super) fn split(checksum: u64) -> [f64; PIECES] {
    let mask = (1 << PIECE_BITS) - 1;
    std::array::from_fn(|at| ((checksum >> (at * PIECE_BITS)) & mask) as f64)
}

/// Returns the wrapping sum of checksums, given the sums of their pieces.
pub(super) fn join(pieces: &[f64]) -> u64 {
    let pieces = pieces.iter().enumerate();
    pieces
        .map(|(at, sum)| (*sum as u64) << (at * PIECE_BITS))
        .fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Key, Purpose};

    #[test]
    fn pieces_add_up_to_the_wrapping_sum() {
        let key = Key::new(1, Purpose::Content);
        for ranks in [1, 2, 3, 5000] {
            let checksums = (0..ranks).map(|rank| match rank % 3 {
                0 => u64::MAX,
                _ => key.at(rank),
            });
            let mut sums = [0.0; PIECES];
            let mut total = 0_u64;
            for checksum in checksums {
                total = total.wrapping_add(checksum);
                sums.iter_mut()
                    .zip(split(checksum))
                    .for_each(|(sum, piece)| *sum += piece);
            }
            assert_eq!(join(&sums), total);
        }
    }
}
