//! Which values of a categorical feature have an embedding of their own. What becomes of the others is the trainer's.

use serde::{Deserialize, Serialize};

use super::option;
use crate::Result;

/// Codes of a feature whose values are hashed, at most: each is an embedding in every rank's memory.
pub const MOST_BUCKETS: usize = 1 << 24;

/// Which values of each categorical feature have an embedding of their own. All others share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VocabularyRule {
    /// Those that the rows hold, null among them.
    Values {
        /// Which occur in so many rows that are not for testing; 0 for all.
        min_frequency: u64,
        /// Not more than these, the most frequent ones, the least of those that are equally frequent.
        most: Option<usize>,
    },
    /// None: values are hashed into so many buckets, which have one each. Null has one as well.
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
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Values { most: Some(0), .. } => {
                Err(option("max_vocabulary", "0", "expected at least 1"))
            }
            Self::Buckets(buckets) if !(1..=MOST_BUCKETS).contains(&buckets) => Err(option(
                "hash_buckets",
                &buckets.to_string(),
                &format!("expected 1 to {MOST_BUCKETS}"),
            )),
            _ => Ok(()),
        }
    }
}
