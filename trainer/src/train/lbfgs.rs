//! L-BFGS (Liu & Nocedal 1989, "On the limited memory BFGS method for large scale optimization"), a gradient at a time.
//!
//! Each call gets the gradient at the weights, and moves them to where the next one is to be taken. So a step of it is a
//! step of training like any other: it can end after any, and goes on from what is kept of the weights. What is kept
//! are vectors alone. A step that went too far shows in the slope along it, which rises along a line where the
//! loss is convex: the way is cut to where the slope would vanish. No loss is compared, whose last digits are noise.
//!
//! It does not know of losses, penalties or ranks.

/// A slope at the end of a step, against it, of more than this share of that at its start says that it went too far.
const TOO_FAR: f64 = 0.1;
/// Bounds of the share that a way is cut to.
const CUT: [f64; 2] = [0.1, 0.9];
/// The least cosine between a change and the bend of the slope along it.
const LEAST_CURVATURE: f64 = 1e-8;
/// A gradient whose largest number is below has vanished, as far as `f32` tells.
const VANISHED: f64 = 1e-5;

/// The names of what is kept of each weight, where so many changes are remembered.
pub(super) fn slots(memory: usize) -> Vec<(&'static str, f32)> {
    let pairs = (0..memory).flat_map(|_| [("change", 0.0), ("bend", 0.0)]);
    [("point", 0.0), ("slope", 0.0)]
        .into_iter()
        .chain(pairs)
        .collect()
}

/// Moves the weights by the gradient at them, unless it has vanished, and says whether it has.
///
/// # Panics
/// If the slots are not those that [`slots`] names.
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
        // Of less than rounding has, nothing is learnt.
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
    // A step that no weight can tell is the last.
    weights.iter().zip(&*point).all(|(w, from)| w == from)
}

/// Goes most of the way back, after a step that went to where there is no loss. Says whether there is a way back.
///
/// # Panics
/// As [`step`].
pub(super) fn retreat(slots: &[Vec<f32>], weights: &mut [f32]) -> bool {
    let [point, slope, ..] = slots else {
        panic!("a point and a slope are kept");
    };
    let moved = weights.iter_mut().zip(point);
    moved.for_each(|(w, from)| *w = from + CUT[0] as f32 * (*w - from));
    slope.iter().any(|g| *g != 0.0) && weights.iter().all(|w| w.is_finite())
}

/// The inverse of the curvature that the pairs tell of, times the gradient: algorithm 2 of the paper.
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
        // Not farther than 1 in all, before anything is known of the curvature.
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

    /// Steps until the gradient vanishes, from 0, and where that is.
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
