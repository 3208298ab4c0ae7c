//! Steps that rows of tables were left out of: what an optimizer does to a weight whose gradient is 0, for many steps at
//! once.
//!
//! Without a gradient, a step is linear in a weight w, its average a and a quantity u that the optimizer's state has, so
//! that any number of steps is too:
//!
//! ```text
//!  w ← decay·w − shift·u          u = m / (√v + ε)   Adam
//!  a ← kept·a + rest·w − drift·u      velocity       momentum, RMSProp
//!  each slot ← factor·slot            0              the others
//! ```
//!
//! Only Adam's ε is not part of that: it grows beside √v from step to step. In its place are two values that have the
//! first moments of all, weighted as they are in `shift`: Gauss's quadrature of 1 / (√v + ε). FTRL's weights follow from its state and the
//! learning rate alone. Penalties in the gradient, and averages of weights that FTRL has at different rates, are
//! [not linear](is_linear): tables are then changed as a whole in each step.

use multiversion::multiversion;
use volley_proto::spec::{Optimizer, Rule};

use super::update::{ftrl_weight, penalties};
use crate::network::update::Update;

/// Steps that are kept apart, after which all rows catch up.
pub(super) const MOST_STEPS: usize = 4096;

/// Whether rows can catch up with steps of an optimizer: of tables that are penalized, and the gradient with them.
pub(crate) fn is_linear(optimizer: &Optimizer, penalized: bool) -> bool {
    match optimizer.rule {
        Rule::Adam {
            beta_1,
            beta_2,
            epsilon,
            ..
        } => beta_1 < beta_2 && epsilon > 0.0 && !penalized,
        // Its penalties are not in the gradient.
        Rule::Ftrl { .. } => optimizer.ema_momentum.is_none(),
        Rule::Sgd { .. } | Rule::Adagrad { .. } | Rule::RmsProp { .. } => !penalized,
        Rule::Lbfgs { .. } => false,
    }
}

/// The steps since all rows of a table were last up to date.
#[derive(Debug)]
pub(super) struct History {
    /// Whether the table's weights decay.
    penalized: bool,
    /// Of each step, and of the time before the first, what has come since.
    since: Vec<Steps>,
    last: Option<Last>,
}

/// What the last step says of all.
#[derive(Debug)]
struct Last {
    quantity: Quantity,
    /// Whether the last slot is an average of weights.
    averages: bool,
}

/// What u is.
#[derive(Debug, Clone, Copy)]
enum Quantity {
    /// 0: weights stay.
    None,
    /// m / (√v + ε).
    Ratio,
    /// The last slot.
    Velocity,
    /// 0, and weights follow from the slots.
    Ftrl { rate: f32, l1: f32, l2: f32 },
}

/// Steps without a gradient, in one. Quantities are those of the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    factors: [f64; 2],
    decay: f64,
    shift: f64,
    /// Adam's ε beside √v, its square and its cube, summed as `shift` is.
    epsilons: [f64; 3],
    kept: f64,
    rest: f64,
    drift: f64,
    /// u of the last step, as a share of u before the first.
    share: f64,
    /// √v before the first step, as a multiple of that of the last.
    grown: f64,
}

impl Steps {
    const NONE: Self = Self {
        factors: [1.0; 2],
        decay: 1.0,
        shift: 0.0,
        epsilons: [0.0; 3],
        kept: 1.0,
        rest: 0.0,
        drift: 0.0,
        share: 1.0,
        grown: 1.0,
    };

    /// Adds a step.
    fn add(&mut self, step: &Step) {
        let factors = self.factors.iter_mut().zip(step.factors);
        factors.for_each(|(factor, of_step)| *factor *= of_step);
        self.share *= step.share;
        self.grown *= step.grown;
        let term = step.rate * self.share;
        self.decay *= step.decay;
        self.shift = step.decay * self.shift + term;
        let (epsilon, mut term) = (step.epsilon * self.grown, term);
        for sum in &mut self.epsilons {
            term *= epsilon;
            *sum = step.decay * *sum + term;
        }
        if let Some(kept) = step.kept {
            self.kept *= kept;
            self.rest = kept * self.rest + (1.0 - kept) * self.decay;
            self.drift = kept * self.drift + (1.0 - kept) * self.shift;
        }
    }
}

impl Steps {
    /// Two values for ε, and the share of the first.
    fn epsilons(&self) -> ([f32; 2], f32) {
        if self.shift == 0.0 {
            return ([1.0; 2], 1.0);
        }
        let [first, second, third] = self.epsilons.map(|sum| sum / self.shift);
        let variance = second - first * first;
        // What is left of a difference where all are about the same.
        if variance <= 1e-9 * second {
            return ([first as f32; 2], 1.0);
        }
        let skew = third - first * (3.0 * variance + first * first);
        let middle = 0.5 * skew / variance;
        let apart = (middle * middle + variance).sqrt();
        let values = [first + middle - apart, first + middle + apart];
        (
            values.map(|x| x as f32),
            (0.5 * (1.0 + middle / apart)) as f32,
        )
    }
}

/// One step without a gradient.
#[derive(Debug)]
struct Step {
    factors: [f64; 2],
    decay: f64,
    /// How much of u, as it is in this step, is taken from the weight.
    rate: f64,
    epsilon: f64,
    /// What u, and 1 / √v, are multiplied by before.
    share: f64,
    grown: f64,
    /// What the average keeps of itself, if there is one.
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
                // What is kept of the velocity is added.
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
            last: None,
        }
    }

    /// Steps that were taken.
    pub(super) fn steps(&self) -> usize {
        self.since.len() - 1
    }

    /// Counts a step.
    pub(super) fn add(&mut self, update: &Update<'_>) {
        let step = Step::of(update, self.penalized);
        self.since.iter_mut().for_each(|steps| steps.add(&step));
        self.since.push(Steps::NONE);
        let quantity = match *update.rule {
            Rule::Adam { .. } => Quantity::Ratio,
            Rule::Sgd { momentum, .. } | Rule::RmsProp { momentum, .. } if momentum != 0.0 => {
                Quantity::Velocity
            }
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
}

/// Brings rows of a width up to date, in their weights and in what the optimizer keeps: each has had so many steps.
pub(super) fn catch_up(
    history: &History,
    width: usize,
    had: impl Iterator<Item = u32>,
    weights: &mut [f32],
    slots: &mut [&mut [f32]],
) {
    let behind = had
        .zip(0..)
        .filter(|(had, _)| *had as usize != history.steps());
    let behind: Vec<(u32, u32)> = behind.collect();
    if !behind.is_empty() {
        catch_up_of(history, width, &behind, weights, slots);
    }
}

/// The same, of rows that have had so many steps and are here.
#[multiversion(targets = "simd")]
fn catch_up_of(
    history: &History,
    width: usize,
    rows: &[(u32, u32)],
    weights: &mut [f32],
    slots: &mut [&mut [f32]],
) {
    let Some(last) = &history.last else {
        return;
    };
    let (slots, mut average) = match (last.averages, slots) {
        (true, [slots @ .., average]) => (slots, Some(average)),
        (_, slots) => (slots, None),
    };
    let mut of_row = vec![0.0; width];
    for (had, row) in rows {
        let (row, steps) = (*row as usize, &history.since[*had as usize]);
        let own = row * width..(row + 1) * width;
        let weights = &mut weights[own.clone()];
        // u of each weight, then its slots.
        of_row.fill(0.0);
        match (last.quantity, &mut *slots) {
            (Quantity::Ratio, [mean, square]) => {
                let ([less, more], share) = steps.epsilons();
                let state = mean[own.clone()].iter().zip(&square[own.clone()]);
                for (u, (m, v)) in of_row.iter_mut().zip(state) {
                    let root = v.sqrt();
                    *u = m * (share / (root + less) + (1.0 - share) / (root + more));
                }
            }
            (Quantity::Velocity, [.., velocity]) => {
                of_row.copy_from_slice(&velocity[own.clone()]);
            }
            (Quantity::Ftrl { rate, l1, l2 }, [squares, linear]) => {
                let state = squares[own.clone()].iter().zip(&linear[own.clone()]);
                for (w, (n, z)) in weights.iter_mut().zip(state) {
                    *w = ftrl_weight(n.sqrt(), *z, rate, l1, l2);
                }
            }
            _ => {}
        }
        if let Some(average) = &mut average {
            let [kept, rest, drift] = [steps.kept, steps.rest, steps.drift].map(|x| x as f32);
            let terms = weights.iter().zip(&of_row);
            for (a, (w, u)) in average[own.clone()].iter_mut().zip(terms) {
                *a = kept * *a + rest * w - drift * u;
            }
        }
        let [decay, shift] = [steps.decay, steps.shift].map(|x| x as f32);
        for (w, u) in weights.iter_mut().zip(&of_row) {
            *w = decay * *w - shift * u;
        }
        for (slot, factor) in slots.iter_mut().zip(steps.factors) {
            let factor = factor as f32;
            slot[own.clone()].iter_mut().for_each(|x| *x *= factor);
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::AdamForm;

    use super::super::update;
    use super::*;

    /// A step's learning rate: it rises, then falls.
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
            adam(AdamForm::Torch, 0.95, 1e-3, 0.1),
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
                assert!(matches!(rule, Rule::Ftrl { .. }) && averages);
                continue;
            }
            for (done, steps) in [(0, 1), (0, 2), (3, 10), (7, 60), (50, 700), (2, 5000)] {
                assert_catches_up(&rule, averages, done, steps);
            }
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
        // Gradients of very different sizes, one of which is 0.
        let gradient = [0.3, -2e-2, 1e-5, -3e-8, 0.0, 4.0];
        let start = [0.5, -0.3, 0.0, 0.01, 0.2, -3.0];
        let mut due = start;
        let slots = Optimizer {
            ema_momentum: averages.then_some(0.99),
            rule: rule.clone(),
            ..Optimizer::default()
        };
        let mut slots = vec![vec![0.1; 6]; slots.kept_numbers()];
        let step = |weights: &mut [f32], slots: &mut [Vec<f32>], gradient: &[f32], at| {
            let slots = slots.iter_mut().map(Vec::as_mut_slice).collect();
            update::apply(&of(at), true, weights, gradient, slots);
        };
        for at in 1..=done {
            step(&mut due, &mut slots, &gradient, at);
        }
        let before = slots.clone();
        let (mut weights, mut own) = (due, before.clone());
        let mut history = History::new(true);
        for at in done + 1..=done + steps {
            step(&mut due, &mut slots, &[0.0; 6], at);
            history.add(&of(at));
        }
        let mut own: Vec<&mut [f32]> = own.iter_mut().map(Vec::as_mut_slice).collect();
        catch_up(&history, 3, [0, 0].into_iter(), &mut weights, &mut own);
        let what = format!("{rule:?}, averages: {averages}, {done} steps and {steps}");
        let near = |due: f32, found: f32, moved: f32| {
            // Thousands of steps round thousands of times.
            let most = 2e-6 * (steps as f32).sqrt() * due.abs() + 2e-4 * moved + 1e-12;
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
