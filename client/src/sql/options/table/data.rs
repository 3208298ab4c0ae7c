//! Options of the task, the labels and features, and the rows.

use volley_proto::spec::{LabelTransform, NumericTransform, Task};

use super::super::{OptionValue, SplitMethod};
use super::set::{boolean, choose, column, columns, expected, set, text, whole};
use super::{Refusal, TrainOption, option};

pub(super) const DATA: &[TrainOption] = &[
    option(
        "model_type",
        "'dnn_regressor', 'dnn_classifier', 'linear_reg', 'logistic_reg'",
        "'dnn_regressor'",
        "What is predicted: a number, or which of its values the label has (text, whole numbers, booleans or dates); by a \
         network of layers, or by a linear model: a weight for each number and for each value of a categorical feature.",
        |to, value| {
            let choices = [
                ("dnn_regressor", (Task::Regression, false)),
                ("dnn_classifier", (Task::Classification, false)),
                ("linear_reg", (Task::Regression, true)),
                ("logistic_reg", (Task::Classification, true)),
            ];
            let name = value.text().map(str::to_lowercase);
            let found = choices
                .iter()
                .find(|(known, _)| Some(*known) == name.as_deref());
            match (found, name) {
                (Some((_, (task, linear))), _) => {
                    (to.task, to.linear) = (*task, *linear);
                    Ok(())
                }
                (None, Some(_)) => Err(Refusal::NotSupported(
                    "use 'dnn_regressor', 'dnn_classifier', 'linear_reg' or 'logistic_reg'",
                )),
                (None, None) => choose(value, &choices).map(|_| ()),
            }
        },
    ),
    option(
        "input_label_cols",
        "['column', …]",
        "(needed)",
        "The column to predict; several of a regressor, each by an output of its own.",
        |to, value| match value.list(text) {
            Some(labels) if !labels.is_empty() => set(&mut to.labels, labels),
            _ => Err(expected("a list of columns, such as ['sales']")),
        },
    ),
    option(
        "loss_weights",
        "[weight, …]",
        "1 each",
        "With several input_label_cols: what the loss of each is multiplied by in the sum that is trained.",
        |to, value| match value.list(OptionValue::number) {
            Some(weights) if !weights.is_empty() => set(&mut to.loss_weights, weights),
            _ => Err(expected(
                "a list of numbers, one for each label, such as [1, 0.5]",
            )),
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
            set(&mut to.label_transform, choose(value, &choices)?)
        },
    ),
    option(
        "standardize_label",
        "true, false",
        "true where activation_output is 'identity'",
        "Whether the network learns the (transformed) label less its mean, in standard deviations of the training \
         rows. Losses and metrics are in the label's own scale, and predictions are undone.",
        |to, value| set(&mut to.standardize_label, Some(boolean(value)?)),
    ),
    option(
        "numeric_transform",
        "'standardize', 'quantile', 'none'",
        "'standardize'",
        "How continuous features are scaled by what the training rows hold: less their mean in standard deviations; as \
         normal scores of their ranks, like scikit-learn's QuantileTransformer; or not at all. Null becomes the mean, or \
         the median of ranked numbers; where training rows have nulls, a further input says so.",
        |to, value| {
            let chosen = choose(value, &NumericTransform::ALL)?;
            set(&mut to.numeric_transform, chosen)
        },
    ),
    option(
        "data_split_method",
        "'auto_split', 'no_split', 'custom', 'random', 'seq'",
        "'auto_split', or what data_split_col or data_split_eval_fraction imply",
        "How rows are split into training and evaluation. 'seq' evaluates the last rows by data_split_col. 'auto_split' \
         is cross-validation where an ensemble is trained, without wide, factors and warm_start: each member holds out a \
         fold of its own, and out-of-fold predictions are evaluated. Else it is 'random'.",
        |to, value| {
            let choices = [
                ("auto_split", SplitMethod::Auto),
                ("seq", SplitMethod::Sequential),
                ("no_split", SplitMethod::NoSplit),
                ("custom", SplitMethod::Custom),
                ("random", SplitMethod::Random),
            ];
            set(&mut to.split_method, Some(choose(value, &choices)?))
        },
    ),
    option(
        "data_split_col",
        "'column'",
        "(none)",
        "For 'custom': a column of 'TRAIN', 'EVAL' or 'TEST' (TEST rows only lend their values to \
         the vocabularies), or a boolean that is true for evaluation. For 'seq': a number, a date or a time; where it is \
         null, rows are evaluated.",
        |to, value| set(&mut to.split_column, Some(column(value)?)),
    ),
    option(
        "split_key",
        "['column', …]",
        "all columns that the query gives",
        "Columns whose values decide where a row goes in a random split: rows with equal ones stay together, such as \
         those of one customer. They are no features unless named. A row goes where it goes whatever the features, the \
         shards and the cluster are.",
        |to, value| set(&mut to.split_key, columns(value)?),
    ),
    option(
        "data_split_eval_fraction",
        "0 < share < 1",
        "0.2 of 'random' and 'seq'",
        "For 'random' and 'seq': the share of rows that is evaluated.",
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
        |to, value| set(&mut to.categorical, Some(columns(value)?)),
    ),
    option(
        "continuous",
        "['column', …]",
        "with no categorical either: every column of numbers, and of timestamps",
        "Features that enter as numbers. Null is their mean, with an input that says so. Dates and timestamps are days \
         since 1970-01-01, with fractions.",
        |to, value| set(&mut to.continuous, Some(columns(value)?)),
    ),
    option(
        "min_frequency",
        "whole number",
        "(none: all values)",
        "A categorical feature's values have an embedding of their own if they occur in so many rows that are not for \
         testing. All others share one.",
        |to, value| set(&mut to.vocabulary.min_frequency, Some(whole(value)?)),
    ),
    option(
        "max_vocabulary",
        "whole number",
        "(none: all values)",
        "The most values of a categorical feature that have an embedding of their own: the most frequent ones. All \
         others share one.",
        |to, value| set(&mut to.vocabulary.max_vocabulary, Some(whole(value)?)),
    ),
    option(
        "hash_buckets",
        "whole number",
        "(none)",
        "Values of categorical features are hashed into so many buckets instead, which have an embedding each: for \
         columns of more values than memory has room for.",
        |to, value| set(&mut to.vocabulary.hash_buckets, Some(whole(value)?)),
    ),
];
