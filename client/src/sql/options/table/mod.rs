//! Table of all options: name, values, default, description and setter of each.

mod data;
mod elsewhere;
mod learning;
mod network;
mod running;
mod set;
#[cfg(test)]
mod tests;

use volley_proto::nearest;

use data::DATA;
use elsewhere::ELSEWHERE_ALONE;
use learning::LEARNING;
use network::NETWORK;
use running::RUNNING;

use super::{OptionValue, TrainOptions, refused};
use crate::{Error, Result};

/// Option of `CREATE MODEL`, as documented.
#[derive(Debug)]
pub struct TrainOption {
    /// Name of the option.
    pub name: &'static str,
    /// Values that it takes.
    pub values: &'static str,
    /// Default value.
    pub default: &'static str,
    /// Description of its effect.
    pub about: &'static str,
    /// Example within `OPTIONS (…)`, with the options that it needs, besides the label.
    pub example: &'static str,
    set: Set,
}

/// Number of similar options that an error suggests.
const SIMILAR: usize = 3;

type Set = fn(&mut TrainOptions, &OptionValue) -> Result<(), Refusal>;

/// Reason to refuse a value.
enum Refusal {
    /// Not one of the option's values; holds the expected ones.
    Expected(String),
    /// Not supported by Volley.
    NotSupported(&'static str),
}

/// Returns all options, in the order of the documentation.
pub fn train_options() -> impl Iterator<Item = &'static TrainOption> {
    [DATA, NETWORK, LEARNING, RUNNING].into_iter().flatten()
}

impl TrainOptions {
    /// Sets an option by its name in SQL.
    ///
    /// # Errors
    /// Names the option, the value, and what would be right.
    pub fn set(&mut self, option: &str, value: &OptionValue) -> Result<()> {
        let name = option.to_lowercase();
        let is_meant = |(names, _): &&(&str, &str)| names.split(' ').any(|known| known == name);
        let mut elsewhere = NOT_SUPPORTED.iter().chain(ELSEWHERE_ALONE);
        if let Some((_, what)) = elsewhere.find(is_meant) {
            return Err(Error::not_supported(format!("option {name}: {what}")));
        }
        let Some(known) = train_options().find(|known| known.name == name) else {
            let similar = match ELSEWHERE.iter().find(is_meant) {
                Some((_, own)) => vec![*own],
                None => nearest(option, train_options().map(|known| known.name)),
            };
            return Err(Error::UnknownOption {
                option: option.to_owned(),
                hint: match &similar[..similar.len().min(SIMILAR)] {
                    [] => String::new(),
                    [one] => format!("; did you mean {one}?"),
                    [first @ .., last] => {
                        format!("; did you mean {} or {last}?", first.join(", "))
                    }
                },
            });
        };
        (known.set)(self, value).map_err(|refusal| match refusal {
            Refusal::Expected(expected) => {
                refused(name, value.to_string(), format!("expected {expected}"))
            }
            Refusal::NotSupported(instead) => {
                Error::not_supported(format!("{name} = {value}: {instead}"))
            }
        })
    }
}

/// Names of options in other libraries, too different from Volley's for a suggestion by spelling.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "label labels label_col label_cols label_column label_columns target target_col target_column",
        "input_label_cols",
    ),
    ("num_epochs max_epochs", "epochs"),
    ("lr", "learn_rate"),
    ("hidden_layers hidden_layer_sizes", "hidden_units"),
    ("activation", "activation_fn"),
    ("alpha", "l2_reg"),
    ("random_state random_seed", "seed"),
    ("validation_split test_size", "data_split_eval_fraction"),
    ("class_weight", "class_weights"),
    ("sample_weight", "sample_weight_col"),
];

/// Options of BigQuery ML that this one has under another name.
const NOT_SUPPORTED: &[(&str, &str)] = &[("max_iterations", "use epochs")];
