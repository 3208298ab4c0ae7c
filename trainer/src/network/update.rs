//! The update of a step: the optimizer's rule with the step's numbers.
//!
//! The network applies it, in the weights' memory: see [`Rule`] for the arithmetic. The training loop sets the step
//! count and the learning rate.

use volley_proto::spec::{AdamForm, Rule};

/// One optimizer step.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) learn_rate: f64,
    /// Steps so far, including this one.
    pub(crate) steps: i32,
    /// L1 and L2 penalties of penalized parameters.
    pub(crate) l1: f64,
    pub(crate) l2: f64,
    /// Maximum norm of the gradient.
    pub(crate) clip_norm: Option<f64>,
    /// Maximum absolute value of a gradient component, applied after `clip_norm`.
    pub(crate) clip_value: Option<f64>,
    /// EMA coefficient of the weights' average, if there is one. The average is the last slot.
    pub(crate) kept: Option<f32>,
}

/// Adam's numbers in a step: m ← keep₀·m + take₀·g, v ← keep₁·v + take₁·g², w ← w − rate·m / (√v + ε).
#[derive(Debug)]
pub(super) struct AdamStep {
    pub(super) keep: [f32; 2],
    pub(super) take: [f32; 2],
    pub(super) rate: f32,
    pub(super) epsilon: f32,
    /// Weight decay: factor of penalized weights, applied first.
    pub(super) decayed: f32,
}

/// Indices into [`Update::numbers`].
mod numbers {
    pub(super) const RATE: usize = 0;
    pub(super) const KEEP: usize = 1;
    pub(super) const TAKE: usize = 3;
    pub(super) const EPSILON: usize = 5;
    pub(super) const DECAYED: usize = 6;
    pub(super) const KEPT: usize = 7;
    pub(super) const L1: usize = 8;
    pub(super) const L2: usize = 9;
    pub(super) const CLIP_VALUE: usize = 10;
    pub(super) const MOMENTUM: usize = 11;
    pub(super) const RHO: usize = 12;
    pub(super) const CLIP_NORM: usize = 13;
}

impl Update<'_> {
    /// Returns the step's numbers in the layout that a device's kernel reads: see `update` in `device/kernels.cu`.
    pub(crate) fn numbers(&self) -> [f32; 16] {
        use numbers::*;
        let mut all = [0.0; 16];
        let mut put = |at: usize, number: f64| all[at] = number as f32;
        put(RATE, self.learn_rate);
        put(L1, self.l1);
        put(L2, self.l2);
        put(CLIP_VALUE, self.clip_value.unwrap_or(f64::INFINITY));
        put(CLIP_NORM, self.clip_norm.unwrap_or(f64::INFINITY));
        put(KEPT, f64::from(self.kept.unwrap_or(0.0)));
        match *self.rule {
            Rule::Sgd { momentum, .. } => put(MOMENTUM, momentum),
            Rule::Adagrad { epsilon, .. } => put(EPSILON, epsilon),
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
            } => {
                put(RHO, rho);
                put(MOMENTUM, momentum);
                put(EPSILON, epsilon);
            }
            Rule::Adam { .. } | Rule::Ftrl { .. } | Rule::Lbfgs { .. } => {}
        }
        if let Some(step) = self.adam() {
            all[KEEP..KEEP + 2].copy_from_slice(&step.keep);
            all[TAKE..TAKE + 2].copy_from_slice(&step.take);
            all[RATE] = step.rate;
            all[EPSILON] = step.epsilon;
            all[DECAYED] = step.decayed;
        }
        all
    }

    /// Returns the numbers of Adam's step, if that is the rule.
    pub(super) fn adam(&self) -> Option<AdamStep> {
        let Rule::Adam {
            beta_1,
            beta_2,
            epsilon,
            form,
            weight_decay,
        } = *self.rule
        else {
            return None;
        };
        let first = 1.0 - beta_1.powi(self.steps);
        let second = (1.0 - beta_2.powi(self.steps)).sqrt();
        // Both forms are m · rate / (√v + ε′): √v̂ = √v / √(1−β₂ᵗ).
        let epsilon = match form {
            AdamForm::Keras => epsilon,
            AdamForm::Torch => epsilon * second,
        };
        Some(AdamStep {
            keep: [beta_1 as f32, beta_2 as f32],
            take: [(1.0 - beta_1) as f32, (1.0 - beta_2) as f32],
            rate: (self.learn_rate * second / first) as f32,
            epsilon: epsilon as f32,
            decayed: (1.0 - self.learn_rate * weight_decay) as f32,
        })
    }
}
