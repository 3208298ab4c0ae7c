//! Options of the network and its loss.

use volley_proto::spec::{Activation, ClassWeights, EmbeddingWidth, NumericEmbedding, Output};

use super::super::layers::layers;
use super::super::{Dropout, LossName, OptionValue, QuantileLevels};
use super::set::{boolean, choose, column, expected, number, set, whole};
use super::{Refusal, TrainOption, option};

pub(super) const NETWORK: &[TrainOption] = &[
    option(
        "hidden_units",
        "[width, …]",
        "[128, 64]",
        "Widths of the dense layers, first to last.",
        |to, value| match value.list(OptionValue::number) {
            Some(widths) => set(&mut to.network.hidden_units, Some(widths)),
            None => Err(expected("a list of whole numbers, such as [128, 64]")),
        },
    ),
    option(
        "activation_fn",
        "'relu', 'relu6', 'leaky_relu', 'elu', 'selu', 'gelu', 'silu', 'mish', 'tanh', 'sigmoid'",
        "'mish'",
        "Activation function of the dense layers.",
        |to, value| {
            let chosen = choose(value, &Activation::ALL)?;
            set(&mut to.network.activation, Some(chosen))
        },
    ),
    option(
        "network",
        "[layer, …]",
        "dense(width), mish, dropout(share) for each of hidden_units",
        "All layers between the inputs and the output, instead of hidden_units, activation_fn and dropout: \
         dense(units), any activation, dropout(share), layer_norm, residual(layer, …), cross(layers), concat([layer, \
         …], …), custom('name', number, …).",
        |to, value| match layers(value) {
            Ok(layers) => set(&mut to.network.layers, Some(layers)),
            Err(instead) => Err(Refusal::Expected(instead)),
        },
    ),
    option(
        "embedding_dim",
        "'auto', whole number, [['column', width], …]",
        "'auto'",
        "Width of the embeddings of categorical features: 'auto' for ⌈1.6 · values^0.56⌉, at most 50; a number for \
         one width for all; or a list of the columns whose width is not 'auto'.",
        |to, value| {
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
    ),
    option(
        "numeric_embedding",
        "'none', 'periodic', 'piecewise_linear'",
        "'periodic'; 'none' for a linear model",
        "Form in which numbers enter the layers. 'none': the number itself. 'periodic': the number and three \
         combinations of 16 cosines of it, with trained frequencies (\"PBLD\" of RealMLP). 'piecewise_linear': 16 \
         functions of the number that are linear within each of at most 48 bins between quantiles, with trained \
         slopes (\"PLE\" of TabM).",
        |to, value| {
            let chosen = choose(value, &NumericEmbedding::ALL)?;
            set(&mut to.network.numeric_embedding, Some(chosen))
        },
    ),
    option(
        "dropout",
        "0 ≤ share < 1, [share, …]",
        "0.15",
        "Share of the hidden layers' units zeroed in training: one share for all layers, or a list with one for each.",
        |to, value| match (value.number(), value.list(OptionValue::number)) {
            (Some(share), _) => set(&mut to.network.dropout, Some(Dropout::Each(share))),
            (_, Some(shares)) => set(&mut to.network.dropout, Some(Dropout::Layers(shares))),
            _ => Err(expected("a number, or a list of one for each hidden layer")),
        },
    ),
    option(
        "wide",
        "true, false",
        "false",
        "Adds a linear part to the layers' output: a weight for each number and for each value of a categorical \
         feature (\"wide & deep\").",
        |to, value| set(&mut to.network.wide, Some(boolean(value)?)),
    ),
    option(
        "factors",
        "whole number",
        "(none)",
        "Width of the factors of a second-order factorization machine, which adds to the layers' output the product \
         of the factors of each pair of values and numbers (\"DeepFM\", with factors of its own).",
        |to, value| set(&mut to.network.factors, Some(whole(value)?)),
    ),
    option(
        "ensemble_size",
        "whole number from 1 to 64",
        "8 for up to 5,000 rows, unless hidden_units or network is given; else 1",
        "Number of networks trained side by side, each with its own parameters and loss; they share only wide and \
         factors. The prediction is the mean of their outputs (\"deep ensemble\").",
        |to, value| set(&mut to.network.ensemble_size, Some(whole(value)?)),
    ),
    option(
        "batch_norm",
        "true, false",
        "true; false with numeric_embedding = 'piecewise_linear'",
        "Applies batch normalization to continuous features.",
        |to, value| set(&mut to.network.batch_norm, Some(boolean(value)?)),
    ),
    option(
        "l2_reg",
        "number ≥ 0",
        "0; 1 / (2 · training rows) for 'logistic_reg'",
        "L2 penalty on the hidden layers' kernels and on a linear part's weights: adds l2_reg · Σ w² to the loss. The \
         default for 'logistic_reg' equals scikit-learn's C = 1; for another C, use 1 / (2 · rows · C).",
        |to, value| set(&mut to.l2, Some(number(value)?)),
    ),
    option(
        "l1_reg",
        "number ≥ 0",
        "0",
        "L1 penalty on the hidden layers' kernels and on a linear part's weights: adds l1_reg · Σ |w| to the loss. With optimizer = 'ftrl' it makes \
         weights exactly 0.",
        |to, value| set(&mut to.l1, number(value)?),
    ),
    option(
        "activation_output",
        "'identity', 'sigmoid', 'scaled_sigmoid'",
        "'identity'",
        "Activation function of the output. 'scaled_sigmoid' is the logistic function × 1.2 × the largest transformed \
         training label.",
        |to, value| {
            let choices = [
                ("identity", Output::Identity),
                ("sigmoid", Output::Sigmoid),
                ("scaled_sigmoid", Output::ScaledSigmoid),
            ];
            set(&mut to.network.output, choose(value, &choices)?)
        },
    ),
    option(
        "loss",
        "'mae', 'mse', 'huber', 'quantile', 'poisson', 'gamma', 'tweedie', 'log_loss', 'focal'",
        "'mse', or 'log_loss' for a classifier",
        "Loss function. 'poisson' is for counts, 'gamma' for amounts above 0, 'tweedie' for amounts most of which are \
         0: Tweedie's unit deviance, with a network that predicts the logarithm of the mean. 'log_loss' and 'focal' \
         are for classifiers.",
        |to, value| set(&mut to.loss.name, Some(choose(value, &LossName::ALL)?)),
    ),
    option(
        "huber_delta",
        "number > 0",
        "1",
        "For 'huber': δ, in standard deviations of the label if it is standardized.",
        |to, value| set(&mut to.loss.huber_delta, Some(number(value)?)),
    ),
    option(
        "quantile",
        "0 < share < 1, [share, …]",
        "0.5",
        "For 'quantile': share of the labels that are below the prediction. With several, one network has an output \
         for each.",
        |to, value| {
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
    ),
    option(
        "tweedie_power",
        "1 ≤ power ≤ 2",
        "1.5",
        "For 'tweedie': power of the mean to which the variance is proportional.",
        |to, value| set(&mut to.loss.tweedie_power, Some(number(value)?)),
    ),
    option(
        "focal_gamma",
        "number ≥ 0",
        "2",
        "For 'focal': γ in −(1 − p)^γ ln p.",
        |to, value| set(&mut to.loss.focal_gamma, Some(number(value)?)),
    ),
    option(
        "sample_weight_col",
        "'column'",
        "(none)",
        "Column of row weights, numbers ≥ 0, used in the loss, in metrics, and in the means and deviations that scale \
         numbers. A row of weight 0 counts as absent. The column is not a feature unless named as such.",
        |to, value| set(&mut to.sample_weight, Some(column(value)?)),
    ),
    option(
        "auto_class_weights",
        "true, false",
        "false",
        "Gives all classes of a classifier the same weight in training, however many rows they have: the rows of a \
         class are weighted by rows / (classes · rows of the class), where each row counts by its weight.",
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
];
