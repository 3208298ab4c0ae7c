//! The network's sizes: which parameters there are, in which order and shape, and how they start.
//!
//! The order of [`Architecture::parameters`] is the order of everything: the flat gradient, the
//! optimizer's state, the file.

use rand::RngExt;
use volley_proto::spec::FeatureKind;
use volley_proto::spec::{Linear, Network, Output, TrainSpec};

use crate::random::{Key, Purpose};

/// Half the width of the embeddings' initial range, as in Keras.
const EMBEDDING_RANGE: f32 = 0.05;

/// The table of embeddings.
const EMBEDDING: &str = "embedding";
/// The linear part's table of weights.
const LINEAR_VALUES: &str = "linear.values";

/// Everything that determines what the network computes, but its weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Architecture {
    /// Rows of the one embedding table: the codes of all categorical features.
    pub(crate) table_rows: usize,
    /// Width of an embedding.
    pub(crate) embedding_dim: usize,
    /// Categorical features.
    pub(crate) categorical: usize,
    /// Numbers of a row: continuous features, and which of them were null.
    pub(crate) continuous: usize,
    /// Whether these numbers pass through batch norm.
    pub(crate) batch_norm: bool,
    /// Widths of the hidden layers.
    pub(crate) hidden: Vec<usize>,
    /// Outputs of a row.
    pub(crate) outputs: usize,
    /// What the output passes through.
    pub(crate) output: Output,
    /// What a scaled sigmoid is scaled by.
    pub(crate) output_scale: f64,
    /// The linear part.
    pub(crate) linear: Linear,
}

/// What the data says of a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Codes of all vocabularies.
    pub(crate) table_rows: usize,
    /// Numbers of a row.
    pub(crate) continuous: usize,
    /// Outputs of a row.
    pub(crate) outputs: usize,
}

/// One parameter tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) start: Start,
    /// Whether the L2 penalty counts it.
    pub(crate) penalized: bool,
}

/// How a parameter starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Start {
    /// All the same.
    Constant(f32),
    /// Uniform on ±this.
    Uniform(f32),
}

impl Parameter {
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Architecture {
    /// Outputs of a network that tells so many classes apart, or measures if there are none: two need one.
    pub(crate) fn outputs_of(classes: usize) -> usize {
        match classes {
            0..=2 => 1,
            classes => classes,
        }
    }

    /// The spec's network of these sizes.
    pub(crate) fn new(spec: &TrainSpec, sizes: Sizes, output_scale: f64) -> Self {
        let Sizes {
            table_rows,
            continuous,
            outputs,
        } = sizes;
        let Network {
            embedding_dim,
            batch_norm,
            ref hidden_units,
            output,
            linear,
            ..
        } = spec.network;
        let deep = linear != Linear::Alone;
        let categorical = spec.features.iter();
        let categorical = categorical.filter(|feature| feature.kind == FeatureKind::Categorical);
        Self {
            table_rows,
            embedding_dim,
            categorical: categorical.count(),
            continuous,
            batch_norm: batch_norm && deep && continuous > 0,
            hidden: match deep {
                true => hidden_units.clone(),
                false => vec![],
            },
            outputs,
            output,
            output_scale,
            linear,
        }
    }

    /// Whether there are layers.
    pub(crate) fn is_deep(&self) -> bool {
        self.linear != Linear::Alone
    }

    /// The parameters that have a row for each code, by their place in the order, with the rows' widths.
    pub(crate) fn tables(&self) -> Vec<(usize, usize)> {
        let parameters = self.parameters().into_iter().enumerate();
        let tables = parameters.filter(|(_, p)| p.name == EMBEDDING || p.name == LINEAR_VALUES);
        tables.map(|(at, p)| (at, p.shape[1])).collect()
    }

    /// Width of what enters the first dense layer.
    pub(crate) fn width(&self) -> usize {
        self.categorical * self.embedding_dim + self.continuous
    }

    /// Numbers that pass through batch norm.
    pub(crate) fn normalized(&self) -> usize {
        if self.batch_norm { self.continuous } else { 0 }
    }

    /// The trainable parameters, in the order that everything keeps: the layers', then the linear part's.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: &str, shape: &[usize], start, penalized| Parameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            start,
            penalized,
        };
        let mut all = Vec::new();
        if self.categorical > 0 && self.is_deep() {
            let shape = [self.table_rows, self.embedding_dim];
            all.push(parameter(
                EMBEDDING,
                &shape,
                Start::Uniform(EMBEDDING_RANGE),
                false,
            ));
        }
        if self.batch_norm {
            all.push(parameter(
                "bn.gamma",
                &[self.continuous],
                Start::Constant(1.0),
                false,
            ));
            all.push(parameter(
                "bn.beta",
                &[self.continuous],
                Start::Constant(0.0),
                false,
            ));
        }
        let mut dense = |name: &str, from: usize, to: usize, penalized| {
            let kernel = format!("{name}.kernel");
            all.push(parameter(&kernel, &[from, to], glorot(from, to), penalized));
            all.push(parameter(
                &format!("{name}.bias"),
                &[to],
                Start::Constant(0.0),
                false,
            ));
        };
        let mut from = self.width();
        for (at, to) in self.hidden.iter().enumerate() {
            dense(&format!("dense.{at}"), from, *to, true);
            from = *to;
        }
        // A network without hidden layers has these kernels only.
        if self.is_deep() {
            dense("output", from, self.outputs, self.hidden.is_empty());
        }
        if self.linear != Linear::None {
            let mut linear = |name: &str, shape: &[usize], penalized| {
                all.push(parameter(name, shape, Start::Constant(0.0), penalized));
            };
            if self.categorical > 0 {
                linear(LINEAR_VALUES, &[self.table_rows, self.outputs], true);
            }
            if self.continuous > 0 {
                linear("linear.numbers", &[self.continuous, self.outputs], true);
            }
            if !self.is_deep() {
                linear("linear.bias", &[self.outputs], false);
            }
        }
        all
    }

    /// Initial values, parameter by parameter: the same for the same seed, on every rank.
    pub(crate) fn initial_values(&self, seed: u64) -> Vec<Vec<f32>> {
        let key = Key::new(seed, Purpose::Weights);
        let parameters = self.parameters().into_iter().enumerate();
        let values = parameters.map(|(at, parameter)| match parameter.start {
            Start::Constant(value) => vec![value; parameter.len()],
            Start::Uniform(range) => {
                let mut stream = key.with(at as u64).stream();
                (0..parameter.len())
                    .map(|_| stream.random_range(-range..range))
                    .collect()
            }
        });
        values.collect()
    }
}

/// Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward neural
/// networks", equation 16.
fn glorot(from: usize, to: usize) -> Start {
    Start::Uniform((6.0 / (from + to) as f32).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rossmann() -> Architecture {
        Architecture {
            table_rows: 1352,
            embedding_dim: 10,
            categorical: 18,
            continuous: 18,
            batch_norm: true,
            hidden: vec![1000, 1000, 1000, 500],
            outputs: 1,
            output: Output::ScaledSigmoid,
            output_scale: 12.8,
            linear: Linear::None,
        }
    }

    #[test]
    fn parameters_are_counted_as_in_the_reference() {
        let kernels = 198 * 1000 + 1000 * 1000 * 2 + 1000 * 500 + 500;
        let biases = 1000 * 3 + 500 + 1;
        let count: usize = rossmann().parameters().iter().map(Parameter::len).sum();
        assert_eq!(count, 1352 * 10 + 2 * 18 + kernels + biases);
        let penalized: Vec<_> = rossmann()
            .parameters()
            .into_iter()
            .filter(|p| p.penalized)
            .map(|p| p.name)
            .collect();
        assert_eq!(
            penalized,
            ["dense.0", "dense.1", "dense.2", "dense.3"].map(|n| format!("{n}.kernel"))
        );
    }

    #[test]
    fn a_linear_part_is_beside_the_layers_or_alone() {
        let named = |linear| {
            let network = Architecture {
                linear,
                batch_norm: linear != Linear::Alone,
                hidden: vec![],
                outputs: 3,
                ..rossmann()
            };
            let parameters = network.parameters().into_iter();
            let parameters = parameters.map(|p| (p.name, p.shape, p.penalized));
            (parameters.collect::<Vec<_>>(), network.tables())
        };
        let (beside, tables) = named(Linear::Beside);
        assert_eq!((beside.len(), tables), (7, vec![(0, 10), (5, 3)]));
        let (alone, tables) = named(Linear::Alone);
        let due = [
            ("linear.values".to_owned(), vec![1352, 3], true),
            ("linear.numbers".to_owned(), vec![18, 3], true),
            ("linear.bias".to_owned(), vec![3], false),
        ];
        assert_eq!((&alone[..], tables), (&due[..], vec![(0, 3)]));
    }

    #[test]
    fn a_seed_gives_one_start() {
        let small = Architecture {
            hidden: vec![8],
            ..rossmann()
        };
        assert_eq!(small.initial_values(1), small.initial_values(1));
        assert_ne!(small.initial_values(1)[0], small.initial_values(2)[0]);
        let limit = (6.0_f32 / 206.0).sqrt();
        let kernel = &small.initial_values(1)[3];
        assert!(kernel.iter().all(|w| w.abs() <= limit));
        assert!(kernel.iter().any(|w| w.abs() > 0.9 * limit));
    }
}
