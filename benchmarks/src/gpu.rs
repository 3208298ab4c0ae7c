//! Training on one NVIDIA GPU: compares its losses with the CPU's, its speed with PyTorch's on the same GPU, and
//! measures the utilization of the GPU.
//!
//! Only Volley runs several ranks on one GPU: PyTorch's collectives for GPUs need one GPU per rank.

pub(crate) mod networks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::json;

use crate::cluster::{Cluster, Owned, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, median, number};
use crate::example::{Example, Trained, Training};
use crate::peers::Peers;

const GPU: &str = "cuda:0";
const EPOCHS: usize = 2;
/// Tolerated relative difference between losses on GPU and CPU: sums are in another order, and may have fewer digits
/// (TF32).
const LOSSES_WITHIN: f64 = 0.01;
/// Number of rows to compare losses on, unless one batch has more.
const COMPARED_ROWS: usize = 8192;
/// Precision of matrix products on both sides.
const PRECISION: &str = "tf32";
/// PyTorch variants, with their names in `training_gpu.py`.
const FORMS: [(&str, &str); 3] = [
    ("PyTorch, eager", "eager"),
    ("PyTorch, torch.compile", "compile"),
    ("PyTorch, the step as one CUDA graph", "graph"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Rows of one rank in one step
    #[arg(long, value_delimiter = ',', default_value = "100,1024,8192,65536")]
    batches: Vec<usize>,
}

/// Runs the comparison and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let gpu = query("name,driver_version").context(
        "this measures training on an NVIDIA GPU, and nvidia-smi finds none on this machine",
    )?;
    let peers = Peers::install("training")?;
    let dir = scratch_folder()?;
    let cluster = Cluster::start(dir.path(), 2)?;
    let example = Example {
        cluster: &cluster,
        data: &std::path::absolute(&args.data)?,
        out: dir.path(),
    };
    example.export()?;
    let trainings: Vec<_> = [1, 2]
        .into_iter()
        .flat_map(|ranks| trainings(args, ranks))
        .collect();
    let most = trainings.iter().map(|training| training.rows).max();
    let sample = example.sample(most.context("no batches")?)?;

    let mut comparison = Comparison::new("gpu", "Training on one GPU", METHOD);
    comparison
        .report
        .versions
        .insert("GPU and driver".to_owned(), gpu);
    // Losses are compared for every batch size, because the GPU's computation depends on it; over few batches,
    // because the CPU is slow.
    for training in trainings.iter().filter(|training| training.ranks == 1) {
        let steps = (COMPARED_ROWS / training.batch_size).max(1);
        let rows = steps * training.batch_size;
        comparison.remark(same_losses(&example, Training { rows, ..*training })?);
    }

    let mut pytorch = Vec::new();
    for (system, form) in FORMS {
        let log = dir.path().join(form);
        std::fs::create_dir(&log)?;
        pytorch.push((system, form, peers.start("training_gpu.py", &[], &log)?));
    }
    comparison.note_versions(&pytorch[0].2.ask(&json!({ "versions": true }))?);
    for training in &trainings {
        let Training {
            ranks,
            batch_size,
            rows,
            ..
        } = *training;
        let noun = if ranks == 1 { "rank" } else { "ranks" };
        let name = format!("{ranks} {noun}, batch {batch_size}");
        let mut case = Case::new(&name, Unit::RowsPerSecond);
        let mut losses: BTreeMap<&str, f64> = BTreeMap::new();
        let mut shares: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..args.rounds {
            let busy = Busy::start(&dir.path().join("busy"))?;
            let trained = example.train(training)?;
            let epoch = trained.history.last().context("no epoch")?;
            case.push(VOLLEY, epoch.rows_per_second());
            losses.insert(VOLLEY, epoch.loss);
            shares.entry(VOLLEY).or_default().push(busy.share()?);
            for (system, form, peer) in pytorch.iter_mut().filter(|_| ranks == 1) {
                let question = json!({
                    "form": form,
                    "precision": PRECISION,
                    "batch": batch_size,
                    "rows": rows,
                    "epochs": EPOCHS,
                    "parquet": sample,
                });
                let busy = Busy::start(&dir.path().join("busy"))?;
                match peer.ask(&question) {
                    Ok(answer) => {
                        // The first epoch warms up; the second one's speed counts.
                        let speed = answer["rows_per_second"][EPOCHS - 2].as_f64();
                        case.push(system, speed.context("no speed")?);
                        let loss = answer["losses"][EPOCHS - 1].as_f64();
                        losses.insert(system, loss.context("no loss")?);
                    }
                    Err(error) => comparison.remark(format!("{system} does not run: {error}.")),
                }
                shares.entry(system).or_default().push(busy.share()?);
            }
        }
        let shares = shares.iter().map(|(system, all)| (*system, median(all)));
        comparison.remark(format!("{name}: GPU busy, in percent: {}.", told(shares)));
        comparison.remark(format!(
            "{name}: losses of the last epoch: {}.",
            told(losses)
        ));
        comparison.cases.push(case);
        // Writes the results after each case, in case the run is cut short.
        comparison.write(results)?;
    }
    Ok(())
}

const METHOD: &str = "The network of `examples/rossmann/train.sql` on some rows of the Rossmann \
    features, from one Parquet file: two epochs from fresh weights, of which the second is measured. \
    Volley is a scheduler and two executors as processes, given `CREATE MODEL … device = 'cuda:0', device_share = true`; \
    PyTorch is a process for each of its forms, with rows and the order of an epoch on the GPU. Products \
    are in TF32 on both sides. Two ranks are Volley's alone and share the GPU. How busy the GPU is \
    comes from nvidia-smi, five times a second, over a whole run: for Volley with the reading of rows and the first epoch.";

fn trainings(args: &Args, ranks: usize) -> Vec<Training> {
    let of = |batch_size: &usize| {
        let steps = match batch_size {
            ..=256 => 300,
            ..=2048 => 80,
            ..=16384 => 20,
            // The table must hold the batches of two ranks.
            _ => 6,
        };
        Training {
            rows: steps * batch_size * ranks,
            ranks,
            batch_size: *batch_size,
            epochs: EPOCHS,
            device: GPU,
            tiny: false,
        }
    };
    args.batches.iter().map(of).collect()
}

/// Formats systems with one figure each.
fn told<'a>(figures: impl IntoIterator<Item = (&'a str, f64)>) -> String {
    let told = figures
        .into_iter()
        .map(|(system, figure)| format!("{system} {}", number(figure)));
    told.collect::<Vec<_>>().join("; ")
}

/// Runs the same training on the GPU and on the CPU, and describes the difference of the losses.
fn same_losses(example: &Example<'_>, training: Training) -> anyhow::Result<String> {
    let losses =
        |trained: Trained| -> Vec<f64> { trained.history.iter().map(|epoch| epoch.loss).collect() };
    let on_gpu = losses(example.train(&training)?);
    let device = "cpu";
    let on_cpu = losses(example.train(&Training { device, ..training })?);
    for (gpu, cpu) in on_gpu.iter().zip(&on_cpu) {
        ensure!(
            (gpu - cpu).abs() <= LOSSES_WITHIN * cpu,
            "losses of the epochs are {on_gpu:?} on the GPU and {on_cpu:?} on the CPU"
        );
    }
    let listed = |losses: &[f64]| {
        let losses: Vec<_> = losses.iter().map(|loss| number(*loss)).collect();
        losses.join(", ")
    };
    Ok(format!(
        "Losses of the epochs at batch {}: {} on the GPU, {} on the CPU from the same seed.",
        training.batch_size,
        listed(&on_gpu),
        listed(&on_cpu)
    ))
}

/// Queries fields of the first GPU with nvidia-smi.
fn query(fields: &str) -> anyhow::Result<String> {
    let query = format!("--query-gpu={fields}");
    let output = Command::new("nvidia-smi")
        .args(["--id=0", &query, "--format=csv,noheader"])
        .output()
        .context("cannot run nvidia-smi")?;
    ensure!(
        output.status.success(),
        "nvidia-smi failed: {}",
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Sampler of the GPU's utilization, running until `share` is called or it is dropped.
struct Busy {
    _nvidia_smi: Owned,
    samples: PathBuf,
}

impl Busy {
    fn start(samples: &Path) -> anyhow::Result<Self> {
        let nvidia_smi = Command::new("nvidia-smi")
            .args(["--id=0", "--query-gpu=utilization.gpu"])
            .args(["--format=csv,noheader,nounits", "--loop-ms=200"])
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(samples)?)
            .spawn()
            .context("cannot run nvidia-smi")?;
        Ok(Self {
            _nvidia_smi: Owned(nvidia_smi),
            samples: samples.to_owned(),
        })
    }

    /// Returns the median utilization so far, in percent.
    fn share(self) -> anyhow::Result<f64> {
        let samples = std::fs::read_to_string(&self.samples)?;
        let samples: Vec<f64> = samples
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect();
        Ok(median(&samples))
    }
}
