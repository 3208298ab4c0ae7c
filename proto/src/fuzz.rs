//! Fuzz targets: this crate's decoders of untrusted data. Those of plans are in `volley-engine`.
//!
//! Each target gets whole samples, damaged copies of them, the corpus in `__fuzz__/` and a bounded number of random
//! inputs; under `cargo bolero test TARGET`, as many as time allows.

use arrow::datatypes::{DataType, Field, Schema};

use crate::address::{ListenAddress, PortRange};
use crate::allocations::bounded;
use crate::damage::with_damaged_copies;
use crate::spec::{TrainSpec, layers_text};
use crate::store::{CheckpointInfo, Manifest, Quantiles};
use crate::{ModelName, TrainId};

/// Runs a target on samples and on damaged copies of them.
fn samples(samples: &[Vec<u8>], target: impl Fn(&[u8])) {
    for sample in samples {
        with_damaged_copies(sample).for_each(|bytes| bounded(&bytes, &target));
    }
}

/// Manifest of a network with every part that a file may falsify.
const MANIFEST: &str = include_str!("__fuzz__/manifest/corpus/whole.json");

fn of_spec(spec: &TrainSpec) {
    let _ = (spec.model_type(), spec.outputs(), spec.most_ranks());
    let _ = (
        spec.step_rows(3),
        spec.parameters(Some(3)),
        spec.embedded_widths(),
    );
    let memory = spec.rank_memory();
    let _ = memory.map(|memory| (memory.of_rank(Some(u64::MAX), 2), memory.of_row()));
    layers_text(&spec.network.layers);
    let schema = Schema::new(vec![Field::new("x", DataType::Float64, true)]);
    let _ = spec.check(&schema);
}

fn of_quantiles(quantiles: &Quantiles) {
    assert!(quantiles.to_vec().len() <= Quantiles::MOST);
    let _ = (quantiles.median(), quantiles.moments());
    for x in [f64::NEG_INFINITY, -1.0, 0.0, 0.5, f64::MAX, f64::NAN] {
        quantiles.score(x);
    }
}

fn manifest(bytes: &[u8]) {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) else {
        return;
    };
    let predicted = manifest.predicted();
    let _ = (predicted.fields(), predicted.names().count());
    let _ = (manifest.embedding_dim(), manifest.selection().len());
    let _ = manifest.precision();
    let _ = manifest.check_input(&Schema::empty());
    let quantiles = manifest
        .features
        .iter()
        .filter_map(|of| of.quantiles.as_ref());
    quantiles.for_each(of_quantiles);
    of_spec(&manifest.spec);
}

#[test]
fn manifests() {
    assert!(serde_json::from_str::<Manifest>(MANIFEST).is_ok());
    samples(&[MANIFEST.into()], manifest);
    bolero::check!(name = "manifest")
        .with_iterations(5_000)
        .for_each(|bytes| bounded(bytes, manifest));
}

#[test]
fn specs() {
    let spec = |bytes: &[u8]| {
        if let Ok(spec) = serde_json::from_slice::<TrainSpec>(bytes) {
            of_spec(&spec);
        }
    };
    let manifest: serde_json::Value = serde_json::from_str(MANIFEST).unwrap();
    let sample = serde_json::to_vec(&manifest["spec"]).unwrap();
    assert!(serde_json::from_slice::<TrainSpec>(&sample).is_ok());
    samples(&[sample], spec);
    bolero::check!(name = "spec")
        .with_iterations(5_000)
        .for_each(|bytes| bounded(bytes, spec));
}

#[test]
fn checkpoints() {
    let checkpoint = |bytes: &[u8]| {
        if let Ok(info) = serde_json::from_slice::<CheckpointInfo>(bytes) {
            let _ = info.position.to_string();
        }
    };
    let sample = include_bytes!("__fuzz__/checkpoint/corpus/whole.json");
    assert!(serde_json::from_slice::<CheckpointInfo>(sample).is_ok());
    samples(&[sample.to_vec()], checkpoint);
    bolero::check!(name = "checkpoint")
        .with_iterations(5_000)
        .for_each(|bytes| bounded(bytes, checkpoint));
}

#[test]
fn quantiles() {
    let quantiles = |bytes: &[u8]| {
        if let Ok(quantiles) = serde_json::from_slice(bytes) {
            of_quantiles(&quantiles);
        }
    };
    samples(
        &[br#"{"values":[0.0,0.25,1.0],"last":[1,2,5]}"#.to_vec()],
        quantiles,
    );
    bolero::check!(name = "quantiles")
        .with_iterations(5_000)
        .for_each(|bytes| bounded(bytes, quantiles));
}

#[test]
fn names_and_addresses() {
    let names = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(name) = text.parse::<ModelName>() {
            assert!(!name.as_str().contains(['/', '.', '\\', '\0']), "{name}");
        }
        let _ = text.parse::<TrainId>();
        if let Ok(range) = text.parse::<PortRange>() {
            assert!(range.count().is_some_and(|count| count > 0));
        }
        let any = std::net::Ipv4Addr::UNSPECIFIED.into();
        if let Ok(address) = ListenAddress::new(any, PortRange::FREE, Some(&text)) {
            let dialled = format!("http://{}:1/", address.advertise_host());
            assert!(!dialled.contains(char::is_whitespace), "{dialled}");
        }
    };
    let good = [
        "model_1",
        "7000-7099",
        "0198f7c2-0000-7000-8000-000000000000",
        "[::1]",
    ];
    samples(&good.map(|text| text.as_bytes().to_vec()), names);
    bolero::check!(name = "names")
        .with_iterations(20_000)
        .with_max_len(200)
        .for_each(|bytes| bounded(bytes, names));
}
