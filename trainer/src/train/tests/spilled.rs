//! Tests that shards in files train the same as shards in memory, bit by bit.

use std::path::Path;

use arrow::record_batch::RecordBatch;
use volley_proto::spec::{BatchSize, ClassWeights, Loss, NumericTransform, Refit, Task, TrainSpec};

use super::ensemble::{cross_validated, noise};
use super::runs::{
    Run, STEPS, assert_same_bits, data, run, run_loaded, small, stay, through_bytes, vec_of,
};
use crate::encode::Storage;
use crate::testing::{
    classifier, dense, load_cached, rows, split, told_apart, two_labels, with_visits,
};
use crate::{Error, LoadedShards, Origin, Result, RowMemory, ShardCache};

const NONE: RowMemory = RowMemory {
    loading: 0,
    training: 0,
};

/// Loads shards on ranks with this memory for rows; each rank's files are in a folder below `folder`.
fn load_in(
    folder: &Path,
    memory: RowMemory,
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
) -> Vec<Result<LoadedShards>> {
    split(spec, batch, world_size, |rank, shards| {
        let cache = ShardCache::new(folder.join(rank.to_string()), memory);
        load_cached(spec, shards, Some(&cache), |_| {})
    })
}

/// Loads shards whose rows are all in files below `folder`.
pub(super) fn load_without_memory(
    folder: &Path,
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
) -> Vec<Result<LoadedShards>> {
    load_in(folder, NONE, spec, batch, world_size)
}

fn fresh(world_size: usize, stop_after: Option<u64>) -> Vec<(Origin, Option<u64>)> {
    vec_of(world_size, || (Origin::Fresh, stop_after))
}

/// Returns the number of files below a folder.
fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let count = paths.map(|path| if path.is_dir() { files(&path) } else { 1 });
    count.sum()
}

#[test]
fn it_does_not_matter_where_rows_are() {
    let mut weighed = classifier();
    weighed.class_weights = ClassWeights::Balanced;
    weighed.refit = Refit::Always;
    let mut folds = TrainSpec {
        task: Task::Classification,
        loss: Loss::LogLoss,
        class_weights: ClassWeights::Balanced,
        numeric_transform: NumericTransform::Quantile,
        ..cross_validated(3)
    };
    folds.label.columns = vec!["quarter".into()];
    folds.network.layers = dense(&[8], &[0.4]);
    let refitted = TrainSpec {
        refit: Refit::Always,
        ..small(1)
    };
    let apart = told_apart(&data(), &[2.7, 3.4]);
    for (spec, data) in [
        (small(1), data()),
        (refitted, data()),
        (folds, noise(200, 200)),
        (weighed, apart),
        (two_labels(), with_visits(&data())),
    ] {
        for world_size in [1, 2] {
            let spec = TrainSpec {
                batch_size: Some(BatchSize::Global { global: 30 }),
                epochs: Some(3),
                shards: 10,
                ..spec.clone()
            };
            let due = run(&spec, &data, fresh(world_size, None));
            // No rows in memory, then some.
            let some = RowMemory {
                training: 2000,
                ..RowMemory::UNLIMITED
            };
            for memory in [NONE, some] {
                let folder = tempfile::tempdir().unwrap();
                let loaded = load_in(folder.path(), memory, &spec, &data, world_size);
                let of_all = loaded
                    .iter()
                    .flat_map(|loaded| &loaded.as_ref().unwrap().shards);
                // A shard without rows takes no room, and may come first.
                let in_memory = of_all
                    .filter(|shard| shard.storage == Storage::Memory && shard.rows() > 0)
                    .count();
                assert_eq!(in_memory > 0, memory == some);
                assert!(in_memory < spec.shards, "{in_memory} of {}", spec.shards);
                let found = run_loaded(&spec, loaded, fresh(world_size, None));
                assert_same_bits(&due, &found);
                // Only the encoded shards are left.
                assert_eq!(files(folder.path()), spec.shards);
            }
        }
    }
}

#[test]
fn a_training_goes_on_with_rows_elsewhere() {
    let spec = small(2);
    let whole = Run::whole(&spec, 2);
    for stop in [3, STEPS, STEPS + 2] {
        let folder = tempfile::tempdir().unwrap();
        let load = || load_in(folder.path(), NONE, &spec, &data(), 2);
        let states = run_loaded(&spec, load(), fresh(2, Some(stop))).states();
        let states: Vec<_> = states.into_iter().map(through_bytes).collect();
        assert_same_bits(&whole, &run(&spec, &data(), stay(states.clone())));
        assert_same_bits(&whole, &run_loaded(&spec, load(), stay(states)));
    }
}

#[test]
fn rows_that_have_no_place_are_told() {
    let folder = tempfile::NamedTempFile::new().unwrap();
    let spec = small(1);
    let loaded = load_in(folder.path(), NONE, &spec, &rows(0..300), 1).remove(0);
    let error = loaded.unwrap_err();
    assert!(matches!(error, Error::Spill { .. }), "{error:?}");
    let told = error.to_string();
    let place = folder.path().display().to_string();
    assert!(
        told.contains(&place) && told.contains("--rank-memory"),
        "{told}"
    );
    // Shards that fit in memory need no files.
    let loaded = load_in(folder.path(), RowMemory::UNLIMITED, &spec, &rows(0..300), 1).remove(0);
    assert_eq!(loaded.unwrap().rows(), 300);
}
