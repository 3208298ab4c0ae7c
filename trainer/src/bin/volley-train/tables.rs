//! Rows of 26 categorical features, as many as Criteo's click logs have, with tables of any size: what a step costs of rows
//! that it does not touch.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, UInt64Array};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    Activation, EmbeddingWidth, EnsembleSize, Feature, FeatureKind, Layer, Network,
    NumericEmbedding, Output, TrainSpec, split,
};
use volley_proto::splitmix;

use super::networks;

const FEATURES: usize = 26;

/// Values of each feature, of so many of all; as many rows have every one.
pub(crate) fn values(codes: usize) -> usize {
    codes.div_ceil(FEATURES)
}

/// Rows that have every value once in so many of them, each feature's in another order.
pub(crate) fn batch(codes: usize, rows: Range<usize>) -> RecordBatch {
    let values = values(codes);
    let value = |row: usize, feature: usize| {
        let start = splitmix::at(5, feature as u64) as usize % values;
        ((row + start) % values) as i32
    };
    let features = (0..FEATURES).map(|feature| {
        let values = rows.clone().map(|row| value(row, feature));
        let array = Int32Array::from_iter_values(values);
        (format!("c{feature}"), Arc::new(array) as ArrayRef)
    });
    let label = rows.clone().map(|row| {
        let effect = splitmix::unit(splitmix::at(6, value(row, 0) as u64));
        (effect + splitmix::unit(splitmix::at(7, row as u64))) as f32
    });
    let label: ArrayRef = Arc::new(Float32Array::from_iter_values(label));
    let hashes = rows.clone().map(|row| splitmix::at(3, row as u64));
    let hashes: ArrayRef = Arc::new(UInt64Array::from_iter_values(hashes));
    let others = [
        ("sales".to_owned(), label),
        (split::HASH.to_owned(), hashes),
    ];
    RecordBatch::try_from_iter(features.chain(others)).expect("columns are of one length")
}

/// Embeddings of 16 numbers, and two layers, with what `CREATE MODEL` has by default for the rest.
pub(crate) fn spec(batch: usize) -> TrainSpec {
    let mut spec = networks::default(batch);
    spec.features = (0..FEATURES)
        .map(|feature| Feature {
            column: format!("c{feature}"),
            kind: FeatureKind::Categorical,
        })
        .collect();
    spec.network = Network {
        embedding_dim: EmbeddingWidth::Same(16),
        batch_norm: false,
        numeric_embedding: NumericEmbedding::None,
        layers: Layer::stack(&[128, 64], Activation::Mish, &[0.15, 0.15]),
        output: Output::Identity,
        linear: Default::default(),
        factors: 0,
        ensemble_size: EnsembleSize::ONE,
    };
    spec
}
