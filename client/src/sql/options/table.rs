//! Every option once: its name, what it takes, its default, what it does, and how it is set.

use std::time::Duration;

use volley_proto::did_you_mean;
use volley_proto::spec::{
    AdamForm, ClassWeights, Keep, LabelTransform, NumericTransform, Output, Ranks, Task, TooFew,
};

use super::{
    DecayName, Dropout, LossName, OptionValue, RuleName, SplitMethod, TrainOptions, WarmStart,
};
use crate::{Error, Result};

/// One option of `CREATE MODEL`, as documented.
#[derive(Debug)]
pub struct TrainOption {
    /// The option's name.
    pub name: &'static str,
    /// The values it takes.
    pub values: &'static str,
    /// The value where it is not given.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
    set: Set,
}

type Set = fn(&mut TrainOptions, &OptionValue) -> Result<(), Refusal>;

/// Why a value was not taken.
enum Refusal {
    /// It is none of the option's values.
    Expected(String),
    /// It means something that Volley cannot do.
    NotSupported(&'static str),
}

/// All options, in the order of the documentation.
pub fn train_options() -> &'static [TrainOption] {
    OPTIONS
}

impl TrainOptions {
    /// Sets an option by its name in SQL.
    ///
    /// # Errors
    /// Names the option, the value, and what would be right.
    pub fn set(&mut self, option: &str, value: &OptionValue) -> Result<()> {
        let name = option.to_lowercase();
        if let Some((_, what)) = NOT_SUPPORTED.iter().find(|(known, _)| *known == name) {
            return Err(Error::NotSupported {
                what: format!("option {name}: {what}"),
            });
        }
        let Some(known) = OPTIONS.iter().find(|known| known.name == name) else {
            let names: Vec<_> = OPTIONS.iter().map(|known| known.name).collect();
            return Err(Error::UnknownOption {
                option: option.to_owned(),
                hint: did_you_mean(option, names.iter().copied()),
                known: names.join(", "),
            });
        };
        (known.set)(self, value).map_err(|refusal| match refusal {
            Refusal::Expected(expected) => Error::Proto(volley_proto::Error::Option {
                option: name,
                value: value.to_string(),
                expected: format!("expected {expected}"),
            }),
            Refusal::NotSupported(instead) => Error::NotSupported {
                what: format!("{name} = {value}: {instead}"),
            },
        })
    }
}

const NOT_SUPPORTED: &[(&str, &str)] = &[("max_iterations", "use epochs")];

const OPTIONS: &[TrainOption] = &[
    option(
        "model_type",
        "'dnn_regressor', 'dnn_classifier'",
        "'dnn_regressor'",
        "What is predicted: a number, or which of its values the label has (text, whole numbers, booleans or dates).",
        |to, value| match value.text().map(str::to_lowercase).as_deref() {
            Some("dnn_regressor") => set(&mut to.task, Task::Regression),
            Some("dnn_classifier") => set(&mut to.task, Task::Classification),
            Some(_) => Err(Refusal::NotSupported(
                "use 'dnn_regressor' or 'dnn_classifier'",
            )),
            None => Err(expected("'dnn_regressor' or 'dnn_classifier'")),
        },
    ),
    option(
        "input_label_cols",
        "['column']",
        "(needed)",
        "The column to predict.",
        |to, value| match value.list(text).as_deref() {
            Some([label]) => set(&mut to.label, Some(label.clone())),
            Some([_, _, ..]) => Err(Refusal::NotSupported("a model has exactly one label")),
            _ => Err(expected("a list of one column, such as ['sales']")),
        },
    ),
    option(
        "label_transform",
        "'identity', 'ln'",
        "'identity'",
        "What the network predicts of the label. With 'ln', loss and L2 are in the logarithm's \
         scale and predictions are exponentiated.",
        |to, value| {
            let choices = [
                ("identity", LabelTransform::Identity),
                ("ln", LabelTransform::Ln),
            ];
            choose(&mut to.label_transform, value, &choices)
        },
    ),
    option(
        "standardize_label",
        "true, false",
        "true where activation_output is 'identity'",
        "Whether the network learns the (transformed) label less its mean, in standard deviations of the training \
         rows. Losses and metrics are in the label's own scale, and predictions are undone.",
        |to, value| some_bool(&mut to.standardize_label, value),
    ),
    option(
        "numeric_transform",
        "'standardize', 'none'",
        "'standardize'",
        "How continuous features are scaled by what the training rows hold: less their mean in standard deviations, or \
         not at all. Null becomes the mean; where training rows have nulls, a further input says so.",
        |to, value| {
            let choices = [
                ("standardize", NumericTransform::Standardize),
                ("none", NumericTransform::None),
            ];
            choose(&mut to.numeric_transform, value, &choices)
        },
    ),
    option(
        "data_split_method",
        "'no_split', 'custom', 'random', 'seq'",
        "'random', or what the next two options imply",
        "How rows are split into training and evaluation. 'seq' evaluates the last rows by data_split_col.",
        |to, value| {
            if value
                .text()
                .is_some_and(|text| text.eq_ignore_ascii_case("auto_split"))
            {
                return Err(Refusal::NotSupported(
                    "use 'random', which is the default, 'no_split', 'custom' or 'seq'",
                ));
            }
            let choices = [
                ("seq", Some(SplitMethod::Sequential)),
                ("no_split", Some(SplitMethod::NoSplit)),
                ("custom", Some(SplitMethod::Custom)),
                ("random", Some(SplitMethod::Random)),
            ];
            choose(&mut to.split_method, value, &choices)
        },
    ),
    option(
        "data_split_col",
        "'column'",
        "(none)",
        "For 'custom': a column of 'TRAIN', 'EVAL' or 'TEST' (TEST rows only lend their values to \
         the vocabularies), or a boolean that is true for evaluation. For 'seq': a number, a date or a time; where it is \
         null, rows are evaluated.",
        |to, value| column(&mut to.split_column, value),
    ),
    option(
        "split_key",
        "['column', …]",
        "all columns that the query gives",
        "Columns whose values decide where a row goes in a random split: rows with equal ones stay together, such as \
         those of one customer. They are no features unless named. A row goes where it goes whatever the features, the \
         shards and the cluster are.",
        |to, value| {
            let mut keys = None;
            columns(&mut keys, value)?;
            set(&mut to.split_key, keys.unwrap_or_default())
        },
    ),
    option(
        "data_split_eval_fraction",
        "0 < share < 1",
        "0.2",
        "For 'random': the share of rows that is evaluated.",
        |to, value| match value.number() {
            Some(share) if share > 0.0 && share < 1.0 => set(&mut to.split_fraction, Some(share)),
            _ => Err(expected("a share between 0 and 1")),
        },
    ),
    option(
        "categorical",
        "['column', …]",
        "with no continuous either: every text, boolean and date column",
        "Features that pass through an embedding. Null is a value of its own.",
        |to, value| columns(&mut to.categorical, value),
    ),
    option(
        "continuous",
        "['column', …]",
        "with no categorical either: every column of numbers",
        "Features that enter as numbers. Null is 0.",
        |to, value| columns(&mut to.continuous, value),
    ),
    option(
        "hidden_units",
        "[width, …]",
        "[128, 64]",
        "Widths of the dense layers, first to last.",
        |to, value| match value.list(OptionValue::number) {
            Some(widths) => set(&mut to.network.hidden_units, widths),
            None => Err(expected("a list of whole numbers, such as [128, 64]")),
        },
    ),
    option(
        "embedding_dim",
        "whole number",
        "10",
        "Width of every categorical feature's embedding.",
        |to, value| whole(&mut to.network.embedding_dim, value),
    ),
    option(
        "dropout",
        "0 ≤ share < 1, [share, …]",
        "0.15",
        "Share of the hidden layers' units zeroed in training: of each layer, or one a layer.",
        |to, value| match (value.number(), value.list(OptionValue::number)) {
            (Some(share), _) => set(&mut to.dropout, Dropout::Each(share)),
            (_, Some(shares)) => set(&mut to.dropout, Dropout::Layers(shares)),
            _ => Err(expected("a number, or a list of one for each hidden layer")),
        },
    ),
    option(
        "batch_norm",
        "true, false",
        "true",
        "Whether continuous features pass through batch norm.",
        |to, value| match value {
            OptionValue::Bool(on) => set(&mut to.network.batch_norm, *on),
            _ => Err(expected("true or false")),
        },
    ),
    option(
        "l2_reg",
        "number ≥ 0",
        "0",
        "L2 penalty on the hidden layers' kernels: adds l2_reg · Σ w² to the loss.",
        |to, value| number(&mut to.l2, value),
    ),
    option(
        "l1_reg",
        "number ≥ 0",
        "0",
        "L1 penalty on the hidden layers' kernels: adds l1_reg · Σ |w| to the loss. With optimizer = 'ftrl' it makes \
         weights exactly 0.",
        |to, value| number(&mut to.l1, value),
    ),
    option(
        "activation_output",
        "'identity', 'sigmoid', 'scaled_sigmoid'",
        "'identity'",
        "What the output passes through. 'scaled_sigmoid' is the logistic function × 1.2 × the \
         largest transformed training label.",
        |to, value| {
            let choices = [
                ("identity", Output::Identity),
                ("sigmoid", Output::Sigmoid),
                ("scaled_sigmoid", Output::ScaledSigmoid),
            ];
            choose(&mut to.network.output, value, &choices)
        },
    ),
    option(
        "loss",
        "'mae', 'mse', 'huber', 'quantile', 'poisson', 'gamma', 'tweedie', 'log_loss', 'focal'",
        "'mse', or 'log_loss' of a classifier",
        "The loss. 'poisson' is of counts, 'gamma' of amounts above 0, 'tweedie' of amounts most of which are 0: Tweedie's \
         unit deviance, of which the network predicts the mean's logarithm. 'log_loss' and 'focal' are of classifiers.",
        |to, value| choose(&mut to.loss.name, value, &LossName::ALL),
    ),
    option(
        "huber_delta",
        "number > 0",
        "1",
        "For 'huber': δ, in standard deviations of the label where that is standardized.",
        |to, value| some_number(&mut to.loss.huber_delta, value),
    ),
    option(
        "quantile",
        "0 < share < 1",
        "0.5",
        "For 'quantile': the share of labels that are below the prediction.",
        |to, value| some_number(&mut to.loss.quantile, value),
    ),
    option(
        "tweedie_power",
        "1 ≤ power ≤ 2",
        "1.5",
        "For 'tweedie': the power of the mean that the variance grows with.",
        |to, value| some_number(&mut to.loss.tweedie_power, value),
    ),
    option(
        "focal_gamma",
        "number ≥ 0",
        "2",
        "For 'focal': γ of −(1 − p)^γ ln p.",
        |to, value| some_number(&mut to.loss.focal_gamma, value),
    ),
    option(
        "sample_weight_col",
        "'column'",
        "(none)",
        "A column of the rows' weights in the loss and in metrics. It is no feature unless named.",
        |to, value| column(&mut to.sample_weight, value),
    ),
    option(
        "auto_class_weights",
        "true, false",
        "false",
        "Whether a classifier's classes weigh the same in training, however many rows they have: \
         rows / (classes · rows of the class).",
        |to, value| match value {
            OptionValue::Bool(true) => set(&mut to.class_weights, ClassWeights::Balanced),
            OptionValue::Bool(false) => Ok(()),
            _ => Err(expected("true or false")),
        },
    ),
    option(
        "class_weights",
        "[['class', weight], …]",
        "1 each",
        "Weights of a classifier's classes in training.",
        |to, value| {
            let pair = |value: &OptionValue| match value {
                OptionValue::List(pair) => match &pair[..] {
                    [
                        OptionValue::Text(class) | OptionValue::Number(class),
                        weight,
                    ] => Some((class.clone(), weight.number()?)),
                    [OptionValue::Bool(class), weight] => {
                        Some((class.to_string(), weight.number()?))
                    }
                    _ => None,
                },
                _ => None,
            };
            match value.list(pair) {
                Some(weights) => set(&mut to.class_weights, ClassWeights::Given(weights)),
                None => Err(expected(
                    "pairs of a class and its weight, such as [['yes', 2], ['no', 1]]",
                )),
            }
        },
    ),
    option(
        "optimizer",
        "'adam', 'adamw', 'sgd', 'adagrad', 'rmsprop', 'ftrl'",
        "'adamw'",
        "The rule by which weights follow their gradient, in Keras' form.",
        |to, value| {
            let choices = [
                ("adam", RuleName::Adam),
                ("adamw", RuleName::AdamW),
                ("sgd", RuleName::Sgd),
                ("adagrad", RuleName::Adagrad),
                ("rmsprop", RuleName::RmsProp),
                ("ftrl", RuleName::Ftrl),
            ];
            choose(&mut to.optimizer.rule, value, &choices)
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
                ("constant", DecayName::Constant),
                ("step", DecayName::Step),
                ("cosine", DecayName::Cosine),
                ("one_cycle", DecayName::OneCycle),
                ("plateau", DecayName::Plateau),
            ];
            choose(&mut to.optimizer.decay, value, &choices)
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
        "For 'adamw': before each step, the hidden layers' kernels are multiplied by 1 − α · weight_decay.",
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
        "epochs",
        "whole number",
        "as many as make 4,000 steps, from 20 to 400",
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
        "'best'",
        "Which epoch's weights are published: the one with the least evaluation loss (training \
         loss where nothing is evaluated), or the last one.",
        |to, value| {
            choose(
                &mut to.keep,
                value,
                &[("best", Keep::Best), ("last", Keep::Last)],
            )
        },
    ),
    option(
        "ranks",
        "whole number, 'all'",
        "'all'",
        "How many executors train: exactly so many, or every one there is when training starts.",
        |to, value| match (value.text(), value.number()) {
            (Some(all), _) if all.eq_ignore_ascii_case("all") => set(&mut to.ranks, Ranks::All),
            (_, Some(ranks)) if ranks > 0 => set(&mut to.ranks, Ranks::Exactly(ranks)),
            _ => Err(expected("a whole number from 1, or 'all'")),
        },
    ),
    option(
        "min_ranks",
        "whole number",
        "1",
        "When executors are lost, training goes on with no fewer ranks than this.",
        |to, value| whole(&mut to.min_ranks, value),
    ),
    option(
        "max_ranks",
        "whole number",
        "ranks, or no limit with 'all'",
        "When executors join, training grows to no more ranks than this.",
        |to, value| {
            let mut ranks = 0;
            whole(&mut ranks, value)?;
            set(&mut to.max_ranks, Some(ranks))
        },
    ),
    option(
        "regroup_timeout",
        "'duration'",
        "'30s'",
        "How long a replacement for a lost rank is waited for before fewer ranks go on.",
        |to, value| duration(&mut to.regroup_timeout, value),
    ),
    option(
        "on_too_few_ranks",
        "'wait', 'fail'",
        "'fail'",
        "When fewer than min_ranks are left: wait until enough executors have joined, or fail \
         once regroup_timeout has passed.",
        |to, value| {
            let choices = [("wait", TooFew::Wait), ("fail", TooFew::Fail)];
            choose(&mut to.too_few, value, &choices)
        },
    ),
    option(
        "checkpoint_every",
        "whole number",
        "(none)",
        "Steps between checkpoints, besides the one after every epoch.",
        |to, value| match value.number() {
            Some(steps) if steps > 0 => set(&mut to.checkpoint_every, Some(steps)),
            _ => Err(expected("a whole number of steps, from 1")),
        },
    ),
    option(
        "trace",
        "true, false",
        "`volley.trace`",
        "Whether ranks note what they do when: `trace.json` beside the model, for ui.perfetto.dev.",
        |to, value| some_bool(&mut to.trace, value),
    ),
    option(
        "resume",
        "true, false",
        "false",
        "Whether training goes on from the newest checkpoint that an unfinished run of the same \
         model left.",
        |to, value| match value {
            OptionValue::Bool(on) => set(&mut to.resume, *on),
            _ => Err(expected("true or false")),
        },
    ),
    option(
        "warm_start",
        "true, false, 'model', 'model@version'",
        "false",
        "Whose weights training starts from: with true, those of the model's own newest version. \
         The network's shape must be the same.",
        |to, value| match value {
            OptionValue::Bool(false) => set(&mut to.warm_start, None),
            OptionValue::Bool(true) => set(&mut to.warm_start, Some(WarmStart::SameModel)),
            _ => match value.text().map(str::parse) {
                Some(Ok(model)) => set(&mut to.warm_start, Some(model)),
                _ => Err(expected("true, false, 'model' or 'model@version'")),
            },
        },
    ),
    option(
        "shards",
        "whole number",
        "60, or the most ranks where that is more",
        "Virtual shards that rows are hashed into; each rank takes a slice of them.",
        |to, value| {
            let mut shards = 0;
            whole(&mut shards, value)?;
            set(&mut to.shards, Some(shards))
        },
    ),
    option(
        "shard_by",
        "['column', …]",
        "all columns",
        "Columns whose hash picks a row's shard. They are not features unless named so.",
        |to, value| {
            let mut keys = None;
            columns(&mut keys, value)?;
            set(&mut to.shard_by, keys.unwrap_or_default())
        },
    ),
    option(
        "device",
        "'auto', 'cpu', 'cuda:N'",
        "'auto'",
        "Where ranks compute; 'auto' is the GPU where an executor has one.",
        |to, value| match value.text().map(|text| text.to_lowercase().parse()) {
            Some(Ok(device)) => set(&mut to.device, device),
            _ => Err(expected("'auto', 'cpu' or 'cuda:N'")),
        },
    ),
    option(
        "seed",
        "whole number",
        "0",
        "Seeds initial weights, row order and dropout masks.",
        |to, value| match value.number() {
            Some(seed) => set(&mut to.seed, seed),
            None => Err(expected("a whole number from 0")),
        },
    ),
    option(
        "rendezvous_timeout",
        "'duration'",
        "'60s'",
        "How long ranks wait for each other to arrive.",
        |to, value| duration(&mut to.rendezvous_timeout, value),
    ),
    option(
        "collective_timeout",
        "'duration'",
        "'60s'",
        "How long one collective operation may wait for a peer.",
        |to, value| duration(&mut to.collective_timeout, value),
    ),
];

const fn option(
    name: &'static str,
    values: &'static str,
    default: &'static str,
    about: &'static str,
    set: Set,
) -> TrainOption {
    TrainOption {
        name,
        values,
        default,
        about,
        set,
    }
}

fn expected(what: &str) -> Refusal {
    Refusal::Expected(what.to_owned())
}

fn set<T>(to: &mut T, value: T) -> Result<(), Refusal> {
    *to = value;
    Ok(())
}

fn whole(to: &mut usize, value: &OptionValue) -> Result<(), Refusal> {
    match value.number() {
        Some(number) if number > 0 => set(to, number),
        _ => Err(expected("a whole number from 1")),
    }
}

fn number(to: &mut f64, value: &OptionValue) -> Result<(), Refusal> {
    value
        .number()
        .map_or_else(|| Err(expected("a number")), |number| set(to, number))
}

fn some_whole(to: &mut Option<usize>, value: &OptionValue) -> Result<(), Refusal> {
    let mut given = 0;
    whole(&mut given, value)?;
    set(to, Some(given))
}

fn some_number(to: &mut Option<f64>, value: &OptionValue) -> Result<(), Refusal> {
    let mut given = 0.0;
    number(&mut given, value)?;
    set(to, Some(given))
}

fn some_bool(to: &mut Option<bool>, value: &OptionValue) -> Result<(), Refusal> {
    match value {
        OptionValue::Bool(on) => set(to, Some(*on)),
        _ => Err(expected("true or false")),
    }
}

fn text(value: &OptionValue) -> Option<String> {
    value.text().map(str::to_owned)
}

fn column(to: &mut Option<String>, value: &OptionValue) -> Result<(), Refusal> {
    text(value).map_or_else(
        || Err(expected("a column, such as 'split'")),
        |c| set(to, Some(c)),
    )
}

fn columns(to: &mut Option<Vec<String>>, value: &OptionValue) -> Result<(), Refusal> {
    match value.list(text) {
        Some(columns) => set(to, Some(columns)),
        None => Err(expected("a list of columns, such as ['store', 'weekday']")),
    }
}

fn duration(to: &mut Duration, value: &OptionValue) -> Result<(), Refusal> {
    match value.text().map(humantime::parse_duration) {
        Some(Ok(duration)) if !duration.is_zero() => set(to, duration),
        _ => Err(expected("a duration, such as '60s' or '2min'")),
    }
}

fn choose<T: Copy>(to: &mut T, value: &OptionValue, choices: &[(&str, T)]) -> Result<(), Refusal> {
    let text = value.text().unwrap_or_default();
    if let Some((_, choice)) = choices
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
    {
        return set(to, *choice);
    }
    let names: Vec<_> = choices
        .iter()
        .map(|(name, _)| format!("'{name}'"))
        .collect();
    let hint = did_you_mean(text, choices.iter().map(|(name, _)| *name));
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => Err(Refusal::Expected(format!(
            "{} or {last}{hint}",
            first.join(", ")
        ))),
        _ => Err(Refusal::Expected(format!("{}{hint}", names.join("")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(sql: &str) -> OptionValue {
        use datafusion::sql::sqlparser::{dialect::GenericDialect, parser::Parser};
        let mut parser = Parser::new(&GenericDialect {}).try_with_sql(sql).unwrap();
        OptionValue::of(&parser.parse_expr().unwrap()).unwrap()
    }

    fn try_set(option: &str, value: &str) -> Result<TrainOptions> {
        let mut options = TrainOptions::default();
        options.set(option, &typed(value))?;
        Ok(options)
    }

    #[test]
    fn every_option_takes_its_documented_default() {
        for option in train_options() {
            if option.default.starts_with(['\'', '[']) && !option.default.contains(", ")
                || option.default.parse::<f64>().is_ok()
                || ["true", "false"].contains(&option.default)
            {
                let options = try_set(option.name, option.default).unwrap();
                let mut default = TrainOptions::default();
                if option.name == "data_split_eval_fraction" {
                    default.split_fraction = Some(super::super::DEFAULT_EVAL_FRACTION);
                }
                let (optimizer, early_stop) = (options.optimizer, options.early_stop);
                if let Ok(optimizer) = optimizer.settle() {
                    let of_default = default.optimizer.clone().settle().unwrap();
                    assert_eq!(optimizer, of_default, "{}", option.name);
                }
                let of_default = default.early_stop.clone().settle().unwrap();
                assert_eq!(early_stop.settle().unwrap(), of_default, "{}", option.name);
                if let Ok(loss) = options.loss.settle(Task::Regression) {
                    let of_default = default.loss.settle(Task::Regression).unwrap();
                    assert_eq!(loss, of_default, "{}", option.name);
                }
                let options = TrainOptions {
                    loss: default.loss.clone(),
                    optimizer: default.optimizer.clone(),
                    early_stop: default.early_stop.clone(),
                    ..options
                };
                assert_eq!(options, default, "{} = {}", option.name, option.default);
            }
        }
    }

    #[test]
    fn sets_what_was_typed() {
        type Check = fn(&TrainOptions) -> bool;
        let cases: &[(&str, &str, Check)] = &[
            ("MODEL_TYPE", "'DNN_REGRESSOR'", |o| {
                *o == TrainOptions::default()
            }),
            ("input_label_cols", "['Sales']", |o| {
                o.label.as_deref() == Some("Sales")
            }),
            ("label_transform", "'ln'", |o| {
                o.label_transform == LabelTransform::Ln
            }),
            ("data_split_method", "'CUSTOM'", |o| {
                o.split_method == Some(SplitMethod::Custom)
            }),
            ("data_split_col", "'split'", |o| {
                o.split_column.as_deref() == Some("split")
            }),
            ("data_split_eval_fraction", "0.1", |o| {
                o.split_fraction == Some(0.1)
            }),
            ("categorical", "['a', 'b']", |o| {
                o.categorical.as_ref().unwrap().len() == 2
            }),
            ("continuous", "[]", |o| {
                o.continuous.as_ref().unwrap().is_empty()
            }),
            ("hidden_units", "[1000, 500]", |o| {
                o.network.hidden_units == [1000, 500]
            }),
            ("standardize_label", "false", |o| {
                o.standardize_label == Some(false)
            }),
            ("split_key", "['customer']", |o| o.split_key == ["customer"]),
            ("numeric_transform", "'none'", |o| {
                o.numeric_transform == NumericTransform::None
            }),
            ("batch_norm", "false", |o| !o.network.batch_norm),
            ("l2_reg", "5e-5", |o| o.l2 == 5e-5),
            ("activation_output", "'scaled_sigmoid'", |o| {
                o.network.output == Output::ScaledSigmoid
            }),
            ("loss", "'mae'", |o| o.loss.name == Some(LossName::Mae)),
            ("class_weights", "[['yes', 2], [3, 0.5], [true, 1]]", |o| {
                let due = [("yes", 2.0), ("3", 0.5), ("true", 1.0)];
                let due = due.map(|(class, weight)| (class.to_owned(), weight));
                o.class_weights == ClassWeights::Given(due.to_vec())
            }),
            ("sample_weight_col", "'w'", |o| {
                o.sample_weight.as_deref() == Some("w")
            }),
            ("model_type", "'DNN_classifier'", |o| {
                o.task == Task::Classification
            }),
            ("adam_form", "'torch'", |o| {
                o.optimizer.adam_form == Some(AdamForm::Torch)
            }),
            ("optimizer", "'SGD'", |o| o.optimizer.rule == RuleName::Sgd),
            ("nesterov", "true", |o| o.optimizer.nesterov == Some(true)),
            ("learn_rate_schedule", "'cosine'", |o| {
                o.optimizer.decay == DecayName::Cosine
            }),
            ("warmup_epochs", "0.5", |o| {
                o.optimizer.warmup_epochs == Some(0.5)
            }),
            ("clip_norm", "1", |o| o.optimizer.clip_norm == Some(1.0)),
            ("l1_reg", "1e-3", |o| o.l1 == 1e-3),
            ("early_stop", "false", |o| {
                o.early_stop.early_stop == Some(false)
            }),
            ("patience", "5", |o| o.early_stop.patience == Some(5)),
            ("ranks", "3", |o| o.ranks == Ranks::Exactly(3)),
            ("min_ranks", "2", |o| o.min_ranks == 2),
            ("max_ranks", "8", |o| o.max_ranks == Some(8)),
            ("regroup_timeout", "'5s'", |o| {
                o.regroup_timeout.as_secs() == 5
            }),
            ("on_too_few_ranks", "'WAIT'", |o| o.too_few == TooFew::Wait),
            ("checkpoint_every", "100", |o| {
                o.checkpoint_every == Some(100)
            }),
            ("trace", "true", |o| o.trace == Some(true)),
            ("resume", "true", |o| o.resume),
            ("warm_start", "true", |o| {
                o.warm_start == Some(WarmStart::SameModel)
            }),
            ("warm_start", "'m@2'", |o| {
                o.warm_start == Some("m@2".parse().unwrap())
            }),
            ("shards", "12", |o| o.shards == Some(12)),
            ("shard_by", "['Store']", |o| o.shard_by == ["Store"]),
            ("device", "'cuda:1'", |o| {
                o.device == volley_proto::spec::Device::Cuda(1)
            }),
            ("seed", "42", |o| o.seed == 42),
            ("rendezvous_timeout", "'2min'", |o| {
                o.rendezvous_timeout.as_secs() == 120
            }),
        ];
        for (option, value, check) in cases {
            let options = try_set(option, value).unwrap();
            assert!(check(&options), "{option} = {value}");
        }
    }

    #[test]
    fn refuses_wrong_values_by_name() {
        for (option, value) in [
            ("model_type", "1"),
            ("input_label_cols", "'Sales'"),
            ("input_label_cols", "[]"),
            ("label_transform", "'log'"),
            ("data_split_col", "['split']"),
            ("data_split_eval_fraction", "1"),
            ("categorical", "[1]"),
            ("hidden_units", "[1.5]"),
            ("hidden_units", "100"),
            ("embedding_dim", "0"),
            ("dropout", "'half'"),
            ("standardize_label", "'yes'"),
            ("numeric_transform", "'minmax'"),
            ("batch_norm", "1"),
            ("loss", "'mea'"),
            ("optimizer", "'adm'"),
            ("learn_rate", "true"),
            ("learn_rate_schedule", "'cos'"),
            ("early_stop", "'no'"),
            ("patience", "0"),
            ("nesterov", "1"),
            ("batch_size", "-1"),
            ("global_batch_size", "0"),
            ("epochs", "2.5"),
            ("keep", "'first'"),
            ("ranks", "0"),
            ("ranks", "'some'"),
            ("min_ranks", "0"),
            ("max_ranks", "'all'"),
            ("regroup_timeout", "30"),
            ("on_too_few_ranks", "'stop'"),
            ("checkpoint_every", "0"),
            ("resume", "'true'"),
            ("warm_start", "1"),
            ("warm_start", "'a b'"),
            ("warm_start", "'m@0'"),
            ("shard_by", "'Store'"),
            ("device", "'gpu'"),
            ("seed", "-1"),
            ("collective_timeout", "60"),
            ("collective_timeout", "'0s'"),
        ] {
            let error = try_set(option, value).unwrap_err();
            let Error::Proto(volley_proto::Error::Option {
                option: named,
                value: shown,
                expected,
            }) = error
            else {
                panic!("{option} = {value}: {error}");
            };
            assert_eq!((named.as_str(), shown.as_str()), (option, value));
            assert!(
                expected.starts_with("expected "),
                "{option} = {value}: {expected}"
            );
        }
    }

    #[test]
    fn says_what_it_cannot_do() {
        for (option, value) in [
            ("model_type", "'boosted_tree_regressor'"),
            ("input_label_cols", "['a', 'b']"),
            ("data_split_method", "'auto_split'"),
            ("max_iterations", "10"),
        ] {
            let error = try_set(option, value).unwrap_err();
            assert!(
                matches!(error, Error::NotSupported { .. }),
                "{option} = {value}: {error}"
            );
        }
    }

    #[test]
    fn suggests_the_nearest_option() {
        let error = try_set("learning_rate", "1").unwrap_err();
        let Error::UnknownOption {
            option,
            hint,
            known,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            (option.as_str(), hint.as_str()),
            ("learning_rate", "; did you mean \"learn_rate\"?")
        );
        assert!(
            train_options()
                .iter()
                .all(|option| known.contains(option.name))
        );
    }
}
