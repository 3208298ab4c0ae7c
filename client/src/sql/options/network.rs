//! Options of the network, which linear models do not use.

use volley_proto::spec::{
    Activation, EmbeddingWidth, EnsembleSize, Layer, Linear, Network, NumericEmbedding, Output,
    layers_text,
};

use super::{refused, unread};
use crate::Result;

/// Options of the network, as given.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// Widths of the categorical features' embeddings.
    pub embedding_dim: Option<EmbeddingWidth>,
    /// True to pass continuous features through batch norm.
    pub batch_norm: Option<bool>,
    /// Embedding of continuous features.
    pub numeric_embedding: Option<NumericEmbedding>,
    /// All layers, in place of the next three options.
    pub layers: Option<Vec<Layer>>,
    /// Widths of the dense layers.
    pub hidden_units: Option<Vec<usize>>,
    /// Activation function of the dense layers.
    pub activation: Option<Activation>,
    /// Share of hidden layers' units zeroed in training.
    pub dropout: Option<Dropout>,
    /// True to add a linear part beside the layers.
    pub wide: Option<bool>,
    /// Width of a factorization machine's factors.
    pub factors: Option<usize>,
    /// Number of members of an ensemble.
    pub ensemble_size: Option<usize>,
    /// Activation function of the output.
    pub output: Output,
}

/// Share of hidden layers' units zeroed in training, 0 ≤ share < 1.
#[derive(Debug, Clone, PartialEq)]
pub enum Dropout {
    /// The same share for each layer.
    Each(f64),
    /// One share per layer.
    Layers(Vec<f64>),
}

const HIDDEN_UNITS: [usize; 2] = [128, 64];
const DROPOUT: f64 = 0.15;

impl NetworkOptions {
    /// Returns the complete network; a linear model's has no layers.
    ///
    /// # Errors
    /// Names an option that nothing reads, or that does not fit another.
    pub(super) fn settle(self, linear: bool) -> Result<Network> {
        let layers = self.layers.as_deref().map(layers_text);
        let embedding_dim = self.embedding_dim.as_ref().map(EmbeddingWidth::to_string);
        let numeric_embedding = self.numeric_embedding.map(|x| format!("'{x}'"));
        let of_networks = [
            ("network", layers),
            ("embedding_dim", embedding_dim),
            ("batch_norm", self.batch_norm.map(|x| x.to_string())),
            ("numeric_embedding", numeric_embedding),
            ("wide", self.wide.map(|x| x.to_string())),
            ("factors", self.factors.map(|x| x.to_string())),
            ("ensemble_size", self.ensemble_size.map(|x| x.to_string())),
        ];
        let shorthand = [
            (
                "hidden_units",
                self.hidden_units.as_ref().map(|x| format!("{x:?}")),
            ),
            ("activation_fn", self.activation.map(|x| format!("'{x}'"))),
            ("dropout", self.dropout.as_ref().map(Dropout::to_text)),
        ];
        let first = |options: &[(&'static str, Option<String>)]| {
            let mut options = options.iter();
            options.find_map(|(name, x)| Some((*name, x.clone()?)))
        };
        let given = first(&of_networks).or_else(|| first(&shorthand));
        if let (true, Some((option, value))) = (linear, given) {
            let with = "model_type = 'dnn_regressor' or 'dnn_classifier': others have no layers";
            return Err(unread(option, value, with.to_owned()));
        }
        if let (Some(_), Some((option, value))) = (&self.layers, first(&shorthand)) {
            let without = "only without network, which lists all layers".to_owned();
            return Err(refused(option, value, without));
        }
        Ok(Network {
            embedding_dim: self.embedding_dim.clone().unwrap_or(EmbeddingWidth::Auto),
            batch_norm: self.normalizes() && !linear,
            numeric_embedding: self.numeric_embedding.unwrap_or(match linear {
                true => NumericEmbedding::None,
                false => NumericEmbedding::Periodic,
            }),
            output: self.output,
            linear: match (linear, self.wide) {
                (true, _) => Linear::Alone,
                (false, Some(true)) => Linear::Beside,
                (false, _) => Linear::None,
            },
            factors: self.factors.unwrap_or(0),
            // A network with given layers is trained as given, without an ensemble.
            ensemble_size: match (self.ensemble_size, &self.layers, &self.hidden_units) {
                (Some(members), ..) => EnsembleSize::Of(members),
                (None, None, None) if !linear => EnsembleSize::Auto,
                (None, ..) => EnsembleSize::ONE,
            },
            layers: if linear { vec![] } else { self.into_layers()? },
        })
    }

    /// Checks whether continuous features pass through batch norm, which would shift them relative to their bins.
    pub(crate) fn normalizes(&self) -> bool {
        let is_binned = self.numeric_embedding == Some(NumericEmbedding::PiecewiseLinear);
        self.batch_norm.unwrap_or(!is_binned)
    }

    fn into_layers(self) -> Result<Vec<Layer>> {
        if let Some(layers) = self.layers {
            return Ok(layers);
        }
        let hidden_units = self.hidden_units.unwrap_or(HIDDEN_UNITS.to_vec());
        if hidden_units.contains(&0) {
            let expected = "expected at least 1 unit in each layer".to_owned();
            return Err(refused(
                "hidden_units",
                format!("{hidden_units:?}"),
                expected,
            ));
        }
        let layers = hidden_units.len();
        let dropout = match self.dropout.unwrap_or(Dropout::Each(DROPOUT)) {
            Dropout::Each(share) => vec![share; layers],
            Dropout::Layers(shares) if shares.len() == layers => shares,
            Dropout::Layers(shares) => {
                let expected = format!("expected as many as hidden_units has layers ({layers})");
                return Err(refused("dropout", format!("{shares:?}"), expected));
            }
        };
        let activation = self.activation.unwrap_or(Activation::Mish);
        Ok(Layer::stack(&hidden_units, activation, &dropout))
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
    fn bins_are_without_batch_norm() {
        let settled = |batch_norm, numeric_embedding| {
            let options = NetworkOptions {
                batch_norm,
                numeric_embedding,
                ..Default::default()
            };
            options.settle(false).unwrap().batch_norm
        };
        let binned = Some(NumericEmbedding::PiecewiseLinear);
        assert!(settled(None, None) && settled(None, Some(NumericEmbedding::None)));
        assert!(!settled(None, binned) && !settled(Some(false), binned));
        // A given value is kept; the check of the network refuses it later.
        assert!(settled(Some(true), binned));
    }

    #[test]
    fn a_network_that_is_described_has_one_member() {
        let settled = |options: NetworkOptions| options.settle(false).unwrap().ensemble_size;
        let default = NetworkOptions::default();
        assert_eq!(settled(default.clone()), EnsembleSize::Auto);
        let described = NetworkOptions {
            hidden_units: Some(vec![8]),
            ..default.clone()
        };
        assert_eq!(settled(described.clone()), EnsembleSize::ONE);
        let layers = NetworkOptions {
            layers: Some(vec![Layer::Dense(8)]),
            ..default.clone()
        };
        assert_eq!(settled(layers), EnsembleSize::ONE);
        let given = NetworkOptions {
            ensemble_size: Some(4),
            ..described
        };
        assert_eq!(settled(given), EnsembleSize::Of(4));
        let linear = default.settle(true).unwrap();
        assert_eq!(linear.ensemble_size, EnsembleSize::ONE);
    }

    #[test]
    fn linear_models_have_no_layers_and_refuse_what_is_of_them() {
        let network = NetworkOptions::default().settle(true).unwrap();
        assert_eq!((network.linear, network.layers.len()), (Linear::Alone, 0));
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
        let described = Network {
            ensemble_size: EnsembleSize::Auto,
            ..given.settle(false).unwrap()
        };
        let default = NetworkOptions::default().settle(false).unwrap();
        assert_eq!(described, default);
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
        let both = NetworkOptions {
            layers: Some(vec![Layer::Dense(8)]),
            activation: Some(Activation::Tanh),
            ..Default::default()
        };
        let error = both.clone().settle(false).unwrap_err().to_string();
        assert!(error.contains("activation_fn"), "{error}");
        let layers = NetworkOptions {
            activation: None,
            ..both
        };
        assert_eq!(layers.settle(false).unwrap().layers, [Layer::Dense(8)]);
    }
}
