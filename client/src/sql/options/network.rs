//! The network, from options that linear models have no use for.

use volley_proto::spec::{Linear, Network, Output};

use super::unread;
use crate::{Error, Result};

/// The network as options have it so far.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// Width of every categorical feature's embedding.
    pub embedding_dim: Option<usize>,
    /// Whether continuous features pass through batch norm.
    pub batch_norm: Option<bool>,
    /// Widths of the dense layers.
    pub hidden_units: Option<Vec<usize>>,
    /// Share of hidden layers' units zeroed in training.
    pub dropout: Option<Dropout>,
    /// Whether a linear part is beside the layers.
    pub wide: Option<bool>,
    /// What the output passes through.
    pub output: Output,
}

/// Share of hidden layers' units zeroed in training.
#[derive(Debug, Clone, PartialEq)]
pub enum Dropout {
    /// The same of each layer.
    Each(f64),
    /// One a layer.
    Layers(Vec<f64>),
}

const HIDDEN_UNITS: [usize; 2] = [128, 64];
const EMBEDDING_DIM: usize = 10;
const DROPOUT: f64 = 0.15;

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            embedding_dim: None,
            batch_norm: None,
            hidden_units: None,
            dropout: None,
            wide: None,
            output: Output::Identity,
        }
    }
}

impl NetworkOptions {
    /// The complete network, or that of a linear model, which has no layers.
    ///
    /// # Errors
    /// Names an option that nothing would read, or that does not fit another.
    pub(super) fn settle(self, linear: bool) -> Result<Network> {
        let given = [
            ("embedding_dim", self.embedding_dim.map(|x| x.to_string())),
            ("batch_norm", self.batch_norm.map(|x| x.to_string())),
            (
                "hidden_units",
                self.hidden_units.as_ref().map(|x| format!("{x:?}")),
            ),
            ("dropout", self.dropout.as_ref().map(Dropout::to_text)),
            ("wide", self.wide.map(|x| x.to_string())),
        ];
        let given = given.into_iter().find_map(|(name, x)| Some((name, x?)));
        if let (true, Some((option, value))) = (linear, given) {
            let with = "model_type = 'dnn_regressor' or 'dnn_classifier': others have no layers";
            return Err(unread(option, value, with.to_owned()));
        }
        let hidden_units = match linear {
            true => vec![],
            false => self.hidden_units.unwrap_or(HIDDEN_UNITS.to_vec()),
        };
        let layers = hidden_units.len();
        let dropout = match self.dropout.unwrap_or(Dropout::Each(DROPOUT)) {
            Dropout::Each(share) => vec![share; layers],
            Dropout::Layers(shares) if shares.len() == layers => shares,
            Dropout::Layers(shares) => {
                return Err(Error::Proto(volley_proto::Error::Option {
                    option: "dropout".to_owned(),
                    value: format!("{shares:?}"),
                    expected: format!("as many as hidden_units has layers ({layers})"),
                }));
            }
        };
        Ok(Network {
            embedding_dim: self.embedding_dim.unwrap_or(EMBEDDING_DIM),
            batch_norm: self.batch_norm.unwrap_or(true) && !linear,
            hidden_units,
            dropout,
            output: self.output,
            linear: match (linear, self.wide) {
                (true, _) => Linear::Alone,
                (false, Some(true)) => Linear::Beside,
                (false, _) => Linear::None,
            },
        })
    }
}

impl Dropout {
    fn to_text(&self) -> String {
        match self {
            Self::Each(share) => share.to_string(),
            Self::Layers(shares) => format!("{shares:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_models_have_no_layers_and_refuse_what_is_of_them() {
        let network = NetworkOptions::default().settle(true).unwrap();
        assert_eq!(
            (network.linear, network.hidden_units.len()),
            (Linear::Alone, 0)
        );
        assert!(!network.batch_norm);
        let given = NetworkOptions {
            hidden_units: Some(HIDDEN_UNITS.to_vec()),
            ..Default::default()
        };
        let error = given.clone().settle(true).unwrap_err().to_string();
        assert!(
            error.contains("hidden_units") && error.contains("[128, 64]"),
            "{error}"
        );
        assert_eq!(
            given.settle(false).unwrap(),
            NetworkOptions::default().settle(false).unwrap()
        );
        let wide = NetworkOptions {
            wide: Some(true),
            dropout: Some(Dropout::Layers(vec![0.5])),
            ..Default::default()
        };
        assert!(
            wide.clone()
                .settle(false)
                .unwrap_err()
                .to_string()
                .contains("2")
        );
        let wide = NetworkOptions {
            hidden_units: Some(vec![8]),
            ..wide
        };
        assert_eq!(wide.settle(false).unwrap().linear, Linear::Beside);
    }
}
