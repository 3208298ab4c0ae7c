//! What the crate's benchmarks measure and its interface does not show. It is no interface: it
//! changes with what it measures, and nothing but `benches/` may use it.

use volley_proto::spec::Adam as Settings;

use super::adam::Adam;
use crate::network::{Parameter, Start};

/// Adam on weights of its own, with a gradient that stays the same.
#[derive(Debug)]
pub struct Optimizer {
    adam: Adam,
    weights: Vec<f32>,
    gradient: Vec<f32>,
}

impl Optimizer {
    /// The optimizer of one penalized kernel with so many weights.
    pub fn new(settings: Settings, l2: f64, weights: usize) -> Self {
        let kernel = Parameter {
            name: "kernel".into(),
            shape: vec![weights],
            start: Start::Constant(0.5),
            penalized: true,
        };
        Self {
            adam: Adam::new(settings, l2, &[kernel]),
            weights: vec![0.5; weights],
            gradient: (0..weights).map(|at| at as f32 / weights as f32).collect(),
        }
    }

    /// One step over all weights.
    pub fn step(&mut self) {
        self.adam.step(&self.gradient).update(0, &mut self.weights);
    }
}
