//! The `volley` binary: its runtime, its log and its exit code. Everything else is in [`cli`]. By another name, it is another
//! program.

mod cli;

use std::io::IsTerminal;
#[cfg(feature = "standalone")]
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use clap::FromArgMatches;
use tracing_subscriber::EnvFilter;
#[cfg(feature = "standalone")]
use volley_executor::custom::CustomLayers;
use volley_proto::limits::STACK;

use cli::{Args, Config, Ended};

/// Allocator; `.cargo/config.toml` has its settings, since an embedded cluster trains in this process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    #[cfg(feature = "standalone")]
    if let Some(ended) = as_another_program() {
        return ended;
    }
    let command = cli::command().unwrap_or_else(|mistake| mistake.exit());
    let matches = command.try_get_matches();
    let matches = matches.unwrap_or_else(|mistake| cli::explained(mistake).exit());
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

/// Runs the scheduler or the executor if this process was started by its name: an image has one program with three names.
#[cfg(feature = "standalone")]
fn as_another_program() -> Option<ExitCode> {
    let path = std::env::args_os().next()?;
    match Path::new(&path).file_name()?.to_str()? {
        "volley-scheduler" => Some(volley_scheduler::run()),
        "volley-executor" => Some(volley_executor::run(CustomLayers::new())),
        _ => None,
    }
}

/// Runs the command on a thread with its own stack, because the size of the main thread's stack is not ours to set.
fn on_large_stack(config: Config) -> anyhow::Result<Ended> {
    let command = move || {
        log_to_stderr();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_stack_size(STACK)
            .build()
            .context("cannot start the async runtime")?;
        let ended = runtime.block_on(cli::run(config));
        // Tasks that still block are not worth waiting for: the command has ended.
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

/// Log filter unless the environment sets another. A cluster in this process logs nothing: a failed statement's error
/// says what went wrong. A GPU that predictions cannot use is the exception, since nothing else reports it.
const DEFAULT_LOG: &str = "warn,ballista_core=off,ballista_scheduler=off,ballista_executor=off,\
    volley_scheduler=off,volley_executor=off,volley_trainer=off,volley_trainer::accelerator=warn";

/// Logs with the filter in `VOLLEY_LOG`, else in `RUST_LOG`, else the default.
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
