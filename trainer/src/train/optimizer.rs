//! Optimizers over host memory, one pass over all weights: see [`Rule`] for their arithmetic.
//!
//! Their state is flat and in the gradient's order. All ranks apply the same gradient to the same weights, so their
//! states stay the same without being exchanged. The gradients of the L1 and L2 penalties are added here, once, after
//! the ranks' gradients have been summed. It does not know how the learning rate changes: that is [`pace`](super::pace)'s.

use volley_proto::spec::{AdamForm, Optimizer as Spec, Rule, TrainSpec};

use super::lbfgs;
use crate::network::{Compute, Parameter};

/// The optimizer's settings and state.
#[derive(Debug)]
pub(super) struct Optimizer {
    rule: Rule,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    ema_momentum: Option<f64>,
    l1: f64,
    l2: f64,
    steps: i32,
    /// What each rule keeps of each weight, as [`slots`] names it.
    slots: Vec<Vec<f32>>,
    len: usize,
    /// Of each parameter: where it starts in the flat order, and whether it is penalized.
    parameters: Vec<(usize, bool)>,
}

/// What an optimizer keeps of each weight: a name and where it starts. The average of weights is the last one.
pub(super) fn slots(optimizer: &Spec) -> Vec<(&'static str, f32)> {
    let average = optimizer.ema_momentum.map(|_| ("average", 0.0));
    of_rule(&optimizer.rule)
        .into_iter()
        .chain(average)
        .collect()
}

fn of_rule(rule: &Rule) -> Vec<(&'static str, f32)> {
    match rule {
        Rule::Adam { .. } => vec![("mean", 0.0), ("square", 0.0)],
        Rule::Sgd { momentum, .. } if *momentum == 0.0 => vec![],
        Rule::Sgd { .. } => vec![("velocity", 0.0)],
        Rule::Adagrad {
            initial_accumulator,
            ..
        } => vec![("square", *initial_accumulator as f32)],
        Rule::RmsProp { momentum, .. } if *momentum == 0.0 => vec![("square", 0.0)],
        Rule::RmsProp { .. } => vec![("square", 0.0), ("velocity", 0.0)],
        Rule::Ftrl {
            initial_accumulator,
        } => vec![("square", *initial_accumulator as f32), ("linear", 0.0)],
        Rule::Lbfgs { memory } => lbfgs::slots(*memory),
    }
}

impl Optimizer {
    /// A spec's optimizer of these parameters, with this L2 penalty, before its first step.
    pub(super) fn new(spec: &TrainSpec, l2: f64, parameters: &[Parameter]) -> Self {
        let mut len = 0;
        let spans = parameters.iter().map(|parameter| {
            let start = len;
            len += parameter.len();
            (start, parameter.penalized)
        });
        let parameters = spans.collect();
        let rule = spec.optimizer.rule.clone();
        Self {
            slots: slots(&spec.optimizer)
                .into_iter()
                .map(|(_, start)| vec![start; len])
                .collect(),
            rule,
            clip_norm: spec.optimizer.clip_norm,
            clip_value: spec.optimizer.clip_value,
            ema_momentum: spec.optimizer.ema_momentum,
            l1: spec.l1,
            l2,
            steps: 0,
            len,
            parameters,
        }
    }

    /// The same with the state that it had after so many steps.
    ///
    /// # Panics
    /// If the slots are not those of the rule, or not of the parameters' lengths.
    pub(super) fn resume(self, steps: u64, slots: Vec<Vec<f32>>) -> Self {
        assert_eq!(slots.len(), self.slots.len());
        assert!(slots.iter().all(|slot| slot.len() == self.len));
        Self {
            steps: i32::try_from(steps).unwrap_or(i32::MAX),
            slots,
            ..self
        }
    }

    /// What it keeps of each weight, in the order of the parameters.
    pub(super) fn slots(&self) -> &[Vec<f32>] {
        &self.slots
    }

    /// The average of the weights so far, if one is kept, in the order of the parameters.
    pub(super) fn average(&self) -> Option<&[f32]> {
        self.ema_momentum?;
        self.slots.last().map(Vec::as_slice)
    }

    /// The length of the flat gradient.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether its steps end by themselves.
    pub(super) fn converges(&self) -> bool {
        matches!(self.rule, Rule::Lbfgs { .. })
    }

    /// Shortens a gradient that is too long.
    pub(super) fn clip(&self, gradient: &mut [f32]) {
        if let Some(most) = self.clip_norm {
            let square: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
            let norm = square.sqrt();
            if norm > most {
                let scale = (most / norm) as f32;
                gradient.iter_mut().for_each(|g| *g *= scale);
            }
        }
        if let Some(most) = self.clip_value {
            let most = most as f32;
            gradient.iter_mut().for_each(|g| *g = g.clamp(-most, most));
        }
    }

    /// Changes a network's weights by their gradient. Returns whether it has vanished, where the rule ends then.
    pub(super) fn apply(
        &mut self,
        gradient: &[f32],
        learn_rate: f64,
        network: &mut impl Compute,
    ) -> bool {
        if !self.converges() {
            let mut step = self.step(gradient, learn_rate);
            network.update(|parameter, weights| step.update(parameter, weights));
            return false;
        }
        self.steps = self.steps.saturating_add(1);
        let mut weights = network.values().concat();
        let mut gradient: Vec<f64> = gradient.iter().map(|g| f64::from(*g)).collect();
        let ends = self.parameters.iter().skip(1).map(|(start, _)| *start);
        for ((start, penalized), end) in self.parameters.iter().zip(ends.chain([self.len])) {
            if *penalized {
                let terms = gradient[*start..end].iter_mut().zip(&weights[*start..end]);
                terms.for_each(|(g, w)| *g += 2.0 * self.l2 * f64::from(*w));
            }
        }
        let vanished = lbfgs::step(&mut self.slots, &gradient, &mut weights);
        self.put(&weights, network);
        vanished
    }

    /// Goes back from where a step has no loss, where the rule can. Says whether it has.
    pub(super) fn retreat(&self, network: &mut impl Compute) -> bool {
        if !self.converges() {
            return false;
        }
        let mut weights = network.values().concat();
        let retreats = lbfgs::retreat(&self.slots, &mut weights);
        if retreats {
            self.put(&weights, network);
        }
        retreats
    }

    fn put(&self, weights: &[f32], network: &mut impl Compute) {
        network.update(|parameter, values| {
            let start = self.parameters[parameter].0;
            values.copy_from_slice(&weights[start..start + values.len()]);
        });
    }

    /// Begins a step at a learning rate: every parameter is to be [updated](OptimizerStep::update) once.
    pub(super) fn step<'a>(
        &'a mut self,
        gradient: &'a [f32],
        learn_rate: f64,
    ) -> OptimizerStep<'a> {
        self.steps = self.steps.saturating_add(1);
        OptimizerStep {
            learn_rate,
            gradient,
            optimizer: self,
        }
    }
}

/// One step under way.
#[derive(Debug)]
pub(super) struct OptimizerStep<'a> {
    learn_rate: f64,
    gradient: &'a [f32],
    optimizer: &'a mut Optimizer,
}

impl OptimizerStep<'_> {
    /// Updates the weights of the parameter at this place in the order.
    pub(super) fn update(&mut self, parameter: usize, weights: &mut [f32]) {
        let Optimizer {
            rule,
            ema_momentum,
            l1,
            l2,
            steps,
            slots,
            parameters,
            ..
        } = &mut *self.optimizer;
        let (start, penalized) = parameters[parameter];
        let span = start..start + weights.len();
        let gradient = &self.gradient[span.clone()];
        let rate = self.learn_rate as f32;
        let [l1, l2] = [*l1, *l2].map(|penalty| if penalized { penalty as f32 } else { 0.0 });
        let penalty = |w: f32| 2.0 * l2 * w + if w == 0.0 { 0.0 } else { l1 * w.signum() };
        let mut slots = slots.iter_mut().map(|slot| &mut slot[span.clone()]);
        let average = ema_momentum.and_then(|momentum| Some((momentum, slots.next_back()?)));
        let mut slot = || slots.next().unwrap_or_default();
        match *rule {
            Rule::Adam {
                beta_1,
                beta_2,
                epsilon,
                form,
                weight_decay,
            } => {
                let first = 1.0 - beta_1.powi(*steps);
                let second = (1.0 - beta_2.powi(*steps)).sqrt();
                // Both forms are m · rate / (√v + ε′): √v̂ = √v / √(1−β₂ᵗ).
                let epsilon = match form {
                    AdamForm::Keras => epsilon,
                    AdamForm::Torch => epsilon * second,
                } as f32;
                let decayed = match penalized {
                    true => (1.0 - self.learn_rate * weight_decay) as f32,
                    false => 1.0,
                };
                let rate = (self.learn_rate * second / first) as f32;
                let keep = [beta_1 as f32, beta_2 as f32];
                let take = [(1.0 - beta_1) as f32, (1.0 - beta_2) as f32];
                let state = slot().iter_mut().zip(slot());
                for ((w, g), (m, v)) in weights.iter_mut().zip(gradient).zip(state) {
                    let g = g + penalty(*w);
                    *m = keep[0] * *m + take[0] * g;
                    *v = keep[1] * *v + take[1] * (g * g);
                    *w = decayed * *w - rate * *m / (v.sqrt() + epsilon);
                }
            }
            Rule::Sgd { momentum: 0.0, .. } => {
                for (w, g) in weights.iter_mut().zip(gradient) {
                    *w -= rate * (g + penalty(*w));
                }
            }
            Rule::Sgd { momentum, nesterov } => {
                let momentum = momentum as f32;
                for ((w, g), v) in weights.iter_mut().zip(gradient).zip(slot()) {
                    let change = rate * (g + penalty(*w));
                    *v = momentum * *v - change;
                    *w += match nesterov {
                        true => momentum * *v - change,
                        false => *v,
                    };
                }
            }
            Rule::Adagrad { epsilon, .. } => {
                let epsilon = epsilon as f32;
                for ((w, g), a) in weights.iter_mut().zip(gradient).zip(slot()) {
                    let g = g + penalty(*w);
                    *a += g * g;
                    *w -= rate * g / (*a + epsilon).sqrt();
                }
            }
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
            } => {
                let [rho, momentum, epsilon] = [rho, momentum, epsilon].map(|x| x as f32);
                let squares = slot();
                let velocity = slot();
                for (at, (w, g)) in weights.iter_mut().zip(gradient).enumerate() {
                    let g = g + penalty(*w);
                    let a = &mut squares[at];
                    *a = rho * *a + (1.0 - rho) * (g * g);
                    let mut change = rate * g / (*a + epsilon).sqrt();
                    if let Some(v) = velocity.get_mut(at) {
                        *v = momentum * *v + change;
                        change = *v;
                    }
                    *w -= change;
                }
            }
            Rule::Ftrl { .. } => {
                let state = slot().iter_mut().zip(slot());
                for ((w, g), (n, z)) in weights.iter_mut().zip(gradient).zip(state) {
                    let before = n.sqrt();
                    *n += g * g;
                    let root = n.sqrt();
                    *z += g - (root - before) / rate * *w;
                    *w = (z.clamp(-l1, l1) - *z) / (root / rate + 2.0 * l2);
                }
            }
            Rule::Lbfgs { .. } => unreachable!("its steps are of all weights at once"),
        }
        if let Some((momentum, average)) = average {
            // The first weights are no average of any.
            let done = f64::from(*steps - 1);
            let kept = momentum.min(done / (done + 10.0)) as f32;
            for (a, w) in average.iter_mut().zip(&*weights) {
                *a = kept * *a + (1.0 - kept) * *w;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parameter;
    use super::*;
    use crate::testing;

    fn optimizer(rule: Rule, [l1, l2]: [f64; 2], parameters: &[Parameter]) -> Optimizer {
        let mut spec = testing::spec();
        spec.optimizer.rule = rule;
        spec.l1 = l1;
        Optimizer::new(&spec, l2, parameters)
    }

    fn adam(form: AdamForm, weight_decay: f64) -> Rule {
        Rule::Adam {
            beta_1: 0.9,
            beta_2: 0.99,
            epsilon: 1e-3,
            form,
            weight_decay,
        }
    }

    #[test]
    fn keeps_as_many_numbers_as_its_spec_says() {
        let momentum = |momentum| Rule::Sgd {
            momentum,
            nesterov: false,
        };
        let rms = |momentum| Rule::RmsProp {
            rho: 0.9,
            momentum,
            epsilon: 1e-7,
        };
        let initial_accumulator = 0.1;
        for rule in [
            adam(AdamForm::Keras, 0.0),
            momentum(0.0),
            momentum(0.9),
            rms(0.0),
            rms(0.9),
            Rule::Adagrad {
                initial_accumulator,
                epsilon: 1e-7,
            },
            Rule::Ftrl {
                initial_accumulator,
            },
            Rule::Lbfgs { memory: 3 },
        ] {
            for ema_momentum in [None, Some(0.9)] {
                let spec = Spec {
                    rule: rule.clone(),
                    ema_momentum,
                    ..Spec::default()
                };
                assert_eq!(slots(&spec).len(), spec.kept_numbers(), "{spec:?}");
            }
        }
    }

    /// The weight after each of these gradients, from 1, at a learning rate of 0.1.
    fn walk(rule: Rule, gradients: &[f32]) -> Vec<f32> {
        let mut optimizer = optimizer(rule, [0.0; 2], &[parameter(1, true)]);
        let mut weight = [1.0];
        let step = |g: &f32| {
            optimizer.step(&[*g], 0.1).update(0, &mut weight);
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
    fn adam_s_keras_form_by_hand() {
        // t=1: m=.05, v=.0025, √v=.05: 1 − .1·(√.01/.1)·.05/(.05+.001)
        // t=2: m=.9·.05−.1·.2=.025, v=.99·.0025+.01·.04=.002875
        let first = 1.0 - 0.1 * 0.05 / 0.051;
        let rate = 0.1 * (1.0 - 0.99_f64.powi(2)).sqrt() / (1.0 - 0.81);
        let second = first - rate * 0.025 / (0.002875_f64.sqrt() + 1e-3);
        assert_close(
            &walk(adam(AdamForm::Keras, 0.0), &[0.5, -0.2]),
            &[first, second],
        );
        // AdamW: the weight is 1 − .1·.5 of itself before each step.
        let first = first - 0.05;
        let second = 0.95 * first - rate * 0.025 / (0.002875_f64.sqrt() + 1e-3);
        assert_close(
            &walk(adam(AdamForm::Keras, 0.5), &[0.5, -0.2]),
            &[first, second],
        );
    }

    #[test]
    fn adam_s_torch_form_by_hand() {
        // t=1: m̂=.5, √v̂=.5; t=2: m̂=.025/.19, v̂=.002875/.0199
        let first = 1.0 - 0.1 * 0.5 / 0.501;
        let second = first - 0.1 * (0.025 / 0.19) / ((0.002875_f64 / 0.0199).sqrt() + 1e-3);
        assert_close(
            &walk(adam(AdamForm::Torch, 0.0), &[0.5, -0.2]),
            &[first, second],
        );
    }

    #[test]
    fn the_other_rules_by_hand() {
        let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov };
        assert_close(&walk(sgd(0.0, false), &[0.5, -0.2]), &[0.95, 0.97]);
        // v = −.05, then −.045 + .02
        assert_close(&walk(sgd(0.9, false), &[0.5, -0.2]), &[0.95, 0.925]);
        // .9·−.05 − .05, then .9·−.025 + .02
        assert_close(&walk(sgd(0.9, true), &[0.5, -0.2]), &[0.905, 0.9025]);
        let adagrad = Rule::Adagrad {
            initial_accumulator: 0.1,
            epsilon: 0.01,
        };
        let first = 1.0 - 0.05 / 0.36_f64.sqrt();
        let second = first + 0.02 / 0.40_f64.sqrt();
        assert_close(&walk(adagrad, &[0.5, -0.2]), &[first, second]);
        let rms_prop = |momentum| Rule::RmsProp {
            rho: 0.9,
            momentum,
            epsilon: 0.01,
        };
        // a = .025, then .0265
        let (first, second) = (0.05 / 0.035_f64.sqrt(), -0.02 / 0.0365_f64.sqrt());
        let due = [1.0 - first, 1.0 - first - second];
        assert_close(&walk(rms_prop(0.0), &[0.5, -0.2]), &due);
        let due = [1.0 - first, 1.0 - 1.5 * first - second];
        assert_close(&walk(rms_prop(0.5), &[0.5, -0.2]), &due);
        let ftrl = Rule::Ftrl {
            initial_accumulator: 0.1,
        };
        // n = .35, z = .5 − (√.35 − √.1)/.1·1
        let z = 0.5 - (0.35_f64.sqrt() - 0.1_f64.sqrt()) / 0.1;
        assert_close(&walk(ftrl, &[0.5]), &[-z / (0.35_f64.sqrt() / 0.1)]);
    }

    #[test]
    fn penalties_pull_penalized_parameters_only() {
        let parameters = [parameter(2, false), parameter(1, true)];
        let mut adam = optimizer(adam(AdamForm::Keras, 0.0), [0.0, 0.25], &parameters);
        let (mut free, mut held) = ([3.0, -3.0], [2.0]);
        let mut step = adam.step(&[0.0; 3], 0.1);
        step.update(0, &mut free);
        step.update(1, &mut held);
        assert_eq!(free, [3.0, -3.0]);
        // The gradient of 0.25·w² at 2 is 1: m = .1, √v = .1.
        assert_close(&held, &[2.0 - 0.1 * 0.1 / 0.101]);
        let sgd = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        let mut sgd = optimizer(sgd, [0.5, 0.0], &parameters);
        let mut held = [-2.0];
        sgd.step(&[0.0; 3], 0.1).update(1, &mut held);
        assert_close(&held, &[-1.95]);
        let ftrl = Rule::Ftrl {
            initial_accumulator: 0.1,
        };
        let mut ftrl = optimizer(ftrl, [1.0, 0.0], &parameters);
        let mut held = [0.0];
        ftrl.step(&[0.0, 0.0, 0.9], 0.1).update(1, &mut held);
        assert_eq!(held, [0.0], "L1 keeps small weights at 0");
    }

    /// By the definition: averages of the weights 1, 2, 3 and so on.
    #[test]
    fn weights_are_averaged() {
        let mut spec = testing::spec();
        spec.optimizer.rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        spec.optimizer.ema_momentum = Some(0.2);
        let mut optimizer = Optimizer::new(&spec, 0.0, &[parameter(1, true)]);
        let (mut weight, mut due) = ([0.0], 0.0);
        for step in 1..9 {
            optimizer.step(&[-1.0], 1.0).update(0, &mut weight);
            let done = f64::from(step - 1);
            let kept = (done / (done + 10.0)).min(0.2);
            due = kept * due + (1.0 - kept) * f64::from(step);
            assert_close(optimizer.average().unwrap(), &[due]);
        }
        assert!(due < 8.0, "{due}");
    }

    #[test]
    fn gradients_are_clipped() {
        let mut spec = testing::spec();
        spec.optimizer.clip_norm = Some(2.5);
        spec.optimizer.clip_value = Some(1.75);
        let optimizer = Optimizer::new(&spec, 0.0, &[parameter(2, true)]);
        let mut gradient = [3.0, -4.0];
        optimizer.clip(&mut gradient);
        assert_eq!(gradient, [1.5, -1.75]);
        let mut gradient = [1.5, -1.0];
        optimizer.clip(&mut gradient);
        assert_eq!(gradient, [1.5, -1.0]);
    }
}
