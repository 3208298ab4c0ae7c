//! Published files and what is read back from them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, Int32Array, Int64Array, StringArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int8Type, Int32Type, Schema};
use arrow::record_batch::RecordBatch;
use safetensors::SafeTensors;

use super::Model;
use crate::testing::{model, rows, spec, train_split};
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
    )
}

/// The rows with another column of a name, whatever its type.
fn with_column(batch: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, old) in batch.schema().fields().iter().zip(batch.columns()) {
        let column = if field.name() == name { &column } else { old };
        fields.push(Field::new(field.name(), column.data_type().clone(), true));
        columns.push(Arc::clone(column));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn predict(model: &Model, rows: &RecordBatch) -> Vec<f32> {
    model.predict(rows).unwrap()[0]
        .as_primitive::<Float32Type>()
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
        refused(&|bad| bad.manifest.spec.network.hidden_units[0] = 25),
        super::WEIGHTS
    );
    assert_eq!(
        refused(&|bad| bad.manifest.spec.network.hidden_units.push(3)),
        super::WEIGHTS
    );
    assert_eq!(
        refused(&|bad| bad.files[1].1 = cut(&bad.files[1].1)),
        super::VOCABULARIES
    );
    let fewer = |bad: &mut Artifacts| bad.manifest.features[0].vocabulary = Some(3);
    assert_eq!(refused(&fewer), super::VOCABULARIES);
    let other = |bad: &mut Artifacts| bad.manifest.features[0].column = "shop".into();
    assert_eq!(refused(&other), super::VOCABULARIES);
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
    // Seven stores come first, each embedded in four numbers; those of rows that are trained on count.
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
    // The only rows of one store are evaluated, and one for testing is of another.
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
