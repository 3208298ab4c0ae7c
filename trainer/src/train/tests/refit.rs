//! Tests of refits: training anew on all rows.

use volley_proto::spec::{BatchSize, ClassWeights, Refit, Rule, TrainSpec};

use super::linear::linear;
use super::runs::{Run, STEPS, assert_same_bits, data, learnt, run, small, stay, through_bytes};
use super::worlds::{TOLERANCE, assert_same_weights, weights};
use crate::Origin;
use crate::testing::{classifier, rows, spec, told_apart, train_split};

fn refit(spec: TrainSpec) -> TrainSpec {
    TrainSpec {
        refit: Refit::Always,
        ..spec
    }
}

#[test]
fn a_refit_is_of_all_rows_for_as_many_epochs_as_were_kept() {
    let plain = Run::whole(&small(2), 2);
    let whole = Run::whole(&refit(small(2)), 2);
    let [plain, outcome] = [&plain, &whole].map(Run::outcome);
    let before = &plain.artifacts.as_ref().unwrap().manifest;
    let manifest = &outcome.artifacts.as_ref().unwrap().manifest;
    let done = manifest.refit.unwrap();

    assert_eq!(before.refit, None);
    assert_eq!(learnt(manifest.selection()), learnt(&before.history));
    assert_eq!(manifest.kept_epoch, before.kept_epoch);
    assert_eq!(
        (
            manifest.train_rows,
            &manifest.train_checksum,
            manifest.eval_rows
        ),
        (before.train_rows, &before.train_checksum, before.eval_rows)
    );
    assert_eq!(done.first_epoch, 4);
    assert_eq!(done.rows, manifest.train_rows + manifest.eval_rows);
    let again = &manifest.history[3..];
    assert_eq!(again.len(), manifest.kept_epoch);
    for (again, before) in again.iter().zip(&before.history) {
        assert_eq!((again.rows, again.eval_loss), (done.rows, None));
        assert_ne!(again.checksum, before.checksum);
    }
    let kept = [outcome, plain].map(|of| learnt(std::slice::from_ref(&of.report.kept)));
    assert_eq!(kept[0], kept[1]);
    let of_ranks = whole.outcomes().map(|of| of.report.refit_rows.unwrap());
    assert_eq!(of_ranks.sum::<u64>(), done.rows);
    assert!(weights(plain) != weights(outcome));
}

#[test]
fn averages_of_a_refit_begin_with_its_own_weights() {
    let mut spec = small(1);
    spec.optimizer.learn_rate = 1e-9;
    spec.optimizer.ema_momentum = Some(0.9);
    let [plain, again] = [Run::whole(&spec, 1), Run::whole(&refit(spec), 1)];
    // Neither training has moved its weights.
    let kernels = [&plain, &again].map(|run| weights(run.outcome()));
    for ((name, left), (_, right)) in kernels[0].iter().zip(&kernels[1]) {
        // Embeddings without rows are the mean of the others, and statistics depend on the rows.
        let close = |(l, r): (&f32, &f32)| (l - r).abs() <= 1e-4 * l.abs().max(1e-3);
        let is_kernel = name.ends_with("kernel");
        assert!(!is_kernel || left.iter().zip(right).all(close), "{name}");
    }
}

#[test]
fn n_ranks_refit_as_one_does() {
    let weighed = TrainSpec {
        class_weights: ClassWeights::Balanced,
        ..classifier()
    };
    for (spec, data) in [
        (spec(), rows(0..300)),
        (weighed, told_apart(&rows(0..300), &[2.7, 3.4])),
    ] {
        let spec = refit(TrainSpec {
            batch_size: Some(BatchSize::Global { global: 30 }),
            epochs: Some(3),
            shards: 10,
            ..spec
        });
        let one = train_split(&spec, &data, 1);
        for world_size in [2, 5] {
            let many = train_split(&spec, &data, world_size);
            assert_same_weights(&one[0], &many[0], TOLERANCE);
        }
    }
}

#[test]
fn a_resumed_refit_is_the_uninterrupted_one_bit_by_bit() {
    let spec = refit(small(2));
    let whole = Run::whole(&spec, 2);
    let all = whole.outcome().artifacts.as_ref().unwrap();
    let steps = all.manifest.history.last().unwrap().steps;
    // Before the refit, at its start, and within it.
    for stop in [STEPS + 2, 3 * STEPS, 3 * STEPS + 4, steps - 1] {
        let states = Run::until(&spec, 2, stop).states();
        assert_eq!(states[0].position().steps, stop);
        let states = states.into_iter().map(through_bytes).collect();
        assert_same_bits(&whole, &run(&spec, &data(), stay(states)));
    }
    // Another rank joins within the refit.
    let [first, _]: [_; 2] = Run::until(&spec, 2, steps - 2).states().try_into().unwrap();
    let ranks = vec![(Origin::Fresh, None), (Origin::State(first), None)];
    assert_same_bits(&whole, &run(&spec, &data(), ranks));
}

#[test]
fn a_solver_solves_for_all_rows() {
    let spec = linear(spec());
    assert!(matches!(spec.optimizer.rule, Rule::Lbfgs { .. }));
    let outcome = &train_split(&refit(spec), &data(), 2)[0];
    let history = &outcome.artifacts.as_ref().unwrap().manifest.history;
    let ends: Vec<_> = history
        .iter()
        .filter(|record| record.ended.is_some())
        .collect();
    assert_eq!(ends.len(), 2, "{history:?}");
    assert!(ends[0].rows < ends[1].rows);
    // Each step is over all rows.
    let steps = history.windows(2).map(|pair| pair[1].steps - pair[0].steps);
    assert!(steps.eq(history[1..].iter().map(|_| 1)), "{history:?}");
}

#[test]
fn a_refit_that_runs_out_of_epochs_keeps_weights_whose_loss_is_known() {
    let spec = TrainSpec {
        epochs: Some(4),
        ..linear(spec())
    };
    let outcome = &train_split(&refit(spec), &data(), 1)[0];
    let manifest = &outcome.artifacts.as_ref().unwrap().manifest;
    let refit = &manifest.history[manifest.refit.unwrap().first_epoch - 1..];
    assert!(
        refit.iter().all(|record| record.ended.is_none()),
        "{refit:?}"
    );
    let published = outcome.report.eval_train_loss;
    let mut known = refit.iter().map(|record| (record.loss - published).abs());
    assert!(
        known.any(|apart| apart < 1e-4 * published),
        "{published} in {refit:?}"
    );
}
