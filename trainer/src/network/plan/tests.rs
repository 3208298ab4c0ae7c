//! Tests that count launches, reads and writes of a step on the emulated device.

use std::rc::Rc;

use volley_proto::spec::{
    Activation, AdamForm, EmbeddingWidth, EnsembleSize, Layer, Linear, Loss, Network,
    NumericEmbedding, Output, Rule,
};

use super::*;
use crate::device::Emulated;
use crate::network::{Normalization, Sizes};
use crate::random::{Key, Purpose};
use crate::testing::custom_layers;

pub(super) const ROWS: usize = 90;
const STEP: usize = 30;
pub(super) const FEATURES: usize = 18;

/// Builds the network of the Rossmann example, with narrower layers.
pub(super) fn rossmann(members: usize) -> Architecture {
    let network = Network {
        embedding_dim: EmbeddingWidth::Same(10),
        batch_norm: true,
        numeric_embedding: NumericEmbedding::None,
        layers: Layer::stack(&[40, 40, 40, 20], Activation::Relu, &[0.5; 4]),
        output: Output::ScaledSigmoid,
        linear: Linear::None,
        factors: 0,
        ensemble_size: EnsembleSize::Of(members),
    };
    let sizes = Sizes {
        codes: vec![9; FEATURES],
        continuous: FEATURES,
        bins: vec![vec![]; FEATURES],
        outputs: 1,
        rows: ROWS as u64,
    };
    let columns = ["feature"; FEATURES];
    Architecture::of(&network, &columns, &sizes, 12.8, &custom_layers()).unwrap()
}

/// Rows of one shard.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) codes: Vec<u32>,
    pub(super) continuous: Vec<f32>,
    pub(super) labels: Vec<f32>,
    pub(super) keys: Vec<u64>,
}

/// Source of rows that are not asked for, since the device holds them.
#[derive(Debug)]
pub(super) struct Nothing;

impl RowSource for Nothing {
    fn gather(&self, steps: std::ops::Range<usize>, _: RowsMut<'_>) {
        panic!("the rows of {steps:?} are on the device");
    }
}

pub(super) fn rows() -> Rows {
    let key = Key::new(3, Purpose::Sample);
    let draw = |at: usize| key.at(at as u64);
    let codes = (0..ROWS * FEATURES).map(|at| ((at % FEATURES) * 9) as u32 + (draw(at) % 9) as u32);
    let numbers = (0..ROWS * FEATURES).map(|at| (draw(at) % 1000) as f32 / 300.0);
    Rows {
        codes: codes.collect(),
        continuous: numbers.collect(),
        labels: (0..ROWS)
            .map(|at| 8.0 + (draw(at) % 100) as f32 / 50.0)
            .collect(),
        keys: (0..ROWS).map(draw).collect(),
    }
}

pub(super) const RULE: Rule = Rule::Adam {
    beta_1: 0.9,
    beta_2: 0.999,
    epsilon: 1e-3,
    form: AdamForm::Keras,
    weight_decay: 0.0,
};

/// Returns a plan that holds rows and has begun an epoch, with the optimizer state.
pub(super) fn begun(runtime: &Rc<dyn Runtime>, members: usize, spoil: f32) -> (Plan, Vec<Slot>) {
    let architecture = rossmann(members);
    let device = PlanDevice {
        runtime: Rc::clone(runtime),
        factors: Factors::F32,
    };
    let values = architecture.initial_values(1);
    let len = values.iter().map(Vec::len).sum();
    let mut plan = Plan::new(&architecture, values, &device).unwrap();
    let slots = [0, 1].map(|_| plan.upload(vec![0.0; len]).unwrap());
    let shift = [1.5; FEATURES];
    let objective = Objective {
        loss: &Loss::Mae,
        loss_weights: &[],
        labels: 1,
        trained: members,
        unit: 1.0,
        rule: &RULE,
        averages: false,
        shift: &shift,
        accumulate: 1,
        rows: STEP,
        evaluated: STEP,
    };
    let mut rows = rows();
    // The last row is in the last step.
    rows.labels[ROWS - 1] += spoil;
    let rows = ShardRows {
        codes: &rows.codes,
        numbers: &rows.continuous,
        labels: &rows.labels,
        keys: &rows.keys,
        ..ShardRows::default()
    };
    assert!(plan.hold(&[rows], &objective).unwrap());
    let update = Update {
        rule: &RULE,
        learn_rate: 1e-3,
        steps: 1,
        l1: 0.0,
        l2: 5e-5,
        clip_norm: None,
        clip_value: None,
        kept: None,
    };
    let order: Vec<u32> = (0..ROWS as u32).collect();
    let starts: Vec<u32> = (0..=ROWS / STEP).map(|step| (step * STEP) as u32).collect();
    let dropouts: Vec<u64> = (0..architecture.dropouts().len() as u64).collect();
    let epoch = EpochRows {
        order: &order,
        starts: &starts,
        numbers: &[update.numbers(); ROWS / STEP],
        dropouts: &dropouts,
        running: &Normalization::unit(FEATURES),
        step: 0,
    };
    let before = runtime.counters().get();
    plan.begin(&epoch).unwrap();
    let after = runtime.counters().get();
    assert_eq!(after.writes - before.writes, 1, "an epoch is one upload");
    assert_eq!(after.reads, before.reads);
    (plan, slots.to_vec())
}

#[test]
fn a_step_is_a_replay_of_few_launches_and_nothing_is_read_in_it() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let recorded = [1, 8].map(|members| {
        let (mut plan, slots) = begun(&runtime, members, 0.0);
        plan.run(1, &slots, &Nothing).unwrap();
        let before = runtime.counters().get();
        let totals = plan.run(ROWS, &slots, &Nothing).unwrap();
        let after = runtime.counters().get();
        assert_eq!(totals.len(), ROWS / STEP - 1, "what is left of the epoch");
        assert_eq!(after.replays - before.replays, totals.len() as u64);
        assert_eq!(after.launches, before.launches);
        assert_eq!(after.writes, before.writes);
        // The totals of all steps are read once, at their end.
        let bytes = totals.len() * size_of::<StepTotal>();
        assert_eq!(after.reads - before.reads, 1);
        assert_eq!(after.bytes_read - before.bytes_read, bytes as u64);
        after.recorded
    });
    assert_eq!(recorded[0], recorded[1], "members are lanes");
    assert!(recorded[0] <= 30, "{} launches", recorded[0]);
}

#[test]
fn a_step_without_a_loss_changes_nothing_and_nor_do_those_after_it() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let (mut plan, slots) = begun(&runtime, 1, f32::INFINITY);
    plan.run(2, &slots, &Nothing).unwrap();
    let (weights, running) = (plan.values().unwrap(), plan.running().unwrap());
    let kept: Vec<_> = slots
        .iter()
        .cloned()
        .map(|slot| Plan::download(slot).unwrap())
        .collect();
    let totals = plan.run(1, &slots, &Nothing).unwrap();
    assert_eq!((totals[0].taken, totals[0].loss), (0, f64::INFINITY));
    assert_eq!(plan.values().unwrap(), weights);
    assert_eq!(plan.running().unwrap(), running);
    let after: Vec<_> = slots
        .iter()
        .cloned()
        .map(|slot| Plan::download(slot).unwrap())
        .collect();
    assert_eq!(after, kept);
}

#[test]
fn a_step_accounts_for_its_rows_and_moments_are_those_of_the_host() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let (mut plan, slots) = begun(&runtime, 1, 0.0);
    let totals = plan.run(ROWS, &slots, &Nothing).unwrap();
    let rows = rows();
    let mut running = Normalization::unit(FEATURES);
    for (step, total) in totals.iter().enumerate() {
        assert_eq!((total.rows, total.weight), (STEP as f64, STEP as f64));
        let keys = rows.keys[step * STEP..][..STEP].iter();
        assert_eq!(total.checksum, keys.copied().fold(0, u64::wrapping_add));
        let mut moments = crate::network::Moments::around(vec![1.5; FEATURES], 0);
        let numbers = &rows.continuous[step * STEP * FEATURES..][..STEP * FEATURES];
        moments.sum(STEP, numbers);
        running.follow(&moments.normalization());
    }
    let found = plan.running().unwrap();
    for (due, found) in [
        (&running.mean, &found.mean),
        (&running.variance, &found.variance),
    ] {
        let near = due
            .iter()
            .zip(found)
            .all(|(due, found)| (due - found).abs() < 1e-12);
        assert!(near, "{due:?}, {found:?}");
    }
}

#[test]
fn memory_is_given_back() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    for _ in 0..3 {
        let (mut plan, slots) = begun(&runtime, 2, 0.0);
        plan.run(2, &slots, &Nothing).unwrap();
        assert!(runtime.counters().get().bytes_held > 0);
        drop((plan, slots));
        assert_eq!(runtime.counters().get().bytes_held, 0);
    }
}
