//! Options of the optimizer, its schedule and the length of training.

use volley_proto::spec::{AdamForm, Keep, RateScaling};

use super::super::{OptimizerName, ScheduleName};
use super::set::{boolean, choose, number, set, whole};
use super::{TrainOption, option};

pub(super) const LEARNING: &[TrainOption] = &[
    option(
        "optimizer",
        "'adam', 'adamw', 'sgd', 'adagrad', 'rmsprop', 'ftrl', 'lbfgs'",
        "'adamw'; 'lbfgs' of linear models that it can solve, 'ftrl' of those with l1_reg",
        "The rule by which weights follow their gradient, in Keras' form. 'lbfgs' solves linear models: its steps are of \
         all rows at once, and end where the gradient vanishes.",
        |to, value| {
            set(
                &mut to.optimizer.name,
                Some(choose(value, &OptimizerName::ALL)?),
            )
        },
    ),
    option(
        "learn_rate",
        "number > 0",
        "0.004; 0.01 with 'sgd', 'adagrad' and 'ftrl'",
        "The learning rate (Adam's step size α), before its schedule.",
        |to, value| set(&mut to.optimizer.learn_rate, Some(number(value)?)),
    ),
    option(
        "learn_rate_schedule",
        "'constant', 'step', 'cosine', 'one_cycle', 'plateau'",
        "'one_cycle'",
        "What becomes of the learning rate: it stays; it is multiplied by decay_factor every decay_epochs; it falls to 0 \
         along half a cosine; it rises from a 25th in the first 30 % of all steps and then falls so; or it is multiplied by \
         decay_factor where the evaluation loss has not fallen for plateau_patience epochs.",
        |to, value| {
            let chosen = choose(value, &ScheduleName::ALL)?;
            set(&mut to.optimizer.schedule, Some(chosen))
        },
    ),
    option(
        "learn_rate_scaling",
        "'none', 'linear', 'sqrt'",
        "'none'",
        "With batch_size: whether the learning rate is multiplied by the ranks that training begins with, or by their \
         square root. warmup_epochs lets it rise to that.",
        |to, value| {
            let choices = [
                ("none", RateScaling::None),
                ("linear", RateScaling::Linear),
                ("sqrt", RateScaling::Sqrt),
            ];
            set(&mut to.optimizer.rate_scaling, choose(value, &choices)?)
        },
    ),
    option(
        "warmup_epochs",
        "number ≥ 0",
        "0",
        "Epochs, or parts of them, in which the learning rate rises from 0 in a line.",
        |to, value| set(&mut to.optimizer.warmup_epochs, Some(number(value)?)),
    ),
    option(
        "decay_epochs",
        "whole number",
        "10",
        "For 'step': epochs after which the learning rate is multiplied.",
        |to, value| set(&mut to.optimizer.decay_epochs, Some(whole(value)?)),
    ),
    option(
        "decay_factor",
        "0 < factor < 1",
        "0.1",
        "For 'step' and 'plateau': what the learning rate is multiplied by.",
        |to, value| set(&mut to.optimizer.decay_factor, Some(number(value)?)),
    ),
    option(
        "plateau_patience",
        "whole number",
        "10",
        "For 'plateau': epochs without progress.",
        |to, value| set(&mut to.optimizer.plateau_patience, Some(whole(value)?)),
    ),
    option(
        "adam_beta_1",
        "0 ≤ β < 1",
        "0.9",
        "For 'adam' and 'adamw': decay of the first moment.",
        |to, value| set(&mut to.optimizer.adam_beta_1, Some(number(value)?)),
    ),
    option(
        "adam_beta_2",
        "0 ≤ β < 1",
        "0.999",
        "For 'adam' and 'adamw': decay of the second moment.",
        |to, value| set(&mut to.optimizer.adam_beta_2, Some(number(value)?)),
    ),
    option(
        "adam_epsilon",
        "number > 0",
        "1e-7",
        "For 'adam' and 'adamw': ε.",
        |to, value| set(&mut to.optimizer.adam_epsilon, Some(number(value)?)),
    ),
    option(
        "adam_form",
        "'keras', 'torch'",
        "'keras'",
        "For 'adam' and 'adamw': where ε stands, α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε), or α·m̂ / (√v̂ + ε).",
        |to, value| {
            let chosen = choose(value, &AdamForm::ALL)?;
            set(&mut to.optimizer.adam_form, Some(chosen))
        },
    ),
    option(
        "weight_decay",
        "number ≥ 0",
        "0.01",
        "For 'adamw': before each step, the hidden layers' kernels and a linear part's weights are multiplied by 1 − α · weight_decay.",
        |to, value| set(&mut to.optimizer.weight_decay, Some(number(value)?)),
    ),
    option(
        "momentum",
        "0 ≤ share < 1",
        "0",
        "For 'sgd' and 'rmsprop': the share of the last change that goes on.",
        |to, value| set(&mut to.optimizer.momentum, Some(number(value)?)),
    ),
    option(
        "nesterov",
        "true, false",
        "false",
        "For 'sgd' with momentum: whether it is Nesterov's.",
        |to, value| set(&mut to.optimizer.nesterov, Some(boolean(value)?)),
    ),
    option(
        "rho",
        "0 ≤ ρ < 1",
        "0.9",
        "For 'rmsprop': decay of the squared gradients' mean.",
        |to, value| set(&mut to.optimizer.rho, Some(number(value)?)),
    ),
    option(
        "epsilon",
        "number > 0",
        "1e-7",
        "For 'adagrad' and 'rmsprop': ε.",
        |to, value| set(&mut to.optimizer.epsilon, Some(number(value)?)),
    ),
    option(
        "initial_accumulator",
        "number ≥ 0",
        "0.1",
        "For 'adagrad' and 'ftrl': where the sum of squared gradients starts.",
        |to, value| set(&mut to.optimizer.initial_accumulator, Some(number(value)?)),
    ),
    option(
        "clip_norm",
        "number > 0",
        "(none)",
        "A gradient (of the loss, over all rows of a step) with a greater Euclidean norm is shortened to it.",
        |to, value| set(&mut to.optimizer.clip_norm, Some(number(value)?)),
    ),
    option(
        "clip_value",
        "number > 0",
        "(none)",
        "Each number of the gradient is kept within ± this.",
        |to, value| set(&mut to.optimizer.clip_value, Some(number(value)?)),
    ),
    option(
        "ema_momentum",
        "0 ≤ m < 1",
        "0.99 where optimizer is not given",
        "Weights are evaluated and published as their exponential moving average over steps, of which each step keeps \
         this share (less at first: (t − 1) / (t + 9) in step t). 0 is no average.",
        |to, value| set(&mut to.optimizer.ema_momentum, Some(number(value)?)),
    ),
    option(
        "global_batch_size",
        "whole number",
        "a 32nd of the training rows, rounded up to a power of two, from 32 to 256",
        "Rows of a step, of all ranks together: what is learnt does not depend on how many there are.",
        |to, value| set(&mut to.global_batch_size, Some(whole(value)?)),
    ),
    option(
        "batch_size",
        "whole number",
        "(none)",
        "Rows of a step of one rank, instead; the global batch is batch_size × the ranks that training begins with.",
        |to, value| set(&mut to.batch_size, Some(whole(value)?)),
    ),
    option(
        "accumulate",
        "whole number",
        "1",
        "Backward passes of a step: a rank computes its rows in so many parts and adds up their gradients, which takes less \
         memory. global_batch_size counts the rows of all passes, batch_size those of one.",
        |to, value| set(&mut to.accumulate, whole(value)?),
    ),
    option(
        "epochs",
        "whole number",
        "as many as make 4,000 steps, from 20 to 400; 1,000 with 'lbfgs'",
        "Passes over the training rows, at most.",
        |to, value| set(&mut to.epochs, Some(whole(value)?)),
    ),
    option(
        "early_stop",
        "true, false",
        "false; true with patience or min_rel_progress",
        "Whether training ends before its last epoch once the evaluation loss (the training loss where nothing is \
         evaluated) no longer falls.",
        |to, value| set(&mut to.early_stop.early_stop, Some(boolean(value)?)),
    ),
    option(
        "patience",
        "whole number",
        "40 with early_stop",
        "Epochs without progress after which training ends.",
        |to, value| set(&mut to.early_stop.patience, Some(whole(value)?)),
    ),
    option(
        "min_rel_progress",
        "0 ≤ share < 1",
        "0 with early_stop",
        "The share by which the loss must fall below the least before, to be progress.",
        |to, value| set(&mut to.early_stop.min_rel_progress, Some(number(value)?)),
    ),
    option(
        "keep",
        "'best', 'last'",
        "'best'; 'last' with 'lbfgs'",
        "Which epoch's weights are published: the one with the least evaluation loss (training \
         loss where nothing is evaluated), or the last one.",
        |to, value| {
            let choices = [("best", Keep::Best), ("last", Keep::Last)];
            set(&mut to.keep, Some(choose(value, &choices)?))
        },
    ),
    option(
        "refit",
        "true, false",
        "true of up to 50,000 rows, with 'auto_split' or 'random', and without warm_start",
        "Whether the network is then trained anew on all rows, those that were evaluated too, for as many epochs as were \
         kept. The metrics remain those of the rows that it had not seen.",
        |to, value| set(&mut to.refit, Some(boolean(value)?)),
    ),
];
