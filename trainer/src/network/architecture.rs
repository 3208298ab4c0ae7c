//! The network's sizes: its parameters with their order, shapes and initial values.
//!
//! The order of [`Architecture::parameters`] is shared by the flat gradient, the optimizer state and the file.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use volley_proto::spec::FeatureKind;
use volley_proto::spec::{EmbeddingWidth, EnsembleSize, Linear, Network, Output, TrainSpec};

use super::CustomLayers;
use super::graph::{Dropout, Entries, Graph, Operation};
use crate::Result;
use crate::random::{Key, Purpose};

/// Complete description of a network, except for its weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Architecture {
    /// Categorical features.
    pub(crate) categorical: usize,
    /// Numbers per row: continuous features and their null indicators.
    pub(crate) continuous: usize,
    /// Batch norm is applied to these numbers.
    pub(crate) batch_norm: bool,
    /// Outputs per row.
    pub(crate) outputs: usize,
    /// Ensemble members, each with this many outputs; 1 without an ensemble.
    pub(crate) members: usize,
    /// Activation of the output.
    pub(crate) output: Output,
    /// Scale of a scaled sigmoid.
    pub(crate) output_scale: f64,
    pub(super) graph: Graph,
}

/// Sizes of a network that the data determines.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    /// Vocabulary size of each categorical feature: its values, plus one.
    pub(crate) codes: Vec<usize>,
    /// Numbers per row.
    pub(crate) continuous: usize,
    /// Ascending bin edges of each number, for a network with piecewise linear embeddings.
    pub(crate) bins: Vec<Vec<f32>>,
    /// Outputs per row.
    pub(crate) outputs: usize,
    /// Rows to train on and to evaluate.
    pub(crate) rows: u64,
}

/// Parameter tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Name, unique within the network or layer that lists it.
    pub name: String,
    /// Dimensions; the values are row-major.
    pub shape: Vec<usize>,
    /// Distribution of the initial values.
    pub initializer: Initializer,
    /// L1 and L2 penalties apply to it.
    pub penalized: bool,
}

/// Distribution of a parameter's initial values, drawn from the run's seed and so the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initializer {
    /// One value for all.
    Constant(f32),
    /// Uniform on ±this.
    Uniform(f32),
    /// Normal with this standard deviation.
    Normal(f32),
}

/// Parameter that has a row per code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    /// Index among all parameters.
    pub(crate) at: usize,
    /// Vocabulary size and row width of each categorical feature.
    pub(crate) widths: Vec<(usize, usize)>,
}

impl Parameter {
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Initializer {
    /// Draws `len` values.
    pub(super) fn draw(self, len: usize, stream: &mut ChaCha8Rng) -> Vec<f32> {
        match self {
            Self::Constant(value) => vec![value; len],
            Self::Uniform(range) => (0..len)
                .map(|_| stream.random_range(-range..range))
                .collect(),
            Self::Normal(deviation) => {
                // Box & Muller 1958.
                let normal = |_| {
                    let radius = (-2.0 * (1.0 - stream.random::<f64>()).ln()).sqrt();
                    let angle = std::f64::consts::TAU * stream.random::<f64>();
                    (f64::from(deviation) * radius * angle.cos()) as f32
                };
                (0..len).map(normal).collect()
            }
        }
    }
}

impl Architecture {
    /// Returns the outputs per row for this many classes, or for regression if there are none: two classes need one
    /// output.
    pub(crate) fn outputs_of(spec: &TrainSpec, classes: usize) -> usize {
        match classes {
            0 => spec.outputs(),
            1 | 2 => 1,
            classes => classes,
        }
    }

    /// Builds the spec's network for these sizes, with the custom layers that it names.
    ///
    /// # Errors
    /// When a custom layer is not registered, or cannot be built.
    pub(crate) fn new(
        spec: &TrainSpec,
        sizes: &Sizes,
        output_scale: f64,
        customs: &CustomLayers,
    ) -> Result<Self> {
        let columns = spec.features.iter();
        let columns = columns.filter(|feature| feature.kind == FeatureKind::Categorical);
        let columns: Vec<_> = columns.map(|feature| feature.column.as_str()).collect();
        Self::of(&spec.network, &columns, sizes, output_scale, customs)
    }

    /// Builds a network for these sizes, whose categorical features have these names.
    ///
    /// # Errors
    /// The same as [`new`](Self::new).
    pub(crate) fn of(
        network: &Network,
        columns: &[&str],
        sizes: &Sizes,
        output_scale: f64,
        customs: &CustomLayers,
    ) -> Result<Self> {
        let widths = &network.embedding_dim;
        let codes = columns.iter().zip(&sizes.codes);
        let codes: Vec<_> = codes
            .map(|(column, codes)| (*codes, widths.of(column, codes - 1)))
            .collect();
        let members = network.members(sizes.rows);
        let entries = Entries {
            members,
            codes: &codes,
            numbers: sizes.continuous,
            bins: &sizes.bins,
            outputs: sizes.outputs,
            customs,
        };
        Ok(Self {
            categorical: codes.len(),
            continuous: sizes.continuous,
            batch_norm: network.batch_norm && network.is_deep() && sizes.continuous > 0,
            outputs: sizes.outputs,
            members,
            output: network.output,
            output_scale,
            graph: Graph::new(network, entries)?,
        })
    }

    /// Describes the operations and all sizes: everything that decides which kernels compute the network. Numbers that
    /// kernels read, such as bin edges, are left out.
    pub(crate) fn shape(&self) -> String {
        let graph = &self.graph;
        let nodes = graph.nodes.iter().map(|node| {
            let operation = match &node.operation {
                Operation::PiecewiseLinear(bins) => {
                    let edges: Vec<usize> = bins.0.iter().map(Vec::len).collect();
                    format!("PiecewiseLinear({edges:?})")
                }
                operation => format!("{operation:?}"),
            };
            (operation, &node.from, node.to, node.at)
        });
        let nodes: Vec<_> = nodes.collect();
        let tables: Vec<_> = graph.tables.iter().map(|table| &table.widths).collect();
        let parameters = graph
            .parameters
            .iter()
            .map(|own| (&own.shape, own.penalized));
        let parameters: Vec<_> = parameters.collect();
        let entered = (self.categorical, self.continuous, self.batch_norm);
        let left = (self.outputs, self.members, self.output);
        let sizes = (&graph.widths, &graph.dropouts, tables, parameters);
        format!("{entered:?} {nodes:?} {left:?} {sizes:?}")
    }

    /// Builds a linear model of this many numbers: a penalized kernel and a bias.
    pub(crate) fn line(numbers: usize) -> Self {
        let network = Network {
            embedding_dim: EmbeddingWidth::Same(1),
            batch_norm: false,
            numeric_embedding: Default::default(),
            layers: vec![],
            output: Output::Identity,
            linear: Linear::Alone,
            factors: 0,
            ensemble_size: EnsembleSize::ONE,
        };
        let sizes = Sizes {
            codes: vec![],
            continuous: numbers,
            bins: vec![vec![]; numbers],
            outputs: 1,
            rows: 0,
        };
        let line = Self::of(&network, &[], &sizes, 1.0, &CustomLayers::new());
        line.expect("it has no custom layers")
    }

    /// Returns the parameters that have a row per code.
    pub(crate) fn tables(&self) -> &[Table] {
        &self.graph.tables
    }

    /// Returns the dropouts, which zero numbers in training.
    pub(crate) fn dropouts(&self) -> &[Dropout] {
        &self.graph.dropouts
    }

    /// Returns how many numbers of a row batch norm normalises.
    pub(crate) fn normalized(&self) -> usize {
        if self.batch_norm { self.continuous } else { 0 }
    }

    /// Returns the trainable parameters in their fixed order: the layers' first, then the other parts'.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.graph.parameters
    }

    /// Returns the initial values, parameter by parameter: the same on every rank for the same seed.
    pub(crate) fn initial_values(&self, seed: u64) -> Vec<Vec<f32>> {
        let key = Key::new(seed, Purpose::Weights);
        let parameters = self.parameters().iter().enumerate();
        let values = parameters.map(|(at, parameter)| {
            let mut stream = key.with(at as u64).stream();
            parameter.initializer.draw(parameter.len(), &mut stream)
        });
        values.collect()
    }
}

/// Returns the uniform initializer of Glorot & Bengio 2010, "Understanding the difficulty of training deep feedforward
/// neural networks", equation 16.
pub(super) fn glorot(from: usize, to: usize) -> Initializer {
    Initializer::Uniform((6.0 / (from + to) as f32).sqrt())
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{
        Activation, EmbeddingWidth, EnsembleSize, Layer, Linear, NumericEmbedding,
    };

    use super::*;
    use crate::testing::{custom_layers, squash};

    fn rossmann(network: Network) -> Architecture {
        let sizes = Sizes {
            codes: vec![75; 18],
            continuous: 18,
            bins: vec![vec![-1.0, 0.0, 2.0]; 18],
            outputs: 1,
            rows: 0,
        };
        Architecture::of(&network, &["feature"; 18], &sizes, 12.8, &custom_layers()).unwrap()
    }

    fn network(hidden: &[usize], linear: Linear) -> Network {
        Network {
            embedding_dim: EmbeddingWidth::Same(10),
            batch_norm: true,
            numeric_embedding: NumericEmbedding::None,
            layers: Layer::stack(hidden, Activation::Relu, &[]),
            output: Output::ScaledSigmoid,
            linear,
            factors: 0,
            ensemble_size: EnsembleSize::ONE,
        }
    }

    #[test]
    fn parameters_are_counted_as_in_the_reference() {
        let kernels = 198 * 1000 + 1000 * 1000 * 2 + 1000 * 500 + 500;
        let biases = 1000 * 3 + 500 + 1;
        let reference = rossmann(network(&[1000, 1000, 1000, 500], Linear::None));
        let count: usize = reference.parameters().iter().map(Parameter::len).sum();
        assert_eq!(count, 18 * 75 * 10 + 2 * 18 + kernels + biases);
        let penalized = reference.parameters().iter().filter(|p| p.penalized);
        let penalized: Vec<_> = penalized.map(|p| p.name.as_str()).collect();
        assert_eq!(
            penalized,
            ["dense.0", "dense.1", "dense.2", "dense.3"].map(|n| format!("{n}.kernel"))
        );
    }

    #[test]
    fn the_description_counts_the_parameters_that_there_are() {
        let layers = vec![
            Layer::Dense(24),
            Layer::Activation(Activation::Selu),
            Layer::Residual(vec![Layer::Dense(16), Layer::LayerNorm]),
            Layer::Concat(vec![vec![Layer::Cross(2)], vec![Layer::Dense(3)]]),
        ];
        let (due, to) = Layer::size(&layers, 198).unwrap();
        let network = Network {
            layers,
            ..network(&[], Linear::None)
        };
        let parameters = rossmann(network);
        let parameters = parameters.parameters().iter();
        let of_layers = parameters
            .filter(|p| !["embedding", "bn.gamma", "bn.beta"].contains(&&*p.name))
            .map(Parameter::len);
        assert_eq!(of_layers.sum::<usize>(), due + to + 1);
    }

    #[test]
    fn custom_layers_parameters_are_named_where_they_stand() {
        let inner = vec![squash(3, 1.0), Layer::Dense(2)];
        let network = Network {
            layers: vec![squash(4, 1.0), Layer::Residual(inner), squash(5, 1.0)],
            ..network(&[], Linear::None)
        };
        let network = rossmann(network);
        let parameters = network.parameters().iter();
        let named = parameters
            .filter(|p| p.name.contains("squash"))
            .map(|p| (p.name.as_str(), p.shape.as_slice(), p.penalized));
        let due: [(&str, &[usize], bool); 6] = [
            ("custom.0.squash.kernel", &[198, 4], true),
            ("custom.0.squash.bias", &[4], false),
            ("residual.0.custom.0.squash.kernel", &[4, 3], true),
            ("residual.0.custom.0.squash.bias", &[3], false),
            ("custom.1.squash.kernel", &[2, 5], true),
            ("custom.1.squash.bias", &[5], false),
        ];
        assert_eq!(named.collect::<Vec<_>>(), due);
    }

    #[test]
    fn the_output_is_penalized_where_no_layer_is() {
        let is_penalized = |layers: Vec<Layer>| {
            let network = Network {
                layers,
                ..network(&[], Linear::None)
            };
            let network = rossmann(network);
            let mut parameters = network.parameters().iter();
            parameters.any(|p| p.name == "output.kernel" && p.penalized)
        };
        assert!(is_penalized(vec![]));
        assert!(is_penalized(vec![
            Layer::LayerNorm,
            Layer::Residual(vec![Layer::Activation(Activation::Tanh)])
        ]));
        for kernels in [
            Layer::Dense(3),
            Layer::Cross(1),
            Layer::Residual(vec![Layer::Dense(198)]),
            Layer::Concat(vec![vec![], vec![Layer::Dense(2)]]),
            squash(3, 1.0),
        ] {
            assert!(!is_penalized(vec![kernels]));
        }
    }

    #[test]
    fn relu_and_dropout_are_fused_where_nobody_else_reads() {
        let fused = |layers: &[Layer]| {
            let network = Network {
                layers: layers.to_vec(),
                ..network(&[], Linear::None)
            };
            rossmann(network).graph.nodes.len()
        };
        let [dense, relu] = [Layer::Dense(4), Layer::Activation(Activation::Relu)];
        let dropout = Layer::Dropout(0.5);
        let plain = fused(std::slice::from_ref(&dense));
        let all = [dense.clone(), relu.clone(), dropout.clone()];
        assert_eq!(fused(&all), plain);
        assert_eq!(fused(&[dense.clone(), dropout, relu.clone()]), plain + 2);
        // The residual adds the dense layer's output from before ReLU.
        let residual = Layer::Residual(vec![relu]);
        assert_eq!(fused(&[dense, residual]), plain + 2);
    }

    #[test]
    fn a_linear_part_is_beside_the_layers_or_alone() {
        let named = |linear| {
            let sizes = Sizes {
                codes: vec![75; 18],
                continuous: 18,
                bins: vec![],
                outputs: 3,
                rows: 0,
            };
            let network = network(&[], linear);
            let network =
                Architecture::of(&network, &["feature"; 18], &sizes, 12.8, &custom_layers());
            let network = network.unwrap();
            let parameters = network.parameters().iter();
            let parameters = parameters.map(|p| (p.name.clone(), p.shape.clone(), p.penalized));
            let tables = network
                .tables()
                .iter()
                .map(|table| (table.at, table.widths[0].1));
            (parameters.collect::<Vec<_>>(), tables.collect::<Vec<_>>())
        };
        let (beside, tables) = named(Linear::Beside);
        assert_eq!((beside.len(), tables), (7, vec![(0, 10), (5, 3)]));
        let (alone, tables) = named(Linear::Alone);
        let due = [
            ("linear.values".to_owned(), vec![1350, 3], true),
            ("linear.numbers".to_owned(), vec![18, 3], true),
            ("linear.bias".to_owned(), vec![3], false),
        ];
        assert_eq!((&alone[..], tables), (&due[..], vec![(0, 3)]));
    }

    #[test]
    fn a_seed_gives_one_start() {
        let small = Network {
            numeric_embedding: NumericEmbedding::Periodic,
            ..network(&[8], Linear::None)
        };
        let small = rossmann(small);
        assert_eq!(small.initial_values(1), small.initial_values(1));
        assert_ne!(small.initial_values(1)[0], small.initial_values(2)[0]);
        let named = |name: &str| {
            let at = small.parameters().iter().position(|p| p.name == name);
            small.initial_values(1).swap_remove(at.unwrap())
        };
        let limit = (6.0_f32 / (180.0 + 18.0 * 4.0 + 8.0)).sqrt();
        let kernel = named("dense.0.kernel");
        assert!(kernel.iter().all(|w| w.abs() <= limit));
        assert!(kernel.iter().any(|w| w.abs() > 0.9 * limit));
        let frequencies = named("periodic.frequency");
        let square = frequencies.iter().map(|c| f64::from(*c).powi(2));
        let deviation = (square.sum::<f64>() / frequencies.len() as f64).sqrt();
        assert!((deviation - 0.1).abs() < 0.02, "{deviation}");
    }

    #[test]
    fn bins_count_from_nothing() {
        let network = Network {
            numeric_embedding: NumericEmbedding::PiecewiseLinear,
            batch_norm: false,
            ..network(&[8], Linear::None)
        };
        let binned = rossmann(network);
        let start = binned.initial_values(1);
        let named = |name: &str| {
            let at = binned.parameters().iter().position(|p| p.name == name);
            (&binned.parameters()[at.unwrap()].shape, &start[at.unwrap()])
        };
        let (shape, kernel) = named("piecewise.kernel");
        assert_eq!(*shape, [18, 2, 16]);
        assert!(kernel.iter().all(|w| *w == 0.0));
        let (shape, weight) = named("piecewise.weight");
        assert_eq!(*shape, [18, 16]);
        assert!(weight.iter().all(|w| w.abs() <= 0.25) && weight.iter().any(|w| w.abs() > 0.2));
        assert_eq!(*named("dense.0.kernel").0, [18 * 10 + 18 * 16, 8]);
    }
}
