//! Stages of plans: which operators share a stage, and checks that its plan is right as it is sent. Only schedulers make
//! them.
//!
//! ```text
//!   physical plan (DataFusion's, valid in one process)
//!     │  one_task    operators whose partitions share state have all of them in one task
//!     │  cut         at each exchange: an exchange keeps partitions, and forgets orders
//!     │  enforce     sorts where an order was forgotten
//!     │  runs        of tiny batches, longer ones for the sorts
//!     │  check       orders, distributions, shared state, and the way over the wire
//!     ▼
//!   StageExec ── exchange ── StageExec ── …      the engine below sees no operator to change
//!     │  reuse       one exchange where several would have the same rows
//!     │  resolve     inputs that are known now
//!     │  restrict    to a task's partitions
//!     │  merge       small partitions put together, then check again
//!     ▼
//!   TaskPlan
//! ```
//!
//! Everything here is synchronous, and knows no job, graph or executor.

mod check;
mod cut;
mod describe;
mod enforce;
mod merge;
mod repeat;
mod restrict;
mod reuse;
mod runs;
mod stage;
#[cfg(test)]
mod tests;

pub use cut::{order_to_keep, stages};
pub use describe::{Description, is_writer};
pub use merge::task_partitions;
pub use repeat::StageIdentity;
pub use restrict::{kept_plan, reporting_operators, task_plan};
pub use reuse::reuse_exchanges;
pub use stage::{Relocate, find, in_stages};
