//! `volley-scheduler`: the scheduler as a separate process.

use std::process::ExitCode;

/// jemalloc, because plans are trees of small parts: planning takes a fifth longer with glibc's allocator. Its
/// settings are in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    volley_scheduler::run()
}
