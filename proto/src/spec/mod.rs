//! What is to be trained: the declarative training spec, complete and validated.
//!
//! A spec says everything a rank needs besides the rows: which columns play which role, the
//! network, loss, optimizer, and how the work is spread. It is made once, by the client, from what
//! the user typed; it crosses the wire inside the plan and is kept beside the model. It is not a
//! builder and holds no defaults of the user interface.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::{Error, ModelName, ModelRef, Result, TrainId};

mod check;
mod label;
mod loss;
mod memory;
mod network;
mod optimizer;
mod precision;
mod refit;
/// Values of a split column, after BigQuery ML's `DATA_SPLIT_METHOD = 'CUSTOM'`, and draws of a random split.
pub mod split;
mod transform;
mod vocabulary;

pub use check::is_ordered;
pub(crate) use check::value_type;
use check::{check_column, is_category, option};
pub use label::{Label, LabelTransform};
pub use loss::{ClassWeights, Loss};
pub use memory::{PIECE, RankMemory, SETTLING};
pub use network::{
    Activation, EmbeddingWidth, EnsembleSize, FREQUENCIES, Layer, Linear, Network,
    NumericEmbedding, Output, PERIODIC_WIDTH, PIECEWISE_BINS, PIECEWISE_WIDTH, layers_text,
};
pub use optimizer::{AdamForm, Decay, EarlyStop, Optimizer, RateScaling, Rule, Schedule};
pub use precision::{DeviceKind, Precision, RankDevice};
pub use refit::Refit;
pub use transform::{Computed, Transform, TransformInput};
pub use vocabulary::{MOST_BUCKETS, VocabularyRule};

/// One training run, complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainSpec {
    /// The run's id: the same across attempts.
    pub train_id: TrainId,
    /// The model to publish.
    pub model: ModelName,
    /// What to do when the model exists.
    pub if_exists: IfExists,
    /// The store to publish to.
    #[serde(with = "crate::name::url_text")]
    pub store: Url,
    /// What is computed of the query's rows before all else; nothing in specs of old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<Transform>,
    /// The feature columns, in the order of the network's inputs.
    pub features: Vec<Feature>,
    /// Which values of categorical features have an embedding of their own; all in specs of old.
    #[serde(default)]
    pub vocabulary: VocabularyRule,
    /// What is predicted of the label.
    #[serde(default)]
    pub task: Task,
    /// The label columns.
    pub label: Label,
    /// How continuous features are scaled; not at all in specs of old.
    #[serde(default)]
    pub numeric_transform: NumericTransform,
    /// How rows are split into training and evaluation.
    pub split: Split,
    /// Columns whose values decide where a row goes in a random split; all that the query gives, if there are none.
    #[serde(default)]
    pub split_key: Vec<String>,
    /// The network.
    pub network: Network,
    /// The loss.
    pub loss: Loss,
    /// The column of the rows' weights in the loss, in metrics and in means and deviations of numbers; 1 each, where there
    /// is none. Rows of weight 0 are left out.
    #[serde(default)]
    pub sample_weight: Option<String>,
    /// The weights of a classifier's classes in training.
    #[serde(default)]
    pub class_weights: ClassWeights,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// L1 penalty on the kernels of the hidden layers, and on the linear part's weights: adds `l1 · Σ |w|` to the loss.
    #[serde(default)]
    pub l1: f64,
    /// L2 penalty on the kernels of the hidden layers, and on the linear part's weights: adds `l2 · Σ w²` to the loss
    /// (Keras' form). Where it is not said, 1 / (2 · training rows), as scikit-learn's `C = 1`.
    pub l2: Option<f64>,
    /// Rows of a step; as the number of rows asks for, where it is not said.
    pub batch_size: Option<BatchSize>,
    /// Backward passes of a step, whose gradients a rank adds up: its rows are computed in so many parts. A batch size of
    /// a rank is that of a pass.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// Passes over the training rows, at most; as many as the rows ask for, where it is not said.
    pub epochs: Option<usize>,
    /// When training ends before that.
    #[serde(default)]
    pub early_stop: Option<EarlyStop>,
    /// Which epoch's weights are kept.
    pub keep: Keep,
    /// Whether the network is trained anew on all rows then.
    #[serde(default)]
    pub refit: Refit,
    /// Seeds initial weights, row order and dropout masks.
    pub seed: u64,
    /// How many ranks train.
    pub ranks: Ranks,
    /// What becomes of the ranks when executors are lost or join.
    pub elastic: Elastic,
    /// What training starts from.
    pub start: Start,
    /// Optimizer steps between checkpoints, besides the one after every epoch.
    pub checkpoint_every: Option<u64>,
    /// Whether each rank notes what it did when, for a file beside the model.
    #[serde(default)]
    pub trace: bool,
    /// Virtual shards that rows are hashed into; each rank takes a slice of them.
    pub shards: usize,
    /// Columns whose hash picks a row's shard; empty means all columns.
    pub shard_by: Vec<String>,
    /// Where ranks compute.
    pub device: Device,
    /// The precision of products of matrices; where it is not said, TF32 on a GPU that has it and `f32` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// The most threads that a rank computes with on the CPU; as many as its executor has slots, where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<NonZeroUsize>,
    /// Lets its ranks share GPUs with each other, and with ranks of other trainings that share theirs.
    #[serde(default)]
    pub device_share: bool,
    /// How long ranks wait for each other to arrive.
    #[serde(with = "humantime_serde")]
    pub rendezvous_timeout: Duration,
    /// How long one collective operation may wait for a peer.
    #[serde(with = "humantime_serde")]
    pub collective_timeout: Duration,
    /// How long a rank that has streamed its shards waits for peers that still do; an hour in specs of old.
    #[serde(with = "humantime_serde", default = "an_hour")]
    pub loading_timeout: Duration,
}

/// Rows of a step: the same from its first to its last, also when ranks are lost or join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum BatchSize {
    /// This many of all ranks together, however many there are.
    Global {
        /// Rows.
        global: usize,
    },
    /// This many of each rank that training begins with, in each backward pass.
    OfRank(usize),
}

impl BatchSize {
    /// The option that sets it, and the number it is set to.
    pub fn option(self) -> (&'static str, usize) {
        match self {
            Self::Global { global } => ("global_batch_size", global),
            Self::OfRank(rows) => ("batch_size", rows),
        }
    }
}

fn one() -> usize {
    1
}

fn an_hour() -> Duration {
    Duration::from_secs(60 * 60)
}

/// What `CREATE MODEL` does when the model exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    /// Fail.
    Fail,
    /// Publish a new version, which becomes the current one.
    Replace,
}

/// A feature column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// The column's name.
    pub column: String,
    /// How it enters the network.
    pub kind: FeatureKind,
}

/// How a feature enters the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeatureKind {
    /// Through an embedding; null is a value of its own.
    Categorical,
    /// Scaled, as `f32` from then on, and batch-normalised; null is the mean, and an input says where it was. Dates and times are
    /// days since 1970-01-01.
    Continuous,
}

/// What is predicted of the label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A number.
    #[default]
    Regression,
    /// Which of its values it is.
    Classification,
}

/// How continuous features are scaled before they enter the network, by what the training rows hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericTransform {
    /// They enter as they are.
    #[default]
    None,
    /// Less their mean, in standard deviations.
    Standardize,
    /// As normal scores of their ranks: see [`Quantiles`](crate::store::Quantiles).
    Quantile,
}

impl NumericTransform {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 3] = [
        ("standardize", Self::Standardize),
        ("quantile", Self::Quantile),
        ("none", Self::None),
    ];
}

impl fmt::Display for NumericTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, one)| one == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// How rows are split into training and evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// All rows are trained on.
    None,
    /// A column says: text as in [`split`], or a boolean that is true for evaluation.
    Column(String),
    /// A share of the rows, drawn by the hash of each and the seed, is evaluated: see [`split::HASH`].
    Random(f64),
    /// Each member of an ensemble holds out a fold of its own, drawn by the hash of each row and the seed, and out-of-fold
    /// predictions are evaluated. Where there is no ensemble, its members share parameters, or a fold would have no rows,
    /// this share is evaluated as with [`Random`](Self::Random).
    CrossValidation(f64),
    /// This share of the rows, those with the greatest values of a column, is evaluated.
    Sequential {
        /// A number, a date or a time; where it is null, the row is evaluated.
        column: String,
        /// The share.
        share: f64,
    },
}

/// Which epoch's weights are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The one with the least evaluation loss (training loss where nothing is evaluated).
    Best,
    /// The last one.
    Last,
}

/// How many ranks train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranks {
    /// This many, or the job fails.
    Exactly(usize),
    /// One for each executor registered when the gang is bound, at most one a shard.
    All,
}

/// What becomes of the ranks when executors are lost or join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// Training goes on with no fewer ranks.
    pub min_ranks: usize,
    /// It grows to no more when executors join; `None` for one an executor.
    pub max_ranks: Option<usize>,
    /// How long a replacement for a lost rank is waited for before fewer ranks go on.
    #[serde(with = "humantime_serde")]
    pub regroup_timeout: Duration,
    /// What happens when fewer than `min_ranks` could go on.
    pub too_few: TooFew,
}

/// What happens when fewer executors are left than training needs at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TooFew {
    /// The job waits until enough have joined.
    Wait,
    /// The job fails once `regroup_timeout` has passed.
    Fail,
}

/// What training starts from.
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

/// Where ranks compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A GPU where the executor has one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, whichever the scheduler deals.
    AnyCuda,
    /// The executor's GPU with this ordinal.
    Cuda(usize),
}

impl std::str::FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let cuda = |index: &str| index.parse().ok().map(Self::Cuda);
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::AnyCuda),
            _ => text.strip_prefix("cuda:").and_then(cuda),
        }
        .ok_or_else(|| Error::Option {
            option: "device".into(),
            value: text.into(),
            expected: "expected auto, cpu, cuda or cuda:N".into(),
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
        }
    }
}

impl TrainSpec {
    /// Rows of a step of so many ranks, where that is given.
    pub fn step_rows(&self, ranks: usize) -> Option<u64> {
        self.batch_size.map(|batch_size| match batch_size {
            BatchSize::Global { global } => global as u64,
            BatchSize::OfRank(rows) => (rows * self.accumulate) as u64 * ranks as u64,
        })
    }

    /// The most ranks that training may grow to.
    pub fn most_ranks(&self) -> usize {
        self.elastic
            .max_ranks
            .unwrap_or(usize::MAX)
            .min(self.shards)
    }

    /// Outputs of a regressor's network: one for each label, or for each quantile of one.
    pub fn outputs(&self) -> usize {
        match self.loss.shares() {
            Some(shares) => shares.len(),
            None => self.label.columns.len(),
        }
    }

    /// The kind of model, as its option has it.
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
