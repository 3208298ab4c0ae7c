//! Tests of interrupted trainings that resume, in the same world or in another one.

use arrow::array::{ArrayRef, AsArray, Date32Array, Float64Array};
use arrow::datatypes::{Date32Type, Float64Type};
use arrow::record_batch::RecordBatch;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{
    BatchSize, Device, DeviceKind, Keep, NumericEmbedding, NumericTransform, Precision, RankDevice,
    TrainSpec,
};

use super::linear::linear;
use super::runs::{
    Run, STEPS, assert_same_bits, data, model, run, small, stay, through_bytes, vec_of,
};
use super::with_fit;
use super::worlds::{TOLERANCE, assert_same_weights};
use crate::collective::{Communicator, Options};
use crate::testing::{
    Deaf, Seat, dense, load_split, rows, spec, train_seats, two_labels, with_visits,
};
use crate::train::agree::gather;
use crate::{Beginning, Error, Interrupted, Origin, Result, Shards, TrainingState};

#[test]
fn a_solver_goes_on_where_it_was() {
    let spec = linear(spec());
    let fresh = |stop_after| vec![(Origin::Fresh, stop_after), (Origin::Fresh, stop_after)];
    let whole = run(&spec, &data(), fresh(None));
    let broken = run(&spec, &data(), fresh(Some(5)));
    let states = broken.ends.into_iter().map(|end| {
        let state = end.unwrap_err().state.unwrap();
        (Origin::State(*state), None)
    });
    let resumed = run(&spec, &data(), states.collect());
    let [whole, resumed] = [whole, resumed].map(|mut run| run.ends.remove(0).unwrap());
    assert_same_weights(&whole, &resumed, 0.0);
    assert_eq!(whole.report.epochs, resumed.report.epochs);
}

#[test]
fn a_resumed_training_is_the_uninterrupted_one_bit_by_bit() {
    for world_size in [1, 2, 3] {
        let spec = small(world_size);
        let whole = Run::whole(&spec, world_size);
        // Within an epoch, after its last step, and in a later epoch.
        for stop in [3, STEPS, 2 * STEPS + 1] {
            let stopped = Run::until(&spec, world_size, stop);
            let cancelled = |end: &Result<_, Interrupted>| matches!(end, Err(interrupted) if matches!(interrupted.error, Error::Cancelled));
            assert!(stopped.ends.iter().all(cancelled));
            let states = stopped.states();
            assert!(states.iter().all(|state| *state == states[0]));
            assert_eq!(states[0].position().steps, stop);

            let states = states.into_iter().map(through_bytes).collect();
            let resumed = run(&spec, &data(), stay(states));
            assert_same_bits(&whole, &resumed);
            assert_eq!(resumed.heard[0].steps.len() as u64, 3 * STEPS - stop);
            let position = resumed.heard[0].steps[0];
            assert_eq!(position.steps, stop + 1);
        }
    }
}

#[test]
fn quantiles_and_bins_are_those_of_the_start() {
    let mut spec = small(2);
    spec.numeric_transform = NumericTransform::Quantile;
    spec.network.batch_norm = false;
    spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    let whole = Run::whole(&spec, 2);
    let states = Run::until(&spec, 2, STEPS + 2).states();
    // One rank continues from its state, and another joins.
    let [first, _]: [TrainingState; 2] = states.try_into().unwrap();
    assert!(
        first
            .scaling
            .features
            .iter()
            .all(|of| of.quantiles.is_some() && of.has_bins())
    );
    let resumed = run(
        &spec,
        &data(),
        vec![
            (Origin::State(through_bytes(first)), None),
            (Origin::Fresh, None),
        ],
    );
    assert_same_bits(&whole, &resumed);
}

#[test]
fn a_lost_rank_s_epoch_goes_on_with_fewer_and_with_more() {
    let spec = TrainSpec {
        keep: Keep::Last,
        ..small(3)
    };
    let whole = Run::whole(&spec, 3);

    // Rank 2 dies after the third step of the second epoch.
    let stops = [None, None, Some(STEPS + 3)];
    let ranks = stops.map(|stop| (Origin::Fresh, stop)).into();
    let mut died = run(&spec, &data(), ranks);
    died.ends.pop();
    for end in &died.ends {
        let error = &end.as_ref().unwrap_err().error;
        assert!(error.is_peer_loss(), "{error:?}");
        let Error::AtStep { position, .. } = error else {
            panic!("{error:?}")
        };
        assert_eq!((position.epoch, position.step), (2, 3));
        assert_eq!(
            error.to_string(),
            "training was interrupted at epoch 2, step 3"
        );
    }
    let survivors = died.states();
    assert_eq!(survivors[0].encode(), survivors[1].encode());

    // Two ranks continue, then end so that two more can join.
    let ranks = survivors.into_iter().map(|state| {
        let stop = Some(2 * STEPS + 2);
        (Origin::State(through_bytes(state)), stop)
    });
    let two = run(&spec, &data(), ranks.collect());
    let record = two.heard[0].epochs[0].clone();
    let [first, second] = two.states().try_into().unwrap();
    let ranks = [
        Origin::Fresh,
        Origin::State(first),
        Origin::Fresh,
        Origin::State(second),
    ];
    let ranks = ranks.map(|origin| (origin, None)).into();
    let four = run(&spec, &data(), ranks);
    let received = |rank: usize| match four.heard[rank].beginning {
        Some(Beginning::Resumed { received_from, .. }) => received_from,
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 1, 2, 3].map(received), [Some(1), None, Some(1), None]);

    assert_same_weights(whole.outcome(), four.outcome(), TOLERANCE);
    let manifests = [&whole, &four].map(|r| &r.outcome().artifacts.as_ref().unwrap().manifest);
    assert_eq!(manifests[0].train_checksum, manifests[1].train_checksum);
    assert_eq!(manifests[1].world_size, 4);
    for (left, right) in manifests[0].history.iter().zip(&manifests[1].history) {
        assert_eq!((left.steps, left.rows), (right.steps, right.rows));
        assert_eq!(left.checksum, right.checksum);
        assert_eq!(right.checksum, manifests[1].train_checksum);
        assert!((left.loss / right.loss - 1.0).abs() < 1e-5);
    }
    // The second epoch: three steps of thirty rows before the loss, and four by the two ranks that were left.
    assert_eq!(record.earlier.unwrap().rows, 90);
    let own: Vec<_> = record.ranks.iter().map(|rank| rank.rows).collect();
    assert_eq!((own.len(), own.iter().sum::<u64>()), (2, 120));
    // The first epoch was whole, so nothing of it is from an earlier generation.
    assert_eq!(manifests[1].history[0].earlier, None);
    assert_eq!(manifests[1].history[0].ranks.len(), 3);
}

#[test]
fn a_step_that_fails_half_way_leaves_nothing() {
    let cancel = CancellationToken::new();
    let mut pair = Communicator::in_process(2, &Options::default(), &cancel).unwrap();
    let mut peer = pair.pop().unwrap();
    with_fit(
        |_| (),
        |fit, _| {
            let before = fit.state().unwrap();
            let done = std::thread::scope(|scope| {
                let done = scope.spawn(move || {
                    gather(&[false; 3], "buckets", &mut peer).unwrap();
                    // Rows, two sums for each of two features and one null indicator, three pieces, weight;
                    // then it is gone.
                    peer.all_reduce_sum_f64(&mut [0.0; 11]).unwrap();
                    peer.counters().operations
                });
                let error = fit.run(&mut pair[0], &Deaf, &cancel).unwrap_err();
                assert!(error.is_peer_loss(), "{error:?}");
                done.join().unwrap()
            });
            // In the gradient's call.
            assert_eq!(pair[0].counters().operations, done + 1);
            assert_eq!(fit.state().unwrap(), before);
        },
    );
}

#[test]
fn the_newest_state_is_everyone_s() {
    let spec = small(2);
    let whole = Run::whole(&spec, 2);
    let state = |steps| Run::until(&spec, 2, steps).states().remove(0);
    let (behind, ahead) = (state(9), state(10));
    let position = ahead.position();
    let ranks = stay(vec![behind, ahead]);
    let resumed = run(&spec, &data(), ranks);
    for (rank, received_from) in [(0, Some(1)), (1, None)] {
        let beginning = Beginning::Resumed {
            position,
            received_from,
        };
        assert_eq!(resumed.heard[rank].beginning, Some(beginning));
        assert_eq!(resumed.heard[rank].steps[0].steps, 11);
    }
    assert_same_bits(&whole, &resumed);
}

#[test]
fn epochs_may_be_raised_and_may_all_be_done() {
    let spec = small(2);
    let whole = Run::whole(&spec, 2);
    let last = whole.last_state();
    assert_eq!((last.position().epoch, last.position().step), (4, 0));

    // Only rank 0 has the state, from a checkpoint.
    let origins =
        |state: &TrainingState| vec![(Origin::State(state.clone()), None), (Origin::Fresh, None)];
    let done = run(&spec, &data(), origins(&last));
    assert!(done.heard.iter().all(|heard| heard.steps.is_empty()));
    assert_eq!(done.outcome().report.epochs, 3);
    let published = [&whole, &done].map(|run| run.outcome().artifacts.as_ref().unwrap());
    assert!(model(published[0]) == model(published[1]));
    assert_eq!(published[0].manifest.history, published[1].manifest.history);

    let longer = TrainSpec {
        epochs: Some(5),
        ..spec
    };
    let raised = run(&longer, &data(), origins(&last));
    assert_same_bits(&Run::whole(&longer, 2), &raised);

    let shorter = TrainSpec {
        epochs: Some(2),
        ..longer
    };
    for error in run(&shorter, &data(), origins(&last)).errors() {
        let Error::StateOption {
            option, then, now, ..
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!((&*option, &*then, &*now), ("epochs", "at least 3", "2"));
    }
}

#[test]
fn a_state_of_another_spec_is_refused() {
    let spec = small(2);
    let state = Run::until(&spec, 2, 4).states().remove(0);
    type Change = fn(&mut TrainSpec);
    let script: [(Change, &str, &str, &str); 5] = [
        (
            |s| s.optimizer.learn_rate = 0.5,
            "learn_rate",
            "0.01",
            "0.5",
        ),
        (
            |s| s.network.layers = dense(&[8, 16], &[0.125, 0.25]),
            "network",
            "[dense(24), relu, dropout(0.125), dense(16), relu, dropout(0.25)]",
            "[dense(8), relu, dropout(0.125), dense(16), relu, dropout(0.25)]",
        ),
        (
            |s| s.batch_size = Some(BatchSize::OfRank(20)),
            "batch_size",
            "15",
            "20",
        ),
        (|s| s.seed = 12, "seed", "11", "12"),
        (
            |s| s.network.layers = dense(&[24, 16], &[0.125, 0.5]),
            "network",
            "[dense(24), relu, dropout(0.125), dense(16), relu, dropout(0.25)]",
            "[dense(24), relu, dropout(0.125), dense(16), relu, dropout(0.5)]",
        ),
    ];
    for (change, option, then, now) in script {
        let mut other = spec.clone();
        change(&mut other);
        let ranks = vec![(Origin::Fresh, None), (Origin::State(state.clone()), None)];
        let refused = run(&other, &data(), ranks);
        assert!(refused.heard.iter().all(|heard| heard.beginning.is_none()));
        for error in refused.errors() {
            let text = error.to_string();
            let Error::StateOption {
                option: o,
                then: t,
                now: n,
                ..
            } = error
            else {
                panic!("{error:?}")
            };
            assert_eq!((&*o, &*t, &*n), (option, then, now));
            assert!(text.contains("epoch 1, step 4"), "{text}");
        }
    }
    // Options that do not affect the trained model may change.
    let mut same = spec.clone();
    same.train_id = volley_proto::TrainId::generate();
    same.checkpoint_every = Some(2);
    same.elastic.min_ranks = 2;
    same.collective_timeout *= 2;
    same.device = Device::Auto;
    same.precision = Some(Precision::Bf16);
    let resumed = run(&same, &data(), stay(vec![state.clone(), state]));
    assert!(resumed.ends.iter().all(Result::is_ok));
    let manifest = &resumed.outcome().artifacts.as_ref().unwrap().manifest;
    let on_the_cpu = RankDevice {
        device: DeviceKind::Cpu,
        precision: Precision::Bf16,
    };
    assert_eq!(manifest.rank_devices, [on_the_cpu; 2]);
    assert_eq!(manifest.spec.precision, Some(Precision::Bf16));
}

fn with_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut columns = batch.columns().to_vec();
    columns[batch.schema().index_of(name).unwrap()] = column;
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn a_state_of_other_rows_is_refused() {
    let spec = small(1);
    let state = Run::until(&spec, 1, 4).states().remove(0);
    let refused = |data: &RecordBatch| {
        let refused = run(&spec, data, stay(vec![state.clone()]));
        let interrupted = refused.ends.into_iter().next().unwrap().unwrap_err();
        // The state that it brought is not lost.
        assert_eq!(interrupted.state.unwrap().position(), state.position());
        interrupted.error
    };

    // One label of the last shard, by a little.
    let labels = data()["sales"].as_primitive::<Float64Type>().clone();
    let changed = labels.iter().enumerate().map(|(row, label)| match row {
        298 => label.map(|label| label + 1e-3),
        _ => label,
    });
    let changed = Float64Array::from_iter(changed);
    match refused(&with_column(&data(), "sales", std::sync::Arc::new(changed))) {
        Error::StateRows {
            shard: 7,
            part: "to train on",
            then,
            now,
            ..
        } => {
            assert_ne!(then, now);
            assert_eq!(
                then.split_once(" rows").unwrap().0,
                now.split_once(" rows").unwrap().0
            );
        }
        other => panic!("{other:?}"),
    }

    // Rows that were added later.
    match refused(&rows(0..310)) {
        Error::StateRows { then, now, .. } => {
            assert_ne!(
                then.split_once(' ').unwrap().0,
                now.split_once(' ').unwrap().0
            );
        }
        other => panic!("{other:?}"),
    }

    // A value that only a test row has.
    let days = data()["day"].as_primitive::<Date32Type>().clone();
    let changed = days.iter().enumerate().map(|(row, day)| match row {
        295 => Some(30_000),
        _ => day,
    });
    let changed = Date32Array::from_iter(changed);
    match refused(&with_column(&data(), "day", std::sync::Arc::new(changed))) {
        Error::StateValues {
            column,
            then: 5,
            now: 6,
            ..
        } => assert_eq!(column, "day"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_rank_brings_outlives_a_start_that_fails() {
    let spec = small(2);
    let state = Run::until(&spec, 2, 4).states().remove(0);
    let mut loaded = load_split(&spec, &data(), 2).into_iter();
    let seats = vec![
        Seat {
            origin: Origin::State(state.clone()),
            ..Seat::fresh(loaded.next().unwrap())
        },
        Seat::fresh(Shards::Loaded(Err(Error::Input {
            shard: 5,
            source: "its executor is gone".into(),
        }))),
    ];
    let [first, second] = train_seats(&spec, seats).try_into().unwrap();
    let first = first.unwrap_err();
    assert!(matches!(first.error, Error::Peer { rank: 1, .. }));
    assert_eq!(*first.state.unwrap(), state);
    assert!(second.unwrap_err().state.is_none());
}

#[test]
fn checkpoints_come_as_often_as_the_spec_says_and_never_twice() {
    let at = |run: &Run| -> Vec<_> {
        let positions = run.heard[0].checkpoints.iter().map(|(position, state)| {
            let state = TrainingState::decode(state).unwrap();
            assert_eq!(state.position(), *position);
            (position.epoch, position.step, position.steps)
        });
        positions.collect()
    };
    let mut spec = TrainSpec {
        epochs: Some(2),
        ..small(2)
    };
    let ends = [(2, 0, 7), (3, 0, 14)];
    assert_eq!(at(&Run::whole(&spec, 2)), ends);
    spec.checkpoint_every = Some(STEPS);
    assert_eq!(at(&Run::whole(&spec, 2)), ends);
    spec.checkpoint_every = Some(3);
    let whole = Run::whole(&spec, 2);
    let all = [
        (1, 3, 3),
        (1, 6, 6),
        (2, 0, 7),
        (2, 2, 9),
        (2, 5, 12),
        (3, 0, 14),
    ];
    assert_eq!(at(&whole), all);
    assert!(whole.heard[1].checkpoints.is_empty(), "rank 0's are enough");

    // Every checkpoint is equally good.
    for (_, bytes) in &whole.heard[0].checkpoints {
        let state = TrainingState::decode(bytes).unwrap();
        let ranks = vec![(Origin::State(state), None), (Origin::Fresh, None)];
        let resumed = run(&spec, &data(), ranks);
        let published = [&whole, &resumed].map(|run| run.outcome().artifacts.as_ref().unwrap());
        assert!(model(published[0]) == model(published[1]));
        assert!(at(&resumed).len() < all.len(), "none where it started");
    }
}

#[test]
fn a_damaged_state_is_refused() {
    let bytes = Run::until(&small(1), 1, 2).states().remove(0).encode();
    assert!(TrainingState::decode(&bytes).is_ok());
    let refused = |bytes: &[u8]| {
        let outcome = TrainingState::decode(bytes);
        assert!(
            matches!(outcome, Err(Error::StateFile { .. })),
            "{outcome:?}"
        );
    };
    refused(&[]);
    refused(&bytes[..bytes.len() - 1]);
    refused(&bytes[..100]);
    let text = String::from_utf8_lossy(&bytes);
    let format = text.find("format").unwrap();
    let mut other = bytes.to_vec();
    let digit = format + text[format..].find(|c: char| c.is_ascii_digit()).unwrap();
    other[digit] = b'7';
    refused(&other);
}

#[test]
fn several_labels_go_on_at_the_very_step() {
    let spec = TrainSpec {
        batch_size: Some(BatchSize::OfRank(15)),
        epochs: Some(2),
        keep: Keep::Best,
        ..two_labels()
    };
    let data = with_visits(&data());
    let whole = run(&spec, &data, vec_of(2, || (Origin::Fresh, None)));
    let parted = run(&spec, &data, vec_of(2, || (Origin::Fresh, Some(STEPS + 2))));
    let states = parted.states().into_iter().map(through_bytes);
    let resumed = run(&spec, &data, stay(states.collect()));
    assert_same_bits(&whole, &resumed);
    let kept = &resumed.outcome().report.kept;
    let named: Vec<_> = kept.labels.iter().map(|of| of.label.as_str()).collect();
    assert_eq!(named, ["sales", "visits"]);
}
