//! Options of the network and its loss.

use volley_proto::spec::{Activation, ClassWeights, EmbeddingWidth, NumericEmbedding, Output};

use super::super::layers::layers;
use super::super::{Dropout, LossName, OptionValue, QuantileLevels};
use super::set::{boolean, choose, column, expected, number, set, whole};
use super::{Refusal, TrainOption};

pub(super) const NETWORK: &[TrainOption] = &[
    TrainOption {
        name: "hidden_units",
        values: "[width, …]",
        default: "[128, 64]",
        about: "Widths of the dense layers, first to last.",
        example: "hidden_units = [256, 128, 64]",
        set: |to, value| match value.list(OptionValue::number) {
            Some(widths) => set(&mut to.network.hidden_units, Some(widths)),
            None => Err(expected("a list of whole numbers, such as [128, 64]")),
        },
    },
    TrainOption {
        name: "activation_fn",
        values: "'relu', 'relu6', 'leaky_relu', 'elu', 'selu', 'gelu', 'silu', 'mish', 'tanh', 'sigmoid'",
        default: "'mish'",
        about: "Activation function of the dense layers.",
        example: "activation_fn = 'relu'",
        set: |to, value| {
            if value
                .text()
                .is_some_and(|name| name.eq_ignore_ascii_case("swish"))
            {
                return Err(expected("'silu', which is the same function"));
            }
            let chosen = choose(value, &Activation::ALL)?;
            set(&mut to.network.activation, Some(chosen))
        },
    },
    TrainOption {
        name: "network",
        values: "[layer, …]",
        default: "dense(width), mish, dropout(share) for each of hidden_units",
        about: "All layers between the inputs and the output, instead of hidden_units, activation_fn and dropout: \
            dense(units), any activation, dropout(share), layer_norm, residual(layer, …), cross(layers), \
            concat([layer, …], …), custom('name', number, …).",
        example: "network = [dense(128), relu, dropout(0.2), residual(dense(128), relu)]",
        set: |to, value| match layers(value) {
            Ok(layers) => set(&mut to.network.layers, Some(layers)),
            Err(instead) => Err(Refusal::Expected(instead)),
        },
    },
    TrainOption {
        name: "embedding_dim",
        values: "'auto', whole number, [['column', width], …]",
        default: "'auto'",
        about: "Width of the embeddings of categorical features: 'auto' for ⌈1.6 · values^0.56⌉, at most 50; a \
            number for one width for all; or a list of the columns whose width is not 'auto'.",
        example: "embedding_dim = [['store', 16], ['city', 4]]",
        set: |to, value| {
            let pair = |value: &OptionValue| match value {
                OptionValue::List(pair) => match &pair[..] {
                    [OptionValue::Text(column), width] => Some((column.clone(), width.number()?)),
                    _ => None,
                },
                _ => None,
            };
            let auto = value
                .text()
                .is_some_and(|text| text.eq_ignore_ascii_case("auto"));
            let width = match (value.number(), value.list(pair)) {
                _ if auto => EmbeddingWidth::Auto,
                (Some(width), _) => EmbeddingWidth::Same(width),
                (_, Some(widths)) => EmbeddingWidth::Columns(widths),
                _ => {
                    let instead = "'auto', a whole number, or pairs of a column and a width, such as [['store', 50]]";
                    return Err(expected(instead));
                }
            };
            set(&mut to.network.embedding_dim, Some(width))
        },
    },
    TrainOption {
        name: "numeric_embedding",
        values: "'none', 'periodic', 'piecewise_linear'",
        default: "'periodic'; 'none' for a linear model",
        about: "Form in which numbers enter the layers. 'none': the number itself. 'periodic': the number and \
            three \
            combinations of 16 cosines of it, with trained frequencies (\"PBLD\" of RealMLP). \
                'piecewise_linear': 16 \
            functions of the number that are linear within each of at most 48 bins between quantiles, with trained \
            slopes (\"PLE\" of TabM).",
        example: "numeric_embedding = 'piecewise_linear'",
        set: |to, value| {
            let chosen = choose(value, &NumericEmbedding::ALL)?;
            set(&mut to.network.numeric_embedding, Some(chosen))
        },
    },
    TrainOption {
        name: "dropout",
        values: "0 ≤ share < 1, [share, …]",
        default: "0.15",
        about: "Share of the hidden layers' units zeroed in training: one share for all layers, or a list \
            with one \
            for each.",
        example: "hidden_units = [128, 64], dropout = [0.1, 0.3]",
        set: |to, value| match (value.number(), value.list(OptionValue::number)) {
            (Some(share), _) => set(&mut to.network.dropout, Some(Dropout::Each(share))),
            (_, Some(shares)) => set(&mut to.network.dropout, Some(Dropout::Layers(shares))),
            _ => Err(expected("a number, or a list of one for each hidden layer")),
        },
    },
    TrainOption {
        name: "wide",
        values: "true, false",
        default: "false",
        about: "Adds a linear part to the layers' output: a weight for each number and for each value of a \
            categorical feature (\"wide & deep\").",
        example: "wide = true",
        set: |to, value| set(&mut to.network.wide, Some(boolean(value)?)),
    },
    TrainOption {
        name: "factors",
        values: "whole number",
        default: "(none)",
        about: "Width of the factors of a second-order factorization machine, which adds to the layers' \
            output the \
            product of the factors of each pair of values and numbers (\"DeepFM\", with factors of its own).",
        example: "factors = 8",
        set: |to, value| set(&mut to.network.factors, Some(whole(value)?)),
    },
    TrainOption {
        name: "ensemble_size",
        values: "whole number from 1 to 64",
        default: "8 for up to 5,000 rows, unless hidden_units or network is given; else 1",
        about: "Number of networks trained side by side, each with its own parameters and loss; they share \
            only wide \
            and factors. The prediction is the mean of their outputs (\"deep ensemble\").",
        example: "ensemble_size = 4",
        set: |to, value| set(&mut to.network.ensemble_size, Some(whole(value)?)),
    },
    TrainOption {
        name: "batch_norm",
        values: "true, false",
        default: "true; false with numeric_embedding = 'piecewise_linear'",
        about: "Applies batch normalization to continuous features.",
        example: "batch_norm = false",
        set: |to, value| set(&mut to.network.batch_norm, Some(boolean(value)?)),
    },
    TrainOption {
        name: "l2_reg",
        values: "number ≥ 0",
        default: "0; 1 / (2 · training rows) for 'logistic_reg'",
        about: "L2 penalty on the hidden layers' kernels and on a linear part's weights: adds l2_reg · Σ w² \
            to the \
            loss. The default for 'logistic_reg' equals scikit-learn's C = 1; for another C, use 1 / (2 · rows · C).",
        example: "l2_reg = 1e-4",
        set: |to, value| set(&mut to.l2, Some(number(value)?)),
    },
    TrainOption {
        name: "l1_reg",
        values: "number ≥ 0",
        default: "0",
        about: "L1 penalty on the hidden layers' kernels and on a linear part's weights: adds l1_reg · Σ |w| \
            to the \
            loss. With optimizer = 'ftrl' it makes weights exactly 0.",
        example: "model_type = 'linear_reg', l1_reg = 0.01",
        set: |to, value| set(&mut to.l1, number(value)?),
    },
    TrainOption {
        name: "activation_output",
        values: "'identity', 'sigmoid', 'scaled_sigmoid'",
        default: "'identity'",
        about: "Activation function of the output. 'scaled_sigmoid' is the logistic function × 1.2 × the largest \
            transformed training label.",
        example: "activation_output = 'scaled_sigmoid'",
        set: |to, value| {
            let choices = [
                ("identity", Output::Identity),
                ("sigmoid", Output::Sigmoid),
                ("scaled_sigmoid", Output::ScaledSigmoid),
            ];
            set(&mut to.network.output, choose(value, &choices)?)
        },
    },
    TrainOption {
        name: "loss",
        values: "'mae', 'mse', 'huber', 'quantile', 'poisson', 'gamma', 'tweedie', 'log_loss', 'focal'",
        default: "'mse', or 'log_loss' for a classifier",
        about: "Loss function. 'poisson' is for counts, 'gamma' for amounts above 0, 'tweedie' for amounts \
            most of \
            which are 0: Tweedie's unit deviance, with a network that predicts the logarithm of the mean. 'log_loss' \
            and 'focal' are for classifiers.",
        example: "loss = 'mae'",
        set: |to, value| set(&mut to.loss.name, Some(choose(value, &LossName::ALL)?)),
    },
    TrainOption {
        name: "huber_delta",
        values: "number > 0",
        default: "1",
        about: "For 'huber': δ, in standard deviations of the label if it is standardized.",
        example: "loss = 'huber', huber_delta = 2",
        set: |to, value| set(&mut to.loss.huber_delta, Some(number(value)?)),
    },
    TrainOption {
        name: "quantile",
        values: "0 < share < 1, [share, …]",
        default: "0.5",
        about: "For 'quantile': share of the labels that are below the prediction. With several, one network \
            has an \
            output for each.",
        example: "loss = 'quantile', quantile = [0.1, 0.5, 0.9]",
        set: |to, value| {
            let shares = match (value.number(), value.list(OptionValue::number)) {
                (Some(share), _) => QuantileLevels::One(share),
                (_, Some(shares)) => QuantileLevels::Several(shares),
                _ => {
                    return Err(expected(
                        "a number, or a list of them in ascending order, such as [0.05, 0.5, 0.95]",
                    ));
                }
            };
            set(&mut to.loss.quantile, Some(shares))
        },
    },
    TrainOption {
        name: "tweedie_power",
        values: "1 ≤ power ≤ 2",
        default: "1.5",
        about: "For 'tweedie': power of the mean to which the variance is proportional.",
        example: "loss = 'tweedie', tweedie_power = 1.3",
        set: |to, value| set(&mut to.loss.tweedie_power, Some(number(value)?)),
    },
    TrainOption {
        name: "focal_gamma",
        values: "number ≥ 0",
        default: "2",
        about: "For 'focal': γ in −(1 − p)^γ ln p.",
        example: "model_type = 'dnn_classifier', loss = 'focal', focal_gamma = 1",
        set: |to, value| set(&mut to.loss.focal_gamma, Some(number(value)?)),
    },
    TrainOption {
        name: "sample_weight_col",
        values: "'column'",
        default: "(none)",
        about: "Column of row weights, numbers ≥ 0, used in the loss, in metrics, and in the means and deviations \
            that scale numbers. A row of weight 0 counts as absent. The column is not a feature unless named as such.",
        example: "sample_weight_col = 'customers'",
        set: |to, value| set(&mut to.sample_weight, Some(column(value)?)),
    },
    TrainOption {
        name: "auto_class_weights",
        values: "true, false",
        default: "false",
        about: "Gives all classes of a classifier the same weight in training, however many rows they have: \
            the rows \
            of a class are weighted by rows / (classes · rows of the class), where each row counts by its weight.",
        example: "model_type = 'logistic_reg', auto_class_weights = true",
        set: |to, value| match value {
            OptionValue::Bool(true) => set(&mut to.class_weights, ClassWeights::Balanced),
            OptionValue::Bool(false) => Ok(()),
            _ => Err(expected("true or false")),
        },
    },
    TrainOption {
        name: "class_weights",
        values: "[['class', weight], …]",
        default: "1 each",
        about: "Weights of a classifier's classes in training.",
        example: "model_type = 'dnn_classifier', class_weights = [['yes', 5], ['no', 1]]",
        set: |to, value| {
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
    },
];
