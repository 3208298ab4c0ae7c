//! The `volley` binary: its runtime, its log and its exit code. Everything else is in [`cli`].

mod cli;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches};
use tracing_subscriber::EnvFilter;
use volley_proto::limits::STACK;

use cli::{Args, Config, Ended};

/// See `.cargo/config.toml` for its settings: an embedded cluster trains in this process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let matches = Args::command().get_matches();
    let config = Args::from_arg_matches(&matches)
        .and_then(|args| Config::resolve(args, &matches, &cli::Surroundings::of_process()))
        .unwrap_or_else(|mistake| mistake.exit());
    match on_large_stack(config) {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Failed) => ExitCode::FAILURE,
        Ok(Ended::Interrupted(code)) => ExitCode::from(code),
        Err(error) if cli::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Runs the command on a thread with a stack of its own, since the main thread's is not ours to size.
fn on_large_stack(config: Config) -> anyhow::Result<Ended> {
    let command = move || {
        log_to_stderr();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(STACK)
            .build()
            .context("cannot start the async runtime")?;
        let ended = runtime.block_on(cli::run(config));
        // Whatever still blocks is not worth waiting for: the command has ended.
        runtime.shutdown_background();
        ended
    };
    let thread = thread::Builder::new()
        .name("volley".into())
        .stack_size(STACK);
    let running = thread.spawn(command).context("cannot start a thread")?;
    match running.join() {
        Ok(ended) => ended,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What is logged unless the environment says otherwise. The engine inside warns of every task that
/// it moves, and of failed jobs the user is told anyway.
const DEFAULT_LOG: &str = "warn,ballista_core=off,ballista_scheduler=off,ballista_executor=error";

/// Logs at `VOLLEY_LOG`, else `RUST_LOG`, else the default.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("VOLLEY_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
