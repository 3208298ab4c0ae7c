//! The graph of a network: operations on values, each with its parameters.
//!
//! ```text
//!  values    0 embeddings [B × ΣD]   1 numbers [B × N]   2 …   an input, or the output of one operation
//!  nodes     in topological order: each value is computed before it is read
//! ```
//!
//! The graph is arithmetic on widths: [`host`](super::host) computes it in host memory, [`tensors`](super::tensors) as
//! tensors. ReLU and dropout are fused into the dense layer before them, which saves a pass over memory.

mod layers;

use std::ops::Range;

use volley_proto::spec::{
    Activation, FREQUENCIES, Linear, Network, NumericEmbedding, PERIODIC_WIDTH, PIECEWISE_WIDTH,
};

use super::architecture::{Initializer, Parameter, Table};
use super::custom::{Custom, CustomLayers};
use crate::Result;

/// Half-width of the embeddings' uniform initial distribution, as in Keras.
const EMBEDDING_RANGE: f32 = 0.05;
/// Standard deviation of the factors' initial values, as in libFM.
const FACTOR_DEVIATION: f32 = 0.1;
/// Standard deviation of the initial frequencies of periodic embeddings, as in RealMLP.
const FREQUENCY_DEVIATION: f32 = 0.1;

/// Index of a value in the graph.
pub(crate) type Value = usize;

/// Node of the graph: an operation that computes one value from others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) operation: Operation,
    pub(crate) from: Vec<Value>,
    pub(crate) to: Value,
    /// Index of its first parameter among all parameters.
    pub(crate) at: usize,
}

/// Operation of a node on each row x.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operation {
    /// `x·W + b`, or `x·W` without a bias, followed by ReLU and dropout if it has them.
    Dense {
        bias: bool,
        relu: bool,
        dropout: Option<usize>,
    },
    /// Elementwise function.
    Activation(Activation),
    /// Dropout mask, by its index in [`Graph::dropouts`].
    Dropout(usize),
    /// `γ·(x − mean) / √(variance + ε) + β`, with the row's moments.
    LayerNorm,
    /// Elementwise `γ·x + β`.
    Affine,
    /// x and `cos(2π·c·x + φ)·W + b` for each number x. Parameters: c, φ, W, b.
    Periodic,
    /// `x·w + b + share(x)·W` for each number x, where share(x) are its bin shares. Parameters: w, b, W.
    PiecewiseLinear(Bins),
    /// Concatenation of all inputs.
    Concat,
    /// Concatenation of these column ranges of the input.
    Columns(Vec<Range<usize>>),
    /// Sum of two inputs.
    Add,
    /// Elementwise mean of all inputs.
    Mean,
    /// Elementwise product of two inputs.
    Multiply,
    /// Second-order interactions, `½ Σ_f ((Σ_i v_if·x_i)² − Σ_i (v_if·x_i)²)`, over the factors of codes, where x is 1,
    /// and of numbers. Parameters: the factors of numbers, if there are any.
    Interactions {
        factors: usize,
        codes: bool,
        numbers: bool,
    },
    /// Linear part over codes and numbers, with a bias only where there are no layers, which have their own.
    Linear { bias: bool },
    /// Layer that a user implemented, computed in host memory only.
    Custom(Custom),
}

impl Operation {
    pub(super) fn has_parameters(&self) -> bool {
        match self {
            Self::Dense { .. } | Self::LayerNorm | Self::Affine => true,
            Self::Periodic | Self::PiecewiseLinear(_) => true,
            Self::Interactions { numbers: any, .. } => *any,
            Self::Linear { .. } => true,
            Self::Custom(custom) => custom.parameters > 0,
            Self::Activation(_) | Self::Dropout(_) => false,
            Self::Concat | Self::Columns(_) => false,
            Self::Add | Self::Mean | Self::Multiply => false,
        }
    }
}

/// Ascending bin edges of each number: one more edge than bins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bins(pub(super) Vec<Vec<f32>>);

impl Bins {
    /// Returns the largest bin count of any number.
    pub(super) fn most(&self) -> usize {
        let counts = self.0.iter().map(|edges| edges.len() - 1);
        counts.max().unwrap_or(0)
    }
}

/// Dropout of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    /// Share of the numbers that training zeroes.
    pub(crate) share: f64,
    /// Numbers per row.
    pub(crate) width: usize,
}

/// Operations and parameters of a network.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Graph {
    /// Width of each value: numbers per row.
    pub(crate) widths: Vec<usize>,
    /// Embeddings that the codes look up, if any.
    pub(crate) embeddings: Option<Value>,
    /// Factors that the codes look up, if any.
    pub(crate) factors: Option<Value>,
    /// Numeric input, if any.
    pub(crate) numbers: Option<Value>,
    pub(crate) nodes: Vec<Node>,
    /// Nodes per member: the members' nodes come first, one member after the other.
    pub(crate) each: usize,
    /// Output of each ensemble member, before the output's activation; a network without an ensemble is one member.
    pub(crate) members: Vec<Value>,
    /// Mean of the members' outputs, before the output's activation.
    pub(crate) output: Value,
    pub(crate) dropouts: Vec<Dropout>,
    /// Parameters in the order that the flat gradient, the optimizer state and the file share.
    pub(crate) parameters: Vec<Parameter>,
    /// Parameters that have a row per code.
    pub(crate) tables: Vec<Table>,
}

/// Sizes and layers that the data and the binary add to a network's description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries<'a> {
    /// Vocabulary size and embedding width of each categorical feature.
    pub(super) codes: &'a [(usize, usize)],
    /// Numbers per row.
    pub(super) numbers: usize,
    /// Bin edges of each number, for a network with piecewise linear embeddings.
    pub(super) bins: &'a [Vec<f32>],
    /// Outputs per row.
    pub(super) outputs: usize,
    /// Ensemble members.
    pub(super) members: usize,
    /// Registered custom layers.
    pub(super) customs: &'a CustomLayers,
}

impl Graph {
    /// Builds the graph of a network.
    ///
    /// # Errors
    /// When a custom layer is not registered, or cannot be built.
    pub(super) fn new(network: &Network, entries: Entries<'_>) -> Result<Self> {
        let mut graph = Self::default();
        let Entries {
            codes,
            numbers,
            outputs,
            ..
        } = entries;
        if numbers > 0 {
            graph.numbers = Some(graph.value(numbers));
        }
        let mut members = match network.is_deep() {
            true => graph.deep(network, entries)?,
            false => vec![],
        };
        graph.each = graph.nodes.len() / members.len().max(1);
        let mut parts = Vec::with_capacity(2);
        if network.linear != Linear::None {
            parts.push(graph.linear(network, entries));
        }
        if network.factors > 0 {
            let widths = codes
                .iter()
                .map(|(codes, _)| (*codes, network.factors * outputs));
            let widths: Vec<_> = widths.collect();
            parts.push(graph.interactions(network.factors, &widths, entries));
        }
        let mut sum = |sum, part| graph.node(Operation::Add, vec![sum, part], outputs);
        // The linear part and the interactions are shared by all members.
        if let Some(beside) = parts.into_iter().reduce(&mut sum) {
            match members.is_empty() {
                true => members.push(beside),
                false => members
                    .iter_mut()
                    .for_each(|member| *member = sum(*member, beside)),
            }
        }
        graph.output = match members[..] {
            [one] => one,
            _ => graph.node(Operation::Mean, members.clone(), outputs),
        };
        graph.members = members;
        Ok(graph)
    }

    /// Iterates over the values that codes look up, with their tables; each table comes right before the parameters of a
    /// node, or of none.
    pub(super) fn looked_up(&self) -> impl Iterator<Item = (Value, &Table)> {
        let named = [
            (self.embeddings, "embedding"),
            (self.factors, "factors.values"),
        ];
        named.into_iter().filter_map(move |(value, name)| {
            let mut tables = self.tables.iter();
            let table = tables.find(|table| self.parameters[table.at].name == name);
            Some((value?, table.expect("what codes pick has a table")))
        })
    }

    /// Returns the table that an input value was looked up in, if it was.
    pub(super) fn table_of(&self, value: Value) -> Option<&Table> {
        let mut all = self.looked_up();
        all.find(|(of, _)| *of == value).map(|(_, table)| table)
    }

    /// Returns the parameters of a node, by its index; looked-up tables are those of none.
    pub(super) fn parameters_of(&self, node: usize) -> Range<usize> {
        let start = self.nodes[node].at;
        let next = self.nodes.get(node + 1);
        let mut end = next.map_or(self.parameters.len(), |next| next.at);
        while end > start && self.looked_up().any(|(_, table)| table.at + 1 == end) {
            end -= 1;
        }
        start..end
    }

    /// Iterates over the piecewise linear embeddings, one per member, if there are any.
    pub(super) fn piecewise(&self) -> impl Iterator<Item = Value> {
        let nodes = self.nodes.iter();
        let found = nodes.filter(|node| matches!(node.operation, Operation::PiecewiseLinear(_)));
        found.map(|node| node.to)
    }

    /// Returns the linear part's node, if there is one, and whether it has a bias.
    pub(super) fn linear_node(&self) -> Option<(&Node, bool)> {
        self.nodes.iter().find_map(|node| match node.operation {
            Operation::Linear { bias } => Some((node, bias)),
            _ => None,
        })
    }

    /// Returns true if there are custom layers, which only the host computes.
    pub(super) fn has_custom_layers(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| matches!(node.operation, Operation::Custom(_)))
    }

    /// Marks the values that need a gradient: those that depend on embeddings or factors, or on parameters if the
    /// network `trains`, else on the numeric input.
    pub(super) fn sought(&self, trains: bool) -> Vec<bool> {
        let mut sought = vec![false; self.widths.len()];
        let entered = [
            self.embeddings,
            self.factors,
            self.numbers.filter(|_| !trains),
        ];
        for value in entered.into_iter().flatten() {
            sought[value] = true;
        }
        for node in &self.nodes {
            let is_trained = trains && node.operation.has_parameters();
            sought[node.to] = is_trained || node.from.iter().any(|from| sought[*from]);
        }
        sought
    }

    fn value(&mut self, width: usize) -> Value {
        self.widths.push(width);
        self.widths.len() - 1
    }

    /// Adds a node without parameters and returns its output value.
    fn node(&mut self, operation: Operation, from: Vec<Value>, width: usize) -> Value {
        let (to, at) = (self.value(width), self.parameters.len());
        self.nodes.push(Node {
            operation,
            from,
            to,
            at,
        });
        to
    }

    fn parameter(
        &mut self,
        name: String,
        shape: &[usize],
        initializer: Initializer,
        penalized: bool,
    ) {
        self.parameters.push(Parameter {
            name,
            shape: shape.to_vec(),
            initializer,
            penalized,
        });
    }

    /// Adds a parameter with a row for each code of each feature, as wide as the feature's embedding.
    fn add_table(
        &mut self,
        name: &str,
        widths: &[(usize, usize)],
        initializer: Initializer,
        penalized: bool,
    ) {
        let total: usize = widths.iter().map(|(codes, width)| codes * width).sum();
        let codes: usize = widths.iter().map(|(codes, _)| codes).sum();
        let (_, first) = widths.first().copied().unwrap_or_default();
        let shape = match widths.iter().all(|(_, width)| *width == first) {
            true => vec![codes, first],
            false => vec![total],
        };
        self.tables.push(Table {
            at: self.parameters.len(),
            widths: widths.to_vec(),
        });
        self.parameter(name.to_owned(), &shape, initializer, penalized);
    }

    /// Adds each member's layers, from embeddings and numbers to its output. Returns the outputs.
    fn deep(&mut self, network: &Network, entries: Entries<'_>) -> Result<Vec<Value>> {
        // A code's row has every member's embedding, side by side.
        let codes = entries.codes.iter();
        let widths = codes.map(|(codes, width)| (*codes, width * entries.members));
        let widths: Vec<_> = widths.collect();
        let width = widths.iter().map(|(_, width)| width).sum();
        if width > 0 {
            self.embeddings = Some(self.value(width));
            let initializer = Initializer::Uniform(EMBEDDING_RANGE);
            self.add_table("embedding", &widths, initializer, false);
        }
        (0..entries.members)
            .map(|member| self.member(network, entries, member))
            .collect()
    }

    /// Adds a member's own embeddings and layers and returns its output.
    fn member(&mut self, network: &Network, entries: Entries<'_>, member: usize) -> Result<Value> {
        let path = match entries.members {
            1 => String::new(),
            _ => format!("member.{member}."),
        };
        let mut parts = Vec::with_capacity(2);
        if let Some(embeddings) = self.embeddings {
            parts.push(self.embeddings_of(member, embeddings, entries));
        }
        if let Some(numbers) = self.numbers {
            let count = entries.numbers;
            let mut value = numbers;
            if network.batch_norm {
                value = self.node(Operation::Affine, vec![value], count);
                let [gamma, beta] = ["gamma", "beta"].map(|name| format!("{path}bn.{name}"));
                self.parameter(gamma, &[count], Initializer::Constant(1.0), false);
                self.parameter(beta, &[count], Initializer::Constant(0.0), false);
            }
            value = match network.numeric_embedding {
                NumericEmbedding::None => value,
                NumericEmbedding::Periodic => self.periodic(&path, value, count),
                NumericEmbedding::PiecewiseLinear => {
                    self.piecewise_linear(&path, value, entries.bins)
                }
            };
            parts.push(value);
        }
        let entered = match parts[..] {
            [one] => one,
            _ => {
                let width = parts.iter().map(|part| self.widths[*part]).sum();
                self.node(Operation::Concat, parts, width)
            }
        };
        let first = self.parameters.len();
        let value = self.layers(&network.layers, &path, entered, entries.customs)?;
        // Without a penalized kernel in its layers, the output's kernel is penalized.
        let has_kernel = self.parameters[first..].iter().any(|p| p.penalized);
        let name = format!("{path}output");
        Ok(self.dense(&name, value, entries.outputs, true, !has_kernel))
    }

    /// Returns one member's columns of all members' embeddings.
    fn embeddings_of(&mut self, member: usize, embeddings: Value, entries: Entries<'_>) -> Value {
        if entries.members == 1 {
            return embeddings;
        }
        let mut start = 0;
        let columns = entries.codes.iter().map(|(_, width)| {
            let first = start + member * width;
            start += entries.members * width;
            first..first + width
        });
        let columns: Vec<_> = columns.collect();
        let width = columns.iter().map(Range::len).sum();
        self.node(Operation::Columns(columns), vec![embeddings], width)
    }

    fn periodic(&mut self, path: &str, from: Value, count: usize) -> Value {
        let (k, d) = (FREQUENCIES, PERIODIC_WIDTH - 1);
        let to = self.node(Operation::Periodic, vec![from], count * PERIODIC_WIDTH);
        let mut parameter = |name: &str, shape: &[usize], initializer| {
            self.parameter(format!("{path}periodic.{name}"), shape, initializer, false);
        };
        parameter(
            "frequency",
            &[count, k],
            Initializer::Normal(FREQUENCY_DEVIATION),
        );
        parameter(
            "phase",
            &[count, k],
            Initializer::Uniform(std::f32::consts::PI),
        );
        parameter(
            "kernel",
            &[count, k, d],
            Initializer::Uniform((k as f32).sqrt().recip()),
        );
        parameter("bias", &[count, d], Initializer::Constant(0.0));
        to
    }

    fn piecewise_linear(&mut self, path: &str, from: Value, bins: &[Vec<f32>]) -> Value {
        let (count, d) = (bins.len(), PIECEWISE_WIDTH);
        assert_eq!(count, self.widths[from], "every number has bins");
        let bins = Bins(bins.to_vec());
        let most = bins.most();
        let to = self.node(Operation::PiecewiseLinear(bins), vec![from], count * d);
        let mut parameter = |name: &str, shape: &[usize], initializer| {
            self.parameter(format!("{path}piecewise.{name}"), shape, initializer, false);
        };
        let initializer = Initializer::Uniform((d as f32).sqrt().recip());
        parameter("weight", &[count, d], initializer);
        parameter("bias", &[count, d], initializer);
        parameter("kernel", &[count, most, d], Initializer::Constant(0.0));
        to
    }

    fn linear(&mut self, network: &Network, entries: Entries<'_>) -> Value {
        let Entries {
            codes,
            numbers,
            outputs,
            ..
        } = entries;
        let from = self.numbers.into_iter().collect();
        let bias = !network.is_deep();
        let to = self.node(Operation::Linear { bias }, from, outputs);
        let zero = Initializer::Constant(0.0);
        if !codes.is_empty() {
            let widths: Vec<_> = codes.iter().map(|(codes, _)| (*codes, outputs)).collect();
            self.add_table("linear.values", &widths, zero, true);
        }
        if numbers > 0 {
            self.parameter("linear.numbers".into(), &[numbers, outputs], zero, true);
        }
        if bias {
            self.parameter("linear.bias".into(), &[outputs], zero, false);
        }
        to
    }

    fn interactions(
        &mut self,
        factors: usize,
        widths: &[(usize, usize)],
        entries: Entries<'_>,
    ) -> Value {
        let outputs = entries.outputs;
        let initializer = Initializer::Normal(FACTOR_DEVIATION);
        let mut from = Vec::with_capacity(2);
        if !widths.is_empty() {
            let value = self.value(widths.iter().map(|(_, width)| width).sum());
            self.factors = Some(value);
            self.add_table("factors.values", widths, initializer, true);
            from.push(value);
        }
        from.extend(self.numbers);
        let interactions = Operation::Interactions {
            factors,
            codes: !widths.is_empty(),
            numbers: self.numbers.is_some(),
        };
        let to = self.node(interactions, from, outputs);
        if entries.numbers > 0 {
            let shape = [entries.numbers, factors * outputs];
            self.parameter("factors.numbers".into(), &shape, initializer, true);
        }
        to
    }
}
