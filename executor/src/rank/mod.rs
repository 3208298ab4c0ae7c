//! The rank host: runs the ranks of barrier stages.
//!
//! ```text
//!   join ──► connect peers ──► stream shards ──► train (own thread) ──► rank 0 publishes
//!    │            │                 │                 │                    │ version broadcast
//!    └────────────┴─── a failure is told to the scheduler, which ──────────┘
//!                      answers with the root cause, if it was a peer
//! ```
//!
//! It brings together what others do: the scheduler's rendezvous, the trainer's collectives and
//! loop, the model store. It holds no state between tasks.

mod host;
mod progress;
mod rendezvous;
mod run;

pub(crate) use host::RankHost;
