//! Prediction: `ML.PREDICT` over the features of all training rows on a cluster, compared with PyTorch.
//!
//! The time runs from a Parquet file to the count and the mean of the predictions, so that only two numbers are
//! returned. Computing the features is not included.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};
use crate::example::{Example, TRAIN, Training, command};
use crate::peers::{Peer, Peers};

const PYTORCH: &str = "PyTorch";
/// Volley with `volley.predict_device` other than `cpu`.
const VOLLEY_DEVICE: &str = "Volley on a GPU";
/// Batch sizes that PyTorch tries; the fastest one is used for the comparison.
const BATCHES: [usize; 4] = [512, 2048, 8192, 32768];
/// Number of rows for trying batch sizes.
const TRIAL: usize = 65_536;
/// Tolerated relative difference between the means of predictions.
const MEANS_WITHIN: f64 = 1e-4;
/// Tolerated relative difference on a GPU, whose products are in TF32.
const MEANS_ON_A_GPU_WITHIN: f64 = 5e-3;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Executors, each a process with one slot; PyTorch has as many threads
    #[arg(long, default_value_t = 2)]
    executors: usize,
    /// Also measures predictions with this `volley.predict_device`: cuda, or auto
    #[arg(long, value_parser = ["cuda", "auto"])]
    device: Option<String>,
}

/// Result of a system's prediction.
struct Predicted {
    seconds: f64,
    rows: u64,
    mean: f64,
}

/// Runs the comparison and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let peers = Peers::install("training")?;
    let dir = scratch_folder()?;
    let cluster = Cluster::start(dir.path(), args.executors)?;
    let out = dir.path().join("out");
    std::fs::create_dir(&out)?;
    let example = Example {
        cluster: &cluster,
        data: &std::path::absolute(&args.data)?,
        out: &out,
    };
    let training = Training {
        rows: 100_000,
        ranks: args.executors,
        batch_size: 256,
        epochs: 1,
        device: "cpu",
        tiny: false,
    };
    example.export()?;
    example.sample(training.rows)?;
    let model = example.train(&training)?.folder;

    let mut pytorch = peers.start("prediction.py", &[], dir.path())?;
    let mut comparison = Comparison::new("prediction", "Prediction", METHOD);
    comparison.note_versions(&pytorch.ask(&json!({ "versions": true }))?);
    let mut question = json!({
        "model": model,
        "parquet": out.join(TRAIN),
        "threads": args.executors,
    });
    let batch = fastest_batch(&mut pytorch, &mut question)?;
    let expected = volley(&example, "cpu")?;
    let mut case = Case::new(
        format!("{} rows, {} cores", expected.rows, args.executors),
        Unit::Seconds,
    )
    .at_least(1.2, PYTORCH);
    let mut systems = vec![VOLLEY, PYTORCH];
    systems.extend(args.device.as_ref().map(|_| VOLLEY_DEVICE));
    let device = args.device.as_deref().unwrap_or("cpu");
    for round in 0..args.rounds {
        for turn in 0..systems.len() {
            let system = systems[(turn + round) % systems.len()];
            let predicted = match system {
                PYTORCH => ask(&mut pytorch, &question)?,
                VOLLEY => volley(&example, "cpu")?,
                _ => volley(&example, device)?,
            };
            let Predicted {
                seconds,
                rows,
                mean,
            } = predicted;
            eprintln!("round {round}: {system} {seconds:.2} s, mean {mean:.2}");
            let within = match system {
                VOLLEY_DEVICE => MEANS_ON_A_GPU_WITHIN,
                _ => MEANS_WITHIN,
            };
            ensure!(
                rows == expected.rows && (mean - expected.mean).abs() <= within * expected.mean,
                "{system} predicts {rows} rows with a mean of {mean}, and Volley {} with {}",
                expected.rows,
                expected.mean
            );
            case.push(system, seconds);
        }
    }
    comparison.cases.push(case);
    if args.device.is_some() {
        comparison.remark(format!(
            "{VOLLEY_DEVICE}: with `SET volley.predict_device = '{device}'`. The executors' logs say whether a GPU \
             computed."
        ));
    }
    comparison.remark(format!(
        "PyTorch was fastest with batches of {batch} rows, of {BATCHES:?}."
    ));
    comparison.write(results)
}

const METHOD: &str = "A count and a mean of the predictions for the features of all training rows, \
    from Parquet files in the page cache, with the same weights and the same result. Volley: one \
    `volley` command, with its start and its planning, on a scheduler and executors of one slot; \
    `SELECT count(*), avg(…) FROM ML.PREDICT(…)`. PyTorch: a process that is warm and has loaded the \
    model, with as many threads as there are executors; PyArrow reads text as Parquet's dictionaries, \
    its kernels encode the table once, and the network predicts batch by batch in inference mode. \
    Rounds alternate.";

/// Finds PyTorch's fastest batch size and sets it in the request.
fn fastest_batch(pytorch: &mut Peer, question: &mut Value) -> anyhow::Result<usize> {
    let mut best = (f64::INFINITY, BATCHES[0]);
    question["first"] = TRIAL.into();
    for batch in BATCHES {
        question["batch"] = batch.into();
        let seconds = ask(pytorch, question)?.seconds;
        eprintln!("PyTorch with batches of {batch}: {seconds:.2} s");
        if seconds < best.0 {
            best = (seconds, batch);
        }
    }
    question["batch"] = best.1.into();
    question["first"] = Value::Null;
    Ok(best.1)
}

fn volley(example: &Example<'_>, device: &str) -> anyhow::Result<Predicted> {
    let statements = r#"
        SET volley.predict_device = '${device}';
        CREATE EXTERNAL TABLE all_rows STORED AS PARQUET LOCATION '${out}/features/dataset=train/';
        SELECT count("predicted_Sales") AS "rows", avg(CAST("predicted_Sales" AS DOUBLE)) AS "mean"
        FROM ML.PREDICT(MODEL rossmann, (SELECT * FROM all_rows))"#;
    let mut args = example.defines(&[("device", device.to_owned())]);
    args.push(command(statements));
    let ran = example.cluster.run(&args)?;
    let row: Value = serde_json::from_str(ran.stdout.trim())
        .with_context(|| format!("the prediction's row is {:?}", ran.stdout))?;
    of(&row, ran.seconds)
}

fn ask(pytorch: &mut Peer, question: &Value) -> anyhow::Result<Predicted> {
    let answer = pytorch.ask(question)?;
    let seconds = answer["seconds"].as_f64().context("no seconds")?;
    of(&answer, seconds)
}

fn of(row: &Value, seconds: f64) -> anyhow::Result<Predicted> {
    let said = || format!("neither a count nor a mean: {row}");
    Ok(Predicted {
        seconds,
        rows: row["rows"].as_u64().with_context(said)?,
        mean: row["mean"].as_f64().with_context(said)?,
    })
}
