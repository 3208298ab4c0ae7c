//! The optimizer's step over weights in host memory, in one pass over each parameter.

use multiversion::multiversion;
use volley_proto::spec::Rule;

use crate::network::update::Update;

/// Clips a gradient by its norm, then by value.
pub(super) fn clip(update: &Update<'_>, gradient: &mut [f32]) {
    if let Some(most) = update.clip_norm {
        let square: f64 = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
        let norm = square.sqrt();
        if norm > most {
            let scale = (most / norm) as f32;
            gradient.iter_mut().for_each(|g| *g *= scale);
        }
    }
    if let Some(most) = update.clip_value {
        let most = most as f32;
        gradient.iter_mut().for_each(|g| *g = g.clamp(-most, most));
    }
}

/// Returns the L1 and the L2 penalty of a parameter.
pub(super) fn penalties(update: &Update<'_>, penalized: bool) -> [f32; 2] {
    [update.l1, update.l2].map(|penalty| if penalized { penalty as f32 } else { 0.0 })
}

/// Returns FTRL's weight, from the root of the sum of squares and the linear term.
#[inline(always)]
pub(super) fn ftrl_weight(root: f32, z: f32, rate: f32, l1: f32, l2: f32) -> f32 {
    (z.clamp(-l1, l1) - z) / (root / rate + 2.0 * l2)
}

/// Updates the weights of a parameter. `slots` is their optimizer state.
#[multiversion(targets = "simd")]
pub(super) fn apply(
    update: &Update<'_>,
    penalized: bool,
    weights: &mut [f32],
    gradient: &[f32],
    slots: Vec<&mut [f32]>,
) {
    let [l1, l2] = penalties(update, penalized);
    let of_l2 = |w: f32| 2.0 * l2 * w;
    // Computing signs takes a fifth of Adam's time.
    if l1 == 0.0 {
        return by_rule(update, penalized, weights, gradient, slots, of_l2);
    }
    let penalty = |w: f32| of_l2(w) + if w == 0.0 { 0.0 } else { l1 * w.signum() };
    by_rule(update, penalized, weights, gradient, slots, penalty);
}

/// Updates the weights, given the slope of the penalties at a weight.
#[inline(always)]
fn by_rule(
    update: &Update<'_>,
    penalized: bool,
    weights: &mut [f32],
    gradient: &[f32],
    slots: Vec<&mut [f32]>,
    penalty: impl Fn(f32) -> f32,
) {
    let mut slots = slots.into_iter();
    let rate = update.learn_rate as f32;
    let average = update
        .kept
        .and_then(|kept| Some((kept, slots.next_back()?)));
    let mut slot = || slots.next().unwrap_or_default();
    match *update.rule {
        Rule::Adam { .. } => {
            let step = update.adam().expect("the rule is Adam's");
            let decayed = if penalized { step.decayed } else { 1.0 };
            let (keep, take) = (step.keep, step.take);
            let state = slot().iter_mut().zip(slot());
            for ((w, g), (m, v)) in weights.iter_mut().zip(gradient).zip(state) {
                let g = g + penalty(*w);
                *m = keep[0] * *m + take[0] * g;
                *v = keep[1] * *v + take[1] * (g * g);
                *w = decayed * *w - step.rate * *m / (v.sqrt() + step.epsilon);
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
        // FTRL's penalties are not in the gradient.
        Rule::Ftrl { .. } => {
            let [l1, l2] = penalties(update, penalized);
            let state = slot().iter_mut().zip(slot());
            for ((w, g), (n, z)) in weights.iter_mut().zip(gradient).zip(state) {
                let before = n.sqrt();
                *n += g * g;
                let root = n.sqrt();
                *z += g - (root - before) / rate * *w;
                *w = ftrl_weight(root, *z, rate, l1, l2);
            }
        }
        Rule::Lbfgs { .. } => unreachable!("its steps are of all weights at once"),
    }
    if let Some((kept, average)) = average {
        for (a, w) in average.iter_mut().zip(&*weights) {
            *a = kept * *a + (1.0 - kept) * *w;
        }
    }
}
