//! Rows of 26 categorical features, as many as in Criteo's click logs, with tables of any size, to measure the cost of
//! table rows that a step does not touch.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, UInt64Array};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    Activation, EmbeddingWidth, Feature, FeatureKind, Layer, Network, TrainSpec, split,
};
use volley_proto::splitmix;

use super::networks;

const FEATURES: usize = 26;

/// Returns the number of values of each feature, for this many in total; as many rows contain every value.
pub(crate) fn values(codes: usize) -> usize {
    codes.div_ceil(FEATURES)
}

/// Builds rows that repeat all values of a feature every `values(codes)` rows, each feature in another order.
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

/// Builds a spec with embeddings of 16 numbers and two layers, and `CREATE MODEL`'s defaults for the rest.
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
        layers: Layer::stack(&[128, 64], Activation::Mish, &[0.15, 0.15]),
        ..spec.network
    };
    spec
}
