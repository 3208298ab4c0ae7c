//! The layer between DataFusion and Volley: plan nodes and how they cross the wire, rules of plans, operators, and writers
//! of files.
//!
//! ```text
//! logical            physical                                      stages
//! TrainNode          TrainExec                                     barrier stage: one task a rank,
//!   └ input            └ RepartitionExec Hash(keys, M shards)        all at once or none
//!                          └ input                                 ──exchange──
//!                                                                  the input's own stages
//!                    PreparedExec                                  its input, where executors keep the rows
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

#[cfg(test)]
#[path = "../../proto/src/allocations.rs"]
mod allocations;
mod codec;
mod files;
mod mends;
mod nodes;
mod operators;
mod planning;
mod rules;
mod session;
mod write;

pub mod error;
pub mod object_stores;
pub mod runtime;
pub mod settings;
pub mod task;

pub use codec::flight_types::as_planned;
pub use codec::stores::declared_stores;
pub use codec::subqueries::unjoined;
pub use codec::tables::{Files, ROWS_LIMIT, file_name, sendable, table_functions, typed_as};
pub use codec::task::{PrunedExec, TaskPlan};
#[cfg(test)]
use codec::verify_sent;
pub use codec::{VolleyLogicalCodec, VolleyPhysicalCodec};
pub use files::arrow_file::ArrowFile;
pub use files::csv_records::{
    CsvDialect, EmptyText, OpenQuote, QuoteCheck, line_of_record, part_of_records, whole_records,
};
pub use files::decompressed::decompressed;
pub use files::empty_text::EmptyTextMark;
pub use mends::unnested_keys::forget_keys;
pub use mends::{MENDS, Mend, Upstream};
pub use nodes::kept::{KeptExec, KeptPiece, KeptRows};
pub use nodes::predict::{PredictExec, PredictNode};
pub use nodes::prepared::PreparedExec;
pub use nodes::result::ResultExec;
pub use nodes::train::{TrainExec, TrainNode, train_schema};
pub use operators::row_hash::{row_hash, split_draw};
pub use planning::effects::{Effects, places_of_task};
pub use planning::identity::rows_identity;
pub use planning::planner::VolleyQueryPlanner;
pub use planning::repeatable::{constants_size, optimizes_alike};
pub use planning::stages;
pub use rules::logical::{LogicalRule, around};
pub use session::{
    mend_relations, optimized, sent_rules, statement_to_plan, with_mended_analysis, with_rules,
};
use write::{CommitExec, WriteExec};
pub use write::{NULL_PARTITION, adds_files, exact_writer, replaces_file, written_files};
