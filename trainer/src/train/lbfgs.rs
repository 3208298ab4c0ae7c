//! L-BFGS (Liu & Nocedal 1989, "On the limited memory BFGS method for large scale optimization"), one
//! gradient at a time.
//!
//! Each call gets the gradient at the weights, and moves them to the point of the next gradient. So one of
//! its steps is a step of training like any other: training can end after any, and continues from the slots,
//! which are vectors only. The slope along a step shows that the step went too far, since the slope rises
//! along a line where the loss is convex; the step is then shortened to the point at which the slope would
//! vanish. Losses are not compared, because their last digits are noise.
//!
//! It knows nothing of losses, penalties or ranks.

/// Maximum rising slope at the end of a step, as a share of the slope's size at its start; a steeper one
/// means that the step went too far.
const TOO_FAR: f64 = 0.1;
/// Bounds of the share to which a step is shortened.
const CUT: [f64; 2] = [0.1, 0.9];
/// Minimum cosine between a change of the weights and the change of the slope along it.
const LEAST_CURVATURE: f64 = 1e-8;
/// Bound on the largest number of a gradient below which it has vanished, within the precision of `f32`.
const VANISHED: f64 = 1e-5;

/// Slot of the weights that the last move started from.
pub(super) const POINT: usize = 0;

/// Returns the names and initial values of the numbers kept per weight, with `memory` remembered changes.
pub(super) fn slots(memory: usize) -> Vec<(&'static str, f32)> {
    let pairs = (0..memory).flat_map(|_| [("change", 0.0), ("bend", 0.0)]);
    [("point", 0.0), ("slope", 0.0)]
        .into_iter()
        .chain(pairs)
        .collect()
}

/// Moves the weights by the gradient at them. Returns true if the gradient has vanished, or the move changes
/// no weight.
///
/// # Panics
/// If the slots are not those of [`slots`].
pub(super) fn step(slots: &mut [Vec<f32>], gradient: &[f64], weights: &mut [f32]) -> bool {
    let [point, slope, pairs @ ..] = slots else {
        panic!("a point and a slope are kept");
    };
    if gradient.iter().all(|g| g.abs() < VANISHED) {
        return true;
    }
    if slope.iter().any(|g| *g != 0.0) {
        let change: Vec<f64> = differences(weights, point);
        let (before, after) = (dot(slope, &change), dot64(gradient, &change));
        if after > TOO_FAR * before.abs() {
            let [least, most] = CUT;
            let share = (before.abs() / (before.abs() + after)).clamp(least, most) as f32;
            let moved = weights.iter_mut().zip(&*point);
            moved.for_each(|(w, from)| *w = from + share * (*w - from));
            return false;
        }
        let bend: Vec<f64> = gradient
            .iter()
            .zip(&*slope)
            .map(|(g, s)| g - f64::from(*s))
            .collect();
        let curvature = dot64(&bend, &change);
        // A curvature within rounding teaches nothing.
        let least = LEAST_CURVATURE * (dot64(&bend, &bend) * dot64(&change, &change)).sqrt();
        if curvature > least {
            pairs.rotate_right(2);
            store(&mut pairs[0], &change);
            store(&mut pairs[1], &bend);
        }
    }
    point.copy_from_slice(weights);
    store(slope, gradient);
    let direction = direction(pairs, gradient);
    let moved = weights.iter_mut().zip(direction);
    moved.for_each(|(w, d)| *w = (f64::from(*w) - d) as f32);
    // A step that changes no weight is the last.
    weights.iter().zip(&*point).all(|(w, from)| w == from)
}

/// Goes most of the way back after a step to weights without a loss. Returns false if there is no way back.
///
/// # Panics
/// See [`step`].
pub(super) fn retreat(slots: &[Vec<f32>], weights: &mut [f32]) -> bool {
    let [point, slope, ..] = slots else {
        panic!("a point and a slope are kept");
    };
    let moved = weights.iter_mut().zip(point);
    moved.for_each(|(w, from)| *w = from + CUT[0] as f32 * (*w - from));
    slope.iter().any(|g| *g != 0.0) && weights.iter().all(|w| w.is_finite())
}

/// Multiplies the gradient by the inverse of the curvature in the pairs: algorithm 2 of the paper.
fn direction(pairs: &[Vec<f32>], gradient: &[f64]) -> Vec<f64> {
    let mut d = gradient.to_vec();
    let known = pairs.chunks_exact(2).map(|pair| (&pair[0], &pair[1]));
    let known: Vec<_> = known
        .map(|(change, bend)| (change, bend, dot32(change, bend)))
        .filter(|(_, _, curvature)| *curvature > 0.0)
        .collect();
    let mut shares = Vec::with_capacity(known.len());
    for (change, bend, curvature) in &known {
        let share = dot(change, &d) / curvature;
        add(&mut d, bend, -share);
        shares.push(share);
    }
    let scale = match known.first() {
        Some((_, bend, curvature)) => curvature / dot32(bend, bend),
        // Without known curvature, the step's length is at most 1.
        None => (1.0 / dot64(gradient, gradient).sqrt()).min(1.0),
    };
    d.iter_mut().for_each(|d| *d *= scale);
    for ((change, bend, curvature), share) in known.iter().zip(shares).rev() {
        let back = dot(bend, &d) / curvature;
        add(&mut d, change, share - back);
    }
    d
}

fn differences(to: &[f32], from: &[f32]) -> Vec<f64> {
    to.iter()
        .zip(from)
        .map(|(to, from)| f64::from(*to) - f64::from(*from))
        .collect()
}

fn store(slot: &mut [f32], values: &[f64]) {
    slot.iter_mut()
        .zip(values)
        .for_each(|(slot, value)| *slot = *value as f32);
}

fn add(to: &mut [f64], of: &[f32], times: f64) {
    to.iter_mut()
        .zip(of)
        .for_each(|(to, of)| *to += times * f64::from(*of));
}

fn dot(left: &[f32], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(l, r)| f64::from(*l) * r).sum()
}

fn dot32(left: &[f32], right: &[f32]) -> f64 {
    left.iter()
        .zip(right)
        .map(|(l, r)| f64::from(*l) * f64::from(*r))
        .sum()
}

fn dot64(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(l, r)| l * r).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes steps from 0 until the gradient vanishes; returns their number and the final weights.
    fn solve(len: usize, gradient: impl Fn(&[f32]) -> Vec<f64>) -> (usize, Vec<f32>) {
        let mut slots: Vec<Vec<f32>> = slots(10).iter().map(|_| vec![0.0; len]).collect();
        let mut weights = vec![0.0; len];
        for steps in 0..500 {
            if step(&mut slots, &gradient(&weights), &mut weights) {
                return (steps, weights);
            }
        }
        panic!("no end after 500 steps: {weights:?}");
    }

    #[test]
    fn ellipsoids_are_solved() {
        let curvatures = [1.0, 3.0, 10.0, 100.0, 0.1];
        let centers = [2.0, -1.0, 0.5, 3.0, -4.0];
        let gradient = |at: &[f32]| {
            let terms = at.iter().zip(curvatures).zip(centers);
            terms
                .map(|((x, c), center)| c * (f64::from(*x) - center))
                .collect()
        };
        let (steps, found) = solve(5, gradient);
        let near = found
            .iter()
            .zip(centers)
            .all(|(x, c)| (f64::from(*x) - c).abs() < 1e-3);
        assert!(near && steps < 60, "{steps} steps: {found:?}");
    }

    #[test]
    fn what_bends_away_is_solved() {
        // e^x − 5x + e^(−3y) + y: steps by the curvature at 0 go too far.
        let gradient = |at: &[f32]| {
            let [x, y] = [f64::from(at[0]), f64::from(at[1])];
            vec![x.exp() - 5.0, 1.0 - 3.0 * (-3.0 * y).exp()]
        };
        let (steps, found) = solve(2, gradient);
        let due = [5_f64.ln(), 3_f64.ln() / 3.0];
        let near = found
            .iter()
            .zip(due)
            .all(|(x, due)| (f64::from(*x) - due).abs() < 1e-4);
        assert!(near && steps < 60, "{steps} steps: {found:?}");
    }
}
