//! Custom layers in a plan: the host computes them between the device's kernels.
//!
//! ```text
//!  forward    x, parameters ─copy─▶ scratch ─read─▶ host ─write─▶ scratch ─copy─▶ y
//!  backward   dy            ─copy─▶ scratch ─read─▶ host ─write─▶ scratch ─add──▶ gradient, dx
//! ```
//!
//! Kernels put what the host needs side by side, so that a pass costs one read, which waits for the device, and one
//! write. The host computes in `f32`, one lane after the other, on the rank's own thread. It keeps x, y and the parameters
//! from a forward pass to its backward pass: the invariant is that no other forward pass comes between.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::layers::{Layers, Pass};
use super::places::Planned;
use super::words::{Arguments, Tensor};
use crate::device::{Address, Call, HostWork, Work};
use crate::network::custom::Custom;
use crate::network::{CustomBatch, CustomOperation, Parameter};

/// Custom layer of all lanes.
#[derive(Debug)]
pub(super) struct Hosted {
    operation: Arc<dyn CustomOperation>,
    /// Length of each parameter.
    lengths: Vec<usize>,
    lanes: usize,
    last: RefCell<Last>,
}

/// Values of the last forward pass.
#[derive(Debug, Default)]
struct Last {
    rows: usize,
    /// Input of each lane, `[B × F]`, or the one that lanes share.
    x: Vec<Vec<f32>>,
    /// Output of each lane, `[B × W]`.
    y: Vec<Vec<f32>>,
    /// Parameters of each lane.
    parameters: Vec<Vec<Vec<f32>>>,
}

impl Last {
    fn batch(&self, lane: usize) -> CustomBatch<'_> {
        CustomBatch {
            rows: self.rows,
            x: &self.x[lane % self.x.len()],
            parameters: &self.parameters[lane],
        }
    }
}

impl Hosted {
    /// Builds the layer of this many members, with the parameters of one. Their operations are the same, since all are
    /// built for the same width.
    pub(super) fn new(custom: &Custom, parameters: &[Parameter], lanes: usize) -> Self {
        Self {
            operation: Arc::clone(&custom.operation),
            lengths: parameters.iter().map(Parameter::len).collect(),
            lanes,
            last: RefCell::default(),
        }
    }

    /// Returns how many numbers a lane's parameters are.
    fn len(&self) -> usize {
        self.lengths.iter().sum()
    }
}

/// Forward pass over rows.
#[derive(Debug)]
struct Forward {
    of: Rc<Hosted>,
    rows: usize,
    /// Input width, F.
    width: usize,
}

impl HostWork for Forward {
    /// Reads the parameters of each lane, then x; writes y.
    fn compute(&self, read: &[f32], write: &mut [f32]) {
        let Self { of, rows, width } = self;
        let (parameters, x) = read.split_at(of.lanes * of.len());
        let lane = |lane: usize| {
            let mut rest = &parameters[lane * of.len()..];
            let own = of.lengths.iter().map(|len| {
                let (own, others) = rest.split_at(*len);
                rest = others;
                own.to_vec()
            });
            own.collect()
        };
        let mut last = of.last.borrow_mut();
        *last = Last {
            rows: *rows,
            x: x.chunks_exact(rows * width).map(<[f32]>::to_vec).collect(),
            y: vec![],
            parameters: (0..of.lanes).map(lane).collect(),
        };
        let each = write.len() / of.lanes;
        for (lane, y) in write.chunks_exact_mut(each).enumerate() {
            of.operation.forward(last.batch(lane), y);
            last.y.push(y.to_vec());
        }
    }
}

/// Backward pass over the rows of the last forward pass.
#[derive(Debug)]
struct Backward {
    of: Rc<Hosted>,
    rows: usize,
    /// Input width, F.
    width: usize,
}

impl HostWork for Backward {
    /// Reads dy; writes the gradient of each lane's parameters and, if it is wanted, dx of each lane.
    fn compute(&self, read: &[f32], write: &mut [f32]) {
        let Self { of, rows, width } = self;
        let last = of.last.borrow();
        assert_eq!(last.rows, *rows, "a backward pass follows its forward pass");
        let (gradients, dx) = write.split_at_mut(of.lanes * of.len());
        let len = rows * width;
        let mut unwanted = vec![0.0; if dx.is_empty() { len } else { 0 }];
        let each = read.len() / of.lanes;
        for (lane, dy) in read.chunks_exact(each).enumerate() {
            let mut rest = &mut gradients[lane * of.len()..];
            let own = of.lengths.iter().map(|len| {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(*len);
                rest = others;
                own
            });
            let mut own: Vec<&mut [f32]> = own.collect();
            let dx = match dx.is_empty() {
                true => {
                    unwanted.fill(0.0);
                    &mut unwanted[..]
                }
                false => &mut dx[lane * len..][..len],
            };
            let (batch, y) = (last.batch(lane), &last.y[lane]);
            of.operation.backward(batch, y, dy, dx, Some(&mut own));
        }
    }
}

/// Returns numbers that lie side by side, row after row and lane after lane.
fn dense(at: Address, rows: usize, width: usize, lanes: usize) -> Tensor {
    Tensor::new(at, [lanes, rows, width], width)
}

impl Layers {
    /// Adds the forward pass of a custom layer.
    pub(super) fn call_forward(
        &self,
        pass: &Pass<'_>,
        at: usize,
        planned: &Planned,
        work: &mut Vec<Work>,
    ) {
        let (of, node) = (self.hosted(at), self.node(planned));
        let (x, y) = (self.value(pass, node.from[0]), self.value(pass, node.to));
        let (scratch, rows) = (pass.places.scratch[at], pass.rows);
        let parameters = of.lanes * of.len();
        if parameters > 0 {
            let weights = (self.at(pass.weights, node.at), planned.stride);
            let to = (scratch, of.len());
            self.copy_numbers([weights, to], [of.lanes, of.len()], false, work);
        }
        let entered = dense(scratch + 4 * parameters as u64, rows, x.width, x.lanes);
        work.push(self.copy(x, entered, rows));
        work.push(Work::Call(Call {
            at: scratch,
            read: parameters + x.lanes * rows * x.width,
            write: of.lanes * rows * y.width,
            work: Rc::new(Forward {
                of: Rc::clone(of),
                rows,
                width: x.width,
            }),
        }));
        work.push(self.copy(dense(scratch, rows, y.width, of.lanes), y, rows));
    }

    /// Adds the backward pass of a custom layer, but for passing its input's gradient on, which is written if it is
    /// `wanted`. Returns the place of that gradient.
    pub(super) fn call_back(
        &self,
        pass: &Pass<'_>,
        (at, planned): (usize, &Planned),
        gradient: Address,
        wanted: bool,
        work: &mut Vec<Work>,
    ) -> Tensor {
        let (of, node) = (self.hosted(at), self.node(planned));
        let (width, dy) = (
            self.value(pass, node.from[0]).width,
            self.delta(pass, node.to),
        );
        let (scratch, rows) = (pass.places.scratch[at], pass.rows);
        let parameters = of.lanes * of.len();
        let left = dense(scratch, rows, dy.width, of.lanes);
        work.push(self.copy(dy, left, rows));
        let dx = dense(scratch + 4 * parameters as u64, rows, width, of.lanes);
        work.push(Work::Call(Call {
            at: scratch,
            read: of.lanes * rows * dy.width,
            write: parameters + if wanted { of.lanes * rows * width } else { 0 },
            work: Rc::new(Backward {
                of: Rc::clone(of),
                rows,
                width,
            }),
        }));
        if parameters > 0 {
            let sums = (self.at(gradient, node.at), planned.stride);
            let from = (scratch, of.len());
            self.copy_numbers([from, sums], [of.lanes, of.len()], true, work);
        }
        dx
    }

    fn hosted(&self, at: usize) -> &Rc<Hosted> {
        self.hosted[at].as_ref().expect("it is a custom layer")
    }

    /// Returns the launch that copies a tensor.
    pub(super) fn copy(&self, from: Tensor, to: Tensor, rows: usize) -> Work {
        let arguments = Arguments::new().tensor(from).tensor(to).flag(false);
        let of = [rows, from.lanes, from.width];
        self.grid.rows("copy", of, arguments)
    }

    /// Copies, or with `adds` adds, numbers of each lane, which have an address and a lane stride: in rows of as many as
    /// a block has threads, since a row is one block's.
    fn copy_numbers(
        &self,
        [from, to]: [(Address, usize); 2],
        [lanes, len]: [usize; 2],
        adds: bool,
        work: &mut Vec<Work>,
    ) {
        let most = self.grid.threads;
        let (whole, rest) = (len / most, len % most);
        for (first, rows, width) in [(0, whole, most), (whole * most, 1, rest)] {
            if rows * width == 0 {
                continue;
            }
            let tensor = |(at, lane): (Address, usize)| Tensor {
                at: at + 4 * first as u64,
                ld: width,
                lane,
                width,
                lanes,
            };
            let arguments = Arguments::new().tensor(tensor(from)).tensor(tensor(to));
            let of = [rows, lanes, width];
            work.push(self.grid.rows("copy", of, arguments.flag(adds)));
        }
    }
}
