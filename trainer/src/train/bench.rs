//! What the crate's benchmarks measure and its interface does not show. It is no interface: it
//! changes with what it measures, and nothing but `benches/` may use it.

use volley_proto::spec::TrainSpec;

use super::optimizer::{Optimizer as Inner, fresh_slots};
use crate::network::{Architecture, Compute, Epilogue, Host, Matrix, Workspace};
use crate::threads::Threads;

/// An optimizer on weights of its own, with a gradient that stays the same.
#[derive(Debug)]
pub struct Optimizer {
    optimizer: Inner<Host>,
    learn_rate: f64,
    network: Host,
    gradient: Vec<f32>,
}

impl Optimizer {
    /// The optimizer of a penalized kernel with so many weights, and of a bias.
    pub fn new(spec: &TrainSpec, weights: usize) -> Self {
        let architecture = Architecture::line(weights);
        let len = weights + 1;
        let values = vec![vec![0.5; weights], vec![0.5]];
        let network = Host::new(&architecture, values, &Threads::default()).expect("host memory");
        let state = fresh_slots(&spec.optimizer, len);
        let (parameters, l2) = (architecture.parameters(), spec.l2.unwrap_or(0.0));
        Self {
            optimizer: Inner::new(spec, l2, parameters, &network, 0, state).expect("host memory"),
            learn_rate: spec.optimizer.learn_rate,
            network,
            gradient: (0..len).map(|at| at as f32 / len as f32).collect(),
        }
    }

    /// One step over all weights.
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
    /// A layer of so many units, for batches of so many rows.
    pub fn new(rows: usize, width: usize) -> Self {
        let numbers = |len: usize| (0..len).map(|at| (at % 1009) as f32 / 1009.0 - 0.5);
        Self {
            rows,
            width,
            kernel: numbers(width * width).collect(),
            input: numbers(rows * width).collect(),
            output: numbers(rows * width).collect(),
            workspace: Workspace::default(),
            threads: Threads::default(),
        }
    }

    /// Floating-point operations of each product.
    pub fn operations(&self) -> u64 {
        2 * (self.rows * self.width * self.width) as u64
    }

    /// The output, by the input and the kernel.
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

    /// The kernel's gradient, by the input and the output's.
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

    /// The input's gradient, by the output's and the kernel.
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
