//! `volley-benchmarks`: Volley against what people use today, on a cluster of real processes.
//!
//! Each command starts what it compares, alternates between the systems in rounds, and writes what it
//! measured as JSON, Markdown and a chart. `rossmann` compares with nothing: it says where the time
//! and the memory of the main job go.

mod chart;
mod cluster;
mod comparison;
mod features;
mod growth;
mod latency;
mod machine;
mod peers;
mod rossmann;
mod session;
mod tpch;

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
    /// The Rossmann features, from CSV to Parquet, against Spark and DuckDB
    Features(features::Args),
    /// The Rossmann features with more and more stores
    Growth(growth::Args),
    /// The 22 queries of TPC-H, against Spark
    Tpch(tpch::Args),
    /// How long the smallest statements take
    Latency(latency::Args),
}

fn main() -> anyhow::Result<()> {
    let Args { results, command } = Args::parse();
    match command {
        Command::Rossmann(args) => rossmann::run(&args, &results),
        Command::Features(args) => features::run(&args, &results),
        Command::Growth(args) => growth::run(&args, &results),
        Command::Tpch(args) => tpch::run(&args, &results),
        Command::Latency(args) => latency::run(&args, &results),
    }
}
