//! `volley-benchmarks`: the main job at full size on a cluster of real processes, phase by phase.
//!
//! It starts a scheduler and executors, runs the SQL files of `examples/rossmann` through the
//! `volley` command as a user would, and writes what it measured as JSON and Markdown. It compares
//! with nothing: it says where the time and the memory go.

mod cluster;
mod machine;
mod rossmann;

use std::path::PathBuf;

use clap::Parser;

/// Measures the Rossmann job: features to Parquet, training, prediction
#[derive(Debug, Parser)]
struct Args {
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
    /// Where the results go
    #[arg(long, default_value = "benchmarks/runs")]
    results: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let report = rossmann::run(&args)?;
    std::fs::create_dir_all(&args.results)?;
    let name = format!("rossmann-{}", report.day());
    let json = args.results.join(format!("{name}.json"));
    let markdown = args.results.join(format!("{name}.md"));
    std::fs::write(&json, serde_json::to_string_pretty(&report)? + "\n")?;
    std::fs::write(&markdown, report.markdown())?;
    println!(
        "{}\nwritten to {} and {}",
        report.markdown(),
        json.display(),
        markdown.display()
    );
    Ok(())
}
