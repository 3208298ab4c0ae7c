//! Queues: weighted fair sharing of slots among the queries of many users, decided purely.
//!
//! ```text
//!   a free slot ──► the queue with the fewest slots per weight; of equals, the one served least recently
//!                     └► its user with the fewest slots, below the cap; of equals, the one served least recently
//!                          └► their stage of the highest priority, then of the job that came first
//! ```
//!
//! [`settings`] has the queues and their weights; [`usage`] has the slots held of them, kept beside the tasks that
//! hold them ([`super::slots`]); [`turns`] is an order over the stages of one offer that have partitions left. It is
//! built once for an offer, from all of these stages; a slot costs the logarithm of the queues, of the queue's users
//! and of their stages. A gang waits for no share and no cap, and its slots count to none, because it may hold them
//! for days.
//!
//! Not here: the executor of the slot, and gangs, which are placed first come, first served: see [`super::placement`].

mod settings;
mod turns;
mod usage;

pub use settings::Queue;
pub(crate) use settings::Queues;
pub(crate) use turns::{Turns, Waiting};
pub(crate) use usage::{Account, Usage};
