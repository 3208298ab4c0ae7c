//! The trained model does not depend on the number of ranks.

use std::time::Duration;

use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    Activation, AdamForm, BatchSize, ClassWeights, Decay, EmbeddingWidth, EnsembleSize,
    FeatureKind, Layer, Linear, Loss, Network, NumericEmbedding, NumericTransform, Optimizer,
    RateScaling, Rule, Schedule, TrainSpec,
};

use crate::Outcome;
use crate::collective::{Costs, Counters, Network as Wires};
use crate::device::Emulated;
use crate::simulation::{self, Workload};
use crate::testing::{
    Seat, classifier, load_now, load_split, rows, shards, spec, squash, told_apart, train_counted,
    train_emulated, train_seats, train_split, train_spoilt, train_world, two_labels, with_visits,
};
use crate::train::{coverage, fit};

/// Tolerance, relative to the largest weight of a tensor. Summing in another order costs this much in `f32`
/// over twenty steps.
pub(super) const TOLERANCE: f32 = 1e-5;

/// Tolerance if exponentials also come from another library.
const ON_A_DEVICE: f32 = 1e-4;

/// Returns the published weights, by name.
pub(super) fn weights(outcome: &Outcome) -> Vec<(String, Vec<f32>)> {
    let file = &outcome.artifacts.as_ref().unwrap().files[0].1;
    let file = safetensors::SafeTensors::deserialize(file).unwrap();
    let mut all: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            let numbers = match tensor.dtype() {
                safetensors::Dtype::F32 => {
                    let (numbers, _) = tensor.data().as_chunks::<4>();
                    numbers
                        .iter()
                        .map(|bytes| f32::from_le_bytes(*bytes))
                        .collect()
                }
                _ => {
                    let (numbers, _) = tensor.data().as_chunks::<8>();
                    numbers
                        .iter()
                        .map(|bytes| f64::from_le_bytes(*bytes) as f32)
                        .collect()
                }
            };
            (name, numbers)
        })
        .collect();
    all.sort_by(|left, right| left.0.cmp(&right.0));
    all
}

pub(super) fn assert_same_weights(left: &Outcome, right: &Outcome, tolerance: f32) {
    for ((name, left), (other, right)) in weights(left).iter().zip(&weights(right)) {
        assert_eq!((name, left.len()), (other, right.len()));
        let largest = left.iter().fold(0.0_f32, |most, w| most.max(w.abs()));
        for (l, r) in left.iter().zip(right) {
            assert!(
                (l - r).abs() <= tolerance * largest,
                "{name}: {l} and {r}, at most {largest}"
            );
        }
    }
}

/// Returns the spec of three epochs with a global batch of thirty.
fn small(spec: TrainSpec) -> TrainSpec {
    TrainSpec {
        batch_size: Some(BatchSize::Global { global: 30 }),
        epochs: Some(3),
        shards: 10,
        ..spec
    }
}

/// Trains on two ranks; returns the steps, and what a rank's communicator did meanwhile.
fn counted(spec: &TrainSpec, data: &RecordBatch) -> (u64, Counters, Outcome) {
    let seats = load_split(spec, data, 2).into_iter().map(Seat::fresh);
    let mut ended = train_counted(spec, seats.collect());
    assert!(ended.iter().all(|(end, _)| end.is_ok()));
    let (end, counters) = ended.remove(0);
    let outcome = end.unwrap();
    (outcome.report.kept.steps, counters, outcome)
}

#[test]
fn a_step_sums_what_the_simulation_sums() {
    let data = rows(0..900);
    let of = |global| {
        let spec = TrainSpec {
            batch_size: Some(BatchSize::Global { global }),
            epochs: Some(1),
            ..small(spec())
        };
        counted(&spec, &data)
    };
    let ((few, before, outcome), (many, after, _)) = (of(300), of(150));
    let steps = many - few;
    assert!(steps > 0);
    let operations = after.operations - before.operations;
    assert_eq!(operations, 2 * steps, "two sums a step");
    let all = weights(&outcome).into_iter();
    let trained = all.filter(|(name, _)| !["bn.mean", "bn.variance"].contains(&&**name));
    let continuous = spec().count(FeatureKind::Continuous);
    let simulated = simulation::steps(&Workload {
        ranks: 2,
        network: Wires {
            ranks_per_host: 1,
            latency: Duration::ZERO,
            bandwidth: 1e9,
            costs: Costs {
                call: Duration::from_nanos(1),
                send: 0.0,
                receive: 0.0,
                memory: 0.0,
                local_latency: Duration::ZERO,
            },
        },
        moments: 1 + 2 * continuous as usize + coverage::PIECES + 1,
        gradient: trained.map(|(_, weights)| weights.len()).sum::<usize>() + fit::TAIL,
        backward: Duration::ZERO,
        update: Duration::ZERO,
        jitter: 0.0,
        straggler: 1.0,
        steps: 1,
        seed: 1,
    });
    let bytes = after.bytes_sent - before.bytes_sent;
    let due = steps * simulated.unwrap().bytes;
    // Ranks also tell each other times, as text.
    assert!(bytes.abs_diff(due) * 50 < due, "{bytes} bytes, not {due}");
}

pub(super) fn assert_n_ranks_train_what_one_does(spec: &TrainSpec, data: &RecordBatch, what: &str) {
    let one = train_split(spec, data, 1);
    let kept = &one[0].report.kept;
    assert!(kept.loss.is_finite(), "{what}: {kept:?}");
    for threads in [2, 5] {
        let loaded = load_split(spec, data, 1).remove(0);
        let seat = Seat {
            threads: threads.try_into().unwrap(),
            ..Seat::fresh(loaded)
        };
        let many = train_seats(spec, vec![seat]).remove(0).unwrap();
        // The same bits.
        assert_same_weights(&one[0], &many, 0.0);
    }
    for world_size in [2, 5] {
        let many = train_split(spec, data, world_size);
        assert_same_weights(&one[0], &many[0], TOLERANCE);
        let (left, right) = (
            kept.eval_loss.unwrap(),
            many[0].report.kept.eval_loss.unwrap(),
        );
        assert!(
            (left / right - 1.0).abs() < 1e-5,
            "{what}: {left} and {right}"
        );
        let [left, right] = [kept, &many[0].report.kept].map(|kept| kept.eval_accuracy);
        assert_eq!(left, right, "{what}");
    }
    assert_devices_train_what_the_host_does(spec, data, &one, what);
}

/// Checks that a device alone, and several in step, train the same model as `host`.
fn assert_devices_train_what_the_host_does(
    spec: &TrainSpec,
    data: &RecordBatch,
    host: &[Outcome],
    what: &str,
) {
    // Linked, and apart.
    let apart = Some(Emulated::UNLINKED);
    for (world_size, spoilt) in [(1, None), (2, None), (2, apart), (3, None)] {
        let Some(device) = train_spoilt(spec, data, world_size, spoilt) else {
            return;
        };
        assert_same_weights(&host[0], &device[0], ON_A_DEVICE);
        let [left, right] = [host, &device].map(|of| &of[0].report.kept);
        let near = |left: f64, right: f64| (left / right - 1.0).abs() < 1e-4;
        assert!(near(left.loss, right.loss), "{what}: {left:?} {right:?}");
        let [left, right] = [left, right].map(|kept| kept.eval_loss.unwrap());
        assert!(near(left, right), "{what}: {left} and {right}");
    }
}

#[test]
fn n_ranks_classify_as_one_does() {
    for bounds in [&[3.0][..], &[2.7, 3.4]] {
        let data = told_apart(&rows(0..300), bounds);
        let what = format!("{} classes", bounds.len() + 1);
        assert_n_ranks_train_what_one_does(&small(classifier()), &data, &what);
    }
}

#[test]
fn n_ranks_train_several_labels_as_one_does() {
    let data = with_visits(&rows(0..300));
    for loss in [Loss::Mse, Loss::Tweedie { power: 1.5 }] {
        let spec = small(TrainSpec {
            loss,
            ..two_labels()
        });
        let what = format!("two labels, {}", spec.loss);
        assert_n_ranks_train_what_one_does(&spec, &data, &what);
    }
}

#[test]
fn n_ranks_have_every_loss_as_one_does() {
    for loss in [
        Loss::HuberOf { delta: 0.5 },
        Loss::Quantile { share: 0.8 },
        Loss::Quantiles {
            shares: vec![0.1, 0.5, 0.9],
        },
        Loss::Tweedie { power: 1.0 },
        Loss::Tweedie { power: 1.5 },
        Loss::Tweedie { power: 2.0 },
    ] {
        let mut spec = small(TrainSpec { loss, ..spec() });
        spec.label.standardize = true;
        spec.numeric_transform = NumericTransform::Standardize;
        spec.sample_weight = Some("trend".into());
        let what = spec.loss.to_string();
        assert_n_ranks_train_what_one_does(&spec, &rows(0..300), &what);
    }
    let spec = small(TrainSpec {
        loss: Loss::Focal { gamma: 2.0 },
        class_weights: ClassWeights::Balanced,
        ..classifier()
    });
    let data = told_apart(&rows(0..300), &[2.7, 3.4]);
    assert_n_ranks_train_what_one_does(&spec, &data, "focal");
}

/// Returns every rule but Adam.
pub(super) fn other_rules() -> [Rule; 4] {
    [
        Rule::Sgd {
            momentum: 0.9,
            nesterov: true,
        },
        Rule::Adagrad {
            initial_accumulator: 0.1,
            epsilon: 1e-7,
        },
        Rule::RmsProp {
            rho: 0.9,
            momentum: 0.5,
            epsilon: 1e-3,
        },
        Rule::Ftrl {
            initial_accumulator: 0.1,
        },
    ]
}

/// Returns an optimizer with this rule and every other option set.
pub(super) fn optimizer(rule: Rule, decay: Decay, ema_momentum: Option<f64>) -> Optimizer {
    Optimizer {
        learn_rate: 0.01,
        rule,
        schedule: Schedule {
            warmup_epochs: 0.5,
            decay,
            scaling: RateScaling::None,
        },
        clip_norm: Some(0.5),
        clip_value: Some(0.1),
        ema_momentum,
    }
}

#[test]
fn n_ranks_follow_every_optimizer_as_one_does() {
    let adam = Rule::Adam {
        beta_1: 0.9,
        beta_2: 0.95,
        epsilon: 1e-3,
        form: AdamForm::Torch,
        weight_decay: 0.1,
    };
    let decays = [
        Decay::OneCycle,
        Decay::Cosine,
        Decay::Constant,
        Decay::Step {
            epochs: 1,
            factor: 0.5,
        },
        Decay::Plateau {
            patience: 1,
            factor: 0.5,
        },
    ];
    for (rule, decay) in [adam].into_iter().chain(other_rules()).zip(decays) {
        let mut spec = small(spec());
        spec.label.standardize = true;
        spec.numeric_transform = NumericTransform::Standardize;
        spec.l1 = 1e-4;
        let what = rule.name();
        spec.optimizer = optimizer(rule, decay, Some(0.9));
        assert_n_ranks_train_what_one_does(&spec, &rows(0..300), what);
    }
}

#[test]
fn n_ranks_train_what_one_does() {
    let data = rows(0..300); // 210 to train on: 7 steps an epoch
    for loss in [Loss::Mse, Loss::Huber, Loss::Mae] {
        let mut spec = TrainSpec {
            batch_size: Some(BatchSize::Global { global: 30 }),
            epochs: Some(3),
            shards: 10,
            numeric_transform: NumericTransform::Standardize,
            loss,
            ..spec()
        };
        spec.label.standardize = true;
        let one = train_split(&spec, &data, 1);
        assert_eq!(one[0].report.kept.steps, 21);
        for world_size in [2, 3, 5] {
            let many = train_split(&spec, &data, world_size);
            assert_same_weights(&one[0], &many[0], TOLERANCE);
            let (left, right) = (&one[0].report.kept, &many[0].report.kept);
            assert_eq!((left.rows, left.steps), (right.rows, right.steps));
            assert!((left.loss / right.loss - 1.0).abs() < 1e-5);
            assert!(right.compute_seconds + right.reduce_seconds <= right.seconds);
            let (left, right) = (left.eval_loss.unwrap(), right.eval_loss.unwrap());
            assert!((left / right - 1.0).abs() < 1e-5);
            let rows: u64 = many.iter().map(|outcome| outcome.report.train_rows).sum();
            assert_eq!(rows, 210);
            assert!(many[1..].iter().all(|outcome| outcome.artifacts.is_none()));
        }
        assert_devices_train_what_the_host_does(&spec, &data, &one, &spec.loss.to_string());
    }
}

#[test]
fn n_ranks_train_every_layer_as_one_does() {
    let mut spec = TrainSpec {
        batch_size: Some(BatchSize::Global { global: 30 }),
        epochs: Some(2),
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    };
    let dense = |units, activation| vec![Layer::Dense(units), Layer::Activation(activation)];
    let branch = [dense(4, Activation::Silu), vec![Layer::Dropout(0.5)]].concat();
    spec.network = Network {
        embedding_dim: EmbeddingWidth::Auto,
        numeric_embedding: NumericEmbedding::Periodic,
        layers: vec![
            Layer::Cross(1),
            Layer::LayerNorm,
            Layer::Concat(vec![dense(12, Activation::Relu), branch]),
            squash(10, 1.5),
            Layer::Residual(dense(8, Activation::Mish)),
        ],
        linear: Linear::Beside,
        factors: 2,
        ..spec.network
    };
    assert_n_ranks_train_what_one_does(&spec, &rows(0..300), "every layer");
    spec.network.ensemble_size = EnsembleSize::Of(3);
    assert_n_ranks_train_what_one_does(&spec, &rows(0..300), "an ensemble");
    let is_custom = |layer: &Layer| matches!(layer, Layer::Custom { .. });
    spec.network.layers.retain(|layer| !is_custom(layer));
    assert_n_ranks_train_what_one_does(&spec, &rows(0..300), "an ensemble of known layers");
    spec.network.ensemble_size = EnsembleSize::ONE;
    assert_n_ranks_train_what_one_does(&spec, &rows(0..300), "every known layer");
}

#[test]
fn n_ranks_train_what_reads_numbers_as_they_are_as_one_does() {
    let mut spec = small(TrainSpec {
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    });
    spec.features
        .retain(|feature| feature.kind == FeatureKind::Continuous);
    spec.network.batch_norm = false;
    let relu = Layer::Activation(Activation::Relu);
    let branches = vec![
        vec![relu],
        vec![Layer::Dense(8)],
        vec![Layer::Dropout(0.25)],
    ];
    for layers in [vec![Layer::Concat(branches)], vec![Layer::Dense(4)]] {
        spec.network.layers = layers;
        assert_n_ranks_train_what_one_does(&spec, &rows(0..300), "numbers as they are");
    }
}

#[test]
fn n_ranks_rank_and_bin_numbers_as_one_does() {
    let mut spec = small(TrainSpec {
        numeric_transform: NumericTransform::Quantile,
        ..spec()
    });
    assert_n_ranks_train_what_one_does(&spec, &rows(0..300), "ranked");
    spec.network.batch_norm = false;
    spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    spec.network.factors = 2;
    for transform in [NumericTransform::Quantile, NumericTransform::Standardize] {
        spec.numeric_transform = transform;
        assert_n_ranks_train_what_one_does(&spec, &rows(0..300), &format!("binned {transform}"));
        let outcomes = [1, 4].map(|ranks| train_split(&spec, &rows(0..300), ranks));
        let [one, many] = [&outcomes[0], &outcomes[1]]
            .map(|outcomes| &outcomes[0].artifacts.as_ref().unwrap().manifest.features);
        assert_eq!(one, many);
        assert_eq!(
            [1, 4].map(|at: usize| one[at].quantiles.is_some()),
            [transform == NumericTransform::Quantile; 2]
        );
        assert_eq!(one[4].bins.len(), 49);
    }
}

#[test]
fn passes_of_a_step_are_a_step() {
    let data = rows(0..300);
    let spec = |batch_size, accumulate| TrainSpec {
        batch_size: Some(batch_size),
        accumulate,
        epochs: Some(2),
        ..spec()
    };
    let whole = train_split(&spec(BatchSize::Global { global: 30 }, 1), &data, 1);
    for (batch_size, passes, ranks) in [
        (BatchSize::Global { global: 30 }, 4, 1),
        (BatchSize::Global { global: 30 }, 50, 2),
        (BatchSize::OfRank(5), 3, 2),
    ] {
        let parts = train_split(&spec(batch_size, passes), &data, ranks);
        assert_same_weights(&whole[0], &parts[0], TOLERANCE);
        let steps = |outcome: &Outcome| outcome.report.kept.steps;
        assert_eq!(steps(&parts[0]), steps(&whole[0]));
        if let Some(device) = train_emulated(&spec(batch_size, passes), &data, ranks) {
            assert_same_weights(&whole[0], &device[0], ON_A_DEVICE);
        }
    }
}

#[test]
fn the_same_world_trains_the_same_bits() {
    let data = rows(0..150);
    let (once, again) = (
        train_split(&spec(), &data, 2),
        train_split(&spec(), &data, 2),
    );
    assert_same_weights(&once[0], &again[0], 0.0);
}

#[test]
fn ranks_without_rows_take_part() {
    let spec = TrainSpec {
        batch_size: Some(BatchSize::OfRank(10)),
        epochs: Some(2),
        ..spec()
    };
    let mut all = shards(&rows(0..60), 3);
    all.retain(|(_, batches)| !batches.is_empty());
    let lonely = load_now(
        &TrainSpec {
            batch_size: Some(BatchSize::OfRank(40)),
            ..spec.clone()
        },
        all.clone(),
    );
    let one = train_world(
        &TrainSpec {
            batch_size: Some(BatchSize::OfRank(40)),
            ..spec.clone()
        },
        vec![lonely],
    );
    // Rank 0 has no shard, rank 2 an empty one, rank 3 a handful of rows.
    let ranks = [
        vec![],
        vec![all[2].clone()],
        vec![(7, vec![])],
        vec![all[0].clone(), all[1].clone()],
    ];
    let many = train_world(&spec, ranks.map(|shards| load_now(&spec, shards)).into());
    assert_same_weights(
        one[0].as_ref().unwrap(),
        many[0].as_ref().unwrap(),
        TOLERANCE,
    );
    assert_eq!(many[0].as_ref().unwrap().report.train_rows, 0);
}

#[test]
fn fewer_rows_than_ranks_are_enough() {
    let spec = TrainSpec {
        epochs: Some(2),
        batch_size: Some(BatchSize::OfRank(4)),
        ..spec()
    };
    let ranks = (0..5).map(|rank| {
        load_now(
            &spec,
            vec![(rank, vec![rows(rank as u64..rank as u64 + 1)])],
        )
    });
    let outcomes = train_world(&spec, ranks.collect());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn vocabularies_span_ranks_and_parts() {
    let outcomes = train_split(&spec(), &rows(0..200), 3);
    let manifest = &outcomes[0].artifacts.as_ref().unwrap().manifest;
    let sizes: Vec<_> = manifest
        .features
        .iter()
        .map(|feature| feature.vocabulary)
        .collect();
    // Seven stores; a, b, c and null; five days, one of which occurs only in test rows.
    assert_eq!(sizes, [Some(7), None, Some(4), Some(5), None]);
    assert_eq!(manifest.parameters as usize, {
        let table = (7 + 1 + 4 + 1 + 5 + 1) * 4;
        // One of the two numbers may be null.
        table + 2 * 3 + (15 * 24 + 24) + (24 * 16 + 16) + (16 + 1)
    });
}

#[test]
fn a_trace_has_every_rank_and_step() {
    let spec = TrainSpec {
        trace: true,
        epochs: Some(1),
        ..spec()
    };
    let outcomes = train_split(&spec, &rows(0..100), 2);
    let artifacts = outcomes[0].artifacts.as_ref().unwrap();
    let (name, file) = artifacts.files.last().unwrap();
    assert_eq!(*name, "trace.json");
    let file: serde_json::Value = serde_json::from_slice(file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let steps = artifacts.manifest.history[0].steps;
    // Fields that chrome://tracing and Perfetto require of a slice; the other events name tracks.
    for event in events {
        assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64());
        match event["ph"].as_str() {
            Some("X") => assert!(event["ts"].is_u64() && event["dur"].is_u64(), "{event}"),
            Some("M") => assert!(event["args"]["name"].is_string(), "{event}"),
            _ => panic!("{event}"),
        }
    }
    for rank in 0..2 {
        let reductions = events.iter().filter(|event| {
            event["name"] == "all-reduce gradient" && event["tid"].as_u64() == Some(rank)
        });
        assert_eq!(reductions.count() as u64, steps);
    }
}
