//! Roles of executors.

use std::fmt;
use std::str::FromStr;

/// Work that an executor accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExecutorRole {
    /// Queries and ranks.
    #[default]
    Any,
    /// Queries only.
    Query,
    /// Ranks only: the executor never holds shuffle data, so losing it never costs more than its rank.
    Train,
}

impl ExecutorRole {
    /// Checks whether the executor accepts ranks.
    pub fn runs_ranks(self) -> bool {
        self != Self::Query
    }

    /// Checks whether the executor accepts queries.
    pub fn runs_queries(self) -> bool {
        self != Self::Train
    }
}

impl fmt::Display for ExecutorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Any => "any",
            Self::Query => "query",
            Self::Train => "train",
        })
    }
}

impl FromStr for ExecutorRole {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "any" => Ok(Self::Any),
            "query" => Ok(Self::Query),
            "train" => Ok(Self::Train),
            _ => Err(format!(
                "{text:?} is not a role: expected any, query or train"
            )),
        }
    }
}
