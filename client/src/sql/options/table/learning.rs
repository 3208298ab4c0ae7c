//! Options of the optimizer, its schedule and the length of training.

use volley_proto::spec::{AdamForm, Keep, RateScaling};

use super::super::{OptimizerName, ScheduleName};
use super::set::{choose, some_bool, some_number, some_whole, whole};
use super::{TrainOption, option};

pub(super) const LEARNING: &[TrainOption] = &[
    option(
        "optimizer",
        "'adam', 'adamw', 'sgd', 'adagrad', 'rmsprop', 'ftrl', 'lbfgs'",
        "'adamw'; 'lbfgs' of linear models that it can solve, 'ftrl' of those with l1_reg",
        "The rule by which weights follow their gradient, in Keras' form. 'lbfgs' solves linear models: its steps are of \
         all rows at once, and end where the gradient vanishes.",
        |to, value| {
            let choices = [
                ("adam", Some(OptimizerName::Adam)),
                ("adamw", Some(OptimizerName::AdamW)),
                ("sgd", Some(OptimizerName::Sgd)),
                ("adagrad", Some(OptimizerName::Adagrad)),
                ("rmsprop", Some(OptimizerName::RmsProp)),
                ("ftrl", Some(OptimizerName::Ftrl)),
                ("lbfgs", Some(OptimizerName::Lbfgs)),
            ];
            choose(&mut to.optimizer.name, value, &choices)
        },
    ),
    option(
        "learn_rate",
        "number > 0",
        "0.004; 0.01 with 'sgd', 'adagrad' and 'ftrl'",
        "The learning rate (Adam's step size α), before its schedule.",
        |to, value| some_number(&mut to.optimizer.learn_rate, value),
    ),
    option(
        "learn_rate_schedule",
        "'constant', 'step', 'cosine', 'one_cycle', 'plateau'",
        "'one_cycle'",
        "What becomes of the learning rate: it stays; it is multiplied by decay_factor every decay_epochs; it falls to 0 \
         along half a cosine; it rises from a 25th in the first 30 % of all steps and then falls so; or it is multiplied by \
         decay_factor where the evaluation loss has not fallen for plateau_patience epochs.",
        |to, value| {
            let choices = [
                ("constant", Some(ScheduleName::Constant)),
                ("step", Some(ScheduleName::Step)),
                ("cosine", Some(ScheduleName::Cosine)),
                ("one_cycle", Some(ScheduleName::OneCycle)),
                ("plateau", Some(ScheduleName::Plateau)),
            ];
            choose(&mut to.optimizer.schedule, value, &choices)
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
            choose(&mut to.optimizer.rate_scaling, value, &choices)
        },
    ),
    option(
        "warmup_epochs",
        "number ≥ 0",
        "0",
        "Epochs, or parts of them, in which the learning rate rises from 0 in a line.",
        |to, value| some_number(&mut to.optimizer.warmup_epochs, value),
    ),
    option(
        "decay_epochs",
        "whole number",
        "10",
        "For 'step': epochs after which the learning rate is multiplied.",
        |to, value| some_whole(&mut to.optimizer.decay_epochs, value),
    ),
    option(
        "decay_factor",
        "0 < factor < 1",
        "0.1",
        "For 'step' and 'plateau': what the learning rate is multiplied by.",
        |to, value| some_number(&mut to.optimizer.decay_factor, value),
    ),
    option(
        "plateau_patience",
        "whole number",
        "10",
        "For 'plateau': epochs without progress.",
        |to, value| some_whole(&mut to.optimizer.plateau_patience, value),
    ),
    option(
        "adam_beta_1",
        "0 ≤ β < 1",
        "0.9",
        "For 'adam' and 'adamw': decay of the first moment.",
        |to, value| some_number(&mut to.optimizer.adam_beta_1, value),
    ),
    option(
        "adam_beta_2",
        "0 ≤ β < 1",
        "0.999",
        "For 'adam' and 'adamw': decay of the second moment.",
        |to, value| some_number(&mut to.optimizer.adam_beta_2, value),
    ),
    option(
        "adam_epsilon",
        "number > 0",
        "1e-7",
        "For 'adam' and 'adamw': ε.",
        |to, value| some_number(&mut to.optimizer.adam_epsilon, value),
    ),
    option(
        "adam_form",
        "'keras', 'torch'",
        "'keras'",
        "For 'adam' and 'adamw': where ε stands, α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε), or α·m̂ / (√v̂ + ε).",
        |to, value| {
            let choices = [
                ("keras", Some(AdamForm::Keras)),
                ("torch", Some(AdamForm::Torch)),
            ];
            choose(&mut to.optimizer.adam_form, value, &choices)
        },
    ),
    option(
        "weight_decay",
        "number ≥ 0",
        "0.01",
        "For 'adamw': before each step, the hidden layers' kernels and a linear part's weights are multiplied by 1 − α · weight_decay.",
        |to, value| some_number(&mut to.optimizer.weight_decay, value),
    ),
    option(
        "momentum",
        "0 ≤ share < 1",
        "0",
        "For 'sgd' and 'rmsprop': the share of the last change that goes on.",
        |to, value| some_number(&mut to.optimizer.momentum, value),
    ),
    option(
        "nesterov",
        "true, false",
        "false",
        "For 'sgd' with momentum: whether it is Nesterov's.",
        |to, value| some_bool(&mut to.optimizer.nesterov, value),
    ),
    option(
        "rho",
        "0 ≤ ρ < 1",
        "0.9",
        "For 'rmsprop': decay of the squared gradients' mean.",
        |to, value| some_number(&mut to.optimizer.rho, value),
    ),
    option(
        "epsilon",
        "number > 0",
        "1e-7",
        "For 'adagrad' and 'rmsprop': ε.",
        |to, value| some_number(&mut to.optimizer.epsilon, value),
    ),
    option(
        "initial_accumulator",
        "number ≥ 0",
        "0.1",
        "For 'adagrad' and 'ftrl': where the sum of squared gradients starts.",
        |to, value| some_number(&mut to.optimizer.initial_accumulator, value),
    ),
    option(
        "clip_norm",
        "number > 0",
        "(none)",
        "A gradient (of the loss, over all rows of a step) with a greater Euclidean norm is shortened to it.",
        |to, value| some_number(&mut to.optimizer.clip_norm, value),
    ),
    option(
        "clip_value",
        "number > 0",
        "(none)",
        "Each number of the gradient is kept within ± this.",
        |to, value| some_number(&mut to.optimizer.clip_value, value),
    ),
    option(
        "ema_momentum",
        "0 ≤ m < 1",
        "0.99 where optimizer is not given",
        "Weights are evaluated and published as their exponential moving average over steps, of which each step keeps \
         this share (less at first: (t − 1) / (t + 9) in step t). 0 is no average.",
        |to, value| some_number(&mut to.optimizer.ema_momentum, value),
    ),
    option(
        "global_batch_size",
        "whole number",
        "a 32nd of the training rows, rounded up to a power of two, from 32 to 256",
        "Rows of a step, of all ranks together: what is learnt does not depend on how many there are.",
        |to, value| some_whole(&mut to.global_batch_size, value),
    ),
    option(
        "batch_size",
        "whole number",
        "(none)",
        "Rows of a step of one rank, instead; the global batch is batch_size × the ranks that training begins with.",
        |to, value| some_whole(&mut to.batch_size, value),
    ),
    option(
        "accumulate",
        "whole number",
        "1",
        "Backward passes of a step: a rank computes its rows in so many parts and adds up their gradients, which takes less \
         memory. global_batch_size counts the rows of all passes, batch_size those of one.",
        |to, value| whole(&mut to.accumulate, value),
    ),
    option(
        "epochs",
        "whole number",
        "as many as make 4,000 steps, from 20 to 400; 1,000 with 'lbfgs'",
        "Passes over the training rows, at most.",
        |to, value| some_whole(&mut to.epochs, value),
    ),
    option(
        "early_stop",
        "true, false",
        "false; true with patience or min_rel_progress",
        "Whether training ends before its last epoch once the evaluation loss (the training loss where nothing is \
         evaluated) no longer falls.",
        |to, value| some_bool(&mut to.early_stop.early_stop, value),
    ),
    option(
        "patience",
        "whole number",
        "40 with early_stop",
        "Epochs without progress after which training ends.",
        |to, value| some_whole(&mut to.early_stop.patience, value),
    ),
    option(
        "min_rel_progress",
        "0 ≤ share < 1",
        "0 with early_stop",
        "The share by which the loss must fall below the least before, to be progress.",
        |to, value| some_number(&mut to.early_stop.min_rel_progress, value),
    ),
    option(
        "keep",
        "'best', 'last'",
        "'best'; 'last' with 'lbfgs'",
        "Which epoch's weights are published: the one with the least evaluation loss (training \
         loss where nothing is evaluated), or the last one.",
        |to, value| {
            choose(
                &mut to.keep,
                value,
                &[("best", Some(Keep::Best)), ("last", Some(Keep::Last))],
            )
        },
    ),
    option(
        "refit",
        "true, false",
        "true of up to 50,000 rows, with 'auto_split' or 'random', and without warm_start",
        "Whether the network is then trained anew on all rows, those that were evaluated too, for as many epochs as were \
         kept. The metrics remain those of the rows that it had not seen.",
        |to, value| some_bool(&mut to.refit, value),
    ),
];
