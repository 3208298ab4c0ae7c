//! Trainings whose rows do not fit on the device, and evaluation of rows that it holds; a device's counters tell.

use std::ops::Range;
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{DeviceKind, Keep, Precision, RankDevice, TrainSpec};

use super::runs::{Watch, small};
use super::spilled::load_without_memory;
use super::worlds::assert_same_weights;
use crate::collective::{Communicator, Options};
use crate::device::{Counters, Emulated, Factors, Runtime};
use crate::network::{Plan, PlanDevice};
use crate::testing::{custom_layers, load_split, rows, squash, train_split};
use crate::threads::Threads;
use crate::train::{Own, prepare, run};
use crate::{LoadedShards, Origin, Outcome, Result};

const ON_A_DEVICE: f32 = 1e-4;

/// Trains one rank by a plan on an emulated device with this much memory.
fn train_rank(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    communicator: &mut Communicator,
    bytes: u64,
) -> Result<(Outcome, Counters)> {
    let runtime = Emulated::of(bytes).expect("tests have looked for it");
    let (cancel, watch) = (CancellationToken::new(), Watch::default());
    let threads = Threads::default();
    let layers = custom_layers();
    let mut prepared = prepare(
        spec,
        loaded,
        &Origin::Fresh,
        &layers,
        (&threads, &cancel),
        communicator,
    )?;
    let state = prepared.agreed.state.take().expect("a fresh state");
    let own = Own {
        communicator,
        observer: &watch,
        cancel: &cancel,
        computed: RankDevice::new(DeviceKind::Cuda, Some(Precision::F32)),
        sparse: false,
        linked: false,
        threads,
        start: Instant::now(),
    };
    let device = PlanDevice {
        runtime: Rc::clone(&runtime) as Rc<dyn Runtime>,
        factors: Factors::F32,
    };
    let outcome = run::<Plan>(prepared, state, own, device).map_err(|ended| ended.error)?;
    let counters = runtime.counters().get();
    assert_eq!((counters.bytes_held, counters.bytes_pinned), (0, 0));
    Ok((outcome, counters))
}

/// Trains ranks on devices with this much memory each.
fn train_ranks(
    spec: &TrainSpec,
    loaded: Vec<Result<LoadedShards>>,
    bytes: u64,
) -> Vec<Result<(Outcome, Counters)>> {
    let never = CancellationToken::new();
    let ranks = Communicator::in_process(loaded.len(), &Options::default(), &never).unwrap();
    thread::scope(|scope| {
        let ranks = ranks.into_iter().zip(loaded).map(|(mut own, loaded)| {
            scope.spawn(move || train_rank(spec, loaded, &mut own, bytes))
        });
        let ranks: Vec<_> = ranks.collect();
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap());
        ends.collect()
    })
}

fn alone(spec: &TrainSpec, bytes: u64) -> Result<(Outcome, Counters)> {
    train_ranks(spec, load_split(spec, &many(1), 1), bytes).remove(0)
}

/// Returns so many rows that windows of several steps are smaller than the whole.
fn many(world_size: usize) -> RecordBatch {
    rows(0..600 * world_size as u64)
}

/// Steps of an epoch of the rows of one rank.
const STEPS: u64 = 14;

/// Returns the least of these sizes, in steps of 512 bytes, from which on trainings are as asked.
fn least(sizes: Range<u64>, is_enough: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (sizes.start >> 9, sizes.end >> 9);
    while low < high {
        let middle = (low + high) / 2;
        match is_enough(middle << 9) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low << 9
}

/// Returns some sizes of memory in which a rank trains on rows that are brought in windows. Another one may hold its rows:
/// one with fewer rows also evaluates fewer at once.
fn memories(spec: &TrainSpec, world_size: usize) -> [u64; 3] {
    let spec = TrainSpec {
        epochs: Some(1),
        ..spec.clone()
    };
    // Bytes that each rank was sent in windows; `None` if the training failed.
    let sent = |bytes: u64| {
        let ends = train_ranks(
            &spec,
            load_split(&spec, &many(world_size), world_size),
            bytes,
        )
        .into_iter();
        let sent = ends.map(|end| end.map(|(_, counters)| counters.bytes_transferred));
        sent.collect::<Result<Vec<u64>>>().ok()
    };
    let streams = |bytes| sent(bytes).is_some_and(|sent| sent.iter().any(|bytes| *bytes > 0));
    let step = least(0..4 << 20, |bytes| sent(bytes).is_some());
    // With the least memory, rows are sent step by step.
    let mut sizes = (step..step + (64 << 10)).step_by(512);
    let found = sizes.find(|bytes| streams(*bytes));
    let found = found.expect("memory for windows, and not for all rows");
    let whole = least(found..found + (64 << 10), |bytes| {
        sent(bytes).is_some_and(|sent| sent.iter().all(|bytes| *bytes == 0))
    });
    let all = [found, (found + whole) / 1024 * 512, whole - 512];
    assert!(all.iter().all(|bytes| streams(*bytes)), "{all:?}, {whole}");
    all
}

fn epochs(epochs: usize, spec: &TrainSpec) -> TrainSpec {
    TrainSpec {
        epochs: Some(epochs),
        keep: Keep::Last,
        ..spec.clone()
    }
}

#[test]
fn an_epoch_sends_the_order_of_rows_and_no_evaluation_rows() {
    if Emulated::find().is_none() {
        return;
    }
    let [two, three] = [2, 3].map(|count| alone(&epochs(count, &small(1)), u64::MAX).unwrap().1);
    // The epoch's tables, and the statistics that evaluation normalises by.
    assert_eq!(three.writes - two.writes, 2);
    assert_eq!(three.replays - two.replays, STEPS);
    assert_eq!(three.transfers, 0);
    let [two, three] = [2, 3].map(|count| {
        let mut spec = epochs(count, &small(1));
        spec.network.batch_norm = false;
        alone(&spec, u64::MAX).unwrap().1
    });
    assert_eq!(three.writes - two.writes, 1);
}

#[test]
fn rows_that_do_not_fit_are_sent_once_an_epoch_and_train_the_same() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = TrainSpec {
        checkpoint_every: Some(2),
        ..small(1)
    };
    // Key, codes and numbers, label, shard and place of each row. One number has nulls, and a feature that tells them.
    let row = 8 + 4 * (spec.features.len() as u64 + 1 + 1 + 2);
    let whole = alone(&epochs(3, &spec), u64::MAX).unwrap();
    for bytes in memories(&spec, 1) {
        let [two, three] = [2, 3].map(|count| alone(&epochs(count, &spec), bytes).unwrap());
        assert_same_weights(&whole.0, &three.0, 0.0);
        assert_eq!(whole.0.report.kept.eval_loss, three.0.report.kept.eval_loss);
        let (two, three) = (two.1, three.1);
        assert_eq!(three.replays - two.replays, STEPS);
        let rows = whole.0.report.train_rows;
        assert_eq!(three.bytes_transferred - two.bytes_transferred, rows * row);
        assert_eq!(three.bytes_transferred, 3 * rows * row);
    }
}

#[test]
fn rows_are_streamed_beside_custom_layers() {
    if Emulated::find().is_none() {
        return;
    }
    let mut spec = epochs(2, &small(1));
    spec.network.layers.push(squash(5, 2.0));
    let whole = alone(&spec, u64::MAX).unwrap();
    for bytes in memories(&spec, 1) {
        let (streamed, counters) = alone(&spec, bytes).unwrap();
        assert_same_weights(&whole.0, &streamed, 0.0);
        assert!(counters.transfers > 0);
        // A forward and a backward pass part each step in three.
        assert_eq!(counters.replays, 3 * 2 * STEPS);
    }
}

#[test]
fn ranks_with_peers_stream_rows_too() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = small(2);
    let host = train_split(&spec, &many(2), 2);
    for bytes in memories(&spec, 2) {
        let ends = train_ranks(&spec, load_split(&spec, &many(2), 2), bytes);
        let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
        assert_same_weights(&host[0], &ends[0].0, ON_A_DEVICE);
        let counters = ends.iter().map(|(_, counters)| counters);
        assert!(counters.clone().any(|counters| counters.transfers > 0));
        assert!(counters.clone().all(|counters| counters.replays == 0));
    }
}

#[test]
fn rows_in_files_are_streamed_in_the_same_order() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = small(1);
    for bytes in memories(&spec, 1) {
        let (due, _) = alone(&spec, bytes).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let loaded = load_without_memory(folder.path(), &spec, &many(1), 1);
        let (found, counters) = train_ranks(&spec, loaded, bytes).remove(0).unwrap();
        assert!(counters.transfers > 0);
        assert_same_weights(&due, &found, 0.0);
    }
}
