//! Options of the network.

use volley_proto::spec::{Activation, EmbeddingWidth, Layer, NumericEmbedding, Output};

use super::Estimator;
use crate::Dropout;

impl Estimator {
    /// Sets whether the model is linear: a weight for each number and for each value of a categorical feature, and no
    /// layers. Default: false.
    pub fn linear(mut self, linear: bool) -> Self {
        self.options.linear = linear;
        self
    }

    /// Sets the widths of the dense layers, in units from 1, first to last. Default: `[128, 64]`.
    pub fn hidden_units(mut self, widths: impl Into<Vec<usize>>) -> Self {
        self.options.network.hidden_units = Some(widths.into());
        self
    }

    /// Sets the activation function of the dense layers. Default: [`Activation::Mish`].
    pub fn activation(mut self, activation: Activation) -> Self {
        self.options.network.activation = Some(activation);
        self
    }

    /// Sets the share of the hidden layers' units zeroed in training, 0 ≤ share < 1, for all layers or one each.
    /// Default: 0.15.
    pub fn dropout(mut self, dropout: Dropout) -> Self {
        self.options.network.dropout = Some(dropout);
        self
    }

    /// Sets all hidden layers, instead of `hidden_units`, `activation` and `dropout`. Default: a dense layer, its
    /// activation and its dropout for each of `hidden_units`.
    ///
    /// At most 256 layers, nested at most eight deep.
    pub fn layers(mut self, layers: impl Into<Vec<Layer>>) -> Self {
        self.options.network.layers = Some(layers.into());
        self
    }

    /// Sets the widths of the categorical features' embeddings, in numbers from 1: the same for all, or one for each
    /// named column. Default: ⌈1.6 · values^0.56⌉, at most 50.
    pub fn embedding_dim(mut self, width: impl Into<EmbeddingWidth>) -> Self {
        self.options.network.embedding_dim = Some(width.into());
        self
    }

    /// Sets the embedding of continuous features. Default: [`NumericEmbedding::Periodic`], and none for a linear model.
    pub fn numeric_embedding(mut self, embedding: NumericEmbedding) -> Self {
        self.options.network.numeric_embedding = Some(embedding);
        self
    }

    /// Sets whether continuous features pass through batch norm. Default: true, but false with
    /// [`NumericEmbedding::PiecewiseLinear`] and for a linear model.
    pub fn batch_norm(mut self, on: bool) -> Self {
        self.options.network.batch_norm = Some(on);
        self
    }

    /// Sets the number of networks trained side by side, from 1 to 64; the prediction is the mean of their outputs.
    ///
    /// Default: 8 for up to 5,000 rows unless `hidden_units` or `layers` is set, else 1.
    pub fn ensemble_size(mut self, members: usize) -> Self {
        self.options.network.ensemble_size = Some(members);
        self
    }

    /// Sets whether the network has a linear part beside the layers, added to their output ("wide & deep"). Default:
    /// false.
    pub fn wide(mut self, wide: bool) -> Self {
        self.options.network.wide = Some(wide);
        self
    }

    /// Sets the width of the factors, from 1, of a second-order factorization machine beside the layers, added to their
    /// output ("DeepFM"). Default: none.
    pub fn factors(mut self, width: usize) -> Self {
        self.options.network.factors = Some(width);
        self
    }

    /// Sets the activation function of a regression's output. Default: [`Output::Identity`].
    pub fn activation_output(mut self, output: Output) -> Self {
        self.options.network.output = output;
        self
    }
}
