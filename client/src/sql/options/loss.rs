//! Options of the loss, each of which belongs to one loss.

use std::fmt;

use volley_proto::spec::{Loss, Task, name_of};

use super::{check_read, unread};
use crate::Result;

/// Options of the loss, as given.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct LossOptions {
    /// Name of the loss; default: the task's.
    pub name: Option<LossName>,
    /// Huber's δ.
    pub huber_delta: Option<f64>,
    /// Level of a quantile, or the levels of several.
    pub quantile: Option<QuantileLevels>,
    /// Tweedie's power.
    pub tweedie_power: Option<f64>,
    /// γ of the focal loss.
    pub focal_gamma: Option<f64>,
}

/// `quantile` in SQL: shares of labels below a prediction, each between 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub enum QuantileLevels {
    /// `0.9`
    One(f64),
    /// `[0.05, 0.5, 0.95]`
    Several(Vec<f64>),
}

/// Name of a loss: `loss` in SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LossName {
    Mae,
    Mse,
    Huber,
    Quantile,
    Poisson,
    Gamma,
    Tweedie,
    LogLoss,
    Focal,
}

impl LossName {
    /// All losses with their names in SQL.
    pub(super) const ALL: [(&'static str, Self); 9] = [
        ("mae", Self::Mae),
        ("mse", Self::Mse),
        ("huber", Self::Huber),
        ("quantile", Self::Quantile),
        ("poisson", Self::Poisson),
        ("gamma", Self::Gamma),
        ("tweedie", Self::Tweedie),
        ("log_loss", Self::LogLoss),
        ("focal", Self::Focal),
    ];
}

impl LossOptions {
    /// Returns the complete loss of a task.
    ///
    /// # Errors
    /// Names an option that belongs to another loss, or a loss that belongs to another task.
    pub(super) fn settle(&self, task: Task) -> Result<Loss> {
        use LossName::{Focal, Gamma, Huber, LogLoss, Mae, Mse, Poisson, Quantile, Tweedie};
        let name = self.name.unwrap_or(match task {
            Task::Regression => Mse,
            Task::Classification => LogLoss,
        });
        let text = |number: Option<f64>| number.map(|number| number.to_string());
        let quantile = self.quantile.as_ref().map(QuantileLevels::to_string);
        let of_losses: [(&str, Option<String>, &[LossName]); 4] = [
            ("huber_delta", text(self.huber_delta), &[Huber]),
            ("quantile", quantile, &[Quantile]),
            ("tweedie_power", text(self.tweedie_power), &[Tweedie]),
            ("focal_gamma", text(self.focal_gamma), &[Focal]),
        ];
        check_read("loss", &LossName::ALL, &name, of_losses)?;
        let loss = match name {
            Mae => Loss::Mae,
            Mse => Loss::Mse,
            Huber => match self.huber_delta {
                Some(delta) => Loss::HuberOf { delta },
                None => Loss::Huber,
            },
            Quantile => match &self.quantile {
                None => Loss::Quantile { share: 0.5 },
                Some(QuantileLevels::One(share)) => Loss::Quantile { share: *share },
                Some(QuantileLevels::Several(shares)) => Loss::Quantiles {
                    shares: shares.clone(),
                },
            },
            Poisson => Loss::Tweedie { power: 1.0 },
            Gamma => Loss::Tweedie { power: 2.0 },
            Tweedie => Loss::Tweedie {
                power: self.tweedie_power.unwrap_or(1.5),
            },
            LogLoss => Loss::LogLoss,
            Focal => Loss::Focal {
                gamma: self.focal_gamma.unwrap_or(2.0),
            },
        };
        if loss.is_of_classes() != (task == Task::Classification) {
            let value = name_of(&LossName::ALL, &name);
            let other = match task {
                Task::Regression => "model_type = 'dnn_classifier' or 'logistic_reg'",
                Task::Classification => "model_type = 'dnn_regressor' or 'linear_reg'",
            };
            return Err(unread("loss", format!("'{value}'"), other.to_owned()));
        }
        Ok(loss)
    }
}

/// Prints the levels as in SQL.
impl fmt::Display for QuantileLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(share) => share.fmt(f),
            Self::Several(shares) => {
                let shares: Vec<_> = shares.iter().map(f64::to_string).collect();
                write!(f, "[{}]", shares.join(", "))
            }
        }
    }
}

impl From<Loss> for LossOptions {
    fn from(loss: Loss) -> Self {
        let named = |name| Self {
            name: Some(name),
            ..Self::default()
        };
        match loss {
            Loss::Mae => named(LossName::Mae),
            Loss::Mse => named(LossName::Mse),
            Loss::Huber => named(LossName::Huber),
            Loss::HuberOf { delta } => Self {
                huber_delta: Some(delta),
                ..named(LossName::Huber)
            },
            Loss::Quantile { share } => Self {
                quantile: Some(QuantileLevels::One(share)),
                ..named(LossName::Quantile)
            },
            Loss::Quantiles { shares } => Self {
                quantile: Some(QuantileLevels::Several(shares)),
                ..named(LossName::Quantile)
            },
            Loss::Tweedie { power } => Self {
                tweedie_power: Some(power),
                ..named(LossName::Tweedie)
            },
            Loss::LogLoss => named(LossName::LogLoss),
            Loss::Focal { gamma } => Self {
                focal_gamma: Some(gamma),
                ..named(LossName::Focal)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_comes_back_as_it_was_put_in() {
        let of_numbers = [
            Loss::Mae,
            Loss::Mse,
            Loss::Huber,
            Loss::HuberOf { delta: 2.0 },
            Loss::Quantile { share: 0.9 },
            Loss::Quantiles {
                shares: vec![0.05, 0.95],
            },
            Loss::Tweedie { power: 1.0 },
            Loss::Tweedie { power: 1.7 },
        ];
        for loss in of_numbers {
            let options = LossOptions::from(loss.clone());
            assert_eq!(options.settle(Task::Regression).unwrap(), loss);
            assert!(options.settle(Task::Classification).is_err());
        }
        for loss in [Loss::LogLoss, Loss::Focal { gamma: 1.0 }] {
            let options = LossOptions::from(loss.clone());
            assert_eq!(options.settle(Task::Classification).unwrap(), loss);
            assert!(options.settle(Task::Regression).is_err());
        }
        let unread = LossOptions {
            quantile: Some(QuantileLevels::Several(vec![0.05, 0.5])),
            ..LossOptions::default()
        };
        let error = unread.settle(Task::Regression).unwrap_err().to_string();
        for said in ["[0.05, 0.5]", "only with loss = 'quantile'"] {
            assert!(error.contains(said), "{error}");
        }
    }
}
