//! Job settings shared by schedulers, executors and clients. Other settings of a job, and their encoding, are in
//! `volley-engine`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Setting for a job whose client is gone: see [`OnClientLoss`].
pub const ON_CLIENT_LOSS: &str = "volley.on_client_loss";

/// Queue that every scheduler has; it is that of a job that names none.
pub const QUEUE_DEFAULT: &str = "default";

/// Treatment of a job whose client has been silent for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnClientLoss {
    /// Training continues; queries are cancelled, as nobody would read their rows.
    Auto,
    /// The job is cancelled.
    Cancel,
    /// The job continues; `volley jobs attach` finds it again.
    Keep,
}

impl FromStr for OnClientLoss {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "cancel" => Ok(Self::Cancel),
            "keep" => Ok(Self::Keep),
            _ => Err(Error::option(
                ON_CLIENT_LOSS,
                text,
                "expected auto, cancel or keep",
            )),
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
