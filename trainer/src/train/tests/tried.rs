//! Trainings whose plan was tried before: on devices that keep the outcome in a folder of the test.
//!
//! A device that computes something else tells whether a trial was made: it fails each.

use std::path::PathBuf;

use volley_proto::spec::{DeviceKind, Loss, Optimizer, Precision, Rule, TrainSpec};

use super::runs::{Watch, data, small};
use crate::device::{Emulated, Records};
use crate::testing::{Seat, load_split, squash, train_seats};
use crate::{ResolvedDevice, Result};

/// A device with its records, for as long as tests run.
#[derive(Debug, Clone, Copy)]
struct Device(&'static Records);

impl Device {
    fn of(folder: PathBuf, device: &str) -> Self {
        let device = device.to_owned();
        Self(Box::leak(Box::new(Records { folder, device })))
    }

    /// Returns the names of the files that are kept.
    fn files(self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0.folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Trains ranks on such devices, which compute something else if they are spoilt. Returns what computed on rank 0, and
    /// its note.
    fn train(
        self,
        spec: &TrainSpec,
        ranks: usize,
        spoilt: bool,
    ) -> Result<(DeviceKind, Option<String>)> {
        let watches: Vec<_> = (0..ranks).map(|_| Watch::default()).collect();
        let spoilt = spoilt.then_some("dense_back");
        let seats = load_split(spec, &data(), ranks).into_iter().zip(&watches);
        let seats = seats.map(|(loaded, watch)| Seat {
            device: ResolvedDevice::emulated(u64::MAX, spoilt, false).with_records(self.0),
            observer: watch,
            ..Seat::fresh(loaded)
        });
        let end = train_seats(spec, seats.collect()).remove(0);
        let end = end.map_err(|end| end.error)?;
        let note = watches[0].heard.lock().unwrap().fell_back.clone();
        Ok((end.report.computed.device, note))
    }
}

fn one_epoch() -> TrainSpec {
    TrainSpec {
        precision: Some(Precision::F32),
        epochs: Some(1),
        ..small(1)
    }
}

#[test]
fn a_plan_that_was_right_is_not_tried_again_in_the_same_place() {
    if Emulated::find().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = Device::of(folder.path().to_owned(), "one GPU, driver 1");
    let spec = one_epoch();
    let (right, note) = device.train(&spec, 1, false).unwrap();
    assert_eq!((right, note), (DeviceKind::Cuda, None));
    assert_eq!(device.files().len(), 1);
    // Rows, weights, rates and the number of steps do not matter.
    let again = TrainSpec {
        seed: 12,
        epochs: Some(2),
        optimizer: Optimizer {
            learn_rate: 1e-3,
            ..spec.optimizer.clone()
        },
        ..spec.clone()
    };
    let (untried, note) = device.train(&again, 1, true).unwrap();
    assert_eq!((untried, note), (DeviceKind::Cuda, None));
    assert_eq!(device.files().len(), 1);

    let other = |change: fn(&mut TrainSpec)| {
        let mut other = spec.clone();
        change(&mut other);
        other
    };
    let others = [
        other(|spec| spec.precision = Some(Precision::Tf32)),
        other(|spec| spec.loss = Loss::Mae),
        other(|spec| spec.network.batch_norm = false),
        other(|spec| spec.network.layers.truncate(2)),
        other(|spec| {
            spec.optimizer.rule = Rule::Adagrad {
                initial_accumulator: 0.1,
                epsilon: 1e-7,
            }
        }),
        other(|spec| spec.accumulate = 2),
    ];
    for other in others {
        let (tried, note) = device.train(&other, 1, true).unwrap();
        assert_eq!(tried, DeviceKind::Cpu, "{other:?}");
        assert!(note.unwrap().contains("differ from the CPU's by"));
    }
    // Nor is it trusted in steps that are taken otherwise, or on another device.
    let (tried, _) = device.train(&spec, 2, true).unwrap();
    assert_eq!(tried, DeviceKind::Cpu);
    let updated = Device::of(folder.path().to_owned(), "one GPU, driver 2");
    let (tried, _) = updated.train(&spec, 1, true).unwrap();
    assert_eq!(tried, DeviceKind::Cpu);
    let (untried, _) = device.train(&spec, 1, true).unwrap();
    assert_eq!(untried, DeviceKind::Cuda);
}

#[test]
fn a_plan_that_was_wrong_stays_off_the_device_until_its_file_is_removed() {
    if Emulated::find().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = Device::of(folder.path().join("made"), "one GPU");
    let spec = one_epoch();
    let (tried, first) = device.train(&spec, 1, true).unwrap();
    assert_eq!(tried, DeviceKind::Cpu);
    let (untried, second) = device.train(&spec, 1, false).unwrap();
    assert_eq!(untried, DeviceKind::Cpu);
    let (first, second) = (first.unwrap(), second.unwrap());
    let rest = second.strip_prefix(&first).expect("the same reason");
    let [file] = &device.files()[..] else {
        panic!("{:?}", device.files());
    };
    let due = format!("; to try again, remove {})", file.display());
    assert!(
        rest.starts_with(" (found at 2") && rest.ends_with(&due),
        "{rest}"
    );
    std::fs::remove_file(file).unwrap();
    let (tried, note) = device.train(&spec, 1, false).unwrap();
    assert_eq!((tried, note), (DeviceKind::Cuda, None));
}

#[test]
fn a_file_that_is_no_outcome_is_ignored_and_replaced() {
    if Emulated::find().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = Device::of(folder.path().to_owned(), "one GPU");
    let spec = one_epoch();
    device.train(&spec, 1, false).unwrap();
    std::fs::write(&device.files()[0], "no outcome").unwrap();
    assert_eq!(device.train(&spec, 1, true).unwrap().0, DeviceKind::Cpu);
    // It was tried, and found wrong.
    assert_eq!(device.train(&spec, 1, false).unwrap().0, DeviceKind::Cpu);
}

#[test]
fn a_folder_that_cannot_be_written_to_keeps_nothing() {
    if Emulated::find().is_none() {
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = Device::of(file.path().join("within"), "one GPU");
    for spoilt in [false, true, false] {
        let (tried, _) = device.train(&one_epoch(), 1, spoilt).unwrap();
        assert_eq!(tried == DeviceKind::Cpu, spoilt);
    }
}

#[test]
fn plans_with_custom_layers_are_always_tried() {
    if Emulated::find().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = Device::of(folder.path().to_owned(), "one GPU");
    let mut spec = one_epoch();
    spec.network.layers.push(squash(5, 2.0));
    for spoilt in [false, true, false] {
        let (tried, _) = device.train(&spec, 1, spoilt).unwrap();
        assert_eq!(tried == DeviceKind::Cpu, spoilt);
    }
    assert!(device.files().is_empty());
}
