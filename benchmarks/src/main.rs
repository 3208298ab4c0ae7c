//! `volley-benchmarks`: Volley against what people use today, on a cluster of real processes.
//!
//! Each command starts what it compares, alternates between the systems in rounds, and writes what it
//! measured as JSON, Markdown and a chart. `rossmann` compares with nothing: it says where the time
//! and the memory of the main job go.

mod chart;
mod cluster;
mod comparison;
mod machine;
mod peers;
mod rossmann;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Measures Volley, and what it replaces beside it
#[derive(Debug, Parser)]
struct Args {
    /// Where the results go
    #[arg(long, global = true, default_value = "benchmarks/runs")]
    results: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The whole Rossmann job, phase by phase: features to Parquet, training, prediction
    Rossmann(rossmann::Args),
}

fn main() -> anyhow::Result<()> {
    let Args { results, command } = Args::parse();
    match command {
        Command::Rossmann(args) => rossmann::run(&args, &results),
    }
}
