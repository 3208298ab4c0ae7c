//! Sums of buckets while the backward pass goes on, between ranks that are on hosts of their own, on CPUs and on devices,
//! train what one sum after it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{
    BatchSize, DeviceKind, EnsembleSize, Linear, NumericTransform, Precision, TrainSpec,
};

use super::runs::model;
use super::sparse::{many_stores, small as of_picked_rows};
use super::worlds::{TOLERANCE, assert_same_weights};
use crate::collective::{Communicator, Counters, Options};
use crate::device::Emulated;
use crate::network::{CustomBatch, CustomLayer, CustomLayers, CustomOperation, Parameter};
use crate::testing::{
    Seat, Squash, dense, load_split, over_tcp, rows, spec, squash, train_connected,
};
use crate::{Error, Interrupted, Origin, Outcome, ResolvedDevice, TrainingState};

fn options(direct_below: usize) -> Options {
    Options {
        op_timeout: Duration::from_secs(20),
        direct_below,
        ..Options::default()
    }
}

/// Default of [`Options::direct_below`], more than any gradient of these tests: every sum is in rank order.
const DIRECT: usize = 64 * 1024;
/// Every sum goes around the ring.
const RING: usize = 0;

fn tokens(world_size: usize) -> Vec<CancellationToken> {
    (0..world_size).map(|_| CancellationToken::new()).collect()
}

fn small() -> TrainSpec {
    TrainSpec {
        batch_size: Some(BatchSize::Global { global: 30 }),
        epochs: Some(2),
        shards: 10,
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    }
}

/// Trains on these ranks; returns rank 0's outcome and counters.
fn train(
    spec: &TrainSpec,
    data: &RecordBatch,
    communicators: Vec<Communicator>,
) -> (Outcome, Counters) {
    let loaded = load_split(spec, data, communicators.len()).into_iter();
    let mut ends = train_connected(spec, communicators, loaded.map(Seat::fresh).collect());
    let (end, counters) = ends.remove(0);
    (end.unwrap(), counters)
}

fn assert_buckets_train_what_one_sum_does(spec: &TrainSpec, data: &RecordBatch, what: &str) {
    for world_size in [2, 3, 4] {
        let abort = CancellationToken::new();
        let near = Communicator::in_process(world_size, &options(DIRECT), &abort).unwrap();
        let (whole, of_whole) = train(spec, data, near);
        let distant = |direct_below| over_tcp(&options(direct_below), &tokens(world_size));
        let (direct, of_buckets) = train(spec, data, distant(DIRECT));
        let steps = whole.report.kept.steps;
        let more = of_buckets.operations - of_whole.operations;
        assert!(more >= steps, "{what}: {more} sums more in {steps} steps");
        let [left, right] = [&whole, &direct].map(|outcome| outcome.artifacts.as_ref().unwrap());
        assert!(model(left) == model(right), "{what}: the same bits");
        // Around the ring, the order of additions depends on the buckets, but never on time.
        let [ring, again] = [(), ()].map(|()| train(spec, data, distant(RING)).0);
        assert_same_weights(&whole, &ring, TOLERANCE);
        assert_same_weights(&ring, &again, 0.0);
        let kept = &ring.report.kept;
        assert!(kept.compute_seconds + kept.reduce_seconds <= kept.seconds);
    }
}

#[test]
fn dense_layers_are_summed_in_buckets() {
    let data = rows(0..300);
    assert_buckets_train_what_one_sum_does(&small(), &data, "dense layers");
    // The rank of the third shard has no rows.
    let spec = TrainSpec {
        shards: 4,
        ..small()
    };
    assert_buckets_train_what_one_sum_does(&spec, &data, "a rank without rows");
}

#[test]
fn only_the_last_piece_is_summed_in_buckets() {
    let spec = TrainSpec {
        accumulate: 3,
        ..small()
    };
    assert_buckets_train_what_one_sum_does(&spec, &rows(0..300), "pieces");
}

#[test]
fn ensembles_with_tables_at_the_end_are_summed_in_buckets() {
    let mut spec = small();
    spec.network.factors = 8;
    spec.network.linear = Linear::Beside;
    spec.network.ensemble_size = EnsembleSize::Of(2);
    spec.optimizer.clip_norm = Some(0.5);
    assert_buckets_train_what_one_sum_does(&spec, &rows(0..300), "an ensemble");
}

#[test]
fn picked_rows_are_summed_in_buckets() {
    let mut spec = of_picked_rows();
    spec.network.linear = Linear::Beside;
    assert_buckets_train_what_one_sum_does(&spec, &many_stores(), "picked rows");
}

/// The layer [`squash`] that aborts its rank's collectives within the backward pass of a step.
#[derive(Debug, Clone)]
struct Aborting {
    abort: CancellationToken,
    /// Steps that end before.
    left: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct AbortingOperation(Box<dyn CustomOperation>, Aborting);

impl CustomLayer for Aborting {
    fn build(
        &self,
        width: usize,
        arguments: &[f64],
    ) -> Result<Box<dyn CustomOperation>, Box<dyn std::error::Error + Send + Sync>> {
        let squash = Squash.build(width, arguments)?;
        Ok(Box::new(AbortingOperation(squash, self.clone())))
    }
}

impl CustomOperation for AbortingOperation {
    fn width(&self) -> usize {
        self.0.width()
    }

    fn parameters(&self) -> Vec<Parameter> {
        self.0.parameters()
    }

    fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]) {
        self.0.forward(batch, y);
    }

    fn backward(
        &self,
        batch: CustomBatch<'_>,
        y: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        gradients: Option<&mut [&mut [f32]]>,
    ) {
        if self.1.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.1.abort.cancel();
        }
        self.0.backward(batch, y, dy, dx, gradients);
    }
}

#[test]
fn a_rank_that_is_lost_between_buckets_leaves_the_step_before_on_all() {
    let mut spec = small();
    spec.network.layers = [dense(&[16], &[]), vec![squash(8, 1.0)], dense(&[24], &[])].concat();
    let data = rows(0..300);
    for world_size in [2, 3] {
        let (whole, _) = train(&spec, &data, over_tcp(&options(RING), &tokens(world_size)));
        for lost in 0..world_size {
            let aborts = tokens(world_size);
            let aborting = Aborting {
                abort: aborts[lost].clone(),
                left: Arc::new(AtomicUsize::new(4)),
            };
            let loaded = load_split(&spec, &data, world_size).into_iter().enumerate();
            let seats = loaded.map(|(rank, loaded)| Seat {
                layers: match rank == lost {
                    true => CustomLayers::new().with("squash", aborting.clone()),
                    false => crate::testing::custom_layers(),
                },
                ..Seat::fresh(loaded)
            });
            let communicators = over_tcp(&options(RING), &aborts);
            let ends = train_connected(&spec, communicators, seats.collect());
            let ends = ends.into_iter().map(|(end, _)| end.unwrap_err());
            let states = ends.enumerate().map(|(rank, end)| {
                let Interrupted { error, state } = end;
                let is_due = match rank == lost {
                    true => matches!(error, Error::Cancelled),
                    false => matches!(error, Error::AtStep { .. }) && error.is_peer_loss(),
                };
                assert!(is_due, "rank {rank}: {error:?}");
                *state.unwrap()
            });
            let states: Vec<TrainingState> = states.collect();
            assert_eq!(states[0].position().steps, 4);
            assert!(states.iter().all(|state| *state == states[0]));
            // Training goes on as if nothing had happened.
            let loaded = load_split(&spec, &data, world_size).into_iter();
            let seats = loaded.zip(states).map(|(loaded, state)| Seat {
                origin: Origin::State(state),
                ..Seat::fresh(loaded)
            });
            let communicators = over_tcp(&options(RING), &tokens(world_size));
            let mut ends = train_connected(&spec, communicators, seats.collect());
            assert_same_weights(&whole, &ends.remove(0).0.unwrap(), 0.0);
        }
    }
}

/// Returns an emulated device that is spoilt in this way.
fn spoilt(how: &'static str) -> ResolvedDevice {
    ResolvedDevice::emulated(u64::MAX, Some(how), false)
}

/// Returns a device that is not linked with others.
fn apart() -> ResolvedDevice {
    spoilt(Emulated::UNLINKED)
}

/// Trains on ranks with these devices, from these origins.
fn train_on(
    spec: &TrainSpec,
    data: &RecordBatch,
    communicators: Vec<Communicator>,
    ranks: Vec<(ResolvedDevice, Origin)>,
) -> Vec<(Result<Outcome, Interrupted>, Counters)> {
    let loaded = load_split(spec, data, ranks.len()).into_iter();
    let seats = loaded.zip(ranks).map(|(loaded, (device, origin))| Seat {
        device,
        origin,
        ..Seat::fresh(loaded)
    });
    train_connected(spec, communicators, seats.collect())
}

/// Trains on ranks with these devices; returns rank 0's outcome and counters, and whether all ranks computed on devices.
fn fresh_on(
    spec: &TrainSpec,
    data: &RecordBatch,
    communicators: Vec<Communicator>,
    devices: &[ResolvedDevice],
) -> (Outcome, Counters, bool) {
    let ranks = devices.iter().map(|device| (*device, Origin::Fresh));
    let ends = train_on(spec, data, communicators, ranks.collect());
    let mut outcomes = Vec::new();
    for ((end, counters), device) in ends.into_iter().zip(devices) {
        let outcome = end.unwrap();
        let computed = outcome.report.computed.device;
        let has_rows = outcome.report.train_rows > 0;
        let is_on_device = *device != ResolvedDevice::CPU && has_rows;
        assert_eq!(computed == DeviceKind::Cuda, is_on_device);
        outcomes.push((outcome, counters, is_on_device));
    }
    let on_devices = outcomes.iter().all(|(.., is_on_device)| *is_on_device);
    let (first, counters, _) = outcomes.remove(0);
    (first, counters, on_devices)
}

/// Checks worlds of devices alone, and with CPUs, against those in which a rank cannot copy buckets.
fn assert_buckets_of_devices_train_what_one_sum_does(
    spec: &TrainSpec,
    data: &RecordBatch,
    what: &str,
) {
    if Emulated::find().is_none() {
        return;
    }
    let spec = &TrainSpec {
        precision: Some(Precision::F32),
        ..spec.clone()
    };
    let (device, cpu) = (apart(), ResolvedDevice::CPU);
    for devices in [
        vec![device, device],
        vec![device, cpu],
        vec![cpu, device, device],
        vec![device; 4],
    ] {
        let ranks = devices.len();
        let distant = |direct_below| over_tcp(&options(direct_below), &tokens(ranks));
        let unpinned = devices.iter().map(|of| match *of == cpu {
            true => cpu,
            false => spoilt(Emulated::PIN),
        });
        let unpinned: Vec<_> = unpinned.collect();
        let (whole, of_whole, _) = fresh_on(spec, data, distant(DIRECT), &unpinned);
        let (direct, of_buckets, _) = fresh_on(spec, data, distant(DIRECT), &devices);
        let steps = whole.report.kept.steps;
        let more = of_buckets.operations - of_whole.operations;
        assert!(more >= steps, "{what}: {more} sums more in {steps} steps");
        let [left, right] = [&whole, &direct].map(|outcome| outcome.artifacts.as_ref().unwrap());
        assert!(model(left) == model(right), "{what}: the same bits");
        let [ring, again] = [(), ()].map(|()| fresh_on(spec, data, distant(RING), &devices).0);
        assert_same_weights(&whole, &ring, TOLERANCE);
        assert_same_weights(&ring, &again, 0.0);
        // Within a host, sums of CPUs' gradients would take time from them.
        let abort = CancellationToken::new();
        let near = Communicator::in_process(ranks, &options(DIRECT), &abort).unwrap();
        let (near, of_near, on_devices) = fresh_on(spec, data, near, &devices);
        let overlaps = of_near.operations >= of_whole.operations + steps;
        assert_eq!(overlaps, on_devices, "{what}");
        let near = near.artifacts.as_ref().unwrap();
        assert!(model(near) == model(right), "{what}: within a host");
    }
}

#[test]
fn devices_sum_buckets_while_they_compute() {
    let data = rows(0..300);
    assert_buckets_of_devices_train_what_one_sum_does(&small(), &data, "dense layers");
    // Of four ranks, that of the third shard has no rows, and computes on its CPU.
    let spec = TrainSpec {
        shards: 4,
        accumulate: 3,
        ..small()
    };
    assert_buckets_of_devices_train_what_one_sum_does(&spec, &data, "pieces, and no rows");
    let mut spec = small();
    spec.network.factors = 8;
    spec.network.linear = Linear::Beside;
    spec.network.ensemble_size = EnsembleSize::Of(2);
    spec.optimizer.clip_norm = Some(0.5);
    assert_buckets_of_devices_train_what_one_sum_does(&spec, &data, "an ensemble");
}

#[test]
fn a_device_that_fails_between_buckets_leaves_the_step_before_on_all() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = TrainSpec {
        precision: Some(Precision::F32),
        epochs: Some(3),
        ..small()
    };
    let data = rows(0..300);
    for world_size in [2, 3] {
        let devices = vec![apart(); world_size];
        let connect = || over_tcp(&options(DIRECT), &tokens(world_size));
        let (whole, ..) = fresh_on(&spec, &data, connect(), &devices);
        for lost in 0..world_size {
            let ranks = (0..world_size).map(|rank| match rank == lost {
                true => (spoilt(Emulated::COLLECT), Origin::Fresh),
                false => (apart(), Origin::Fresh),
            });
            let ends = train_on(&spec, &data, connect(), ranks.collect());
            let states = ends.into_iter().enumerate().map(|(rank, (end, _))| {
                let Interrupted { error, state } = end.unwrap_err();
                let is_due = match rank == lost {
                    true => matches!(error, Error::DeviceFailed { .. }),
                    false => matches!(error, Error::AtStep { .. }) && error.is_peer_loss(),
                };
                assert!(is_due, "rank {rank}: {error:?}");
                *state.unwrap()
            });
            let states: Vec<TrainingState> = states.collect();
            let steps = states[0].position().steps;
            assert!((1..whole.report.kept.steps).contains(&steps), "{steps}");
            assert!(states.iter().all(|state| *state == states[0]));
            // Training goes on as if nothing had happened.
            let ranks = states.into_iter().map(Origin::State);
            let ranks = ranks.map(|origin| (apart(), origin));
            let mut ends = train_on(&spec, &data, connect(), ranks.collect());
            assert_same_weights(&whole, &ends.remove(0).0.unwrap(), 0.0);
        }
    }
}

#[test]
fn a_device_whose_buckets_do_not_arrive_is_not_used() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = TrainSpec {
        precision: Some(Precision::F32),
        ..small()
    };
    let data = rows(0..300);
    let near = || Communicator::in_process(2, &options(DIRECT), &CancellationToken::new()).unwrap();
    let (host, _) = train(&spec, &data, near());
    let ranks = [(); 2].map(|()| (spoilt(Emulated::COPIES), Origin::Fresh));
    for (end, _) in train_on(&spec, &data, near(), ranks.into()) {
        let end = end.unwrap();
        assert_eq!(end.report.computed.device, DeviceKind::Cpu);
        if end.artifacts.is_some() {
            assert_same_weights(&host, &end, 0.0);
        }
    }
}

#[test]
fn a_trace_has_the_part_of_a_sum_that_was_not_hidden() {
    let spec = TrainSpec {
        trace: true,
        ..small()
    };
    let communicators = over_tcp(&options(RING), &tokens(2));
    let (outcome, _) = train(&spec, &rows(0..300), communicators);
    let artifacts = outcome.artifacts.as_ref().unwrap();
    let (_, file) = artifacts.files.last().unwrap();
    let file: serde_json::Value = serde_json::from_slice(file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let steps: u64 = artifacts.manifest.history.last().unwrap().steps;
    for rank in 0..2 {
        let own = events
            .iter()
            .filter(|event| event["tid"] == rank && event["ph"] == "X");
        let own: Vec<_> = own.collect();
        for name in ["forward, backward", "all-reduce gradient"] {
            let of_name = own.iter().filter(|event| event["name"] == name);
            assert_eq!(of_name.count() as u64, steps, "{name}");
        }
        let times = own.iter().map(|event| {
            let [start, duration] = ["ts", "dur"].map(|key| event[key].as_u64().unwrap());
            (start, start + duration)
        });
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        // Parts follow one another; each time is rounded to a microsecond.
        assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1));
    }
}
