//! The options of `CREATE MODEL`: what was typed becomes a complete training spec.
//!
//! [`table`] lists every option once, for parsing and for documentation; [`TrainOptions`] collects
//! what was given, and [`TrainOptions::spec`] settles the rest against the input's columns. Pure:
//! no I/O, no session.

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
};

use crate::Error;

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
    /// The task, such as regression or classification.
    pub task: Task,
    /// Whether the model is linear: without layers, by L-BFGS unless another optimizer is given.
    pub linear: bool,
    /// The labels' columns; one but of a regressor.
    pub labels: Vec<String>,
    /// Weights of the labels' losses in their sum; 1 each, where none are given.
    pub loss_weights: Vec<f64>,
    /// Transform of the label, whose result the network is trained on.
    pub label_transform: LabelTransform,
    /// Whether the label is standardized; where the output has no bounds, if not given.
    pub standardize_label: Option<bool>,
    /// How continuous features are scaled.
    pub numeric_transform: NumericTransform,
    /// How rows are split; follows from the other two where it is not given.
    pub split_method: Option<SplitMethod>,
    /// The column of the train/evaluation split.
    pub split_column: Option<String>,
    /// The share of evaluation rows.
    pub split_fraction: Option<f64>,
    /// Columns whose hash decides a random split.
    pub split_key: Vec<String>,
    /// Features that pass through an embedding.
    pub categorical: Option<Vec<String>>,
    /// Features that enter as numbers.
    pub continuous: Option<Vec<String>>,
    /// Which values of categorical features have an embedding of their own.
    pub vocabulary: VocabularyOptions,
    /// The network.
    pub network: NetworkOptions,
    /// L1 penalty on the hidden layers' kernels and on a linear part's weights.
    pub l1: f64,
    /// L2 penalty on the hidden layers' kernels and on a linear part's weights; 0, or scikit-learn's of a logistic
    /// regression, where it is not given.
    pub l2: Option<f64>,
    /// The loss; as the task has it, where it is not given.
    pub loss: LossOptions,
    /// The column of sample weights.
    pub sample_weight: Option<String>,
    /// Class weights of a classifier.
    pub class_weights: ClassWeights,
    /// The optimizer.
    pub optimizer: OptimizerOptions,
    /// Batch size of one rank, in rows.
    pub batch_size: Option<usize>,
    /// Global batch size, in rows; by the number of training rows, where neither is given.
    pub global_batch_size: Option<usize>,
    /// Gradient accumulation: backward passes of a step.
    pub accumulate: usize,
    /// Maximum number of epochs; by the number of training rows, where it is not given.
    pub epochs: Option<usize>,
    /// Early stopping.
    pub early_stop: EarlyStopOptions,
    /// Which epoch's weights are published; the best's, but the last one's of L-BFGS, where it is not given.
    pub keep: Option<Keep>,
    /// Whether the network is trained anew on all rows afterwards; of a small table that is split at random, where it is
    /// not given.
    pub refit: Option<bool>,
    /// The number of ranks.
    pub ranks: Ranks,
    /// Minimum number of ranks.
    pub min_ranks: usize,
    /// Maximum number of ranks; `ranks`, or no limit where those are all, where it is not given.
    pub max_ranks: Option<usize>,
    /// Timeout of the wait for a replacement of a lost rank.
    pub regroup_timeout: Duration,
    /// Policy when fewer executors are left than `min_ranks`.
    pub too_few: TooFew,
    /// Steps between checkpoints, besides the one after every epoch.
    pub checkpoint_every: Option<u64>,
    /// Whether ranks are traced; as the session is set, where it is not given.
    pub trace: Option<bool>,
    /// Whether training resumes from the checkpoint of an unfinished run.
    pub resume: bool,
    /// The model whose weights training starts from.
    pub warm_start: Option<WarmStart>,
    /// Virtual shards; 60, or the most ranks there may be, where it is not given.
    pub shards: Option<usize>,
    /// Columns whose hash assigns rows to shards.
    pub shard_by: Vec<String>,
    /// Device of the ranks.
    pub device: Device,
    /// Precision of products of matrices; as the device has it, where it is not given.
    pub precision: Option<Precision>,
    /// The most threads that a rank computes with on the CPU; as many as its executor has slots, where it is not given.
    pub threads: Option<NonZeroUsize>,
    /// Lets ranks share GPUs.
    pub device_share: bool,
    /// Seeds initial weights, row order and dropout masks.
    pub seed: u64,
    /// Timeout of the rendezvous of all ranks.
    pub rendezvous_timeout: Duration,
    /// Timeout of one collective operation.
    pub collective_timeout: Duration,
    /// Timeout of the wait of a rank that has loaded its shards for peers that still load.
    pub loading_timeout: Duration,
}

/// How rows are split into training and evaluation, in BigQuery ML's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMethod {
    /// By cross-validation where an ensemble is trained, as [`Split::CrossValidation`](volley_proto::spec::Split) says, else as
    /// `Random`.
    Auto,
    /// All rows are trained on.
    NoSplit,
    /// By a column's values.
    Custom,
    /// A random share of the rows.
    Random,
    /// The last share of the rows, in the order of a column.
    Sequential,
}

/// The error of an option that nothing would read.
fn unread(option: &str, value: String, with: String) -> Error {
    refused(option, value, format!("only with {with}"))
}

/// The error of a value that is not what is expected.
fn refused(option: &str, value: String, expected: String) -> Error {
    Error::Proto(volley_proto::Error::Option {
        option: option.to_owned(),
        value,
        expected,
    })
}

/// Divisible by every number of ranks up to six, and by 10, 12, 15, 20 and 30.
const DEFAULT_SHARDS: usize = 60;
/// BigQuery ML's share of evaluated rows.
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
