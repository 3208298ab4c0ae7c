//! Jobs as their clients know them: one id from submission to end, whatever happens in between.
//!
//! ```text
//!   client ──► Door ──► Ballista's job = attempt 1 ──✗ an executor was lost with its data
//!     id J  │                                      │
//!           │            Keeper submits it again ◄─┘
//!           └─────────► attempt 2 ──► result, under the id J
//! ```
//!
//! Ballista mends lost shuffle data wrongly (rows are counted twice, or the job hangs), so it is
//! never let: an attempt that lost data is ended, and the job is submitted again, a bounded number
//! of times. [`job`] decides, without clock or I/O; [`Book`] owns the jobs; [`door`] stands in for
//! Ballista's service towards clients; [`keeper`] does what takes time. Which attempts have lost
//! data is for [`crate::ballista`] to say.

mod book;
mod door;
mod job;
mod keeper;
mod rows;
mod service;
mod tables;

pub(crate) use book::{Book, Command};
pub(crate) use door::Door;
pub(crate) use job::Ending;
pub(crate) use keeper::Keeper;
pub(crate) use rows::Patience;
pub(crate) use service::jobs_service;
