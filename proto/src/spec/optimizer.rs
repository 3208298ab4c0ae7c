//! Optimizer options: the update rule, the learning rate schedule, and early stopping. They are the user's choices; the
//! trainer does the arithmetic.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::name_of;
use crate::{Error, Result};

/// Optimizer of the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Learning rate before its schedule.
    pub learn_rate: f64,
    /// Update rule.
    pub rule: Rule,
    /// Schedule of the learning rate.
    pub schedule: Schedule,
    /// Maximum Euclidean norm of the gradient (of the loss, without penalties); a longer one is shortened to it.
    pub clip_norm: Option<f64>,
    /// Bound on the absolute value of each number of the gradient, applied after that.
    pub clip_value: Option<f64>,
    /// Share that the weights' exponential moving average keeps in each step, and less in the first: `(t - 1) / (t +
    /// 9)` in step `t`. The averaged weights are evaluated and published.
    pub ema_momentum: Option<f64>,
}

/// Update rule: how a step changes a weight `w` with gradient `g` at learning rate `α`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Rule {
    /// Adam (Kingma & Ba 2015, arXiv:1412.6980).
    Adam {
        /// Decay of the first moment.
        beta_1: f64,
        /// Decay of the second moment.
        beta_2: f64,
        /// ε of the denominator.
        epsilon: f64,
        /// Position of ε.
        form: AdamForm,
        /// Weight decay: before each step, kernels of hidden layers are multiplied by `1 − α·weight_decay`: AdamW
        /// (Loshchilov & Hutter 2019, arXiv:1711.05101). 0 is Adam.
        weight_decay: f64,
    },
    /// Stochastic gradient descent, in Keras' form: `v ← momentum·v − α·g`, and `w ← w + v`.
    Sgd {
        /// Share of the last change that is kept.
        momentum: f64,
        /// True for `w ← w + momentum·v − α·g` instead (Nesterov 1983).
        nesterov: bool,
    },
    /// Adagrad (Duchi, Hazan & Singer 2011), in Keras' form: `a ← a + g²`, and `w ← w − α·g / √(a + ε)`.
    Adagrad {
        /// Initial value of `a`.
        initial_accumulator: f64,
        /// ε.
        epsilon: f64,
    },
    /// RMSprop (Tieleman & Hinton 2012), in Keras' form: `a ← ρ·a + (1−ρ)·g²`, `v ← momentum·v + α·g / √(a + ε)`, and
    /// `w ← w − v`.
    RmsProp {
        /// ρ.
        rho: f64,
        /// Share of the last change that is kept.
        momentum: f64,
        /// ε.
        epsilon: f64,
    },
    /// FTRL-Proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches"), in Keras' form. The L1 and
    /// L2 penalties are parts of its rule: L1 makes weights exactly 0.
    Ftrl {
        /// Initial sum of squared gradients.
        initial_accumulator: f64,
    },
    /// L-BFGS (Liu & Nocedal 1989) over all rows at once, for linear models: a step uses the gradient of all rows, and
    /// there is no learning rate. It ends where the gradient vanishes.
    Lbfgs {
        /// Number of changes that it remembers.
        memory: usize,
    },
}

/// Position of Adam's ε.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdamForm {
    /// `m · α·√(1−β₂ᵗ)/(1−β₁ᵗ) / (√v + ε)`, as in Keras and the paper's section 2.
    Keras,
    /// `α·m̂ / (√v̂ + ε)`, as in PyTorch and the paper's algorithm 1.
    Torch,
}

/// Schedule of the learning rate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Epochs, or fractions of them, in which the rate rises linearly from 0.
    pub warmup_epochs: f64,
    /// Decay after the warm-up.
    pub decay: Decay,
    /// Scaling with the number of ranks.
    pub scaling: RateScaling,
}

/// Scaling of the learning rate with the ranks that training begins with, where each has rows of its own in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateScaling {
    /// No scaling.
    #[default]
    None,
    /// Multiplied by the number of ranks (Goyal et al. 2017, arXiv:1706.02677).
    Linear,
    /// Multiplied by the square root of the number of ranks (Krizhevsky 2014, arXiv:1404.5997).
    Sqrt,
}

/// Decay of the learning rate after warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Decay {
    /// Constant.
    #[default]
    Constant,
    /// Multiplied by a factor at an interval of epochs.
    Step {
        /// Epochs between two changes.
        epochs: usize,
        /// Factor of each change.
        factor: f64,
    },
    /// Falls to 0 at the end of the last epoch, along half a cosine (Loshchilov & Hutter 2017, arXiv:1608.03983).
    Cosine,
    /// Rises from a 25th along half a cosine in the first 30 % of all steps, and falls to 0 along another (Smith &
    /// Topin 2018, arXiv:1708.07120).
    OneCycle,
    /// Multiplied by a factor when the evaluation loss (the training loss if nothing is evaluated) has not fallen for
    /// some epochs.
    Plateau {
        /// Epochs without a lower loss.
        patience: usize,
        /// Factor of each change.
        factor: f64,
    },
}

/// Condition for ending training before its last epoch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStop {
    /// Epochs without progress after which training ends.
    pub patience: usize,
    /// Progress: the share by which the evaluation loss (the training loss if nothing is evaluated) must fall below its
    /// previous minimum.
    pub min_rel_progress: f64,
}

impl AdamForm {
    /// All forms, with their names.
    pub const ALL: [(&'static str, Self); 2] = [("keras", Self::Keras), ("torch", Self::Torch)];
}

impl fmt::Display for AdamForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, self))
    }
}

impl Rule {
    /// Returns Adam with Keras' numbers, and this weight decay.
    pub const fn adam(weight_decay: f64) -> Self {
        Self::Adam {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
            form: AdamForm::Keras,
            weight_decay,
        }
    }

    /// Returns the rule's default learning rate.
    pub fn default_learn_rate(&self) -> f64 {
        match self {
            Self::Adam { .. } | Self::RmsProp { .. } => 4e-3,
            Self::Sgd { .. } | Self::Adagrad { .. } | Self::Ftrl { .. } => 1e-2,
            Self::Lbfgs { .. } => 1.0,
        }
    }

    /// Returns the rule's name as an option's value.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Adam { weight_decay, .. } if *weight_decay > 0.0 => "adamw",
            Self::Adam { .. } => "adam",
            Self::Sgd { .. } => "sgd",
            Self::Adagrad { .. } => "adagrad",
            Self::RmsProp { .. } => "rmsprop",
            Self::Ftrl { .. } => "ftrl",
            Self::Lbfgs { .. } => "lbfgs",
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())?;
        let mut numbers = vec![];
        match self.rule {
            Rule::Adam {
                beta_1,
                beta_2,
                epsilon,
                form,
                weight_decay,
            } => {
                numbers.extend([("beta_1", beta_1), ("beta_2", beta_2), ("epsilon", epsilon)]);
                if weight_decay > 0.0 {
                    numbers.push(("weight_decay", weight_decay));
                }
                write!(f, ", form {form}")?;
            }
            Rule::Sgd { momentum, nesterov } => {
                numbers.push(("momentum", momentum));
                if nesterov {
                    f.write_str(", nesterov")?;
                }
            }
            Rule::Adagrad {
                initial_accumulator,
                epsilon,
            } => numbers.extend([
                ("initial_accumulator", initial_accumulator),
                ("epsilon", epsilon),
            ]),
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
            } => numbers.extend([("rho", rho), ("momentum", momentum), ("epsilon", epsilon)]),
            Rule::Ftrl {
                initial_accumulator,
            } => numbers.push(("initial_accumulator", initial_accumulator)),
            Rule::Lbfgs { memory } => write!(f, ", memory {memory}")?,
        }
        numbers.extend(self.clip_norm.map(|norm| ("clip_norm", norm)));
        numbers.extend(self.clip_value.map(|value| ("clip_value", value)));
        numbers.extend(self.ema_momentum.map(|share| ("ema_momentum", share)));
        for (name, number) in numbers {
            write!(f, ", {name} {number}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decay {
            Decay::Constant => f.write_str("constant"),
            Decay::Step { epochs, factor } => write!(f, "step, × {factor} every {epochs} epochs"),
            Decay::Cosine => f.write_str("cosine"),
            Decay::OneCycle => f.write_str("one_cycle"),
            Decay::Plateau { patience, factor } => {
                write!(f, "plateau, × {factor} after {patience} epochs")
            }
        }?;
        if self.warmup_epochs > 0.0 {
            write!(f, ", warmup_epochs {}", self.warmup_epochs)?;
        }
        match self.scaling {
            RateScaling::None => Ok(()),
            RateScaling::Linear => f.write_str(", × ranks"),
            RateScaling::Sqrt => f.write_str(", × √ranks"),
        }
    }
}

impl Default for Rule {
    fn default() -> Self {
        Self::adam(0.0)
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        let rule = Rule::default();
        Self {
            learn_rate: rule.default_learn_rate(),
            rule,
            schedule: Schedule::default(),
            clip_norm: None,
            clip_value: None,
            ema_momentum: None,
        }
    }
}

impl Optimizer {
    /// Returns how many numbers it keeps for each weight, the average of weights included.
    pub fn kept_numbers(&self) -> usize {
        let of_rule = match self.rule {
            Rule::Adam { .. } | Rule::Ftrl { .. } => 2,
            Rule::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Rule::Adagrad { .. } => 1,
            Rule::RmsProp { momentum, .. } => 1 + usize::from(momentum != 0.0),
            // A pair for each remembered step, and the last point with its gradient.
            Rule::Lbfgs { memory } => 2 * memory + 2,
        };
        of_rule + usize::from(self.ema_momentum.is_some())
    }

    /// Checks that its numbers are within their bounds.
    pub(super) fn check(&self) -> Result<()> {
        let mut numbers = vec![("learn_rate", self.learn_rate, Bounds::Positive)];
        numbers.extend(
            self.clip_norm
                .map(|norm| ("clip_norm", norm, Bounds::Positive)),
        );
        numbers.extend(
            self.clip_value
                .map(|value| ("clip_value", value, Bounds::Positive)),
        );
        numbers.extend(
            self.ema_momentum
                .map(|share| ("ema_momentum", share, Bounds::Share)),
        );
        match self.rule {
            Rule::Adam {
                beta_1,
                beta_2,
                epsilon,
                weight_decay,
                ..
            } => numbers.extend([
                ("adam_beta_1", beta_1, Bounds::Share),
                ("adam_beta_2", beta_2, Bounds::Share),
                ("adam_epsilon", epsilon, Bounds::Positive),
                ("weight_decay", weight_decay, Bounds::NotNegative),
            ]),
            Rule::Sgd { momentum, .. } => numbers.push(("momentum", momentum, Bounds::Share)),
            Rule::Adagrad {
                initial_accumulator,
                epsilon,
            } => numbers.extend([
                (
                    "initial_accumulator",
                    initial_accumulator,
                    Bounds::NotNegative,
                ),
                ("epsilon", epsilon, Bounds::Positive),
            ]),
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
            } => numbers.extend([
                ("rho", rho, Bounds::Share),
                ("momentum", momentum, Bounds::Share),
                ("epsilon", epsilon, Bounds::Positive),
            ]),
            Rule::Ftrl {
                initial_accumulator,
            } => numbers.push(("initial_accumulator", initial_accumulator, Bounds::Positive)),
            Rule::Lbfgs { memory: 0 } => {
                return Err(Error::option(
                    "optimizer",
                    "lbfgs",
                    "expected to remember a change at least",
                ));
            }
            Rule::Lbfgs { .. } => {}
        }
        numbers.push((
            "warmup_epochs",
            self.schedule.warmup_epochs,
            Bounds::NotNegative,
        ));
        let epochs = match self.schedule.decay {
            Decay::Constant | Decay::Cosine | Decay::OneCycle => None,
            Decay::Step { epochs, factor } => Some(("decay_epochs", epochs, factor)),
            Decay::Plateau { patience, factor } => Some(("plateau_patience", patience, factor)),
        };
        if let Some((name, epochs, factor)) = epochs {
            if epochs == 0 {
                return Err(Error::option(name, "0", "expected at least 1 epoch"));
            }
            numbers.push(("decay_factor", factor, Bounds::ShareAboveZero));
        }
        check_numbers(&numbers)
    }
}

impl EarlyStop {
    /// Checks that its numbers are within their bounds.
    pub(super) fn check(&self) -> Result<()> {
        if self.patience == 0 {
            return Err(Error::option("patience", "0", "expected at least 1 epoch"));
        }
        check_numbers(&[("min_rel_progress", self.min_rel_progress, Bounds::Share)])
    }
}

/// Bounds of a number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Bounds {
    Positive,
    NotNegative,
    Share,
    ShareAboveZero,
}

/// Checks each number; an error names its option.
pub(super) fn check_numbers(numbers: &[(&str, f64, Bounds)]) -> Result<()> {
    for (name, value, bounds) in numbers {
        let (fine, expected) = match bounds {
            Bounds::Positive => (*value > 0.0, "a number > 0"),
            Bounds::NotNegative => (*value >= 0.0, "a number ≥ 0"),
            Bounds::Share => ((0.0..1.0).contains(value), "0 ≤ number < 1"),
            Bounds::ShareAboveZero => (*value > 0.0 && *value < 1.0, "0 < number < 1"),
        };
        if !(fine && value.is_finite()) {
            let expected = format!("expected {expected}");
            return Err(Error::option(*name, value.to_string(), expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_is_read_as_it_was_written() {
        let sgd = Optimizer {
            rule: Rule::Sgd {
                momentum: 0.9,
                nesterov: true,
            },
            clip_norm: Some(1.0),
            ema_momentum: Some(0.99),
            ..Optimizer::default()
        };
        for optimizer in [Optimizer::default(), sgd] {
            let json = serde_json::to_string(&optimizer).unwrap();
            assert_eq!(serde_json::from_str::<Optimizer>(&json).unwrap(), optimizer);
        }
        assert!(serde_json::from_str::<Optimizer>(r#"{"learn_rate":0.5}"#).is_err());
    }
}
