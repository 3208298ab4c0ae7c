//! `volley-benchmarks`: Volley compared with systems in wide use, on a cluster of real processes.
//!
//! Each command starts the systems it compares, alternates between them in rounds, and writes its measurements as
//! JSON, Markdown and a chart. `rossmann` and `barrier` compare with no other system: they show where the time and
//! the memory of the main job go.

mod all_reduce;
mod barrier;
mod chart;
mod cluster;
mod collective;
mod comparison;
mod example;
mod features;
mod gpu;
mod growth;
mod latency;
mod load;
mod losses;
mod machine;
mod peers;
mod prediction;
mod quality;
mod report;
mod rossmann;
mod scale;
mod session;
mod simulation;
mod tls;
mod tpc;
mod training;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Measures Volley, and what it replaces beside it
#[derive(Debug, Parser)]
struct Args {
    /// Folder for the results
    #[arg(long, global = true, default_value = "benchmarks/runs")]
    results: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The whole Rossmann job, phase by phase: features to Parquet, training, prediction
    Rossmann(rossmann::Args),
    /// Training speed against PyTorch
    Training(training::Args),
    /// Sums over processes against gloo
    AllReduce(all_reduce::Args),
    /// A step of training on up to a thousand ranks, in virtual time
    Scale(scale::Args),
    /// Cost of TLS for a shuffle and for sums of ranks
    Tls(tls::Args),
    /// ML.PREDICT against PyTorch
    Prediction(prediction::Args),
    /// Predictions of public tables with defaults, against scikit-learn, `LightGBM`, `XGBoost` and `RealMLP`
    Quality(quality::Args),
    /// Training on one NVIDIA GPU: the CPU's losses, and PyTorch's speed
    Gpu(gpu::Args),
    /// Networks of other kinds on one NVIDIA GPU: the CPU's losses
    GpuNetworks(gpu::networks::Args),
    /// From the last feature task to the first optimizer step
    Barrier(barrier::Args),
    /// The Rossmann features, from CSV to Parquet, against Spark, DuckDB and Polars
    Features(features::Args),
    /// The Rossmann features with more and more stores
    Growth(growth::Args),
    /// The 22 queries of TPC-H, against Spark, `DuckDB` and `DataFusion` alone
    Tpch(tpc::Args),
    /// The 99 queries of TPC-DS, against the same
    Tpcds(tpc::Args),
    /// Time of the smallest statements
    Latency(latency::Args),
    /// Many clients at once: lost queries, wrong answers, and the time of `SELECT 1`
    Load(load::Args),
    /// A long query while executors are killed and replaced
    Losses(losses::Args),
    /// Cost of the scheduler's decisions for a thousand executors and a hundred jobs, in virtual time
    Simulation(simulation::Args),
}

fn main() -> anyhow::Result<()> {
    let Args { results, command } = Args::parse();
    match command {
        Command::Rossmann(args) => rossmann::run(&args, &results),
        Command::Training(args) => training::run(&args, &results),
        Command::AllReduce(args) => all_reduce::run(&args, &results),
        Command::Scale(args) => scale::run(&args, &results),
        Command::Tls(args) => tls::run(&args, &results),
        Command::Prediction(args) => prediction::run(&args, &results),
        Command::Quality(args) => quality::run(&args, &results),
        Command::Gpu(args) => gpu::run(&args, &results),
        Command::GpuNetworks(args) => gpu::networks::run(&args, &results),
        Command::Barrier(args) => barrier::run(&args, &results),
        Command::Features(args) => features::run(&args, &results),
        Command::Growth(args) => growth::run(&args, &results),
        Command::Tpch(args) => tpc::run(&tpc::TPCH, &args, &results),
        Command::Tpcds(args) => tpc::run(&tpc::TPCDS, &args, &results),
        Command::Latency(args) => latency::run(&args, &results),
        Command::Load(args) => load::run(&args, &results),
        Command::Losses(args) => losses::run(&args, &results),
        Command::Simulation(args) => simulation::run(&args, &results),
    }
}
