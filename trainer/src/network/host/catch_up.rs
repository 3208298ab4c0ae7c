//! Lazy optimizer updates: the steps that a row of a table has skipped, applied at once. The gradient of a skipped step
//! is 0.
//!
//! Without a gradient, a step is linear in a weight w, its average a and a quantity u of the optimizer state, and so is
//! any number of steps:
//!
//! ```text
//!  w ← decay·w − shift·u          u = m / (√v + ε)   Adam
//!  a ← kept·a + rest·w − drift·u      velocity       momentum, RMSProp
//!  each slot ← factor·slot            0              the others
//! ```
//!
//! Only Adam's ε breaks this: relative to √v, it grows from step to step. It is replaced by two values that have the
//! first moments of all of them, weighted as in `shift` or in `drift`: Gauss's quadrature of 1 / (√v + ε). Its error is
//! 0.003 % for β₂ = 0.99, less for greater β₂, and some hundredths in the first steps of PyTorch's form, whose ε grows
//! manifold there. FTRL's weights follow from its state and the learning rate alone. Penalties in the gradient,
//! averages of FTRL's weights at different learning rates, and an ε that grows about as fast as m falls are
//! [not linear](is_linear): such tables are updated as a whole in each step.

use std::sync::OnceLock;

use volley_proto::spec::{Optimizer, Rule};

use super::update::{Numbers, ftrl_weight, penalties};
use crate::network::update::Update;

/// Maximum length of the history: after this many steps all rows catch up.
pub(super) const MOST_STEPS: usize = 4096;

/// Returns whether skipped steps of an optimizer can be applied at once. `penalized` says that the table's gradient has
/// an L1 or L2 term.
pub(crate) fn is_linear(optimizer: &Optimizer, penalized: bool) -> bool {
    match optimizer.rule {
        Rule::Adam {
            beta_1,
            beta_2,
            epsilon,
            ..
        } => beta_1 < beta_2.powi(10) && epsilon > 0.0 && !penalized,
        // FTRL's penalties are not in the gradient.
        Rule::Ftrl { .. } => optimizer.ema_momentum.is_none(),
        Rule::Sgd { .. } | Rule::Adagrad { .. } | Rule::RmsProp { .. } => !penalized,
        Rule::Lbfgs { .. } => false,
    }
}

/// Steps since all rows of a table were last up to date.
#[derive(Debug)]
pub(super) struct History {
    /// Weight decay and FTRL's penalties apply to the table.
    penalized: bool,
    /// Composition of all steps after the n-th, at index n.
    since: Vec<Steps>,
    /// The same as it is applied to rows, once a row needs it.
    skipped: Vec<OnceLock<Skipped>>,
    last: Option<Last>,
}

/// Settings of the last step, which all steps share except for the learning rate.
#[derive(Debug)]
struct Last {
    quantity: Quantity,
    /// The last slot is an average of weights.
    averages: bool,
}

/// Definition of u.
#[derive(Debug, Clone, Copy)]
enum Quantity {
    /// 0: the weights stay.
    None,
    /// m / (√v + ε).
    Ratio,
    /// Velocity in the first slot.
    First,
    /// Velocity in the second slot.
    Second,
    /// 0; the weights follow from the slots.
    Ftrl { rate: f32, l1: f32, l2: f32 },
}

/// Composition of skipped steps: coefficients of the module's formulas.
#[derive(Debug, Clone, Copy)]
struct Steps {
    factors: [f64; 2],
    decay: f64,
    /// Coefficient of u, and the first three moments of Adam's ε relative to √v, with the same weights.
    shift: [f64; 4],
    kept: f64,
    rest: f64,
    /// The same for the average.
    drift: [f64; 4],
    /// u of the last step, as a share of u before the first.
    share: f64,
    /// √v before the first step, as a multiple of √v in the last.
    grown: f64,
}

impl Steps {
    const NONE: Self = Self {
        factors: [1.0; 2],
        decay: 1.0,
        shift: [0.0; 4],
        kept: 1.0,
        rest: 0.0,
        drift: [0.0; 4],
        share: 1.0,
        grown: 1.0,
    };

    /// Adds a step.
    fn add(&mut self, step: &Step) {
        let factors = self.factors.iter_mut().zip(step.factors);
        factors.for_each(|(factor, of_step)| *factor *= of_step);
        self.share *= step.share;
        self.grown *= step.grown;
        self.decay *= step.decay;
        let epsilon = step.epsilon * self.grown;
        let mut term = step.rate * self.share;
        for shift in &mut self.shift {
            *shift = step.decay * *shift + term;
            term *= epsilon;
        }
        if let Some(kept) = step.kept {
            self.kept *= kept;
            self.rest = kept * self.rest + (1.0 - kept) * self.decay;
            let drifts = self.drift.iter_mut().zip(self.shift);
            drifts.for_each(|(drift, shift)| *drift = kept * *drift + (1.0 - kept) * shift);
        }
    }
}

/// Gauss quadrature of 1 / (√v + ε) over the values of Adam's ε: two nodes and their weights, from the moments in
/// [`Steps::shift`].
#[derive(Debug, Clone, Copy)]
struct Epsilons {
    less: f32,
    more: f32,
    /// Weight of the first node.
    share: f32,
}

impl Epsilons {
    fn of([all, first, second, third]: [f64; 4]) -> Self {
        let same = |epsilon: f64| Self {
            less: epsilon as f32,
            more: epsilon as f32,
            share: 1.0,
        };
        if all == 0.0 {
            return same(1.0);
        }
        let [first, second, third] = [first, second, third].map(|sum| sum / all);
        let variance = second - first * first;
        // The variance is rounding error where all values are about the same.
        if variance <= 1e-9 * second {
            return same(first);
        }
        let skew = third - first * (3.0 * variance + first * first);
        let middle = 0.5 * skew / variance;
        let apart = (middle * middle + variance).sqrt();
        Self {
            less: (first + middle - apart) as f32,
            more: (first + middle + apart) as f32,
            share: (0.5 * (1.0 + middle / apart)) as f32,
        }
    }

    /// Returns m / (√v + ε), where `root` is √v.
    #[inline(always)]
    fn ratio(self, m: f32, root: f32) -> f32 {
        m * (self.share / (root + self.less) + (1.0 - self.share) / (root + self.more))
    }
}

/// Coefficients of skipped steps, in the precision of weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skipped {
    quantity: Quantity,
    factors: [f32; 2],
    decay: f32,
    shift: f32,
    of_shift: Epsilons,
    kept: f32,
    rest: f32,
    drift: f32,
    of_drift: Epsilons,
}

impl Skipped {
    fn of(steps: &Steps, quantity: Quantity) -> Self {
        Self {
            quantity,
            factors: steps.factors.map(|factor| factor as f32),
            decay: steps.decay as f32,
            shift: steps.shift[0] as f32,
            of_shift: Epsilons::of(steps.shift),
            kept: steps.kept as f32,
            rest: steps.rest as f32,
            drift: steps.drift[0] as f32,
            of_drift: Epsilons::of(steps.drift),
        }
    }

    /// Applies the steps to numbers of a row; to their average only if `averages`, a constant to the compiler.
    #[inline(always)]
    pub(super) fn apply<const N: usize>(&self, numbers: &mut Numbers<N>, averages: bool) {
        let [weights, first, second, average] = numbers;
        // shift·u and drift·u.
        let [mut moves, mut drifts] = [[0.0; N]; 2];
        match self.quantity {
            Quantity::None => {}
            Quantity::Ratio => {
                let state = first.iter().zip(&*second);
                for ((moved, drift), (m, v)) in moves.iter_mut().zip(&mut drifts).zip(state) {
                    let root = v.sqrt();
                    *moved = self.shift * self.of_shift.ratio(*m, root);
                    if averages {
                        *drift = self.drift * self.of_drift.ratio(*m, root);
                    }
                }
            }
            Quantity::First => {
                for ((moved, drift), u) in moves.iter_mut().zip(&mut drifts).zip(&*first) {
                    (*moved, *drift) = (self.shift * u, self.drift * u);
                }
            }
            // Not one arm with a choice of slot, which would keep both in memory.
            Quantity::Second => {
                for ((moved, drift), u) in moves.iter_mut().zip(&mut drifts).zip(&*second) {
                    (*moved, *drift) = (self.shift * u, self.drift * u);
                }
            }
            Quantity::Ftrl { rate, l1, l2 } => {
                for (w, (n, z)) in weights.iter_mut().zip(first.iter().zip(&*second)) {
                    *w = ftrl_weight(n.sqrt(), *z, rate, l1, l2);
                }
            }
        }
        if averages {
            for (a, (w, drift)) in average.iter_mut().zip(weights.iter().zip(&drifts)) {
                *a = self.kept * *a + self.rest * w - drift;
            }
        }
        for (w, moved) in weights.iter_mut().zip(&moves) {
            *w = self.decay * *w - moved;
        }
        first.iter_mut().for_each(|x| *x *= self.factors[0]);
        second.iter_mut().for_each(|x| *x *= self.factors[1]);
    }
}

/// One step without a gradient.
#[derive(Debug)]
struct Step {
    factors: [f64; 2],
    decay: f64,
    /// Coefficient of this step's u in the weight's change.
    rate: f64,
    epsilon: f64,
    /// Factors of u and of 1 / √v, applied first.
    share: f64,
    grown: f64,
    /// EMA coefficient of the average of weights, if there is one.
    kept: Option<f64>,
}

impl Step {
    fn of(update: &Update<'_>, penalized: bool) -> Self {
        let still = Self {
            factors: [1.0; 2],
            decay: 1.0,
            rate: 0.0,
            epsilon: 0.0,
            share: 1.0,
            grown: 1.0,
            kept: update.kept.map(f64::from),
        };
        match *update.rule {
            Rule::Adam { beta_1, beta_2, .. } => {
                let step = update.adam().expect("the rule is Adam's");
                let decayed = if penalized { step.decayed } else { 1.0 };
                Self {
                    factors: step.keep.map(f64::from),
                    decay: f64::from(decayed),
                    rate: f64::from(step.rate),
                    epsilon: f64::from(step.epsilon),
                    share: beta_1 / beta_2.sqrt(),
                    grown: beta_2.sqrt().recip(),
                    ..still
                }
            }
            Rule::Sgd { momentum, nesterov } => Self {
                factors: [momentum, 1.0],
                // The decayed velocity is added to the weight.
                rate: match (momentum, nesterov) {
                    (0.0, _) => 0.0,
                    (_, true) => -momentum,
                    (_, false) => -1.0,
                },
                share: momentum,
                ..still
            },
            Rule::RmsProp { rho, momentum, .. } => Self {
                factors: [rho, momentum],
                rate: if momentum == 0.0 { 0.0 } else { 1.0 },
                share: momentum,
                ..still
            },
            Rule::Adagrad { .. } | Rule::Ftrl { .. } | Rule::Lbfgs { .. } => still,
        }
    }
}

impl History {
    pub(super) fn new(penalized: bool) -> Self {
        Self {
            penalized,
            since: vec![Steps::NONE],
            skipped: Vec::new(),
            last: None,
        }
    }

    /// Returns the number of recorded steps.
    pub(super) fn steps(&self) -> usize {
        self.since.len() - 1
    }

    /// Records a step.
    pub(super) fn add(&mut self, update: &Update<'_>) {
        let step = Step::of(update, self.penalized);
        self.since.iter_mut().for_each(|steps| steps.add(&step));
        self.since.push(Steps::NONE);
        self.skipped.clear();
        self.skipped.resize_with(self.since.len(), OnceLock::new);
        let quantity = match *update.rule {
            Rule::Adam { .. } => Quantity::Ratio,
            Rule::Sgd { momentum, .. } if momentum != 0.0 => Quantity::First,
            Rule::RmsProp { momentum, .. } if momentum != 0.0 => Quantity::Second,
            Rule::Ftrl { .. } => {
                let [l1, l2] = penalties(update, self.penalized);
                let rate = update.learn_rate as f32;
                Quantity::Ftrl { rate, l1, l2 }
            }
            _ => Quantity::None,
        };
        self.last = Some(Last {
            quantity,
            averages: update.kept.is_some(),
        });
    }

    /// Forgets all steps: every row is up to date.
    pub(super) fn clear(&mut self) {
        self.since.clear();
        self.since.push(Steps::NONE);
    }

    /// Returns whether weight decay and FTRL's penalties apply to the table.
    pub(super) fn penalized(&self) -> bool {
        self.penalized
    }

    /// Returns whether the last slot is an average of weights.
    pub(super) fn averages(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.averages)
    }

    /// Returns the steps that a row has skipped which has had this many, if there are any.
    #[inline(always)]
    pub(super) fn skipped(&self, had: u32) -> Option<&Skipped> {
        let (had, last) = (had as usize, self.last.as_ref()?);
        let skipped = || Skipped::of(&self.since[had], last.quantity);
        (had != self.steps()).then(|| self.skipped[had].get_or_init(skipped))
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::AdamForm;

    use super::super::rows::{self, Rows};
    use super::super::update::{self, Clip, OfParameter, kinds};
    use super::*;

    /// Width of two rows: arrays of each length in turn.
    const WIDTH: usize = 16 + 4 + 1;

    /// Returns the learning rate of a step: it rises, then falls.
    fn rate(step: i32) -> f64 {
        let way = f64::from(step) / 400.0;
        1e-2 * way.min(1.5 - 0.5 * way).max(0.01)
    }

    fn rules() -> Vec<Rule> {
        let adam = |form, beta_2, epsilon, weight_decay| Rule::Adam {
            beta_1: 0.9,
            beta_2,
            epsilon,
            form,
            weight_decay,
        };
        let rms = |momentum| Rule::RmsProp {
            rho: 0.9,
            momentum,
            epsilon: 1e-7,
        };
        let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov };
        vec![
            adam(AdamForm::Keras, 0.999, 1e-7, 0.0),
            adam(AdamForm::Torch, 0.999, 1e-8, 0.1),
            adam(AdamForm::Torch, 0.99, 1e-3, 0.1),
            adam(AdamForm::Keras, 0.99, 1e-2, 0.0),
            sgd(0.0, false),
            sgd(0.9, false),
            sgd(0.9, true),
            rms(0.0),
            rms(0.5),
            Rule::Adagrad {
                initial_accumulator: 0.1,
                epsilon: 1e-7,
            },
            Rule::Ftrl {
                initial_accumulator: 0.1,
            },
        ]
    }

    #[test]
    fn rows_catch_up_with_what_steps_without_a_gradient_do() {
        for (rule, averages) in rules()
            .into_iter()
            .flat_map(|r| [(r.clone(), false), (r, true)])
        {
            let optimizer = Optimizer {
                ema_momentum: averages.then_some(0.99),
                rule: rule.clone(),
                ..Optimizer::default()
            };
            if !is_linear(&optimizer, false) {
                assert!(averages && matches!(rule, Rule::Ftrl { .. }));
                continue;
            }
            for (done, steps) in [(0, 1), (0, 2), (3, 10), (7, 60), (50, 700), (2, 5000)] {
                assert_catches_up(&rule, averages, done, steps);
            }
        }
    }

    #[test]
    fn an_epsilon_that_grows_as_fast_as_the_mean_falls_is_refused() {
        let is_linear = |beta_1, beta_2| {
            let rule = Rule::Adam {
                beta_1,
                beta_2,
                epsilon: 1e-7,
                form: AdamForm::Keras,
                weight_decay: 0.0,
            };
            let optimizer = Optimizer {
                rule,
                ..Optimizer::default()
            };
            is_linear(&optimizer, false)
        };
        for (beta_1, beta_2) in [(0.9, 0.999), (0.9, 0.99), (0.99, 0.9999), (0.0, 0.9)] {
            assert!(is_linear(beta_1, beta_2), "{beta_1} {beta_2}");
        }
        for (beta_1, beta_2) in [(0.9, 0.98), (0.98, 0.99), (0.9, 0.9), (0.5, 0.6)] {
            assert!(!is_linear(beta_1, beta_2), "{beta_1} {beta_2}");
        }
    }

    fn assert_catches_up(rule: &Rule, averages: bool, done: i32, steps: i32) {
        let of = |step: i32| Update {
            rule,
            learn_rate: rate(step),
            steps: step,
            l1: 0.0,
            l2: 0.0,
            clip_norm: None,
            clip_value: None,
            kept: averages.then(|| 0.99_f32.min(step as f32 / (step as f32 + 10.0))),
        };
        // Gradients of very different sizes, one of them 0.
        let gradient = [0.3, -2e-2, 1e-5, -3e-8, 0.0, 4.0].repeat(2 * WIDTH / 6);
        let start = [0.5, -0.3, 0.0, 0.01, 0.2, -3.0].repeat(2 * WIDTH / 6);
        let zero = vec![0.0; 2 * WIDTH];
        let mut due = start.clone();
        let slots = Optimizer {
            ema_momentum: averages.then_some(0.99),
            rule: rule.clone(),
            ..Optimizer::default()
        };
        // Initial slots: sums that divide start above 0.
        let start_of = |slot| match rule {
            Rule::Adagrad { .. } | Rule::Ftrl { .. } if slot == 0 => 0.1,
            _ => 0.0,
        };
        let slots = (0..slots.kept_numbers()).map(|slot| vec![start_of(slot); 2 * WIDTH]);
        let mut slots: Vec<_> = slots.collect();
        let step = |weights: &mut [f32], slots: &mut [Vec<f32>], gradient: &[f32], at| {
            let slots = slots.iter_mut().map(Vec::as_mut_slice);
            let numbers = kinds(weights, slots, averages);
            let step = of(at);
            let of = OfParameter::new(&step, Clip::NONE, true);
            update::apply(&of, numbers, gradient);
        };
        for at in 1..=done {
            step(&mut due, &mut slots, &gradient, at);
        }
        let before = slots.clone();
        let (mut weights, mut own) = (due.clone(), before.clone());
        let mut history = History::new(true);
        for at in done + 1..=done + steps {
            step(&mut due, &mut slots, &zero, at);
            history.add(&of(at));
        }
        // The weights are the same without the average.
        let mut alone = vec![0.0; 2 * WIDTH];
        let [state @ .., _] = kinds(weights.as_slice(), own.iter().map(Vec::as_slice), averages);
        let [all, first, second] = state;
        let rows = Rows {
            history: &history,
            width: WIDTH,
            rows: &[0, 1],
            first: 0,
        };
        rows::read(rows, &[0, 0], [all, first, second, &[]], &mut alone);
        let state = own.iter_mut().map(Vec::as_mut_slice);
        let table = kinds(weights.as_mut_slice(), state, averages);
        rows::catch_up(&history, WIDTH, &[0, 0], table);
        assert_eq!(alone, weights);
        let what = format!("{rule:?}, averages: {averages}, {done} steps and {steps}");
        // In PyTorch's form, ε grows manifold in the first steps.
        let share = match rule {
            Rule::Adam {
                form: AdamForm::Torch,
                ..
            } => 2.0 / (done + 40) as f32,
            _ => 2e-4,
        };
        let near = |due: f32, found: f32, moved: f32| {
            // Rounding errors add up over thousands of steps.
            let most = 2e-6 * (steps as f32).sqrt() * due.abs() + share * moved + 1e-12;
            (due - found).abs() <= most
        };
        for ((due, found), start) in due.iter().zip(&weights).zip(&start) {
            assert!(
                near(*due, *found, (due - start).abs()),
                "{what}: {due} {found}"
            );
        }
        let all = slots.iter().zip(&own).zip(&before);
        for ((due, found), before) in all {
            for ((due, found), before) in due.iter().zip(found.iter()).zip(before) {
                let moved = (due - before).abs();
                assert!(
                    near(*due, *found, moved),
                    "{what}: {due} {found} of {slots:?}"
                );
            }
        }
    }
}
