//! Where things stand, as columns of tables: words in SQL and in JSON, types in Rust.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Enumerations whose values are words.
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
                /// The word for it.
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
    /// How far a job is.
    JobState {
        /// It runs, or waits to.
        Running = "running",
        /// An attempt lost data; the next one is being submitted.
        Rerunning = "rerunning",
        /// It has succeeded.
        Succeeded = "succeeded",
        /// It has failed.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
    }

    /// What a stage does.
    StageKind {
        /// Part of a query.
        Query = "query",
        /// Training: a barrier stage.
        Training = "training",
    }

    /// How far a stage is.
    StageState {
        /// Its inputs are not there yet.
        Waiting = "waiting",
        /// Its inputs are there.
        Ready = "ready",
        /// Its tasks run, or wait for slots.
        Running = "running",
        /// It has succeeded.
        Succeeded = "succeeded",
        /// It has failed.
        Failed = "failed",
    }

    /// How far a training run is.
    RunState {
        /// It has had no ranks yet.
        Waiting = "waiting",
        /// Its ranks stream their rows.
        Loading = "loading",
        /// Its ranks take steps.
        Training = "training",
        /// Its ranks meet again.
        Regrouping = "regrouping",
        /// Its last epoch is done.
        Finished = "finished",
        /// It ended before, and not by a failure of its own.
        Ended = "ended",
        /// A rank has failed.
        Failed = "failed",
    }
}

impl JobState {
    /// Whether nothing more happens to the job.
    pub fn has_ended(self) -> bool {
        match self {
            Self::Running | Self::Rerunning => false,
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
        }
    }
}

impl RunState {
    /// Whether nothing more happens to the run.
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
