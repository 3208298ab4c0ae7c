//! Tests of linear models, and of the feature values that have their own weight.

use std::sync::Arc;

use arrow::array::{AsArray, Float64Array, StringArray};
use arrow::datatypes::Float64Type;
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{Keep, Linear, Loss, NumericTransform, Rule, TrainSpec, VocabularyRule};

use super::worlds::{assert_same_weights, weights};
use crate::testing::{
    Seat, classifier, load_now, model, rows, shards, spec, told_apart, train_emulated, train_seats,
    train_split,
};
use crate::{Origin, Outcome};

/// Returns the spec's linear model, with L-BFGS as its optimizer.
pub(super) fn linear(mut spec: TrainSpec) -> TrainSpec {
    spec.network.linear = Linear::Alone;
    spec.network.layers.clear();
    spec.network.batch_norm = false;
    spec.numeric_transform = NumericTransform::Standardize;
    spec.optimizer.rule = Rule::Lbfgs { memory: 10 };
    TrainSpec {
        batch_size: None,
        epochs: None,
        keep: Keep::Last,
        l2: Some(0.0),
        ..spec
    }
}

fn converged(outcomes: &[Outcome]) {
    let history = &outcomes[0].artifacts.as_ref().unwrap().manifest.history;
    let ended = history.last().unwrap().ended.as_deref();
    assert_eq!(
        ended,
        Some("converged: the gradient is close to zero"),
        "{} epochs",
        history.len()
    );
}

#[test]
fn labels_that_are_linear_are_met_exactly() {
    let mut spec = linear(spec());
    spec.label.standardize = true;
    let outcomes = train_split(&spec, &rows(0..600), 1);
    converged(&outcomes);
    let kept = &outcomes[0].report.kept;
    assert!(kept.eval_r2.unwrap() > 0.99999, "{kept:?}");
    let unseen = rows(600..900);
    let predicted = model(&outcomes).predict(&unseen).unwrap();
    let predicted = predicted[0].as_primitive::<Float64Type>();
    let sales = unseen["sales"].as_primitive::<Float64Type>();
    let known = sales.iter().zip(predicted.values());
    for (sales, predicted) in known.filter_map(|(sales, y)| Some((sales?, *y))) {
        assert!((sales - predicted).abs() < 1e-2, "{sales}, {predicted}");
    }
}

#[test]
fn classes_are_told_apart_as_far_as_the_penalty_lets_them() {
    for bounds in [&[3.0][..], &[2.7, 3.4]] {
        let data = told_apart(&rows(0..600), bounds);
        let of = |l2| {
            let spec = TrainSpec {
                l2,
                ..linear(classifier())
            };
            let outcomes = train_split(&spec, &data, 1);
            converged(&outcomes);
            outcomes[0].report.kept.clone()
        };
        let (little, much) = (of(None), of(Some(1.0)));
        assert!(little.eval_accuracy.unwrap() > 0.9, "{little:?}");
        assert!(much.eval_loss > little.eval_loss, "{much:?}");
    }
}

#[test]
fn a_step_to_where_there_is_no_loss_is_taken_back() {
    // One row has so large a value of a feature that the first curvature says nothing about it.
    let data = rows(0..300);
    let trend = data["trend"].as_primitive::<Float64Type>().iter();
    let trend = trend.enumerate().map(|(at, x)| match at {
        7 => Some(1e5),
        _ => x,
    });
    let at = data.schema().index_of("trend").unwrap();
    let mut columns = data.columns().to_vec();
    columns[at] = Arc::new(trend.collect::<Float64Array>());
    let data = RecordBatch::try_new(data.schema(), columns).unwrap();
    for power in [1.0, 1.5, 2.0] {
        let mut spec = linear(spec());
        spec.loss = Loss::Tweedie { power };
        spec.label.standardize = true;
        spec.numeric_transform = NumericTransform::None;
        let one = train_split(&spec, &data, 1);
        let history = &one[0].artifacts.as_ref().unwrap().manifest.history;
        let (first, last) = (history[0].loss, history.last().unwrap().loss);
        assert!(last < first, "power {power}: {first} to {last}");
        let two = train_split(&spec, &data, 2);
        assert_eq!(
            two[0].report.kept.loss.is_finite(),
            one[0].report.kept.loss.is_finite()
        );
    }
}

#[test]
fn weights_go_with_their_values_to_another_training_and_unseen_ones_are_their_mean() {
    let spec = linear(spec());
    let old = train_split(&spec, &rows(0..300), 1);
    let warm = Seat {
        origin: Origin::Warm(model(&old)),
        ..Seat::fresh(load_now(&spec, shards(&rows(0..300), spec.shards)))
    };
    let again = train_seats(&spec, vec![warm]).remove(0).unwrap();
    // The solution is where training stays.
    let epochs = again.artifacts.as_ref().unwrap().manifest.history.len();
    assert!(epochs < old[0].report.epochs, "{epochs}");
    assert_same_weights(&old[0], &again, 1e-2);
    let all = weights(&old[0]);
    let values = &all
        .iter()
        .find(|(name, _)| name == "linear.values")
        .unwrap()
        .1;
    // Unseen stores, then seven stores; the weight of unseen ones is the mean of these, weighted by rows.
    let (unseen, stores) = (values[0], &values[1..8]);
    let (least, most) = stores
        .iter()
        .fold((f32::MAX, f32::MIN), |(least, most), w| {
            (least.min(*w), most.max(*w))
        });
    assert!(least < unseen && unseen < most, "{unseen} of {stores:?}");
}

#[test]
fn n_ranks_solve_what_one_does() {
    let wide = |mut spec: TrainSpec| {
        spec.network.linear = Linear::Beside;
        TrainSpec {
            epochs: Some(3),
            ..spec
        }
    };
    let classes = told_apart(&rows(0..300), &[2.7, 3.4]);
    let logistic = TrainSpec {
        l2: Some(1e-2),
        ..linear(classifier())
    };
    for (spec, data, tolerance) in [
        (linear(spec()), rows(0..300), 1e-2),
        (logistic, classes, 1e-2),
        (wide(spec()), rows(0..300), 1e-5),
    ] {
        let [one, two, five] = [1, 2, 5].map(|ranks| {
            let spec = TrainSpec {
                batch_size: spec
                    .batch_size
                    .map(|_| volley_proto::spec::BatchSize::Global { global: 30 }),
                ..spec.clone()
            };
            train_split(&spec, &data, ranks)
        });
        let device = train_emulated(&spec, &data, 1);
        for many in [&two, &five].into_iter().chain(&device) {
            assert_same_weights(&one[0], &many[0], tolerance);
            let losses = [&one, many].map(|all| all[0].report.kept.eval_loss.unwrap());
            assert!(
                (losses[0] - losses[1]).abs() < 1e-4 * (1.0 + losses[0]),
                "{losses:?}"
            );
        }
    }
}

#[test]
fn training_rows_are_evaluated_as_the_model_predicts_them() {
    // The evaluation rows are copies of the training rows.
    let data = rows(0..600);
    let train = data["part"].as_string::<i32>().iter();
    let train = train.map(|part| Some(part == Some("TRAIN"))).collect();
    let train = arrow::compute::filter_record_batch(&data, &train).unwrap();
    let mut columns = train.columns().to_vec();
    let at = train.schema().index_of("part").unwrap();
    columns[at] = Arc::new(StringArray::from(vec!["EVAL"; train.num_rows()]));
    let again = RecordBatch::try_new(train.schema(), columns).unwrap();
    let data = arrow::compute::concat_batches(&train.schema(), [&train, &again]).unwrap();
    for keep in [Keep::Best, Keep::Last] {
        let spec = TrainSpec {
            epochs: Some(4),
            keep,
            ..spec()
        };
        for outcome in train_split(&spec, &data, 2) {
            let report = outcome.report;
            let loss = report.kept.eval_loss.unwrap();
            assert!(
                (report.eval_train_loss / loss - 1.0).abs() < 1e-6,
                "{report:?}"
            );
        }
    }
}

#[test]
fn rare_values_share_a_code_and_hashed_ones_a_bucket() {
    // Of seven stores, those with the fewest rows share a code.
    let data = rows(0..300);
    let kinds = |vocabulary| {
        let spec = TrainSpec {
            vocabulary,
            epochs: Some(1),
            ..spec()
        };
        let [one, two] = [1, 2].map(|ranks| train_split(&spec, &data, ranks));
        let of = |outcomes: &[Outcome]| {
            let manifest = &outcomes[0].artifacts.as_ref().unwrap().manifest;
            let features = manifest.features.iter();
            let all = features.filter_map(|feature| feature.vocabulary);
            assert_eq!(
                model(outcomes).predict(&rows(0..900)).unwrap()[0].len(),
                900
            );
            all.collect::<Vec<_>>()
        };
        assert_eq!(of(&one), of(&two));
        of(&one)
    };
    let values = |min_frequency, most| VocabularyRule::Values {
        min_frequency,
        most,
    };
    // Stores; kinds and null; days.
    assert_eq!(kinds(values(0, None)), [7, 4, 5]);
    assert_eq!(kinds(values(0, Some(3))), [3, 4, 3]);
    assert_eq!(kinds(values(1000, None)), [0, 1, 0]);
    assert_eq!(kinds(VocabularyRule::Buckets(4)), [4, 5, 4]);
}
