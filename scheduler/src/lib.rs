//! Volley's scheduler: Ballista's scheduler, embedded and extended by gangs.
//!
//! ```text
//!              one port: access authenticates, authorizes
//!   ┌─────────────────────────────┐
//!   │ grpc      volley.v1         │  executors attend, ranks meet, clients ask about jobs, runs and tables
//!   │ web       pages             │  the same tables in a browser
//!   │ ballista  Ballista's gRPC   │  jobs and tasks, by the job gateway; Ballista's REST
//!   └─────────────────────────────┘
//!         │ events, questions ▲ answers, wakes
//!         ▼                   │
//!   handle ─► control ─► commands ─► ballista (driver)      control decides, and knows neither of the others
//!                ▲
//!                └── facts of graphs, offers ─── ballista ─── planning (queries to stages)
//! ```
//!
//! `record` keeps the record of jobs for a restarted scheduler, and `traces` builds their spans for a collector. `simulation` drives `control` alone, in virtual time,
//! for benchmarks.
//!
//! The scheduler decides where tasks run and who belongs to a generation. It never touches rows or gradients and
//! links no tensor library.

mod access;
mod ballista;
mod command;
mod config;
mod control;
mod error;
mod grpc;
mod handle;
mod listing;
mod record;
mod server;
#[doc(hidden)]
pub mod simulation;
mod tables;
mod traces;
mod web;

pub use access::{GpuHours, JwtConfig, KeySetLocation, Limits, RoleLimits, Tokens};
pub use command::run;
pub use config::SchedulerConfig;
pub use control::Queue;
pub use error::{Error, Result};
pub use server::Scheduler;
