//! Tests of trainings whose first epoch begins as rows arrive.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{BatchSize, RankDevice, TrainSpec, VocabularyRule};
use volley_proto::store::{EpochRecord, Manifest, Position};

use super::runs::{Run, Watch, assert_same_bits, run, small, stay, through_bytes, vec_of};
use crate::encode::WAVES;
use crate::testing::{
    Seat, classifier, model, rows, shards, spec, told_apart, train_seats, train_split,
};
use crate::{
    ArrivingShards, Beginning, Error, Model, Observer, Origin, Result, RowMemory, Rule, ShardCache,
    Step, load_early,
};

/// Rows of a global batch.
const BATCH: u64 = 30;
/// Time within which a rank takes its first step.
const SOON: Duration = Duration::from_secs(60);

/// When the last shard of each rank arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    AsTheOthers,
    /// Once a rank has taken a step.
    AfterAStep,
}

/// Observer that opens a gate at the first step, and checks the size of each.
struct Opens {
    gate: CancellationToken,
    watch: Watch,
}

impl Observer for Opens {
    fn loaded(&self, rows: u64, seconds: f64) {
        self.watch.loaded(rows, seconds);
    }

    fn started(&self, beginning: Beginning) {
        self.watch.started(beginning);
    }

    fn fell_back(&self, computed: RankDevice, reason: &str) {
        self.watch.fell_back(computed, reason);
    }

    fn step(&self, step: &Step) {
        self.gate.cancel();
        assert!((1..=BATCH).contains(&step.rows), "{step:?}");
        assert!(step.next.step <= step.steps_per_epoch, "{step:?}");
        self.watch.step(step);
    }

    fn epoch(&self, record: &EpochRecord) {
        self.watch.epoch(record);
    }

    fn checkpoint(&self, position: Position, state: Bytes) {
        self.watch.checkpoint(position, state);
    }
}

/// Loads shards on a thread of its own. The last one's rows wait for the gate.
fn arrive(
    spec: &TrainSpec,
    shards: Vec<(usize, Vec<RecordBatch>)>,
    gate: &CancellationToken,
    cache: Option<&ShardCache>,
) -> (Result<ArrivingShards>, JoinHandle<Option<u64>>) {
    let schema = shards[0].1[0].schema();
    let last = shards.len() - 1;
    let open = |(at, (id, batches)): (usize, (usize, Vec<RecordBatch>))| {
        let gate = gate.clone();
        let open = move || {
            let rows = async move {
                let opened = match at == last {
                    true => timeout(SOON, gate.cancelled()).await.is_ok(),
                    false => true,
                };
                let late = || ArrowError::ComputeError("no step was taken before".to_owned());
                let late = (!opened).then(|| Err(late()));
                stream::iter(late.into_iter().chain(batches.into_iter().map(Ok)))
            };
            Ok::<_, ArrowError>(rows.flatten_stream().boxed())
        };
        (id, open)
    };
    let shards = shards.into_iter().enumerate().map(open).collect();
    let never = CancellationToken::new();
    let (arriving, loading) = load_early(spec, &schema, shards, cache, &never);
    let load = move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().build().unwrap().block_on(loading)
    };
    (arriving, thread::spawn(load))
}

/// Trains ranks with these origins on shards that arrive, each of which ends after a number of steps, if given. Rows are
/// in files below `folder`, if it is given.
fn early(
    spec: &TrainSpec,
    data: &RecordBatch,
    ranks: Vec<(Origin, Option<u64>)>,
    last: Last,
    folder: Option<&Path>,
) -> Run {
    let (world_size, gate) = (ranks.len(), CancellationToken::new());
    if last == Last::AsTheOthers {
        gate.cancel();
    }
    let mut all = shards(data, spec.shards);
    let watch = |(_, stop_after): &(Origin, Option<u64>)| Opens {
        gate: gate.clone(),
        watch: Watch {
            stop_after: *stop_after,
            ..Watch::default()
        },
    };
    let observers: Vec<_> = ranks.iter().map(watch).collect();
    let mut loaders = vec![];
    let mut seats = vec![];
    for (rank, ((origin, _), observer)) in ranks.into_iter().zip(&observers).enumerate() {
        let end = spec.shards * (rank + 1) / world_size - spec.shards * rank / world_size;
        let none = RowMemory {
            loading: 0,
            training: 0,
        };
        let cache = folder.map(|folder| ShardCache::new(folder.join(rank.to_string()), none));
        let of_rank = all.drain(..end).collect();
        let (arriving, loader) = arrive(spec, of_rank, &gate, cache.as_ref());
        loaders.push(loader);
        seats.push(Seat {
            origin,
            observer,
            cancel: observer.watch.cancel.clone(),
            ..Seat::fresh(arriving)
        });
    }
    let ends = train_seats(spec, seats);
    gate.cancel();
    loaders.into_iter().for_each(|loader| {
        loader.join().unwrap();
    });
    let heard = observers.iter();
    let heard = heard.map(|observer| observer.watch.heard.lock().unwrap().clone());
    Run {
        ends,
        heard: heard.collect(),
    }
}

/// Returns the spec of three epochs with a global batch of thirty.
fn begun_early(world_size: usize) -> TrainSpec {
    TrainSpec {
        begin_early: true,
        shards: 16,
        ..small(world_size)
    }
}

fn data() -> RecordBatch {
    rows(0..600)
}

/// Returns a model trained on these rows.
fn trained_on(data: &RecordBatch) -> Model {
    model(&train_split(&spec(), data, 1))
}

/// Returns the ranks of a world of which rank 0 brings a model.
fn warm(model: Model, world_size: usize, stop_after: Option<u64>) -> Vec<(Origin, Option<u64>)> {
    let mut ranks = vec_of(world_size, || (Origin::Fresh, stop_after));
    ranks[0].0 = Origin::Warm(model);
    ranks
}

fn manifest(run: &Run) -> &Manifest {
    &run.outcome().artifacts.as_ref().unwrap().manifest
}

#[test]
fn the_first_step_is_taken_before_the_last_shards_arrive_and_every_row_is_used_once() {
    let data = data();
    for world_size in [1, 2, 3] {
        let spec = begun_early(world_size);
        let ranks = warm(trained_on(&data), world_size, None);
        let begun = early(&spec, &data, ranks, Last::AfterAStep, None);
        let usual = TrainSpec {
            begin_early: false,
            ..spec.clone()
        };
        let usual = run(&usual, &data, warm(trained_on(&data), world_size, None));

        // The model was trained on these rows, so both have its vocabularies.
        let [early, late] = [manifest(&begun), manifest(&usual)];
        assert_eq!(early.train_rows, 420);
        assert_eq!(
            (early.train_rows, &early.train_checksum, early.eval_rows),
            (late.train_rows, &late.train_checksum, late.eval_rows)
        );
        assert_eq!((early.history.len(), late.history.len()), (3, 3));
        for record in &early.history {
            assert_eq!(
                (record.rows, &record.checksum),
                (420, &early.train_checksum)
            );
            assert_eq!((record.ranks.len(), &record.earlier), (world_size, &None));
            let of_ranks = record.ranks.iter().map(|rank| rank.rows);
            assert_eq!(of_ranks.sum::<u64>(), 420);
            assert!(record.eval_loss.is_some());
        }
        for (rank, outcome) in begun.outcomes().enumerate() {
            assert_eq!(outcome.report.train_rows, early.history[0].ranks[rank].rows);
        }
        let [one, other] = [early, late].map(|of| of.history[2].eval_loss.unwrap());
        assert!(one < 2.0 * other, "{one} and {other}");

        // A wave may end with a smaller batch; later epochs are as usual.
        let steps = &begun.heard[0].steps;
        for (at, position) in steps.iter().enumerate() {
            assert_eq!(position.steps, at as u64 + 1);
        }
        let first = steps.iter().filter(|position| position.epoch == 1);
        let first: Vec<_> = first.map(|position| position.step).collect();
        let count = first.len() as u64;
        assert!(first.iter().copied().eq(1..=count), "{first:?}");
        let every = 420 / BATCH;
        assert!(
            (every + 1..every + WAVES as u64).contains(&count),
            "{count}"
        );
        assert_eq!(early.history[0].steps, count);
        assert_eq!(early.history[2].steps, count + 2 * every);
        let checkpoints = begun.heard[0].checkpoints.iter();
        let epochs: Vec<_> = checkpoints.map(|(position, _)| position.epoch).collect();
        assert_eq!(epochs, [2, 3, 4], "none before all rows are known");
    }
}

#[test]
fn what_is_trained_does_not_depend_on_when_shards_arrive_or_where_rows_are() {
    let data = data();
    let spec = begun_early(2);
    let train = |last, folder| {
        let ranks = warm(trained_on(&data), 2, None);
        early(&spec, &data, ranks, last, folder)
    };
    let folder = tempfile::tempdir().unwrap();
    let at_once = train(Last::AsTheOthers, None);
    assert_same_bits(&at_once, &train(Last::AfterAStep, None));
    assert_same_bits(&at_once, &train(Last::AfterAStep, Some(folder.path())));
}

#[test]
fn a_training_that_is_interrupted_in_its_first_epoch_begins_again() {
    let data = data();
    let spec = begun_early(2);
    let ranks = warm(trained_on(&data), 2, Some(2));
    let stopped = early(&spec, &data, ranks, Last::AfterAStep, None);
    for end in stopped.ends {
        let end = end.unwrap_err();
        assert!(end.state.is_none());
        assert!(matches!(end.error, Error::Cancelled), "{:?}", end.error);
    }
}

#[test]
fn later_epochs_resume_with_the_vocabularies_of_the_model() {
    let data = data();
    let spec = begun_early(2);
    let stores = data["store"].as_primitive::<Int32Type>().iter();
    let known = stores.map(|store| Some(store != Some(3))).collect();
    let known = filter_record_batch(&data, &known).unwrap();
    let train = |stop_after| {
        let ranks = warm(trained_on(&known), 2, stop_after);
        early(&spec, &data, ranks, Last::AfterAStep, None)
    };
    let whole = train(None);
    let first = manifest(&whole).history[0].steps;
    let stopped = train(Some(first + 3));
    let states = stopped.states();
    assert_eq!(states[0], states[1]);
    let [state, _]: [_; 2] = states.try_into().unwrap();
    let state = through_bytes(state);
    assert_eq!((state.position().epoch, state.position().step), (2, 3));
    // One rank has lost its state.
    let ranks = vec![(Origin::Fresh, None), (Origin::State(state.clone()), None)];
    let resumed = early(&spec, &data, ranks, Last::AsTheOthers, None);
    assert_same_bits(&whole, &resumed);
    let beginning = resumed.heard[0].beginning.unwrap();
    let Beginning::Resumed { received_from, .. } = beginning else {
        panic!("{beginning:?}")
    };
    assert_eq!(received_from, Some(1));
    // The store that the model does not know has no embedding of its own.
    assert_eq!(manifest(&whole).features[0].vocabulary, Some(6));

    // Without the option, vocabularies would be those of the rows.
    let late = TrainSpec {
        begin_early: false,
        ..spec.clone()
    };
    let errors = run(&late, &data, stay(vec_of(2, || state.clone()))).errors();
    for error in errors {
        match error {
            Error::StateOption { option, .. } => assert_eq!(option, "begin_early"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn classes_that_the_model_does_not_know_are_refused() {
    let data = rows(0..600);
    let spec = |begin_early| TrainSpec {
        begin_early,
        batch_size: Some(BatchSize::OfRank(15)),
        epochs: Some(1),
        shards: 16,
        ..classifier()
    };
    let old = |bounds: &[f64]| {
        let outcomes = train_split(&spec(false), &told_apart(&data, bounds), 1);
        warm(model(&outcomes), 2, None)
    };
    let three = told_apart(&data, &[2.5, 4.0]);
    let known = early(
        &spec(true),
        &three,
        old(&[2.5, 4.0]),
        Last::AfterAStep,
        None,
    );
    let due = train_split(&spec(false), &three, 1);
    let due = due[0].artifacts.as_ref().unwrap();
    assert_eq!(manifest(&known).classes, due.manifest.classes);

    // One class has become two.
    let errors = early(&spec(true), &three, old(&[2.5]), Last::AsTheOthers, None).errors();
    for error in errors {
        match error {
            Error::Defect(defect) => {
                assert_eq!((defect.rule, &*defect.column), (Rule::KnownClass, "sales"));
                assert_eq!(defect.example, "high");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ranks_refuse_together_what_cannot_begin_early() {
    let data = data();
    let spec = begun_early(2);
    let fresh = vec_of(2, || (Origin::Fresh, None));
    let errors = early(&spec, &data, fresh, Last::AsTheOthers, None).errors();
    assert!(errors.iter().all(|e| matches!(e, Error::NothingKnown)));

    let hashed = TrainSpec {
        vocabulary: VocabularyRule::Buckets(5),
        ..spec
    };
    let ranks = warm(trained_on(&data), 2, None);
    let errors = early(&hashed, &data, ranks, Last::AsTheOthers, None).errors();
    let difference = "its hash_buckets is not set, this one's 5";
    assert!(errors[0].to_string().contains(difference), "{}", errors[0]);
    match &errors[1] {
        Error::Peer { rank: 0, cause } => assert!(cause.contains(difference), "{cause}"),
        other => panic!("{other:?}"),
    }
}
