//! The optimizer's step over weights in host memory, in one pass over each parameter: clipping, penalties, decay, moments
//! and the average of the weights.
//!
//! The pass before it, which finds the gradient's norm, also shows whether all of its numbers are finite.

use multiversion::multiversion;
use volley_proto::spec::Rule;

use crate::network::update::Update;

/// Sums that are added side by side, in vector lanes.
const LANES: usize = 32;

/// Returns the sum of squares; it is finite if all numbers are.
#[multiversion(targets = "simd")]
pub(super) fn square(numbers: &[f32]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    for chunk in chunks.iter().map(<[f32; LANES]>::as_slice).chain([rest]) {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            let number = f64::from(*number);
            *sum += number * number;
        }
    }
    sums.iter().sum()
}

/// Clipping of a step's gradient, by its norm and then by value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clip {
    scale: f32,
    most: f32,
}

impl Clip {
    pub(super) const NONE: Self = Self {
        scale: 1.0,
        most: f32::INFINITY,
    };

    /// Returns how a gradient with this sum of squares is clipped.
    pub(super) fn new(update: &Update<'_>, square: impl FnOnce() -> f64) -> Self {
        let scale = update
            .clip_norm
            .map(|most| (most / square().sqrt()).min(1.0));
        Self {
            scale: scale.map_or(1.0, |scale| scale as f32),
            most: update.clip_value.map_or(f32::INFINITY, |most| most as f32),
        }
    }

    fn of(self, g: f32) -> f32 {
        (g * self.scale).clamp(-self.most, self.most)
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
    clip: Clip,
    penalized: bool,
    weights: &mut [f32],
    gradient: &[f32],
    slots: Vec<&mut [f32]>,
) {
    let [l1, l2] = penalties(update, penalized);
    let of_l2 = |w: f32| 2.0 * l2 * w;
    let penalty = |w: f32| of_l2(w) + if w == 0.0 { 0.0 } else { l1 * w.signum() };
    let of = (update, penalized);
    let clipped = |g: f32| clip.of(g);
    // Computing signs takes a fifth of Adam's time.
    match (clip == Clip::NONE, l1 == 0.0) {
        (true, true) => by_rule(of, weights, gradient, slots, |g| g, of_l2),
        (false, true) => by_rule(of, weights, gradient, slots, clipped, of_l2),
        (_, false) => by_rule(of, weights, gradient, slots, clipped, penalty),
    }
}

/// Updates the weights of a parameter that is penalized or not, given the clipping of its gradient, and the slope of the
/// penalties at a weight.
#[inline(always)]
fn by_rule(
    (update, penalized): (&Update<'_>, bool),
    weights: &mut [f32],
    gradient: &[f32],
    slots: Vec<&mut [f32]>,
    clip: impl Fn(f32) -> f32,
    penalty: impl Fn(f32) -> f32,
) {
    let slope = |g: f32, w: f32| clip(g) + penalty(w);
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
                let g = slope(*g, *w);
                *m = keep[0] * *m + take[0] * g;
                *v = keep[1] * *v + take[1] * (g * g);
                *w = decayed * *w - step.rate * *m / (v.sqrt() + step.epsilon);
            }
        }
        Rule::Sgd { momentum: 0.0, .. } => {
            for (w, g) in weights.iter_mut().zip(gradient) {
                *w -= rate * slope(*g, *w);
            }
        }
        Rule::Sgd { momentum, nesterov } => {
            let momentum = momentum as f32;
            for ((w, g), v) in weights.iter_mut().zip(gradient).zip(slot()) {
                let change = rate * slope(*g, *w);
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
                let g = slope(*g, *w);
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
                let g = slope(*g, *w);
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
                let g = clip(*g);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_squares_is_finite_if_all_numbers_are() {
        for len in [0, 1, LANES, 3 * LANES + 7] {
            let mut numbers = vec![f32::MAX; len];
            let due = len as f64 * f64::from(f32::MAX).powi(2);
            assert!((square(&numbers) - due).abs() <= 1e-12 * due);
            for at in [0, len / 2, len.saturating_sub(1)] {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    if let Some(number) = numbers.get_mut(at) {
                        *number = bad;
                        assert!(!square(&numbers).is_finite());
                        numbers[at] = 0.0;
                    }
                }
            }
        }
    }
}
