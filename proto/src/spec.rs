//! What is to be trained: the declarative training spec, complete and validated.
//!
//! A spec says everything a rank needs besides the rows: which columns play which role, the
//! network, loss, optimizer, and how the work is spread. It is made once, by the client, from what
//! the user typed; it crosses the wire inside the plan and is kept beside the model. It is not a
//! builder and holds no defaults of the user interface.

use std::fmt;
use std::time::Duration;

use datafusion::arrow::datatypes::{DataType, Schema};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{Error, ModelName, ModelRef, Result, TrainId, did_you_mean};

/// Values of a split column, after BigQuery ML's `DATA_SPLIT_METHOD = 'CUSTOM'`.
pub mod split {
    /// The row is trained on.
    pub const TRAIN: &str = "TRAIN";
    /// The row is evaluated after each epoch, never trained on.
    pub const EVAL: &str = "EVAL";
    /// The row lends its values to the vocabularies and nothing else; its label is not read.
    pub const TEST: &str = "TEST";
}

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
    /// The feature columns, in the order of the network's inputs.
    pub features: Vec<Feature>,
    /// The label column.
    pub label: Label,
    /// How rows are split into training and evaluation.
    pub split: Split,
    /// The network.
    pub network: Network,
    /// The loss.
    pub loss: Loss,
    /// The optimizer.
    pub optimizer: Adam,
    /// L2 penalty on the kernels of the hidden layers: adds `l2 · Σ w²` to the loss (Keras' form).
    pub l2: f64,
    /// Rows of one rank in one step. The global batch is `batch_size × world size` of the ranks
    /// that training began with, and stays so when ranks are lost or join.
    pub batch_size: usize,
    /// Passes over the training rows.
    pub epochs: usize,
    /// Which epoch's weights are kept.
    pub keep: Keep,
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
    /// How long ranks wait for each other to arrive.
    #[serde(with = "humantime_serde")]
    pub rendezvous_timeout: Duration,
    /// How long one collective operation may wait for a peer.
    #[serde(with = "humantime_serde")]
    pub collective_timeout: Duration,
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
    /// As `f32` (null is 0), batch-normalised.
    Continuous,
}

/// The label column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The column's name.
    pub column: String,
    /// What the network predicts of it.
    pub transform: LabelTransform,
}

/// What the network predicts of the label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelTransform {
    /// The label itself.
    Identity,
    /// Its natural logarithm; the prediction is exponentiated.
    Ln,
}

/// How rows are split into training and evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// All rows are trained on.
    None,
    /// A column says: text as in [`split`], or a boolean that is true for evaluation.
    Column(String),
    /// A share of the rows, drawn by a hash of the row and the seed, is evaluated.
    Random(f64),
}

/// The network: embeddings and batch-normed numbers, dense layers with ReLU, dropout, one output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Width of every categorical feature's embedding.
    pub embedding_dim: usize,
    /// Whether continuous features pass through batch norm.
    pub batch_norm: bool,
    /// Widths of the dense layers.
    pub hidden_units: Vec<usize>,
    /// Share of the last hidden layer's units zeroed in training.
    pub dropout: f64,
    /// What the output unit passes through.
    pub output: Output,
}

/// What the output unit passes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Nothing.
    Identity,
    /// The logistic function.
    Sigmoid,
    /// The logistic function × 1.2 × the largest transformed training label.
    ScaledSigmoid,
}

/// The loss, averaged over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Mean absolute error.
    Mae,
    /// Mean squared error.
    Mse,
    /// Huber's, with δ = 1.
    Huber,
}

/// Adam (Kingma & Ba 2015, arXiv:1412.6980).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adam {
    /// The step size α.
    pub learn_rate: f64,
    /// Decay of the first moment.
    pub beta_1: f64,
    /// Decay of the second moment.
    pub beta_2: f64,
    /// The ε of the denominator.
    pub epsilon: f64,
    /// Where ε stands.
    pub form: AdamForm,
}

/// Where Adam's ε stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdamForm {
    /// `m · α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v + ε)`, as in Keras and the paper's section 2.
    Keras,
    /// `α·m̂ / (√v̂ + ε)`, as in PyTorch and the paper's algorithm 1.
    Torch,
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
    /// The GPU with this ordinal.
    Cuda(usize),
}

impl std::str::FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let cuda = |index: &str| index.parse().ok().map(Self::Cuda);
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(cuda),
        }
        .ok_or_else(|| Error::Option {
            option: "device".into(),
            value: text.into(),
            expected: "expected auto, cpu or cuda:N".into(),
        })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl TrainSpec {
    /// Checks the spec's numbers and its columns against the input's schema.
    ///
    /// # Errors
    /// Names the option or column, what was typed and what would be right.
    pub fn check(&self, input: &Schema) -> Result<()> {
        self.check_numbers()?;
        if self.features.is_empty() {
            return Err(option(
                "features",
                "none",
                "a model needs at least one feature column",
            ));
        }
        for (index, feature) in self.features.iter().enumerate() {
            if self.features[..index]
                .iter()
                .any(|other| other.column == feature.column)
            {
                return Err(option(
                    "features",
                    &feature.column,
                    "the column is named twice",
                ));
            }
            if feature.column == self.label.column {
                return Err(option(
                    "features",
                    &feature.column,
                    "the label cannot be a feature",
                ));
            }
            feature.kind.check(&feature.column, input)?;
        }
        check_column(
            &self.label.column,
            "the label",
            input,
            "a number",
            DataType::is_numeric,
        )?;
        if let Split::Column(column) = &self.split {
            check_column(column, "data_split_col", input, "text or a boolean", |t| {
                is_text(t) || *t == DataType::Boolean
            })?;
        }
        for column in &self.shard_by {
            check_column(column, "shard_by", input, "any type", |_| true)?;
        }
        Ok(())
    }

    fn check_elastic(&self) -> Result<()> {
        let Elastic {
            min_ranks,
            max_ranks,
            ..
        } = self.elastic;
        let refuse =
            |name, value: usize, expected: &str| Err(option(name, &value.to_string(), expected));
        match (self.ranks, min_ranks, max_ranks) {
            (_, 0, _) => refuse("min_ranks", 0, "expected at least 1"),
            (Ranks::Exactly(ranks), min, _) if min > ranks => refuse(
                "min_ranks",
                min,
                &format!("expected at most ranks ({ranks})"),
            ),
            (Ranks::Exactly(ranks), _, Some(max)) if max < ranks => refuse(
                "max_ranks",
                max,
                &format!("expected at least ranks ({ranks})"),
            ),
            (_, min, Some(max)) if max < min => refuse(
                "max_ranks",
                max,
                &format!("expected at least min_ranks ({min})"),
            ),
            (_, min, max) if min.max(max.unwrap_or(0)) > self.shards => {
                let name = if min > self.shards {
                    "min_ranks"
                } else {
                    "max_ranks"
                };
                let expected = format!("more ranks than shards ({}): raise shards", self.shards);
                refuse(name, min.max(max.unwrap_or(0)), &expected)
            }
            _ if self.checkpoint_every == Some(0) => {
                refuse("checkpoint_every", 0, "expected at least 1 step")
            }
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<()> {
        let positive = [
            ("batch_size", self.batch_size),
            ("epochs", self.epochs),
            ("shards", self.shards),
            ("embedding_dim", self.network.embedding_dim),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(option(name, "0", "expected at least 1"));
        }
        if let Some(width) = self.network.hidden_units.iter().find(|width| **width == 0) {
            return Err(option(
                "hidden_units",
                &width.to_string(),
                "expected at least 1",
            ));
        }
        match self.ranks {
            Ranks::Exactly(0) => return Err(option("ranks", "0", "expected at least 1, or 'all'")),
            Ranks::Exactly(ranks) if ranks > self.shards => {
                let expected = format!("more ranks than shards ({}): raise shards", self.shards);
                return Err(option("ranks", &ranks.to_string(), &expected));
            }
            _ => {}
        }
        self.check_elastic()?;
        let Adam {
            learn_rate,
            beta_1,
            beta_2,
            epsilon,
            ..
        } = self.optimizer;
        let share = |value: f64| (0.0..1.0).contains(&value);
        let numbers = [
            (
                "dropout",
                self.network.dropout,
                share(self.network.dropout),
                "0 ≤ dropout < 1",
            ),
            (
                "l2_reg",
                self.l2,
                self.l2 >= 0.0 && self.l2.is_finite(),
                "a number ≥ 0",
            ),
            (
                "learn_rate",
                learn_rate,
                learn_rate > 0.0 && learn_rate.is_finite(),
                "a number > 0",
            ),
            ("adam_beta_1", beta_1, share(beta_1), "0 ≤ β < 1"),
            ("adam_beta_2", beta_2, share(beta_2), "0 ≤ β < 1"),
            (
                "adam_epsilon",
                epsilon,
                epsilon > 0.0 && epsilon.is_finite(),
                "a number > 0",
            ),
        ];
        if let Some((name, value, _, expected)) = numbers.iter().find(|(_, _, fine, _)| !fine) {
            return Err(option(
                name,
                &value.to_string(),
                &format!("expected {expected}"),
            ));
        }
        match self.split {
            Split::Random(fraction) if !(fraction > 0.0 && fraction < 1.0) => Err(option(
                "data_split_eval_fraction",
                &fraction.to_string(),
                "expected a share between 0 and 1",
            )),
            _ => Ok(()),
        }
    }
}

impl FeatureKind {
    /// Checks that the input has the column, with a type that this kind can encode.
    ///
    /// # Errors
    /// Names the column, with the nearest name where there is none such.
    pub fn check(self, column: &str, input: &Schema) -> Result<()> {
        match self {
            Self::Categorical => check_column(
                column,
                "categorical",
                input,
                "a whole number, text, a boolean or a date",
                |t| {
                    t.is_integer()
                        || is_text(t)
                        || matches!(t, DataType::Boolean | DataType::Date32)
                },
            ),
            Self::Continuous => {
                check_column(column, "continuous", input, "a number or a boolean", |t| {
                    t.is_numeric() || *t == DataType::Boolean
                })
            }
        }
    }
}

/// The type of the values that a column of this type stands for.
pub(crate) fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        plain => plain,
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

fn option(option: &str, value: &str, expected: &str) -> Error {
    Error::Option {
        option: option.into(),
        value: value.into(),
        expected: expected.into(),
    }
}

fn check_column(
    column: &str,
    role: &'static str,
    input: &Schema,
    expected: &str,
    suits: impl Fn(&DataType) -> bool,
) -> Result<()> {
    let Ok(field) = input.field_with_name(column) else {
        let names = input.fields().iter().map(|field| field.name().as_str());
        let hint = did_you_mean(column, names);
        return Err(Error::UnknownColumn {
            column: column.into(),
            role,
            hint,
        });
    };
    if suits(value_type(field.data_type())) {
        Ok(())
    } else {
        Err(Error::ColumnType {
            column: column.into(),
            role,
            actual: field.data_type().to_string(),
            expected: expected.into(),
        })
    }
}
