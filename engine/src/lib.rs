//! What stands between DataFusion and Volley: plan nodes and how they cross the wire, rules of plans, operators, and writers
//! of files.
//!
//! ```text
//! logical            physical                                      stages
//! TrainNode          TrainExec                                     barrier stage: one task a rank,
//!   └ input            └ RepartitionExec Hash(keys, M shards)        all at once or none
//!                          └ input                                 ──exchange──
//!                                                                  the input's own stages
//! PredictNode        PredictExec                                   part of any stage
//!   └ input            └ input
//! min, max           running, in a window operator                 part of any stage
//! a folder's writer  CommitExec                                    one task
//!   └ input            └ WriteExec                                 ──exchange──
//!                          └ input                                 part of any stage
//! ```
//!
//! Not here: training and prediction. The nodes find that behind [`runtime`] when they execute, which only executors
//! implement, so schedulers and clients plan them without linking a tensor library.

mod aggregate_orders;
#[cfg(test)]
#[path = "../../proto/src/allocations.rs"]
mod allocations;
mod arrow_file;
mod codec;
mod csv_records;
mod distinct_counts;
mod effects;
mod empty_grouping_sets;
mod estimates;
mod expand;
mod fence;
mod filtered;
mod filters;
mod float_extremes;
mod float_ranges;
#[cfg(test)]
mod fuzz;
mod join_order;
mod joins;
mod leaf_projections;
mod logical_rule;
mod merge_joins;
mod null_safe_joins;
mod one_task;
mod own_equalities;
mod partitions;
mod plan_rule;
mod planner;
mod predict;
mod recursion;
mod repeated;
mod requirements;
mod reread;
mod reversed_aggregates;
mod row_hash;
mod rules;
mod running;
mod selectivity;
mod single_distinct;
mod single_task;
mod single_value;
mod size;
mod sliding;
mod sorts;
mod stores;
mod tables;
mod task;
mod train;
mod unnested_keys;
mod window_exprs;
mod window_limits;
mod wire;
mod without_columns;
mod write;

pub mod error;
pub mod object_stores;
pub mod runtime;
pub mod settings;

pub use arrow_file::ArrowFile;
pub use codec::{VolleyLogicalCodec, VolleyPhysicalCodec, verify_sent};
pub use csv_records::{CsvDialect, part_of_records, whole_records};
pub use effects::{Effects, places_of_task};
pub use fence::FenceExec;
pub use filters::without_filters;
pub use joins::is_of_the_right;
pub use logical_rule::{LogicalRule, around, top_down, whole_plan};
pub use one_task::OneTaskExec;
pub use planner::VolleyQueryPlanner;
pub use predict::{PredictExec, PredictNode};
pub use repeated::{receive_repeated_names, send_repeated_names};
pub use reread::{is_reread, is_volatile_operator, spreads_over_threads};
pub use row_hash::{row_hash, split_draw};
pub use rules::{mended_logical_rules, mended_rules, with_rules};
pub use single_value::single_value;
pub use stores::declared_stores;
pub use tables::{Files, ROWS_LIMIT, file_name, sendable, table_functions, typed_as};
pub use task::{PrunedExec, TaskPlan};
pub use train::{TrainExec, TrainNode, train_schema};
pub use unnested_keys::{UnnestedKeys, UnnestedRelations, forget_keys};
use write::{CommitExec, WriteExec};
pub use write::{adds_files, replaces_file};
