//! Trainings on devices: the choice of the device, the failures they survive, and resuming elsewhere.

use volley_proto::spec::{BatchSize, DeviceKind, Precision, TrainSpec};

use super::runs::{self, Watch, data, moved, small};
use super::worlds::assert_same_weights;
use crate::device::Emulated;
use crate::testing::{
    Seat, load_split, spec, squash, train_counted, train_emulated, train_seats, train_split,
};
use crate::{Error, Interrupted, Origin, Outcome, ResolvedDevice};

const ON_A_DEVICE: f32 = 1e-4;

/// Trains one rank alone on this device.
fn alone(spec: &TrainSpec, device: ResolvedDevice) -> Result<Outcome, Interrupted> {
    runs::alone(spec, device, Origin::Fresh, None).0
}

fn in_f32() -> TrainSpec {
    TrainSpec {
        precision: Some(Precision::F32),
        ..small(1)
    }
}

fn emulated() -> ResolvedDevice {
    spoilt(None)
}

/// Returns an emulated device that is spoilt in this way.
fn spoilt(how: Option<&'static str>) -> ResolvedDevice {
    ResolvedDevice::emulated(u64::MAX, how, false)
}

/// Returns an emulated device with this much memory.
fn of_memory(bytes: u64) -> ResolvedDevice {
    ResolvedDevice::emulated(bytes, None, false)
}

#[test]
fn a_training_goes_on_on_another_device_where_it_stood() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = in_f32();
    let whole = train_split(&spec, &data(), 1);
    for [first, second] in [
        [emulated(), ResolvedDevice::CPU],
        [ResolvedDevice::CPU, emulated()],
        [emulated(), emulated()],
    ] {
        for steps in [1, 5, 7, 12] {
            let (end, _) = moved(&spec, [first, second], steps);
            assert_same_weights(&whole[0], &end, ON_A_DEVICE);
            assert_eq!(end.report.kept.steps, whole[0].report.kept.steps);
        }
    }
}

/// Returns a spec with custom layers and dropout, whose steps are in several pieces.
fn with_custom_layers() -> TrainSpec {
    let mut spec = TrainSpec {
        accumulate: 2,
        batch_size: Some(BatchSize::OfRank(15)),
        ..in_f32()
    };
    spec.network.layers.insert(0, squash(9, 1.5));
    spec.network.layers.push(squash(5, 2.0));
    spec
}

#[test]
fn a_training_with_custom_layers_goes_on_on_another_device_where_it_stood() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = with_custom_layers();
    let whole = train_split(&spec, &data(), 1);
    for [first, second] in [
        [emulated(), ResolvedDevice::CPU],
        [ResolvedDevice::CPU, emulated()],
    ] {
        for steps in [1, 7] {
            let (end, _) = moved(&spec, [first, second], steps);
            let due = match second == ResolvedDevice::CPU {
                true => DeviceKind::Cpu,
                false => DeviceKind::Cuda,
            };
            assert_eq!(end.report.computed.device, due);
            assert_same_weights(&whole[0], &end, ON_A_DEVICE);
        }
    }
    // A kernel that brings values to the host and back.
    let end = alone(&spec, spoilt(Some("copy"))).unwrap();
    assert_eq!(end.report.computed.device, DeviceKind::Cpu);
}

#[test]
fn devices_with_custom_layers_are_not_linked_and_rank_0_says_so() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = TrainSpec {
        batch_size: Some(BatchSize::Global { global: 30 }),
        ..with_custom_layers()
    };
    let whole = train_split(&spec, &data(), 1);
    let watches = [Watch::default(), Watch::default()];
    for end in on_devices(&spec, &watches, &[emulated(); 2]) {
        let end = end.unwrap();
        assert_eq!(end.report.computed.device, DeviceKind::Cuda);
        if end.artifacts.is_some() {
            assert_same_weights(&whole[0], &end, ON_A_DEVICE);
        }
    }
    let [noted, silent] = watches.map(|watch| watch.heard.into_inner().unwrap().noted);
    assert_eq!(silent, None);
    let noted = noted.unwrap();
    let due = "rank 0: a custom layer is computed in host memory";
    assert!(noted.ends_with(due), "{noted}");
}

#[test]
fn a_device_that_computes_something_else_is_not_used() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = in_f32();
    let host = train_split(&spec, &data(), 1);
    for kernel in [
        "settle",
        "enter",
        "dense",
        "losses",
        "dense_back",
        "entered",
        "update",
        "outputs",
    ] {
        let end = alone(&spec, spoilt(Some(kernel))).unwrap();
        assert_eq!(end.report.computed.device, DeviceKind::Cpu, "{kernel}");
        assert_same_weights(&host[0], &end, 0.0);
    }
}

#[test]
fn rows_that_do_not_fit_a_device_are_brought_step_by_step() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = in_f32();
    let host = train_split(&spec, &data(), 1);
    // Found by trial: the least memory in which a step fits, but not all rows.
    let least = (1..).map(|kib| kib << 10).find(|bytes| {
        let end = alone(&spec, of_memory(*bytes));
        end.is_ok_and(|end| end.report.computed.device == DeviceKind::Cuda)
    });
    for more in [0, 4 << 10, 16 << 10] {
        let device = of_memory(least.unwrap() + more);
        let end = alone(&spec, device).unwrap();
        assert_same_weights(&host[0], &end, ON_A_DEVICE);
        // It goes on within an epoch, on this device and elsewhere.
        for (steps, next) in [(1, device), (5, device), (12, ResolvedDevice::CPU)] {
            let (end, _) = moved(&spec, [device, next], steps);
            assert_same_weights(&host[0], &end, ON_A_DEVICE);
        }
    }
}

#[test]
fn a_step_that_does_not_fit_a_device_is_an_error_that_says_what_would() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = TrainSpec {
        batch_size: Some(BatchSize::OfRank(210)),
        ..in_f32()
    };
    let on = |kib: u64| alone(&spec, of_memory(kib << 10));
    let error = on(288).unwrap_err().error;
    let Error::DeviceBatch {
        rows,
        bytes,
        free,
        fitting,
        accumulate: Some(accumulate),
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert!(
        rows == 210 && bytes > free && (1..210).contains(&fitting),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("batch_size") && text.contains("accumulate"),
        "{text}"
    );
    assert!(matches!(
        on(4).unwrap_err().error,
        Error::DeviceMemory { .. }
    ));
    let passes = TrainSpec {
        accumulate: accumulate as usize,
        ..spec.clone()
    };
    // The step fits; the evaluation after it may not.
    let ended = alone(&passes, of_memory(288 << 10)).map_err(|end| end.error);
    assert!(
        !matches!(ended, Err(Error::DeviceBatch { .. })),
        "{ended:?}"
    );
}

#[test]
fn the_faster_of_both_computes_on_all_ranks_where_either_may() {
    if Emulated::find().is_none() {
        return;
    }
    // Threads of the emulated device are fibres.
    let either = ResolvedDevice::emulated(u64::MAX, None, true);
    for devices in [
        vec![either],
        vec![either, either],
        vec![either, ResolvedDevice::CPU],
    ] {
        let spec = in_f32();
        let watches: Vec<_> = devices.iter().map(|_| Watch::default()).collect();
        let ends = on_devices(&spec, &watches, &devices);
        for ((end, device), watch) in ends.into_iter().zip(devices).zip(watches) {
            let report = end.unwrap().report;
            assert_eq!(report.computed.device, DeviceKind::Cpu);
            let reason = watch.heard.into_inner().unwrap().fell_back;
            let due = (device == either).then_some("the CPU is faster for this network: ");
            let found = reason.as_deref();
            assert_eq!(found.is_some(), due.is_some(), "{reason:?}");
            assert!(
                found
                    .unwrap_or_default()
                    .starts_with(due.unwrap_or_default()),
                "{reason:?}"
            );
        }
    }
}

#[test]
fn a_device_that_cannot_record_a_step_is_not_used() {
    if Emulated::find().is_none() {
        return;
    }
    let device = spoilt(Some(Emulated::RECORD));
    let (end, reason) = runs::alone(&in_f32(), device, Origin::Fresh, None);
    assert_eq!(end.unwrap().report.computed.device, DeviceKind::Cpu);
    let reason = reason.unwrap();
    assert!(reason.contains("record"), "{reason}");
}

#[test]
fn ranks_on_devices_go_on_where_one_of_them_was_lost() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = in_f32();
    let whole = train_split(&spec, &data(), 2);
    let lost = Watch {
        stop_after: Some(5),
        ..Watch::default()
    };
    let mut seats: Vec<_> = load_split(&spec, &data(), 2)
        .into_iter()
        .map(|loaded| Seat {
            device: emulated(),
            ..Seat::fresh(loaded)
        })
        .collect();
    seats[1].observer = &lost;
    seats[1].cancel = lost.cancel.clone();
    let left = train_seats(&spec, seats).remove(0).unwrap_err();
    assert!(left.error.is_peer_loss(), "{left}");
    let state = *left.state.unwrap();
    assert!(state.position().steps >= 5);
    let (end, _) = runs::alone(&spec, emulated(), Origin::State(state), None);
    let end = end.unwrap();
    assert_same_weights(&whole[0], &end, ON_A_DEVICE);
}

/// Trains ranks on these devices.
fn on_devices(
    spec: &TrainSpec,
    watches: &[Watch],
    devices: &[ResolvedDevice],
) -> Vec<Result<Outcome, Interrupted>> {
    let seats = load_split(spec, &data(), devices.len()).into_iter();
    let seats = seats.zip(devices).zip(watches);
    let seats = seats.map(|((loaded, device), watch)| Seat {
        device: *device,
        observer: watch,
        ..Seat::fresh(loaded)
    });
    train_seats(spec, seats.collect())
}

#[test]
fn devices_that_cannot_be_linked_or_do_not_sum_are_not_linked_and_rank_0_says_so() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = in_f32();
    let whole = train_split(&spec, &data(), 2);
    for (how, reason) in [
        ([None, None], None),
        (
            [None, Some(Emulated::UNLINKED)],
            Some("its library is not found"),
        ),
        ([Some(Emulated::SUMS), None], Some("another sum")),
    ] {
        let watches = [Watch::default(), Watch::default()];
        let ends = on_devices(&spec, &watches, &how.map(spoilt));
        for end in ends {
            let end = end.unwrap();
            assert_eq!(end.report.computed.device, DeviceKind::Cuda);
            if end.artifacts.is_some() {
                assert_same_weights(&whole[0], &end, ON_A_DEVICE);
            }
        }
        let [noted, silent] = watches.map(|watch| watch.heard.into_inner().unwrap().noted);
        assert_eq!(silent, None);
        // The note before is about the features.
        let noted = noted.unwrap_or_default();
        assert_eq!(noted.starts_with("features: "), reason.is_none(), "{noted}");
        assert!(noted.contains(reason.unwrap_or_default()), "{noted}");
    }
}

#[test]
fn ranks_go_on_where_one_of_the_linked_devices_failed_in_a_turn() {
    if Emulated::find().is_none() {
        return;
    }
    let spec = in_f32();
    let whole = train_split(&spec, &data(), 3);
    let watches = [Watch::default(), Watch::default(), Watch::default()];
    let devices = [None, Some(Emulated::LOST), None].map(spoilt);
    let mut ends = on_devices(&spec, &watches, &devices);
    // The lost rank had its state at the beginning of the turn too.
    let lost = ends.remove(1).unwrap_err();
    assert!(matches!(lost.error, Error::DeviceFailed { .. }), "{lost}");
    assert!(lost.state.is_some());
    let left = ends.into_iter().map(|end| {
        let left = end.unwrap_err();
        assert!(left.error.is_peer_loss(), "{left}");
        *left.state.unwrap()
    });
    let states: Vec<_> = left.collect();
    // The trial of the link is one replay, and a device fails at its tenth: the last step of three epochs of three, in
    // a turn with the one before it.
    for state in &states {
        assert!((7..=8).contains(&state.position().steps));
    }
    let seats = load_split(&spec, &data(), 2).into_iter().zip(states);
    let seats = seats.map(|(loaded, state)| Seat {
        device: emulated(),
        origin: Origin::State(state),
        ..Seat::fresh(loaded)
    });
    let ends = train_seats(&spec, seats.collect());
    let ends: Vec<_> = ends.into_iter().map(Result::unwrap).collect();
    assert_same_weights(&whole[0], &ends[0], ON_A_DEVICE);
    assert_eq!(ends[1].report.kept.steps, whole[0].report.kept.steps);
}

#[test]
fn linked_devices_send_no_gradient_over_the_ranks_connections() {
    if Emulated::find().is_none() {
        return;
    }
    // The loading's exchanges and the trial of the link are the same; so the steps tell.
    let sent = |epochs: usize, how| {
        let spec = TrainSpec {
            epochs: Some(epochs),
            ..in_f32()
        };
        let seats = load_split(&spec, &data(), 2).into_iter();
        let seats = seats.map(|loaded| Seat {
            device: spoilt(how),
            ..Seat::fresh(loaded)
        });
        let ends = train_counted(&spec, seats.collect()).into_iter();
        let sent = ends.map(|(end, counters)| end.map(|_| counters.bytes_sent).unwrap());
        sent.sum::<u64>()
    };
    let of_an_epoch = |how| sent(3, how) - sent(2, how);
    let [linked, apart] = [None, Some(Emulated::UNLINKED)].map(of_an_epoch);
    assert!(linked < apart / 2, "{linked} and {apart} bytes");
}

#[test]
fn a_trial_whose_steps_are_too_long_takes_shorter_ones() {
    if Emulated::find().is_none() {
        return;
    }
    let mut spec = in_f32();
    spec.network.batch_norm = false;
    // Raw distances are in the thousands: at the trials' usual rate there is no second step.
    let on = |how| {
        let end = alone(&spec, spoilt(how)).unwrap();
        end.report.computed.device
    };
    assert_eq!(on(None), DeviceKind::Cuda);
    assert_eq!(on(Some("entered")), DeviceKind::Cpu);
    assert_eq!(on(Some("dense_back")), DeviceKind::Cpu);
}

#[test]
fn products_of_fewer_digits_learn_as_much() {
    let spec = TrainSpec {
        epochs: Some(8),
        batch_size: Some(BatchSize::OfRank(10)),
        ..spec()
    };
    let host = train_split(&spec, &data(), 1);
    for precision in [Precision::Tf32, Precision::Bf16] {
        let spec = TrainSpec {
            precision: Some(precision),
            ..spec.clone()
        };
        let Some(device) = train_emulated(&spec, &data(), 1) else {
            return;
        };
        assert_eq!(device[0].report.computed.precision, precision);
        let [due, found] = [&host, &device].map(|of| of[0].report.kept.eval_loss.unwrap());
        assert!(found < 1.2 * due, "{precision}: {found}, {due} in f32");
    }
}
