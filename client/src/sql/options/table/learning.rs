//! Options of the optimizer, its schedule and the length of training.

use volley_proto::spec::{AdamForm, Keep, RateScaling};

use super::super::{OptimizerName, ScheduleName};
use super::set::{boolean, choose, number, set, whole};
use super::{TrainOption, option};

pub(super) const LEARNING: &[TrainOption] = &[
    option(
        "optimizer",
        "'adam', 'adamw', 'sgd', 'adagrad', 'rmsprop', 'ftrl', 'lbfgs'",
        "'adamw'; 'lbfgs' for linear models that it can solve, 'ftrl' for those with l1_reg",
        "Rule that updates the weights from their gradient, in Keras' form. 'lbfgs' solves linear models: each step \
         uses all rows, and training ends when the gradient vanishes.",
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
        "Learning rate (Adam's step size α) before the schedule.",
        |to, value| set(&mut to.optimizer.learn_rate, Some(number(value)?)),
    ),
    option(
        "learn_rate_schedule",
        "'constant', 'step', 'cosine', 'one_cycle', 'plateau'",
        "'one_cycle'",
        "Change of the learning rate over training. 'constant': none. 'step': multiplied by decay_factor every \
         decay_epochs. 'cosine': falls to 0 along half a cosine. 'one_cycle': rises from a 25th in the first 30 % of \
         all steps, then falls like 'cosine'. 'plateau': multiplied by decay_factor when the evaluation loss has not \
         fallen for plateau_patience epochs.",
        |to, value| {
            let chosen = choose(value, &ScheduleName::ALL)?;
            set(&mut to.optimizer.schedule, Some(chosen))
        },
    ),
    option(
        "learn_rate_scaling",
        "'none', 'linear', 'sqrt'",
        "'none'",
        "With batch_size: multiplies the learning rate by the number of ranks that training begins with ('linear'), \
         or by its square root ('sqrt'). warmup_epochs raises the rate to that value gradually.",
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
        "Epochs, or fractions of one, in which the learning rate rises linearly from 0.",
        |to, value| set(&mut to.optimizer.warmup_epochs, Some(number(value)?)),
    ),
    option(
        "decay_epochs",
        "whole number",
        "10",
        "For 'step': epochs between two changes of the learning rate.",
        |to, value| set(&mut to.optimizer.decay_epochs, Some(whole(value)?)),
    ),
    option(
        "decay_factor",
        "0 < factor < 1",
        "0.1",
        "For 'step' and 'plateau': factor by which the learning rate is multiplied.",
        |to, value| set(&mut to.optimizer.decay_factor, Some(number(value)?)),
    ),
    option(
        "plateau_patience",
        "whole number",
        "10",
        "For 'plateau': epochs without progress after which the learning rate is multiplied.",
        |to, value| set(&mut to.optimizer.plateau_patience, Some(whole(value)?)),
    ),
    option(
        "adam_beta_1",
        "0 ≤ β < 1",
        "0.9",
        "For 'adam' and 'adamw': decay rate of the first moment.",
        |to, value| set(&mut to.optimizer.adam_beta_1, Some(number(value)?)),
    ),
    option(
        "adam_beta_2",
        "0 ≤ β < 1",
        "0.999",
        "For 'adam' and 'adamw': decay rate of the second moment.",
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
        "For 'adam' and 'adamw': position of ε in the update. 'keras': α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε). 'torch': \
         α·m̂ / (√v̂ + ε).",
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
        "For 'sgd' and 'rmsprop': share of the previous update that is kept in the next one.",
        |to, value| set(&mut to.optimizer.momentum, Some(number(value)?)),
    ),
    option(
        "nesterov",
        "true, false",
        "false",
        "For 'sgd' with momentum: uses Nesterov momentum.",
        |to, value| set(&mut to.optimizer.nesterov, Some(boolean(value)?)),
    ),
    option(
        "rho",
        "0 ≤ ρ < 1",
        "0.9",
        "For 'rmsprop': decay rate of the mean of squared gradients.",
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
        "For 'adagrad' and 'ftrl': initial value of the sum of squared gradients.",
        |to, value| set(&mut to.optimizer.initial_accumulator, Some(number(value)?)),
    ),
    option(
        "clip_norm",
        "number > 0",
        "(none)",
        "Maximum Euclidean norm of the gradient (of the loss, over all rows of a step). A larger gradient is scaled \
         down to it.",
        |to, value| set(&mut to.optimizer.clip_norm, Some(number(value)?)),
    ),
    option(
        "clip_value",
        "number > 0",
        "(none)",
        "Maximum absolute value of each component of the gradient. Larger ones are clipped to it.",
        |to, value| set(&mut to.optimizer.clip_value, Some(number(value)?)),
    ),
    option(
        "ema_momentum",
        "0 ≤ m < 1",
        "0.99 if optimizer is not given",
        "Momentum of the exponential moving average of the weights over steps, which is evaluated and published in \
         their place. Each step keeps this share of the average (less at first: (t − 1) / (t + 9) in step t). 0 turns \
         averaging off.",
        |to, value| set(&mut to.optimizer.ema_momentum, Some(number(value)?)),
    ),
    option(
        "global_batch_size",
        "whole number",
        "a 32nd of the training rows, rounded up to a power of two, from 32 to 256",
        "Rows per step over all ranks. The trained model does not depend on the number of ranks.",
        |to, value| set(&mut to.global_batch_size, Some(whole(value)?)),
    ),
    option(
        "batch_size",
        "whole number",
        "(none)",
        "Rows per step of one rank, instead of global_batch_size. The global batch is batch_size × the number of \
         ranks that training begins with.",
        |to, value| set(&mut to.batch_size, Some(whole(value)?)),
    ),
    option(
        "accumulate",
        "whole number",
        "1",
        "Backward passes per step: a rank computes its rows in this many parts and sums their gradients, which takes \
         less memory. global_batch_size counts the rows of all passes, batch_size those of one.",
        |to, value| set(&mut to.accumulate, whole(value)?),
    ),
    option(
        "epochs",
        "whole number",
        "as many as make 4,000 steps, from 20 to 400; 1,000 with 'lbfgs'",
        "Maximum number of passes over the training rows.",
        |to, value| set(&mut to.epochs, Some(whole(value)?)),
    ),
    option(
        "early_stop",
        "true, false",
        "false; true with patience or min_rel_progress",
        "Ends training before its last epoch when the evaluation loss (the training loss if nothing is evaluated) \
         stops falling.",
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
        "Share by which the loss must fall below its lowest value so far to count as progress.",
        |to, value| set(&mut to.early_stop.min_rel_progress, Some(number(value)?)),
    ),
    option(
        "keep",
        "'best', 'last'",
        "'best'; 'last' with 'lbfgs'",
        "Epoch whose weights are published: the one with the lowest evaluation loss (training loss if nothing is \
         evaluated), or the last one.",
        |to, value| {
            let choices = [("best", Keep::Best), ("last", Keep::Last)];
            set(&mut to.keep, Some(choose(value, &choices)?))
        },
    ),
    option(
        "refit",
        "true, false",
        "true for up to 50,000 rows, with 'auto_split' or 'random', and without warm_start",
        "Trains the network again on all rows, including the evaluated ones, up to the number of the kept epoch. The \
         metrics remain those of the rows held out in the first training.",
        |to, value| set(&mut to.refit, Some(boolean(value)?)),
    ),
];
