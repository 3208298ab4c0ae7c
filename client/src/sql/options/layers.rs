//! Layers as typed: `network = [dense(256), relu, dropout(0.1), residual(dense(256), relu), cross(2)]`.

use volley_proto::did_you_mean;
use volley_proto::spec::{Activation, Layer};

use super::OptionValue;

/// Names of layers other than [activations](Activation).
const NAMES: [&str; 7] = [
    "dense",
    "dropout",
    "layer_norm",
    "residual",
    "cross",
    "concat",
    "custom",
];

/// Parses a list of layers.
///
/// # Errors
/// Describes what is expected, and names the value that does not fit.
pub(super) fn layers(value: &OptionValue) -> Result<Vec<Layer>, String> {
    match value {
        OptionValue::List(layers) => layers.iter().map(layer).collect(),
        _ => Err("a list of layers, such as [dense(128), relu, dropout(0.1)]".to_owned()),
    }
}

fn layer(value: &OptionValue) -> Result<Layer, String> {
    let (name, arguments) = match value {
        OptionValue::Word(name) => (name, None),
        OptionValue::Call(name, arguments) => (name, Some(arguments.as_slice())),
        other => {
            return Err(format!(
                "a layer where {other} is, such as dense(128) or relu"
            ));
        }
    };
    let name = name.to_lowercase();
    let refuse = |takes: &str| Err(format!("{name}{takes} where {value} is"));
    if let Some((_, activation)) = Activation::ALL.iter().find(|(known, _)| *known == name) {
        return match arguments {
            None => Ok(Layer::Activation(*activation)),
            Some(_) => refuse(", without parentheses,"),
        };
    }
    match (name.as_str(), arguments) {
        ("layer_norm", None) => Ok(Layer::LayerNorm),
        ("layer_norm", _) => refuse(", without parentheses,"),
        ("dense", Some([units])) => match units.number() {
            Some(units) => Ok(Layer::Dense(units)),
            None => refuse("(units), with a whole number of units,"),
        },
        ("dense", _) => refuse("(units), with a whole number of units,"),
        ("dropout", Some([share])) => match share.number() {
            Some(share) => Ok(Layer::Dropout(share)),
            None => refuse("(share), with a share from 0 to 1,"),
        },
        ("dropout", _) => refuse("(share), with a share from 0 to 1,"),
        ("cross", Some([layers])) => match layers.number() {
            Some(layers) => Ok(Layer::Cross(layers)),
            None => refuse("(layers), with a whole number of layers,"),
        },
        ("cross", _) => refuse("(layers), with a whole number of layers,"),
        ("residual", Some(inner)) => {
            let inner: Result<_, _> = inner.iter().map(layer).collect();
            Ok(Layer::Residual(inner?))
        }
        ("residual", None) => refuse("(layer, …)"),
        ("concat", Some(branches)) => {
            let branch = |branch: &OptionValue| match branch {
                OptionValue::List(_) => layers(branch),
                one => Ok(vec![layer(one)?]),
            };
            let branches: Result<_, _> = branches.iter().map(branch).collect();
            Ok(Layer::Concat(branches?))
        }
        ("concat", None) => refuse("([layer, …], …)"),
        ("custom", Some([OptionValue::Text(name), arguments @ ..])) => {
            let numbers: Option<Vec<f64>> = arguments.iter().map(OptionValue::number).collect();
            match numbers {
                Some(arguments) => Ok(Layer::Custom {
                    name: name.clone(),
                    arguments,
                }),
                None => refuse("('name', number, …), with numbers alone after the name,"),
            }
        }
        ("custom", _) => {
            refuse("('name', number, …), with the name that executors register a layer as,")
        }
        _ => {
            let known = || {
                NAMES
                    .into_iter()
                    .chain(Activation::ALL.map(|(name, _)| name))
            };
            let names: Vec<_> = known().collect();
            let hint = match did_you_mean(&name, known()) {
                none if none.is_empty() => {
                    "; a layer that executors register is custom('name', …)".to_owned()
                }
                hint => hint,
            };
            Err(format!(
                "layers of {} where {name} is{hint}",
                names.join(", ")
            ))
        }
    }
}
