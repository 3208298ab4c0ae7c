//! Settings of a job that schedulers, executors and clients know alike. What else a job's settings are, and how they
//! travel, is `volley-engine`'s.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What becomes of a job whose client is gone: see [`OnClientLoss`].
pub const ON_CLIENT_LOSS: &str = "volley.on_client_loss";

/// The queue that every scheduler has, and that of a job that names none.
pub const QUEUE_DEFAULT: &str = "default";

/// What becomes of a job whose client has not been heard of for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
