//! Options of the optimizer, the learning rate's schedule and early stopping, each of which belongs to some of them.

use volley_proto::spec::{
    AdamForm, Decay, EarlyStop, Optimizer, RateScaling, Rule, Schedule, name_of,
};

use super::{check_read, refused, unread};
use crate::Result;

/// Options of the optimizer, as given.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct OptimizerOptions {
    /// Complete optimizer, in place of all other options but the learning rate.
    pub complete: Option<Optimizer>,
    /// Optimizer; default: L-BFGS for linear models that it can solve, FTRL for linear models with an L1 penalty, and
    /// AdamW for all others.
    pub name: Option<OptimizerName>,
    /// Learning rate before its schedule.
    pub learn_rate: Option<f64>,
    /// Decay of Adam's first moment.
    pub adam_beta_1: Option<f64>,
    /// Decay of Adam's second moment.
    pub adam_beta_2: Option<f64>,
    /// Adam's ε.
    pub adam_epsilon: Option<f64>,
    /// Placement of Adam's ε.
    pub adam_form: Option<AdamForm>,
    /// Weight decay of AdamW.
    pub weight_decay: Option<f64>,
    /// Share of the last change that carries over to the next.
    pub momentum: Option<f64>,
    /// True for Nesterov momentum.
    pub nesterov: Option<bool>,
    /// RMSprop's ρ.
    pub rho: Option<f64>,
    /// ε of Adagrad and RMSprop.
    pub epsilon: Option<f64>,
    /// Initial value of the sum of squared gradients.
    pub initial_accumulator: Option<f64>,
    /// Maximum Euclidean norm of a gradient.
    pub clip_norm: Option<f64>,
    /// Maximum absolute value of each element of a gradient.
    pub clip_value: Option<f64>,
    /// Share of the weights' average that a step keeps.
    pub ema_momentum: Option<f64>,
    /// Schedule of the learning rate.
    pub schedule: Option<ScheduleName>,
    /// Scaling of the learning rate with the number of ranks.
    pub rate_scaling: RateScaling,
    /// Epochs in which the learning rate rises from 0.
    pub warmup_epochs: Option<f64>,
    /// Epochs between two steps of the learning rate.
    pub decay_epochs: Option<usize>,
    /// Factor of the learning rate at a step or a plateau.
    pub decay_factor: Option<f64>,
    /// Epochs without progress that make a plateau.
    pub plateau_patience: Option<usize>,
}

/// Name of an optimizer: `optimizer` in SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum OptimizerName {
    Adam,
    AdamW,
    Sgd,
    Adagrad,
    RmsProp,
    Ftrl,
    Lbfgs,
}

/// Name of a learning rate schedule: `learn_rate_schedule` in SQL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ScheduleName {
    Constant,
    Step,
    Cosine,
    #[default]
    OneCycle,
    Plateau,
}

impl OptimizerName {
    /// All optimizers with their names in SQL.
    pub(super) const ALL: [(&'static str, Self); 7] = [
        ("adam", Self::Adam),
        ("adamw", Self::AdamW),
        ("sgd", Self::Sgd),
        ("adagrad", Self::Adagrad),
        ("rmsprop", Self::RmsProp),
        ("ftrl", Self::Ftrl),
        ("lbfgs", Self::Lbfgs),
    ];
}

impl ScheduleName {
    /// All schedules with their names in SQL.
    pub(super) const ALL: [(&'static str, Self); 5] = [
        ("constant", Self::Constant),
        ("step", Self::Step),
        ("cosine", Self::Cosine),
        ("one_cycle", Self::OneCycle),
        ("plateau", Self::Plateau),
    ];
}

/// Options of early stopping, as given.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct EarlyStopOptions {
    /// True if training may end early.
    pub early_stop: Option<bool>,
    /// Epochs without progress after which training ends.
    pub patience: Option<usize>,
    /// Minimum progress, as a share of the loss.
    pub min_rel_progress: Option<f64>,
}

const PATIENCE: usize = 40;
/// Number of changes that L-BFGS remembers, as in scikit-learn.
const MEMORY: usize = 10;
/// Share of the weights' average that a step keeps, if the optimizer is AdamW by default.
const EMA_MOMENTUM: f64 = 0.99;

impl OptimizerOptions {
    /// Returns the complete optimizer; `default` is its name if none is given.
    ///
    /// # Errors
    /// Names an option that belongs to another rule or schedule.
    pub(super) fn settle(self, default: OptimizerName) -> Result<Optimizer> {
        if let Some(complete) = &self.complete {
            let alone = Self {
                complete: self.complete.clone(),
                learn_rate: self.learn_rate,
                ..Self::default()
            };
            if self != alone {
                let expected = "expected with learn_rate as its only other option";
                return Err(refused("optimizer", complete.to_string(), expected));
            }
            return Ok(Optimizer {
                learn_rate: self.learn_rate.unwrap_or(complete.learn_rate),
                ..complete.clone()
            });
        }
        let name = self.name.unwrap_or(default);
        self.check(name)?;
        let averages = self.name.is_none() && name == OptimizerName::AdamW;
        let Rule::Adam {
            beta_1,
            beta_2,
            epsilon,
            form,
            ..
        } = Rule::default()
        else {
            unreachable!("the default rule is Adam")
        };
        let adam = |weight_decay| Rule::Adam {
            beta_1: self.adam_beta_1.unwrap_or(beta_1),
            beta_2: self.adam_beta_2.unwrap_or(beta_2),
            epsilon: self.adam_epsilon.unwrap_or(epsilon),
            form: self.adam_form.unwrap_or(form),
            weight_decay,
        };
        let momentum = self.momentum.unwrap_or(0.0);
        let epsilon = self.epsilon.unwrap_or(1e-7);
        let initial_accumulator = self.initial_accumulator.unwrap_or(0.1);
        let rule = match name {
            OptimizerName::Lbfgs => Rule::Lbfgs { memory: MEMORY },
            OptimizerName::Adam => adam(0.0),
            OptimizerName::AdamW => adam(self.weight_decay.unwrap_or(0.01)),
            OptimizerName::Sgd => Rule::Sgd {
                momentum,
                nesterov: self.nesterov.unwrap_or(false),
            },
            OptimizerName::Adagrad => Rule::Adagrad {
                initial_accumulator,
                epsilon,
            },
            OptimizerName::RmsProp => Rule::RmsProp {
                rho: self.rho.unwrap_or(0.9),
                momentum,
                epsilon,
            },
            OptimizerName::Ftrl => Rule::Ftrl {
                initial_accumulator,
            },
        };
        let factor = self.decay_factor.unwrap_or(0.1);
        let decay = match self.schedule.unwrap_or_default() {
            _ if name == OptimizerName::Lbfgs => Decay::Constant,
            ScheduleName::Constant => Decay::Constant,
            ScheduleName::Cosine => Decay::Cosine,
            ScheduleName::OneCycle => Decay::OneCycle,
            ScheduleName::Step => Decay::Step {
                epochs: self.decay_epochs.unwrap_or(10),
                factor,
            },
            ScheduleName::Plateau => Decay::Plateau {
                patience: self.plateau_patience.unwrap_or(10),
                factor,
            },
        };
        Ok(Optimizer {
            learn_rate: self.learn_rate.unwrap_or_else(|| rule.default_learn_rate()),
            rule,
            schedule: Schedule {
                warmup_epochs: self.warmup_epochs.unwrap_or(0.0),
                decay,
                scaling: self.rate_scaling,
            },
            clip_norm: self.clip_norm,
            clip_value: self.clip_value,
            ema_momentum: self.ema_momentum.or(averages.then_some(EMA_MOMENTUM)),
        })
    }

    /// Refuses options that nothing reads.
    fn check(&self, rule: OptimizerName) -> Result<()> {
        use OptimizerName::{Adagrad, Adam, AdamW, Ftrl, Lbfgs, RmsProp, Sgd};
        use ScheduleName::{Plateau, Step};
        let number = |x: Option<f64>| x.map(|x| x.to_string());
        let whole = |x: Option<usize>| x.map(|x| x.to_string());
        let of_rules: [(&str, Option<String>, &[OptimizerName]); 10] = [
            ("adam_beta_1", number(self.adam_beta_1), &[Adam, AdamW]),
            ("adam_beta_2", number(self.adam_beta_2), &[Adam, AdamW]),
            ("adam_epsilon", number(self.adam_epsilon), &[Adam, AdamW]),
            (
                "adam_form",
                self.adam_form.map(|x| format!("'{x}'")),
                &[Adam, AdamW],
            ),
            ("weight_decay", number(self.weight_decay), &[AdamW]),
            ("momentum", number(self.momentum), &[Sgd, RmsProp]),
            ("nesterov", self.nesterov.map(|on| on.to_string()), &[Sgd]),
            ("rho", number(self.rho), &[RmsProp]),
            ("epsilon", number(self.epsilon), &[Adagrad, RmsProp]),
            (
                "initial_accumulator",
                number(self.initial_accumulator),
                &[Adagrad, Ftrl],
            ),
        ];
        check_read("optimizer", &OptimizerName::ALL, &rule, of_rules)?;
        if self.nesterov == Some(true) && self.momentum.is_none() {
            let with = "optimizer = 'sgd', and with momentum".to_owned();
            return Err(unread("nesterov", "true".to_owned(), with));
        }
        let of_steps = [
            ("learn_rate", number(self.learn_rate)),
            (
                "learn_rate_schedule",
                self.schedule
                    .map(|x| format!("'{}'", name_of(&ScheduleName::ALL, &x))),
            ),
            ("warmup_epochs", number(self.warmup_epochs)),
            ("clip_norm", number(self.clip_norm)),
            ("clip_value", number(self.clip_value)),
            ("ema_momentum", number(self.ema_momentum)),
        ];
        let of_steps = of_steps.into_iter().find_map(|(name, x)| Some((name, x?)));
        if let (Lbfgs, Some((option, value))) = (rule, of_steps) {
            let with = "another optimizer than 'lbfgs', which finds the length of its steps itself";
            return Err(unread(option, value, with.to_owned()));
        }
        let of_schedules: [(&str, Option<String>, &[ScheduleName]); 3] = [
            ("decay_epochs", whole(self.decay_epochs), &[Step]),
            ("plateau_patience", whole(self.plateau_patience), &[Plateau]),
            ("decay_factor", number(self.decay_factor), &[Step, Plateau]),
        ];
        let schedule = self.schedule.unwrap_or_default();
        check_read(
            "learn_rate_schedule",
            &ScheduleName::ALL,
            &schedule,
            of_schedules,
        )
    }
}

impl EarlyStopOptions {
    /// Returns the complete rule of early stopping, or `None` if training may not end early.
    ///
    /// # Errors
    /// Names an option that nothing reads.
    pub(super) fn settle(self) -> Result<Option<EarlyStop>> {
        let given = self.patience.is_some() || self.min_rel_progress.is_some();
        if self.early_stop.unwrap_or(given) {
            return Ok(Some(EarlyStop {
                patience: self.patience.unwrap_or(PATIENCE),
                min_rel_progress: self.min_rel_progress.unwrap_or(0.0),
            }));
        }
        let given = [
            ("patience", self.patience.map(|x| x.to_string())),
            (
                "min_rel_progress",
                self.min_rel_progress.map(|x| x.to_string()),
            ),
        ];
        match given.into_iter().find_map(|(name, x)| Some((name, x?))) {
            Some((option, value)) => Err(unread(option, value, "early_stop = true".to_owned())),
            None => Ok(None),
        }
    }
}

impl From<Option<EarlyStop>> for EarlyStopOptions {
    fn from(early_stop: Option<EarlyStop>) -> Self {
        Self {
            early_stop: Some(early_stop.is_some()),
            patience: early_stop.map(|of| of.patience),
            min_rel_progress: early_stop.map(|of| of.min_rel_progress),
        }
    }
}

impl From<Optimizer> for OptimizerOptions {
    fn from(optimizer: Optimizer) -> Self {
        match optimizer.rule {
            // It finds the length of its steps itself.
            Rule::Lbfgs { .. } => Self {
                name: Some(OptimizerName::Lbfgs),
                ..Self::default()
            },
            _ => Self {
                complete: Some(optimizer),
                ..Self::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_comes_back_as_it_was_put_in() {
        let optimizer = Optimizer {
            learn_rate: 0.75,
            clip_norm: Some(1.0),
            ..Optimizer::default()
        };
        let mut options = OptimizerOptions::from(optimizer.clone());
        let settled = options.clone().settle(OptimizerName::AdamW).unwrap();
        assert_eq!(settled, optimizer);
        options.learn_rate = Some(0.5);
        let settled = options.clone().settle(OptimizerName::AdamW).unwrap();
        let due = Optimizer {
            learn_rate: 0.5,
            ..optimizer
        };
        assert_eq!(settled, due);
        options.clip_norm = Some(2.0);
        assert!(options.settle(OptimizerName::AdamW).is_err());
    }

    #[test]
    fn what_is_given_goes_before_the_default() {
        let solved = OptimizerOptions::default()
            .settle(OptimizerName::Lbfgs)
            .unwrap();
        assert_eq!(solved.rule, Rule::Lbfgs { memory: MEMORY });
        let back = OptimizerOptions::from(solved.clone());
        assert_eq!(back.settle(OptimizerName::AdamW).unwrap(), solved);
        let ftrl = OptimizerOptions {
            name: Some(OptimizerName::Ftrl),
            ..Default::default()
        };
        assert_eq!(
            ftrl.settle(OptimizerName::Lbfgs).unwrap().rule.name(),
            "ftrl"
        );
    }

    #[test]
    fn options_that_nothing_reads_are_refused() {
        let refused = |options: OptimizerOptions| {
            options
                .settle(OptimizerName::AdamW)
                .unwrap_err()
                .to_string()
        };
        let of_sgd = OptimizerOptions {
            momentum: Some(0.9),
            ..Default::default()
        };
        let error = refused(of_sgd);
        assert!(
            error.contains("momentum") && error.contains("'sgd' or 'rmsprop'"),
            "{error}"
        );
        let of_step = OptimizerOptions {
            schedule: Some(ScheduleName::Plateau),
            decay_epochs: Some(3),
            ..Default::default()
        };
        assert!(refused(of_step).contains("learn_rate_schedule = 'step'"));
        let alone = OptimizerOptions {
            name: Some(OptimizerName::Sgd),
            nesterov: Some(true),
            ..Default::default()
        };
        assert!(refused(alone).contains("with momentum"));
        let of_others = OptimizerOptions {
            schedule: Some(ScheduleName::OneCycle),
            ..Default::default()
        };
        assert!(of_others.clone().settle(OptimizerName::AdamW).is_ok());
        let error = of_others
            .settle(OptimizerName::Lbfgs)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'one_cycle'") && error.contains("'lbfgs'"),
            "{error}"
        );
        let never = EarlyStopOptions {
            early_stop: Some(false),
            patience: Some(3),
            ..Default::default()
        };
        assert!(never.settle().is_err());
    }
}
