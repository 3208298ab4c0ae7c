//! Options of `CREATE MODEL`, from the typed values to a complete training spec.
//!
//! [`table`] lists every option once, for parsing and for documentation; [`TrainOptions`] collects the given values,
//! and [`TrainOptions::spec`] settles the rest against the input's columns. All of it is pure: no I/O, no session.

#[cfg(test)]
mod documented;
mod labels;
mod layers;
mod loss;
mod network;
mod optimizer;
mod settle;
mod split;
mod table;
mod value;
mod vocabulary;
mod warm_start;

use std::num::NonZeroUsize;
use std::time::Duration;

use volley_proto::spec::{
    ClassWeights, Device, Keep, LabelTransform, NumericTransform, Precision, Ranks, Task, TooFew,
    name_of,
};

use crate::{Error, Result};

pub use loss::{LossName, LossOptions, QuantileLevels};
pub use network::{Dropout, NetworkOptions};
pub use optimizer::{EarlyStopOptions, OptimizerName, OptimizerOptions, ScheduleName};
pub(crate) use settle::{Target, check_unambiguous, needed_columns};
pub use table::{TrainOption, train_options};
pub use value::OptionValue;
pub use vocabulary::VocabularyOptions;
pub use warm_start::WarmStart;

/// Options as given; the others have their defaults.
///
/// Column names are exact, as in the input's schema.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainOptions {
    /// Task, such as regression or classification.
    pub task: Task,
    /// True for a linear model: no layers, and by default solved by L-BFGS if it can be.
    pub linear: bool,
    /// Label columns; several only for a regressor.
    pub labels: Vec<String>,
    /// Weights of the labels' losses in their sum; 1 each if none are given.
    pub loss_weights: Vec<f64>,
    /// Transform of the label, whose result the network is trained on.
    pub label_transform: LabelTransform,
    /// True to standardize the label; default: true if the output is unbounded.
    pub standardize_label: Option<bool>,
    /// Scaling of continuous features.
    pub numeric_transform: NumericTransform,
    /// Method of the row split; default: derived from the next two options.
    pub split_method: Option<SplitMethod>,
    /// Column of the train/evaluation split.
    pub split_column: Option<String>,
    /// Share of evaluation rows.
    pub split_fraction: Option<f64>,
    /// Columns whose hash decides a random split.
    pub split_key: Vec<String>,
    /// Features that pass through an embedding.
    pub categorical: Option<Vec<String>>,
    /// Features that enter as numbers.
    pub continuous: Option<Vec<String>>,
    /// Rule for the values of categorical features that get an embedding of their own.
    pub vocabulary: VocabularyOptions,
    /// Network.
    pub network: NetworkOptions,
    /// L1 penalty on the hidden layers' kernels and on a linear part's weights.
    pub l1: f64,
    /// L2 penalty on the hidden layers' kernels and on a linear part's weights; default: 0, or scikit-learn's for a
    /// logistic regression.
    pub l2: Option<f64>,
    /// Loss; default: the task's.
    pub loss: LossOptions,
    /// Column of sample weights.
    pub sample_weight: Option<String>,
    /// Class weights of a classifier.
    pub class_weights: ClassWeights,
    /// Optimizer.
    pub optimizer: OptimizerOptions,
    /// Batch size of one rank, in rows.
    pub batch_size: Option<usize>,
    /// Global batch size, in rows; default: derived from the number of training rows, if `batch_size` is not given
    /// either.
    pub global_batch_size: Option<usize>,
    /// Gradient accumulation: backward passes of a step.
    pub accumulate: usize,
    /// Maximum number of epochs; default: derived from the number of training rows.
    pub epochs: Option<usize>,
    /// Early stopping.
    pub early_stop: EarlyStopOptions,
    /// Epoch whose weights are published; default: the best, or the last for L-BFGS.
    pub keep: Option<Keep>,
    /// True to train the network again on all rows afterwards; default: only for a small table that is split at random.
    pub refit: Option<bool>,
    /// Number of ranks.
    pub ranks: Ranks,
    /// Minimum number of ranks.
    pub min_ranks: usize,
    /// Maximum number of ranks; default: `ranks`, or no limit if that is all.
    pub max_ranks: Option<usize>,
    /// Timeout of the wait for a replacement of a lost rank.
    pub regroup_timeout: Duration,
    /// Policy when fewer executors are left than `min_ranks`.
    pub too_few: TooFew,
    /// Steps between checkpoints, besides the one after every epoch.
    pub checkpoint_every: Option<u64>,
    /// True to trace the ranks; default: the session's setting.
    pub trace: Option<bool>,
    /// True to resume training from the checkpoint of an unfinished run.
    pub resume: bool,
    /// Model whose weights training starts from.
    pub warm_start: Option<WarmStart>,
    /// True to begin the first epoch as rows arrive.
    pub begin_early: bool,
    /// Number of virtual shards; default: a multiple of the number of ranks, of at least 60.
    pub shards: Option<usize>,
    /// Columns whose hash assigns rows to shards.
    pub shard_by: Vec<String>,
    /// Device of the ranks.
    pub device: Device,
    /// Precision of matrix products; default: the device's.
    pub precision: Option<Precision>,
    /// Maximum number of CPU threads that a rank computes with; default: the number of its executor's slots.
    pub threads: Option<NonZeroUsize>,
    /// True if ranks may share GPUs.
    pub device_share: bool,
    /// Seed of the random split, folds, initial weights, row order and dropout masks.
    pub seed: u64,
    /// Timeout of the rendezvous of all ranks.
    pub rendezvous_timeout: Duration,
    /// Timeout of one collective operation.
    pub collective_timeout: Duration,
    /// Timeout of the wait of a rank that has loaded its shards for peers that still load.
    pub loading_timeout: Duration,
}

/// Method of the split into training and evaluation rows, in BigQuery ML's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMethod {
    /// Cross-validation if an ensemble is trained, as [`Split::CrossValidation`](volley_proto::spec::Split) says, else
    /// `Random`.
    Auto,
    /// Training on all rows.
    NoSplit,
    /// Split by a column's values.
    Custom,
    /// Evaluation of a random share of the rows.
    Random,
    /// Evaluation of the last share of the rows, in the order of a column.
    Sequential,
}

/// Returns the error of an option that nothing reads.
fn unread(option: &str, value: String, with: String) -> Error {
    refused(option, value, format!("only with {with}"))
}

/// Returns the error of a value that is not the expected one.
fn refused(
    option: impl Into<String>,
    value: impl Into<String>,
    expected: impl Into<String>,
) -> Error {
    Error::Proto(volley_proto::Error::option(option, value, expected))
}

/// Refuses an option that is given, but only read with other choices of the option `of` than the one that is made.
fn check_read<T: PartialEq, const N: usize>(
    of: &str,
    choices: &[(&'static str, T)],
    made: &T,
    options: [(&str, Option<String>, &[T]); N],
) -> Result<()> {
    for (option, given, readers) in options {
        if let Some(value) = given.filter(|_| !readers.contains(made)) {
            let names: Vec<_> = readers.iter().map(|one| name_of(choices, one)).collect();
            let with = format!("{of} = '{}'", names.join("' or '"));
            return Err(unread(option, value, with));
        }
    }
    Ok(())
}

/// Least default number of shards: divisible by every number of ranks up to six, and by 10, 12, 15, 20 and 30.
const DEFAULT_SHARDS: usize = 60;
/// Default number of shards per rank: when one of many ranks is lost, the others take at most a quarter more rows.
const SHARDS_A_RANK: usize = 4;
/// Number of shards up to which ranks have so many each. Every task before the exchange writes all of them.
const MANY_SHARDS: usize = 1024;
/// Default share of evaluation rows, BigQuery ML's.
const DEFAULT_EVAL_FRACTION: f64 = 0.2;

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            task: Task::Regression,
            linear: false,
            labels: Vec::new(),
            loss_weights: Vec::new(),
            label_transform: LabelTransform::Identity,
            standardize_label: None,
            numeric_transform: NumericTransform::Standardize,
            split_method: None,
            split_column: None,
            split_fraction: None,
            split_key: Vec::new(),
            categorical: None,
            continuous: None,
            vocabulary: VocabularyOptions::default(),
            network: NetworkOptions::default(),
            l1: 0.0,
            l2: None,
            loss: LossOptions::default(),
            sample_weight: None,
            class_weights: ClassWeights::Equal,
            optimizer: OptimizerOptions::default(),
            batch_size: None,
            global_batch_size: None,
            accumulate: 1,
            epochs: None,
            early_stop: EarlyStopOptions::default(),
            keep: None,
            refit: None,
            ranks: Ranks::All,
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: Duration::from_secs(30),
            too_few: TooFew::Fail,
            checkpoint_every: None,
            trace: None,
            resume: false,
            warm_start: None,
            begin_early: false,
            shards: None,
            shard_by: Vec::new(),
            device: Device::Auto,
            precision: None,
            threads: None,
            device_share: false,
            seed: 0,
            rendezvous_timeout: Duration::from_secs(60),
            collective_timeout: Duration::from_secs(60),
            loading_timeout: Duration::from_secs(60 * 60),
        }
    }
}
