//! Optimizers: their settings, step count, and numbers per weight. See [`Rule`] for their arithmetic, which
//! the network [carries out](Compute::apply) on the device of its weights.
//!
//! Their state is flat and in the gradient's order. All ranks apply the same gradient to the same weights, so
//! their states stay the same without being exchanged. The gradients of the L1 and L2 penalties are added
//! once, after the ranks' gradients have been summed. The learning rate is not decided here but in
//! [`pace`](super::pace).

use std::ops::Range;

use volley_proto::spec::{Optimizer as Spec, Rule, TrainSpec};

use super::lbfgs;
use crate::Result;
use crate::network::{Compute, Parameter, Sparse, Update};

/// The optimizer's settings and state.
#[derive(Debug)]
pub(super) struct Optimizer<C: Compute> {
    rule: Rule,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    ema_momentum: Option<f64>,
    l1: f64,
    l2: f64,
    steps: i32,
    /// Numbers that the rule keeps per weight, named by [`slots`].
    slots: Vec<C::Numbers>,
    len: usize,
    /// Ranges of the penalized parameters in the flat order.
    penalized: Vec<Range<usize>>,
}

/// Returns the name and initial value of each number that an optimizer keeps per weight. The average of
/// weights comes last.
pub(super) fn slots(optimizer: &Spec) -> Vec<(&'static str, f32)> {
    let average = optimizer.ema_momentum.map(|_| ("average", 0.0));
    of_rule(&optimizer.rule)
        .into_iter()
        .chain(average)
        .collect()
}

/// Returns the slots of `len` weights before the first step.
pub(super) fn fresh_slots(optimizer: &Spec, len: usize) -> Vec<Vec<f32>> {
    let slots = slots(optimizer).into_iter();
    slots.map(|(_, start)| vec![start; len]).collect()
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

impl<C: Compute> Optimizer<C> {
    /// Creates a spec's optimizer for a network with these parameters and this L2 penalty, as it is after
    /// `steps` steps that have left `state`.
    ///
    /// # Panics
    /// If the state is not the rule's, or does not have the parameters' lengths.
    pub(super) fn new(
        spec: &TrainSpec,
        l2: f64,
        parameters: &[Parameter],
        network: &C,
        steps: u64,
        state: Vec<Vec<f32>>,
    ) -> Result<Self> {
        let mut len = 0;
        let mut penalized = Vec::new();
        for parameter in parameters {
            let start = len;
            len += parameter.len();
            if parameter.penalized {
                penalized.push(start..len);
            }
        }
        assert_eq!(state.len(), slots(&spec.optimizer).len());
        assert!(state.iter().all(|slot| slot.len() == len));
        let slots = state.into_iter().map(|slot| network.upload(slot));
        Ok(Self {
            rule: spec.optimizer.rule.clone(),
            clip_norm: spec.optimizer.clip_norm,
            clip_value: spec.optimizer.clip_value,
            ema_momentum: spec.optimizer.ema_momentum,
            l1: spec.l1,
            l2,
            steps: i32::try_from(steps).unwrap_or(i32::MAX),
            slots: slots.collect::<Result<_>>()?,
            len,
            penalized,
        })
    }

    /// Returns its numbers per weight, in the order of the parameters.
    pub(super) fn slots(&self) -> Result<Vec<Vec<f32>>> {
        self.slots.iter().cloned().map(C::download).collect()
    }

    /// Takes them from it.
    pub(super) fn take_slots(&mut self) -> Result<Vec<Vec<f32>>> {
        let slots = std::mem::take(&mut self.slots).into_iter();
        slots.map(C::download).collect()
    }

    /// Returns true if it averages the weights.
    pub(super) fn averages(&self) -> bool {
        self.ema_momentum.is_some()
    }

    /// Returns the average of the weights so far, if kept, in the order of the parameters.
    pub(super) fn average(&self) -> Result<Option<Vec<f32>>> {
        let average = self.slots.last().filter(|_| self.averages());
        average.cloned().map(C::download).transpose()
    }

    /// Returns the length of the flat gradient of all weights.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the rule ends training by itself.
    pub(super) fn converges(&self) -> bool {
        matches!(self.rule, Rule::Lbfgs { .. })
    }

    /// Updates a network's weights by their gradient. Returns true if the gradient has vanished and the rule
    /// ends training then.
    pub(super) fn apply(
        &mut self,
        flat: &mut [f32],
        learn_rate: f64,
        network: &mut C,
    ) -> Result<bool> {
        if !self.converges() {
            let mut slots = std::mem::take(&mut self.slots);
            network.apply(&self.update(0, learn_rate), &mut slots, flat)?;
            self.slots = slots;
            self.advance(1);
            return Ok(false);
        }
        self.advance(1);
        network.read_gradient(flat)?;
        let mut values = network.values()?;
        let mut weights = values.concat();
        let mut gradient: Vec<f64> = flat.iter().map(|g| f64::from(*g)).collect();
        for span in &self.penalized {
            let terms = gradient[span.clone()]
                .iter_mut()
                .zip(&weights[span.clone()]);
            terms.for_each(|(g, w)| *g += 2.0 * self.l2 * f64::from(*w));
        }
        let slots = std::mem::take(&mut self.slots).into_iter();
        let mut slots = slots.map(C::download).collect::<Result<Vec<_>>>()?;
        let vanished = lbfgs::step(&mut slots, &gradient, &mut weights);
        let slots = slots.into_iter().map(|slot| network.upload(slot));
        self.slots = slots.collect::<Result<_>>()?;
        put(&weights, &mut values, network)?;
        Ok(vanished)
    }

    /// Replaces weights that the rule has moved to, and whose gradient is not known yet, with those that it moved from.
    pub(super) fn return_to_point(&self, network: &mut C) -> Result<()> {
        let point = C::download(self.slots[lbfgs::POINT].clone())?;
        let mut values = network.values()?;
        put(&point, &mut values, network)
    }

    /// Picks the rows of the next step: see [`Sparse::pick`].
    pub(super) fn pick(
        &mut self,
        codes: &[Vec<u32>],
        network: &mut dyn Sparse<C::Numbers>,
    ) -> usize {
        network.pick(codes, &mut self.slots)
    }

    /// Brings the rows of a network up to date, with all slots: see [`Sparse::catch_up`].
    pub(super) fn catch_up(&mut self, network: &mut dyn Sparse<C::Numbers>) {
        network.catch_up(&mut self.slots);
    }

    /// Returns the step that comes after `ahead` others.
    fn update(&self, ahead: u64, learn_rate: f64) -> Update<'_> {
        let done = self
            .steps
            .saturating_add(i32::try_from(ahead).unwrap_or(i32::MAX));
        // The first weights are not an average of any.
        let share = f64::from(done) / (f64::from(done) + 10.0);
        Update {
            rule: &self.rule,
            learn_rate,
            steps: done.saturating_add(1),
            l1: self.l1,
            l2: self.l2,
            clip_norm: self.clip_norm,
            clip_value: self.clip_value,
            kept: self.ema_momentum.map(|momentum| momentum.min(share) as f32),
        }
    }

    /// Returns the numbers of the step that comes after `ahead` others, as a device reads them.
    pub(super) fn numbers(&self, ahead: u64, learn_rate: f64) -> [f32; 16] {
        self.update(ahead, learn_rate).numbers()
    }

    /// Counts `steps` steps as taken.
    pub(super) fn advance(&mut self, steps: u64) {
        let steps = i32::try_from(steps).unwrap_or(i32::MAX);
        self.steps = self.steps.saturating_add(steps);
    }

    /// Returns the optimizer's state, on the device of the weights.
    pub(super) fn kept(&self) -> &[C::Numbers] {
        &self.slots
    }

    /// Goes back from weights without a loss, if the rule can. Returns true if it has.
    pub(super) fn retreat(&self, network: &mut C) -> Result<bool> {
        if !self.converges() {
            return Ok(false);
        }
        let mut values = network.values()?;
        let mut weights = values.concat();
        let retreats = lbfgs::retreat(&self.slots()?, &mut weights);
        if retreats {
            put(&weights, &mut values, network)?;
        }
        Ok(retreats)
    }
}

/// Puts flat weights into a network; `values` has its weights by parameter, and is overwritten.
fn put(flat: &[f32], values: &mut [Vec<f32>], network: &mut impl Compute) -> Result<()> {
    split(flat, values);
    network.put(values)
}

/// Writes flat numbers of each weight into `values`, parameter by parameter.
pub(super) fn split(mut flat: &[f32], values: &mut [Vec<f32>]) {
    for values in values {
        let (own, rest) = flat.split_at(values.len());
        values.copy_from_slice(own);
        flat = rest;
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex};
    use volley_proto::spec::AdamForm;

    use super::*;
    use crate::network::{Architecture, Host, Tensors};
    use crate::testing;

    /// Weights that take steps: two penalized, and one not.
    struct Walk<C: Compute> {
        network: C,
        optimizer: Optimizer<C>,
    }

    impl<C: Compute<Device: Default>> Walk<C> {
        fn begin(spec: &TrainSpec, l2: f64, weights: [f32; 3]) -> Self {
            let architecture = Architecture::line(2);
            let parameters = architecture.parameters();
            let values = vec![weights[..2].to_vec(), weights[2..].to_vec()];
            let network = C::new(&architecture, values, &C::Device::default()).unwrap();
            let state = fresh_slots(&spec.optimizer, 3);
            let optimizer = Optimizer::new(spec, l2, parameters, &network, 0, state).unwrap();
            Self { network, optimizer }
        }

        /// Takes a step by this gradient, and returns the weights.
        fn step(&mut self, mut gradient: [f32; 3], learn_rate: f64) -> Vec<f32> {
            self.network.write_gradient(&gradient).unwrap();
            self.optimizer
                .apply(&mut gradient, learn_rate, &mut self.network)
                .unwrap();
            self.network.values().unwrap().concat()
        }
    }

    fn spec(rule: Rule, l1: f64) -> TrainSpec {
        let mut spec = testing::spec();
        spec.optimizer.rule = rule;
        spec.l1 = l1;
        spec
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

    /// Compares the course of a weight of 1 under these gradients, at a learning rate of 0.1, in host memory
    /// and in tensors.
    fn assert_walk(rule: Rule, gradients: &[f32], due: &[f64]) {
        fn walk<C: Compute<Device: Default>>(rule: Rule, gradients: &[f32], due: &[f64]) {
            let mut walk = Walk::<C>::begin(&spec(rule, 0.0), 0.0, [1.0; 3]);
            let step = |g: &f32| walk.step([*g, 0.0, 0.0], 0.1)[0];
            let walked: Vec<_> = gradients.iter().map(step).collect();
            assert_close(&walked, due);
        }
        walk::<Host>(rule.clone(), gradients, due);
        walk::<Device>(rule, gradients, due);
    }

    type Device = Tensors<Autodiff<Flex>>;

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
        assert_walk(adam(AdamForm::Keras, 0.0), &[0.5, -0.2], &[first, second]);
        // AdamW: each step first multiplies the weight by 1 − .1·.5.
        let first = first - 0.05;
        let second = 0.95 * first - rate * 0.025 / (0.002875_f64.sqrt() + 1e-3);
        assert_walk(adam(AdamForm::Keras, 0.5), &[0.5, -0.2], &[first, second]);
    }

    #[test]
    fn adam_s_torch_form_by_hand() {
        // t=1: m̂=.5, √v̂=.5; t=2: m̂=.025/.19, v̂=.002875/.0199
        let first = 1.0 - 0.1 * 0.5 / 0.501;
        let second = first - 0.1 * (0.025 / 0.19) / ((0.002875_f64 / 0.0199).sqrt() + 1e-3);
        assert_walk(adam(AdamForm::Torch, 0.0), &[0.5, -0.2], &[first, second]);
    }

    #[test]
    fn the_other_rules_by_hand() {
        let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov };
        assert_walk(sgd(0.0, false), &[0.5, -0.2], &[0.95, 0.97]);
        // v = −.05, then −.045 + .02
        assert_walk(sgd(0.9, false), &[0.5, -0.2], &[0.95, 0.925]);
        // .9·−.05 − .05, then .9·−.025 + .02
        assert_walk(sgd(0.9, true), &[0.5, -0.2], &[0.905, 0.9025]);
        let adagrad = Rule::Adagrad {
            initial_accumulator: 0.1,
            epsilon: 0.01,
        };
        let first = 1.0 - 0.05 / 0.36_f64.sqrt();
        let second = first + 0.02 / 0.40_f64.sqrt();
        assert_walk(adagrad, &[0.5, -0.2], &[first, second]);
        let rms_prop = |momentum| Rule::RmsProp {
            rho: 0.9,
            momentum,
            epsilon: 0.01,
        };
        // a = .025, then .0265
        let (first, second) = (0.05 / 0.035_f64.sqrt(), -0.02 / 0.0365_f64.sqrt());
        let due = [1.0 - first, 1.0 - first - second];
        assert_walk(rms_prop(0.0), &[0.5, -0.2], &due);
        let due = [1.0 - first, 1.0 - 1.5 * first - second];
        assert_walk(rms_prop(0.5), &[0.5, -0.2], &due);
        let ftrl = Rule::Ftrl {
            initial_accumulator: 0.1,
        };
        // n = .35, z = .5 − (√.35 − √.1)/.1·1
        let z = 0.5 - (0.35_f64.sqrt() - 0.1_f64.sqrt()) / 0.1;
        assert_walk(ftrl, &[0.5], &[-z / (0.35_f64.sqrt() / 0.1)]);
    }

    fn of_both(check: impl Fn(&mut dyn FnMut(&TrainSpec, f64, [f32; 3], [f32; 3]) -> Vec<f32>)) {
        check(&mut |spec, l2, weights, gradient| {
            Walk::<Host>::begin(spec, l2, weights).step(gradient, 0.1)
        });
        check(&mut |spec, l2, weights, gradient| {
            Walk::<Device>::begin(spec, l2, weights).step(gradient, 0.1)
        });
    }

    #[test]
    fn penalties_pull_penalized_parameters_only() {
        of_both(|step| {
            let adam = spec(adam(AdamForm::Keras, 0.0), 0.0);
            let after = step(&adam, 0.25, [2.0, 0.0, 3.0], [0.0; 3]);
            // The gradient of 0.25·w² at 2 is 1: m = .1, √v = .1.
            assert_close(&after, &[2.0 - 0.1 * 0.1 / 0.101, 0.0, 3.0]);
            let after = step(&spec(sgd(), 0.5), 0.0, [-2.0, 0.0, -2.0], [0.0; 3]);
            assert_close(&after, &[-1.95, 0.0, -2.0]);
            let ftrl = Rule::Ftrl {
                initial_accumulator: 0.1,
            };
            let after = step(&spec(ftrl, 1.0), 0.0, [0.0; 3], [0.9, -0.9, 0.9]);
            assert_eq!(after[..2], [0.0; 2], "L1 keeps small weights at 0");
            assert!(after[2] < 0.0, "{after:?}");
        });
    }

    /// Compares with the definition, for the averages of the weights 1, 2, 3 and so on.
    #[test]
    fn weights_are_averaged() {
        fn average<C: Compute<Device: Default>>() {
            let mut spec = spec(sgd(), 0.0);
            spec.optimizer.ema_momentum = Some(0.2);
            let mut walk = Walk::<C>::begin(&spec, 0.0, [0.0; 3]);
            let mut due = 0.0;
            for step in 1..9 {
                walk.step([-1.0; 3], 1.0);
                let done = f64::from(step - 1);
                let kept = (done / (done + 10.0)).min(0.2);
                due = kept * due + (1.0 - kept) * f64::from(step);
                assert_close(&walk.optimizer.average().unwrap().unwrap(), &[due; 3]);
            }
            assert!(due < 8.0, "{due}");
        }
        average::<Host>();
        average::<Device>();
    }

    #[test]
    fn gradients_are_clipped() {
        fn clip<C: Compute<Device: Default>>() {
            let mut spec = spec(sgd(), 0.0);
            spec.optimizer.clip_norm = Some(2.5);
            spec.optimizer.clip_value = Some(1.75);
            let mut walk = Walk::<C>::begin(&spec, 0.0, [0.0; 3]);
            assert_close(&walk.step([3.0, -4.0, 0.0], 1.0), &[-1.5, 1.75, 0.0]);
            assert_close(&walk.step([1.5, -1.0, 0.5], 1.0), &[-3.0, 2.75, -0.5]);
        }
        clip::<Host>();
        clip::<Device>();
    }

    fn sgd() -> Rule {
        Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_found_where_the_gradient_is() {
        fn find<C: Compute<Device: Default>>() {
            let mut walk = Walk::<C>::begin(&spec(sgd(), 0.0), 0.0, [0.0; 3]);
            for (gradient, due) in [
                ([f32::MAX, -f32::MAX, 0.0], None),
                ([0.0, f32::NEG_INFINITY, 0.0], Some(f64::NEG_INFINITY)),
            ] {
                walk.network.write_gradient(&gradient).unwrap();
                let found = walk.network.non_finite_gradient(&gradient).unwrap();
                assert_eq!(found, due);
            }
        }
        find::<Host>();
        find::<Device>();
    }
}
