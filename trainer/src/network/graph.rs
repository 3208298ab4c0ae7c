//! The graph that a network's description comes to: operations on values, each with its parameters.
//!
//! ```text
//!  values    0 embeddings [B × ΣD]   1 numbers [B × N]   2 …   each is put out by one operation, or enters
//!  nodes     in an order in which every value is put out before it is read
//! ```
//!
//! It is arithmetic on widths: [`host`](super::host) computes it in host memory, [`tensors`](super::tensors) as tensors.
//! What is fused in it (ReLU and dropout into the dense layer before them) is what a pass over memory is worth.

mod layers;

use std::ops::Range;

use volley_proto::spec::{
    Activation, FREQUENCIES, Linear, Network, NumericEmbedding, PERIODIC_WIDTH, PIECEWISE_WIDTH,
};

use super::architecture::{Initializer, Parameter, Table};
use super::custom::{Custom, CustomLayers};
use crate::Result;

/// Half the width of the embeddings' initial range, as in Keras.
const EMBEDDING_RANGE: f32 = 0.05;
/// Standard deviation of the factors' initial values, as in libFM.
const FACTOR_DEVIATION: f32 = 0.1;
/// Standard deviation of the initial frequencies of periodic embeddings, as in RealMLP.
const FREQUENCY_DEVIATION: f32 = 0.1;

/// A value's place among all.
pub(crate) type Value = usize;

/// An operation: from values to one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) operation: Operation,
    pub(crate) from: Vec<Value>,
    pub(crate) to: Value,
    /// Where its parameters begin in the order of all.
    pub(crate) at: usize,
}

/// What a node computes of a row x.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operation {
    /// `x·W + b`, without b if it has no bias; then ReLU and dropout, if it has them.
    Dense {
        bias: bool,
        relu: bool,
        dropout: Option<usize>,
    },
    /// A function of each number.
    Activation(Activation),
    /// A mask, by its place in [`Graph::dropouts`].
    Dropout(usize),
    /// `γ·(x − mean) / √(variance + ε) + β`, of the row's moments.
    LayerNorm,
    /// `γ·x + β`
    Affine,
    /// Of each number x: x, and `cos(2π·c·x + φ)·W + b`. Parameters: c, φ, W, b.
    Periodic,
    /// Of each number x: `x·w + b + share(x)·W`, of its shares of bins. Parameters: w, b, W.
    PiecewiseLinear(Bins),
    /// The numbers of all that it is from, side by side.
    Concat,
    /// These numbers of each row, side by side.
    Columns(Vec<Range<usize>>),
    /// The sum of two.
    Add,
    /// The mean of all that it is from, number by number.
    Mean,
    /// The product of two, number by number.
    Multiply,
    /// Second-order interactions, `½ Σ_f ((Σ_i v_if·x_i)² − Σ_i (v_if·x_i)²)`, from the factors of codes, where x is 1,
    /// and from numbers. Parameters: the factors of numbers, if there are any.
    Interactions {
        factors: usize,
        codes: bool,
        numbers: bool,
    },
    /// The linear part, of codes and of numbers, with a bias where there are no layers that have one.
    Linear { bias: bool },
    /// What a user's layer computes, in host memory only.
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

/// Of each number, the edges of its bins, ascending: one more than there are bins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bins(pub(super) Vec<Vec<f32>>);

impl Bins {
    /// The most bins of a number.
    pub(super) fn most(&self) -> usize {
        let counts = self.0.iter().map(|edges| edges.len() - 1);
        counts.max().unwrap_or(0)
    }
}

/// Numbers that are zeroed in training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    /// Their share.
    pub(crate) share: f64,
    /// How many a row has.
    pub(crate) width: usize,
}

/// A network's operations.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Graph {
    /// Numbers of a row in each value.
    pub(crate) widths: Vec<usize>,
    /// The embeddings that codes pick, if any.
    pub(crate) embeddings: Option<Value>,
    /// The factors that codes pick, if any.
    pub(crate) factors: Option<Value>,
    /// The numbers that enter, if any.
    pub(crate) numbers: Option<Value>,
    pub(crate) nodes: Vec<Node>,
    /// Nodes of each member: the first nodes are the members', one member after the other.
    pub(crate) each: usize,
    /// What each member of the ensemble puts out, before the output's activation; a network without others is one.
    pub(crate) members: Vec<Value>,
    /// What is put out, before the output's activation: their mean.
    pub(crate) output: Value,
    pub(crate) dropouts: Vec<Dropout>,
    /// In the order of everything: the flat gradient, the optimizer's state, the file.
    pub(crate) parameters: Vec<Parameter>,
    /// The parameters that have rows for codes.
    pub(crate) tables: Vec<Table>,
}

/// What the data says of a graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries<'a> {
    /// Of each categorical feature, the codes of its vocabulary and the width of its embedding.
    pub(super) codes: &'a [(usize, usize)],
    /// Numbers of a row.
    pub(super) numbers: usize,
    /// Of each of them, the edges of its bins, where the network has piecewise linear embeddings.
    pub(super) bins: &'a [Vec<f32>],
    /// Outputs of a row.
    pub(super) outputs: usize,
    /// Members of the ensemble.
    pub(super) members: usize,
    /// The custom layers that there are.
    pub(super) customs: &'a CustomLayers,
}

impl Graph {
    /// The graph of a network.
    ///
    /// # Errors
    /// When a custom layer is not registered, or cannot be made.
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
        // What is beside the layers is every member's.
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

    /// The parameter of this name, which has a row for each code.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn table(&self, name: &str) -> &Table {
        let mut tables = self.tables.iter();
        let found = tables.find(|table| self.parameters[table.at].name == name);
        found.expect("what codes pick has a table")
    }

    /// The table that a value that enters was picked from, if it was.
    pub(super) fn table_of(&self, value: Value) -> Option<&Table> {
        let picked = [
            (self.embeddings, "embedding"),
            (self.factors, "factors.values"),
        ];
        let found = picked
            .into_iter()
            .find(|(picked, _)| *picked == Some(value));
        found.map(|(_, name)| self.table(name))
    }

    /// The piecewise linear embeddings of numbers, of each member, if there are any.
    pub(super) fn piecewise(&self) -> impl Iterator<Item = Value> {
        let nodes = self.nodes.iter();
        let found = nodes.filter(|node| matches!(node.operation, Operation::PiecewiseLinear(_)));
        found.map(|node| node.to)
    }

    /// The linear part, if there is one, and whether it has a bias.
    pub(super) fn linear_node(&self) -> Option<(&Node, bool)> {
        self.nodes.iter().find_map(|node| match node.operation {
            Operation::Linear { bias } => Some((node, bias)),
            _ => None,
        })
    }

    /// Of each value, whether the gradient by it is sought: where something that is trained has had a part in it, or what
    /// has entered.
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

    /// A node without parameters, and the value that it puts out.
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

    /// A parameter with a row for each code of each feature, of the feature's width.
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

    /// From embeddings and numbers through each member's layers to its outputs.
    fn deep(&mut self, network: &Network, entries: Entries<'_>) -> Result<Vec<Value>> {
        // Of each code, every member's embedding, side by side.
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

    /// The outputs of a member, which has embeddings and layers of its own.
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
        // A network without kernels of its own has its output's only.
        let has_kernel = self.parameters[first..].iter().any(|p| p.penalized);
        let name = format!("{path}output");
        Ok(self.dense(&name, value, entries.outputs, true, !has_kernel))
    }

    /// A member's embeddings, of those of all members.
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
