//! Volley's SQL: DataFusion's SQL, plus statements and functions for models.
//!
//! ```text
//! script ── parse ──> Statement ── models named in it ──> manifests ── plan ──> Logical
//!            │                                                          │
//!            │ CREATE/SHOW/… MODEL:                                     │ ML.…(MODEL m, …):
//!            │ ours; all others:                                        │ a RelationPlanner
//!            │ DFParser's
//! ```
//!
//! This module does no I/O: parsing and planning are functions of text, schemas and manifests.

mod advice;
mod call;
mod class_queries;
mod derived;
mod evaluate;
mod excerpt;
mod feature_info;
#[cfg(test)]
mod fuzz;
mod global_explain;
mod known;
mod nesting;
mod options;
mod parse;
mod plan;
mod spell;
mod statement;
mod training_info;
mod transform;
mod values;

pub(crate) use call::{Reference, named_models};
pub(crate) use derived::quoted;
pub use excerpt::Excerpt;
pub(crate) use known::Known;
pub use options::{
    Dropout, EarlyStopOptions, LossName, LossOptions, NetworkOptions, OptimizerName,
    OptimizerOptions, OptionValue, QuantileLevels, ScheduleName, SplitMethod, TrainOption,
    TrainOptions, VocabularyOptions, WarmStart, train_options,
};
pub(crate) use options::{Target, check_unambiguous, needed_columns};
pub(crate) use parse::{Dialect, first_refused, parse, parse_transform};
pub(crate) use plan::{MlPlanner, NamedModels, predict};
pub use statement::Statement;
pub(crate) use statement::{CreateModel, Kind, visit};
pub(crate) use transform::{Clause, Columns, cut_query, expressions, only};
pub(crate) use values::values;
