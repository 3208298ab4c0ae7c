//! Gradients of the rows that a step picks train the same as gradients of all rows.

use std::sync::Arc;

use arrow::array::Int32Array;
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    Activation, AdamForm, BatchSize, Decay, EnsembleSize, Layer, Linear, NumericTransform, Rule,
    TrainSpec,
};

use super::runs::{run, stay};
use super::worlds::{
    assert_n_ranks_train_what_one_does, assert_same_weights, optimizer, other_rules,
};
use crate::Origin;
use crate::testing::{rows, spec};

/// Returns rows with many stores.
pub(super) fn many_stores() -> RecordBatch {
    let rows = rows(0..300);
    let at = rows.schema().index_of("store").unwrap();
    let mut columns = rows.columns().to_vec();
    // Some stores share half of all rows.
    let stores = (0..300).map(|row| {
        if row % 2 == 0 {
            row % 7
        } else {
            row * 37 % 160
        }
    });
    columns[at] = Arc::new(Int32Array::from_iter(stores));
    RecordBatch::try_new(rows.schema(), columns).unwrap()
}

pub(super) fn small() -> TrainSpec {
    let mut spec = TrainSpec {
        batch_size: Some(BatchSize::Global { global: 10 }),
        epochs: Some(3),
        shards: 10,
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    };
    spec.label.standardize = true;
    spec.l2 = Some(0.0);
    spec
}

/// Gradients on devices contain all rows.
#[test]
fn any_optimizer_trains_picked_rows_as_all() {
    let adam = |form, beta_2, weight_decay| Rule::Adam {
        beta_1: 0.9,
        beta_2,
        epsilon: 1e-3,
        form,
        weight_decay,
    };
    let rules = [
        adam(AdamForm::Keras, 0.999, 0.01),
        adam(AdamForm::Torch, 0.99, 0.1),
    ];
    let rules = rules.into_iter().chain(other_rules());
    let decays = [Decay::OneCycle, Decay::Cosine, Decay::Constant];
    for (rule, decay) in rules.zip(decays.into_iter().cycle()) {
        let mut spec = small();
        let is_ftrl = matches!(rule, Rule::Ftrl { .. });
        let what = rule.name();
        spec.l1 = if is_ftrl { 1e-4 } else { 0.0 };
        spec.optimizer = optimizer(rule, decay, Some(0.9).filter(|_| !is_ftrl));
        spec.network.linear = Linear::Beside;
        assert_n_ranks_train_what_one_does(&spec, &many_stores(), what);
    }
}

#[test]
fn any_table_s_rows_are_picked() {
    let mut spec = small();
    spec.network.factors = 2;
    spec.network.linear = Linear::Beside;
    spec.network.ensemble_size = EnsembleSize::Of(2);
    spec.accumulate = 3;
    assert_n_ranks_train_what_one_does(&spec, &many_stores(), "an ensemble with factors");
    spec.network.layers = vec![Layer::Dense(4), Layer::Activation(Activation::Mish)];
    spec.network.ensemble_size = EnsembleSize::ONE;
    spec.network.linear = Linear::None;
    assert_n_ranks_train_what_one_does(&spec, &many_stores(), "factors");
}

#[test]
fn a_training_that_was_interrupted_goes_on() {
    let mut spec = small();
    spec.optimizer.ema_momentum = Some(0.9);
    let data = many_stores();
    let fresh = |stop_after| vec![(Origin::Fresh, stop_after), (Origin::Fresh, stop_after)];
    let whole = run(&spec, &data, fresh(None));
    for stop in [1, 13, 21, 30] {
        let states = run(&spec, &data, fresh(Some(stop))).states();
        assert!(states.iter().all(|state| *state == states[0]));
        let resumed = run(&spec, &data, stay(states));
        assert_same_weights(whole.outcome(), resumed.outcome(), 1e-5);
    }
}
