//! Tests of ensembles on small tables, and of the folds that their members hold out.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, UInt32Array, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    BatchSize, ClassWeights, EnsembleSize, Feature, FeatureKind, Linear, Loss, Refit, Split, Task,
    TrainSpec, split,
};
use volley_proto::store::Manifest;

use super::worlds::{TOLERANCE, assert_same_weights, weights};
use crate::random::{Key, Purpose};
use crate::testing::{dense, rows, spec, train_emulated, train_split};
use crate::train::Outcome;

#[test]
fn a_small_table_has_an_ensemble_whose_members_are_networks_of_their_own() {
    let small = EnsembleSize::SMALL;
    // One of ten rows is neither for training nor for evaluation.
    for (data, rows, due) in [
        (rows(0..5555), small, EnsembleSize::MEMBERS),
        (rows(0..5557), small + 1, 1),
    ] {
        let mut spec = TrainSpec {
            epochs: Some(1),
            ..spec()
        };
        spec.network.ensemble_size = EnsembleSize::Auto;
        spec.network.layers = dense(&[3], &[]);
        let outcomes = train_split(&spec, &data, 2);
        // The manifest records the ensemble's size, so later rules for row counts cannot change it.
        let manifest = manifest(&outcomes);
        assert_eq!(manifest.rows(), rows);
        let members = manifest.spec.network.ensemble_size;
        assert_eq!(members, EnsembleSize::Of(due));
        let mut kernels: Vec<_> = weights(&outcomes[0])
            .into_iter()
            .filter(|(name, _)| name.ends_with("output.kernel"))
            .map(|(_, kernel)| format!("{kernel:?}"))
            .collect();
        kernels.sort();
        kernels.dedup();
        assert_eq!(kernels.len(), due, "{kernels:?}");
    }
}

fn manifest(outcomes: &[Outcome]) -> &Manifest {
    &outcomes[0].artifacts.as_ref().unwrap().manifest
}

/// Returns rows whose id, number and label are unrelated; the rows of each of `groups` groups share a hash.
pub(super) fn noise(rows: u64, groups: u64) -> RecordBatch {
    let draw = |what, row: u64| Key::new(9, Purpose::Content).with(what).with(row);
    let columns: [(&str, ArrayRef); 5] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
        (
            "x",
            Arc::new(Float64Array::from_iter_values(
                (0..rows).map(|row| draw(0, row).unit()),
            )),
        ),
        (
            "y",
            Arc::new(Float64Array::from_iter_values(
                (0..rows).map(|row| 10.0 * draw(1, row).unit()),
            )),
        ),
        (
            "quarter",
            Arc::new(Int64Array::from_iter_values(
                (0..rows as i64).map(|row| i64::from(row % 4 == 0)),
            )),
        ),
        (
            split::HASH,
            Arc::new(UInt64Array::from_iter_values(
                (0..rows).map(|row| draw(2, row % groups).hash()),
            )),
        ),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Returns the spec of four cross-validated members.
pub(super) fn cross_validated(epochs: usize) -> TrainSpec {
    let feature = |column: &str, kind| Feature {
        column: column.into(),
        kind,
    };
    let mut spec = TrainSpec {
        features: vec![
            feature("id", FeatureKind::Categorical),
            feature("x", FeatureKind::Continuous),
        ],
        split: Split::CrossValidation(0.5),
        refit: Refit::Never,
        batch_size: Some(BatchSize::Global { global: 40 }),
        epochs: Some(epochs),
        shards: 10,
        ..spec()
    };
    spec.label.columns = vec!["y".into()];
    spec.network.ensemble_size = EnsembleSize::Of(4);
    spec.network.layers = dense(&[16], &[]);
    spec
}

#[test]
fn metrics_are_of_out_of_fold_predictions() {
    let spec = cross_validated(60);
    let outcomes = train_split(&spec, &noise(200, 200), 2);
    let manifest = manifest(&outcomes);
    assert_eq!(manifest.spec.split, spec.split);
    assert_eq!(
        [manifest.train_rows, manifest.eval_rows, manifest.rows()],
        [200; 3]
    );
    let of_ranks = outcomes.iter().map(|of| of.report.eval_rows);
    assert_eq!(of_ranks.sum::<u64>(), 200);
    // The members memorize every id, which says nothing about the rows that they hold out.
    let last = manifest.history.last().unwrap();
    let (loss, eval_loss) = (last.loss, last.eval_loss.unwrap());
    assert!(loss < 0.2 * eval_loss, "{loss} and {eval_loss}");
    assert!(last.eval_r2.unwrap() < 0.05, "{last:?}");
}

#[test]
fn weights_of_classes_are_of_training_and_not_of_evaluation() {
    let mut spec = TrainSpec {
        task: Task::Classification,
        loss: Loss::LogLoss,
        class_weights: ClassWeights::Balanced,
        ..cross_validated(1)
    };
    spec.label.columns = vec!["quarter".into()];
    let outcomes = train_split(&spec, &noise(200, 200), 2);
    let majority = manifest(&outcomes).history[0].eval_majority;
    assert_eq!(majority, Some(0.75));
}

#[test]
fn training_does_not_depend_on_the_order_of_arrival() {
    // All rows have the same content, apart from their folds.
    let mut spec = cross_validated(2);
    spec.features.remove(0);
    let all = noise(200, 200);
    let ones = Arc::new(Float64Array::from(vec![1.0; 200])) as ArrayRef;
    let schema = all.schema();
    let columns = schema.fields().iter().zip(all.columns());
    let columns = columns.map(|(field, column)| {
        let is_same = ["x", "y"].contains(&field.name().as_str());
        let column = if is_same { &ones } else { column };
        (field.name(), Arc::clone(column))
    });
    let all = RecordBatch::try_from_iter(columns).unwrap();
    let backwards = UInt32Array::from_iter_values((0..200).rev());
    let backwards = take_record_batch(&all, &backwards).unwrap();
    spec.shards = 1;
    let [one, other] = [all, backwards].map(|data| train_split(&spec, &data, 1));
    assert_same_weights(&one[0], &other[0], 0.0);
}

#[test]
fn n_ranks_cross_validate_as_one_does() {
    let data = noise(200, 200);
    for refit in [Refit::Never, Refit::Always] {
        let spec = TrainSpec {
            refit,
            ..cross_validated(3)
        };
        let one = train_split(&spec, &data, 1);
        for world_size in [2, 5] {
            let many = train_split(&spec, &data, world_size);
            assert_same_weights(&one[0], &many[0], TOLERANCE);
        }
        if let Some(device) = train_emulated(&spec, &data, 2) {
            assert_same_weights(&one[0], &device[0], 1e-3);
        }
        let manifest = manifest(&one);
        let refit = manifest.refit.map(|refit| (refit.first_epoch, refit.rows));
        assert_eq!(refit, (spec.refit == Refit::Always).then_some((4, 200)));
    }
}

#[test]
fn a_share_is_evaluated_where_members_cannot_hold_out_folds() {
    let mut wide = cross_validated(1);
    wide.network.linear = Linear::Beside;
    let mut single = cross_validated(1);
    single.network.ensemble_size = EnsembleSize::ONE;
    // With three groups, at least one fold has no rows.
    for (spec, groups) in [(wide, 200), (single, 200), (cross_validated(1), 3)] {
        let outcomes = train_split(&spec, &noise(200, groups), 2);
        let manifest = manifest(&outcomes);
        assert_eq!(manifest.spec.split, Split::Random(0.5));
        assert_eq!(manifest.rows(), 200);
        assert!(manifest.train_rows < 200, "{}", manifest.train_rows);
    }
}
