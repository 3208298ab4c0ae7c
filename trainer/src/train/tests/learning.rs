//! Training learns, keeps the right epoch, and publishes what it evaluated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{AsArray, Date32Array, Float64Array, StringArray};
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Schema};
use arrow::record_batch::RecordBatch;
use volley_proto::spec::{
    BatchSize, ClassWeights, EarlyStop, EnsembleSize, Keep, LabelTransform, Loss, NumericTransform,
    Output, Refit, Rule, TrainSpec,
};
use volley_proto::store::Classes;

use super::runs::{run, small};
use super::worlds::assert_same_weights;
use crate::testing::{
    Deaf, Seat, classifier, dense, load_split, model, rows, spec, told_apart, train_seats,
    train_split, train_world, two_labels, with_visits,
};
use crate::{Error, Observer, Origin, Step};

fn evaluated(batch: &RecordBatch) -> RecordBatch {
    let parts = batch["part"]
        .as_string::<i32>()
        .iter()
        .map(|part| Some(part == Some("EVAL")));
    filter_record_batch(batch, &parts.collect()).unwrap()
}

fn mean_absolute_error(labels: &RecordBatch, predictions: &Float64Array) -> f64 {
    mean_absolute_error_of("sales", labels, predictions)
}

fn mean_absolute_error_of(label: &str, labels: &RecordBatch, predictions: &Float64Array) -> f64 {
    let labels = labels[label].as_primitive::<Float64Type>();
    let errors = labels.values().iter().zip(predictions.values());
    let errors = errors.map(|(y, p)| (y - p).abs());
    errors.sum::<f64>() / labels.len() as f64
}

/// Turns labels into prices: `times` times the label plus one.
fn prices(batch: &RecordBatch, times: f64) -> RecordBatch {
    let sales = batch["sales"].as_primitive::<Float64Type>();
    let sales = sales.unary::<_, Float64Type>(|y| times * (y + 1.0));
    let at = batch.schema().index_of("sales").unwrap();
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(sales);
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn labels_of_any_size_are_learnt() {
    let spec = |standardize| {
        let mut spec = TrainSpec {
            epochs: Some(12),
            numeric_transform: NumericTransform::Standardize,
            ..spec()
        };
        spec.label.standardize = standardize;
        spec.network.layers = dense(&[24, 16], &[]);
        spec
    };
    let kept = |data: &RecordBatch, standardize| {
        let outcomes = train_split(&spec(standardize), data, 1);
        outcomes[0].report.kept.clone()
    };
    let small = kept(&rows(0..1500), true);
    let large = kept(&prices(&rows(0..1500), 50_000.0), true);
    let (r2, of_large) = (small.eval_r2.unwrap(), large.eval_r2.unwrap());
    assert!(r2 > 0.98 && of_large > 0.98, "{r2} and {of_large}");
    // The loss is the mean square of the errors.
    let square = large.eval_rmse.unwrap().powi(2);
    assert!(
        (large.eval_loss.unwrap() / square - 1.0).abs() < 1e-3,
        "{large:?}"
    );
    let without = kept(&prices(&rows(0..1500), 50_000.0), false);
    assert!(
        without.eval_r2.unwrap() < 0.96,
        "else the test shows nothing: {without:?}"
    );
}

#[test]
fn evaluation_makes_sense_from_the_first_epoch() {
    for numeric_transform in [NumericTransform::None, NumericTransform::Standardize] {
        let mut spec = TrainSpec {
            epochs: Some(1),
            batch_size: Some(BatchSize::OfRank(100)),
            numeric_transform,
            ..spec()
        };
        spec.label.standardize = true;
        spec.network.layers = dense(&[24, 16], &[]);
        // Twelve steps, with distances in the thousands.
        let outcomes = train_split(&spec, &rows(0..1500), 1);
        let kept = &outcomes[0].report.kept;
        assert!(
            kept.eval_loss.unwrap() < 1.2 * kept.loss,
            "{numeric_transform:?}: {kept:?}"
        );
    }
}

#[test]
fn the_loss_falls_and_predictions_are_those_that_were_evaluated() {
    let data = rows(0..1500);
    for (transform, output, standardize, members) in [
        (LabelTransform::Identity, Output::Identity, false, 1),
        (LabelTransform::Ln, Output::Identity, true, 1),
        (LabelTransform::Ln, Output::ScaledSigmoid, false, 1),
        (LabelTransform::Ln, Output::ScaledSigmoid, false, 3),
    ] {
        let mut spec = TrainSpec {
            epochs: Some(25),
            keep: Keep::Best,
            ..spec()
        };
        spec.label.transform = transform;
        spec.label.standardize = standardize;
        spec.network.output = output;
        spec.network.ensemble_size = EnsembleSize::Of(members);
        spec.network.layers = dense(&[24, 16], &[0.0, 0.05]);
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
        let mae = mean_absolute_error(&evaluated, predictions[0].as_primitive::<Float64Type>());
        assert!(
            (mae / best.eval_mae.unwrap() - 1.0).abs() < 1e-4,
            "{mae}, {best:?}"
        );
    }
}

#[test]
fn classes_are_learnt_and_predicted_with_their_probabilities() {
    for (bounds, due) in [
        (&[3.0][..], &["low", "middle"][..]),
        (&[2.7, 3.4], &["high", "low", "middle"]),
    ] {
        let data = told_apart(&rows(0..1500), bounds);
        let spec = TrainSpec {
            epochs: Some(12),
            keep: Keep::Best,
            ..classifier()
        };
        let outcomes = train_split(&spec, &data, 2);
        let kept = &outcomes[0].report.kept;
        let [accuracy, majority] = [kept.eval_accuracy, kept.eval_majority].map(Option::unwrap);
        assert!(accuracy > 0.9 && majority < 0.7, "{kept:?}");
        let model = model(&outcomes);
        let classes = model.manifest().classes.as_ref().unwrap();
        assert_eq!(
            classes,
            &Classes::Text(due.iter().map(|c| (*c).to_owned()).collect())
        );

        let evaluated = evaluated(&data);
        let predicted = model.predict(&evaluated).unwrap();
        let fields = model.manifest().predicted().fields();
        let types = predicted.iter().map(|column| column.data_type());
        assert!(types.eq(fields.iter().map(|field| field.data_type())));
        let [likeliest, all] = &predicted[..] else {
            panic!("{predicted:?}")
        };
        let (likeliest, labels) = (
            likeliest.as_string::<i32>(),
            evaluated["sales"].as_string::<i32>(),
        );
        let right = likeliest.iter().zip(labels).filter(|(a, b)| a == b).count();
        assert_eq!(right as f64 / evaluated.num_rows() as f64, accuracy);
        let mut losses = 0.0;
        for (row, label) in labels.iter().enumerate() {
            let of_row = all.as_list::<i32>().value(row);
            let (of_row, shares) = (of_row.as_struct(), of_row.as_struct().column(1));
            let shares = shares.as_primitive::<Float32Type>().values();
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            let names: Vec<_> = of_row
                .column(0)
                .as_string::<i32>()
                .iter()
                .flatten()
                .collect();
            assert_eq!(names, due);
            let best = (0..due.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
            assert_eq!(due[best.unwrap()], likeliest.value(row));
            let at = due.iter().position(|class| Some(*class) == label).unwrap();
            losses -= f64::from(shares[at]).ln();
        }
        let loss = losses / evaluated.num_rows() as f64;
        assert!(
            (loss / kept.eval_loss.unwrap() - 1.0).abs() < 1e-3,
            "{loss}, {kept:?}"
        );
    }
}

#[test]
fn a_label_with_one_value_or_with_nulls_is_no_classifier_s() {
    let failed = |data: &RecordBatch| {
        let spec = classifier();
        let outcomes = train_world(&spec, load_split(&spec, data, 2));
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_err().to_string())
    };
    for error in failed(&told_apart(&rows(0..100), &[])) {
        assert!(
            error.contains("label \"sales\" has one value where"),
            "{error}"
        );
    }
    let mut rows = told_apart(&rows(0..100), &[3.0]);
    let at = rows.schema().index_of("sales").unwrap();
    let mut columns = rows.columns().to_vec();
    let labels = columns[at].as_string::<i32>().iter().enumerate();
    columns[at] = Arc::new(
        labels
            .map(|(row, label)| label.filter(|_| row != 0))
            .collect::<StringArray>(),
    );
    rows = RecordBatch::try_new(rows.schema(), columns).unwrap();
    for error in failed(&rows) {
        assert!(
            error.contains("1 row is not (for example, NULL)"),
            "{error}"
        );
    }
}

#[test]
fn features_that_cannot_generalize_are_noted_by_the_first_rank() {
    let noted = |data: &RecordBatch| {
        let origins = vec![(Origin::Fresh, None), (Origin::Fresh, None)];
        let heard = run(&small(2), data, origins).heard;
        assert_eq!(heard[1].noted, None);
        heard[0].noted.clone()
    };
    let data = rows(0..200);
    let features = noted(&data).unwrap();
    assert!(features.starts_with("features: numbers "), "{features}");
    let [day, part] = ["day", "part"].map(|name| data.schema().index_of(name).unwrap());
    let parts = data.column(part).as_string::<i32>().iter();
    // The dates of evaluated rows are later than those of training rows.
    let later = parts.enumerate().map(|(row, part)| match part {
        Some("EVAL") => 20_000 + row as i32,
        _ => 19_000 + (row % 50) as i32,
    });
    let mut columns = data.columns().to_vec();
    columns[day] = Arc::new(Date32Array::from_iter_values(later));
    let forecast = RecordBatch::try_new(data.schema(), columns).unwrap();
    // It is the last note.
    let note = noted(&forecast).unwrap();
    assert!(
        note.starts_with("all evaluated rows have values of \"day\" that no training row has"),
        "{note}"
    );
}

#[test]
fn a_row_of_weight_two_is_a_row_twice() {
    let data = rows(0..40);
    let with_weights = |batch: &RecordBatch, weight: f64| {
        let mut fields = batch.schema().fields().to_vec();
        fields.push(Arc::new(Field::new("weight", DataType::Float64, false)));
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(Float64Array::from(vec![weight; batch.num_rows()])));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
    };
    let (first, second) = (data.slice(0, 15), data.slice(15, 25));
    let all = |parts: &[RecordBatch]| concat_batches(&parts[0].schema(), parts).unwrap();
    let weighed = all(&[with_weights(&first, 2.0), with_weights(&second, 1.0)]);
    let twice = all(&[first.clone(), first, second].map(|part| with_weights(&part, 1.0)));
    let trained = |data: &RecordBatch| {
        let mut spec = TrainSpec {
            epochs: Some(3),
            batch_size: Some(BatchSize::Global { global: 1000 }),
            sample_weight: Some("weight".into()),
            numeric_transform: NumericTransform::Standardize,
            ..spec()
        };
        spec.label.standardize = true;
        // Disables everything that counts rows regardless of their weight.
        spec.network.batch_norm = false;
        spec.network.layers = dense(&[24, 16], &[]);
        spec.features.retain(|feature| feature.column != "distance");
        // Adam magnifies rounding errors.
        spec.optimizer.rule = Rule::Sgd {
            momentum: 0.0,
            nesterov: false,
        };
        train_split(&spec, data, 2).remove(0)
    };
    let (weighed, twice) = (trained(&weighed), trained(&twice));
    assert_same_weights(&weighed, &twice, 1e-5);
    let [left, right] = [&weighed, &twice].map(|outcome| outcome.report.kept.clone());
    for (left, right) in [
        (Some(left.loss), Some(right.loss)),
        (left.eval_loss, right.eval_loss),
        (left.eval_mae, right.eval_mae),
        (left.eval_r2, right.eval_r2),
        (left.eval_rmspe, right.eval_rmspe),
    ] {
        let (left, right) = (left.unwrap(), right.unwrap());
        assert!(
            (left - right).abs() < 1e-5 * left.abs().max(1.0),
            "{left} and {right}"
        );
    }
}

#[test]
fn a_quantile_has_its_share_of_labels_below() {
    let data = rows(0..1500);
    for share in [0.1, 0.9] {
        let mut spec = TrainSpec {
            epochs: Some(15),
            loss: Loss::Quantile { share },
            numeric_transform: NumericTransform::Standardize,
            ..spec()
        };
        spec.label.standardize = true;
        // Without the most informative features: the rest is noise.
        spec.features.retain(|feature| feature.column == "distance");
        let outcomes = train_split(&spec, &data, 1);
        let evaluated = evaluated(&data);
        let predicted = model(&outcomes).predict(&evaluated).unwrap();
        let labels = evaluated["sales"].as_primitive::<Float64Type>().values();
        let predicted = predicted[0].as_primitive::<Float64Type>().values();
        let below = labels.iter().zip(predicted).filter(|(y, p)| y < p);
        let below = below.count() as f64 / labels.len() as f64;
        assert!((below - share).abs() < 0.08, "{below} of {share}");
    }
}

/// Replaces the labels by numbers uniform from 0 to 10, unrelated to the features.
fn uniform(batch: &RecordBatch) -> RecordBatch {
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let labels = (0..batch.num_rows()).map(|row| 10.0 * (row as f64 * golden).fract());
    let at = batch.schema().index_of("sales").unwrap();
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(Float64Array::from_iter_values(labels));
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn several_quantiles_of_uniform_labels_are_their_shares() {
    let data = uniform(&rows(0..1500));
    let shares = vec![0.1, 0.5, 0.9];
    let mut spec = TrainSpec {
        epochs: Some(15),
        loss: Loss::Quantiles {
            shares: shares.clone(),
        },
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    };
    spec.label.standardize = true;
    spec.features.retain(|feature| feature.column == "distance");
    let outcomes = train_split(&spec, &data, 2);
    let evaluated = evaluated(&data);
    let predicted = model(&outcomes).predict(&evaluated).unwrap();
    let labels = evaluated["sales"].as_primitive::<Float64Type>().values();
    let all = predicted[1].as_list::<i32>().values().as_struct();
    let all = all.column(1).as_primitive::<Float64Type>().values();
    let mut loss = 0.0;
    for (at, share) in shares.iter().enumerate() {
        let quantiles = all.chunks_exact(3).map(|row| row[at]);
        let quantiles: Vec<f64> = quantiles.collect();
        let errors = labels.iter().zip(&quantiles).map(|(y, q)| y - q);
        let below = errors.clone().filter(|error| *error < 0.0).count() as f64;
        let below = below / labels.len() as f64;
        assert!((below - share).abs() < 0.1, "{below} of {share}");
        let mean = quantiles.iter().sum::<f64>() / labels.len() as f64;
        assert!((mean - 10.0 * share).abs() < 1.0, "{mean} of {share}");
        let losses = errors.map(|error| (share * error).max((share - 1.0) * error));
        loss += losses.sum::<f64>() / labels.len() as f64 / 3.0;
    }
    let rows = labels.iter().zip(all.chunks_exact(3));
    let inside = rows.filter(|(y, row)| row[0] <= **y && **y <= row[2]);
    let coverage = inside.count() as f64 / labels.len() as f64;
    let kept = &outcomes[0].report.kept;
    let told = kept.eval_interval_coverage.unwrap();
    assert!((told - coverage).abs() < 0.01, "{coverage}, {kept:?}");
    assert!(
        (kept.eval_loss.unwrap() / loss - 1.0).abs() < 1e-4,
        "{loss}, {kept:?}"
    );
    let mae = mean_absolute_error(&evaluated, predicted[0].as_primitive::<Float64Type>());
    assert!(
        (kept.eval_mae.unwrap() / mae - 1.0).abs() < 1e-4,
        "{mae}, {kept:?}"
    );
}

#[test]
fn several_labels_are_learnt_each_in_its_scale() {
    let data = with_visits(&rows(0..1500));
    let mut spec = TrainSpec {
        epochs: Some(15),
        ..two_labels()
    };
    spec.network.layers = dense(&[24, 16], &[]);
    let outcomes = train_split(&spec, &data, 2);
    let kept = &outcomes[0].report.kept;
    let scales = &outcomes[0]
        .artifacts
        .as_ref()
        .unwrap()
        .manifest
        .label_scales;
    let evaluated = evaluated(&data);
    let predicted = model(&outcomes).predict(&evaluated).unwrap();
    let mut loss = 0.0;
    for (at, (label, weight)) in [("sales", 1.0), ("visits", 0.5)].into_iter().enumerate() {
        let of = &kept.labels[at];
        assert_eq!(of.label, label);
        assert!(of.eval_r2.unwrap() > 0.9, "{of:?}");
        let predicted = predicted[at].as_primitive::<Float64Type>();
        let mae = mean_absolute_error_of(label, &evaluated, predicted);
        assert!(
            (mae / of.eval_mae.unwrap() - 1.0).abs() < 1e-3,
            "{mae}, {of:?}"
        );
        let square = of.eval_rmse.unwrap().powi(2);
        assert!(
            (of.eval_loss.unwrap() / square - 1.0).abs() < 1e-3,
            "{of:?}"
        );
        loss += weight * of.eval_loss.unwrap() / scales[at].unit.powi(2);
    }
    assert!((kept.eval_loss.unwrap() / loss - 1.0).abs() < 1e-6);
    // The labels share no scale.
    assert_eq!((kept.eval_mae, kept.eval_rmse), (None, None));
}

#[test]
fn deviances_are_learnt_in_the_label_s_scale() {
    let data = prices(&rows(0..1500), 1000.0);
    for power in [1.0, 1.5, 2.0] {
        let mut spec = TrainSpec {
            epochs: Some(15),
            loss: Loss::Tweedie { power },
            numeric_transform: NumericTransform::Standardize,
            ..spec()
        };
        spec.label.standardize = true;
        spec.network.layers = dense(&[24, 16], &[]);
        let outcomes = train_split(&spec, &data, 2);
        let kept = &outcomes[0].report.kept;
        assert!(kept.eval_r2.unwrap() > 0.9, "{power}: {kept:?}");
        let evaluated = evaluated(&data);
        let predicted = model(&outcomes).predict(&evaluated).unwrap();
        let mae = mean_absolute_error(&evaluated, predicted[0].as_primitive::<Float64Type>());
        assert!(
            (mae / kept.eval_mae.unwrap() - 1.0).abs() < 1e-4,
            "{mae}, {kept:?}"
        );
    }
}

#[test]
fn weights_of_classes_are_by_their_names() {
    let data = told_apart(&rows(0..300), &[3.0]);
    let trained = |class_weights| {
        let spec = TrainSpec {
            epochs: Some(6),
            class_weights,
            ..classifier()
        };
        train_world(&spec, load_split(&spec, &data, 2)).remove(0)
    };
    let given = |class: &str| ClassWeights::Given(vec![(class.to_owned(), 50.0)]);
    let predicted = |class: &str| {
        let outcomes = [trained(given(class)).unwrap()];
        let predicted = model(&outcomes).predict(&data).unwrap();
        let predicted = predicted[0].as_string::<i32>().iter().flatten();
        predicted.filter(|predicted| *predicted == class).count()
    };
    let (low, middle) = (predicted("low"), predicted("middle"));
    assert!(
        low + middle > data.num_rows(),
        "each is predicted more: {low}, {middle}"
    );
    let error = trained(given("midle")).unwrap_err().to_string();
    assert!(
        error.contains("\"midle\"; did you mean \"middle\"?"),
        "{error}"
    );
}

#[test]
fn training_ends_early_once_it_no_longer_learns() {
    let early_stop = EarlyStop {
        patience: 3,
        min_rel_progress: 0.5,
    };
    let spec = TrainSpec {
        epochs: Some(50),
        early_stop: Some(early_stop),
        ..spec()
    };
    let outcomes = train_split(&spec, &rows(0..300), 2);
    let history = &outcomes[0].artifacts.as_ref().unwrap().manifest.history;
    assert!(history.len() < 50, "{}", history.len());
    let (last, earlier) = history.split_last().unwrap();
    assert!(last.ended.as_ref().unwrap().contains("for 3 epochs"));
    assert!(earlier.iter().all(|epoch| epoch.ended.is_none()));
}

/// Observer that is told to end training during an epoch.
struct Told {
    during: u64,
    stopped: AtomicBool,
}

impl Observer for Told {
    fn step(&self, step: &Step) {
        let is_due = step.next.epoch as u64 == self.during;
        self.stopped.fetch_or(is_due, Ordering::Relaxed);
    }
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

#[test]
fn one_rank_that_is_told_ends_training_for_all() {
    let spec = TrainSpec {
        epochs: Some(50),
        ..spec()
    };
    let told = Told {
        during: 3,
        stopped: AtomicBool::new(false),
    };
    let loaded = load_split(&spec, &rows(0..300), 2).into_iter();
    let seats = loaded.enumerate().map(|(rank, loaded)| Seat {
        observer: if rank == 1 { &told } else { &Deaf },
        ..Seat::fresh(loaded)
    });
    let mut ends = train_seats(&spec, seats.collect()).into_iter();
    let manifest = ends.next().unwrap().unwrap().artifacts.unwrap().manifest;
    assert_eq!(manifest.history.len(), 3);
    let ended = manifest.history[2].ended.as_deref();
    assert_eq!(ended, Some("a client ended training"));
    assert_eq!(ends.next().unwrap().unwrap().report.epochs, 3);
}

/// A refit repeats the epochs before it, whenever training was told to end.
#[test]
fn a_refit_follows_training_that_was_told_to_end() {
    let spec = TrainSpec {
        epochs: Some(50),
        keep: Keep::Last,
        refit: Refit::Always,
        ..spec()
    };
    let told = Told {
        during: 2,
        stopped: AtomicBool::new(false),
    };
    let loaded = load_split(&spec, &rows(0..300), 1).into_iter();
    let seats = loaded.map(|loaded| Seat {
        observer: &told,
        ..Seat::fresh(loaded)
    });
    let end = train_seats(&spec, seats.collect()).pop().unwrap().unwrap();
    assert_eq!(end.artifacts.unwrap().manifest.history.len(), 4);
    assert!(end.report.refit_rows.is_some());
}

#[test]
fn a_loss_that_is_no_number_ends_training_before_its_step() {
    let mut spec = TrainSpec {
        epochs: Some(5),
        ..spec()
    };
    spec.optimizer.rule = Rule::Sgd {
        momentum: 0.0,
        nesterov: false,
    };
    spec.optimizer.learn_rate = 1e30;
    let outcomes = train_world(&spec, load_split(&spec, &rows(0..300), 2));
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
    }
}

/// A step with a finite gradient leads to non-finite weights, which is detected before anything of it is
/// kept, at the latest by the next step's loss.
#[test]
fn weights_that_are_no_numbers_are_not_kept() {
    for (checkpoint_every, found) in [(Some(1), "a weight"), (None, "the loss")] {
        let mut spec = TrainSpec {
            epochs: Some(5),
            batch_size: Some(BatchSize::OfRank(15)),
            checkpoint_every,
            ..spec()
        };
        spec.optimizer.learn_rate = 1e39;
        for outcome in train_world(&spec, load_split(&spec, &rows(0..300), 2)) {
            match outcome.unwrap_err() {
                Error::Diverged { position, what, .. } => {
                    assert_eq!((position.epoch, position.steps, what), (1, 1, found));
                }
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_network_of_one_kind_of_feature_learns() {
    for categorical in [true, false] {
        let mut spec = TrainSpec {
            epochs: Some(15),
            loss: Loss::Mae,
            ..spec()
        };
        let continuous = |name: &str| ["distance", "trend"].contains(&name);
        spec.features
            .retain(|feature| continuous(&feature.column) != categorical);
        spec.network.batch_norm = !categorical;
        spec.network.layers = dense(&[24], &[0.125]);
        let outcomes = train_split(&spec, &rows(0..300), 2);
        let history = &outcomes[0].artifacts.as_ref().unwrap().manifest.history;
        assert!(history[14].loss < history[0].loss / 2.0, "{history:?}");
        assert_eq!(
            model(&outcomes).predict(&rows(0..2100)).unwrap()[0].len(),
            2100
        );
    }
}

#[test]
fn a_linear_model_learns() {
    let mut spec = TrainSpec {
        epochs: Some(40),
        l2: Some(0.0),
        ..spec()
    };
    spec.network.layers.clear();
    let outcomes = train_split(&spec, &rows(0..300), 1);
    let history = &outcomes[0].artifacts.as_ref().unwrap().manifest.history;
    assert!(history[39].loss < history[0].loss / 10.0, "{history:?}");
}
