//! Rows of weight 0 count as absent.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, StringArray};
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{ClassWeights, NumericEmbedding, NumericTransform, Split, TrainSpec};
use volley_proto::store::EpochRecord;

use super::worlds::weights;
use crate::testing::{classifier, load_now, rows, shards, spec, told_apart, train_world};
use crate::{Error, Outcome};

/// Replaces columns of these names, and appends those with other names.
fn with_columns(batch: &RecordBatch, columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let mut fields = batch.schema().fields().to_vec();
    let mut all = batch.columns().to_vec();
    for (name, column) in columns {
        let field = Arc::new(Field::new(name, column.data_type().clone(), true));
        match fields.iter().position(|field| field.name() == name) {
            Some(at) => (fields[at], all[at]) = (field, column),
            None => {
                fields.push(field);
                all.push(column);
            }
        }
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), all).unwrap()
}

fn weighed(batch: &RecordBatch, weight: impl Fn(usize) -> f64) -> RecordBatch {
    let weights = (0..batch.num_rows()).map(weight);
    let weights = Arc::new(Float64Array::from_iter_values(weights));
    with_columns(batch, vec![("weight", weights)])
}

/// Turns rows into rows of weight 0 that would spoil every statistic, some of them without a label.
fn spoilt(batch: &RecordBatch) -> RecordBatch {
    let rows = batch.num_rows();
    let stores = Arc::new(Int32Array::from_iter_values(
        (0..rows).map(|at| 70 + at as i32),
    ));
    let numbers = |x: f64| Arc::new(Float64Array::from(vec![Some(x); rows]));
    let parts = (0..rows).map(|at| ["TRAIN", "EVAL", "TEST"][at % 3]);
    let spoilt = with_columns(
        batch,
        vec![
            ("store", stores),
            ("distance", numbers(1e12)),
            ("trend", numbers(f64::INFINITY)),
            ("part", Arc::new(StringArray::from_iter_values(parts))),
        ],
    );
    weighed(&spoilt, |_| 0.0)
}

/// Returns the published manifest and history, without times.
fn published(outcome: &Outcome) -> (String, Vec<EpochRecord>) {
    let manifest = &outcome.artifacts.as_ref().unwrap().manifest;
    let history = manifest.history.iter().map(|record| EpochRecord {
        seconds: 0.0,
        compute_seconds: 0.0,
        reduce_seconds: 0.0,
        ..record.clone()
    });
    let of_rows = (
        &manifest.features,
        &manifest.label_scales,
        &manifest.classes,
    );
    let counted = (
        manifest.train_rows,
        &manifest.train_checksum,
        manifest.eval_rows,
    );
    (format!("{of_rows:?} {counted:?}"), history.collect())
}

fn assert_same(spec: &TrainSpec, clean: &RecordBatch, spoilt: &RecordBatch) {
    let all = shards(clean, spec.shards);
    let with_spoilt = |(id, mut batches): (usize, Vec<RecordBatch>)| {
        batches.insert(1, spoilt.clone());
        (id, batches)
    };
    let mixed = all.iter().cloned().map(with_spoilt).collect();
    let [due, found] = [all, mixed].map(|shards| {
        let loaded = load_now(spec, shards);
        train_world(spec, vec![loaded]).remove(0).unwrap()
    });
    assert_eq!(published(&found), published(&due));
    assert_eq!(weights(&found), weights(&due));
}

fn weighted(spec: TrainSpec) -> TrainSpec {
    TrainSpec {
        sample_weight: Some("weight".into()),
        epochs: Some(2),
        ..spec
    }
}

#[test]
fn rows_of_weight_zero_change_nothing() {
    let clean = weighed(&rows(0..200), |row| 1.0 + (row % 3) as f64);
    let labels = Arc::new(Float64Array::from_iter(
        (0..30).map(|at| (at % 2 == 0).then_some(1e9)),
    ));
    let wrong = spoilt(&with_columns(&rows(0..30), vec![("sales", labels)]));
    let mut ranked = weighted(spec());
    ranked.label.standardize = true;
    ranked.numeric_transform = NumericTransform::Quantile;
    let mut binned = weighted(spec());
    binned.numeric_transform = NumericTransform::Standardize;
    binned.network.batch_norm = false;
    binned.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    for spec in [weighted(spec()), ranked, binned] {
        assert_same(&spec, &clean, &wrong);
    }
}

#[test]
fn classes_of_rows_of_weight_zero_are_none() {
    let clean = weighed(&told_apart(&rows(0..200), &[3.0]), |row| {
        (1 + row % 2) as f64
    });
    let classes = Arc::new(StringArray::from(vec![Some("high"); 30]));
    let wrong = spoilt(&with_columns(&rows(0..30), vec![("sales", classes)]));
    let spec = TrainSpec {
        class_weights: ClassWeights::Balanced,
        ..weighted(classifier())
    };
    assert_same(&spec, &clean, &wrong);
}

#[test]
fn weights_that_are_all_zero_are_refused() {
    let spec = weighted(spec());
    let refused = |spec: &TrainSpec, data: &RecordBatch| {
        let ranks = vec![
            load_now(spec, shards(data, spec.shards)),
            load_now(spec, vec![(90, vec![data.slice(0, 0)])]),
        ];
        let outcomes = train_world(spec, ranks).into_iter();
        let errors = outcomes.map(|outcome| match outcome.unwrap_err() {
            error @ Error::NoWeight { .. } => error.to_string(),
            error => panic!("{error}"),
        });
        let errors: Vec<_> = errors.collect();
        assert_eq!(errors[0], errors[1]);
        assert!(
            errors[0].contains("weight") && errors[0].contains("0 in"),
            "{}",
            errors[0]
        );
        errors[0].clone()
    };
    let none = weighed(&rows(0..100), |_| 0.0);
    let whole = TrainSpec {
        split: Split::None,
        ..spec.clone()
    };
    for spec in [&spec, &whole] {
        let error = refused(spec, &none);
        assert!(error.contains("100 rows, which are all"), "{error}");
    }
    // In every ten rows, the fourth, sixth and eighth are not for training.
    let evaluated = weighed(&rows(0..100), |row| f64::from(u8::from(row % 10 == 3)));
    let error = refused(&spec, &evaluated);
    assert!(error.contains("90 rows, and all 10 others"), "{error}");
    let classes = told_apart(&none, &[3.0]);
    refused(&weighted(classifier()), &classes);
}
