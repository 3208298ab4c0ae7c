//! Failures: every rank ends, with the root cause.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::Mutex;

use arrow::array::{ArrayRef, Float64Array, StringArray};
use arrow::record_batch::RecordBatch;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{LabelTransform, Output, TrainSpec};
use volley_proto::store::EpochRecord;

use crate::collective::{Communicator, Options};
use crate::network::CustomLayers;
use crate::testing::{
    Seat, custom_layers, load_now, load_split, rows, spec, squash, train_seats, train_world,
};
use crate::{Beginning, Defect, Error, Observer, Origin, Rank, ResolvedDevice, Rule, train};

fn with_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut columns = batch.columns().to_vec();
    columns[batch.schema().index_of(name).unwrap()] = column;
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn a_bad_label_on_one_rank_is_every_rank_s_error() {
    let mut spec = spec();
    spec.label.transform = LabelTransform::Ln;
    let good = rows(0..20);
    let labels = Float64Array::from_iter((0..20).map(|row| Some(f64::from(row % 2))));
    let bad = with_column(&good, "sales", Arc::new(labels));
    let ranks = [&good, &bad, &bad].into_iter().enumerate();
    let ranks = ranks.map(|(rank, batch)| load_now(&spec, vec![(rank, vec![batch.clone()])]));
    for outcome in train_world(&spec, ranks.collect()) {
        let Err(Error::Defect(Defect {
            column,
            rule,
            rows,
            example,
        })) = outcome
        else {
            panic!("{outcome:?}");
        };
        // Each bad rank's ten zeros are all in rows for training or evaluation: test rows 5 and 15 are odd.
        assert_eq!(
            (column.as_str(), rule, rows),
            ("sales", Rule::PositiveLabel, 20)
        );
        assert_eq!(example, "0");
    }
}

#[test]
fn a_rank_that_cannot_load_ends_all() {
    let spec = spec();
    let ranks = vec![
        load_now(&spec, vec![(0, vec![rows(0..20)])]),
        Err(Error::Input {
            shard: 1,
            source: "the disk is on fire".into(),
        }),
        Err(Error::Input {
            shard: 2,
            source: "so is this one".into(),
        }),
    ];
    let outcomes = train_world(&spec, ranks);
    let Err(Error::Peer { rank: 1, cause }) = &outcomes[0] else {
        panic!("{outcomes:?}")
    };
    assert!(cause.contains("shard 1") && cause.contains("the disk is on fire"));
    assert!(matches!(outcomes[1], Err(Error::Input { shard: 1, .. })));
    assert!(matches!(outcomes[2], Err(Error::Input { shard: 2, .. })));
}

#[test]
fn no_training_rows_in_the_world() {
    let spec = spec();
    let tests = Arc::new(StringArray::from(vec!["TEST"; 8]));
    let batch = with_column(&rows(0..8), "part", tests);
    let ranks = vec![
        load_now(&spec, vec![(0, vec![batch])]),
        load_now(&spec, vec![]),
    ];
    for outcome in train_world(&spec, ranks) {
        assert!(
            matches!(outcome, Err(Error::NoTrainingRows(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_shard_has_one_rank() {
    let spec = spec();
    let ranks = (0..2)
        .map(|_| load_now(&spec, vec![(3, vec![rows(0..20)])]))
        .collect();
    for outcome in train_world(&spec, ranks) {
        assert!(
            matches!(outcome, Err(Error::SharedShard { shard: 3 })),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_scaled_output_needs_positive_labels() {
    let mut spec = spec();
    spec.network.output = Output::ScaledSigmoid;
    let labels = Arc::new(Float64Array::from(vec![-1.0; 20]));
    let batch = with_column(&rows(0..20), "sales", labels);
    let outcome = train_world(&spec, vec![load_now(&spec, vec![(0, vec![batch])])]).remove(0);
    assert!(
        matches!(outcome, Err(Error::OutputScale { largest: -1.0 })),
        "{outcome:?}"
    );
}

#[test]
fn divergence_is_an_error() {
    let mut spec = TrainSpec {
        epochs: Some(5),
        ..spec()
    };
    spec.optimizer.learn_rate = 1e30;
    let outcome =
        train_world(&spec, vec![load_now(&spec, vec![(0, vec![rows(0..200)])])]).remove(0);
    assert!(
        matches!(outcome, Err(Error::Diverged { .. })),
        "{outcome:?}"
    );
}

/// An observer that cancels after the first epoch.
struct Impatient(CancellationToken, Mutex<usize>);

impl Observer for Impatient {
    fn loaded(&self, rows: u64, _: f64) {
        assert_eq!(rows, 40);
    }
    fn started(&self, beginning: Beginning) {
        assert_eq!(beginning, Beginning::Fresh);
    }
    fn epoch(&self, record: &EpochRecord) {
        *self.1.lock().unwrap() = record.epoch;
        self.0.cancel();
    }
}

#[test]
fn a_custom_layer_that_one_rank_lacks_is_every_rank_s_error() {
    let mut spec = spec();
    spec.network.layers = vec![squash(4, 1.0)];
    let mut loaded = load_split(&spec, &rows(0..100), 2).into_iter();
    let mut seat = |layers| Seat {
        layers,
        ..Seat::fresh(loaded.next().unwrap())
    };
    let seats = vec![seat(custom_layers()), seat(CustomLayers::new())];
    let [first, second] = train_seats(&spec, seats).try_into().unwrap();
    let cause = match first.unwrap_err().error {
        Error::Peer { rank: 1, cause } => cause,
        other => panic!("{other}"),
    };
    let Error::UnknownLayer { layer, .. } = second.unwrap_err().error else {
        panic!("it has no layers")
    };
    assert_eq!(layer, "custom('squash', 4, 1)");
    assert!(cause.contains(&layer), "{cause}");
    // A layer that no rank can build is each rank's own error.
    spec.network.layers = vec![squash(0, 1.0)];
    for outcome in train_world(&spec, load_split(&spec, &rows(0..100), 2)) {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::BuildLayer { .. }), "{error}");
    }
}

#[test]
fn cancelling_ends_training() {
    let spec = TrainSpec {
        epochs: Some(1_000_000),
        ..spec()
    };
    let cancel = CancellationToken::new();
    let observer = Impatient(cancel.clone(), Mutex::new(0));
    let communicators = Communicator::in_process(2, &Options::default(), &cancel).unwrap();
    std::thread::scope(|scope| {
        for mut communicator in communicators {
            let (spec, cancel, observer) = (&spec, &cancel, &observer);
            scope.spawn(move || {
                let shard = communicator.rank();
                let loaded = load_now(spec, vec![(shard, vec![rows(0..40)])]);
                let device = ResolvedDevice::CPU;
                let rank = Rank {
                    communicator: &mut communicator,
                    device,
                    threads: NonZeroUsize::MIN,
                    layers: &custom_layers(),
                    observer,
                    cancel,
                    origin: Origin::Fresh,
                };
                let interrupted = train(spec, loaded, rank).unwrap_err();
                assert!(matches!(interrupted.error, Error::Cancelled));
                let position = interrupted.state.unwrap().position();
                // The other rank may have noticed within a step, or at the end of the epoch.
                assert!(position.steps <= 3, "{position}");
            });
        }
    });
    assert_eq!(*observer.1.lock().unwrap(), 1);
}

#[test]
fn a_lost_rank_is_an_error_on_the_others() {
    let spec = TrainSpec {
        epochs: Some(1_000_000),
        ..spec()
    };
    let cancel = CancellationToken::new();
    let mut communicators = Communicator::in_process(2, &Options::default(), &cancel).unwrap();
    drop(communicators.pop());
    let loaded = load_now(&spec, vec![(0, vec![rows(0..40)])]);
    let communicator = &mut communicators[0];
    let observer = &crate::testing::Deaf;
    let rank = Rank {
        communicator,
        device: ResolvedDevice::CPU,
        threads: NonZeroUsize::MIN,
        layers: &custom_layers(),
        observer,
        cancel: &cancel,
        origin: Origin::Fresh,
    };
    let interrupted = train(&spec, loaded, rank).unwrap_err();
    assert!(matches!(interrupted.error, Error::Collective(_)));
    assert!(interrupted.state.is_none(), "there was none yet");
}
