//! Volley's scheduler: Ballista's, embedded, with gangs.
//!
//! ```text
//!            one port
//!   ┌───────────────────────────┐
//!   │ Ballista gRPC and REST    │  jobs, stages, tasks, executors
//!   │ volley.v1.Rendezvous      │  ranks meet here: generation, rank, peers
//!   │ volley.v1.Training        │  clients watch a run here
//!   │ volley.v1.Cluster         │  and ask how large the cluster is
//!   └───────────────────────────┘
//!        │ offers                    placement (pure): who runs what now, what must wait, and why
//!        ▼
//!   ballista::ClusterState  ── binds slices of ordinary stages and whole gangs of barrier stages
//! ```
//!
//! It decides where tasks run and who belongs to a generation. It never touches rows or gradients
//! and links no tensor library.

mod ballista;
mod cluster_service;
mod config;
mod error;
mod placement;
mod server;
mod training;

pub use config::SchedulerConfig;
pub use error::{Error, Result};
pub use server::Scheduler;
