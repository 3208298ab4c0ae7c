//! A cluster of real processes for tests, and the command line to drive it.
//!
//! The binaries are those of this build. Every port is the system's choice, readiness is polled to
//! a deadline, output goes to files that are printed when a test fails, and whatever a test leaves
//! running is killed when it ends. Nothing is mocked.

mod binaries;
mod cluster;
mod process;

pub use binaries::binary;
pub use cluster::{Cluster, Run};
pub use process::{Process, eventually};
