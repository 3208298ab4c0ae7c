//! Training learns, keeps the right epoch, and publishes what it evaluated.

use arrow::array::{AsArray, Float32Array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Float32Type, Float64Type};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{Keep, LabelTransform, Loss, Output, TrainSpec};

use crate::testing::{model, rows, spec, train_split};

fn evaluated(batch: &RecordBatch) -> RecordBatch {
    let parts = batch["part"]
        .as_string::<i32>()
        .iter()
        .map(|part| Some(part == Some("EVAL")));
    filter_record_batch(batch, &parts.collect()).unwrap()
}

fn mean_absolute_error(labels: &RecordBatch, predictions: &Float32Array, ln: bool) -> f64 {
    let labels = labels["sales"].as_primitive::<Float64Type>();
    let scale = |y: f64| if ln { y.ln() } else { y };
    let errors = labels.values().iter().zip(predictions.values());
    let errors = errors.map(|(y, p)| (scale(*y) - scale(f64::from(*p))).abs());
    errors.sum::<f64>() / labels.len() as f64
}

#[test]
fn the_loss_falls_and_predictions_are_those_that_were_evaluated() {
    let data = rows(0..1500);
    for (transform, output) in [
        (LabelTransform::Identity, Output::Identity),
        (LabelTransform::Ln, Output::ScaledSigmoid),
    ] {
        let mut spec = TrainSpec {
            epochs: 25,
            keep: Keep::Best,
            ..spec()
        };
        spec.label.transform = transform;
        spec.network.output = output;
        spec.network.dropout = 0.05;
        let outcomes = train_split(&spec, &data, 2);
        let manifest = &outcomes[0].artifacts.as_ref().unwrap().manifest;

        let first = manifest.history[0].loss;
        let best = manifest.history[manifest.kept_epoch - 1].clone();
        assert!(
            best.eval_loss.unwrap() < first / 20.0,
            "{:?}",
            manifest.history
        );
        assert!(
            manifest
                .history
                .iter()
                .all(|e| e.eval_loss >= best.eval_loss)
        );
        assert_eq!(best, outcomes[1].report.kept);

        let evaluated = evaluated(&data);
        let predictions = model(&outcomes).predict(&evaluated).unwrap();
        let ln = transform == LabelTransform::Ln;
        let mae = mean_absolute_error(&evaluated, predictions.as_primitive::<Float32Type>(), ln);
        assert!(
            (mae / best.eval_mae.unwrap() - 1.0).abs() < 1e-4,
            "{mae}, {best:?}"
        );
    }
}

#[test]
fn a_network_of_one_kind_of_feature_learns() {
    for categorical in [true, false] {
        let mut spec = TrainSpec {
            epochs: 15,
            loss: Loss::Mae,
            ..spec()
        };
        let continuous = |name: &str| ["distance", "trend"].contains(&name);
        spec.features
            .retain(|feature| continuous(&feature.column) != categorical);
        spec.network.batch_norm = !categorical;
        spec.network.hidden_units.truncate(1);
        let outcomes = train_split(&spec, &rows(0..300), 2);
        let history = &outcomes[0].artifacts.as_ref().unwrap().manifest.history;
        assert!(history[14].loss < history[0].loss / 2.0, "{history:?}");
        assert_eq!(
            model(&outcomes).predict(&rows(0..2100)).unwrap().len(),
            2100
        );
    }
}

#[test]
fn a_linear_model_learns() {
    let mut spec = TrainSpec {
        epochs: 40,
        l2: 0.0,
        ..spec()
    };
    spec.network.hidden_units.clear();
    let outcomes = train_split(&spec, &rows(0..300), 1);
    let history = &outcomes[0].artifacts.as_ref().unwrap().manifest.history;
    assert!(history[39].loss < history[0].loss / 10.0, "{history:?}");
}
