//! Rule for the values of a categorical feature that get an embedding of their own. The trainer handles the others.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Maximum number of buckets of a hashed feature: each has an embedding in every rank's memory.
pub const MOST_BUCKETS: usize = 1 << 24;

/// Rule for the values of each categorical feature that get an embedding of their own. All others share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VocabularyRule {
    /// Values that the rows hold, null included.
    Values {
        /// Minimum number of rows, not counting those for testing, that hold such a value; 0 for all values.
        min_frequency: u64,
        /// Maximum number of values: the most frequent ones, of equally frequent values the smallest.
        most: Option<usize>,
    },
    /// Hashing of values into this many buckets, which have an embedding each. Null has one as well.
    Buckets(usize),
}

impl Default for VocabularyRule {
    fn default() -> Self {
        Self::Values {
            min_frequency: 0,
            most: None,
        }
    }
}

impl VocabularyRule {
    /// Returns the number of buckets that values are hashed into, if they are.
    pub fn buckets(self) -> Option<usize> {
        match self {
            Self::Buckets(buckets) => Some(buckets),
            Self::Values { .. } => None,
        }
    }

    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Values { most: Some(0), .. } => {
                Err(Error::option("max_vocabulary", "0", "expected at least 1"))
            }
            Self::Buckets(buckets) if !(1..=MOST_BUCKETS).contains(&buckets) => Err(Error::option(
                "hash_buckets",
                buckets.to_string(),
                format!("expected 1 to {MOST_BUCKETS}"),
            )),
            _ => Ok(()),
        }
    }
}
