//! Adam (Kingma & Ba 2015, arXiv:1412.6980) over host memory, one pass over all weights.
//!
//! Its state is flat and in the gradient's order. All ranks apply the same gradient to the same
//! weights, so their states stay the same without being exchanged. The L2 penalty's gradient is
//! added here, once, after the ranks' gradients have been summed.

use volley_proto::spec::{Adam as Settings, AdamForm};

use crate::network::Parameter;

/// The optimizer's settings and state.
#[derive(Debug)]
pub(super) struct Adam {
    settings: Settings,
    steps: i32,
    mean: Vec<f32>,
    square: Vec<f32>,
    /// Of each parameter: where it starts in the flat order, and its weight decay 2·λ.
    parameters: Vec<(usize, f32)>,
}

impl Adam {
    /// Fresh state for these parameters; `l2` is the λ of λ·Σw² over those that are penalized.
    pub(super) fn new(settings: Settings, l2: f64, parameters: &[Parameter]) -> Self {
        let mut len = 0;
        let spans = parameters.iter().map(|parameter| {
            let start = len;
            len += parameter.len();
            (
                start,
                if parameter.penalized {
                    (2.0 * l2) as f32
                } else {
                    0.0
                },
            )
        });
        let parameters = spans.collect();
        Self {
            settings,
            steps: 0,
            mean: vec![0.0; len],
            square: vec![0.0; len],
            parameters,
        }
    }

    /// The same with the state that it had after so many steps.
    ///
    /// # Panics
    /// If the moments are not of the parameters' lengths.
    pub(super) fn resume(self, steps: u64, mean: Vec<f32>, square: Vec<f32>) -> Self {
        assert_eq!([mean.len(), square.len()], [self.len(); 2]);
        Self {
            steps: i32::try_from(steps).unwrap_or(i32::MAX),
            mean,
            square,
            ..self
        }
    }

    /// First and second moments, in the order of the parameters.
    pub(super) fn moments(&self) -> [&[f32]; 2] {
        [&self.mean, &self.square]
    }

    /// The length of the flat gradient.
    pub(super) fn len(&self) -> usize {
        self.mean.len()
    }

    /// Begins a step: every parameter is to be [updated](Step::update) once.
    pub(super) fn step<'a>(&'a mut self, gradient: &'a [f32]) -> Step<'a> {
        self.steps = self.steps.saturating_add(1);
        let Settings {
            learn_rate,
            beta_1,
            beta_2,
            epsilon,
            form,
        } = self.settings;
        let first = 1.0 - beta_1.powi(self.steps);
        let second = (1.0 - beta_2.powi(self.steps)).sqrt();
        // Both forms are m · rate / (√v + ε′): √v̂ = √v / √(1−β₂ᵗ).
        let epsilon = match form {
            AdamForm::Keras => epsilon,
            AdamForm::Torch => epsilon * second,
        };
        Step {
            rate: (learn_rate * second / first) as f32,
            epsilon: epsilon as f32,
            keep: [beta_1 as f32, beta_2 as f32],
            take: [(1.0 - beta_1) as f32, (1.0 - beta_2) as f32],
            gradient,
            state: self,
        }
    }
}

/// One step under way.
#[derive(Debug)]
pub(super) struct Step<'a> {
    rate: f32,
    epsilon: f32,
    keep: [f32; 2],
    take: [f32; 2],
    gradient: &'a [f32],
    state: &'a mut Adam,
}

impl Step<'_> {
    /// Updates the weights of the parameter at this place in the order.
    pub(super) fn update(&mut self, parameter: usize, weights: &mut [f32]) {
        let (start, decay) = self.state.parameters[parameter];
        let span = start..start + weights.len();
        let (rate, epsilon, keep, take) = (self.rate, self.epsilon, self.keep, self.take);
        let state = self.state.mean[span.clone()]
            .iter_mut()
            .zip(&mut self.state.square[span.clone()]);
        for ((w, g), (m, v)) in weights.iter_mut().zip(&self.gradient[span]).zip(state) {
            let g = g + decay * *w;
            *m = keep[0] * *m + take[0] * g;
            *v = keep[1] * *v + take[1] * (g * g);
            *w -= rate * *m / (v.sqrt() + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parameter;
    use super::*;

    fn settings(form: AdamForm) -> Settings {
        Settings {
            learn_rate: 0.1,
            beta_1: 0.9,
            beta_2: 0.99,
            epsilon: 1e-3,
            form,
        }
    }

    /// The weight after each of these gradients, from 1.
    fn walk(form: AdamForm, gradients: &[f32]) -> Vec<f32> {
        let mut adam = Adam::new(settings(form), 0.0, &[parameter(1, false)]);
        let mut weight = [1.0];
        let step = |g: &f32| {
            adam.step(&[*g]).update(0, &mut weight);
            weight[0]
        };
        gradients.iter().map(step).collect()
    }

    fn assert_close(actual: &[f32], expected: &[f64]) {
        for (a, e) in actual.iter().zip(expected) {
            assert!(
                (f64::from(*a) - e).abs() < 1e-6,
                "{actual:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn keras_form_by_hand() {
        // t=1: m=.05, v=.0025, √v=.05: 1 − .1·(√.01/.1)·.05/(.05+.001)
        // t=2: m=.9·.05−.1·.2=.025, v=.99·.0025+.01·.04=.002875
        let first = 1.0 - 0.1 * 0.05 / 0.051;
        let rate = 0.1 * (1.0 - 0.99_f64.powi(2)).sqrt() / (1.0 - 0.81);
        let second = first - rate * 0.025 / (0.002875_f64.sqrt() + 1e-3);
        assert_close(&walk(AdamForm::Keras, &[0.5, -0.2]), &[first, second]);
    }

    #[test]
    fn torch_form_by_hand() {
        // t=1: m̂=.5, √v̂=.5; t=2: m̂=.025/.19, v̂=.002875/.0199
        let first = 1.0 - 0.1 * 0.5 / 0.501;
        let second = first - 0.1 * (0.025 / 0.19) / ((0.002875_f64 / 0.0199).sqrt() + 1e-3);
        assert_close(&walk(AdamForm::Torch, &[0.5, -0.2]), &[first, second]);
    }

    #[test]
    fn l2_pulls_penalized_parameters_only() {
        let parameters = [parameter(2, false), parameter(1, true)];
        let mut adam = Adam::new(settings(AdamForm::Keras), 0.25, &parameters);
        let (mut free, mut held) = ([3.0, -3.0], [2.0]);
        let mut step = adam.step(&[0.0; 3]);
        step.update(0, &mut free);
        step.update(1, &mut held);
        assert_eq!(free, [3.0, -3.0]);
        // The gradient of 0.25·w² at 2 is 1: m = .1, √v = .1.
        assert_close(&held, &[2.0 - 0.1 * 0.1 / 0.101]);
    }
}
