//! The Rossmann features with a growing number of stores, on the same two executors with the same memory: checks
//! that the time grows no faster than the rows. It compares with no other system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::cluster::{Cluster, Layout, binary, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, median};
use crate::example::export;
use crate::peers::run as run_command;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Multiples of the real tables' 1115 stores; the first is the baseline of the others
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
    scales: Vec<u32>,
    /// Memory for queries of each executor; beyond it they spill
    #[arg(long, default_value = "4GiB")]
    memory: String,
    /// Rounds of each scale
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory in which the tables are generated and kept [default: a temporary one]
    #[arg(long)]
    data: Option<PathBuf>,
}

/// Number of stores in the real tables.
const STORES: u32 = 1115;

/// Maximum factor by which a scale's time may exceed proportional growth.
const ALLOWANCE: f64 = 1.15;

/// Runs the measurements and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(
        !args.scales.contains(&0),
        "--scales: expected whole numbers, at least 1"
    );
    let method = format!(
        "The Rossmann features, from seven CSV files of generated tables to Parquet, everything \
         included, at {} stores times the scale; weather and trends are of the same size at every \
         scale. A scheduler and two executors of one slot as processes, started anew for each scale and \
         warmed up by one round, each executor with {} for queries. A scale may take as many times as long as it has more \
         stores, and {:.0} % more.",
        STORES,
        args.memory,
        (ALLOWANCE - 1.0) * 100.0
    );
    let dir = scratch_folder()?;
    let folder = match &args.data {
        Some(data) => std::path::absolute(data)?,
        None => dir.path().join("data"),
    };
    let mut comparison = Comparison::new("growth", "Rossmann features as the tables grow", method);
    let mut memory = Vec::new();
    // Seconds of scale 1, estimated from the first scale.
    let mut base = None;
    for scale in &args.scales {
        let data = tables(&folder, *scale)?;
        let measured = measure(args, *scale, &data, dir.path())?;
        let factor = f64::from(*scale);
        let at_most = base.map(|base: f64| base * factor * ALLOWANCE);
        base = base.or(Some(median(&measured.seconds) / factor));
        let mut seconds = Case::new(format!("{scale}×, features"), Unit::Seconds);
        if let Some(at_most) = at_most {
            seconds = seconds.at_most((at_most * 100.0).round() / 100.0);
        }
        for figure in measured.seconds {
            seconds.push(VOLLEY, figure);
        }
        comparison.cases.push(seconds);
        for (process, peak) in measured.peaks {
            let mut case = Case::new(format!("{scale}×, peak memory of {process}"), Unit::MiB);
            case.push(VOLLEY, peak);
            memory.push(case);
        }
    }
    comparison.cases.extend(memory);
    comparison.report.remarks = vec![
        "Memory is the kernel's high-water mark (`VmHWM`) of each process over all rounds of a scale. \
         The memory for queries is a part of it: reading, writing and what Arrow allocates outside of \
         operators are not counted against it."
            .to_owned(),
    ];
    comparison.write(results)
}

/// Returns the folder of the tables at a scale; generates them if they are missing.
fn tables(folder: &Path, scale: u32) -> anyhow::Result<PathBuf> {
    let data = folder.join(format!("rossmann-{scale}x"));
    // This file is written last.
    if !data.join("test.csv").exists() {
        let stores = (STORES * scale).to_string();
        eprintln!("{scale}×: generating the tables of {stores} stores");
        let mut generate = Command::new(binary("volley")?);
        generate
            .args(["generate", "rossmann", "--stores", &stores, "--out"])
            .arg(&data);
        run_command(&mut generate)?;
    }
    Ok(data)
}

/// Measurements of one scale.
struct Measured {
    /// Seconds by round.
    seconds: Vec<f64>,
    /// Peak memory by process, in MiB.
    peaks: Vec<(String, f64)>,
}

fn measure(args: &Args, scale: u32, data: &Path, dir: &Path) -> anyhow::Result<Measured> {
    let dir = dir.join(format!("{scale}x"));
    fs::create_dir(&dir)?;
    let layout = Layout {
        options: &["--memory", &args.memory],
        ..Layout::of(2)
    };
    let cluster = Cluster::start_with(&dir, layout)?;
    let (mut seconds, mut client_peak) = (Vec::new(), 0.0_f64);
    // One warm-up round.
    for round in 0..=args.rounds {
        let out = dir.join("out");
        fs::create_dir(&out)?;
        let ran = cluster.run(&export(data, &out))?;
        eprintln!("{scale}×, round {round}: {:.2} s", ran.seconds);
        if round > 0 {
            seconds.push(ran.seconds);
        }
        client_peak = client_peak.max(ran.peak_mib);
        fs::remove_dir_all(&out)?;
    }
    let mut peaks = cluster.peaks();
    peaks.push(("client".to_owned(), client_peak));
    Ok(Measured { seconds, peaks })
}
