//! How queries are planned: the order of joins and how each is done, sizes, partitions, and how many tasks.
//!
//! A plan of it is slower or faster; rows are the same by any. Not here: how a plan becomes stages.

pub(crate) mod effects;
pub(crate) mod estimates;
pub(crate) mod join_order;
pub(crate) mod joins;
pub(crate) mod partitions;
pub(crate) mod planner;
pub(crate) mod reread;
pub(crate) mod selectivity;
pub(crate) mod single_task;
pub(crate) mod size;
pub(crate) mod without_columns;
