//! Query planning: the order of joins and the execution of each, sizes, partitions, the number of tasks, and [stages].
//!
//! These choices make a plan slower or faster; its rows are the same with any.

pub(crate) mod distinct_sets;
pub(crate) mod dynamic_filters;
pub(crate) mod effects;
pub(crate) mod estimates;
pub(crate) mod identity;
pub(crate) mod join_order;
pub(crate) mod joins;
pub(crate) mod large_constants;
pub(crate) mod partitions;
pub(crate) mod planner;
pub(crate) mod predicted_columns;
pub(crate) mod repeatable;
pub(crate) mod reread;
pub(crate) mod selectivity;
pub(crate) mod single_task;
pub(crate) mod size;
pub mod stages;
pub(crate) mod without_columns;
