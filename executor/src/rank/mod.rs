//! The rank host: runs the ranks of barrier stages.
//!
//! ```text
//!   take a place ──► join ──► stream shards ──► connect peers ──► train (own thread) ──► rank 0
//!    │ state left     │            │                 │                 │                 publishes
//!    │ by the rank    └────────────┴─────────────────┴─────────────────┘
//!    │ before                        the generation is over: the state is
//!    └──────────◄─────────────────── left for the next rank, the task ends
//! ```
//!
//! It combines parts that live elsewhere: the scheduler's rendezvous, the trainer's collectives and training loop,
//! and the model store. Between tasks it holds the states that ranks have [left](parking), between trainings the rows
//! that are [prepared].

mod host;
mod origin;
mod parking;
mod prepared;
mod progress;
mod rendezvous;
mod run;
mod trace;

pub(crate) use host::RankHost;
pub(crate) use parking::Parking;
pub(crate) use prepared::Prepared;
