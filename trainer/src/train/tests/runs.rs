//! Trainings that end after a step and resume; tests run and compare them.

use std::sync::Mutex;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{BatchSize, Keep, RankDevice, TrainSpec};
use volley_proto::store::{EpochRecord, Position};

use crate::testing::{Seat, load_split, rows, spec, train_seats};
use crate::{
    Artifacts, Beginning, Error, Interrupted, LoadedShards, Observer, Origin, Outcome,
    ResolvedDevice, Result, Step, TrainingState,
};

/// Steps per epoch with 210 training rows.
pub(super) const STEPS: u64 = 7;

/// Returns the spec of three epochs with a global batch of thirty.
pub(super) fn small(world_size: usize) -> TrainSpec {
    TrainSpec {
        batch_size: Some(BatchSize::OfRank(30 / world_size)),
        epochs: Some(3),
        keep: Keep::Best,
        ..spec()
    }
}

pub(super) fn data() -> RecordBatch {
    rows(0..300)
}

/// An observer that records everything, and ends its rank after a step.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) stop_after: Option<u64>,
    pub(super) cancel: CancellationToken,
    pub(super) heard: Mutex<Heard>,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Heard {
    pub(super) beginning: Option<Beginning>,
    pub(super) fell_back: Option<String>,
    pub(super) noted: Option<String>,
    pub(super) steps: Vec<Position>,
    pub(super) epochs: Vec<EpochRecord>,
    pub(super) checkpoints: Vec<(Position, Bytes)>,
}

impl Observer for Watch {
    fn started(&self, beginning: Beginning) {
        self.heard.lock().unwrap().beginning = Some(beginning);
        if self.stop_after == Some(0) {
            self.cancel.cancel();
        }
    }

    fn fell_back(&self, _: RankDevice, reason: &str) {
        self.heard.lock().unwrap().fell_back = Some(reason.to_owned());
    }

    fn noted(&self, note: &str) {
        self.heard.lock().unwrap().noted = Some(note.to_owned());
    }

    fn step(&self, step: &Step) {
        let position = step.next;
        self.heard.lock().unwrap().steps.push(position);
        if self.stop_after == Some(position.steps) {
            self.cancel.cancel();
        }
    }

    fn epoch(&self, record: &EpochRecord) {
        self.heard.lock().unwrap().epochs.push(record.clone());
    }

    fn checkpoint(&self, position: Position, state: Bytes) {
        let mut heard = self.heard.lock().unwrap();
        heard.checkpoints.push((position, state));
    }
}

/// Trains one rank alone on this device; ends it after a number of steps, if given. Returns why it fell back, too.
pub(super) fn alone(
    spec: &TrainSpec,
    device: ResolvedDevice,
    origin: Origin,
    stop_after: Option<u64>,
) -> (Result<Outcome, Interrupted>, Option<String>) {
    let watch = Watch {
        stop_after,
        ..Watch::default()
    };
    let seat = Seat {
        device,
        origin,
        observer: &watch,
        cancel: watch.cancel.clone(),
        ..Seat::fresh(load_split(spec, &data(), 1).remove(0))
    };
    let end = train_seats(spec, vec![seat]).remove(0);
    (end, watch.heard.into_inner().unwrap().fell_back)
}

/// Trains one rank on a device for a number of steps, and then on another one. Returns why it fell back there, too.
pub(super) fn moved(
    spec: &TrainSpec,
    [first, second]: [ResolvedDevice; 2],
    steps: u64,
) -> (Outcome, Option<String>) {
    let (ended, _) = alone(spec, first, Origin::Fresh, Some(steps));
    let ended = ended.unwrap_err();
    assert!(
        matches!(ended.error, Error::Cancelled | Error::AtStep { .. }),
        "{ended}"
    );
    let state = *ended.state.unwrap();
    // A device may have taken more steps before it was asked to stop.
    assert!(state.position().steps >= steps);
    let (end, note) = alone(spec, second, Origin::State(state), None);
    (end.unwrap(), note)
}

/// The outcome of each rank of a world, and the events that it reported.
pub(super) struct Run {
    pub(super) ends: Vec<Result<Outcome, Interrupted>>,
    pub(super) heard: Vec<Heard>,
}

/// Trains a world of ranks with these origins, each of which ends after a number of steps, if given.
pub(super) fn run(spec: &TrainSpec, data: &RecordBatch, ranks: Vec<(Origin, Option<u64>)>) -> Run {
    run_loaded(spec, load_split(spec, data, ranks.len()), ranks)
}

/// Trains ranks that have loaded these shards.
pub(super) fn run_loaded(
    spec: &TrainSpec,
    loaded: Vec<Result<LoadedShards>>,
    ranks: Vec<(Origin, Option<u64>)>,
) -> Run {
    let watches: Vec<_> = ranks
        .iter()
        .map(|(_, stop_after)| Watch {
            stop_after: *stop_after,
            ..Watch::default()
        })
        .collect();
    let seats = loaded.into_iter().zip(ranks);
    let seats = seats
        .zip(&watches)
        .map(|((loaded, (origin, _)), watch)| Seat {
            origin,
            observer: watch,
            cancel: watch.cancel.clone(),
            ..Seat::fresh(loaded)
        });
    let ends = train_seats(spec, seats.collect());
    let heard = watches.iter().map(|w| w.heard.lock().unwrap().clone());
    Run {
        ends,
        heard: heard.collect(),
    }
}

impl Run {
    /// Trains from start to end.
    pub(super) fn whole(spec: &TrainSpec, world_size: usize) -> Self {
        run(spec, &data(), vec_of(world_size, || (Origin::Fresh, None)))
    }

    /// Trains from the start until after a step, on all ranks.
    pub(super) fn until(spec: &TrainSpec, world_size: usize, steps: u64) -> Self {
        let ranks = vec_of(world_size, || (Origin::Fresh, Some(steps)));
        run(spec, &data(), ranks)
    }

    pub(super) fn outcome(&self) -> &Outcome {
        self.ends[0].as_ref().unwrap()
    }

    pub(super) fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.ends.iter().map(|end| end.as_ref().unwrap())
    }

    /// Returns the state that each rank hands back.
    pub(super) fn states(self) -> Vec<TrainingState> {
        let states = self.ends.into_iter().map(|end| end.unwrap_err().state);
        states.map(|state| *state.unwrap()).collect()
    }

    pub(super) fn errors(self) -> Vec<Error> {
        let errors = self.ends.into_iter().map(|end| end.unwrap_err().error);
        errors.collect()
    }

    /// Returns the last state of rank 0, which contains more than the model.
    pub(super) fn last_state(&self) -> TrainingState {
        let (position, bytes) = self.heard[0].checkpoints.last().unwrap();
        let state = TrainingState::decode(bytes).unwrap();
        assert_eq!(state.position(), *position);
        state
    }
}

pub(super) fn vec_of<T>(len: usize, value: impl Fn() -> T) -> Vec<T> {
    (0..len).map(|_| value()).collect()
}

pub(super) fn stay(states: Vec<TrainingState>) -> Vec<(Origin, Option<u64>)> {
    let states = states.into_iter();
    states.map(|state| (Origin::State(state), None)).collect()
}

pub(super) fn through_bytes(state: TrainingState) -> TrainingState {
    let bytes = state.encode();
    let decoded = TrainingState::decode(&bytes).unwrap();
    assert_eq!(decoded, state);
    assert_eq!(decoded.encode(), bytes);
    assert_eq!(decoded.clone().into_bytes(), bytes);
    decoded
}

/// Returns a history without the ranks and times of training.
pub(super) fn learnt(history: &[EpochRecord]) -> Vec<EpochRecord> {
    let learnt = |record: &EpochRecord| EpochRecord {
        ranks: vec![],
        earlier: None,
        seconds: 0.0,
        compute_seconds: 0.0,
        reduce_seconds: 0.0,
        ..record.clone()
    };
    history.iter().map(learnt).collect()
}

/// Returns the model's files; the history's file has times in it.
pub(super) fn model(artifacts: &Artifacts) -> &[(&'static str, Bytes)] {
    &artifacts.files[..2]
}

pub(super) fn assert_same_bits(left: &Run, right: &Run) {
    let published = [left, right].map(|run| run.outcome().artifacts.as_ref().unwrap());
    assert!(model(published[0]) == model(published[1]));
    let [left, right] = [left, right].map(|run| TrainingState {
        history: learnt(&run.last_state().history),
        ..run.last_state()
    });
    assert_eq!(left, right);
}
