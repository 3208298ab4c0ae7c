//! Job settings shared by schedulers, executors and clients. Other settings of a job, and their encoding, are in
//! `volley-engine`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Setting for a job whose client is gone: see [`OnClientLoss`].
pub const ON_CLIENT_LOSS: &str = "volley.on_client_loss";

/// Setting of the device of predictions: see [`PredictDevice`].
pub const PREDICT_DEVICE: &str = "volley.predict_device";

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

/// Device on which a query's tasks predict with models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PredictDevice {
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU of the executor where that is faster than its CPU.
    Auto,
    /// A GPU of the executor wherever one is free and can compute the model.
    Cuda,
}

impl FromStr for PredictDevice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda),
            _ => Err(Error::option(
                PREDICT_DEVICE,
                text,
                "expected cpu, auto or cuda",
            )),
        }
    }
}

impl fmt::Display for PredictDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Auto => "auto",
            Self::Cuda => "cuda",
        })
    }
}
