//! A cluster of real processes for tests, on this host or over several, the command line to drive it, and ways to
//! harm it.
//!
//! The binaries are those of this build. The system chooses every port on this host, readiness is polled to a
//! deadline, output goes to files that are printed when a test fails, and processes that a test leaves running are
//! killed when it ends. Nothing is mocked.

mod binaries;
mod browser;
mod client;
mod cluster;
mod collector;
mod example;
mod hosts;
mod intruder;
mod process;
mod proxy;
mod s3;
mod setup;
mod tables;
mod told;

pub mod hostile;
pub mod issuer;

pub use binaries::binary;
pub use browser::{Browser, images};
pub use client::Client;
pub use cluster::{Cluster, Run, executor_id};
pub use collector::{CollectedSpan, Collector, SpanStatus};
pub use example::generate_example;
pub use hosts::Hosts;
pub use intruder::{Answer, Intruder};
pub use process::{Process, eventually};
pub use proxy::{Direction, Proxy};
pub use s3::{Fault, FaultPlan, FaultyProxy, S3Server};
pub use setup::{Dialled, ExecutorSetup, RemoteStore, Setup, Spread, certificates};
pub use tables::{Numbers, Samples, Work};
pub use told::{Job, JobState, Slots, Stage};
