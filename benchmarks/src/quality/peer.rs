//! The systems beside Volley, and the tables, which the Python program `peers/quality.py` has.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::score::{Labels, Predictions};
use crate::peers::Peer;

/// What Volley's network is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum System {
    /// scikit-learn's network, after scaling
    Mlp,
    /// scikit-learn's boosted trees
    Boosting,
    /// `LightGBM`
    Lightgbm,
    /// `XGBoost`
    Xgboost,
    /// The network of `pytabkit`
    Realmlp,
}

impl System {
    pub(super) const ALL: [Self; 5] = [
        Self::Mlp,
        Self::Boosting,
        Self::Lightgbm,
        Self::Xgboost,
        Self::Realmlp,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mlp => "scikit-learn's MLP",
            Self::Boosting => "HistGradientBoosting",
            Self::Lightgbm => "LightGBM",
            Self::Xgboost => "XGBoost",
            Self::Realmlp => "RealMLP",
        }
    }

    /// As the peer is asked for it.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Boosting => "boosting",
            Self::Lightgbm => "lightgbm",
            Self::Xgboost => "xgboost",
            Self::Realmlp => "realmlp",
        }
    }
}

/// What the peer calls scikit-learn's linear models.
pub(super) const LINEAR: &str = "linear";

/// A table, as the peer describes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) name: String,
    /// What it is called in which package.
    pub(super) source: String,
    /// Whether its label is a number.
    pub(super) regression: bool,
    pub(super) rows: usize,
    /// Whether these are drawn from more.
    pub(super) sampled: bool,
    /// Features that are numbers.
    pub(super) numbers: usize,
    pub(super) categories: usize,
    /// In all features together.
    pub(super) nulls: usize,
    pub(super) classes: Option<usize>,
}

/// A table's rows, split by a seed.
#[derive(Debug)]
pub(super) struct Parts {
    /// Parquet, with the label as `y`.
    pub(super) train: PathBuf,
    /// Parquet, with a column `row` that counts from 0, and no label.
    pub(super) holdout: PathBuf,
    /// Of the holdout.
    pub(super) labels: Labels,
}

pub(super) fn tables(peer: &mut Peer) -> anyhow::Result<Vec<Table>> {
    let answer = peer.ask(&json!({"tables": true}))?;
    Ok(serde_json::from_value(answer["tables"].clone())?)
}

/// Writes a table's parts into a folder.
pub(super) fn export(
    peer: &mut Peer,
    table: &Table,
    seed: u64,
    folder: &Path,
) -> anyhow::Result<Parts> {
    let question = json!({"export": table.name, "seed": seed, "folder": folder});
    let answer = peer.ask(&question)?;
    let path = |part: &str| {
        let path = answer[part].as_str().map(PathBuf::from);
        path.with_context(|| format!("no {part}: {answer}"))
    };
    Ok(Parts {
        train: path("train")?,
        holdout: path("holdout")?,
        labels: Labels::of_json(&answer["labels"])?,
    })
}

/// Has a system, by its key, fit the one part and predict the other.
pub(super) fn predict(
    peer: &mut Peer,
    system: &str,
    table: &Table,
    seed: u64,
) -> anyhow::Result<Predictions> {
    let answer: Value = peer.ask(&json!({"fit": system, "table": table.name, "seed": seed}))?;
    Ok(serde_json::from_value(answer)?)
}
