//! Tests of published files and the models read back from them.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, Float64Array, Int32Array, Int64Array, StringArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Int8Type, Int32Type, Schema};
use arrow::record_batch::RecordBatch;
use safetensors::SafeTensors;
use volley_proto::spec::{
    EnsembleSize, Layer, Loss, NumericEmbedding, NumericTransform, TrainSpec,
};

use super::Model;
use crate::network::CustomLayers;
use crate::testing::{
    classifier, custom_layers, model, rows, spec, squash, told_apart, train_split,
};
use crate::{Artifacts, Error};

fn artifacts() -> Artifacts {
    train_split(&spec(), &rows(0..100), 1)
        .remove(0)
        .artifacts
        .unwrap()
}

fn load(artifacts: &Artifacts) -> Result<Model, Error> {
    Model::load(
        artifacts.manifest.clone(),
        &artifacts.files[0].1,
        &artifacts.files[1].1,
        &custom_layers(),
    )
}

#[test]
fn a_custom_layer_is_predicted_with_where_it_is_registered() {
    let mut spec = spec();
    spec.network.layers = vec![squash(6, 1.5), Layer::Dense(4)];
    let artifacts = train_split(&spec, &rows(0..100), 1).remove(0).artifacts;
    let artifacts = artifacts.unwrap();
    let predicted = predict(&load(&artifacts).unwrap(), &rows(0..30));
    assert!(predicted.iter().all(|y| y.is_finite()));
    assert!(predicted.iter().any(|y| *y != predicted[0]));
    let lacking = Model::load(
        artifacts.manifest.clone(),
        &artifacts.files[0].1,
        &artifacts.files[1].1,
        &CustomLayers::new(),
    );
    let due = "custom('squash', 6, 1.5)";
    assert!(matches!(lacking.unwrap_err(), Error::UnknownLayer { layer, .. } if layer == due));
}

/// Returns the rows with the column of this name replaced, whatever its type.
fn with_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, old) in batch.schema().fields().iter().zip(batch.columns()) {
        let column = if field.name() == name { &column } else { old };
        fields.push(Field::new(field.name(), column.data_type().clone(), true));
        columns.push(Arc::clone(column));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn predict(model: &Model, rows: &RecordBatch) -> Vec<f64> {
    model.predict(rows).unwrap()[0]
        .as_primitive::<Float64Type>()
        .values()
        .to_vec()
}

#[test]
fn files_that_are_not_the_manifest_s_are_refused() {
    let good = artifacts();
    assert!(load(&good).is_ok());
    let refused = |spoil: &dyn Fn(&mut Artifacts)| {
        let mut bad = Artifacts {
            manifest: good.manifest.clone(),
            files: good.files.clone(),
        };
        spoil(&mut bad);
        match load(&bad) {
            Err(Error::ModelFile { file, .. }) => file,
            other => panic!("{other:?}"),
        }
    };
    let cut = |bytes: &bytes::Bytes| bytes.slice(..bytes.len() - 1);
    assert_eq!(
        refused(&|bad| bad.files[0].1 = cut(&bad.files[0].1)),
        super::WEIGHTS
    );
    assert_eq!(
        refused(&|bad| bad.files[0].1 = bytes::Bytes::new()),
        super::WEIGHTS
    );
    assert_eq!(
        refused(&|bad| bad.manifest.spec.network.layers[0] = Layer::Dense(25)),
        super::WEIGHTS
    );
    assert_eq!(
        refused(&|bad| bad.manifest.spec.network.layers.push(Layer::Dense(3))),
        super::WEIGHTS
    );
    assert_eq!(
        refused(&|bad| bad.files[1].1 = cut(&bad.files[1].1)),
        super::VOCABULARIES
    );
    let fewer = |bad: &mut Artifacts| bad.manifest.features[0].vocabulary = Some(3);
    assert_eq!(refused(&fewer), super::VOCABULARIES);
    let nobody = |bad: &mut Artifacts| {
        bad.manifest.spec.network.ensemble_size = EnsembleSize::Of(0);
    };
    assert_eq!(refused(&nobody), "manifest.json");
    let other = |bad: &mut Artifacts| bad.manifest.features[0].column = "shop".into();
    assert_eq!(refused(&other), super::VOCABULARIES);
}

/// Returns a spec whose numbers are ranked and binned.
fn ranked() -> TrainSpec {
    let mut spec = TrainSpec {
        numeric_transform: NumericTransform::Quantile,
        ..spec()
    };
    spec.network.batch_norm = false;
    spec.network.numeric_embedding = NumericEmbedding::PiecewiseLinear;
    spec
}

#[test]
fn a_model_s_quantiles_and_bins_come_back_with_it() {
    let outcomes = train_split(&ranked(), &rows(0..300), 2);
    let trained = model(&outcomes);
    let artifacts = outcomes.into_iter().next().unwrap().artifacts.unwrap();
    let json = serde_json::to_string(&artifacts.manifest).unwrap();
    let stored = Artifacts {
        manifest: serde_json::from_str(&json).unwrap(),
        files: artifacts.files.clone(),
    };
    let summaries = stored.manifest.features.iter();
    for (stored, trained) in summaries.zip(&artifacts.manifest.features) {
        assert_eq!(stored.quantiles, trained.quantiles);
        assert_eq!(stored.bins, trained.bins);
    }
    let all = rows(0..400);
    assert_eq!(
        predict(&load(&stored).unwrap(), &all),
        predict(&trained, &all)
    );
    // Numbers beyond those of training are treated as the largest of them.
    let distance = |x: Option<f64>| {
        let column = Arc::new(Float64Array::from(vec![x; 400]));
        predict(&trained, &with_column(&all, "distance", column))
    };
    assert_eq!(distance(Some(1e5)), distance(Some(1e7)));
    assert_ne!(distance(Some(1e5)), distance(Some(5e3)));
    assert!(distance(None).iter().all(|y| y.is_finite()));
    // Piecewise linear embeddings need bins.
    let mut bad = stored;
    bad.manifest.features[1].bins.clear();
    assert!(matches!(
        load(&bad),
        Err(Error::ModelFile {
            file: "manifest.json",
            ..
        })
    ));
}

#[test]
fn unseen_values_are_predicted_with_the_mean_embedding() {
    let artifacts = artifacts();
    let file = SafeTensors::deserialize(&artifacts.files[0].1).unwrap();
    let (numbers, _) = file.tensor("embedding").unwrap().data().as_chunks::<4>();
    let table: Vec<f32> = numbers
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect();
    // Seven stores come first, each embedded in four numbers; only rows that are trained on count.
    let all = rows(0..100);
    let (stores, parts) = (
        all["store"].as_primitive::<Int32Type>(),
        all["part"].as_string::<i32>(),
    );
    let trained: Vec<_> = stores
        .values()
        .iter()
        .zip(parts)
        .filter(|(_, part)| *part == Some("TRAIN"))
        .map(|(store, _)| *store as usize + 1)
        .collect();
    for at in 0..4 {
        let sum: f32 = trained.iter().map(|code| table[code * 4 + at]).sum();
        let mean = sum / trained.len() as f32;
        assert!((table[at] - mean).abs() < 1e-6);
    }
    let model = load(&artifacts).unwrap();
    let seen = rows(0..3);
    let stores = |values: [Option<i64>; 3]| {
        predict(
            &model,
            &with_column(&seen, "store", Arc::new(Int64Array::from(values.to_vec()))),
        )
    };
    assert_ne!(stores([Some(1); 3]), stores([Some(2); 3]));
    // No store was null in training: null is as unseen as the millionth store.
    assert_eq!(stores([Some(1_000_000); 3]), stores([None; 3]));
    assert!(
        stores([None; 3])
            .iter()
            .all(|prediction| prediction.is_finite())
    );
}

#[test]
fn values_of_rows_that_are_not_trained_on_are_unseen() {
    // The only rows of one store are evaluated, and those of another are for testing.
    let all = rows(0..100);
    let parts = all["part"].as_string::<i32>();
    let of = |row: usize, store: i32| match parts.value(row) {
        "EVAL" => 77,
        "TEST" => 88,
        _ => store,
    };
    let stores = all["store"]
        .as_primitive::<Int32Type>()
        .values()
        .iter()
        .enumerate();
    let stores = Int32Array::from_iter_values(stores.map(|(row, store)| of(row, *store)));
    let all = with_column(&all, "store", Arc::new(stores));
    let model = model(&train_split(&spec(), &all, 2));
    let store = |value| {
        let column = Arc::new(Int32Array::from(vec![value; 3]));
        predict(&model, &with_column(&rows(0..3), "store", column))
    };
    assert_eq!(store(77), store(1_000_000));
    assert_eq!(store(88), store(1_000_000));
    assert_ne!(store(1), store(1_000_000));
}

#[test]
fn types_of_one_class_predict_the_same() {
    let model = model(&train_split(&spec(), &rows(0..100), 1));
    let seen = rows(0..50);
    let kinds = seen["kind"].as_string::<i32>().clone();
    let dictionary: DictionaryArray<Int8Type> = kinds.iter().collect();
    let view = arrow::compute::cast(&kinds, &DataType::Utf8View).unwrap();
    let expected = predict(&model, &seen);
    assert_eq!(
        predict(&model, &with_column(&seen, "kind", Arc::new(dictionary))),
        expected
    );
    assert_eq!(predict(&model, &with_column(&seen, "kind", view)), expected);
}

#[test]
fn dictionaries_predict_the_same() {
    // Text within a view and longer text, of which both repeat.
    let all = rows(0..100);
    let name = |kind: Option<&str>| kind.map(|kind| kind.repeat(if kind == "b" { 30 } else { 1 }));
    let kinds: StringArray = all["kind"].as_string::<i32>().iter().map(name).collect();
    let all = with_column(&all, "kind", Arc::new(kinds));
    let model = model(&train_split(&spec(), &all, 1));
    let long = "b".repeat(30);
    // The second and the last value are those of no row, the third repeats, and two were not seen in training.
    let values = [
        Some(long.as_str()),
        Some("c"),
        Some(long.as_str()),
        None,
        Some("unseen"),
        Some("unseen, and longer than a view"),
        Some("a"),
        Some("z"),
    ];
    let keys = (0..2_000).map(|row| match row % 8 {
        1 => None,
        7 => Some(6),
        key => Some(key),
    });
    let keys = Int32Array::from(keys.collect::<Vec<Option<i32>>>());
    let values = Arc::new(StringArray::from(values.to_vec()));
    let dictionary = DictionaryArray::try_new(keys, values).unwrap();
    let dictionary: ArrayRef = Arc::new(dictionary);
    let plain = arrow::compute::cast(&dictionary, &DataType::Utf8).unwrap();
    let many = rows(0..2_000);
    let due = predict(&model, &with_column(&many, "kind", plain));
    let by_keys = with_column(&many, "kind", dictionary);
    let bits = |of: &[f64]| of.iter().map(|y| y.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&predict(&model, &by_keys)), bits(&due));
    // Few rows of many values are decoded instead.
    let few = [0, 1, 4, 5, 6, 1_999].map(|row| (row, predict(&model, &by_keys.slice(row, 1))));
    assert!(few.iter().all(|(row, y)| (y[0] - due[*row]).abs() < 1e-5));
    // The values differ in what is predicted for them, so that a wrong code is seen.
    let kind = |value: &str| {
        let column = Arc::new(StringArray::from(vec![value; 3]));
        predict(&model, &with_column(&rows(0..3), "kind", column))
    };
    assert_ne!(kind("a"), kind(&long));
    assert_eq!(kind("unseen"), kind("z"));
}

#[test]
fn predictions_do_not_depend_on_batches_and_threads_may_share_a_model() {
    let model = model(&train_split(&spec(), &rows(0..100), 1));
    let all = rows(0..2500);
    let expected = predict(&model, &all);
    std::thread::scope(|scope| {
        for start in [0, 1000, 2000] {
            let (model, all, expected) = (&model, &all, &expected);
            scope.spawn(move || {
                let part = predict(model, &all.slice(start, 500));
                for (part, whole) in part.iter().zip(&expected[start..]) {
                    assert!((part - whole).abs() < 1e-5);
                }
            });
        }
    });
    assert_eq!(predict(&model, &all.slice(0, 0)), [0.0; 0]);
}

#[test]
fn rows_without_a_feature_are_refused() {
    let model = model(&train_split(&spec(), &rows(0..100), 1));
    let lacking = rows(0..5).project(&[0, 1, 2, 3]).unwrap();
    let error = model.predict(&lacking).unwrap_err();
    assert!(matches!(error, Error::MissingColumn { column, .. } if column == "trend"));
    let text = Arc::new(StringArray::from(vec!["1"; 5]));
    let error = model
        .predict(&with_column(&rows(0..5), "store", text))
        .unwrap_err();
    assert!(matches!(error, Error::ColumnType { column, .. } if column == "store"));
}

#[test]
fn numbers_that_training_refuses_are_refused() {
    let model = model(&train_split(&spec(), &rows(0..100), 1));
    let some = rows(0..5);
    for refused in [f64::INFINITY, f64::NAN, -1e300] {
        let trend = vec![Some(0.5), None, Some(1.0), Some(refused), None];
        let rows = with_column(&some, "trend", Arc::new(Float64Array::from(trend)));
        for error in [model.predict(&rows).err(), model.explain(&rows, 1).err()] {
            let Some(Error::NotFinite { column, value }) = error else {
                panic!("{refused}: {error:?}")
            };
            assert_eq!(
                (column.as_str(), value.to_bits()),
                ("trend", refused.to_bits())
            );
        }
    }
    let nulls = Arc::new(Float64Array::from(vec![None::<f64>; 5]));
    let predicted = predict(&model, &with_column(&some, "trend", nulls));
    assert!(predicted.iter().all(|y| y.is_finite()), "{predicted:?}");
}

/// The most important features with their attributions, and two numbers more.
type Explanation = (Vec<(String, f64)>, f64, f64);

/// Returns each row of an explanation's columns: features and their attributions, the baseline, the prediction.
fn explanations(columns: &[ArrayRef]) -> Vec<Explanation> {
    let [features, baselines, predictions, errors] = columns.last_chunk().unwrap();
    let number = |column: &ArrayRef, row| column.as_primitive::<Float64Type>().value(row);
    let explained = (0..features.len()).map(|row| {
        let features = features.as_list::<i32>().value(row);
        let features = features.as_struct();
        let names = features.column(0).as_string::<i32>().iter();
        let numbers = features.column(1).as_primitive::<Float64Type>().values();
        let features = names.map(|name| name.unwrap().to_owned());
        let features: Vec<_> = features.zip(numbers.iter().copied()).collect();
        let (baseline, prediction) = (number(baselines, row), number(predictions, row));
        if features.len() == 5 {
            let sum: f64 = features.iter().map(|(_, x)| x).sum();
            let due = prediction - baseline;
            let most: f64 = features.iter().map(|(_, x)| x.abs()).sum();
            assert!(
                (sum - due).abs() < 0.01 + 0.05 * most,
                "{sum} {due} {features:?}"
            );
            assert!((((sum - due) / due).abs() - number(errors, row)).abs() < 1e-6);
        }
        (features, baseline, prediction)
    });
    explained.collect()
}

#[test]
fn attributions_add_up_to_the_prediction_in_the_label_s_scale() {
    for mut spec in [spec(), ranked()] {
        spec.label.standardize = true;
        let model = model(&train_split(&spec, &rows(0..100), 1));
        assert_attributions_add_up(&model);
    }
}

fn assert_attributions_add_up(model: &Model) {
    let seen = rows(0..300);
    let columns = model.explain(&seen, 9).unwrap();
    let predicted = columns[0].as_primitive::<Float64Type>();
    let explained = explanations(&columns);
    assert_eq!(explained.len(), 300);
    for ((features, baseline, prediction), predicted) in explained.iter().zip(predicted.values()) {
        assert!((prediction - predicted).abs() < 1e-3 * (1.0 + predicted.abs()));
        assert_eq!(*baseline, explained[0].1);
        assert!(
            features.is_sorted_by(|a, b| a.1.abs() >= b.1.abs()),
            "{features:?}"
        );
        let mut names: Vec<_> = features.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["day", "distance", "kind", "store", "trend"]);
    }
    // A smaller `top` keeps the first features.
    let few = explanations(&model.explain(&seen, 2).unwrap());
    for (few, all) in few.iter().zip(&explained) {
        assert_eq!(few.0, all.0[..2]);
    }
    assert_eq!(model.explain(&seen.slice(0, 0), 2).unwrap()[1].len(), 0);
}

#[test]
fn quantiles_ascend_and_the_one_that_is_the_prediction_is_explained() {
    let mut spec = spec();
    spec.label.standardize = true;
    spec.loss = Loss::Quantiles {
        shares: vec![0.1, 0.5, 0.9],
    };
    let model = model(&train_split(&spec, &rows(0..100), 1));
    let columns = model.explain(&rows(0..300), 5).unwrap();
    let predicted = columns[0].as_primitive::<Float64Type>();
    let all = columns[1].as_list::<i32>();
    for (row, (_, _, prediction)) in explanations(&columns).into_iter().enumerate() {
        let all = all.value(row);
        let [shares, values] = [0, 1].map(|at| Arc::clone(all.as_struct().column(at)));
        assert_eq!(
            shares.as_primitive::<Float64Type>().values()[..],
            [0.1, 0.5, 0.9]
        );
        let values = values.as_primitive::<Float64Type>().values();
        assert!(values.is_sorted(), "{values:?}");
        assert_eq!(values[1], predicted.value(row));
        let error = (prediction - values[1]).abs();
        assert!(error < 1e-3 * (1.0 + values[1].abs()));
    }
    assert_eq!(model.predict(&rows(0..0)).unwrap()[1].len(), 0);
}

#[test]
fn a_class_is_explained_by_its_own_odds() {
    for bounds in [&[3.0][..], &[2.7, 3.4]] {
        let data = told_apart(&rows(0..400), bounds);
        let model = model(&train_split(&classifier(), &data, 1));
        let columns = model.explain(&rows(0..300), 5).unwrap();
        let (classes, all) = (columns[0].as_string::<i32>(), columns[1].as_list::<i32>());
        let mut seen = HashSet::new();
        for (row, (_, _, prediction)) in explanations(&columns).into_iter().enumerate() {
            let all = all.value(row);
            let [names, shares] = [0, 1].map(|at| Arc::clone(all.as_struct().column(at)));
            let shares = shares.as_primitive::<Float32Type>().values();
            let names = names.as_string::<i32>();
            let is_predicted = |at: &usize| names.value(*at) == classes.value(row);
            let at = (0..names.len()).find(is_predicted).unwrap();
            seen.insert(at);
            assert!(shares.iter().all(|share| *share <= shares[at]));
            if names.len() == 2 {
                let share = 1.0 / (1.0 + (-prediction).exp());
                assert!((share - f64::from(shares[at])).abs() < 1e-4);
            }
        }
        assert!(seen.len() > 1, "{seen:?}");
    }
}
