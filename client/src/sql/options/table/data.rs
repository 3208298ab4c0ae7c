//! Options of the task, the labels and features, and the rows.

use volley_proto::spec::{LabelTransform, NumericTransform, Task};

use super::super::{OptionValue, SplitMethod};
use super::elsewhere::instead_of_model_type;
use super::set::{boolean, choose, column, columns, expected, quotes, set, text, whole};
use super::{Refusal, TrainOption};

pub(super) const DATA: &[TrainOption] = &[
    TrainOption {
        name: "model_type",
        values: "'dnn_regressor', 'dnn_classifier', 'linear_reg', 'logistic_reg'",
        default: "'dnn_regressor'",
        about: "Kind of model. Regressors predict numbers, classifiers one of the label's values (text, whole \
            numbers, booleans or dates). 'dnn_…' models are networks of layers; 'linear_reg' and 'logistic_reg' are \
            linear models: a weight for each number and for each value of a categorical feature.",
        example: "model_type = 'dnn_classifier'",
        set: |to, value| {
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
                (None, Some(name)) => Err(Refusal::NotSupported(instead_of_model_type(&name))),
                (None, None) => choose(value, &choices).map(|_| ()),
            }
        },
    },
    TrainOption {
        name: "input_label_cols",
        values: "['column', …]",
        default: "(required)",
        about: "Column to predict. A regressor may have several, each with an output of its own.",
        example: "input_label_cols = ['sales']",
        set: |to, value| match value.list(text) {
            Some(labels) if !labels.is_empty() => set(&mut to.labels, labels),
            _ => Err(expected(&format!(
                "a list of columns, such as ['sales']{}",
                quotes(value)
            ))),
        },
    },
    TrainOption {
        name: "loss_weights",
        values: "[weight, …]",
        default: "1 each",
        about: "With several input_label_cols: weight of each label's loss in the sum that is trained.",
        example: "input_label_cols = ['sales', 'customers'], loss_weights = [1, 0.5]",
        set: |to, value| match value.list(OptionValue::number) {
            Some(weights) if !weights.is_empty() => set(&mut to.loss_weights, weights),
            _ => Err(expected(
                "a list of numbers, one for each label, such as [1, 0.5]",
            )),
        },
    },
    TrainOption {
        name: "label_transform",
        values: "'identity', 'ln'",
        default: "'identity'",
        about: "Function of the label that the network predicts. With 'ln', loss and L2 are in the logarithm's \
            scale, and predictions are exponentiated.",
        example: "label_transform = 'ln'",
        set: |to, value| {
            let choices = [
                ("identity", LabelTransform::Identity),
                ("ln", LabelTransform::Ln),
            ];
            set(&mut to.label_transform, choose(value, &choices)?)
        },
    },
    TrainOption {
        name: "standardize_label",
        values: "true, false",
        default: "true if activation_output is 'identity'",
        about: "Trains on the (transformed) label minus its mean, divided by its standard deviation, both of the \
            training rows. Losses and metrics are in the label's own scale, and predictions are scaled back.",
        example: "standardize_label = false",
        set: |to, value| set(&mut to.standardize_label, Some(boolean(value)?)),
    },
    TrainOption {
        name: "numeric_transform",
        values: "'standardize', 'quantile', 'none'",
        default: "'standardize'",
        about: "Scaling of continuous features, fitted to the training rows. 'standardize' subtracts the mean and \
            divides by the standard deviation; 'quantile' maps numbers to the normal scores of their ranks, like \
            scikit-learn's QuantileTransformer; 'none' does not scale. Null becomes the mean, or with 'quantile' the \
            median; if training rows have nulls, an extra input marks them.",
        example: "numeric_transform = 'quantile'",
        set: |to, value| {
            let chosen = choose(value, &NumericTransform::ALL)?;
            set(&mut to.numeric_transform, chosen)
        },
    },
    TrainOption {
        name: "data_split_method",
        values: "'auto_split', 'no_split', 'custom', 'random', 'seq'",
        default: "'auto_split', or what data_split_col or data_split_eval_fraction imply",
        about: "Method of splitting rows into training and evaluation. 'seq' evaluates the last rows by \
            data_split_col. 'auto_split' cross-validates an ensemble trained without wide, factors and warm_start: \
            each member holds out its own fold, and out-of-fold predictions are evaluated. Otherwise it means \
            'random'.",
        example: "data_split_method = 'no_split'",
        set: |to, value| {
            let choices = [
                ("auto_split", SplitMethod::Auto),
                ("seq", SplitMethod::Sequential),
                ("no_split", SplitMethod::NoSplit),
                ("custom", SplitMethod::Custom),
                ("random", SplitMethod::Random),
            ];
            set(&mut to.split_method, Some(choose(value, &choices)?))
        },
    },
    TrainOption {
        name: "data_split_col",
        values: "'column'",
        default: "(none)",
        about: "For 'custom': a column of 'TRAIN', 'EVAL' or 'TEST' (TEST rows only add their values to the \
            vocabularies), or a boolean that is true for evaluation. For 'seq': a number, a date or a time; rows \
            where it is null are evaluated. The column is no feature, unless categorical or continuous names it.",
        example: "data_split_method = 'seq', data_split_col = 'day'",
        set: |to, value| set(&mut to.split_column, Some(column(value)?)),
    },
    TrainOption {
        name: "split_key",
        values: "['column', …]",
        default: "all columns of the query",
        about: "Columns that decide a row's side in a random split: rows with equal values stay together, such as \
            those of one customer. They are not features unless named as such. The side does not depend on the \
            features, the shards or the cluster.",
        example: "split_key = ['store']",
        set: |to, value| set(&mut to.split_key, columns(value)?),
    },
    TrainOption {
        name: "data_split_eval_fraction",
        values: "0 < share < 1",
        default: "0.2 with 'random' and 'seq'",
        about: "For 'random' and 'seq': share of the rows that is evaluated.",
        example: "data_split_method = 'random', data_split_eval_fraction = 0.1",
        set: |to, value| match value.number() {
            Some(share) if share > 0.0 && share < 1.0 => set(&mut to.split_fraction, Some(share)),
            _ => Err(expected("a share between 0 and 1")),
        },
    },
    TrainOption {
        name: "categorical",
        values: "['column', …]",
        default: "every text, boolean and date column, if continuous is not given either",
        about: "Features that are embedded. Null is a value of its own.",
        example: "categorical = ['store', 'city']",
        set: |to, value| set(&mut to.categorical, Some(columns(value)?)),
    },
    TrainOption {
        name: "continuous",
        values: "['column', …]",
        default: "every column of numbers or timestamps, if categorical is not given either",
        about: "Features used as numbers. Null becomes the mean, with an extra input that marks it. Dates and \
            timestamps are days since 1970-01-01, with fractions.",
        example: "continuous = ['price', 'day']",
        set: |to, value| set(&mut to.continuous, Some(columns(value)?)),
    },
    TrainOption {
        name: "min_frequency",
        values: "whole number",
        default: "(none: all values)",
        about: "Minimum number of rows, test rows excluded, in which a value of a categorical feature must \
            occur to \
            get its own embedding. All rarer values share one.",
        example: "min_frequency = 5",
        set: |to, value| set(&mut to.vocabulary.min_frequency, Some(whole(value)?)),
    },
    TrainOption {
        name: "max_vocabulary",
        values: "whole number",
        default: "(none: all values)",
        about: "Maximum number of values of a categorical feature that get their own embedding: the most frequent \
            ones. All others share one.",
        example: "max_vocabulary = 10000",
        set: |to, value| set(&mut to.vocabulary.max_vocabulary, Some(whole(value)?)),
    },
    TrainOption {
        name: "hash_buckets",
        values: "whole number",
        default: "(none)",
        about: "Number of buckets into which values of categorical features are hashed. Each bucket has an \
            embedding, instead of each value: for columns with more values than fit into memory.",
        example: "hash_buckets = 100000",
        set: |to, value| set(&mut to.vocabulary.hash_buckets, Some(whole(value)?)),
    },
];
