//! An executor with a layer of its own. Everything else is `volley-executor`'s.

mod rbf;

use std::process::ExitCode;

use volley_executor::custom::CustomLayers;

use rbf::Rbf;

/// As `volley-executor` has it: a training step takes two thirds of the time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    volley_executor::run(CustomLayers::new().with("rbf", Rbf))
}
