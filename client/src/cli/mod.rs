//! The command line: `volley [OPTIONS] [COMMAND]`.
//!
//! ```text
//! argv, VOLLEY_* -> Args (what was typed) -> Config (what it means) -> run
//!                                                  │
//!       ┌──────────────┬───────────┬──────────┴┬────────────┐
//!    script / repl   generate    cluster      jobs         demo
//!       └── execute: one statement, its progress, its rows, on an Engine
//! ```
//!
//! It is a thin skin over the library: whatever it does with SQL, a program can do with
//! [`Session`](volley::Session). Standard output carries results only, standard error the rest.

mod args;
mod cluster;
mod config;
mod define;
mod demo;
mod embedded;
mod engine;
mod execute;
mod format;
mod generate;
mod input;
mod jobs;
mod progress;
mod repl;
mod report;
mod script;
mod signals;

pub(crate) use args::Args;
pub(crate) use config::{Config, Surroundings};
pub(crate) use report::{is_broken_pipe, report};

use config::{Input, Query};

/// How a command ended that did not fail with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It did what it was asked.
    Done,
    /// It said itself what is wrong.
    Failed,
    /// A signal stopped it; the exit code that says which.
    Interrupted(u8),
}

/// Runs a command to its end.
pub(crate) async fn run(config: Config) -> anyhow::Result<Ended> {
    match config {
        Config::Query(query) => run_query(*query).await,
        Config::Generate(generate) => generate::run(&generate).map(|()| Ended::Done),
        Config::Jobs(jobs) => jobs::run(&jobs).await,
        Config::Cluster(cluster) => cluster::run(&cluster).await,
        Config::Demo(demo) => demo::run(*demo).await,
    }
}

async fn run_query(query: Query) -> anyhow::Result<Ended> {
    match &query.input {
        Input::Terminal { history } => repl::run(&query, history.as_deref()).await,
        Input::Sources(sources) => {
            let scripts = script::load(sources, &query.defines)?;
            script::run(&query, &scripts).await
        }
    }
}
