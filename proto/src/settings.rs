//! Settings of a session that the scheduler reads with each job, by their keys.
//!
//! They travel among the engine's own settings; a scheduler of the engine's that does not know
//! them ignores them.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The prefix of Volley's own settings.
pub const PREFIX: &str = "volley";
/// What becomes of a job whose client is gone: see [`OnClientLoss`].
pub const ON_CLIENT_LOSS: &str = "volley.on_client_loss";
/// Whether ranks note what they do when, where a model's options do not say; the client reads it.
pub const TRACE: &str = "volley.trace";
/// The training run that a job is, set by the client with the job.
pub const TRAIN_ID: &str = "volley.train_id";

/// What becomes of a job whose client has not been heard of for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnClientLoss {
    /// Training runs on; queries are cancelled, for nobody would read their rows.
    Auto,
    /// It is cancelled.
    Cancel,
    /// It runs on; `volley jobs attach` finds it again.
    Keep,
}

impl FromStr for OnClientLoss {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "cancel" => Ok(Self::Cancel),
            "keep" => Ok(Self::Keep),
            _ => Err(Error::Option {
                option: ON_CLIENT_LOSS.into(),
                value: text.into(),
                expected: "expected auto, cancel or keep".into(),
            }),
        }
    }
}

impl fmt::Display for OnClientLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cancel => "cancel",
            Self::Keep => "keep",
        })
    }
}
