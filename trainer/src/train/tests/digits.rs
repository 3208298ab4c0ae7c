//! Numbers far from 0 relative to their spread: none of their digits is lost before scaling, nor in
//! predictions.

use std::sync::Arc;

use arrow::array::{AsArray, Float64Array};
use arrow::datatypes::Float64Type;
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{NumericTransform, TrainSpec};

use super::linear::linear;
use crate::Outcome;
use crate::testing::{dense, model, rows, spec, train_split, two_labels, with_visits};

/// Replaces the numbers of one column by a function of the row's index.
fn with_numbers(batch: &RecordBatch, name: &str, of: impl Fn(f64) -> f64) -> RecordBatch {
    let at = batch.schema().index_of(name).unwrap();
    let old = batch.column(at).as_primitive::<Float64Type>().iter();
    let new = old.enumerate().map(|(row, x)| x.map(|_| of(row as f64)));
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(new.collect::<Float64Array>());
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

/// Returns the largest error of a label's predictions.
fn farthest(outcomes: &[Outcome], batch: &RecordBatch, label: usize, name: &str) -> f64 {
    let predicted = model(outcomes).predict(batch).unwrap();
    let predicted = predicted[label].as_primitive::<Float64Type>();
    let known = batch[name].as_primitive::<Float64Type>().iter();
    let errors = known.zip(predicted.values());
    let errors = errors.filter_map(|(y, predicted)| Some((y? - predicted).abs()));
    errors.fold(0.0, f64::max)
}

/// Returns the spec with one number as the only feature.
fn of_trend(mut spec: TrainSpec) -> TrainSpec {
    spec.features.retain(|feature| feature.column == "trend");
    spec.label.standardize = true;
    spec
}

#[test]
fn a_label_of_a_billion_and_some_is_met_to_its_digits() {
    let data = with_numbers(&rows(0..600), "trend", |row| row);
    let spec = of_trend(linear(spec()));
    for (first, step) in [(1e9, 1.0), (-1e12, 0.5), (3e12, 1e10), (3e-9, 1e-11)] {
        let data = with_numbers(&data, "sales", |row| first + step * row);
        let outcomes = train_split(&spec, &data, 2);
        let kept = &outcomes[0].report.kept;
        assert!(kept.eval_r2.unwrap() > 0.9999, "{first}: {kept:?}");
        let error = farthest(&outcomes, &data, 0, "sales");
        assert!(error < step, "{first} + {step} x: {error}");
    }
}

#[test]
fn seconds_since_1970_are_told_apart() {
    let data = with_numbers(&rows(0..600), "trend", |row| 1.7e9 + row);
    let data = with_numbers(&data, "sales", |row| 3.0 * row);
    let outcomes = train_split(&of_trend(linear(spec())), &data, 2);
    let error = farthest(&outcomes, &data, 0, "sales");
    assert!(error < 1.0, "{error}");
    let numbers = model(&outcomes).manifest().features[0].numbers.unwrap();
    assert!(
        (numbers.max - numbers.min - 599.0).abs() < 3.0,
        "{numbers:?}"
    );
}

#[test]
fn ranked_seconds_are_told_apart() {
    let data = with_numbers(&rows(0..600), "trend", |row| 1.7e9 + row);
    let data = with_numbers(&data, "sales", |row| f64::from(u8::from(row < 300.0)));
    let mut spec = TrainSpec {
        epochs: Some(20),
        ..of_trend(spec())
    };
    spec.numeric_transform = NumericTransform::Quantile;
    spec.network.layers = dense(&[16], &[]);
    let outcomes = train_split(&spec, &data, 1);
    let kept = &outcomes[0].report.kept;
    assert!(kept.eval_r2.unwrap() > 0.9, "{kept:?}");
}

#[test]
fn each_of_several_labels_keeps_its_digits() {
    let data = with_visits(&rows(0..600));
    let data = with_numbers(&data, "trend", |row| row);
    let data = with_numbers(&data, "sales", |row| 1e9 - row);
    let data = with_numbers(&data, "visits", |row| -5e10 + row);
    let outcomes = train_split(&of_trend(linear(two_labels())), &data, 1);
    for (at, name) in ["sales", "visits"].into_iter().enumerate() {
        let error = farthest(&outcomes, &data, at, name);
        assert!(error < 1.0, "{name}: {error}");
    }
}
