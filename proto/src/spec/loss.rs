//! Losses, and the weights of rows and classes in them. Their arithmetic is the trainer's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Maximum number of quantiles of one model.
const MOST_QUANTILES: usize = 32;

/// Loss of a row; training minimizes its weighted mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Absolute error: the median.
    Mae,
    /// Squared error: the mean.
    Mse,
    /// Huber's, with δ = 1.
    Huber,
    /// Huber's: ½e² of errors up to δ, δ(|e| − ½δ) of greater ones. δ is in standard deviations of the label, where
    /// that is standardized.
    HuberOf {
        /// δ.
        delta: f64,
    },
    /// The quantile that a share of labels is below: share·e for errors above 0 (label − prediction), (share − 1)·e for
    /// those below (Koenker & Bassett 1978).
    Quantile {
        /// Share of labels below the quantile.
        share: f64,
    },
    /// Several quantiles, each by an output of its own: the mean of their losses.
    Quantiles {
        /// Shares in ascending order.
        shares: Vec<f64>,
    },
    /// Tweedie's unit deviance, for counts (power 1: Poisson), amounts above 0 (power 2: gamma) and amounts most of
    /// which are 0 (between). The network predicts the mean's logarithm.
    Tweedie {
        /// Power of the mean with which the variance grows.
        power: f64,
    },
    /// −ln of the probability of the row's class; for classifiers only.
    LogLoss,
    /// −(1 − p)^γ ln p of the probability p of the row's class (Lin et al. 2017, arXiv:1708.02002); for classifiers
    /// only.
    Focal {
        /// γ.
        gamma: f64,
    },
}

/// Weights of classes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassWeights {
    /// Equal weights.
    #[default]
    Equal,
    /// Weights that balance the classes: training rows / (classes · training rows of the class).
    Balanced,
    /// Weights of the named classes, by their value as text; 1 for the others.
    Given(Vec<(String, f64)>),
}

impl Loss {
    /// Checks whether the loss is for classifiers.
    pub fn is_of_classes(&self) -> bool {
        matches!(self, Self::LogLoss | Self::Focal { .. })
    }

    /// Checks whether the network predicts the mean's logarithm.
    pub fn has_log_link(&self) -> bool {
        matches!(self, Self::Tweedie { .. })
    }

    /// Checks whether it is differentiable everywhere and convex in the outputs.
    pub fn is_smooth(&self) -> bool {
        !matches!(
            self,
            Self::Mae | Self::Quantile { .. } | Self::Quantiles { .. } | Self::Focal { .. }
        )
    }

    /// Returns the shares, if there are several quantiles.
    pub fn shares(&self) -> Option<&[f64]> {
        match self {
            Self::Quantiles { shares } => Some(shares),
            _ => None,
        }
    }

    /// Returns the index of the quantile that is a row's prediction: the nearest to the median, the lower of two
    /// equally near. 0 for other losses.
    pub fn median(&self) -> usize {
        let shares = self.shares().unwrap_or_default();
        let distance = |at: usize| (shares[at] - 0.5).abs();
        // Distances that differ by rounding alone count as equal.
        let nearer = |best: usize, at: usize| match distance(at) < distance(best) - 1e-9 {
            true => at,
            false => best,
        };
        (0..shares.len()).reduce(nearer).unwrap_or(0)
    }

    pub(super) fn check(&self) -> Result<()> {
        let refuse = |name: &str, value: f64, expected: &str| {
            Err(Error::option(
                name,
                value.to_string(),
                format!("expected {expected}"),
            ))
        };
        match *self {
            Self::Quantile { share } if !(share > 0.0 && share < 1.0) => {
                refuse("quantile", share, "0 < share < 1")
            }
            Self::Quantiles { ref shares } => check_shares(shares),
            Self::HuberOf { delta } if !(delta > 0.0 && delta.is_finite()) => {
                refuse("huber_delta", delta, "a number > 0")
            }
            Self::Tweedie { power } if !(1.0..=2.0).contains(&power) => {
                refuse("tweedie_power", power, "1 ≤ power ≤ 2")
            }
            Self::Focal { gamma } if !(gamma >= 0.0 && gamma.is_finite()) => {
                refuse("focal_gamma", gamma, "a number ≥ 0")
            }
            _ => Ok(()),
        }
    }
}

fn check_shares(shares: &[f64]) -> Result<()> {
    let expected = if !(2..=MOST_QUANTILES).contains(&shares.len()) {
        format!("expected 2 to {MOST_QUANTILES} shares; for one quantile, a number such as 0.9")
    } else if !shares.iter().all(|share| *share > 0.0 && *share < 1.0) {
        "expected 0 < share < 1 of each".to_owned()
    } else if !shares.is_sorted_by(|share, next| share < next) {
        "expected shares in ascending order, each once".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::option("quantile", listed(shares), expected))
}

/// Formats shares as in `quantile = […]`.
fn listed(shares: &[f64]) -> String {
    let shares: Vec<_> = shares.iter().map(f64::to_string).collect();
    format!("[{}]", shares.join(", "))
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mae => f.write_str("mae"),
            Self::Mse => f.write_str("mse"),
            Self::Huber => f.write_str("huber"),
            Self::HuberOf { delta } => write!(f, "huber, huber_delta {delta}"),
            Self::Quantile { share } => write!(f, "quantile, quantile {share}"),
            Self::Quantiles { shares } => write!(f, "quantile, quantile {}", listed(shares)),
            Self::Tweedie { power: 1.0 } => f.write_str("poisson"),
            Self::Tweedie { power: 2.0 } => f.write_str("gamma"),
            Self::Tweedie { power } => write!(f, "tweedie, tweedie_power {power}"),
            Self::LogLoss => f.write_str("log_loss"),
            Self::Focal { gamma } => write!(f, "focal, focal_gamma {gamma}"),
        }
    }
}

impl fmt::Display for ClassWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("equal"),
            Self::Balanced => f.write_str("balanced"),
            Self::Given(weights) => {
                for (at, (class, weight)) in weights.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{class}: {weight}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantiles(shares: &[f64]) -> Loss {
        Loss::Quantiles {
            shares: shares.to_vec(),
        }
    }

    #[test]
    fn the_prediction_is_the_quantile_nearest_to_the_median() {
        for (shares, at) in [
            (&[0.05, 0.5, 0.95][..], 1),
            (&[0.05, 0.95], 0),
            (&[0.1, 0.2, 0.45, 0.6], 2),
            (&[0.6, 0.9], 0),
        ] {
            assert_eq!(quantiles(shares).median(), at, "{shares:?}");
        }
        assert_eq!(Loss::Mse.median(), 0);
    }

    #[test]
    fn shares_are_refused_as_they_are_typed() {
        for shares in [
            &[][..],
            &[0.5],
            &[0.0, 0.5],
            &[0.5, 1.0],
            &[0.5, 0.5],
            &[0.9, 0.1],
            &[0.1, f64::NAN],
            &[0.5; 33],
        ] {
            let error = quantiles(shares).check().unwrap_err().to_string();
            assert!(error.contains(&listed(shares)), "{error}");
        }
        quantiles(&[0.05, 0.5, 0.95]).check().unwrap();
    }

    #[test]
    fn losses_come_back_from_text() {
        for loss in [quantiles(&[0.05, 0.95]), Loss::Quantile { share: 0.9 }] {
            let text = serde_json::to_string(&loss).unwrap();
            assert_eq!(serde_json::from_str::<Loss>(&text).unwrap(), loss);
        }
    }
}
