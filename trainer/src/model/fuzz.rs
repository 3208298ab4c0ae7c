//! Fuzz targets: a model's files, and the manifest that describes them.

use bytes::Bytes;
use volley_proto::damage::damaged;
use volley_proto::spec::{NumericEmbedding, NumericTransform};
use volley_proto::store::Manifest;

use super::Model;
use crate::Artifacts;
use crate::allocations::bounded;
use crate::testing::{custom_layers, rows, spec, train_split};

/// Returns a model's files, with quantiles and bins.
fn artifacts() -> Artifacts {
    let mut spec = spec();
    spec.numeric_transform = NumericTransform::Quantile;
    spec.network.batch_norm = false;
    spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    let mut outcomes = train_split(&spec, &rows(0..100), 1);
    outcomes.remove(0).artifacts.unwrap()
}

fn load(manifest: Manifest, weights: &[u8], vocabularies: &[u8]) {
    if let Ok(model) = Model::load(manifest, weights, vocabularies, &custom_layers()) {
        let _ = model.predict(&rows(0..5));
    }
}

#[test]
fn weights_and_vocabularies() {
    let Artifacts { manifest, files } = artifacts();
    let [weights, vocabularies]: [Bytes; 2] = [files[0].1.clone(), files[1].1.clone()];
    let as_weights = |bytes: &[u8]| load(manifest.clone(), bytes, &vocabularies);
    let as_vocabularies = |bytes: &[u8]| load(manifest.clone(), &weights, bytes);
    bounded(&weights, as_weights);
    for seed in 0..1_500 {
        // Most of the file is numbers; only its head can be invalid.
        let head = weights.len().min(2_000);
        let mut bytes = damaged(&weights[..head], seed);
        bytes.extend_from_slice(&weights[head..]);
        bounded(&bytes, as_weights);
        bounded(&damaged(&vocabularies, seed), as_vocabularies);
    }
    bolero::check!(name = "weights")
        .with_iterations(2_000)
        .for_each(|bytes| {
            bounded(bytes, as_weights);
            bounded(bytes, as_vocabularies);
        });
}

#[test]
fn manifests() {
    let Artifacts { manifest, files } = artifacts();
    let json = serde_json::to_vec(&manifest).unwrap();
    let read = |bytes: &[u8]| {
        if let Ok(manifest) = serde_json::from_slice(bytes) {
            load(manifest, &files[0].1, &files[1].1);
        }
    };
    bounded(&json, read);
    (0..4_000).for_each(|seed| bounded(&damaged(&json, seed), read));
}
