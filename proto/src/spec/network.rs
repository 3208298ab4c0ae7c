//! Description of the network as data: its inputs, a small graph of layers, and the terms added to their output.
//!
//! ```text
//!  codes ───▶ embeddings ────────────────────────┐
//!                                                ├─▶ layers ─▶ dense(outputs) ─▶ + ─▶ activation
//!  numbers ─▶ batch norm ─▶ numeric embeddings ──┘                               │
//!  codes, numbers ─▶ linear part, factorization machine ─────────────────────────┘
//! ```
//!
//! An ensemble has several copies of the embeddings and layers, with initial weights of their own; it outputs their
//! mean.
//!
//! CPU and GPU compute from this one description. Options such as `hidden_units` are shorthand for [layers](Layer).
//! This module neither computes the network nor initializes its weights.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::name_of;
use super::optimizer::{Bounds, check_numbers};
use crate::{Error, Result};

/// Maximum depth of layers within layers.
const MOST_LEVELS: usize = 8;
/// Maximum number of layers in a network, nested ones included.
const MOST_LAYERS: usize = 256;
/// Maximum length of a custom layer's name.
const LONGEST_NAME: usize = 64;

/// Network of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Widths of the categorical features' embeddings.
    pub embedding_dim: EmbeddingWidth,
    /// True if continuous features pass through batch norm.
    pub batch_norm: bool,
    /// Embedding of numbers before the layers.
    pub numeric_embedding: NumericEmbedding,
    /// Layers that embeddings and numbers pass through, one after the other.
    pub layers: Vec<Layer>,
    /// Activation of the outputs.
    pub output: Output,
    /// Linear part.
    pub linear: Linear,
    /// Width of the factors of a second-order factorization machine (Rendle 2010, doi:10.1109/ICDM.2010.127) that is
    /// added to the layers' output; 0 for none.
    pub factors: usize,
    /// Number of copies of the embeddings and layers.
    pub ensemble_size: EnsembleSize,
}

/// Number of members of an ensemble: networks that are trained side by side on the same steps, each with parameters and
/// a loss of its own, but sharing a linear part and factors beside the layers. The prediction is the mean of their
/// outputs, before the output's activation ("deep ensemble": Lakshminarayanan, Pritzel & Blundell 2017,
/// arXiv:1612.01474).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnsembleSize {
    /// By the number of rows: [`MEMBERS`](Self::MEMBERS) for a [small](Self::SMALL) table, where they take little time;
    /// else one.
    Auto,
    /// This many.
    #[serde(untagged)]
    Of(usize),
}

/// Widths of embeddings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmbeddingWidth {
    /// By a feature's number of values: see [`EmbeddingWidth::by_rule`].
    Auto,
    /// Given widths for these columns; for others by rule.
    Columns(Vec<(String, usize)>),
    /// The same for every feature.
    #[serde(untagged)]
    Same(usize),
}

/// Embedding of a number before the layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumericEmbedding {
    /// The number itself.
    #[default]
    None,
    /// The number itself and [`PERIODIC_WIDTH`] − 1 linear combinations of [`FREQUENCIES`] cosines, `cos(2π·c·x + φ)`,
    /// whose frequencies c and phases φ are trained: "PBLD" of Holzmüller, Grinsztajn & Steinwart 2024
    /// (arXiv:2407.04491), after Gorishniy, Rubachev & Babenko 2022 (arXiv:2203.05556).
    Periodic,
    /// [`PIECEWISE_WIDTH`] numbers, `x·w + b + Σ_t share_t(x)·W_t`, over at most [`PIECEWISE_BINS`] bins between
    /// quantiles of the training rows: a bin's share is 1 above it, 0 below it and linear within. w, b and W are
    /// trained, W from 0: the piecewise linear encoding of Gorishniy, Rubachev & Babenko 2022 (arXiv:2203.05556),
    /// embedded as in TabM (Gorishniy, Kotelnikov & Babenko 2024, arXiv:2410.24210), except that beyond all bins only
    /// `x·w + b` continues.
    PiecewiseLinear,
}

/// Number of cosines of a number's periodic embedding.
pub const FREQUENCIES: usize = 16;
/// Width of a number's periodic embedding.
pub const PERIODIC_WIDTH: usize = 4;
/// Maximum number of bins of a number's piecewise linear embedding, as in TabM; fewer if quantiles are equal.
pub const PIECEWISE_BINS: usize = 48;
/// Width of a number's piecewise linear embedding.
pub const PIECEWISE_WIDTH: usize = 16;

/// Layer: a function from a row's numbers to others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Dense layer of this many units, each a weighted sum of the inputs and a bias.
    Dense(usize),
    /// Dropout: this share of the numbers is zeroed in training, and the others are scaled up (Srivastava et al. 2014).
    Dropout(f64),
    /// Layer norm: each row less its mean, divided by its standard deviation, times γ and plus β (Ba, Kiros & Hinton
    /// 2016, arXiv:1607.06450).
    LayerNorm,
    /// Residual: the input is added to the output of these layers (He et al. 2016, arXiv:1512.03385); if widths differ,
    /// the input is multiplied by a matrix first.
    Residual(Vec<Layer>),
    /// This many cross layers, `x₀ ⊙ (x·W + b) + x` (DCN-V2: Wang et al. 2021, arXiv:2008.13535).
    Cross(usize),
    /// Outputs of these branches for the same input, side by side.
    Concat(Vec<Vec<Layer>>),
    /// Custom layer that only executors' binaries register and know: it declares its own width and parameters.
    Custom {
        /// Name that it is registered as.
        name: String,
        /// Arguments that it is built with.
        arguments: Vec<f64>,
    },
    /// Function of each number.
    #[serde(untagged)]
    Activation(Activation),
}

/// Function of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// min(max(x, 0), 6)
    Relu6,
    /// x, or x / 100 where x < 0
    LeakyRelu,
    /// x, or eˣ − 1 where x < 0
    Elu,
    /// 1.0507 · x, or 1.7581 · (eˣ − 1) where x < 0 (Klambauer et al. 2017, arXiv:1706.02515)
    Selu,
    /// x · Φ(x), by its approximation with tanh (Hendrycks & Gimpel 2016, arXiv:1606.08415)
    Gelu,
    /// x · σ(x), also called swish
    Silu,
    /// x · tanh(ln(1 + eˣ))
    Mish,
    /// tanh(x)
    Tanh,
    /// σ(x) = 1 / (1 + e⁻ˣ)
    Sigmoid,
}

/// Linear part of a network, added to the layers' output: a weight for each value of a categorical feature, and one for
/// each number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Linear {
    /// No linear part.
    #[default]
    None,
    /// Beside the layers: "wide & deep" (Cheng et al. 2016, arXiv:1606.07792).
    Beside,
    /// Linear part without layers: linear and logistic regression.
    Alone,
}

/// Activation of the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// None.
    #[default]
    Identity,
    /// The logistic function.
    Sigmoid,
    /// The logistic function × 1.2 × the largest transformed training label.
    ScaledSigmoid,
}

impl EmbeddingWidth {
    /// Returns ⌈1.6 · values^0.56⌉, at most 50: fastai's empirical rule (github.com/fastai/fastai, `emb_sz_rule`), with
    /// a lower bound on memory.
    pub fn by_rule(values: usize) -> usize {
        (1.6 * (values as f64).powf(0.56)).ceil().clamp(1.0, 50.0) as usize
    }

    /// Returns the width of the embedding of a column with `values` distinct values.
    pub fn of(&self, column: &str, values: usize) -> usize {
        match self {
            Self::Same(width) => *width,
            Self::Auto => Self::by_rule(values),
            Self::Columns(widths) => {
                let given = widths.iter().find(|(name, _)| name == column);
                given.map_or_else(|| Self::by_rule(values), |(_, width)| *width)
            }
        }
    }
}

impl EnsembleSize {
    /// A single network.
    pub const ONE: Self = Self::Of(1);
    /// Default number of members for a small table.
    pub const MEMBERS: usize = 8;
    /// Maximum rows, to train on and to evaluate, of a small table.
    pub const SMALL: u64 = 5_000;
    /// Maximum number of members.
    pub const MOST: usize = 64;

    /// Returns the number of members if it does not depend on the number of rows.
    pub fn given(self) -> Option<usize> {
        match self {
            Self::Of(members) => Some(members),
            Self::Auto => None,
        }
    }

    /// Returns the number of members for `rows` rows to train on and to evaluate.
    pub fn of(self, rows: u64) -> usize {
        match self {
            Self::Of(members) => members,
            Self::Auto if rows <= Self::SMALL => Self::MEMBERS,
            Self::Auto => 1,
        }
    }
}

impl From<usize> for EmbeddingWidth {
    fn from(width: usize) -> Self {
        Self::Same(width)
    }
}

impl NumericEmbedding {
    /// All embeddings, with their names.
    pub const ALL: [(&'static str, Self); 3] = [
        ("none", Self::None),
        ("periodic", Self::Periodic),
        ("piecewise_linear", Self::PiecewiseLinear),
    ];
}

impl Activation {
    /// All activations, with their names.
    pub const ALL: [(&'static str, Self); 10] = [
        ("relu", Self::Relu),
        ("relu6", Self::Relu6),
        ("leaky_relu", Self::LeakyRelu),
        ("elu", Self::Elu),
        ("selu", Self::Selu),
        ("gelu", Self::Gelu),
        ("silu", Self::Silu),
        ("mish", Self::Mish),
        ("tanh", Self::Tanh),
        ("sigmoid", Self::Sigmoid),
    ];
}

impl Layer {
    /// Returns dense layers of these widths, each with an activation and its share of dropout.
    pub fn stack(widths: &[usize], activation: Activation, dropout: &[f64]) -> Vec<Self> {
        let shares = dropout.iter().copied().chain(std::iter::repeat(0.0));
        let layers = widths.iter().zip(shares);
        let layers = layers.flat_map(|(units, share)| {
            let dropout = (share > 0.0).then_some(Self::Dropout(share));
            [Self::Dense(*units), Self::Activation(activation)]
                .into_iter()
                .chain(dropout)
        });
        layers.collect()
    }

    /// Returns the trainable parameters of consecutive layers, and the width of their output, for an input of `width`;
    /// `None` with a [custom](Layer::Custom) one.
    pub fn size(layers: &[Self], width: usize) -> Option<(usize, usize)> {
        layers.iter().try_fold((0, width), |(all, width), layer| {
            let (own, width) = layer.own_size(width)?;
            Some((usize::saturating_add(all, own), width))
        })
    }

    fn own_size(&self, width: usize) -> Option<(usize, usize)> {
        let size = match self {
            Self::Dense(units) => (width.saturating_add(1).saturating_mul(*units), *units),
            Self::Activation(_) | Self::Dropout(_) => (0, width),
            Self::LayerNorm => (width.saturating_mul(2), width),
            Self::Residual(layers) => {
                let (own, to) = Self::size(layers, width)?;
                let projection = if to == width {
                    0
                } else {
                    width.saturating_mul(to)
                };
                (own.saturating_add(projection), to)
            }
            Self::Cross(layers) => {
                let of_layer = width.saturating_add(1).saturating_mul(width);
                (of_layer.saturating_mul(*layers), width)
            }
            Self::Concat(branches) => {
                let mut sizes = branches.iter().map(|layers| Self::size(layers, width));
                sizes.try_fold((0, 0), |(all, to), size| {
                    let (own, width) = size?;
                    let all = usize::saturating_add(all, own);
                    Some((all, usize::saturating_add(to, width)))
                })?
            }
            Self::Custom { .. } => return None,
        };
        Some(size)
    }

    /// Returns the sum of the widths of all layers' outputs, which a row takes in memory. `None` with a
    /// [custom](Layer::Custom) one.
    pub fn activations(layers: &[Self], width: usize) -> Option<usize> {
        let mut at = width;
        let mut sizes = layers.iter().map(|layer| {
            let own = match layer {
                Self::Residual(inner) => Self::activations(inner, at)?,
                Self::Concat(branches) => {
                    let mut each = branches.iter().map(|inner| Self::activations(inner, at));
                    each.try_fold(0, |sum, size| Some(usize::saturating_add(sum, size?)))?
                }
                Self::Cross(layers) => at.saturating_mul(3).saturating_mul(*layers),
                _ => 0,
            };
            at = layer.own_size(at)?.1;
            Some(own.saturating_add(at))
        });
        sizes.try_fold(0, |sum, size| Some(usize::saturating_add(sum, size?)))
    }

    /// Returns the [custom](Layer::Custom) layers, nested ones included.
    pub fn customs(layers: &[Self]) -> Vec<&Self> {
        let all = layers.iter().flat_map(|layer| match layer {
            Self::Residual(inner) => Self::customs(inner),
            Self::Concat(branches) => {
                let branches = branches.iter();
                branches.flat_map(|inner| Self::customs(inner)).collect()
            }
            Self::Custom { .. } => vec![layer],
            _ => vec![],
        });
        all.collect()
    }

    /// Checks whether a [custom](Layer::Custom) layer may have this name: letters, digits and `_`, not starting with a
    /// digit, at most 64.
    pub fn is_custom_name(name: &str) -> bool {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let first = name.chars().next();
        first.is_some_and(|c| is_word(c) && !c.is_ascii_digit())
            && name.chars().all(is_word)
            && name.len() <= LONGEST_NAME
    }

    /// Counts the layer and those within it.
    fn count(&self) -> usize {
        let within = match self {
            Self::Residual(layers) => layers.iter().map(Self::count).sum(),
            Self::Concat(branches) => branches.iter().flatten().map(Self::count).sum(),
            _ => 0,
        };
        1 + within
    }

    fn check(&self, level: usize) -> Result<()> {
        let refuse = |expected: &str| Err(Error::option("network", self.to_string(), expected));
        if level > MOST_LEVELS {
            return refuse(&format!(
                "expected at most {MOST_LEVELS} layers within each other"
            ));
        }
        match self {
            Self::Dense(0) | Self::Cross(0) => refuse("expected at least 1"),
            Self::Cross(layers) if *layers > MOST_LAYERS => {
                refuse(&format!("expected at most {MOST_LAYERS}"))
            }
            Self::Dropout(share) => check_numbers(&[("dropout", *share, Bounds::Share)]),
            Self::Residual(layers) if layers.is_empty() => refuse("expected a layer at least"),
            Self::Concat(branches) if branches.is_empty() => refuse("expected a layer at least"),
            Self::Residual(layers) => layers.iter().try_for_each(|layer| layer.check(level + 1)),
            Self::Concat(branches) => {
                let layers = branches.iter().flatten();
                layers
                    .into_iter()
                    .try_for_each(|layer| layer.check(level + 1))
            }
            Self::Custom { name, .. } if !Self::is_custom_name(name) => refuse(
                "expected a layer's name: letters, digits and _, at most 64, the first no digit",
            ),
            Self::Custom { arguments, .. } if !arguments.iter().all(|x| x.is_finite()) => {
                refuse("expected finite numbers")
            }
            _ => Ok(()),
        }
    }
}

impl Network {
    /// Checks the network's numbers.
    ///
    /// # Errors
    /// Names the option, the given value and the accepted ones.
    pub fn check(&self) -> Result<()> {
        let zero = match &self.embedding_dim {
            EmbeddingWidth::Same(0) => Some("0".to_owned()),
            EmbeddingWidth::Columns(widths) => {
                let zero = widths.iter().find(|(_, width)| *width == 0);
                zero.map(|(column, _)| format!("0 of {column:?}"))
            }
            EmbeddingWidth::Same(_) | EmbeddingWidth::Auto => None,
        };
        if let Some(zero) = zero {
            return Err(Error::option("embedding_dim", zero, "expected at least 1"));
        }
        if self.batch_norm && self.is_piecewise() {
            let expected = "expected false with numeric_embedding = 'piecewise_linear', whose bins stay where they are";
            return Err(Error::option("batch_norm", "true", expected));
        }
        if let EnsembleSize::Of(members) = self.ensemble_size
            && !(1..=EnsembleSize::MOST).contains(&members)
        {
            let expected = format!("expected 1 to {}", EnsembleSize::MOST);
            return Err(Error::option(
                "ensemble_size",
                members.to_string(),
                expected,
            ));
        }
        let layers: usize = self.layers.iter().map(Layer::count).sum();
        if layers > MOST_LAYERS {
            let expected = format!("expected at most {MOST_LAYERS}");
            return Err(Error::option(
                "network",
                format!("{layers} layers"),
                expected,
            ));
        }
        self.layers.iter().try_for_each(|layer| layer.check(1))
    }

    /// Returns the number of members of its ensemble for `rows` rows to train on and to evaluate.
    pub fn members(&self, rows: u64) -> usize {
        match self.is_deep() {
            true => self.ensemble_size.of(rows),
            false => 1,
        }
    }

    /// Checks whether members of its ensemble share parameters: a linear part or factors.
    pub fn shares_parameters(&self) -> bool {
        self.linear != Linear::None || self.factors > 0
    }

    /// Checks whether there are layers, if only the output layer.
    pub fn is_deep(&self) -> bool {
        self.linear != Linear::Alone
    }

    /// Checks whether numbers have piecewise linear embeddings.
    pub fn is_piecewise(&self) -> bool {
        self.is_deep() && self.numeric_embedding == NumericEmbedding::PiecewiseLinear
    }
}

/// Formats layers as in `network = […]`.
pub fn layers_text(layers: &[Layer]) -> String {
    let layers: Vec<_> = layers.iter().map(Layer::to_string).collect();
    format!("[{}]", layers.join(", "))
}

/// Formats as in `network = […]`.
impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |layers: &[Self]| {
            let layers: Vec<_> = layers.iter().map(Self::to_string).collect();
            layers.join(", ")
        };
        match self {
            Self::Dense(units) => write!(f, "dense({units})"),
            Self::Activation(activation) => activation.fmt(f),
            Self::Dropout(share) => write!(f, "dropout({share})"),
            Self::LayerNorm => f.write_str("layer_norm"),
            Self::Residual(layers) => write!(f, "residual({})", list(layers)),
            Self::Cross(layers) => write!(f, "cross({layers})"),
            Self::Concat(branches) => {
                let branches: Vec<_> = branches.iter().map(|b| format!("[{}]", list(b))).collect();
                write!(f, "concat({})", branches.join(", "))
            }
            Self::Custom { name, arguments } => {
                write!(f, "custom('{}'", name.replace('\'', "''"))?;
                arguments.iter().try_for_each(|x| write!(f, ", {x}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, self))
    }
}

impl fmt::Display for NumericEmbedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, self))
    }
}

/// Formats as in `embedding_dim = …`.
impl fmt::Display for EmbeddingWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(width) => width.fmt(f),
            Self::Auto => f.write_str("'auto'"),
            Self::Columns(widths) => {
                let widths = widths.iter();
                let widths: Vec<_> = widths
                    .map(|(column, width)| format!("['{}', {width}]", column.replace('\'', "''")))
                    .collect();
                write!(f, "[{}]", widths.join(", "))
            }
        }
    }
}

/// Formats as in `ensemble_size = …`.
impl fmt::Display for EnsembleSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(members) => members.fmt(f),
            Self::Auto => f.write_str("'auto'"),
        }
    }
}

#[cfg(test)]
mod tests;
