//! The translation of a graph into kernels and products: forward, and backward to the gradient of each parameter, or to
//! those by the values that move along [paths](super::paths).
//!
//! Losses, rows and the optimizer are not here. Shapes are those of `kernels.cu`.

use volley_proto::spec::{Activation, FREQUENCIES, PERIODIC_WIDTH, PIECEWISE_WIDTH};

use super::calls::Hosted;
use super::layout::Layout;
use super::places::{Places, Planned, Sketch};
use super::words::{Arguments, Grid, Tensor};
use crate::Result;
use crate::device::{Address, Factors, Memory, Operand, Product, Runtime, Work};
use crate::network::graph::{Node, Operation, Value};
use crate::network::host::sigmoid_scale;
use crate::network::{Architecture, Table};

/// Rows that a thread sums in a column, and in a column of bins, which have more sums to write in the end.
const CHUNK: usize = 64;
const CHUNK_OF_BINS: usize = 512;

/// Network in the form that a device computes.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) architecture: Architecture,
    pub(super) layout: Layout,
    pub(super) sketch: Sketch,
    pub(super) grid: Grid,
    factors: Factors,
    embeddings: Option<Picks>,
    factor_table: Option<Picks>,
    /// Bin edges and bin counts of each feature, for each planned node.
    bins: Vec<Option<(Memory, Memory)>>,
    /// Custom layers, for each planned node.
    pub(super) hosted: Vec<Option<std::rc::Rc<Hosted>>>,
}

/// Layout of a table's rows for kernels: see `Table` in `kernels.cu`.
#[derive(Debug)]
struct Picks {
    first: Memory,
    start: Memory,
    width: Memory,
    feature: Memory,
    at: Memory,
    columns: usize,
    /// Index of the parameter.
    parameter: usize,
}

/// Rows of a step, on the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) codes: Address,
    pub(super) numbers: Tensor,
    /// Keys of each row, one dropout after the other.
    pub(super) keys: Address,
    /// Capacity in rows.
    pub(super) rows: usize,
}

/// Inputs and places of a pass over rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) batch: Batch,
    pub(super) places: &'a Places,
    pub(super) weights: Address,
    /// First row and number of rows.
    pub(super) first: usize,
    pub(super) rows: usize,
    /// Rows have dropout keys.
    pub(super) drops: bool,
    /// Moments to normalise the numbers by, if they are not normalised yet.
    pub(super) statistics: Option<Address>,
}

impl<'a> Pass<'a> {
    /// Passes over all rows of a batch, whose numbers are normalised, without dropout.
    pub(super) fn of(batch: Batch, places: &'a Places, weights: Address) -> Self {
        Self {
            batch,
            places,
            weights,
            first: 0,
            rows: batch.rows,
            drops: false,
            statistics: None,
        }
    }
}

impl Picks {
    /// Builds the layout of a table whose rows hold this many lanes side by side.
    fn new(runtime: &std::rc::Rc<dyn Runtime>, table: &Table, lanes: usize) -> Result<Self> {
        let (mut code, mut row) = (0_u32, 0_u32);
        let [mut first, mut start, mut width, mut feature, mut at] = [const { Vec::new() }; 5];
        for (number, (codes, wide)) in table.widths.iter().enumerate() {
            let own = (wide / lanes) as u32;
            first.push(code);
            start.push(row);
            width.push(own);
            code += *codes as u32;
            row += (codes * wide) as u32;
            for column in 0..own {
                feature.push(number as u32);
                at.push(column);
            }
        }
        let columns = at.len();
        let [first, start, width, feature, at] =
            [first, start, width, feature, at].map(|of| Memory::of(runtime, &of));
        Ok(Self {
            first: first?,
            start: start?,
            width: width?,
            feature: feature?,
            at: at?,
            columns,
            parameter: table.at,
        })
    }
}

impl Arguments {
    fn table(self, picks: Option<&Picks>) -> Self {
        let Some(picks) = picks else {
            return (0..6).fold(self, |all, _| all.number(0));
        };
        let Picks {
            first,
            start,
            width,
            feature,
            at,
            columns,
            ..
        } = picks;
        let parts = [first, start, width, feature, at];
        let all = parts.iter().fold(self, |all, part| all.address(part.at()));
        all.number(*columns)
    }

    /// Appends whether the output has a sigmoid, and its scale.
    pub(super) fn sigmoid(self, of: &Layers) -> Self {
        let scale = sigmoid_scale(&of.architecture);
        self.flag(scale.is_some()).real(scale.unwrap_or(1.0))
    }

    /// Appends a dropout's mask: see `Mask` in `kernels.cu`.
    fn mask(self, of: &Layers, pass: &Pass<'_>, dropout: Option<usize>) -> Self {
        let share = |place: usize| of.architecture.graph.dropouts[place].share;
        let dropout = dropout.filter(|place| pass.drops && share(*place) > 0.0);
        let Some(place) = dropout else {
            return (0..6).fold(self, |all, _| all.number(0));
        };
        let keys = pass.batch.keys + 8 * pass.first as u64;
        let all = self.address(keys).number(place).number(of.sketch.dropouts);
        let below = (share(place) * 2_f64.powi(32)) as u32;
        let scale = (1.0 / (1.0 - share(place))) as f32;
        all.number(pass.batch.rows)
            .number(below as usize)
            .real(scale)
    }
}

impl Layers {
    pub(super) fn new(
        runtime: &std::rc::Rc<dyn Runtime>,
        architecture: &Architecture,
        factors: Factors,
    ) -> Result<Self> {
        let graph = &architecture.graph;
        let layout = Layout::new(architecture);
        let sketch = Sketch::new(architecture, &layout);
        let picks = |value: Option<Value>, lanes| {
            let table = value.and_then(|value| graph.table_of(value));
            table
                .map(|table| Picks::new(runtime, table, lanes))
                .transpose()
        };
        let bins = sketch.nodes.iter().map(|planned| {
            let Operation::PiecewiseLinear(bins) = &graph.nodes[planned.node].operation else {
                return Ok(None);
            };
            let most = bins.most() + 1;
            let edges = bins.0.iter().flat_map(|edges| {
                let rest = std::iter::repeat(f32::MAX);
                edges.iter().copied().chain(rest).take(most)
            });
            let counts = bins.0.iter().map(|edges| edges.len() as u32 - 1);
            let (edges, counts): (Vec<f32>, Vec<u32>) = (edges.collect(), counts.collect());
            Ok(Some((
                Memory::of(runtime, &edges)?,
                Memory::of(runtime, &counts)?,
            )))
        });
        let hosted = sketch.nodes.iter().map(|planned| {
            let node = &graph.nodes[planned.node];
            let Operation::Custom(custom) = &node.operation else {
                return None;
            };
            let own = &graph.parameters[node.at..][..custom.parameters];
            Some(std::rc::Rc::new(Hosted::new(custom, own, planned.lanes)))
        });
        Ok(Self {
            hosted: hosted.collect(),
            bins: bins.collect::<Result<_>>()?,
            embeddings: picks(graph.embeddings, sketch.lanes)?,
            factor_table: picks(graph.factors, 1)?,
            grid: Grid::of(&**runtime),
            architecture: architecture.clone(),
            layout,
            sketch,
            factors,
        })
    }

    /// Returns the numeric input of a batch at this address.
    pub(super) fn numbers_at(&self, at: Address) -> Tensor {
        let ld = self.sketch.numbers_ld(&self.architecture);
        Tensor::new(at, [1, 0, self.architecture.continuous], ld)
    }

    /// Assigns storage to the values of this many rows: see [`Sketch::places`].
    pub(super) fn places(&self, rows: usize, base: Address, numbers: Tensor) -> Places {
        self.sketch.places(&self.architecture, rows, base, numbers)
    }

    /// Returns the bytes of the values of a pass over this many rows.
    pub(super) fn values_bytes(&self, rows: usize) -> usize {
        self.places(rows, 0, Tensor::NONE).bytes
    }

    /// Returns the launch that sets numbers to zero.
    pub(super) fn clear(&self, at: Address, len: usize) -> Work {
        let arguments = Arguments::new().address(at).number(len);
        self.grid
            .launch("clear", len.div_ceil(self.grid.threads), arguments)
    }

    /// Returns whether kernels add up a parameter's gradient, which must be 0 before; products overwrite theirs.
    pub(super) fn adds_up(&self, parameter: usize) -> bool {
        let nodes = &self.architecture.graph.nodes;
        let dense = nodes.iter().any(|node| {
            let Operation::Dense { bias, .. } = node.operation else {
                return false;
            };
            (node.at..node.at + 1 + usize::from(bias)).contains(&parameter)
        });
        !dense
    }

    /// Returns the launches that write the ones behind values that dense layers read.
    pub(super) fn ones(&self, pass: &Pass<'_>) -> Vec<Work> {
        let values = self.sketch.ones();
        let work = values.map(|value| {
            let x = self.value(pass, value);
            let arguments = Arguments::new().tensor(x).number(x.width);
            self.grid.rows("ones", [pass.rows, x.lanes, 1], arguments)
        });
        work.collect()
    }

    pub(super) fn value(&self, pass: &Pass<'_>, value: Value) -> Tensor {
        let tensor = pass.places.values[value].expect("values have places");
        match self.architecture.graph.numbers == Some(value) {
            true => tensor.rows_from(pass.first),
            false => tensor,
        }
    }

    pub(super) fn delta(&self, pass: &Pass<'_>, value: Value) -> Tensor {
        pass.places.deltas[value].expect("gradients that are sought have places")
    }

    /// Returns the output of each lane, before the output's activation.
    pub(super) fn output(&self, pass: &Pass<'_>) -> Tensor {
        self.value(pass, self.architecture.graph.members[0])
    }

    /// Returns the gradient by that output.
    pub(super) fn output_delta(&self, pass: &Pass<'_>) -> Tensor {
        self.delta(pass, self.architecture.graph.members[0])
    }

    /// Returns the launch that applies the output's activation to the outputs of each lane, or to their `mean`.
    pub(super) fn activate(&self, z: Tensor, rows: usize, mean: bool, to: Address) -> Work {
        let arguments = Arguments::new()
            .tensor(z)
            .number(self.sketch.lanes)
            .flag(mean)
            .sigmoid(self)
            .address(to);
        let of = [rows, 1, self.architecture.outputs];
        self.grid.rows("outputs", of, arguments)
    }

    /// Returns the numeric input, if there is one.
    fn numbers(&self, pass: &Pass<'_>) -> Tensor {
        let numbers = self.architecture.graph.numbers;
        numbers.map_or(Tensor::NONE, |value| self.value(pass, value))
    }

    pub(super) fn codes(&self, pass: &Pass<'_>) -> Address {
        pass.batch.codes + 4 * (pass.first * self.architecture.categorical) as u64
    }

    pub(super) fn at(&self, base: Address, parameter: usize) -> Address {
        base + 4 * self.layout.start(parameter) as u64
    }

    /// Returns the node of batch norm's scale and shift, if there is one.
    fn affine(&self) -> Option<(&Planned, &Node)> {
        let nodes = self.sketch.nodes.iter();
        let mut nodes = nodes.map(|planned| (planned, self.node(planned)));
        nodes.find(|(_, node)| node.operation == Operation::Affine)
    }

    pub(super) fn node(&self, planned: &Planned) -> &Node {
        &self.architecture.graph.nodes[planned.node]
    }

    /// Returns the launches that normalise and scale numbers and, if it `picks`, look up codes.
    fn enter(&self, pass: &Pass<'_>, picks: bool) -> Vec<Work> {
        let graph = &self.architecture.graph;
        let numbers = self.numbers(pass);
        let mut work = Vec::new();
        let picked = self
            .embeddings
            .as_ref()
            .filter(|_| picks)
            .zip(graph.embeddings)
            .map(|(picks, value)| (picks, self.value(pass, value)));
        let columns = picked.map_or(0, |(picks, _)| picks.columns);
        let affine = self.affine();
        let normalises = affine.is_some() || pass.statistics.is_some();
        let width = columns * self.sketch.lanes + if normalises { numbers.width } else { 0 };
        if width > 0 {
            let at = |offset| affine.map_or(0, |(_, node)| self.at(pass.weights, node.at + offset));
            let scaled = affine.map_or(Tensor::NONE, |(_, node)| self.value(pass, node.to));
            let table = picked.map_or(0, |(picks, _)| self.at(pass.weights, picks.parameter));
            let arguments = Arguments::new()
                .table(picked.map(|(picks, _)| picks))
                .number(self.sketch.lanes)
                .address(self.codes(pass))
                .number(self.architecture.categorical)
                .address(table)
                .tensor(picked.map_or(Tensor::NONE, |(_, tensor)| tensor))
                .tensor(numbers)
                .number(numbers.width)
                .address(pass.statistics.unwrap_or(0))
                .address(at(0))
                .address(at(1))
                .number(affine.map_or(0, |(planned, _)| planned.stride))
                .tensor(scaled);
            work.push(self.grid.rows("enter", [pass.rows, 1, width], arguments));
        }
        let factors = self.factor_table.as_ref().filter(|_| picks);
        if let Some((picks, value)) = factors.zip(graph.factors) {
            let to = self.value(pass, value);
            let arguments = Arguments::new()
                .table(Some(picks))
                .address(self.codes(pass))
                .number(self.architecture.categorical)
                .address(self.at(pass.weights, picks.parameter))
                .tensor(to);
            work.push(self.grid.rows("pick", [pass.rows, 1, to.width], arguments));
        }
        work
    }

    /// Returns the forward pass, from the rows of a batch to the output of each lane.
    pub(super) fn forward(&self, pass: &Pass<'_>) -> Vec<Work> {
        let mut work = self.enter(pass, true);
        for (at, planned) in self.sketch.nodes.iter().enumerate() {
            self.node_forward(pass, at, planned, &mut work);
        }
        work
    }

    /// Returns the forward pass from a point of a path, where the values that move are given.
    pub(super) fn forward_from_point(&self, pass: &Pass<'_>) -> Vec<Work> {
        let mut work = self.enter(pass, false);
        for (at, planned) in self.sketch.nodes.iter().enumerate() {
            if !moves(self.node(planned)) {
                self.node_forward(pass, at, planned, &mut work);
            }
        }
        work
    }

    fn node_forward(&self, pass: &Pass<'_>, at: usize, planned: &Planned, work: &mut Vec<Work>) {
        let node = self.node(planned);
        let y = self.value(pass, node.to);
        let x = |at: usize| self.value(pass, node.from[at]);
        let parameter = |offset: usize| self.at(pass.weights, node.at + offset);
        let of = [pass.rows, planned.lanes, y.width];
        let rows = |kernel, arguments| self.grid.rows(kernel, of, arguments);
        match &node.operation {
            Operation::Dense {
                bias,
                relu,
                dropout,
            } => {
                let x = x(0);
                work.push(Work::Product(Product {
                    a: operand(x),
                    b: Operand {
                        at: parameter(0),
                        ld: y.width,
                        lane: planned.stride,
                        transposed: false,
                    },
                    c: operand(y),
                    sizes: [pass.rows, y.width, x.width + usize::from(*bias)],
                    lanes: planned.lanes,
                    add: false,
                    factors: self.factors,
                }));
                if *relu || (dropout.is_some() && pass.drops) {
                    let arguments = Arguments::new().tensor(y);
                    let arguments = arguments.mask(self, pass, *dropout).flag(*relu);
                    work.push(rows("dense", arguments));
                }
            }
            Operation::Activation(function) => {
                let arguments = Arguments::new().tensor(x(0)).tensor(y);
                work.push(rows("activate", arguments.number(kind(*function))));
            }
            Operation::Dropout(place) => {
                let arguments = Arguments::new().tensor(x(0)).tensor(y);
                let arguments = arguments.mask(self, pass, Some(*place)).flag(false);
                work.push(rows("drop", arguments));
            }
            Operation::LayerNorm => {
                let arguments = Arguments::new()
                    .tensor(x(0))
                    .tensor(y)
                    .address(parameter(0))
                    .address(parameter(1))
                    .number(planned.stride)
                    .address(pass.places.scratch[at]);
                work.push(self.grid.block_a_row("layer_norm", of, arguments));
            }
            Operation::Periodic => {
                let arguments = Arguments::new().tensor(x(0)).tensor(y);
                let arguments = (0..4).fold(arguments, |all, at| all.address(parameter(at)));
                let arguments = arguments
                    .number(planned.stride)
                    .number(FREQUENCIES)
                    .number(PERIODIC_WIDTH - 1);
                let of = [pass.rows, planned.lanes, x(0).width];
                work.push(self.grid.rows("periodic", of, arguments));
            }
            Operation::PiecewiseLinear(bins) => {
                let (edges, counts) = self.bins[at].as_ref().expect("bins have edges");
                let arguments = Arguments::new()
                    .tensor(x(0))
                    .tensor(y)
                    .address(edges.at())
                    .address(counts.at())
                    .number(bins.most())
                    .number(PIECEWISE_WIDTH);
                let arguments = (0..3).fold(arguments, |all, at| all.address(parameter(at)));
                work.push(rows("piecewise", arguments.number(planned.stride)));
            }
            Operation::Concat => {
                let mut first = 0;
                for from in &node.from {
                    let x = self.value(pass, *from);
                    if !self.sketch.is_within(self.sketch.same(*from), node.to) {
                        let to = y.columns(first, x.width);
                        let arguments = Arguments::new().tensor(x).tensor(to).flag(false);
                        let of = [pass.rows, planned.lanes, x.width];
                        work.push(self.grid.rows("copy", of, arguments));
                    }
                    first += x.width;
                }
            }
            Operation::Add => {
                let arguments = Arguments::new().tensor(x(0)).tensor(x(1)).tensor(y);
                work.push(rows("sum", arguments));
            }
            Operation::Multiply => {
                let arguments = Arguments::new().tensor(x(0)).tensor(x(1)).tensor(y);
                work.push(rows("multiply", arguments.flag(false)));
            }
            Operation::Interactions {
                factors,
                codes,
                numbers,
            } => {
                let place = usize::from(*codes);
                let optional = |is: bool, at: usize| if is { x(at) } else { Tensor::NONE };
                let of_numbers = optional(*numbers, place);
                let arguments = Arguments::new()
                    .tensor(optional(*codes, 0))
                    .number(self.architecture.categorical)
                    .tensor(of_numbers)
                    .number(of_numbers.width)
                    .address(if *numbers { parameter(0) } else { 0 })
                    .number(*factors)
                    .tensor(y)
                    .address(pass.places.scratch[at]);
                work.push(rows("interact", arguments));
            }
            Operation::Linear { bias } => {
                let linear = self.linear(node, *bias);
                let [values, numbers, bias] = linear.map(|at| at.map_or(0, parameter));
                let of_numbers = node.from.first().map_or(Tensor::NONE, |_| x(0));
                let arguments = Arguments::new()
                    .address(self.codes(pass))
                    .number(self.architecture.categorical)
                    .address(values)
                    .tensor(of_numbers)
                    .number(of_numbers.width)
                    .address(numbers)
                    .address(bias)
                    .tensor(y);
                work.push(rows("linear", arguments));
            }
            // `enter` computes the first, and the kernels of outputs the second.
            Operation::Affine | Operation::Mean => {}
            Operation::Custom(_) => self.call_forward(pass, at, planned, work),
            Operation::Columns(_) => unreachable!("no plan has it"),
        }
    }

    /// Returns the addresses of the linear part's weights of codes and of numbers; 0 where there are none.
    pub(super) fn linear_weights(&self, pass: &Pass<'_>) -> [Address; 2] {
        let Some((node, bias)) = self.architecture.graph.linear_node() else {
            return [0; 2];
        };
        let [values, numbers, _] = self.linear(node, bias);
        let weights = |at: usize| self.at(pass.weights, node.at + at);
        [values, numbers].map(|at| at.map_or(0, weights))
    }

    /// Returns the offsets of the linear part's parameters: codes, numbers and bias.
    fn linear(&self, node: &Node, bias: bool) -> [Option<usize>; 3] {
        let mut next = 0;
        let mut place = |is: bool| {
            let at = is.then_some(next);
            next += usize::from(is);
            at
        };
        [
            place(self.architecture.categorical > 0),
            place(!node.from.is_empty()),
            place(bias),
        ]
    }

    /// Appends the backward pass, from the gradient by each lane's output to that of each parameter, which is added to the
    /// one of earlier pieces if `adds`. Returns, for each parameter, after how many parts of the work its gradient is
    /// complete.
    pub(super) fn backward(
        &self,
        work: &mut Vec<Work>,
        pass: &Pass<'_>,
        gradient: Address,
        adds: bool,
    ) -> Vec<usize> {
        let mut back = Backward::new(self, pass, Some(gradient));
        back.adds = adds;
        back.work = std::mem::take(work);
        for (at, planned) in self.sketch.nodes.iter().enumerate().rev() {
            if back.given[self.node(planned).to] {
                back.node(at, planned);
                back.complete(planned);
            }
        }
        back.entered();
        let Backward {
            work: all, ends, ..
        } = back;
        *work = all;
        // The rest, such as tables, is complete in the end.
        ends.into_iter().map(|end| end.min(work.len())).collect()
    }

    /// Returns the backward pass to a point of a path: the gradients by the entered values that move are added to those
    /// of earlier points.
    pub(super) fn backward_to_point(
        &self,
        pass: &Pass<'_>,
        entered: impl Iterator<Item = Value>,
    ) -> Vec<Work> {
        let mut back = Backward::new(self, pass, None);
        entered.for_each(|value| back.given[value] = true);
        for (at, planned) in self.sketch.nodes.iter().enumerate().rev() {
            let node = self.node(planned);
            if back.given[node.to] && !moves(node) {
                back.node(at, planned);
            }
        }
        back.work
    }
}

/// Returns whether a node's value moves along paths, instead of the numbers that it is computed from.
fn moves(node: &Node) -> bool {
    matches!(
        node.operation,
        Operation::PiecewiseLinear(_) | Operation::Linear { .. }
    )
}

/// Backward pass under construction.
struct Backward<'a> {
    layers: &'a Layers,
    pass: &'a Pass<'a>,
    /// Gradient by the parameters, if it is wanted.
    gradient: Option<Address>,
    adds: bool,
    /// Marks of the values whose gradient was written.
    given: Vec<bool>,
    work: Vec<Work>,
    /// Length of the work once the gradient by each parameter was complete.
    ends: Vec<usize>,
}

impl<'a> Backward<'a> {
    fn new(layers: &'a Layers, pass: &'a Pass<'a>, gradient: Option<Address>) -> Self {
        let graph = &layers.architecture.graph;
        let mut given = vec![false; graph.widths.len()];
        given[layers.sketch.same(graph.members[0])] = true;
        Self {
            layers,
            pass,
            gradient,
            adds: false,
            given,
            work: Vec::new(),
            ends: vec![usize::MAX; layers.architecture.parameters().len()],
        }
    }
}

impl Backward<'_> {
    /// Notes that the gradients by a node's parameters, of all lanes, are complete, unless that was noted.
    fn complete(&mut self, planned: &Planned) {
        let graph = &self.layers.architecture.graph;
        // `entered` computes the gradients by batch norm's scale and shift.
        if self.layers.node(planned).operation == Operation::Affine {
            return;
        }
        for lane in 0..planned.lanes {
            // Nodes with parameters of their own are those of members.
            let node = planned.node
                + if planned.stride > 0 {
                    lane * graph.each
                } else {
                    0
                };
            for end in &mut self.ends[graph.parameters_of(node)] {
                *end = self.work.len().min(*end);
            }
        }
    }

    /// Returns the place of the gradient by a value, if it is needed, and whether another reader has written to it.
    fn give(&mut self, value: Value) -> Option<(Tensor, bool)> {
        let value = self.layers.sketch.same(value);
        if !self.layers.sketch.sought[value] {
            return None;
        }
        let add = std::mem::replace(&mut self.given[value], true);
        Some((self.layers.delta(self.pass, value), add))
    }

    /// Passes the gradient of lanes on unchanged, summed where they share the value.
    fn pass_on(&mut self, value: Value, dy: Tensor, lanes: usize) {
        let Some((dx, add)) = self.give(value) else {
            return;
        };
        let (grid, rows) = (self.layers.grid, self.pass.rows);
        let arguments = Arguments::new().tensor(dy).tensor(dx).flag(add);
        self.work.push(match dx.lanes < lanes {
            true => grid.rows("gather_lanes", [rows, 1, dx.width], arguments.number(lanes)),
            false => grid.rows("copy", [rows, lanes, dx.width], arguments),
        });
    }

    fn node(&mut self, at: usize, planned: &Planned) {
        let (layers, pass) = (self.layers, self.pass);
        let (grid, node) = (layers.grid, layers.node(planned));
        let (y, dy) = (layers.value(pass, node.to), layers.delta(pass, node.to));
        let x = |at: usize| layers.value(pass, node.from[at]);
        let weight = |offset: usize| layers.at(pass.weights, node.at + offset);
        let trains = self.gradient.is_some();
        let gradient = self.gradient.unwrap_or(0);
        let sums = |offset: usize| layers.at(gradient, node.at + offset);
        let lanes = planned.lanes;
        let of = [pass.rows, lanes, y.width];
        match &node.operation {
            Operation::Dense {
                bias,
                relu,
                dropout,
            } => {
                if *relu {
                    let dropouts = &layers.architecture.graph.dropouts;
                    let share = dropout
                        .filter(|_| pass.drops)
                        .map_or(0.0, |at| dropouts[at].share);
                    let arguments = Arguments::new().tensor(y).tensor(dy);
                    let arguments = arguments.real((1.0 / (1.0 - share)) as f32);
                    self.work.push(grid.rows("dense_back", of, arguments));
                }
                let x = x(0);
                let transposed = |operand: Operand| Operand {
                    transposed: true,
                    ..operand
                };
                let kernel = |at| Operand {
                    at,
                    ld: y.width,
                    lane: planned.stride,
                    transposed: false,
                };
                let product = |a, b, c, sizes, add| {
                    Work::Product(Product {
                        a,
                        b,
                        c,
                        sizes,
                        lanes,
                        add,
                        factors: layers.factors,
                    })
                };
                if trains {
                    self.work.push(product(
                        transposed(operand(x)),
                        operand(dy),
                        kernel(sums(0)),
                        [x.width + usize::from(*bias), y.width, pass.rows],
                        self.adds,
                    ));
                    // Its sum can begin before the gradient by the inputs is computed.
                    self.complete(planned);
                }
                if let Some((dx, add)) = self.give(node.from[0]) {
                    assert_eq!(dx.lanes, lanes, "lanes do not share what is trained");
                    self.work.push(product(
                        operand(dy),
                        transposed(kernel(weight(0))),
                        operand(dx),
                        [pass.rows, x.width, y.width],
                        add,
                    ));
                }
            }
            Operation::Activation(function) => {
                if let Some((dx, add)) = self.give(node.from[0]) {
                    let arguments = Arguments::new().tensor(x(0)).tensor(dy).tensor(dx);
                    let arguments = arguments.number(kind(*function)).flag(add);
                    self.work.push(grid.rows("activate_back", of, arguments));
                }
            }
            Operation::Dropout(place) => {
                if let Some((dx, add)) = self.give(node.from[0]) {
                    let arguments = Arguments::new().tensor(dy).tensor(dx);
                    let arguments = arguments.mask(layers, pass, Some(*place)).flag(add);
                    self.work.push(grid.rows("drop", of, arguments));
                }
            }
            Operation::LayerNorm => {
                let moments = pass.places.scratch[at];
                let arguments = Arguments::new()
                    .tensor(x(0))
                    .tensor(dy)
                    .address(moments)
                    .address(sums(0))
                    .address(sums(1))
                    .number(planned.stride);
                if trains {
                    let sum = grid.columns("layer_norm_sums", of, CHUNK, arguments);
                    self.work.push(sum);
                }
                if let Some((dx, add)) = self.give(node.from[0]) {
                    let arguments = Arguments::new()
                        .tensor(x(0))
                        .tensor(dy)
                        .tensor(dx)
                        .address(weight(0))
                        .number(planned.stride)
                        .address(moments)
                        .flag(add);
                    let back = grid.block_a_row("layer_norm_back", of, arguments);
                    self.work.push(back);
                }
            }
            Operation::Periodic => {
                let numbers = x(0).width;
                let arguments = Arguments::new().tensor(x(0)).tensor(dy);
                let arguments = (0..3).fold(arguments, |all, at| all.address(weight(at)));
                let arguments = arguments
                    .number(planned.stride)
                    .number(FREQUENCIES)
                    .number(PERIODIC_WIDTH - 1);
                let arguments = (0..4).fold(arguments, |all, at| all.address(sums(at)));
                let of = [pass.rows, lanes, numbers * FREQUENCIES];
                if trains {
                    self.work
                        .push(grid.columns("periodic_sums", of, CHUNK, arguments));
                }
                if let Some((dx, add)) = self.give(node.from[0]) {
                    let arguments = Arguments::new().tensor(x(0)).tensor(dy).tensor(dx);
                    let arguments = (0..3).fold(arguments, |all, at| all.address(weight(at)));
                    let arguments = arguments
                        .number(planned.stride)
                        .number(FREQUENCIES)
                        .number(PERIODIC_WIDTH - 1)
                        .flag(add);
                    let of = [pass.rows, lanes, numbers];
                    self.work.push(grid.rows("periodic_back", of, arguments));
                }
            }
            Operation::PiecewiseLinear(bins) => {
                let (edges, counts) = layers.bins[at].as_ref().expect("bins have edges");
                let arguments = Arguments::new()
                    .tensor(x(0))
                    .tensor(dy)
                    .address(edges.at())
                    .address(counts.at())
                    .number(bins.most())
                    .number(PIECEWISE_WIDTH);
                let arguments = (0..3).fold(arguments, |all, at| all.address(sums(at)));
                let arguments = arguments.number(planned.stride);
                self.work
                    .push(grid.columns("piecewise_sums", of, CHUNK_OF_BINS, arguments));
            }
            Operation::Concat => {
                let mut first = 0;
                for from in &node.from {
                    let width = layers.value(pass, *from).width;
                    let value = layers.sketch.same(*from);
                    match layers.sketch.is_within(value, node.to) {
                        true => self.given[value] = layers.sketch.sought[value],
                        false => self.pass_on(value, dy.columns(first, width), lanes),
                    }
                    first += width;
                }
            }
            Operation::Add => {
                for from in &node.from {
                    self.pass_on(*from, dy, lanes);
                }
            }
            Operation::Multiply => {
                for (at, other) in [(0, 1), (1, 0)] {
                    if let Some((dx, add)) = self.give(node.from[at]) {
                        let arguments = Arguments::new().tensor(dy).tensor(x(other)).tensor(dx);
                        let arguments = arguments.flag(add);
                        self.work.push(grid.rows("multiply", of, arguments));
                    }
                }
            }
            Operation::Interactions {
                factors,
                codes,
                numbers,
            } => {
                let scratch = pass.places.scratch[at];
                let width = factors * y.width;
                if *codes && let Some((dx, add)) = self.give(node.from[0]) {
                    let arguments = Arguments::new()
                        .tensor(x(0))
                        .tensor(dy)
                        .tensor(dx)
                        .address(scratch)
                        .number(y.width)
                        .number(*factors)
                        .flag(add);
                    let of = [pass.rows, 1, dx.width];
                    self.work.push(grid.rows("interact_back", of, arguments));
                }
                let from = usize::from(*codes);
                if *numbers && let Some((dx, add)) = self.give(node.from[from]) {
                    let arguments = Arguments::new()
                        .tensor(x(from))
                        .tensor(dy)
                        .tensor(dx)
                        .address(weight(0))
                        .address(scratch)
                        .number(y.width)
                        .number(*factors)
                        .flag(add);
                    let of = [pass.rows, 1, dx.width];
                    self.work.push(grid.rows("interact_numbers", of, arguments));
                }
                if *numbers && trains {
                    let x = x(from);
                    let arguments = Arguments::new()
                        .tensor(x)
                        .tensor(dy)
                        .address(weight(0))
                        .address(scratch)
                        .number(y.width)
                        .number(*factors)
                        .address(sums(0));
                    let of = [pass.rows, 1, x.width * width];
                    self.work
                        .push(grid.columns("interact_sums", of, CHUNK, arguments));
                }
            }
            Operation::Linear { bias } => {
                let [values, numbers, bias] = layers.linear(node, *bias);
                if let Some(values) = values {
                    let categorical = layers.architecture.categorical;
                    let arguments = Arguments::new()
                        .address(layers.codes(pass))
                        .number(categorical)
                        .tensor(dy)
                        .number(y.width)
                        .address(sums(values));
                    let of = [pass.rows, 1, categorical * y.width];
                    self.work.push(grid.rows("linear_values", of, arguments));
                }
                if numbers.is_some() || bias.is_some() {
                    let x = node.from.first().map_or(Tensor::NONE, |_| x(0));
                    let arguments = Arguments::new()
                        .tensor(x)
                        .tensor(dy)
                        .number(x.width)
                        .number(y.width)
                        .address(numbers.map_or(0, sums))
                        .address(bias.map_or(0, sums));
                    let of = [pass.rows, 1, (x.width + 1) * y.width];
                    self.work
                        .push(grid.columns("linear_sums", of, CHUNK, arguments));
                }
            }
            // `entered` computes the gradients of its parameters.
            Operation::Affine => {
                if let Some((dx, add)) = self.give(node.from[0]) {
                    let arguments = Arguments::new().tensor(dy).tensor(dx).address(weight(0));
                    let arguments = arguments.number(planned.stride).flag(add);
                    self.work.push(grid.rows("scale_back", of, arguments));
                }
            }
            // It passes no gradient on.
            Operation::Mean => {}
            Operation::Custom(_) => {
                let gradient = self.gradient.expect("no path leads through a custom layer");
                let from = node.from[0];
                let wanted = layers.sketch.sought[layers.sketch.same(from)];
                let place = (at, planned);
                let dx = layers.call_back(pass, place, gradient, wanted, &mut self.work);
                self.pass_on(from, dx, lanes);
            }
            Operation::Columns(_) => unreachable!("no plan has it"),
        }
    }

    /// Adds the gradients of tables, and of batch norm's scale and shift.
    fn entered(&mut self) {
        let (layers, pass) = (self.layers, self.pass);
        let gradient = self.gradient.expect("a network that trains has a gradient");
        let graph = &layers.architecture.graph;
        let lanes = layers.sketch.lanes;
        let given = |value: Option<Value>| value.filter(|value| self.given[*value]);
        let picked = layers
            .embeddings
            .as_ref()
            .zip(given(graph.embeddings))
            .map(|(picks, value)| (picks, layers.delta(pass, value)));
        let affine = layers.affine().filter(|(_, node)| self.given[node.to]);
        if picked.is_some() || affine.is_some() {
            let numbers = layers.numbers(pass);
            let sums = |offset| affine.map_or(0, |(_, node)| layers.at(gradient, node.at + offset));
            let scaled = affine.map_or(Tensor::NONE, |(_, node)| layers.delta(pass, node.to));
            let table = picked.map_or(0, |(picks, _)| layers.at(gradient, picks.parameter));
            let arguments = Arguments::new()
                .number(pass.rows)
                .number(lanes)
                .number(CHUNK)
                .number(numbers.width)
                .table(picked.map(|(picks, _)| picks))
                .address(layers.codes(pass))
                .number(layers.architecture.categorical)
                .address(table)
                .tensor(picked.map_or(Tensor::NONE, |(_, tensor)| tensor))
                .tensor(numbers)
                .tensor(scaled)
                .address(sums(0))
                .address(sums(1))
                .number(affine.map_or(0, |(planned, _)| planned.stride));
            let picks = picked.map_or(0, |(picks, _)| picks.columns) * lanes * pass.rows;
            let columns = affine.map_or(0, |_| numbers.width * lanes);
            let threads = picks + columns * pass.rows.div_ceil(CHUNK);
            let blocks = threads.div_ceil(layers.grid.threads);
            self.work
                .push(layers.grid.launch("entered", blocks, arguments));
        }
        if let Some((picks, value)) = layers.factor_table.as_ref().zip(given(graph.factors)) {
            let delta = layers.delta(pass, value);
            let arguments = Arguments::new()
                .table(Some(picks))
                .address(layers.codes(pass))
                .number(layers.architecture.categorical)
                .address(layers.at(gradient, picks.parameter))
                .tensor(delta);
            let of = [pass.rows, 1, delta.width];
            self.work.push(layers.grid.rows("pick_sums", of, arguments));
        }
    }
}

fn operand(tensor: Tensor) -> Operand {
    Operand {
        at: tensor.at,
        ld: tensor.ld,
        lane: tensor.lane,
        transposed: false,
    }
}

/// Returns the number of a function in `kernels.cu`.
fn kind(function: Activation) -> usize {
    let all = Activation::ALL.iter();
    let found = all.map(|(_, one)| one).position(|one| *one == function);
    found.expect("all functions are listed")
}
