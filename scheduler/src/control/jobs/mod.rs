//! Jobs as their clients know them: one id from submission to end, whatever happens in between.
//!
//! ```text
//!   client ──► job gateway ──► the engine's job = attempt 1 ──✗ an executor was lost with its data
//!     id J                                                   │
//!              submitted again ◄─────────────────────────────┘
//!              └─► attempt 2 ──► result, under the id J
//! ```
//!
//! Ballista repairs lost shuffle data wrongly (rows are counted twice, or the job hangs), so it never gets to: an
//! attempt that lost data is ended, and the job is submitted again, a bounded number of times. [`job`] is the state
//! machine of one job, [`registry`] has all jobs and their attempts, [`retention`] decides how long rows are kept,
//! and [`limits`] what a job may take.

mod job;
mod limits;
mod registry;
mod retention;
mod tables;

pub(in crate::control) use job::Death;
pub(crate) use job::{Job, Note};
pub(crate) use limits::JobLimits;
pub(crate) use registry::{AttemptOutcome, Jobs, Totals};
pub(crate) use retention::{Reading, RetentionPolicy};
pub(crate) use tables::JobsFilter;
