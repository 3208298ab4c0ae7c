//! Tests of predictions and explanations on the emulated device: the CPU's, where it computes and where the CPU must.

use std::path::Path;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use volley_proto::GpuId;
use volley_proto::spec::{EnsembleSize, Linear, Loss, Precision, TrainSpec};

use super::*;
use crate::device::Emulated;
use crate::testing::{
    classifier, model, rows, spec, squash, told_apart, train_split, two_labels, with_visits,
};

const ONE: NonZeroUsize = NonZeroUsize::MIN;
const LONG: Duration = Duration::from_secs(60);
/// Tolerance for sums in another order, as a share of the greatest number.
const F32: f64 = 2e-4;

fn lock(folder: &Path) -> GpuLock {
    GpuLock::within(folder, GpuId::from_bytes([3; 16]))
}

/// Returns an accelerator with the emulated device; `None` without a C++ compiler.
fn accelerator(
    folder: &Path,
    bytes: u64,
    spoilt: Option<&'static str>,
    threads: usize,
) -> Option<Arc<Accelerator>> {
    Emulated::find()?;
    let device = ResolvedDevice::emulated(bytes, spoilt, true);
    let threads = NonZeroUsize::new(threads).unwrap();
    let started = Accelerator::start(vec![(device, lock(folder))], threads);
    Some(Arc::new(started.unwrap()))
}

fn in_f32(spec: TrainSpec) -> TrainSpec {
    TrainSpec {
        precision: Some(Precision::F32),
        ..spec
    }
}

fn trained(spec: &TrainSpec, batch: &RecordBatch) -> Arc<Model> {
    Arc::new(model(&train_split(spec, batch, 1)))
}

/// Returns all numbers of a prediction's columns.
fn numbers(columns: &[ArrayRef]) -> Vec<f64> {
    let of = |column: &ArrayRef| -> Vec<f64> {
        let narrow = |column: &ArrayRef| -> Vec<f64> {
            let all = column.as_primitive::<Float32Type>().values().iter();
            all.map(|x| f64::from(*x)).collect()
        };
        let wide = |column: &ArrayRef| column.as_primitive::<Float64Type>().values().to_vec();
        match column.data_type() {
            DataType::Float64 => wide(column),
            DataType::List(_) => {
                let of_each = Arc::clone(column.as_list::<i32>().values().as_struct().column(1));
                match of_each.data_type() {
                    DataType::Float32 => narrow(&of_each),
                    _ => wide(&of_each),
                }
            }
            _ => vec![],
        }
    };
    columns.iter().flat_map(of).collect()
}

fn assert_near(due: &[ArrayRef], found: &[ArrayRef], within: f64) {
    let types = |all: &[ArrayRef]| -> Vec<DataType> {
        all.iter()
            .map(|column| column.data_type().clone())
            .collect()
    };
    assert_eq!(types(due), types(found));
    let (due, found) = (numbers(due), numbers(found));
    assert_eq!(due.len(), found.len());
    assert!(!due.is_empty());
    for (due, found) in due.iter().zip(found) {
        let differ = (due - found).abs();
        assert!(differ <= within * due.abs().max(1.0), "{found}, not {due}");
    }
}

/// Returns whether the device computes a batch.
fn is_on_device(model: &AcceleratedModel, rows: &RecordBatch, either: bool) -> bool {
    let input = Arc::new(model.subject.model.input(rows).unwrap());
    let outputs = model
        .accelerator
        .ask(&model.subject, &input, Outputs, either);
    outputs.is_some()
}

/// Returns whether the device explains a batch.
fn is_explained_on_device(model: &AcceleratedModel, rows: &RecordBatch, either: bool) -> bool {
    let of = &model.subject.model;
    let input = Arc::new(of.input(rows).unwrap());
    let question = Attributed {
        baseline: Arc::new(of.baseline()),
        chosen: vec![0; input.rows],
    };
    let found = model
        .accelerator
        .ask(&model.subject, &input, question, either);
    found.is_some()
}

/// Asserts that explanations are near; relative errors of small differences need not be.
fn assert_explained(due: &[ArrayRef], found: &[ArrayRef]) {
    let [due, found] = [due, found].map(|all| &all[..all.len() - 1]);
    assert_near(due, found, F32);
    let [features, baselines, predictions] = &found[found.len() - 3..] else {
        panic!("an explanation has four columns");
    };
    let ends = [baselines, predictions].map(|of| of.as_primitive::<Float64Type>());
    let lists = features.as_list::<i32>();
    for row in 0..lists.len() {
        let all = Arc::clone(lists.value(row).as_struct().column(1));
        let sum: f64 = all.as_primitive::<Float64Type>().values().iter().sum();
        let due = ends[1].value(row) - ends[0].value(row);
        let near = (sum - due).abs() < 0.02 * (1.0 + due.abs());
        assert!(near, "row {row}: {sum}, not {due}");
    }
}

#[test]
fn predictions_of_every_kind_are_the_cpu_s() {
    let folder = tempfile::tempdir().unwrap();
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, 1) else {
        return;
    };
    let data = rows(0..200);
    let mut linear = spec();
    linear.network.linear = Linear::Beside;
    let mut ensemble = spec();
    ensemble.network.ensemble_size = EnsembleSize::Of(3);
    let mut quantiles = spec();
    quantiles.label.standardize = true;
    quantiles.loss = Loss::Quantiles {
        shares: vec![0.1, 0.5, 0.9],
    };
    let cases = [
        (spec(), data.clone()),
        (linear, data.clone()),
        (ensemble, data.clone()),
        (quantiles, data.clone()),
        (two_labels(), with_visits(&data)),
        (classifier(), told_apart(&data, &[3.0])),
        (classifier(), told_apart(&data, &[2.7, 3.4])),
    ];
    for (spec, data) in cases {
        let model = trained(&in_f32(spec), &data);
        let accelerated = accelerator.with(Arc::clone(&model));
        for rows in [rows(0..300), rows(300..301), rows(0..0), rows(200..1700)] {
            let found = accelerated.predict(&rows, false).unwrap();
            match rows.num_rows() {
                0 => assert_eq!(found[0].len(), 0),
                _ => assert_near(&model.predict(&rows).unwrap(), &found, F32),
            }
        }
        assert!(is_on_device(&accelerated, &rows(0..10), false));
    }
}

#[test]
fn a_model_is_predicted_in_its_precision_which_is_tf32_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, 1) else {
        return;
    };
    let rows = rows(0..300);
    let errors = [Some(Precision::F32), None, Some(Precision::Bf16)].map(|precision| {
        let spec = TrainSpec {
            precision,
            ..spec()
        };
        let model = trained(&spec, &rows);
        let accelerated = accelerator.with(Arc::clone(&model));
        let found = numbers(&accelerated.predict(&rows, false).unwrap());
        assert!(is_on_device(&accelerated, &rows, false));
        let due = numbers(&model.predict(&rows).unwrap());
        let apart = due
            .iter()
            .zip(found)
            .map(|(due, found)| (due - found).abs());
        apart.fold(0.0, f64::max)
    });
    let [f32, tf32, bf16] = errors;
    assert!(f32 < 2e-4 && 4.0 * f32 < tf32 && tf32 < 2e-2, "{errors:?}");
    assert!(2.0 * tf32 < bf16 && bf16 < 2e-1, "{errors:?}");
}

#[test]
fn a_device_that_computes_something_else_does_not_predict() {
    let model = trained(&in_f32(spec()), &rows(0..100));
    let rows = rows(0..300);
    for kernel in ["enter", "dense", "outputs"] {
        let folder = tempfile::tempdir().unwrap();
        let Some(accelerator) = accelerator(folder.path(), u64::MAX, Some(kernel), 1) else {
            return;
        };
        let accelerated = accelerator.with(Arc::clone(&model));
        for _ in 0..2 {
            let found = accelerated.predict(&rows, false).unwrap();
            assert_eq!(numbers(&found), numbers(&model.predict(&rows).unwrap()));
        }
        let trust = &accelerated.subject.predictions;
        assert!(trust.is_left_to_host(false), "{kernel}");
    }
}

#[test]
fn explanations_of_every_kind_are_the_cpu_s() {
    let folder = tempfile::tempdir().unwrap();
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, 1) else {
        return;
    };
    let data = rows(0..200);
    let mut parts = spec();
    parts.network.linear = Linear::Beside;
    parts.network.factors = 2;
    parts.label.standardize = true;
    let mut ensemble = spec();
    ensemble.network.ensemble_size = EnsembleSize::Of(3);
    let mut quantiles = spec();
    quantiles.loss = Loss::Quantiles {
        shares: vec![0.1, 0.5, 0.9],
    };
    let cases = [
        (spec(), data.clone()),
        (parts, data.clone()),
        (ensemble, data.clone()),
        (quantiles, data.clone()),
        (classifier(), told_apart(&data, &[3.0])),
        (classifier(), told_apart(&data, &[2.7, 3.4])),
    ];
    for (spec, data) in cases {
        let model = trained(&in_f32(spec), &data);
        let accelerated = accelerator.with(Arc::clone(&model));
        // Too few for a trial, enough for one, and a single one.
        for (rows, on_device) in [
            (rows(0..63), false),
            (rows(0..300), true),
            (rows(300..301), true),
        ] {
            let found = accelerated.explain(&rows, 9, false).unwrap();
            assert_explained(&model.explain(&rows, 9).unwrap(), &found);
            assert_eq!(
                is_explained_on_device(&accelerated, &rows, false),
                on_device
            );
        }
        // Features are in the same order where attributions differ.
        let rows = rows(0..300);
        let found = accelerated.explain(&rows, 1, false).unwrap();
        let due = model.explain(&rows, 1).unwrap();
        let names = |all: &[ArrayRef]| {
            let lists = Arc::clone(&all[all.len() - 4]);
            let names = Arc::clone(lists.as_list::<i32>().values().as_struct().column(0));
            let names = names
                .as_string::<i32>()
                .iter()
                .map(|name| name.unwrap().to_owned());
            names.collect::<Vec<String>>()
        };
        let (due, found) = (names(&due), names(&found));
        let same = due.iter().zip(&found).filter(|(due, found)| due == found);
        assert!(same.count() >= 297 && due.len() == 300);
        let none = accelerated.explain(&rows.slice(0, 0), 2, false).unwrap();
        assert_eq!(none[0].len(), 0);
    }
}

#[test]
fn a_device_that_attributes_something_else_does_not_explain_but_predicts() {
    let mut spec = in_f32(spec());
    spec.network.linear = Linear::Beside;
    let model = trained(&spec, &rows(0..100));
    let rows = rows(0..300);
    for kernel in [
        "path_point",
        "path_slopes",
        "path_linear",
        "path_sums",
        "scale_back",
        "dense_back",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let Some(accelerator) = accelerator(folder.path(), u64::MAX, Some(kernel), 1) else {
            return;
        };
        let accelerated = accelerator.with(Arc::clone(&model));
        let due = model.explain(&rows, 9).unwrap();
        for _ in 0..2 {
            assert_explained(&due, &accelerated.explain(&rows, 9, false).unwrap());
            let subject = &accelerated.subject;
            assert!(subject.explanations.is_left_to_host(false), "{kernel}");
            assert!(!is_explained_on_device(&accelerated, &rows, false));
            assert!(is_on_device(&accelerated, &rows, false), "{kernel}");
        }
    }
}

#[test]
fn the_cpu_explains_while_memory_is_short_and_less_memory_takes_smaller_batches() {
    let model = trained(&in_f32(spec()), &rows(0..100));
    let rows = rows(0..600);
    let due = model.explain(&rows, 9).unwrap();
    let on = |bytes| {
        let folder = tempfile::tempdir().unwrap();
        let accelerated = accelerator(folder.path(), bytes, None, 1)?.with(Arc::clone(&model));
        assert_explained(&due, &accelerated.explain(&rows, 9, false).unwrap());
        let is_left = accelerated
            .subject
            .explanations
            .trials
            .lock()
            .next
            .is_some();
        assert_ne!(is_explained_on_device(&accelerated, &rows, false), is_left);
        Some(is_left)
    };
    let Some(is_left) = on(64 << 10) else {
        return;
    };
    assert!(is_left);
    // Found by trial: the least memory in which anything can be explained.
    let mut sizes = (1..=64).map(|at: u64| (128 * at) << 10);
    assert!(sizes.any(|bytes| on(bytes) == Some(false)));
}

#[test]
fn the_cpu_predicts_while_memory_is_short_and_less_memory_takes_smaller_batches() {
    let model = trained(&in_f32(spec()), &rows(0..100));
    let rows = rows(0..2000);
    let on = |bytes| {
        let folder = tempfile::tempdir().unwrap();
        let accelerated = accelerator(folder.path(), bytes, None, 1)?.with(Arc::clone(&model));
        let found = accelerated.predict(&rows, false).unwrap();
        assert_near(&model.predict(&rows).unwrap(), &found, F32);
        let is_left = accelerated.subject.predictions.trials.lock().next.is_some();
        assert_ne!(is_on_device(&accelerated, &rows, false), is_left);
        Some(is_left)
    };
    let Some(is_left) = on(16 << 10) else {
        return;
    };
    assert!(is_left);
    // Found by trial: the least memory in which anything can be predicted.
    let mut sizes = (1..=1024).map(|kib: u64| (16 * kib) << 10);
    let least = sizes.find(|bytes| on(*bytes) == Some(false));
    assert!(least.is_some_and(|bytes| bytes < 1 << 20), "{least:?}");
}

#[test]
fn custom_layers_are_predicted_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, 1) else {
        return;
    };
    let mut spec = in_f32(spec());
    spec.network.layers = vec![squash(6, 1.5)];
    let model = trained(&spec, &rows(0..100));
    let accelerated = accelerator.with(Arc::clone(&model));
    let rows = rows(0..50);
    let found = accelerated.predict(&rows, false).unwrap();
    assert_eq!(numbers(&found), numbers(&model.predict(&rows).unwrap()));
    assert!(!is_on_device(&accelerated, &rows, false));
    let rows = self::rows(0..100);
    let (due, found) = (
        model.explain(&rows, 9),
        accelerated.explain(&rows, 9, false),
    );
    assert_eq!(numbers(&found.unwrap()), numbers(&due.unwrap()));
    assert!(!is_explained_on_device(&accelerated, &rows, false));
}

#[test]
fn the_faster_of_both_predicts_where_either_may() {
    let folder = tempfile::tempdir().unwrap();
    // Threads of the emulated device are fibres, and it computes for a hundred.
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, 100) else {
        return;
    };
    let model = trained(&in_f32(spec()), &rows(0..100));
    let accelerated = accelerator.with(Arc::clone(&model));
    // Too few to open a GPU for.
    accelerated.predict(&rows(0..1000), true).unwrap();
    accelerated.predict(&rows(0..200), false).unwrap();
    assert!(
        lock(folder.path())
            .take_alone(Duration::ZERO)
            .unwrap()
            .is_some()
    );
    let many = rows(0..1500);
    let found = accelerated.predict(&many, true).unwrap();
    assert_eq!(numbers(&found), numbers(&model.predict(&many).unwrap()));
    assert!(accelerated.subject.predictions.is_left_to_host(true));
    assert!(!is_on_device(&accelerated, &many, true));
    assert!(is_on_device(&accelerated, &many, false));
    // Explanations are measured by themselves.
    let some = rows(0..100);
    assert!(!accelerated.subject.explanations.is_left_to_host(true));
    let found = accelerated.explain(&some, 9, true).unwrap();
    assert_explained(&model.explain(&some, 9).unwrap(), &found);
    assert!(accelerated.subject.explanations.is_left_to_host(true));
    assert!(!is_explained_on_device(&accelerated, &some, true));
    assert!(is_explained_on_device(&accelerated, &some, false));
}

#[test]
fn predictions_leave_a_gpu_to_a_rank_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, 1) else {
        return;
    };
    let (lock, rows) = (lock(folder.path()), rows(0..300));
    let model = trained(&in_f32(spec()), &rows);
    let accelerated = accelerator.with(Arc::clone(&model));
    for _ in 0..2 {
        assert!(is_on_device(&accelerated, &rows, false));
        let early = lock.take_alone(Duration::ZERO).unwrap().unwrap();
        assert!(!early.is_alone());
        drop(early);
        // The thread has no batch now: it sees that the rank waits.
        let rank = lock.take_alone(LONG).unwrap().unwrap();
        assert!(rank.is_alone());
        let found = accelerated.predict(&rows, false).unwrap();
        assert_eq!(numbers(&found), numbers(&model.predict(&rows).unwrap()));
        assert!(!is_on_device(&accelerated, &rows, false));
        drop(rank);
    }
    assert!(is_on_device(&accelerated, &rows, false));
    drop((accelerated, accelerator));
    let rank = lock.take_alone(LONG).unwrap().unwrap();
    assert!(rank.is_alone(), "the thread ends");
}

#[test]
fn threads_share_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let Some(accelerator) = accelerator(folder.path(), u64::MAX, None, ONE.get()) else {
        return;
    };
    let models = [1, 2].map(|seed| {
        let spec = TrainSpec { seed, ..spec() };
        trained(&in_f32(spec), &rows(0..100))
    });
    let all = models
        .each_ref()
        .map(|model| accelerator.with(Arc::clone(model)));
    std::thread::scope(|scope| {
        for at in 0..6 {
            let (model, accelerated) = (&models[at % 2], &all[at % 2]);
            scope.spawn(move || {
                for first in 0..5 {
                    let rows = rows(100 * first..100 * first + 300);
                    let found = accelerated.predict(&rows, false).unwrap();
                    assert_near(&model.predict(&rows).unwrap(), &found, F32);
                }
            });
        }
    });
    assert!(
        all.iter()
            .all(|model| is_on_device(model, &rows(0..9), false))
    );
}

#[test]
fn a_device_that_does_not_open_leaves_predictions_to_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let gpus = vec![(ResolvedDevice::CPU, lock(folder.path()))];
    let accelerator = Arc::new(Accelerator::start(gpus, ONE).unwrap());
    let model = trained(&in_f32(spec()), &rows(0..100));
    let accelerated = accelerator.with(Arc::clone(&model));
    for either in [true, false] {
        let found = accelerated.predict(&rows(0..1200), either).unwrap();
        let due = model.predict(&rows(0..1200)).unwrap();
        assert_eq!(numbers(&found), numbers(&due));
    }
    // Its lock is free again.
    assert!(lock(folder.path()).take_alone(LONG).unwrap().is_some());
}
