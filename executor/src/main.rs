//! `volley-executor`: the executor as its own process, without custom layers.

use std::process::ExitCode;

use volley_executor::custom::CustomLayers;

/// See `.cargo/config.toml` for its settings.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    volley_executor::run(CustomLayers::new())
}
