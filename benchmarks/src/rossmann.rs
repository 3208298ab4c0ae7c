//! Time and memory of the Rossmann job's phases.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::cluster::{Cluster, scratch_folder};
use crate::example::scripts;
use crate::machine::Machine;
use crate::report::rfc3339;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Executors, each a process with one slot
    #[arg(long, default_value_t = 2)]
    executors: usize,
    /// Ranks that train
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Passes over the training rows
    #[arg(long, default_value_t = 2)]
    epochs: usize,
    /// Rows of one rank in one step
    #[arg(long, default_value_t = 50)]
    batch_size: usize,
    /// Seed of training
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Results of a run.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    #[serde(serialize_with = "rfc3339")]
    at: DateTime<Utc>,
    machine: Machine,
    executors: usize,
    ranks: usize,
    batch_size: usize,
    seed: u64,
    phases: Vec<Phase>,
    /// Rows that training returned, one per rank.
    rank_rows: Vec<Value>,
    /// Records of the model's manifest, one per epoch.
    history: Vec<Value>,
    /// Number of rows in `submission.csv`.
    predictions: usize,
    peak_memory_mib: Vec<(String, f64)>,
}

#[derive(Debug, Serialize)]
struct Phase {
    name: &'static str,
    seconds: f64,
}

/// Runs the job and writes the report into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let report = measure(args)?;
    std::fs::create_dir_all(results)?;
    let name = format!("rossmann-{}", report.day());
    let path = |extension: &str| results.join(format!("{name}.{extension}"));
    std::fs::write(path("json"), serde_json::to_string_pretty(&report)? + "\n")?;
    std::fs::write(path("md"), report.markdown())?;
    println!("{}\nwritten to {}", report.markdown(), path("md").display());
    Ok(())
}

fn measure(args: &Args) -> anyhow::Result<Report> {
    let dir = scratch_folder()?;
    let out = dir.path().join("out");
    std::fs::create_dir(&out)?;
    let cluster = Cluster::start(dir.path(), args.executors)?;
    let mut phases = Vec::new();
    let mut client_peak = 0.0_f64;
    let mut phase = |name, files: &[&str]| -> anyhow::Result<String> {
        let ran = cluster
            .run(&arguments(args, &out, files))
            .with_context(|| format!("phase {name}"))?;
        eprintln!("{name}: {:.2} s", ran.seconds);
        client_peak = client_peak.max(ran.peak_mib);
        phases.push(Phase {
            name,
            seconds: ran.seconds,
        });
        Ok(ran.stdout)
    };
    phase("checks", &["tables.sql", "features.sql", "checks.sql"])?;
    phase(
        "features to Parquet",
        &["tables.sql", "features.sql", "export.sql"],
    )?;
    let rows = phase(
        "features and training",
        &["tables.sql", "features.sql", "train.sql"],
    )?;
    phase(
        "features and prediction",
        &["tables.sql", "features.sql", "predict.sql"],
    )?;

    let manifest = dir.path().join("store/models/rossmann/1/manifest.json");
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(manifest)?)?;
    let submission = std::fs::read_to_string(out.join("submission.csv"))?;
    let mut peak_memory_mib = cluster.peaks();
    peak_memory_mib.push(("client".to_owned(), client_peak));
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        at: Utc::now(),
        machine: Machine::of_this_process(),
        executors: args.executors,
        ranks: args.ranks,
        batch_size: args.batch_size,
        seed: args.seed,
        phases,
        rank_rows: rows
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?,
        history: manifest["history"].as_array().cloned().unwrap_or_default(),
        predictions: submission.lines().count().saturating_sub(1),
        peak_memory_mib,
    })
}

/// Returns the arguments of `volley` to run these files of the example.
fn arguments(args: &Args, out: &Path, files: &[&str]) -> Vec<String> {
    let Args {
        data,
        ranks,
        epochs,
        batch_size,
        seed,
        ..
    } = args;
    let data = std::path::absolute(data).unwrap_or_else(|_| data.clone());
    let defines = [
        ("data", data.display().to_string()),
        ("out", out.display().to_string()),
        ("ranks", ranks.to_string()),
        ("epochs", epochs.to_string()),
        ("batch_size", batch_size.to_string()),
        ("seed", seed.to_string()),
    ];
    scripts(&defines, files)
}

impl Report {
    /// Returns the day of the run, as `YYYY-MM-DD` in UTC.
    fn day(&self) -> String {
        self.at.format("%Y-%m-%d").to_string()
    }

    /// Formats the report as Markdown.
    fn markdown(&self) -> String {
        let mut text = String::new();
        let number = |value: &Value, digits: usize| {
            value
                .as_f64()
                .map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
        };
        let Machine {
            processor,
            cores,
            memory_gib,
            kernel,
        } = &self.machine;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# Rossmann, full job, {}\n\nVolley {} on {processor}, {cores} cores, {memory_gib:.0} GiB, \
             Linux {kernel}.\nA scheduler and {} executors of one slot as processes; {} ranks, batch {} \
             a rank, seed {}.\n\n| phase | seconds |\n|---|---|",
            self.day(),
            self.version,
            self.executors,
            self.ranks,
            self.batch_size,
            self.seed
        );
        for Phase { name, seconds } in &self.phases {
            let _ = writeln!(text, "| {name} | {seconds:.2} |");
        }
        let _ = writeln!(
            text,
            "\n| rank | training rows | evaluation rows | streaming, s | training, s |\n|---|---|---|---|---|"
        );
        for row in &self.rank_rows {
            let (load, train) = (
                number(&row["load_seconds"], 2),
                number(&row["train_seconds"], 1),
            );
            let _ = writeln!(
                text,
                "| {} | {} | {} | {load} | {train} |",
                row["rank"], row["train_rows"], row["eval_rows"]
            );
        }
        let _ = writeln!(
            text,
            "\n| epoch | loss | eval_loss | eval_mae | eval_rmspe | seconds | compute, s | reduce, s |\n\
             |---|---|---|---|---|---|---|---|"
        );
        for record in &self.history {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                record["epoch"],
                number(&record["loss"], 4),
                number(&record["eval_loss"], 4),
                number(&record["eval_mae"], 4),
                number(&record["eval_rmspe"], 4),
                number(&record["seconds"], 1),
                number(&record["compute_seconds"], 1),
                number(&record["reduce_seconds"], 1),
            );
        }
        let _ = writeln!(
            text,
            "\n{} predictions.\n\n| process | peak memory, MiB |\n|---|---|",
            self.predictions
        );
        for (process, peak) in &self.peak_memory_mib {
            let _ = writeln!(text, "| {process} | {peak:.0} |");
        }
        text
    }
}
