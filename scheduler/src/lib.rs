//! Volley's scheduler: Ballista's, embedded, with gangs.
//!
//! ```text
//!            one port
//!   ┌───────────────────────────┐
//!   │ Ballista gRPC and REST    │  jobs, stages, tasks, executors
//!   │ volley.v1.Rendezvous      │  ranks meet here: generation, rank, peers
//!   │ volley.v1.Training        │  clients watch a run here
//!   │ volley.v1.Cluster, .Jobs  │  and ask how large the cluster is, and about jobs
//!   │ volley.v1.Attendance      │  executors are there for as long as their stream is
//!   └───────────────────────────┘
//!        │ offers                    placement (pure): who runs what now, what must wait, and why
//!        ▼
//!   ballista::ClusterState  ── binds slices of ordinary stages and whole gangs of barrier stages
//! ```
//!
//! It decides where tasks run and who belongs to a generation. It never touches rows or gradients
//! and links no tensor library.

mod access;
mod attendance;
mod ballista;
mod config;
mod dial;
mod error;
mod heard;
mod jobs;
mod placement;
mod planning;
mod probes;
mod requests;
mod server;
mod slots;
mod tables;
mod training;
mod watched;
mod web;

pub use access::Tokens;
pub use config::SchedulerConfig;
pub use error::{Error, Result};
pub use server::Scheduler;
