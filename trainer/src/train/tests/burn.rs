//! Trainings with Burn, as on GPUs by wgpu: the choice of the device, the failures they survive, and resuming elsewhere.
//!
//! Here Burn computes on the CPU; `wgpu` has the same on a GPU.

use volley_proto::spec::{DeviceKind, Precision, TrainSpec};

use super::runs::{alone, data, moved, small};
use super::worlds::assert_same_weights;
use crate::device::{Emulated, Mistake};
use crate::testing::{Seat, load_split, squash, train_seats, train_split};
use crate::{Error, Interrupted, Origin, ResolvedDevice};

/// Tolerance of weights, relative to the largest of each parameter.
const ON_A_DEVICE: f32 = 1e-4;

/// Trains to the end on a device that computes.
pub(super) fn learns_what_the_host_learns(device: ResolvedDevice) {
    for world_size in [1, 2] {
        let spec = small(world_size);
        let host = train_split(&spec, &data(), world_size);
        let seats = load_split(&spec, &data(), world_size).into_iter();
        let seats = seats.map(|loaded| Seat {
            device,
            ..Seat::fresh(loaded)
        });
        let ends = train_seats(&spec, seats.collect()).into_iter();
        let ends: Vec<_> = ends
            .map(|end| end.map_err(|end| end.error).unwrap())
            .collect();
        for end in &ends {
            assert_eq!(end.report.computed.device, DeviceKind::Wgpu);
        }
        assert_same_weights(&host[0], &ends[0], ON_A_DEVICE);
        let history = &ends[0].artifacts.as_ref().unwrap().manifest.history;
        let losses: Vec<_> = history.iter().map(|epoch| epoch.loss).collect();
        assert!(
            losses.is_sorted_by(|before, after| before > after),
            "{losses:?}"
        );
    }
}

/// Ends a training on a device and resumes it on another: on the CPU or, emulated, on an NVIDIA GPU, and back.
pub(super) fn goes_on_elsewhere(device: ResolvedDevice) {
    let spec = TrainSpec {
        precision: Some(Precision::F32),
        ..small(1)
    };
    let whole = train_split(&spec, &data(), 1);
    let own = (device, DeviceKind::Wgpu);
    let mut others = vec![(ResolvedDevice::CPU, DeviceKind::Cpu)];
    if Emulated::find().is_some() {
        let emulated = ResolvedDevice::emulated(u64::MAX, None, false);
        others.push((emulated, DeviceKind::Cuda));
    }
    for [(first, _), (second, due)] in others
        .into_iter()
        .flat_map(|other| [[own, other], [other, own]])
    {
        for steps in [5, 7] {
            let (end, note) = moved(&spec, [first, second], steps);
            assert_eq!(note, None);
            assert_eq!(end.report.computed.device, due);
            assert_same_weights(&whole[0], &end, ON_A_DEVICE);
        }
    }
}

fn flex(mistake: Mistake) -> ResolvedDevice {
    ResolvedDevice::flex(mistake, false)
}

#[test]
fn burn_learns_what_the_host_learns() {
    learns_what_the_host_learns(flex(Mistake::None));
}

#[test]
fn a_training_goes_on_from_burn_on_the_host_and_back() {
    goes_on_elsewhere(flex(Mistake::None));
}

#[test]
fn a_device_on_which_burn_computes_something_else_is_not_used() {
    let spec = small(1);
    let host = train_split(&spec, &data(), 1);
    for (mistake, due) in [
        (Mistake::Gradient, "on flex, Burn's gradients differ"),
        (
            Mistake::Panic(0),
            "flex failed to compute: the device is lost",
        ),
    ] {
        let (end, note) = alone(&spec, flex(mistake), Origin::Fresh, None);
        let end = end.unwrap();
        assert_eq!(end.report.computed.device, DeviceKind::Cpu);
        assert_same_weights(&host[0], &end, 0.0);
        let note = note.unwrap();
        assert!(note.starts_with(due), "{note}");
    }
}

#[test]
fn a_panic_of_burn_s_ends_the_training_with_an_error() {
    // After the trial.
    let (ended, note) = alone(&small(1), flex(Mistake::Panic(9)), Origin::Fresh, None);
    let Interrupted { error, state } = ended.unwrap_err();
    assert_eq!(
        error.to_string(),
        "flex failed to train: the device is lost"
    );
    assert!(state.is_none() && note.is_none());
}

#[test]
fn the_host_computes_instead_of_burn_where_it_is_faster() {
    let device = flex(Mistake::None).or_cpu();
    let (end, note) = alone(&small(1), device, Origin::Fresh, None);
    // Burn may be faster.
    let on_host = end.unwrap().report.computed.device == DeviceKind::Cpu;
    assert_eq!(on_host, note.is_some(), "{note:?}");
    let note = note.unwrap_or_default();
    let due = "the CPU is faster for this network: ";
    assert!(!on_host || note.starts_with(due), "{note}");
}

#[test]
fn burn_computes_no_custom_layers() {
    let mut spec = small(1);
    spec.network.layers.push(squash(3, 2.0));
    let (refused, _) = alone(&spec, flex(Mistake::None), Origin::Fresh, None);
    let error = refused.unwrap_err().error;
    assert!(matches!(error, Error::LayerDevice { .. }), "{error}");
    let (end, note) = alone(&spec, flex(Mistake::None).or_cpu(), Origin::Fresh, None);
    assert_eq!(end.unwrap().report.computed.device, DeviceKind::Cpu);
    assert_eq!(
        note.as_deref(),
        Some("a custom layer is computed in host memory")
    );
}
