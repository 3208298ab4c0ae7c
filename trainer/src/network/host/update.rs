//! The optimizer's step over weights in host memory, in one pass over each parameter: clipping, penalties, decay, moments
//! and the average of the weights.
//!
//! The pass before it, which finds the gradient's norm, also shows whether all of its numbers are finite.

use multiversion::multiversion;
use volley_proto::spec::Rule;

use crate::network::update::{AdamStep, Update};

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

/// Kinds of numbers that belong to a weight: itself, up to two slots of the optimizer's rule, and its average.
pub(super) const KINDS: usize = 4;

/// N numbers of each kind; those of absent kinds mean nothing.
pub(super) type Numbers<const N: usize> = [[f32; N]; KINDS];

/// Sorts weights and their optimizer state by kind. Absent kinds are empty.
pub(super) fn kinds<S: Default>(
    weights: S,
    slots: impl IntoIterator<Item = S, IntoIter: DoubleEndedIterator>,
    averages: bool,
) -> [S; KINDS] {
    let mut slots = slots.into_iter();
    let average = if averages { slots.next_back() } else { None };
    let mut slot = || slots.next().unwrap_or_default();
    [weights, slot(), slot(), average.unwrap_or_default()]
}

/// A step's update of a parameter's weights.
#[derive(Debug)]
pub(super) struct OfParameter<'a> {
    update: &'a Update<'a>,
    clip: Clip,
    penalized: bool,
    adam: Option<AdamStep>,
}

impl<'a> OfParameter<'a> {
    pub(super) fn new(update: &'a Update<'a>, clip: Clip, penalized: bool) -> Self {
        Self {
            update,
            clip,
            penalized,
            adam: update.adam(),
        }
    }

    /// Updates weights of a table whose steps may be [skipped](super::is_linear): no penalties are in their gradient.
    #[inline(always)]
    pub(super) fn apply_to<const N: usize>(&self, numbers: &mut Numbers<N>, gradient: &[f32; N]) {
        let [weights, first, second, average] = numbers;
        let numbers: [&mut [f32]; KINDS] = [weights, first, second, average];
        by_rule(self, numbers, gradient, |g| self.clip.of(g), |_| 0.0);
    }
}

/// Updates weights by their gradient.
#[multiversion(targets = "simd")]
pub(super) fn apply(of: &OfParameter<'_>, numbers: [&mut [f32]; KINDS], gradient: &[f32]) {
    let [l1, l2] = penalties(of.update, of.penalized);
    let of_l2 = |w: f32| 2.0 * l2 * w;
    let penalty = |w: f32| of_l2(w) + if w == 0.0 { 0.0 } else { l1 * w.signum() };
    let clipped = |g: f32| of.clip.of(g);
    // Computing signs takes a fifth of Adam's time.
    match (of.clip == Clip::NONE, l1 == 0.0) {
        (true, true) => by_rule(of, numbers, gradient, |g| g, of_l2),
        (false, true) => by_rule(of, numbers, gradient, clipped, of_l2),
        (_, false) => by_rule(of, numbers, gradient, clipped, penalty),
    }
}

/// Updates the weights, given the clipping of their gradient, and the slope of the penalties at a weight.
#[inline(always)]
fn by_rule(
    of: &OfParameter<'_>,
    [weights, first, second, average]: [&mut [f32]; KINDS],
    gradient: &[f32],
    clip: impl Fn(f32) -> f32,
    penalty: impl Fn(f32) -> f32,
) {
    let slope = |g: f32, w: f32| clip(g) + penalty(w);
    let rate = of.update.learn_rate as f32;
    match *of.update.rule {
        Rule::Adam { .. } => {
            let step = of.adam.as_ref().expect("the rule is Adam's");
            let decayed = if of.penalized { step.decayed } else { 1.0 };
            let (keep, take) = (step.keep, step.take);
            let state = first.iter_mut().zip(second);
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
            for ((w, g), v) in weights.iter_mut().zip(gradient).zip(first) {
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
            for ((w, g), a) in weights.iter_mut().zip(gradient).zip(first) {
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
            // Without momentum there is no velocity.
            let velocity = if momentum == 0.0 { &mut [] } else { second };
            let state = weights.iter_mut().zip(gradient).zip(first);
            for (at, ((w, g), a)) in state.enumerate() {
                let g = slope(*g, *w);
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
            let [l1, l2] = penalties(of.update, of.penalized);
            let state = first.iter_mut().zip(second);
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
    if let Some(kept) = of.update.kept {
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
