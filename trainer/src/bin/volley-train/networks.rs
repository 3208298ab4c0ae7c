//! The networks to measure: the Rossmann job's, and those that `CREATE MODEL` builds by default, as in
//! `client/src/sql/options`.

use volley_proto::spec::{
    Activation, Decay, EmbeddingWidth, EnsembleSize, Keep, LabelTransform, Layer, Linear, Loss,
    Network, NumericEmbedding, NumericTransform, Optimizer, Output, Rule, Schedule, Split,
    TrainSpec,
};

use super::{Result, rossmann, tables};

/// Features of the default ensemble, which is for small tables: the kinds of features that `gpu-networks` has.
const FEATURES: [&str; 11] = [
    "c1", "c9", "c14", "c15", "c16", "n0", "n1", "n2", "n3", "n4", "n5",
];

/// Returns the spec of a network by name.
pub(crate) fn spec(network: &str, batch: usize) -> Result<TrainSpec> {
    match network {
        "rossmann" => Ok(rossmann::spec(batch)),
        "default-ensemble" => Ok(default_ensemble(batch)),
        "linear" => Ok(linear(batch)),
        "tables" => Ok(tables::spec(batch)),
        _ => {
            let known = "rossmann, default-ensemble, linear or tables";
            Err(format!("unknown network {network:?}: {known}").into())
        }
    }
}

/// Builds `dnn_regressor` without options, on a small table and without a refit.
fn default_ensemble(batch: usize) -> TrainSpec {
    let mut spec = default(batch);
    spec.features
        .retain(|feature| FEATURES.contains(&feature.column.as_str()));
    spec.split = Split::CrossValidation(0.2);
    spec.network = Network {
        embedding_dim: EmbeddingWidth::Auto,
        numeric_embedding: NumericEmbedding::Periodic,
        layers: Layer::stack(&[128, 64], Activation::Mish, &[0.15, 0.15]),
        ensemble_size: EnsembleSize::Of(EnsembleSize::MEMBERS),
        ..spec.network
    };
    spec
}

/// Builds `linear_reg` with a batch size, which makes it train instead of being solved; all rows are trained on.
fn linear(batch: usize) -> TrainSpec {
    let mut spec = default(batch);
    spec.network = Network {
        embedding_dim: EmbeddingWidth::Auto,
        batch_norm: false,
        layers: vec![],
        linear: Linear::Alone,
        ..spec.network
    };
    spec
}

/// Builds the defaults that both have in common.
pub(crate) fn default(batch: usize) -> TrainSpec {
    let mut spec = rossmann::spec(batch);
    spec.label.transform = LabelTransform::Identity;
    spec.label.standardize = true;
    spec.numeric_transform = NumericTransform::Standardize;
    spec.network.output = Output::Identity;
    spec.loss = Loss::Mse;
    spec.l2 = Some(0.0);
    spec.keep = Keep::Best;
    spec.optimizer = Optimizer {
        rule: Rule::adam(0.01),
        schedule: Schedule {
            decay: Decay::OneCycle,
            ..Schedule::default()
        },
        ema_momentum: Some(0.99),
        ..Optimizer::default()
    };
    spec
}
