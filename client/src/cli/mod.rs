//! Command line: `volley [OPTIONS] [COMMAND]`.
//!
//! ```text
//! argv, VOLLEY_*, config.toml -> Args (what was typed) -> Config (what it means) -> run
//!                                                  │
//!       ┌──────────────┬───────────┬──────────┴┬────────────┐
//!    script / prompt generate    cluster  jobs, executors  demo
//!       └── execute: one statement, its progress, its rows, on an Engine
//! ```
//!
//! It is a thin layer over the library: a program can do all its SQL with [`Session`](volley::Session). Standard output
//! carries results only, and standard error the rest.

mod args;
mod certs;
mod cluster;
mod config;
mod defaults;
mod define;
mod demo;
mod doctor;
mod embedded;
mod engine;
mod execute;
mod executors;
mod format;
mod generate;
mod jobs;
mod model_report;
mod pager;
mod progress;
mod prompt;
mod report;
mod script;
mod signals;
mod store;

pub(crate) use args::Args;
pub(crate) use config::{Config, Surroundings};
pub(crate) use defaults::{command, explained};
pub(crate) use report::{is_broken_pipe, report};

use clap::CommandFactory;
use config::{Describe, Input, Query};

/// End of a command that did not fail with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The command did what was asked.
    Done,
    /// The command has already printed what is wrong.
    Failed,
    /// A signal stopped the command; the exit code names the signal.
    Interrupted(u8),
}

/// Runs a command to its end.
pub(crate) async fn run(config: Config) -> anyhow::Result<Ended> {
    match config {
        Config::Query(query) => run_query(*query).await,
        Config::Generate(generate) => generate::run(&generate).map(|()| Ended::Done),
        Config::Jobs(jobs) => jobs::run(&jobs).await,
        Config::Executors(executors) => executors::run(&executors).await,
        Config::Certificates(certificates) => certs::run(&certificates).map(|()| Ended::Done),
        Config::Cluster(cluster) => cluster::run(&cluster).await,
        Config::Demo(demo) => demo::run(*demo).await,
        Config::Report(report) => model_report::run(&report).await,
        Config::Store(store) => store::run(&store).await,
        Config::Doctor(doctor) => doctor::run(&doctor).await,
        Config::Describe(whom) => describe(whom).await.map(|()| Ended::Done),
    }
}

/// Prints a description of the command: a shell's completion script, the manual page, or the help on a topic.
async fn describe(whom: Describe) -> anyhow::Result<()> {
    let mut command = Args::command();
    let mut text = Vec::new();
    match whom {
        Describe::Shell(shell) => {
            clap_complete::generate(shell, &mut command, "volley", &mut text);
        }
        Describe::Manual => clap_mangen::Man::new(command).render(&mut text)?,
        Describe::Topic(topic) => {
            command.build();
            let described = topic.iter().try_fold(&mut command, |command, word| {
                command.find_subcommand_mut(word)
            });
            let help = match described {
                Some(command) => format!("{}\n", command.render_long_help()),
                None => prompt::syntax(&topic.join(" "))?,
            };
            text.extend(help.bytes());
        }
    }
    execute::write(&text).await?;
    Ok(())
}

async fn run_query(query: Query) -> anyhow::Result<Ended> {
    match &query.input {
        Input::Terminal { history, rc } => {
            prompt::run(&query, history.as_deref(), rc.as_deref()).await
        }
        Input::Sources(sources) => {
            let scripts = script::load(sources, &query.defines)?;
            script::run(&query, &scripts).await
        }
    }
}
