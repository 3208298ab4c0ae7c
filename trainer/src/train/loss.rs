//! Losses of one row, and their slopes: plain functions of the error ŷ − y.
//!
//! Training and evaluation use the same ones. The network's gradient is that of Σ slope·ŷ with
//! the slopes held fixed, which is the gradient of the loss.

use volley_proto::spec::Loss;

/// The loss of an error.
pub(super) fn value(loss: Loss, error: f64) -> f64 {
    match loss {
        Loss::Mae => error.abs(),
        Loss::Mse => error * error,
        Loss::Huber if error.abs() <= 1.0 => 0.5 * error * error,
        Loss::Huber => error.abs() - 0.5,
    }
}

/// The derivative of the loss by the prediction; 0 where there is none.
pub(super) fn slope(loss: Loss, error: f64) -> f64 {
    match loss {
        Loss::Mae if error == 0.0 => 0.0,
        Loss::Mae => error.signum(),
        Loss::Mse => 2.0 * error,
        Loss::Huber => error.clamp(-1.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_the_derivatives() {
        for loss in [Loss::Mae, Loss::Mse, Loss::Huber] {
            assert_eq!((value(loss, 0.0), slope(loss, 0.0)), (0.0, 0.0));
            for error in [-3.0, -1.0, -0.4, 0.2, 0.99, 5.0] {
                let h = 1e-6;
                let measured = (value(loss, error + h) - value(loss, error - h)) / (2.0 * h);
                assert!(
                    (slope(loss, error) - measured).abs() < 1e-6,
                    "{loss:?} at {error}"
                );
            }
        }
    }
}
