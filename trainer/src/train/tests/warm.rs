//! Tests of warm starts: a model's weights as the start of another training.

use arrow::array::AsArray;
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int32Type;
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    EmbeddingWidth, FeatureKind, Loss, NumericEmbedding, NumericTransform, TrainSpec,
};

use super::runs::run;
use super::worlds::weights;
use crate::testing::{dense, model, rows, spec, train_split};
use crate::{Error, Interrupted, Origin, Outcome, TrainingState};

const DIM: usize = 4;

/// Returns the rows without one store.
fn without_store(store: i32) -> RecordBatch {
    let all = rows(0..300);
    let stores = all["store"].as_primitive::<Int32Type>().iter();
    let others = stores.map(|value| Some(value != Some(store)));
    filter_record_batch(&all, &others.collect()).unwrap()
}

/// Cancels a world of two ranks before its first step, and returns its outcomes; rank 0 brings the model.
fn start(
    spec: &TrainSpec,
    data: &RecordBatch,
    origin: Origin,
) -> [Result<Outcome, Interrupted>; 2] {
    let ranks = vec![(origin, Some(0)), (Origin::Fresh, Some(0))];
    run(spec, data, ranks).ends.try_into().unwrap()
}

fn started(spec: &TrainSpec, data: &RecordBatch, origin: Origin) -> TrainingState {
    let [first, second] = start(spec, data, origin).map(|end| *end.unwrap_err().state.unwrap());
    assert_eq!(first, second);
    first
}

#[test]
fn embeddings_go_with_their_values_and_the_rest_as_it_is() {
    let spec = spec();
    let old = train_split(&spec, &without_store(3), 2);
    let published = weights(&old[0]);
    let of = |name: &str| &published.iter().find(|(n, _)| n == name).unwrap().1;
    let data = without_store(5);
    let fresh = started(&spec, &data, Origin::Fresh);
    let warm = started(&spec, &data, Origin::Warm(model(&old)));

    // Code 0 is for unseen values; the stores follow in order: 0 1 2 4 5 6, now 0 1 2 3 4 6.
    let (table, known) = (&warm.weights.values[0], of("embedding"));
    let embedding = |table: &[f32], code: usize| table[code * DIM..][..DIM].to_vec();
    for (now, then) in [(0, 0), (1, 1), (2, 2), (3, 3), (5, 4), (6, 6)] {
        assert_eq!(embedding(table, now), embedding(known, then), "{now}");
    }
    assert_eq!(embedding(table, 4), embedding(&fresh.weights.values[0], 4));
    assert_ne!(embedding(table, 4), embedding(known, 4));
    // The other features have the same values.
    assert_eq!(table.len(), known.len());
    assert_eq!(table[7 * DIM..], known[7 * DIM..]);

    let names = [
        "bn.gamma",
        "bn.beta",
        "dense.0.kernel",
        "dense.0.bias",
        "dense.1.kernel",
    ];
    for (name, values) in names.iter().zip(&warm.weights.values[1..]) {
        assert_eq!(values, of(name), "{name}");
    }
    let running = warm.weights.running.mean.iter().map(|mean| *mean as f32);
    assert_eq!(&running.collect::<Vec<_>>(), of("bn.mean"));
    assert_ne!(warm.weights.running, fresh.weights.running);
    // Nothing else comes from the old training.
    assert_eq!((warm.position, &warm.slots), (fresh.position, &fresh.slots));
    assert_eq!((&warm.history, &warm.kept), (&fresh.history, &fresh.kept));
}

#[test]
fn bins_go_with_their_weights() {
    let mut spec = spec();
    spec.numeric_transform = NumericTransform::Quantile;
    spec.network.batch_norm = false;
    spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    let old = model(&train_split(&spec, &rows(0..300), 2));
    let scaling = old.scaling().clone();
    let other = rows(300..400);
    let warm = started(&spec, &other, Origin::Warm(old));
    assert_eq!(warm.scaling, scaling);
    let fresh = started(&spec, &other, Origin::Fresh);
    assert_ne!(warm.scaling.features, fresh.scaling.features);
}

#[test]
fn a_model_that_does_not_fit_is_every_rank_s_error() {
    let spec = spec();
    let data = rows(0..100);
    let old = train_split(&spec, &data, 1);
    type Change = fn(&mut TrainSpec);
    let script: [(Change, &str); 8] = [
        (
            |s| {
                s.loss = Loss::Quantiles {
                    shares: vec![0.1, 0.9],
                }
            },
            "it predicts one label, this one quantiles [0.1, 0.9]",
        ),
        (
            |s| s.network.layers = dense(&[24, 8], &[]),
            "dense.1.kernel is [24, 16], this one's is [24, 8]",
        ),
        (
            |s| s.network.layers = dense(&[24, 16, 8], &[]),
            "output.kernel is [16, 1], this one's is [8, 1]",
        ),
        (
            |s| s.network.embedding_dim = EmbeddingWidth::Same(5),
            "embedding is [19, 4], this one's is [19, 5]",
        ),
        (
            |s| drop(s.features.pop()),
            "feature 5 is \"trend\", continuous, this one's is none",
        ),
        (
            |s| s.features[0].kind = FeatureKind::Continuous,
            "feature 1 is \"store\", categorical, this one's is \"store\", continuous",
        ),
        (
            |s| s.numeric_transform = NumericTransform::Quantile,
            "its numeric_transform is 'none', this one's 'quantile'",
        ),
        (
            |s| {
                s.network.batch_norm = false;
                s.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
            },
            "this one's is absent",
        ),
    ];
    for (change, difference) in script {
        let mut other = spec.clone();
        change(&mut other);
        let ends = start(&other, &data, Origin::Warm(model(&old)));
        let [first, second] = ends.map(|end| end.unwrap_err().error);
        assert!(matches!(
            first,
            Error::WarmShape { .. } | Error::WarmFeatures { .. }
        ));
        assert!(first.to_string().contains(difference), "{first}");
        match second {
            Error::Peer { rank: 0, cause } => assert!(cause.contains(difference), "{cause}"),
            other => panic!("{other:?}"),
        }
    }
}
