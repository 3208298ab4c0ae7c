//! What a step changes the weights by, apart from their gradient: an optimizer's rule with the numbers of the step.
//!
//! What carries it out is the network, where its weights are: see [`Rule`] for the arithmetic. Which step it is and what
//! the learning rate is are the training loop's to say.

use volley_proto::spec::{AdamForm, Rule};

/// A step of an optimizer.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) learn_rate: f64,
    /// Steps with this one.
    pub(crate) steps: i32,
    /// Penalties of penalized parameters.
    pub(crate) l1: f64,
    pub(crate) l2: f64,
    /// The most that the gradient's length may be.
    pub(crate) clip_norm: Option<f64>,
    /// The most that any of its numbers may be, then.
    pub(crate) clip_value: Option<f64>,
    /// What the average of the weights keeps of itself, if there is one. It is the last slot.
    pub(crate) kept: Option<f32>,
}

/// Adam's numbers in a step: m ← keep₀·m + take₀·g, v ← keep₁·v + take₁·g², w ← w − rate·m / (√v + ε).
#[derive(Debug)]
pub(super) struct AdamStep {
    pub(super) keep: [f32; 2],
    pub(super) take: [f32; 2],
    pub(super) rate: f32,
    pub(super) epsilon: f32,
    /// What penalized weights are multiplied by before.
    pub(super) decayed: f32,
}

impl Update<'_> {
    /// The numbers of Adam's step, if that is the rule.
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
