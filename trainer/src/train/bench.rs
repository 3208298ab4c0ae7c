//! Internals that the crate's benchmarks measure. They are not an interface: they change with the code that
//! they expose, and only `benches/` may use them.

use volley_proto::spec::{Precision, TrainSpec};

use super::factors;
use super::optimizer::{Optimizer as Inner, fresh_slots};
use crate::network::{Architecture, Compute, Epilogue, Host, HostDevice, Matrix, Workspace};
use crate::threads::Threads;

/// An optimizer with its own weights and a constant gradient.
#[derive(Debug)]
pub struct Optimizer {
    optimizer: Inner<Host>,
    learn_rate: f64,
    network: Host,
    gradient: Vec<f32>,
}

impl Optimizer {
    /// Creates the optimizer of a penalized kernel with `weights` weights, and of a bias.
    pub fn new(spec: &TrainSpec, weights: usize) -> Self {
        let architecture = Architecture::line(weights);
        let len = weights + 1;
        let values = vec![vec![0.5; weights], vec![0.5]];
        let network =
            Host::new(&architecture, values, &HostDevice::default()).expect("host memory");
        let state = fresh_slots(&spec.optimizer, len);
        let (parameters, l2) = (architecture.parameters(), spec.l2.unwrap_or(0.0));
        Self {
            optimizer: Inner::new(spec, l2, parameters, &network, 0, state).expect("host memory"),
            learn_rate: spec.optimizer.learn_rate,
            network,
            gradient: (0..len).map(|at| at as f32 / len as f32).collect(),
        }
    }

    /// Takes one step over all weights.
    pub fn step(&mut self) {
        self.optimizer
            .apply(&mut self.gradient, self.learn_rate, &mut self.network)
            .expect("host memory");
    }
}

/// The products of a square dense layer's step, on one thread.
#[derive(Debug)]
pub struct Dense {
    rows: usize,
    width: usize,
    kernel: Vec<f32>,
    input: Vec<f32>,
    output: Vec<f32>,
    workspace: Workspace,
    threads: Threads,
}

impl Dense {
    /// Creates a layer of `width` units, for batches of `rows` rows.
    pub fn new(rows: usize, width: usize, precision: Precision) -> Self {
        let numbers = |len: usize| (0..len).map(|at| (at % 1009) as f32 / 1009.0 - 0.5);
        Self {
            rows,
            width,
            kernel: numbers(width * width).collect(),
            input: numbers(rows * width).collect(),
            output: numbers(rows * width).collect(),
            workspace: Workspace::new(factors(precision)),
            threads: Threads::default(),
        }
    }

    /// Returns the floating-point operations of each product.
    pub fn operations(&self) -> u64 {
        2 * (self.rows * self.width * self.width) as u64
    }

    /// Computes the output from the input and the kernel.
    pub fn forward(&mut self) {
        let input = Matrix::new(&self.input, self.rows, self.width);
        let kernel = Matrix::new(&self.kernel, self.width, self.width);
        self.workspace.multiply(
            &self.threads,
            &mut self.output,
            input,
            kernel,
            Epilogue::default(),
        );
    }

    /// Computes the kernel's gradient from the input and the output's gradient.
    pub fn kernel_gradient(&mut self) {
        let input = Matrix::new(&self.input, self.rows, self.width);
        let output = Matrix::new(&self.output, self.rows, self.width);
        self.workspace.multiply(
            &self.threads,
            &mut self.kernel,
            input.transposed(),
            output,
            Epilogue::default(),
        );
    }

    /// Computes the input's gradient from the output's gradient and the kernel.
    pub fn input_gradient(&mut self) {
        let output = Matrix::new(&self.output, self.rows, self.width);
        let kernel = Matrix::new(&self.kernel, self.width, self.width);
        self.workspace.multiply(
            &self.threads,
            &mut self.input,
            output,
            kernel.transposed(),
            Epilogue::default(),
        );
    }
}
