//! Losses of one row, and their slopes: plain functions of the network's outputs and the label.
//!
//! Training and evaluation use the same functions. The network computes the gradient of Σ slope·output with
//! the slopes held fixed, which is the gradient of the loss.

use volley_proto::spec::Loss;
use volley_proto::store::Scale;

use crate::network::sigmoid;

/// Returns the loss of a row with these outputs, and writes its derivative by each output to `slopes`.
///
/// For a classification label the outputs are logits: that of the second of two classes, or one per class if
/// there are more.
pub(super) fn of_row(loss: &Loss, outputs: &[f32], label: f32, slopes: &mut [f64]) -> f64 {
    match (loss, outputs) {
        (Loss::Focal { gamma }, outputs) => focal(*gamma, outputs, label as usize, slopes),
        (Loss::Quantiles { shares }, outputs) => {
            let count = shares.len() as f64;
            let mut total = 0.0;
            for ((share, output), of_output) in shares.iter().zip(outputs).zip(slopes) {
                let of = Loss::Quantile { share: *share };
                let error = f64::from(*output) - f64::from(label);
                *of_output = slope(&of, error) / count;
                total += value(&of, error) / count;
            }
            total
        }
        (Loss::Tweedie { power }, outputs) => {
            let (value, slope) = deviance(*power, f64::from(outputs[0]), f64::from(label));
            slopes[0] = slope;
            value
        }
        (Loss::LogLoss, [logit]) => {
            let (z, y) = (f64::from(*logit), f64::from(label));
            slopes[0] = sigmoid(z) - y;
            // ln(1 + e^z) − y·z, without overflow.
            z.max(0.0) + (-z.abs()).exp().ln_1p() - y * z
        }
        (Loss::LogLoss, logits) => {
            let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
            let shares = logits.iter().map(|z| (f64::from(*z) - largest).exp());
            slopes
                .iter_mut()
                .zip(shares)
                .for_each(|(slope, share)| *slope = share);
            let sum: f64 = slopes.iter().sum();
            slopes.iter_mut().for_each(|slope| *slope /= sum);
            let class = label as usize;
            slopes[class] -= 1.0;
            largest + sum.ln() - f64::from(logits[class])
        }
        (loss, outputs) => {
            let error = f64::from(outputs[0]) - f64::from(label);
            slopes[0] = slope(loss, error);
            value(loss, error)
        }
    }
}

/// Returns the loss of a row with one output for each of several labels: the sum of the labels' losses, each
/// times its weight, or 1 if no weights are given. For one label it is the [loss](of_row) of all outputs.
pub(super) fn of_labels(
    loss: &Loss,
    weights: &[f64],
    outputs: &[f32],
    labels: &[f32],
    slopes: &mut [f64],
) -> f64 {
    if let [label] = labels {
        return of_row(loss, outputs, *label, slopes);
    }
    let mut total = 0.0;
    for (at, label) in labels.iter().enumerate() {
        let weight = weights.get(at).copied().unwrap_or(1.0);
        let own = at..at + 1;
        total += weight * of_row(loss, &outputs[own.clone()], *label, &mut slopes[own]);
        slopes[at] *= weight;
    }
    total
}

/// Computes the focal loss from the log loss and its slopes: `f(p) = −(1−p)^γ ln p`, and `ln p` has the
/// opposite slopes.
fn focal(gamma: f64, outputs: &[f32], class: usize, slopes: &mut [f64]) -> f64 {
    let log_loss = of_row(&Loss::LogLoss, outputs, class as f32, slopes);
    let p = (-log_loss).exp();
    let rest = -(-log_loss).exp_m1();
    let scale = rest.powf(gamma);
    // d/d(−ln p): the second term is 0 · ∞ where p is 1.
    let steep = match rest > 0.0 {
        true => gamma * rest.powf(gamma - 1.0) * p * log_loss,
        false => 0.0,
    };
    slopes.iter_mut().for_each(|slope| *slope *= scale + steep);
    scale * log_loss
}

/// Computes Tweedie's unit deviance for a mean with this logarithm, and its derivative by the logarithm
/// (Jørgensen 1987).
fn deviance(power: f64, log_mean: f64, y: f64) -> (f64, f64) {
    let mean = log_mean.exp();
    if power == 1.0 {
        let part = if y > 0.0 {
            y * (y.ln() - log_mean)
        } else {
            0.0
        };
        return (2.0 * (part - y + mean), 2.0 * (mean - y));
    }
    if power == 2.0 {
        let ratio = y / mean;
        return (2.0 * (ratio - ratio.ln() - 1.0), 2.0 * (1.0 - ratio));
    }
    let [first, second] = [1.0 - power, 2.0 - power];
    let of_mean = [first, second].map(|exponent| (exponent * log_mean).exp());
    let of_y = if y > 0.0 { y.powf(second) } else { 0.0 };
    let value = of_y / (first * second) - y * of_mean[0] / first + of_mean[1] / second;
    (2.0 * value, 2.0 * (of_mean[1] - y * of_mean[0]))
}

/// Returns the unscaled value of a loss of 1 between scaled labels. Huber's δ is one unit of the scale.
pub(super) fn unit(loss: &Loss, scale: &Scale) -> f64 {
    match loss {
        Loss::Mae | Loss::Quantile { .. } | Loss::Quantiles { .. } => scale.unit,
        Loss::Mse | Loss::Huber | Loss::HuberOf { .. } => scale.unit * scale.unit,
        Loss::Tweedie { power } => scale.unit.powf(2.0 - power),
        Loss::LogLoss | Loss::Focal { .. } => 1.0,
    }
}

/// Returns the unscaled value of a loss of 1; for several labels, which share no other scale, 1.
pub(super) fn unit_of(loss: &Loss, scales: &[Scale]) -> f64 {
    match scales {
        [scale] => unit(loss, scale),
        _ => 1.0,
    }
}

/// Returns the loss of an error, which is prediction − label.
fn value(loss: &Loss, error: f64) -> f64 {
    let huber = |delta: f64| match error.abs() <= delta {
        true => 0.5 * error * error,
        false => delta * (error.abs() - 0.5 * delta),
    };
    match loss {
        Loss::Mae => error.abs(),
        Loss::Huber => huber(1.0),
        Loss::HuberOf { delta } => huber(*delta),
        Loss::Quantile { share } => (-share * error).max((1.0 - share) * error),
        Loss::Mse
        | Loss::LogLoss
        | Loss::Focal { .. }
        | Loss::Tweedie { .. }
        | Loss::Quantiles { .. } => error * error,
    }
}

/// Returns the derivative of the loss by the prediction, or 0 if it has none.
fn slope(loss: &Loss, error: f64) -> f64 {
    match loss {
        Loss::Mae if error == 0.0 => 0.0,
        Loss::Mae => error.signum(),
        Loss::Huber => error.clamp(-1.0, 1.0),
        Loss::HuberOf { delta } => error.clamp(-*delta, *delta),
        Loss::Quantile { .. } if error == 0.0 => 0.0,
        Loss::Quantile { share } if error < 0.0 => -share,
        Loss::Quantile { share } => 1.0 - share,
        Loss::Mse
        | Loss::LogLoss
        | Loss::Focal { .. }
        | Loss::Tweedie { .. }
        | Loss::Quantiles { .. } => 2.0 * error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that slopes match differences of values, for these outputs.
    fn check(loss: &Loss, outputs: &[f32], label: f32) {
        let mut slopes = vec![f64::NAN; outputs.len()];
        of_row(loss, outputs, label, &mut slopes);
        for at in 0..outputs.len() {
            let moved = |by: f32| {
                let mut outputs = outputs.to_vec();
                outputs[at] += by;
                of_row(loss, &outputs, label, &mut vec![0.0; outputs.len()])
            };
            let h = 1.0 / 1024.0;
            let measured = (moved(h) - moved(-h)) / (2.0 * f64::from(h));
            assert!(
                (slopes[at] - measured).abs() < 1e-4,
                "{loss:?} of {outputs:?} and {label} by {at}: {} and {measured}",
                slopes[at]
            );
        }
    }

    #[test]
    fn slopes_are_the_derivatives() {
        let of_errors = [
            Loss::Mae,
            Loss::Mse,
            Loss::Huber,
            Loss::HuberOf { delta: 0.5 },
            Loss::Quantile { share: 0.9 },
        ];
        for loss in &of_errors {
            let mut slope = [f64::NAN];
            assert_eq!((of_row(loss, &[2.0], 2.0, &mut slope), slope), (0.0, [0.0]));
            for error in [-3.0, -1.5, -0.4, 0.2, 0.9, 5.0] {
                check(loss, &[error + 7.0], 7.0);
            }
        }
        let quantiles = Loss::Quantiles {
            shares: vec![0.1, 0.5, 0.75],
        };
        for outputs in [[1.0, 2.0, 4.0], [4.0, 1.0, 2.5], [-1.0, -2.0, 0.0]] {
            check(&quantiles, &outputs, 3.0);
        }
        for power in [1.0, 1.5, 2.0] {
            let tweedie = Loss::Tweedie { power };
            for log_mean in [-1.0, 0.0, 0.75] {
                check(&tweedie, &[log_mean], 1.5);
                if power < 2.0 {
                    check(&tweedie, &[log_mean], 0.0);
                }
            }
            let mut slope = [f64::NAN];
            let least = of_row(&tweedie, &[0.5], 0.5_f32.exp(), &mut slope);
            assert!(
                least.abs() < 1e-6 && slope[0].abs() < 1e-6,
                "{power}: {least}"
            );
        }
        for gamma in [0.0, 0.5, 2.0] {
            for logit in [-2.0, 0.0, 0.5] {
                check(&Loss::Focal { gamma }, &[logit], 1.0);
                check(&Loss::Focal { gamma }, &[logit, 0.25, -1.0], 0.0);
            }
            check(&Loss::Focal { gamma }, &[60.0], 1.0);
        }
        for logit in [-60.0, -2.0, 0.0, 0.5, 60.0] {
            check(&Loss::LogLoss, &[logit], 0.0);
            check(&Loss::LogLoss, &[logit], 1.0);
            check(&Loss::LogLoss, &[logit, 0.25, -1.0], 2.0);
        }
    }

    #[test]
    fn quantiles_have_the_mean_of_their_losses() {
        let quantiles = Loss::Quantiles {
            shares: vec![0.1, 0.5, 0.75],
        };
        let mut slopes = [f64::NAN; 3];
        let loss = of_row(&quantiles, &[1.0, 4.0, 2.0], 3.0, &mut slopes);
        assert!((loss - (0.1 * 2.0 + 0.5 + 0.75) / 3.0).abs() < 1e-12);
        let due = [-0.1, 0.5, -0.75].map(|slope| slope / 3.0);
        assert_eq!(slopes, due);
        let mut outputs = [4.0, -1.0, 2.5];
        let crossed = of_row(&quantiles, &outputs, 3.0, &mut slopes);
        crate::network::rearrange(&mut outputs);
        assert_eq!(outputs, [-1.0, 2.5, 4.0]);
        assert!(of_row(&quantiles, &outputs, 3.0, &mut slopes) < crossed);
    }

    #[test]
    fn labels_have_the_weighted_sum_of_their_losses() {
        let (outputs, labels) = ([1.0, -2.0, 0.5], [0.0, 1.0, 0.5]);
        let of = |weights: &[f64], outputs: &[f32]| {
            let mut slopes = [f64::NAN; 3];
            let loss = of_labels(&Loss::Mse, weights, outputs, &labels, &mut slopes);
            (loss, slopes)
        };
        assert_eq!(of(&[], &outputs), (10.0, [2.0, -6.0, 0.0]));
        let weights = [2.0, 0.5, 3.0];
        let (loss, slopes) = of(&weights, &outputs);
        assert_eq!(loss, 6.5);
        let h = 1.0 / 1024.0;
        for at in 0..3 {
            let moved = |by: f32| {
                let mut outputs = outputs;
                outputs[at] += by;
                of(&weights, &outputs).0
            };
            let measured = (moved(h) - moved(-h)) / (2.0 * f64::from(h));
            assert!((slopes[at] - measured).abs() < 1e-6, "{slopes:?}");
        }
        let mut slope = [f64::NAN];
        assert_eq!(of_labels(&Loss::Mse, &[], &[3.0], &[1.0], &mut slope), 4.0);
        let scale = Scale {
            unit: 3.0,
            ..Scale::IDENTITY
        };
        let units = [&[scale][..], &[scale; 2]].map(|scales| unit_of(&Loss::Mse, scales));
        assert_eq!(units, [9.0, 1.0]);
    }

    #[test]
    fn log_losses_by_hand() {
        let mut slopes = [0.0; 3];
        let half = of_row(&Loss::LogLoss, &[0.0], 1.0, &mut slopes[..1]);
        assert!((half - 2_f64.ln()).abs() < 1e-12);
        let third = of_row(&Loss::LogLoss, &[5.0; 3], 0.0, &mut slopes);
        assert!((third - 3_f64.ln()).abs() < 1e-6);
        assert_eq!(
            of_row(&Loss::LogLoss, &[1000.0], 0.0, &mut slopes[..1]),
            1000.0
        );
    }
}
