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
        "What the dense layers' units pass through.",
        |to, value| {
            let chosen = choose(value, &Activation::ALL)?;
            set(&mut to.network.activation, Some(chosen))
        },
    ),
    option(
        "network",
        "[layer, …]",
        "dense(width), mish, dropout(share) of each of hidden_units",
        "All layers between what enters and the output, instead of hidden_units, activation_fn and dropout: \
         dense(units), any activation, dropout(share), layer_norm, residual(layer, …), cross(layers), concat([layer, …], …), \
         custom('name', number, …).",
        |to, value| match layers(value) {
            Ok(layers) => set(&mut to.network.layers, Some(layers)),
            Err(instead) => Err(Refusal::Expected(instead)),
        },
    ),
    option(
        "embedding_dim",
        "'auto', whole number, [['column', width], …]",
        "'auto'",
        "Width of categorical features' embeddings: ⌈1.6 · values^0.56⌉ and at most 50, the same for all, or of some columns \
         another than 'auto'.",
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
        "'periodic'; 'none' of a linear model",
        "How a number enters the layers: as itself; with three combinations of 16 cosines of it beside, whose \
         frequencies are trained (\"PBLD\" of RealMLP); or as 16 functions of it that are linear within each of at most 48 \
         bins between quantiles, whose slopes are trained (\"PLE\" of TabM).",
        |to, value| {
            let chosen = choose(value, &NumericEmbedding::ALL)?;
            set(&mut to.network.numeric_embedding, Some(chosen))
        },
    ),
    option(
        "dropout",
        "0 ≤ share < 1, [share, …]",
        "0.15",
        "Share of the hidden layers' units zeroed in training: of each layer, or one a layer.",
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
        "Whether a linear part is beside the layers: a weight for each number and for each value of a categorical \
         feature, added to what the layers put out (\"wide & deep\").",
        |to, value| set(&mut to.network.wide, Some(boolean(value)?)),
    ),
    option(
        "factors",
        "whole number",
        "(none)",
        "Width of the factors of a second-order factorization machine beside the layers: for each pair of values and numbers \
         the product of their factors, added to what the layers put out (\"DeepFM\", with factors of its own).",
        |to, value| set(&mut to.network.factors, Some(whole(value)?)),
    ),
    option(
        "ensemble_size",
        "whole number from 1 to 64",
        "8 of up to 5,000 rows, unless hidden_units or network is given; else 1",
        "Networks that are trained side by side, each with parameters and a loss of its own, but for wide and factors, \
         which they have in common; what is predicted is the mean of their outputs (\"deep ensemble\").",
        |to, value| set(&mut to.network.ensemble_size, Some(whole(value)?)),
    ),
    option(
        "batch_norm",
        "true, false",
        "true; false with numeric_embedding = 'piecewise_linear'",
        "Whether continuous features pass through batch norm.",
        |to, value| set(&mut to.network.batch_norm, Some(boolean(value)?)),
    ),
    option(
        "l2_reg",
        "number ≥ 0",
        "0; 1 / (2 · training rows) of 'logistic_reg'",
        "L2 penalty on the hidden layers' kernels and on a linear part's weights: adds l2_reg · Σ w² to the loss. That of \
         'logistic_reg' is scikit-learn's C = 1; 1 / (2 · rows · C) is any other.",
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
        "What the output passes through. 'scaled_sigmoid' is the logistic function × 1.2 × the \
         largest transformed training label.",
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
        "'mse', or 'log_loss' of a classifier",
        "The loss. 'poisson' is of counts, 'gamma' of amounts above 0, 'tweedie' of amounts most of which are 0: Tweedie's \
         unit deviance, of which the network predicts the mean's logarithm. 'log_loss' and 'focal' are of classifiers.",
        |to, value| set(&mut to.loss.name, Some(choose(value, &LossName::ALL)?)),
    ),
    option(
        "huber_delta",
        "number > 0",
        "1",
        "For 'huber': δ, in standard deviations of the label where that is standardized.",
        |to, value| set(&mut to.loss.huber_delta, Some(number(value)?)),
    ),
    option(
        "quantile",
        "0 < share < 1, [share, …]",
        "0.5",
        "For 'quantile': the share of labels that are below the prediction; of several, one network has an output for each.",
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
        "For 'tweedie': the power of the mean that the variance grows with.",
        |to, value| set(&mut to.loss.tweedie_power, Some(number(value)?)),
    ),
    option(
        "focal_gamma",
        "number ≥ 0",
        "2",
        "For 'focal': γ of −(1 − p)^γ ln p.",
        |to, value| set(&mut to.loss.focal_gamma, Some(number(value)?)),
    ),
    option(
        "sample_weight_col",
        "'column'",
        "(none)",
        "A column of the rows' weights, numbers ≥ 0: in the loss, in metrics, and in the means and deviations that numbers \
         are scaled by. A row of weight 0 is as if it were not there. It is no feature unless named.",
        |to, value| set(&mut to.sample_weight, Some(column(value)?)),
    ),
    option(
        "auto_class_weights",
        "true, false",
        "false",
        "Whether a classifier's classes weigh the same in training, however many rows they have: \
         rows / (classes · rows of the class), each counted by its weight.",
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
