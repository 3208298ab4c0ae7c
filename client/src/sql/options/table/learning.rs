//! Options of the optimizer, its schedule and the length of training.

use volley_proto::spec::{AdamForm, Keep, RateScaling};

use super::super::{OptimizerName, ScheduleName};
use super::TrainOption;
use super::set::{boolean, choose, number, set, whole};

pub(super) const LEARNING: &[TrainOption] = &[
    TrainOption {
        name: "optimizer",
        values: "'adam', 'adamw', 'sgd', 'adagrad', 'rmsprop', 'ftrl', 'lbfgs'",
        default: "'adamw'; 'lbfgs' for linear models that it can solve, 'ftrl' for those with l1_reg",
        about: "Rule that updates the weights from their gradient, in Keras' form. 'lbfgs' solves linear models: \
            each step uses all rows, and training ends when the gradient vanishes.",
        example: "optimizer = 'adam'",
        set: |to, value| {
            set(
                &mut to.optimizer.name,
                Some(choose(value, &OptimizerName::ALL)?),
            )
        },
    },
    TrainOption {
        name: "learn_rate",
        values: "number > 0",
        default: "0.004; 0.01 with 'sgd', 'adagrad' and 'ftrl'",
        about: "Learning rate (Adam's step size α) before the schedule.",
        example: "learn_rate = 0.001",
        set: |to, value| set(&mut to.optimizer.learn_rate, Some(number(value)?)),
    },
    TrainOption {
        name: "learn_rate_schedule",
        values: "'constant', 'step', 'cosine', 'one_cycle', 'plateau'",
        default: "'one_cycle'",
        about: "Change of the learning rate over training. 'constant': none. 'step': multiplied by decay_factor \
            every decay_epochs. 'cosine': falls to 0 along half a cosine. 'one_cycle': rises from a 25th in the \
            first 30 % of all steps, then falls like 'cosine'. 'plateau': multiplied by decay_factor when the \
            evaluation loss has not fallen for plateau_patience epochs.",
        example: "learn_rate_schedule = 'cosine'",
        set: |to, value| {
            let chosen = choose(value, &ScheduleName::ALL)?;
            set(&mut to.optimizer.schedule, Some(chosen))
        },
    },
    TrainOption {
        name: "learn_rate_scaling",
        values: "'none', 'linear', 'sqrt'",
        default: "'none'",
        about: "With batch_size: multiplies the learning rate by the number of ranks that training begins with \
            ('linear'), or by its square root ('sqrt'). warmup_epochs raises the rate to that value gradually.",
        example: "batch_size = 256, learn_rate_scaling = 'sqrt', warmup_epochs = 1",
        set: |to, value| {
            let choices = [
                ("none", RateScaling::None),
                ("linear", RateScaling::Linear),
                ("sqrt", RateScaling::Sqrt),
            ];
            set(&mut to.optimizer.rate_scaling, choose(value, &choices)?)
        },
    },
    TrainOption {
        name: "warmup_epochs",
        values: "number ≥ 0",
        default: "0",
        about: "Epochs, or fractions of one, in which the learning rate rises linearly from 0.",
        example: "warmup_epochs = 0.5",
        set: |to, value| set(&mut to.optimizer.warmup_epochs, Some(number(value)?)),
    },
    TrainOption {
        name: "decay_epochs",
        values: "whole number",
        default: "10",
        about: "For 'step': epochs between two changes of the learning rate.",
        example: "learn_rate_schedule = 'step', decay_epochs = 5",
        set: |to, value| set(&mut to.optimizer.decay_epochs, Some(whole(value)?)),
    },
    TrainOption {
        name: "decay_factor",
        values: "0 < factor < 1",
        default: "0.1",
        about: "For 'step' and 'plateau': factor by which the learning rate is multiplied.",
        example: "learn_rate_schedule = 'step', decay_factor = 0.5",
        set: |to, value| set(&mut to.optimizer.decay_factor, Some(number(value)?)),
    },
    TrainOption {
        name: "plateau_patience",
        values: "whole number",
        default: "10",
        about: "For 'plateau': epochs without progress after which the learning rate is multiplied.",
        example: "learn_rate_schedule = 'plateau', plateau_patience = 5",
        set: |to, value| set(&mut to.optimizer.plateau_patience, Some(whole(value)?)),
    },
    TrainOption {
        name: "adam_beta_1",
        values: "0 ≤ β < 1",
        default: "0.9",
        about: "For 'adam' and 'adamw': decay rate of the first moment.",
        example: "optimizer = 'adam', adam_beta_1 = 0.95",
        set: |to, value| set(&mut to.optimizer.adam_beta_1, Some(number(value)?)),
    },
    TrainOption {
        name: "adam_beta_2",
        values: "0 ≤ β < 1",
        default: "0.999",
        about: "For 'adam' and 'adamw': decay rate of the second moment.",
        example: "optimizer = 'adam', adam_beta_2 = 0.99",
        set: |to, value| set(&mut to.optimizer.adam_beta_2, Some(number(value)?)),
    },
    TrainOption {
        name: "adam_epsilon",
        values: "number > 0",
        default: "1e-7",
        about: "For 'adam' and 'adamw': ε.",
        example: "optimizer = 'adam', adam_epsilon = 1e-8",
        set: |to, value| set(&mut to.optimizer.adam_epsilon, Some(number(value)?)),
    },
    TrainOption {
        name: "adam_form",
        values: "'keras', 'torch'",
        default: "'keras'",
        about: "For 'adam' and 'adamw': position of ε in the update. 'keras': α·√(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε). \
            'torch': α·m̂ / (√v̂ + ε).",
        example: "optimizer = 'adam', adam_form = 'torch'",
        set: |to, value| {
            let chosen = choose(value, &AdamForm::ALL)?;
            set(&mut to.optimizer.adam_form, Some(chosen))
        },
    },
    TrainOption {
        name: "weight_decay",
        values: "number ≥ 0",
        default: "0.01",
        about: "For 'adamw': before each step, the hidden layers' kernels and a linear part's weights are \
            multiplied \
            by 1 − α · weight_decay.",
        example: "optimizer = 'adamw', weight_decay = 0.05",
        set: |to, value| set(&mut to.optimizer.weight_decay, Some(number(value)?)),
    },
    TrainOption {
        name: "momentum",
        values: "0 ≤ share < 1",
        default: "0",
        about: "For 'sgd' and 'rmsprop': share of the previous update that is kept in the next one.",
        example: "optimizer = 'sgd', momentum = 0.9",
        set: |to, value| set(&mut to.optimizer.momentum, Some(number(value)?)),
    },
    TrainOption {
        name: "nesterov",
        values: "true, false",
        default: "false",
        about: "For 'sgd' with momentum: uses Nesterov momentum.",
        example: "optimizer = 'sgd', momentum = 0.9, nesterov = true",
        set: |to, value| set(&mut to.optimizer.nesterov, Some(boolean(value)?)),
    },
    TrainOption {
        name: "rho",
        values: "0 ≤ ρ < 1",
        default: "0.9",
        about: "For 'rmsprop': decay rate of the mean of squared gradients.",
        example: "optimizer = 'rmsprop', rho = 0.95",
        set: |to, value| set(&mut to.optimizer.rho, Some(number(value)?)),
    },
    TrainOption {
        name: "epsilon",
        values: "number > 0",
        default: "1e-7",
        about: "For 'adagrad' and 'rmsprop': ε.",
        example: "optimizer = 'adagrad', epsilon = 1e-6",
        set: |to, value| set(&mut to.optimizer.epsilon, Some(number(value)?)),
    },
    TrainOption {
        name: "initial_accumulator",
        values: "number ≥ 0",
        default: "0.1",
        about: "For 'adagrad' and 'ftrl': initial value of the sum of squared gradients.",
        example: "optimizer = 'ftrl', initial_accumulator = 0.5",
        set: |to, value| set(&mut to.optimizer.initial_accumulator, Some(number(value)?)),
    },
    TrainOption {
        name: "clip_norm",
        values: "number > 0",
        default: "(none)",
        about: "Maximum Euclidean norm of the gradient (of the loss, over all rows of a step). A larger \
            gradient is \
            scaled down to it.",
        example: "clip_norm = 1",
        set: |to, value| set(&mut to.optimizer.clip_norm, Some(number(value)?)),
    },
    TrainOption {
        name: "clip_value",
        values: "number > 0",
        default: "(none)",
        about: "Maximum absolute value of each component of the gradient. Larger ones are clipped to it.",
        example: "clip_value = 0.5",
        set: |to, value| set(&mut to.optimizer.clip_value, Some(number(value)?)),
    },
    TrainOption {
        name: "ema_momentum",
        values: "0 ≤ m < 1",
        default: "0.99 if optimizer is not given",
        about: "Momentum of the exponential moving average of the weights over steps, which is evaluated and \
            published in their place. Each step keeps this share of the average (less at first: (t − 1) / (t + 9) in \
            step t). 0 turns averaging off.",
        example: "ema_momentum = 0",
        set: |to, value| set(&mut to.optimizer.ema_momentum, Some(number(value)?)),
    },
    TrainOption {
        name: "global_batch_size",
        values: "whole number",
        default: "a 32nd of the training rows, rounded up to a power of two, from 32 to 256",
        about: "Rows per step over all ranks. The trained model does not depend on the number of ranks.",
        example: "global_batch_size = 512",
        set: |to, value| set(&mut to.global_batch_size, Some(whole(value)?)),
    },
    TrainOption {
        name: "batch_size",
        values: "whole number",
        default: "(none)",
        about: "Rows per step of one rank, instead of global_batch_size. The global batch is batch_size × the \
            number \
            of ranks that training begins with.",
        example: "batch_size = 128",
        set: |to, value| set(&mut to.batch_size, Some(whole(value)?)),
    },
    TrainOption {
        name: "accumulate",
        values: "whole number",
        default: "1",
        about: "Backward passes per step: a rank computes its rows in this many parts and sums their gradients, \
            which takes less memory. global_batch_size counts the rows of all passes, batch_size those of one.",
        example: "global_batch_size = 4096, accumulate = 4",
        set: |to, value| set(&mut to.accumulate, whole(value)?),
    },
    TrainOption {
        name: "epochs",
        values: "whole number",
        default: "as many as make 4,000 steps, from 20 to 400; 1,000 with 'lbfgs'",
        about: "Maximum number of passes over the training rows.",
        example: "epochs = 50",
        set: |to, value| set(&mut to.epochs, Some(whole(value)?)),
    },
    TrainOption {
        name: "early_stop",
        values: "true, false",
        default: "false; true with patience or min_rel_progress",
        about: "Ends training before its last epoch when the evaluation loss (the training loss if nothing is \
            evaluated) stops falling.",
        example: "early_stop = true",
        set: |to, value| set(&mut to.early_stop.early_stop, Some(boolean(value)?)),
    },
    TrainOption {
        name: "patience",
        values: "whole number",
        default: "40 with early_stop",
        about: "Epochs without progress after which training ends.",
        example: "patience = 10",
        set: |to, value| set(&mut to.early_stop.patience, Some(whole(value)?)),
    },
    TrainOption {
        name: "min_rel_progress",
        values: "0 ≤ share < 1",
        default: "0 with early_stop",
        about: "Share by which the loss must fall below its lowest value so far to count as progress.",
        example: "patience = 10, min_rel_progress = 0.001",
        set: |to, value| set(&mut to.early_stop.min_rel_progress, Some(number(value)?)),
    },
    TrainOption {
        name: "keep",
        values: "'best', 'last'",
        default: "'best'; 'last' with 'lbfgs'",
        about: "Epoch whose weights are published: the one with the lowest evaluation loss (training loss if \
            nothing \
            is evaluated), or the last one.",
        example: "keep = 'last'",
        set: |to, value| {
            let choices = [("best", Keep::Best), ("last", Keep::Last)];
            set(&mut to.keep, Some(choose(value, &choices)?))
        },
    },
    TrainOption {
        name: "refit",
        values: "true, false",
        default: "true for up to 50,000 rows, with 'auto_split' or 'random', and without warm_start",
        about: "Trains the network again on all rows, including the evaluated ones, up to the number of the kept \
            epoch. The metrics remain those of the rows held out in the first training.",
        example: "refit = false",
        set: |to, value| set(&mut to.refit, Some(boolean(value)?)),
    },
];
