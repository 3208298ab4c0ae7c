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
mod table;
mod value;
mod vocabulary;
mod warm_start;

use std::time::Duration;

use volley_proto::spec::{
    ClassWeights, Device, Keep, LabelTransform, NumericTransform, Ranks, Task, TooFew,
};

use crate::Error;

pub use loss::{LossName, LossOptions, QuantileShares};
pub use network::{Dropout, NetworkOptions};
pub use optimizer::{DecayName, EarlyStopOptions, OptimizerOptions, RuleName};
pub(crate) use settle::{Target, check_unambiguous, needed_columns};
pub use table::{TrainOption, train_options};
pub use value::OptionValue;
pub use vocabulary::VocabularyOptions;
pub use warm_start::WarmStart;

/// Options as given so far; the rest at their defaults.
///
/// Column names are exact, as in the input's schema.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainOptions {
    /// What is predicted of the label.
    pub task: Task,
    /// Whether the model is linear: without layers, by L-BFGS unless another optimizer is given.
    pub linear: bool,
    /// The labels' columns; one but of a regressor.
    pub labels: Vec<String>,
    /// What the loss of each of several labels is multiplied by; 1 each, where none are given.
    pub loss_weights: Vec<f64>,
    /// What the network predicts of the label.
    pub label_transform: LabelTransform,
    /// Whether the network learns the label in standard deviations; where its output has no bounds, if not given.
    pub standardize_label: Option<bool>,
    /// How continuous features are scaled.
    pub numeric_transform: NumericTransform,
    /// How rows are split; follows from the other two where it is not given.
    pub split_method: Option<SplitMethod>,
    /// The column that splits the rows.
    pub split_column: Option<String>,
    /// The share of rows that is evaluated.
    pub split_fraction: Option<f64>,
    /// Columns whose values decide where a row goes in a random split.
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
    /// The column of the rows' weights.
    pub sample_weight: Option<String>,
    /// The weights of a classifier's classes.
    pub class_weights: ClassWeights,
    /// The optimizer.
    pub optimizer: OptimizerOptions,
    /// Rows of one rank in a step.
    pub batch_size: Option<usize>,
    /// Rows of all ranks in a step; as the number of rows asks for, where neither is given.
    pub global_batch_size: Option<usize>,
    /// Backward passes of a step.
    pub accumulate: usize,
    /// Passes over the training rows, at most; as the number of rows asks for, where it is not given.
    pub epochs: Option<usize>,
    /// When training ends before that.
    pub early_stop: EarlyStopOptions,
    /// Which epoch's weights are published; the best's, but the last one's of L-BFGS, where it is not given.
    pub keep: Option<Keep>,
    /// Whether the network is trained anew on all rows then; of a small table that is split at random, where it is not
    /// given.
    pub refit: Option<bool>,
    /// How many ranks train.
    pub ranks: Ranks,
    /// Training goes on with no fewer ranks.
    pub min_ranks: usize,
    /// It grows to no more; `ranks`, or no limit where those are all, where it is not given.
    pub max_ranks: Option<usize>,
    /// How long a replacement for a lost rank is waited for.
    pub regroup_timeout: Duration,
    /// What happens when fewer than `min_ranks` could go on.
    pub too_few: TooFew,
    /// Steps between checkpoints, besides the one after every epoch.
    pub checkpoint_every: Option<u64>,
    /// Whether each rank notes what it did when; as the session is set where it is not given.
    pub trace: Option<bool>,
    /// Whether training goes on from the checkpoint of an unfinished run.
    pub resume: bool,
    /// The model whose weights training starts from.
    pub warm_start: Option<WarmStart>,
    /// Virtual shards; 60, or the most ranks there may be, where it is not given.
    pub shards: Option<usize>,
    /// Columns whose hash picks a row's shard.
    pub shard_by: Vec<String>,
    /// Where ranks compute.
    pub device: Device,
    /// Seeds initial weights, row order and dropout masks.
    pub seed: u64,
    /// How long ranks wait for each other to arrive.
    pub rendezvous_timeout: Duration,
    /// How long one collective operation may wait for a peer.
    pub collective_timeout: Duration,
    /// How long a rank that has streamed its shards waits for peers that still do.
    pub loading_timeout: Duration,
}

/// How rows are split into training and evaluation, in BigQuery ML's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMethod {
    /// All rows are trained on.
    NoSplit,
    /// A column says.
    Custom,
    /// A share of the rows is drawn.
    Random,
    /// A share of the rows is the last by a column.
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
            seed: 0,
            rendezvous_timeout: Duration::from_secs(60),
            collective_timeout: Duration::from_secs(60),
            loading_timeout: Duration::from_secs(60 * 60),
        }
    }
}
