//! States of jobs, stages and runs, as table columns: words in SQL and in JSON, types in Rust.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines enumerations whose values are words.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$doc:meta])* $value:ident = $word:literal,)*
    })*) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
            pub enum $name {
                $($(#[$doc])* #[serde(rename = $word)] $value,)*
            }

            impl $name {
                /// Returns the word for it.
                pub fn word(self) -> &'static str {
                    match self {
                        $(Self::$value => $word,)*
                    }
                }
            }

            impl fmt::Display for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.pad(self.word())
                }
            }
        )*
    };
}

words! {
    /// State of a job.
    JobState {
        /// Running, or waiting to run.
        Running = "running",
        /// Being submitted again, as an attempt lost data.
        Rerunning = "rerunning",
        /// Succeeded.
        Succeeded = "succeeded",
        /// Failed.
        Failed = "failed",
        /// Cancelled.
        Cancelled = "cancelled",
    }

    /// Kind of a stage.
    StageKind {
        /// Part of a query.
        Query = "query",
        /// Training: a barrier stage.
        Training = "training",
    }

    /// State of a stage.
    StageState {
        /// Its inputs are not available yet.
        Waiting = "waiting",
        /// Its inputs are available.
        Ready = "ready",
        /// Its tasks run, or wait for slots.
        Running = "running",
        /// Succeeded.
        Succeeded = "succeeded",
        /// Failed.
        Failed = "failed",
        /// It had not ended when its job was cancelled.
        Cancelled = "cancelled",
    }

    /// State of a training run.
    RunState {
        /// It has had no ranks yet.
        Waiting = "waiting",
        /// Its ranks stream their rows.
        Loading = "loading",
        /// Its ranks take steps.
        Training = "training",
        /// Its ranks form a new generation.
        Regrouping = "regrouping",
        /// Its last epoch is done.
        Finished = "finished",
        /// It ended early, but not by a failure of its own.
        Ended = "ended",
        /// A rank has failed.
        Failed = "failed",
    }
}

impl JobState {
    /// Checks whether the job has ended.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Running | Self::Rerunning => false,
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
        }
    }
}

impl RunState {
    /// Checks whether the run has ended.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Waiting | Self::Loading | Self::Training | Self::Regrouping => false,
            Self::Finished | Self::Ended | Self::Failed => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_one_word_everywhere() {
        for state in [JobState::Running, JobState::Cancelled] {
            let json = serde_json::to_string(&state).unwrap();
            assert_eq!(json, format!("{:?}", state.to_string()));
            assert_eq!(serde_json::from_str::<JobState>(&json).unwrap(), state);
        }
        assert!(serde_json::from_str::<RunState>("\"running\"").is_err());
        assert!(RunState::Ended.has_ended() && !RunState::Regrouping.has_ended());
    }
}
