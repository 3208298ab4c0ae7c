//! Predictions from a row's outputs: class probabilities, the likeliest class, ordered quantiles.
//!
//! Losses are in [`train`](crate::train), and the labels' original scale in the [model](crate::Model).

/// Appends the probability of each class, computed from the outputs.
pub(crate) fn probabilities(outputs: &[f32], shares: &mut Vec<f32>) {
    if let [logit] = outputs {
        let second = sigmoid(f64::from(*logit)) as f32;
        shares.extend([1.0 - second, second]);
        return;
    }
    let largest = outputs.iter().copied().fold(f32::MIN, f32::max);
    let share = |z: &f32| f64::from(z - largest).exp();
    let sum: f64 = outputs.iter().map(share).sum();
    shares.extend(outputs.iter().map(|z| (share(z) / sum) as f32));
}

/// Returns the probability of the second class, by its logit.
pub(crate) fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// Returns the likeliest class, by the outputs.
pub(crate) fn likeliest(outputs: &[f32]) -> usize {
    match outputs {
        [logit] => usize::from(*logit > 0.0),
        logits => {
            let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
            (0..logits.len()).reduce(better).unwrap_or(0)
        }
    }
}

/// Sorts a row's quantiles in ascending order, so that none cross. Sorted quantiles are no further from the true ones
/// (Chernozhukov, Fernández-Val & Galichon 2010, doi:10.3982/ECTA7880).
pub(crate) fn rearrange(quantiles: &mut [f32]) {
    quantiles.sort_unstable_by(f32::total_cmp);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_by_hand() {
        let mut shares = vec![];
        probabilities(&[0.0], &mut shares);
        probabilities(&[1.0, 1.0, -1000.0], &mut shares);
        assert_eq!(shares, [0.5, 0.5, 0.5, 0.5, 0.0]);
        assert_eq!([likeliest(&[0.5]), likeliest(&[-0.5])], [1, 0]);
        assert_eq!(likeliest(&[0.5, 3.0, 3.0]), 1);
    }
}
