//! Tests that count launches, reads and writes of a step on the emulated device.

use std::ops::Range;
use std::rc::Rc;
use std::sync::mpsc;

use volley_proto::spec::{
    Activation, AdamForm, EmbeddingWidth, EnsembleSize, Layer, Linear, Loss, Network,
    NumericEmbedding, Output, Rule,
};

use super::*;
use crate::device::Emulated;
use crate::network::{Attributions, Normalization, Scratch, Sizes, attribute};
use crate::random::{Key, Purpose};
use crate::testing::{custom_layers, squash};

pub(super) const ROWS: usize = 90;
const STEP: usize = 30;
pub(super) const FEATURES: usize = 18;

/// Builds the network of the Rossmann example, with narrower layers.
pub(super) fn rossmann(members: usize) -> Architecture {
    let layers = Layer::stack(&[40, 40, 40, 20], Activation::Relu, &[0.5; 4]);
    rossmann_with(members, layers)
}

/// Builds it with other layers.
fn rossmann_with(members: usize, layers: Vec<Layer>) -> Architecture {
    let network = Network {
        embedding_dim: EmbeddingWidth::Same(10),
        batch_norm: true,
        numeric_embedding: NumericEmbedding::None,
        layers,
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

const RULE: Rule = Rule::Adam {
    beta_1: 0.9,
    beta_2: 0.999,
    epsilon: 1e-3,
    form: AdamForm::Keras,
    weight_decay: 0.0,
};

pub(super) const UPDATE: Update<'static> = Update {
    rule: &RULE,
    learn_rate: 1e-3,
    steps: 1,
    l1: 0.0,
    l2: 5e-5,
    clip_norm: None,
    clip_value: None,
    kept: None,
};

pub(super) const OBJECTIVE: Objective<'static> = Objective {
    loss: &Loss::Mae,
    loss_weights: &[],
    labels: 1,
    trained: 1,
    unit: 1.0,
    rule: &RULE,
    averages: false,
    shift: &[1.5; FEATURES],
    accumulate: 1,
    rows: STEP,
    evaluated: STEP,
    linked: None,
};

/// Returns a plan that holds rows and has begun an epoch, with the optimizer state.
pub(super) fn begun(runtime: &Rc<dyn Runtime>, members: usize, spoil: f32) -> (Plan, Vec<Slot>) {
    let all = 0..ROWS;
    begun_with(
        runtime,
        &rossmann(members),
        spoil,
        std::slice::from_ref(&all),
        0,
        false,
    )
}

/// Returns such a plan of some rows by shard, each of which gives a third of its rows to each step. The first shard has
/// the number `first`.
fn begun_with(
    runtime: &Rc<dyn Runtime>,
    architecture: &Architecture,
    spoil: f32,
    shards: &[Range<usize>],
    first: usize,
    is_linked: bool,
) -> (Plan, Vec<Slot>) {
    let count: usize = shards.iter().map(Range::len).sum();
    let steps = ROWS / STEP;
    let device = PlanDevice {
        runtime: Rc::clone(runtime),
        factors: Factors::F32,
    };
    let values = architecture.initial_values(1);
    let len = values.iter().map(Vec::len).sum();
    let mut plan = Plan::new(architecture, values, &device).unwrap();
    let slots = [0, 1].map(|_| plan.upload(vec![0.0; len]).unwrap());
    let objective = Objective {
        trained: architecture.members,
        rows: count / steps,
        linked: is_linked.then_some(2),
        ..OBJECTIVE
    };
    let mut rows = rows();
    // The last row is in the last step.
    rows.labels[ROWS - 1] += spoil;
    let shard = |(at, span): (usize, &Range<usize>)| ShardRows {
        shard: first + at,
        codes: &rows.codes[span.start * FEATURES..span.end * FEATURES],
        numbers: &rows.continuous[span.start * FEATURES..span.end * FEATURES],
        labels: &rows.labels[span.clone()],
        keys: &rows.keys[span.clone()],
        ..ShardRows::default()
    };
    let of_shards: Vec<_> = shards.iter().enumerate().map(shard).collect();
    assert!(plan.hold(&of_shards, &objective).unwrap());
    let starts = shards.iter().scan(0, |end, span| {
        let start = *end;
        *end += span.len();
        Some((start, span.len() / steps))
    });
    let starts: Vec<_> = starts.collect();
    let of_step = |step: usize| {
        let of_shard = move |(start, each): &(usize, usize)| {
            let from = start + step * each;
            (from as u32)..(from + each) as u32
        };
        starts.iter().flat_map(of_shard)
    };
    let order: Vec<u32> = (0..steps).flat_map(of_step).collect();
    let each = count / steps;
    let starts: Vec<u32> = (0..=steps).map(|step| (step * each) as u32).collect();
    let dropouts: Vec<u64> = (0..architecture.dropouts().len() as u64).collect();
    let epoch = EpochRows {
        order: &order,
        starts: &starts,
        numbers: &[UPDATE.numbers(); ROWS / STEP],
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
fn a_custom_layer_costs_two_reads_and_two_writes_in_a_step() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let layers = |width: usize| {
        let stack = Layer::stack(&[20], Activation::Relu, &[0.5]);
        let beside = Layer::Concat(vec![vec![squash(width, 2.0)], vec![]]);
        [stack, vec![beside, squash(width, 0.5)]].concat()
    };
    for members in [1, 3] {
        let architecture = rossmann_with(members, layers(6));
        let all = 0..ROWS;
        let shards = std::slice::from_ref(&all);
        let (mut plan, slots) = begun_with(&runtime, &architecture, 0.0, shards, 0, false);
        plan.run(1, &slots, &Nothing).unwrap();
        let before = runtime.counters().get();
        let totals = plan.run(ROWS, &slots, &Nothing).unwrap();
        let after = runtime.counters().get();
        let steps = totals.len() as u64;
        assert_eq!(steps, (ROWS / STEP) as u64 - 1);
        // Forward and backward, for each of the layers and all members at once.
        let calls = 2 * 2 * steps;
        assert_eq!(after.replays - before.replays, calls + steps);
        assert_eq!(after.launches, before.launches);
        assert_eq!(after.writes - before.writes, calls);
        assert_eq!(after.reads - before.reads, calls + 1);
        // x and the parameters, y, dy, and dx and the parameters' gradient; and the totals.
        let of_layer = |from: usize| {
            let (parameters, x, y) = (from * 6 + 6, STEP * from, STEP * 6);
            ([parameters + x + y, y + parameters + x], 4 * members)
        };
        let bytes = |direction: usize| {
            let layers = [20, 26].map(|from| {
                let (numbers, each) = of_layer(from);
                (numbers[direction] * each) as u64
            });
            layers.iter().sum::<u64>() * steps
        };
        let own = steps * size_of::<StepTotal>() as u64;
        assert_eq!(after.bytes_read - before.bytes_read, bytes(0) + own);
        assert_eq!(after.bytes_written - before.bytes_written, bytes(1));
    }
    assert_eq!(runtime.counters().get().bytes_held, 0);
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
fn buckets_are_handed_over_while_the_device_computes() {
    let Some(device) = Emulated::of(u64::MAX) else {
        return;
    };
    let runtime = Rc::clone(&device) as Rc<dyn Runtime>;
    let counters = || runtime.counters().get();
    for members in [1, 3] {
        let (mut plan, slots) = begun(&runtime, members, 0.0);
        plan.gather(1, &Nothing).unwrap();
        let statistics = Normalization::unit(FEATURES);
        let all = AllRows {
            weight: STEP as f64,
            statistics: &statistics,
        };
        let mut due = vec![0.0; plan.layers.layout.count()];
        let before = counters();
        let loss = plan.backward(&all).unwrap();
        plan.read_gradient(&mut due).unwrap();
        let read_at_once = counters().bytes_read - before.bytes_read;
        let ranges = plan.buckets();
        assert!(ranges.len() > 4, "{ranges:?}");
        let pinned = counters().bytes_pinned;
        let spread = 4 * plan.layers.layout.len() as u64;
        assert!(
            (4 * due.len() as u64..spread + 4096).contains(&pinned),
            "{pinned}"
        );
        for _ in 0..2 {
            let mut found = vec![f32::NAN; due.len()];
            let mut next = ranges.iter();
            let mut left = vec![];
            // The backward pass has normalised the rows of the last one.
            plan.gather(1, &Nothing).unwrap();
            let before = counters();
            let taken = plan.backward_in_buckets(&all, &mut |of_losses, copy| {
                assert_eq!(of_losses, loss);
                copy(&mut found[next.next().unwrap().start..]);
                left.push(device.queued());
            });
            taken.unwrap();
            assert_eq!(found, due);
            let after = counters();
            assert!(after.bytes_read - before.bytes_read <= read_at_once);
            let copies = ranges.len() as u64 + 1;
            assert_eq!(after.reads - before.reads, copies, "buckets and losses");
            assert_eq!(after.bytes_pinned, pinned);
            // At the first bucket, there are copies of others and work before them.
            assert!(left[0] > ranges.len(), "{left:?}");
            assert!(left.is_sorted_by(|more, less| more >= less), "{left:?}");
            assert_eq!(left.last(), Some(&0));
        }
        // Sums go back from the same memory.
        let twice: Vec<f32> = due.iter().map(|number| 2.0 * number).collect();
        let before = counters();
        plan.write_gradient(&twice).unwrap();
        let after = counters();
        assert_eq!(after.writes, before.writes);
        assert_eq!(after.transfers - before.transfers, ranges.len() as u64);
        let mut found = vec![f32::NAN; due.len()];
        plan.read_gradient(&mut found).unwrap();
        assert_eq!(found, twice);
        drop((plan, slots));
        let left = counters();
        assert_eq!((left.bytes_pinned, left.bytes_held), (0, 0));
    }
}

#[test]
fn a_device_whose_host_pins_no_memory_has_no_buckets() {
    let Some(device) = Emulated::of(u64::MAX) else {
        return;
    };
    device.spoilt.set(Some(Emulated::PIN));
    let runtime = Rc::clone(&device) as Rc<dyn Runtime>;
    let (mut plan, _slots) = begun(&runtime, 1, 0.0);
    assert!(plan.buckets().is_empty());
    let due: Vec<f32> = (0..plan.layers.layout.count())
        .map(|at| at as f32)
        .collect();
    plan.write_gradient(&due).unwrap();
    let mut found = vec![0.0; due.len()];
    plan.read_gradient(&mut found).unwrap();
    assert_eq!(found, due);
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

/// Runs `body` with two plans on linked devices, each in a thread of its own with half of the rows.
fn linked<R: Send>(
    spoil: f32,
    body: impl Fn(usize, &Rc<dyn Runtime>, Plan, Vec<Slot>) -> R + Sync,
) -> Option<Vec<R>> {
    let id = Emulated::find()?.link_id().unwrap();
    let (id, body) = (&id, &body);
    Some(std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            scope.spawn(move || {
                let runtime = Emulated::find().unwrap();
                runtime.join(id, rank, 2).unwrap();
                wait(&*runtime);
                let half = rank * ROWS / 2..(rank + 1) * ROWS / 2;
                // The last row is of rank 1.
                let spoil = if rank == 1 { spoil } else { 0.0 };
                let (plan, slots) = begun_with(&runtime, &rossmann(1), spoil, &[half], rank, true);
                body(rank, &runtime, plan, slots)
            })
        });
        let ends = ranks.map(|rank| rank.join().unwrap());
        ends.into_iter().collect()
    }))
}

/// Waits until a device is done.
fn wait(runtime: &dyn Runtime) {
    let start = std::time::Instant::now();
    while !runtime.is_done().unwrap() {
        assert!(start.elapsed().as_secs() < 60, "its peer has not come");
        std::thread::yield_now();
    }
}

/// Returns a batch of these rows.
fn input(rows: &Rows, count: usize) -> Input {
    Input {
        rows: count,
        codes: rows.codes[..count * FEATURES].to_vec(),
        continuous: rows.continuous[..count * FEATURES].to_vec(),
        dropout: vec![],
    }
}

#[test]
fn a_step_of_linked_devices_is_one_replay_in_which_nothing_is_read() {
    let Some(found) = linked(0.0, |_, runtime, mut plan, slots| {
        plan.queue(1, &slots).unwrap();
        wait(&**runtime);
        let mut totals = plan.totals(1).unwrap();
        let before = runtime.counters().get();
        plan.queue(2, &slots).unwrap();
        wait(&**runtime);
        let after = runtime.counters().get();
        assert_eq!(after.replays - before.replays, 2);
        assert_eq!(after.launches, before.launches);
        assert_eq!((after.reads, after.writes), (before.reads, before.writes));
        assert!(after.recorded <= 34, "{} launches", after.recorded);
        totals.extend(plan.totals(2).unwrap());
        let after = runtime.counters().get();
        assert_eq!(after.reads - before.reads, 1, "the totals of both steps");
        (plan.values().unwrap(), plan.running().unwrap(), totals)
    }) else {
        return;
    };
    let alone = Emulated::find().unwrap();
    let halves = [0..ROWS / 2, ROWS / 2..ROWS];
    let (mut plan, slots) = begun_with(&alone, &rossmann(1), 0.0, &halves, 0, false);
    let due = plan.run(ROWS, &slots, &Nothing).unwrap();
    let values = plan.values().unwrap().concat();
    for (found, _, _) in &found {
        let apart = found.concat().into_iter().zip(&values);
        let apart = apart.map(|(found, due)| (found - due).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 1e-5, "{apart}");
    }
    let [own, other] = &found[..] else {
        panic!("two ranks");
    };
    assert_eq!(own.0, other.0, "the same bits");
    assert_eq!(own.1, other.1);
    for (step, due) in due.iter().enumerate() {
        let [own, other] = [own.2[step], other.2[step]];
        assert_eq!((own.rows, own.weight), (due.rows, due.weight));
        assert_eq!((own.checksum, own.taken), (due.checksum, 1));
        assert_eq!((own.loss, own.checksum), (other.loss, other.checksum));
        assert!((own.loss / due.loss - 1.0).abs() < 1e-5);
        assert_eq!([own.own_rows, other.own_rows], [STEP as f64 / 2.0; 2]);
        let both = own.own_checksum.wrapping_add(other.own_checksum);
        assert_eq!(both, due.checksum);
    }
}

#[test]
fn a_step_without_a_loss_on_one_linked_device_changes_nothing_on_both() {
    let Some(found) = linked(f32::INFINITY, |_, runtime, mut plan, slots| {
        plan.queue(2, &slots).unwrap();
        wait(&**runtime);
        plan.totals(2).unwrap();
        let values = plan.values().unwrap();
        plan.queue(1, &slots).unwrap();
        wait(&**runtime);
        let total = plan.totals(1).unwrap()[0];
        assert_eq!((total.taken, total.loss), (0, f64::INFINITY));
        assert_eq!(plan.values().unwrap(), values);
        values
    }) else {
        return;
    };
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_turn_that_a_peer_leaves_is_undone() {
    let (gone, is_gone) = mpsc::channel();
    let is_gone = std::sync::Mutex::new(is_gone);
    linked(0.0, |rank, runtime, mut plan, slots| {
        plan.queue(1, &slots).unwrap();
        wait(&**runtime);
        plan.totals(1).unwrap();
        let kept = |plan: &Plan| {
            let slots = slots.iter().cloned();
            let slots: Vec<_> = slots.map(|slot| Plan::download(slot).unwrap()).collect();
            (plan.values().unwrap(), slots)
        };
        let before = kept(&plan);
        if rank == 1 {
            runtime.leave().unwrap();
            gone.send(()).unwrap();
            return;
        }
        plan.queue(2, &slots).unwrap();
        is_gone.lock().unwrap().recv().unwrap();
        assert!(!runtime.is_done().unwrap(), "nothing is summed");
        runtime.leave().unwrap();
        assert!(kept(&plan).0 != before.0, "steps go on with wrong sums");
        plan.undo(&slots).unwrap();
        assert!(kept(&plan) == before);
    });
}

#[test]
fn a_predicted_batch_is_one_upload_and_one_read_and_weights_are_uploaded_once() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let launches = [1, 8].map(|members| {
        let architecture = rossmann(members);
        let values = architecture.initial_values(1);
        let weights = 4 * values.iter().map(Vec::len).sum::<usize>() as u64;
        let device = PlanDevice {
            runtime: Rc::clone(&runtime),
            factors: Factors::F32,
        };
        let counters = || runtime.counters().get();
        let before = counters();
        let mut inference = Inference::new(&architecture, &values, &device).unwrap();
        let written = counters().bytes_written - before.bytes_written;
        assert!((weights..2 * weights).contains(&written), "{written}");
        // No gradient is held.
        let held = counters().bytes_held - before.bytes_held;
        assert!((weights..2 * weights).contains(&held), "{held}");
        let rows = rows();
        inference.predict(&input(&rows, ROWS)).unwrap();
        let held = counters().bytes_held;
        let mut launches = 0;
        for count in [ROWS, 7, ROWS] {
            let before = counters();
            inference.predict(&input(&rows, count)).unwrap();
            let after = counters();
            assert_eq!(after.writes - before.writes, 1);
            assert_eq!(after.reads - before.reads, 1);
            assert_eq!(after.bytes_read - before.bytes_read, 4 * count as u64);
            let most = 4 * (count * (2 * FEATURES + 4) + 64) as u64;
            assert!(after.bytes_written - before.bytes_written <= most);
            assert_eq!(after.bytes_held, held);
            launches = after.launches - before.launches;
        }
        drop(inference);
        assert_eq!(counters().bytes_held, before.bytes_held);
        launches
    });
    assert_eq!(launches[0], launches[1], "members are lanes");
    assert!(launches[0] <= 11, "{launches:?} launches");
}

#[test]
fn a_batch_that_does_not_fit_is_predicted_in_pieces() {
    let Some(unlimited) = Emulated::find() else {
        return;
    };
    let architecture = rossmann(1);
    let values = architecture.initial_values(1);
    let of_all = rows();
    let mut many = Input::default();
    for _ in 0..10 {
        let Input {
            codes, continuous, ..
        } = input(&of_all, ROWS);
        many.rows += ROWS;
        many.codes.extend(codes);
        many.continuous.extend(continuous);
    }
    let predict = |runtime: &Rc<dyn Runtime>| {
        let device = PlanDevice {
            runtime: Rc::clone(runtime),
            factors: Factors::F32,
        };
        let before = runtime.counters().get().reads;
        let mut inference = Inference::new(&architecture, &values, &device)?;
        let found = [(); 2].map(|()| inference.predict(&many));
        let [first, second] = found;
        assert_eq!(first.as_ref().ok(), second.as_ref().ok());
        let reads = runtime.counters().get().reads - before;
        first.map(|outputs| (outputs, reads))
    };
    let (due, reads) = predict(&unlimited).unwrap();
    assert_eq!(reads, 2);
    let on = |bytes| predict(&(Emulated::of(bytes).unwrap() as Rc<dyn Runtime>));
    let few = (1..).map(|kib| on(kib << 10)).find_map(Result::ok);
    let (found, reads) = few.unwrap();
    assert_eq!(found, due);
    // 900 rows are four batches of 256.
    assert_eq!(reads, 2 * 4);
    assert!(matches!(
        on(4 << 10),
        Err(crate::Error::DeviceMemory { .. })
    ));
}

/// Returns the baseline of explanations: the first code of each feature, and numbers that differ from each other.
fn baseline(architecture: &Architecture) -> Input {
    let tables = architecture.tables().first();
    let codes = tables.map_or(&[][..], |table| &table.widths);
    let firsts = codes.iter().scan(0, |end, (codes, _)| {
        let first = *end;
        *end += *codes as u32;
        Some(first)
    });
    Input {
        rows: 1,
        codes: firsts.collect(),
        continuous: (0..architecture.continuous)
            .map(|at| 0.3 * at as f32 - 0.2)
            .collect(),
        dropout: vec![],
    }
}

fn inference(
    runtime: &Rc<dyn Runtime>,
    architecture: &Architecture,
    values: &[Vec<f32>],
) -> crate::Result<Inference> {
    let device = PlanDevice {
        runtime: Rc::clone(runtime),
        factors: Factors::F32,
    };
    Inference::new(architecture, values, &device)
}

#[test]
fn an_explained_batch_is_one_upload_one_replay_a_step_and_one_read() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let launches = [1, 3].map(|members| {
        let architecture = rossmann(members);
        let values = architecture.initial_values(1);
        let weights = 4 * values.iter().map(Vec::len).sum::<usize>() as u64;
        let counters = || runtime.counters().get();
        let before = counters();
        let mut inference = inference(&runtime, &architecture, &values).unwrap();
        let (rows, baseline) = (rows(), baseline(&architecture));
        let mut explain = |count: usize| -> [u64; 3] {
            let before = counters();
            let found = inference.attribute(&input(&rows, count), &baseline, &vec![0; count]);
            assert_eq!(found.unwrap().outputs.len(), count);
            let after = counters();
            assert_eq!(after.reads - before.reads, 1);
            let bytes = 8 * (count * (2 * FEATURES + 2)) as u64;
            assert_eq!(after.bytes_read - before.bytes_read, bytes);
            [
                after.writes - before.writes,
                after.launches - before.launches,
                after.replays - before.replays,
            ]
        };
        explain(12);
        // Weights are uploaded once, for predictions and explanations.
        let written = counters().bytes_written - before.bytes_written;
        assert!(written < 2 * weights, "{written}");
        let held = counters().bytes_held;
        let [writes, launches, replays] = explain(12);
        assert_eq!([writes, replays], [1, 50]);
        // Another number of rows is recorded anew.
        let [writes, more, replays] = explain(7);
        assert_eq!([writes, replays], [1, 50]);
        let recorded = counters().recorded;
        assert_eq!(more, launches);
        assert_eq!(explain(7)[2], 50);
        assert_eq!(counters().bytes_held, held);
        drop(inference);
        assert_eq!(counters().bytes_held, before.bytes_held);
        (launches, recorded)
    });
    assert_eq!(launches[0], launches[1], "members are lanes");
    let (around, step) = launches[0];
    assert!(around <= 24 && step <= 26, "{around} and {step} launches");
}

#[test]
fn a_batch_that_does_not_fit_is_explained_in_pieces() {
    let Some(unlimited) = Emulated::find() else {
        return;
    };
    let architecture = kinds(Kinds::default());
    let values = weights(&architecture);
    let rows = drawn(&architecture, 600);
    let chosen: Vec<usize> = (0..rows.rows).map(|row| row % 2).collect();
    let explain = |runtime: &Rc<dyn Runtime>| -> crate::Result<(Attributions, u64)> {
        let mut inference = inference(runtime, &architecture, &values)?;
        let before = runtime.counters().get().reads;
        let found = inference.attribute(&rows, &baseline(&architecture), &chosen)?;
        Ok((found, runtime.counters().get().reads - before))
    };
    let (due, reads) = explain(&unlimited).unwrap();
    assert_eq!(reads, 1);
    let on = |kib: u64| explain(&(Emulated::of(kib << 10).unwrap() as Rc<dyn Runtime>));
    let few = (1..).map(|at| on(32 * at)).find_map(Result::ok);
    let (found, reads) = few.unwrap();
    assert_eq!(found.inputs, due.inputs);
    assert_eq!(found.outputs, due.outputs);
    assert_eq!(found.baselines, due.baselines);
    // 600 rows are three batches of 256.
    assert_eq!(reads, 3);
    assert!(matches!(on(32), Err(crate::Error::DeviceMemory { .. })));
}

/// Kinds of a network's inputs and parts.
#[derive(Debug, Clone)]
struct Kinds {
    codes: Vec<usize>,
    numbers: usize,
    batch_norm: bool,
    embedding: NumericEmbedding,
    layers: Vec<Layer>,
    output: Output,
    linear: Linear,
    factors: usize,
    members: usize,
    outputs: usize,
}

impl Default for Kinds {
    fn default() -> Self {
        Self {
            codes: vec![4, 3],
            numbers: 3,
            batch_norm: true,
            embedding: NumericEmbedding::None,
            layers: Layer::stack(&[6, 5], Activation::Mish, &[0.5]),
            output: Output::Identity,
            linear: Linear::Beside,
            factors: 2,
            members: 2,
            outputs: 2,
        }
    }
}

fn kinds(kinds: Kinds) -> Architecture {
    let columns = ["a", "b"];
    let network = Network {
        embedding_dim: EmbeddingWidth::Columns(vec![("a".into(), 2), ("b".into(), 3)]),
        batch_norm: kinds.batch_norm,
        numeric_embedding: kinds.embedding,
        layers: kinds.layers,
        output: kinds.output,
        linear: kinds.linear,
        factors: kinds.factors,
        ensemble_size: EnsembleSize::Of(kinds.members),
    };
    let sizes = Sizes {
        bins: vec![vec![-2.0, -0.5, 0.25, 2.0]; kinds.numbers],
        continuous: kinds.numbers,
        outputs: kinds.outputs,
        rows: 0,
        codes: kinds.codes.clone(),
    };
    let columns = &columns[..kinds.codes.len()];
    Architecture::of(&network, columns, &sizes, 2.5, &custom_layers()).unwrap()
}

/// Returns weights without zeros.
fn weights(architecture: &Architecture) -> Vec<Vec<f32>> {
    let mut values = architecture.initial_values(5);
    for (at, value) in values.iter_mut().flatten().enumerate() {
        *value += 0.2 * ((at * 7 % 11) as f32 / 5.0 - 1.0);
    }
    values
}

/// Returns this many rows, which differ from the baseline in all inputs.
fn drawn(architecture: &Architecture, rows: usize) -> Input {
    let key = Key::new(9, Purpose::Sample);
    let baseline = baseline(architecture);
    let codes = (0..rows).flat_map(|row| {
        let firsts = baseline.codes.iter();
        firsts.map(move |first| first + 1 + (key.at(row as u64) % 2) as u32)
    });
    let numbers = 0..rows * architecture.continuous;
    let numbers = numbers.map(|at| (key.at(at as u64) % 997) as f32 / 300.0 - 1.7);
    Input {
        rows,
        codes: codes.collect(),
        continuous: numbers.collect(),
        dropout: vec![],
    }
}

/// Whatever reads an input first, and whatever inputs there are, members have one gradient by an input together.
#[test]
fn attributions_by_every_kind_of_input_are_the_host_s_and_add_up() {
    let Some(runtime) = Emulated::find() else {
        return;
    };
    let all = Kinds::default();
    let deep = Kinds {
        linear: Linear::None,
        factors: 0,
        ..all.clone()
    };
    let only_numbers = Kinds {
        codes: vec![],
        batch_norm: false,
        ..all.clone()
    };
    let only_codes = Kinds {
        numbers: 0,
        ..all.clone()
    };
    let alone = Kinds {
        linear: Linear::Alone,
        layers: vec![],
        members: 1,
        ..all.clone()
    };
    let mut cases = vec![all.clone(), deep.clone()];
    for output in [Output::Sigmoid, Output::ScaledSigmoid] {
        for linear in [Linear::None, Linear::Beside, Linear::Alone] {
            let is_alone = linear == Linear::Alone;
            cases.push(Kinds {
                output,
                linear,
                outputs: 1,
                members: if is_alone { 1 } else { 3 },
                ..all.clone()
            });
        }
    }
    for embedding in [
        NumericEmbedding::Periodic,
        NumericEmbedding::PiecewiseLinear,
    ] {
        for batch_norm in [false, true] {
            for of in [&all, &only_numbers] {
                cases.push(Kinds {
                    batch_norm,
                    embedding,
                    ..of.clone()
                });
            }
        }
    }
    for of in [only_numbers, only_codes, deep, alone] {
        cases.push(Kinds {
            factors: 0,
            ..of.clone()
        });
        cases.push(of);
    }
    // The first reader of numbers alone, by each member.
    let tail = Layer::Dense(3);
    let inner = vec![Layer::Activation(Activation::Tanh), Layer::Dense(4)];
    for first in [
        Layer::Dense(4),
        Layer::Dropout(0.5),
        Layer::Activation(Activation::Silu),
        Layer::LayerNorm,
        Layer::Cross(2),
        Layer::Residual(inner.clone()),
        Layer::Concat(vec![vec![], inner]),
    ] {
        for codes in [vec![], vec![4, 3]] {
            cases.push(Kinds {
                codes,
                batch_norm: false,
                layers: vec![first.clone(), tail.clone()],
                ..all.clone()
            });
        }
    }
    for of in cases {
        let architecture = kinds(of.clone());
        let values = weights(&architecture);
        let baseline = baseline(&architecture);
        let mut inference = inference(&runtime, &architecture, &values).unwrap();
        for rows in [7, 4] {
            let input = drawn(&architecture, rows);
            let chosen: Vec<usize> = (0..rows).map(|row| row % of.outputs).collect();
            let scratch = &mut Scratch::default();
            let due = attribute(&architecture, &values, &input, &baseline, &chosen, scratch);
            let found = inference.attribute(&input, &baseline, &chosen).unwrap();
            let width = architecture.categorical + architecture.continuous;
            let most = due
                .inputs
                .iter()
                .fold(1.0, |most: f64, x| most.max(x.abs()));
            for (at, (due, found)) in due.inputs.iter().zip(&found.inputs).enumerate() {
                let is_near = (due - found).abs() < 2e-4 * most;
                assert!(is_near, "{of:?}, {at}: {found}, not {due}");
            }
            assert_eq!(found.inputs.len(), rows * width);
            for row in 0..rows {
                let inputs = &found.inputs[row * width..][..width];
                let due = found.outputs[row] - found.baselines[row];
                let sum: f64 = inputs.iter().sum();
                // Where three numbers are equal, their norm jumps, which the points of a path may miss on the host too.
                let jumps = of.layers.first() == Some(&Layer::LayerNorm);
                let is_all = jumps || (sum - due).abs() < 0.02 * (1.0 + due.abs());
                assert!(is_all, "{of:?}, {row}: {sum}, not {due}");
                assert!(inputs.iter().any(|x| x.abs() > 1e-3), "{of:?}: {inputs:?}");
            }
        }
    }
}
