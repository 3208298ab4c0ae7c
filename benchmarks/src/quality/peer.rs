//! The systems to compare with, and the tables, as the Python program `peers/quality.py` provides them.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::score::{Labels, Predictions};
use crate::peers::Peer;

/// Systems that Volley's network is compared with.
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
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mlp => "scikit-learn's MLP",
            Self::Boosting => "HistGradientBoosting",
            Self::Lightgbm => "LightGBM",
            Self::Xgboost => "XGBoost",
            Self::Realmlp => "RealMLP",
        }
    }

    /// Returns the system's name in requests to the peer: that on the command line.
    pub(super) fn key(self) -> String {
        let value = self.to_possible_value();
        value.expect("a name").get_name().to_owned()
    }
}

/// Name of scikit-learn's linear models in requests to the peer.
pub(super) const LINEAR: &str = "linear";

/// Table, as the peer describes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Table {
    pub(super) name: String,
    /// Name and package of the table's source.
    pub(super) source: String,
    /// True if the label is a number.
    pub(super) regression: bool,
    pub(super) rows: usize,
    /// True if the rows are a sample of more.
    pub(super) sampled: bool,
    /// Number of numeric features.
    pub(super) numbers: usize,
    pub(super) categories: usize,
    /// Number of nulls in all features together.
    pub(super) nulls: usize,
    pub(super) classes: Option<usize>,
}

/// Rows of a table, split with a seed.
#[derive(Debug)]
pub(super) struct Parts {
    /// Parquet file of the training rows, with the label as `y`.
    pub(super) train: PathBuf,
    /// Parquet file of the held-out rows, with a column `row` that counts from 0, and no label.
    pub(super) holdout: PathBuf,
    /// Labels of the held-out rows.
    pub(super) labels: Labels,
}

pub(super) fn tables(peer: &mut Peer) -> anyhow::Result<Vec<Table>> {
    let answer = peer.ask(&json!({"tables": true}))?;
    Ok(serde_json::from_value(answer["tables"].clone())?)
}

/// Exports a table's parts into a folder.
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

/// Makes a system, named by its key, fit the training rows and predict the held-out rows.
pub(super) fn predict(
    peer: &mut Peer,
    system: &str,
    table: &Table,
    seed: u64,
) -> anyhow::Result<Predictions> {
    let answer: Value = peer.ask(&json!({"fit": system, "table": table.name, "seed": seed}))?;
    Ok(serde_json::from_value(answer)?)
}
