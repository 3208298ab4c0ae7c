//! The network in host memory: a hand-written forward and backward pass, on a rank's threads.
//!
//! Compared with tensors and a tape, a step allocates little, does not zero memory that it overwrites, applies bias and
//! ReLU while the product is in the cache, and computes every gradient in the buffer that it is sent from. The rest is
//! [products of matrices](super::matmul).
//!
//! Threads divide the rows of a batch, or the columns where rows are summed, so that any number of them gives the same
//! bits. Each [operation](Operation) has its arithmetic in its own file. Shapes: B rows, C categorical features and N
//! numbers, K outputs; a value of width W is `[B × W]`.

mod activation;
mod backward;
mod buckets;
mod catch_up;
mod dense;
mod functions;
mod interactions;
mod layer_norm;
mod linear;
mod periodic;
mod piecewise_linear;
mod row_set;
mod rows;
mod sparse;
mod tables;
mod update;

use std::ops::{DerefMut, Range};

use volley_proto::spec::Output;

pub(super) use self::backward::{Wanted, backward};
use self::buckets::Buckets;
pub(crate) use self::catch_up::is_linear;
use self::sparse::{Picked, take};
use self::update::{Clip, OfParameter, kinds};
use super::compute::Sparse;
use super::graph::{Graph, Node, Operation, Value};
use super::matmul::{Epilogue, Matrix, Workspace};
use super::{Architecture, Compute, CustomBatch, Input, Piece, Update, first_non_finite};
use crate::Result;
use crate::device::Factors;
use crate::threads::Threads;

/// Approximate cost of a random number, a cosine or an exponential, in simple operations.
const FUNCTION: usize = 4;

/// Weights that a thread updates at once: with gradient and optimizer state they fit into a second-level cache.
const UPDATED: usize = 1 << 15;

/// Threads of a rank, with the precision of their products.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostDevice {
    pub(crate) threads: Threads,
    pub(crate) factors: Factors,
}

impl HostDevice {
    /// Returns threads that multiply in `f32`.
    pub(crate) fn exact(threads: &Threads) -> Self {
        Self {
            threads: threads.clone(),
            factors: Factors::F32,
        }
    }
}

/// Network with its weights.
#[derive(Debug)]
pub(crate) struct Host {
    /// Description of the network; while a step's rows are picked, its tables are those rows.
    architecture: Architecture,
    /// Weights, in the order of [`Architecture::parameters`].
    weights: Vec<Vec<f32>>,
    /// Picked table rows, for sparse steps.
    picked: Option<Picked>,
    scratch: Scratch,
    /// Accumulated gradient of a step's micro-batches, while there are more to come.
    sums: Vec<f64>,
    /// Sum of squares of the step's gradient, once it was found to be finite.
    square: Option<f64>,
}

/// Memory kept between batches.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Values of the graph for a batch.
    pub(super) values: Vec<Vec<f32>>,
    /// Masks of a batch, where there are any.
    masks: Vec<Vec<f32>>,
    /// Gradient by each value that needs one, as far as it is known.
    pub(super) deltas: Vec<Option<Vec<f32>>>,
    /// Spare buffers for gradients.
    spare: Vec<Vec<f32>>,
    workspace: Workspace,
    /// Threads of the rank.
    threads: Threads,
}

/// Computes the network's outputs, `[B × K]`, with weights that others may use meanwhile.
pub(crate) fn predict(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
) -> Vec<f32> {
    enter(architecture, weights, input, scratch);
    forward(architecture, weights, input, scratch, true);
    activated(
        architecture,
        scratch.values[architecture.graph.output].clone(),
    )
}

/// Computes the outputs of each of the M members, `[B × M·K]`.
fn predict_by_member(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
) -> Vec<f32> {
    enter(architecture, weights, input, scratch);
    forward(architecture, weights, input, scratch, true);
    let members = &architecture.graph.members;
    let mut outputs = vec![0.0; input.rows * members.len() * architecture.outputs];
    for (row, outputs) in outputs.chunks_exact_mut(architecture.outputs).enumerate() {
        let (row, member) = (row / members.len(), row % members.len());
        let of_member = &scratch.values[members[member]];
        outputs.copy_from_slice(&of_member[row * outputs.len()..][..outputs.len()]);
    }
    activated(architecture, outputs)
}

/// Applies the output's activation.
fn activated(architecture: &Architecture, mut outputs: Vec<f32>) -> Vec<f32> {
    if let Some(scale) = sigmoid_scale(architecture) {
        let outputs = outputs.iter_mut();
        outputs.for_each(|y| *y = scale / (1.0 + (-*y).exp()));
    }
    outputs
}

/// Returns the scale of the output's sigmoid, if it has one.
pub(in crate::network) fn sigmoid_scale(architecture: &Architecture) -> Option<f32> {
    match architecture.output {
        Output::Identity => None,
        Output::Sigmoid => Some(1.0),
        Output::ScaledSigmoid => Some(architecture.output_scale as f32),
    }
}

/// Computes the input values, which are embeddings, factors and numbers, and the masks.
fn enter(architecture: &Architecture, weights: &[Vec<f32>], input: &Input, scratch: &mut Scratch) {
    let graph = &architecture.graph;
    let threads = &scratch.threads;
    scratch.masks.resize_with(input.dropout.len(), Vec::new);
    for (mask, drawn) in input.dropout.iter().zip(&mut scratch.masks) {
        let Some(mask) = mask else {
            drawn.clear();
            continue;
        };
        drawn.resize(mask.keys.len() * mask.units, 0.0);
        threads.rows(drawn, mask.units, FUNCTION, |rows, drawn| {
            mask.draw(rows, drawn);
        });
    }
    scratch.values.resize_with(graph.widths.len(), Vec::new);
    for (value, table) in graph.looked_up() {
        let picked = &mut scratch.values[value];
        tables::pick(table, &weights[table.at], input, picked, threads);
    }
    if let Some(numbers) = graph.numbers {
        let value = &mut scratch.values[numbers];
        value.clear();
        value.extend_from_slice(&input.continuous);
    }
}

/// Computes the other values. Unless `whole`, it skips the linear part and piecewise linear embeddings, whose values
/// are given for rows on the path from a baseline.
pub(super) fn forward(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
    scratch: &mut Scratch,
    whole: bool,
) {
    let graph = &architecture.graph;
    let rows = input.rows;
    let Scratch {
        values,
        masks,
        workspace,
        threads,
        ..
    } = scratch;
    let threads = &*threads;
    for node in &graph.nodes {
        let width = graph.widths[node.to];
        let weights = &weights[node.at..];
        let moves = matches!(
            node.operation,
            Operation::Linear { .. } | Operation::PiecewiseLinear(_)
        );
        if moves && !whole {
            continue;
        }
        let mut y = std::mem::take(&mut values[node.to]);
        y.resize(rows * width, 0.0);
        let x = |at: usize| values[node.from[at]].as_slice();
        match &node.operation {
            Operation::Dense {
                bias,
                relu,
                dropout,
            } => {
                let from = graph.widths[node.from[0]];
                let epilogue = Epilogue {
                    bias: bias.then(|| weights[1].as_slice()),
                    relu: *relu,
                };
                let x_bxf = Matrix::new(x(0), rows, from);
                let kernel_fxw = Matrix::new(&weights[0], from, width);
                workspace.multiply(threads, &mut y, x_bxf, kernel_fxw, epilogue);
                if let Some(place) = dropout {
                    mask(threads, &mut y, masks, *place);
                }
            }
            Operation::Activation(function) => threads.rows(&mut y, 1, FUNCTION, |own, y| {
                activation::forward(*function, &x(0)[own], y);
            }),
            Operation::Dropout(place) => {
                threads.rows(&mut y, 1, 1, |own, y| y.copy_from_slice(&x(0)[own]));
                mask(threads, &mut y, masks, *place);
            }
            Operation::LayerNorm => threads.rows(&mut y, width, 4, |own, y| {
                layer_norm::forward(weights, of_rows(x(0), own, width), y);
            }),
            Operation::Affine => threads.rows(&mut y, width, 1, |own, y| {
                let x = of_rows(x(0), own, width).chunks_exact(width);
                for (y, x) in y.chunks_exact_mut(width).zip(x) {
                    let scales = weights[0].iter().zip(&weights[1]);
                    for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(scales) {
                        *y = x * gamma + beta;
                    }
                }
            }),
            Operation::Periodic => {
                let from = graph.widths[node.from[0]];
                threads.rows(&mut y, width, FUNCTION, |own, y| {
                    periodic::forward(weights, of_rows(x(0), own, from), y);
                });
            }
            Operation::PiecewiseLinear(bins) => {
                let from = graph.widths[node.from[0]];
                threads.rows(&mut y, width, FUNCTION, |own, y| {
                    piecewise_linear::forward(bins, weights, of_rows(x(0), own, from), y);
                });
            }
            Operation::Concat => threads.rows(&mut y, width, 1, |own, y| {
                for (from, columns) in parts(graph, node) {
                    let x = of_rows(&values[from], own.clone(), columns.len());
                    let rows = x.chunks_exact(columns.len());
                    for (y, x) in y.chunks_exact_mut(width).zip(rows) {
                        y[columns.clone()].copy_from_slice(x);
                    }
                }
            }),
            Operation::Columns(columns) => threads.rows(&mut y, width, 1, |own, y| {
                let from = graph.widths[node.from[0]];
                let rows = of_rows(x(0), own, from).chunks_exact(from);
                for (y, x) in y.chunks_exact_mut(width).zip(rows) {
                    let mut rest = y;
                    for columns in columns {
                        let (part, others) = rest.split_at_mut(columns.len());
                        part.copy_from_slice(&x[columns.clone()]);
                        rest = others;
                    }
                }
            }),
            Operation::Add => threads.rows(&mut y, 1, 1, |own, y| {
                let terms = y.iter_mut().zip(x(0)[own.clone()].iter().zip(&x(1)[own]));
                terms.for_each(|(y, (a, b))| *y = a + b);
            }),
            Operation::Mean => threads.rows(&mut y, 1, node.from.len(), |own, y| {
                let share = (node.from.len() as f32).recip();
                y.copy_from_slice(&x(0)[own.clone()]);
                (1..node.from.len()).for_each(|at| add(y, &x(at)[own.clone()]));
                y.iter_mut().for_each(|y| *y *= share);
            }),
            Operation::Multiply => threads.rows(&mut y, 1, 1, |own, y| {
                let factors = y.iter_mut().zip(x(0)[own.clone()].iter().zip(&x(1)[own]));
                factors.for_each(|(y, (a, b))| *y = a * b);
            }),
            Operation::Interactions {
                factors,
                codes,
                numbers,
            } => {
                let of = interactions::Of {
                    outputs: width,
                    factors: *factors,
                    rows,
                    codes: codes.then(|| x(0)),
                    numbers: numbers.then(|| (x(usize::from(*codes)), weights[0].as_slice())),
                };
                of.forward(&mut y);
            }
            Operation::Linear { bias } => {
                y.fill(0.0);
                let places = linear::Places::new(architecture, *bias);
                linear::add_outputs(architecture, places, weights, input, &mut y);
            }
            Operation::Custom(custom) => {
                y.fill(0.0);
                let batch = CustomBatch {
                    rows,
                    x: x(0),
                    parameters: &weights[..custom.parameters],
                };
                custom.operation.forward(batch, &mut y);
            }
        }
        values[node.to] = y;
    }
}

/// Iterates over the inputs of a concatenation, with the columns of each.
fn parts<'a>(graph: &'a Graph, node: &'a Node) -> impl Iterator<Item = (Value, Range<usize>)> + 'a {
    let mut end = 0;
    node.from.iter().map(move |from| {
        let start = end;
        end += graph.widths[*from];
        (*from, start..end)
    })
}

fn add(sums: &mut [f32], terms: &[f32]) {
    sums.iter_mut().zip(terms).for_each(|(s, t)| *s += t);
}

fn multiply(products: &mut [f32], factors: &[f32]) {
    products.iter_mut().zip(factors).for_each(|(p, f)| *p *= f);
}

/// Returns some rows of numbers, which have this width.
fn of_rows(numbers: &[f32], rows: Range<usize>, width: usize) -> &[f32] {
    &numbers[rows.start * width..rows.end * width]
}

/// Multiplies by the mask of a dropout, if it is applied.
fn mask(threads: &Threads, x: &mut [f32], masks: &[Vec<f32>], dropout: usize) {
    if let Some(mask) = masks.get(dropout).filter(|mask| !mask.is_empty()) {
        threads.rows(x, 1, 1, |own, x| multiply(x, &mask[own]));
    }
}

impl Compute for Host {
    type Device = HostDevice;
    type Numbers = Vec<f32>;

    fn new(
        architecture: &Architecture,
        weights: Vec<Vec<f32>>,
        device: &HostDevice,
    ) -> Result<Self> {
        Ok(Self {
            architecture: architecture.clone(),
            weights,
            picked: None,
            scratch: Scratch {
                threads: device.threads.clone(),
                workspace: Workspace::new(device.factors),
                ..Scratch::default()
            },
            sums: Vec::new(),
            square: None,
        })
    }

    fn predict(&mut self, input: Input) -> Result<Vec<f32>> {
        self.assert_whole();
        let Self {
            architecture,
            weights,
            scratch,
            ..
        } = self;
        Ok(predict(architecture, weights, &input, scratch))
    }

    fn predict_by_member(&mut self, input: Input) -> Result<Vec<f32>> {
        self.assert_whole();
        let Self {
            architecture,
            weights,
            scratch,
            ..
        } = self;
        Ok(predict_by_member(architecture, weights, &input, scratch))
    }

    fn gradient(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        flat: &mut [f32],
    ) -> Result<()> {
        let whole = 0..flat.len();
        self.differentiate(input, slopes, piece, vec![(whole, flat)], &mut |_| ());
        Ok(())
    }

    fn buckets(&mut self) -> Vec<Range<usize>> {
        let order = order(&self.architecture, in_use(&self.picked).is_some());
        buckets::ranges(&self.architecture.graph, &order)
    }

    fn gradient_in_buckets<B: DerefMut<Target = [f32]>>(
        &mut self,
        input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        buckets: Vec<B>,
        done: &mut dyn FnMut(B),
    ) -> Result<()> {
        let ranges = self.buckets();
        assert_eq!(buckets.len(), ranges.len(), "the buckets are the network's");
        let buckets = ranges.into_iter().zip(buckets).collect();
        self.differentiate(input, slopes, piece, buckets, done);
        Ok(())
    }

    fn zero_gradient(&mut self, flat: &mut [f32]) -> Result<()> {
        flat.fill(0.0);
        Ok(())
    }

    fn read_gradient(&mut self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }

    fn write_gradient(&mut self, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn non_finite_gradient(&mut self, flat: &[f32]) -> Result<Option<f64>> {
        let square = square(flat, &self.scratch.threads);
        self.square = Some(square).filter(|square| square.is_finite());
        Ok(match self.square {
            Some(_) => None,
            None => first_non_finite(flat),
        })
    }

    fn apply(
        &mut self,
        update: &Update<'_>,
        slots: &mut [Vec<f32>],
        flat: &mut [f32],
    ) -> Result<()> {
        let Self {
            architecture,
            weights,
            picked,
            scratch: Scratch { threads, .. },
            square: known,
            ..
        } = self;
        let mut flat = &*flat;
        let known = known.take();
        let clip = Clip::new(update, || known.unwrap_or_else(|| square(flat, threads)));
        let mut rest: Vec<&mut [f32]> = slots.iter_mut().map(Vec::as_mut_slice).collect();
        let mut parts = Vec::new();
        let mut own: Vec<_> = weights.iter_mut().map(Some).collect();
        let picked = picked.as_mut().filter(|picked| picked.in_use());
        let mut order = order(architecture, picked.is_some());
        if picked.is_some() {
            // Tables, whose rows are not here, are the last.
            order.truncate(order.len() - architecture.tables().len());
        }
        for at in order {
            let penalized = architecture.parameters()[at].penalized;
            let weights = own[at].take().into_iter();
            for weights in weights.flat_map(|weights| weights.chunks_mut(UPDATED)) {
                let len = weights.len();
                let gradient = flat.split_off(..len).unwrap_or_default();
                parts.push((penalized, weights, gradient, take(&mut rest, len)));
            }
        }
        threads.each_of(parts, |_, (penalized, weights, gradient, slots)| {
            let numbers = kinds(weights, slots, update.kept.is_some());
            update::apply(
                &OfParameter::new(update, clip, penalized),
                numbers,
                gradient,
            );
        });
        if let Some(picked) = picked {
            picked.update(update, clip, flat, threads);
        }
        Ok(())
    }

    fn sparse(&mut self) -> Option<&mut dyn Sparse<Vec<f32>>> {
        Some(self)
    }

    fn upload(&self, numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }

    fn download(numbers: Vec<f32>) -> Result<Vec<f32>> {
        Ok(numbers)
    }

    fn values(&self) -> Result<Vec<Vec<f32>>> {
        self.assert_whole();
        Ok(self.weights.clone())
    }

    fn put(&mut self, values: &[Vec<f32>]) -> Result<()> {
        self.assert_whole();
        self.weights.clone_from_slice(values);
        Ok(())
    }
}

impl Host {
    /// Computes a micro-batch's gradient in buckets, accumulates it over the micro-batches of a step, and hands each
    /// bucket over once it is complete.
    fn differentiate<B: DerefMut<Target = [f32]>>(
        &mut self,
        mut input: Input,
        slopes: impl FnOnce(&[f32]) -> Vec<f32>,
        piece: Piece,
        buckets: Vec<(Range<usize>, B)>,
        done: &mut dyn FnMut(B),
    ) {
        let Self {
            architecture,
            weights,
            picked,
            scratch,
            sums,
            ..
        } = self;
        if let Some(picked) = in_use(picked) {
            picked.rename(&mut input.codes, &scratch.threads);
        }
        let outputs = predict_by_member(architecture, weights, &input, scratch);
        let mut slopes = slopes(&outputs);
        if let Some(scale) = sigmoid_scale(architecture) {
            let terms = slopes.iter_mut().zip(&outputs);
            terms.for_each(|(delta, y)| *delta *= y * (1.0 - y / scale));
        }
        let members = &architecture.graph.members;
        let deltas = members.iter().enumerate().map(|(at, member)| {
            let rows = slopes.chunks_exact(architecture.outputs);
            let own = rows.skip(at).step_by(members.len());
            (*member, own.flatten().copied().collect())
        });
        if piece.first && piece != Piece::WHOLE {
            sums.clear();
            sums.resize(weights.iter().map(Vec::len).sum(), 0.0);
        }
        let threads = scratch.threads.clone();
        let mut complete = |range: Range<usize>, mut numbers: B| {
            if piece != Piece::WHOLE {
                let sums = &mut sums[range.clone()];
                let flat = &mut numbers[..range.len()];
                threads.rows(sums, 1, 1, |own, sums| {
                    let terms = sums.iter_mut().zip(&flat[own]);
                    terms.for_each(|(sum, g)| *sum += f64::from(*g));
                });
                if piece.last {
                    threads.rows(flat, 1, 1, |own, flat| {
                        let gradient = flat.iter_mut().zip(&sums[own]);
                        gradient.for_each(|(g, sum)| *g = *sum as f32);
                    });
                }
            }
            done(numbers);
        };
        let order = order(architecture, in_use(picked).is_some());
        let mut gradients = Buckets::new(&architecture.graph, &order, buckets, &mut complete);
        let wanted = Wanted::Parameters(&mut gradients);
        backward(architecture, weights, &input, scratch, deltas, wanted);
        if piece.last {
            *sums = Vec::new();
        }
    }

    /// Asserts that no picked rows are in use: other rows would not be up to date, and codes mean picked rows.
    fn assert_whole(&self) {
        assert!(
            in_use(&self.picked).is_none(),
            "rows catch up before they are read"
        );
    }
}

impl Sparse<Vec<f32>> for Host {
    fn pick(&mut self, codes: &[Vec<u32>], slots: &mut [Vec<f32>]) -> usize {
        if self.picked.as_ref().is_some_and(Picked::is_full) {
            self.catch_up(slots);
        }
        let Self {
            architecture,
            weights,
            picked,
            scratch: Scratch { threads, .. },
            ..
        } = self;
        let picked = picked.get_or_insert_with(|| Picked::new(architecture));
        picked.pick(codes, architecture, weights, slots, threads);
        weights.iter().map(Vec::len).sum()
    }

    fn catch_up(&mut self, slots: &mut [Vec<f32>]) {
        if let Some(picked) = &mut self.picked {
            let Self {
                architecture,
                weights,
                scratch: Scratch { threads, .. },
                ..
            } = self;
            picked.put_together(architecture, weights, slots, threads);
        }
    }
}

/// Returns the sum of squares, the same for any number of threads; it is finite if all numbers are.
fn square(numbers: &[f32], threads: &Threads) -> f64 {
    let squares = threads.map(numbers.chunks(UPDATED).collect(), update::square);
    squares.iter().sum()
}

/// Returns the picked rows, if they are in use.
fn in_use(picked: &Option<Picked>) -> Option<&Picked> {
    picked.as_ref().filter(|picked| picked.in_use())
}

/// Returns the buckets of a flat gradient without picked rows.
pub(in crate::network) fn bucket_ranges(architecture: &Architecture) -> Vec<Range<usize>> {
    buckets::ranges(&architecture.graph, &order(architecture, false))
}

/// Returns the order of parameters in a flat gradient: while rows are picked, tables come last, as their length
/// changes.
fn order(architecture: &Architecture, picked: bool) -> Vec<usize> {
    let tables = architecture.tables();
    let is_last = |at: &usize| picked && tables.iter().any(|table| table.at == *at);
    let parameters = 0..architecture.parameters().len();
    let (last, first): (Vec<_>, Vec<_>) = parameters.partition(is_last);
    [first, last].concat()
}

/// Computes the linear part's terms of the outputs, `[B × K]`; 0 if there is none.
pub(super) fn linear_outputs(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    input: &Input,
) -> Vec<f32> {
    let mut y_bxk = vec![0.0; input.rows * architecture.outputs];
    if let Some((node, bias)) = architecture.graph.linear_node() {
        let places = linear::Places::new(architecture, bias);
        linear::add_outputs(architecture, places, &weights[node.at..], input, &mut y_bxk);
    }
    y_bxk
}

/// Computes the linear part's attribution to each input: see [`linear::attributions`].
pub(super) fn linear_attributions(
    architecture: &Architecture,
    weights: &[Vec<f32>],
    ends: [&Input; 2],
    chosen: &[usize],
) -> Vec<f64> {
    match architecture.graph.linear_node() {
        Some((node, bias)) => {
            let places = linear::Places::new(architecture, bias);
            linear::attributions(architecture, places, &weights[node.at..], ends, chosen)
        }
        None => {
            let inputs = architecture.categorical + architecture.continuous;
            vec![0.0; chosen.len() * inputs]
        }
    }
}
