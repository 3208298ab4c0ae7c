//! Losses of one row, and their slopes: plain functions of the network's outputs and the label.
//!
//! Training and evaluation use the same ones. The network's gradient is that of Σ slope·output with the slopes held
//! fixed, which is the gradient of the loss.

use volley_proto::spec::Loss;
use volley_proto::store::Scale;

/// The loss of a row with these outputs, and its derivative by each of them.
///
/// Of a label that is a class, outputs are logits: the second class' of two, or one for each of more.
pub(super) fn of_row(loss: Loss, outputs: &[f32], label: f32, slopes: &mut [f64]) -> f64 {
    match (loss, outputs) {
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

/// Appends the probability of each class, by the outputs.
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

/// The probability of the second class, by its logit.
fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// The class that these outputs take for the likeliest.
pub(crate) fn likeliest(outputs: &[f32]) -> usize {
    match outputs {
        [logit] => usize::from(*logit > 0.0),
        logits => {
            let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
            (0..logits.len()).reduce(better).unwrap_or(0)
        }
    }
}

/// What a loss of 1 between scaled labels is between labels as they are. Huber's δ is one unit of the scale.
pub(super) fn unit(loss: Loss, scale: &Scale) -> f64 {
    match loss {
        Loss::Mae => scale.unit,
        Loss::Mse | Loss::Huber => scale.unit * scale.unit,
        Loss::LogLoss => 1.0,
    }
}

/// The loss of an error.
fn value(loss: Loss, error: f64) -> f64 {
    match loss {
        Loss::Mae => error.abs(),
        Loss::Huber if error.abs() <= 1.0 => 0.5 * error * error,
        Loss::Huber => error.abs() - 0.5,
        Loss::Mse | Loss::LogLoss => error * error,
    }
}

/// The derivative of the loss by the prediction; 0 where there is none.
fn slope(loss: Loss, error: f64) -> f64 {
    match loss {
        Loss::Mae if error == 0.0 => 0.0,
        Loss::Mae => error.signum(),
        Loss::Huber => error.clamp(-1.0, 1.0),
        Loss::Mse | Loss::LogLoss => 2.0 * error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That slopes are the differences of values, for these outputs.
    fn check(loss: Loss, outputs: &[f32], label: f32) {
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
        for loss in [Loss::Mae, Loss::Mse, Loss::Huber] {
            let mut slope = [f64::NAN];
            assert_eq!((of_row(loss, &[2.0], 2.0, &mut slope), slope), (0.0, [0.0]));
            for error in [-3.0, -1.5, -0.4, 0.2, 0.9, 5.0] {
                check(loss, &[error + 7.0], 7.0);
            }
        }
        for logit in [-60.0, -2.0, 0.0, 0.5, 60.0] {
            check(Loss::LogLoss, &[logit], 0.0);
            check(Loss::LogLoss, &[logit], 1.0);
            check(Loss::LogLoss, &[logit, 0.25, -1.0], 2.0);
        }
    }

    #[test]
    fn log_losses_by_hand() {
        let mut slopes = [0.0; 3];
        let half = of_row(Loss::LogLoss, &[0.0], 1.0, &mut slopes[..1]);
        assert!((half - 2_f64.ln()).abs() < 1e-12);
        let third = of_row(Loss::LogLoss, &[5.0; 3], 0.0, &mut slopes);
        assert!((third - 3_f64.ln()).abs() < 1e-6);
        assert_eq!(
            of_row(Loss::LogLoss, &[1000.0], 0.0, &mut slopes[..1]),
            1000.0
        );
        let mut shares = vec![];
        probabilities(&[0.0], &mut shares);
        probabilities(&[1.0, 1.0, -1000.0], &mut shares);
        assert_eq!(shares, [0.5, 0.5, 0.5, 0.5, 0.0]);
        assert_eq!([likeliest(&[0.5]), likeliest(&[-0.5])], [1, 0]);
        assert_eq!(likeliest(&[0.5, 3.0, 3.0]), 1);
    }
}
