//! Training spec: the complete, validated description of a training.
//!
//! A spec contains everything that a rank needs besides the rows: the roles of the columns, the network, loss,
//! optimizer, and the distribution of the work. The client makes it once, from what the user typed; it crosses the wire
//! inside the plan and is kept beside the model. It is not a builder and holds no defaults of the user interface.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::{Error, ModelName, ModelRef, Result, TrainId};

mod check;
mod early;
mod label;
mod loss;
mod memory;
mod network;
mod optimizer;
mod pace;
mod precision;
mod refit;
mod speed;
/// Values of a split column, after BigQuery ML's `DATA_SPLIT_METHOD = 'CUSTOM'`, and draws of a random split.
pub mod split;
mod transform;
mod vocabulary;

pub(crate) use check::value_type;
use check::{check_column, is_category};
pub use check::{check_columns, is_ordered, named_field};
pub use label::{Label, LabelTransform};
pub use loss::{ClassWeights, Loss};
pub use memory::{FIRST_STREAMS, PIECE, RankMemory, SETTLING, STREAMS, WINDOW};
pub use network::{
    Activation, EmbeddingWidth, EnsembleSize, FREQUENCIES, Layer, Linear, Network,
    NumericEmbedding, Output, PERIODIC_WIDTH, PIECEWISE_BINS, PIECEWISE_WIDTH, layers_text,
};
pub use optimizer::{AdamForm, Decay, EarlyStop, Optimizer, RateScaling, Rule, Schedule};
pub use precision::{DeviceKind, Precision, RankDevice};
pub use refit::Refit;
pub use speed::{Clocks, Speed, ThreadSpeed};
pub use transform::{Computed, Transform, TransformInput};
pub use vocabulary::{MOST_BUCKETS, VocabularyRule};

/// Spec of one training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// Id of the run, the same across attempts.
    pub train_id: TrainId,
    /// Name of the model to publish.
    pub model: ModelName,
    /// Action if the model exists.
    pub if_exists: IfExists,
    /// URL of the store to publish to.
    #[serde(with = "crate::name::url_text")]
    pub store: Url,
    /// Newest version of the model at the start of the run, 0 if there was none: by it, runs of clusters whose clocks
    /// differ are ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_version: Option<u32>,
    /// Columns computed from the query's rows first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
    /// Feature columns, in the order of the network's inputs.
    pub features: Vec<Feature>,
    /// Rule for the values of categorical features that get their own embedding.
    pub vocabulary: VocabularyRule,
    /// Kind of prediction.
    pub task: Task,
    /// Label columns.
    pub label: Label,
    /// Scaling of continuous features.
    pub numeric_transform: NumericTransform,
    /// Split of the rows into training and evaluation.
    pub split: Split,
    /// Columns whose values assign a row in a random split; all of the query's if empty.
    pub split_key: Vec<String>,
    /// Network.
    pub network: Network,
    /// Loss.
    pub loss: Loss,
    /// Column of the rows' weights in the loss, in metrics and in means and deviations of numbers; 1 each without one.
    /// Rows of weight 0 are left out.
    pub sample_weight: Option<String>,
    /// Weights of a classifier's classes in training.
    pub class_weights: ClassWeights,
    /// Optimizer.
    pub optimizer: Optimizer,
    /// L1 penalty on the kernels of the hidden layers, and on the linear part's weights: adds `l1 · Σ |w|` to the loss.
    pub l1: f64,
    /// L2 penalty on the kernels of the hidden layers, and on the linear part's weights: adds `l2 · Σ w²` to the loss
    /// (Keras' form). By default 1 / (2 · training rows), as scikit-learn's `C = 1`.
    pub l2: Option<f64>,
    /// Rows of a step; by default chosen by the number of rows.
    pub batch_size: Option<BatchSize>,
    /// Backward passes of a step, whose gradients a rank adds up: its rows are computed in that many parts. A batch
    /// size of a rank is that of a pass.
    pub accumulate: usize,
    /// Maximum number of passes over the training rows; by default chosen by the number of rows.
    pub epochs: Option<usize>,
    /// Condition for ending training earlier.
    pub early_stop: Option<EarlyStop>,
    /// Choice of the epoch whose weights are kept.
    pub keep: Keep,
    /// Rule for training the network again on all rows afterwards.
    pub refit: Refit,
    /// Seed of initial weights, row order and dropout masks.
    pub seed: u64,
    /// Number of ranks.
    pub ranks: Ranks,
    /// Changes to the ranks when executors are lost or join.
    pub elastic: Elastic,
    /// Start of the training.
    pub start: Start,
    /// True if the first epoch begins as rows arrive, with the values and the scaling of the model to start from; false
    /// in old specs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begin_early: bool,
    /// Optimizer steps between checkpoints, in addition to the checkpoint after every epoch.
    pub checkpoint_every: Option<u64>,
    /// True if each rank records its timeline, for a file beside the model.
    pub trace: bool,
    /// Number of virtual shards that rows are hashed into; each rank takes a slice of them.
    pub shards: usize,
    /// Columns whose hash picks a row's shard; all columns if empty.
    pub shard_by: Vec<String>,
    /// Device of the ranks.
    pub device: Device,
    /// Precision of matrix products; by default TF32 on a GPU that has it and `f32` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Maximum number of CPU threads of a rank; by default its executor's number of slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroUsize>,
    /// True if its ranks may share GPUs with each other, and with ranks of other trainings that share theirs.
    pub device_share: bool,
    /// Time limit for all ranks to arrive.
    #[serde(with = "humantime_serde")]
    pub rendezvous_timeout: Duration,
    /// Time that one collective operation may wait for a peer.
    #[serde(with = "humantime_serde")]
    pub collective_timeout: Duration,
    /// Time that a rank waits for peers that still stream their shards.
    #[serde(with = "humantime_serde")]
    pub loading_timeout: Duration,
}

/// Rows of a step: constant over the training, also when ranks are lost or join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchSize {
    /// Rows of all ranks together, however many there are.
    Global {
        /// Number of rows.
        global: usize,
    },
    /// Rows of each rank that training begins with, in each backward pass.
    OfRank(usize),
}

impl BatchSize {
    /// Returns the option that sets it, and its value.
    pub fn option(self) -> (&'static str, usize) {
        match self {
            Self::Global { global } => ("global_batch_size", global),
            Self::OfRank(rows) => ("batch_size", rows),
        }
    }
}

/// Action of `CREATE MODEL` if the model exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    /// Fail.
    Fail,
    /// Publish a new version, which becomes the current one.
    Replace,
}

/// Feature column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// Name of the column.
    pub column: String,
    /// Kind of the feature.
    pub kind: FeatureKind,
}

/// Kind of a feature, by which it enters the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// Through an embedding; null is a value of its own.
    Categorical,
    /// Scaled, as `f32` from then on, and batch-normalised; null is the mean, with an indicator input. Dates and times
    /// are days since 1970-01-01.
    Continuous,
}

/// Kind of prediction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A number.
    #[default]
    Regression,
    /// One of the label's values.
    Classification,
}

/// Scaling of continuous features before they enter the network, fitted to the training rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericTransform {
    /// No scaling.
    #[default]
    None,
    /// Numbers less their mean, in standard deviations.
    Standardize,
    /// Normal scores of the numbers' ranks: see [`Quantiles`](crate::store::Quantiles).
    Quantile,
}

impl NumericTransform {
    /// All transforms, with their names.
    pub const ALL: [(&'static str, Self); 3] = [
        ("standardize", Self::Standardize),
        ("quantile", Self::Quantile),
        ("none", Self::None),
    ];
}

/// Returns the name of a value in a list of all values with their names.
pub fn name_of<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    let found = all.iter().find(|(_, one)| one == value);
    found.map_or("", |(name, _)| name)
}

impl fmt::Display for NumericTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, self))
    }
}

/// Split of the rows into training and evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// All rows are trained on.
    None,
    /// Split by a column: text as in [`split`], or a boolean that is true for evaluation.
    Column(String),
    /// Share of the rows that is evaluated, drawn by each row's hash and the seed: see [`split::HASH`].
    Random(f64),
    /// Cross-validation: each member of an ensemble holds out a fold of its own, drawn by each row's hash and the seed,
    /// and out-of-fold predictions are evaluated. If there is no ensemble, its members share parameters, or a fold
    /// would have no rows, this share is evaluated as with [`Random`](Self::Random).
    CrossValidation(f64),
    /// Share of the rows that is evaluated: those with the greatest values of a column.
    Sequential {
        /// Column of numbers, dates or times; a row with null is evaluated.
        column: String,
        /// Share of the rows.
        share: f64,
    },
}

/// Choice of the epoch whose weights are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The epoch with the least evaluation loss (training loss if nothing is evaluated).
    Best,
    /// The last epoch.
    Last,
}

/// Number of ranks that train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranks {
    /// Exactly this many, or the job fails.
    Exactly(usize),
    /// One for each executor registered when the gang is bound, at most one a shard.
    All,
}

/// Changes to the ranks when executors are lost or join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// Minimum number of ranks that training continues with.
    pub min_ranks: usize,
    /// Maximum number of ranks when executors join; `None` for one per executor.
    pub max_ranks: Option<usize>,
    /// Time to wait for a replacement of a lost rank before fewer ranks continue.
    #[serde(with = "humantime_serde")]
    pub regroup_timeout: Duration,
    /// Action if fewer than `min_ranks` could continue.
    pub too_few: TooFew,
}

/// Action if fewer executors are left than training needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TooFew {
    /// The job waits until enough have joined.
    Wait,
    /// The job fails once `regroup_timeout` has passed.
    Fail,
}

/// Start of a training.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// Weights drawn by the seed.
    Fresh,
    /// The newest checkpoint that an unfinished run of the same model left.
    Resume,
    /// The weights of a published version, where the network's shape is the same.
    Warm(ModelRef),
}

/// Device that ranks compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A GPU if the executor has one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU that the scheduler assigns.
    AnyCuda,
    /// The executor's GPU with this ordinal.
    Cuda(usize),
    /// The first of the host's GPUs that wgpu finds, of any vendor.
    AnyWgpu,
    /// The GPU with this ordinal among those that wgpu finds on the executor's host.
    Wgpu(usize),
}

impl std::str::FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::AnyCuda),
            "wgpu" => Some(Self::AnyWgpu),
            _ => text.split_once(':').and_then(|(kind, ordinal)| {
                let ordinal = ordinal.parse().ok()?;
                match kind {
                    "cuda" => Some(Self::Cuda(ordinal)),
                    "wgpu" => Some(Self::Wgpu(ordinal)),
                    _ => None,
                }
            }),
        }
        .ok_or_else(|| {
            let expected = "expected auto, cpu, cuda, cuda:N, wgpu or wgpu:N";
            Error::option("device", text, expected)
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::AnyCuda => f.write_str("cuda"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
            Self::AnyWgpu => f.write_str("wgpu"),
            Self::Wgpu(index) => write!(f, "wgpu:{index}"),
        }
    }
}

impl TrainSpec {
    /// Returns the rows of a step of `ranks` ranks, if the spec gives them.
    pub fn step_rows(&self, ranks: usize) -> Option<u64> {
        self.batch_size.map(|batch_size| match batch_size {
            BatchSize::Global { global } => global as u64,
            BatchSize::OfRank(rows) => (rows * self.accumulate) as u64 * ranks as u64,
        })
    }

    /// Returns the maximum number of ranks that training may grow to.
    pub fn most_ranks(&self) -> usize {
        self.elastic
            .max_ranks
            .unwrap_or(usize::MAX)
            .min(self.shards)
    }

    /// Returns the outputs of a regressor's network: one for each label, or for each quantile of one.
    pub fn outputs(&self) -> usize {
        match self.loss.shares() {
            Some(shares) => shares.len(),
            None => self.label.columns.len(),
        }
    }

    /// Returns the kind of model, as its option names it.
    pub fn model_type(&self) -> &'static str {
        let linear = self.network.linear == Linear::Alone;
        match (self.task, linear) {
            (Task::Regression, false) => "dnn_regressor",
            (Task::Classification, false) => "dnn_classifier",
            (Task::Regression, true) => "linear_reg",
            (Task::Classification, true) => "logistic_reg",
        }
    }
}
