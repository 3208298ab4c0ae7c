//! Tests of encoding as a whole: from batches to settled shards.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array,
    LargeStringArray, StringArray, StringViewArray, UInt64Array,
};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Int8Type, Schema};
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use volley_proto::spec::{
    FeatureKind, LabelTransform, Split, Task, TrainSpec, VocabularyRule, split,
};

use super::{Defect, LoadedShards, RowMemory, Rows, Rule, Settled, ShardCache, Storage, settle};
use crate::random::{Key, Purpose};
use crate::testing::{load_cached, load_now, rows, shards, spec, two_labels, with_visits};
use crate::{Error, Result};

/// Creates a batch of these columns.
fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let field =
        |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), true);
    let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    RecordBatch::try_new(
        Arc::new(schema),
        columns.into_iter().map(|(_, a)| a).collect(),
    )
    .unwrap()
}

/// Returns the small spec over one categorical feature `f`, label `y`.
fn narrow(split: Split) -> TrainSpec {
    let mut spec = spec();
    spec.features.truncate(1);
    spec.features[0].column = "f".into();
    spec.label.columns = vec!["y".into()];
    TrainSpec { split, ..spec }
}

fn labels(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn load(spec: &TrainSpec, batches: Vec<RecordBatch>) -> Result<LoadedShards> {
    load_now(spec, vec![(0, batches)])
}

fn settled(loaded: LoadedShards) -> Vec<Settled<f64>> {
    let vocabularies = loaded.vocabularies();
    let shards = loaded.shards.into_iter();
    shards
        .map(|shard| settle(shard, &vocabularies, None))
        .collect()
}

/// Returns the defects of one column of labels or splits.
fn defects(spec: &TrainSpec, columns: Vec<(&str, ArrayRef)>) -> Vec<(Rule, u64, String)> {
    let defects = load(spec, vec![batch(columns)]).unwrap().defects();
    defects
        .into_iter()
        .map(
            |Defect {
                 rule,
                 rows,
                 example,
                 ..
             }| (rule, rows, example),
        )
        .collect()
}

#[test]
fn types_of_one_class_have_the_same_values() {
    let text = ["b", "a", "b"];
    let dictionary: DictionaryArray<Int8Type> = text.into_iter().collect();
    let forms: [ArrayRef; 4] = [
        Arc::new(StringArray::from_iter_values(text)),
        Arc::new(LargeStringArray::from_iter_values(text)),
        Arc::new(StringViewArray::from_iter_values(text)),
        Arc::new(dictionary),
    ];
    let spec = narrow(Split::None);
    let encoded = forms.map(|form| {
        let batch = batch(vec![("f", form), ("y", labels(&[1.0, 2.0, 3.0]))]);
        let loaded = load(&spec, vec![batch]).unwrap();
        (loaded.vocabularies(), settled(loaded))
    });
    assert!(encoded.iter().all(|form| *form == encoded[0]));
    let mut codes = encoded[0].1[0].train.codes.to_vec();
    codes.sort_unstable();
    assert_eq!(codes, [1, 2, 2]);
}

#[test]
fn integers_beyond_i64_are_refused() {
    let huge = Arc::new(UInt64Array::from(vec![u64::MAX]));
    let error = load(
        &narrow(Split::None),
        vec![batch(vec![("f", huge), ("y", labels(&[1.0]))])],
    );
    assert!(matches!(error, Err(Error::Values { ref column, .. }) if column == "f"));
}

#[test]
fn null_is_a_category_and_no_number() {
    let mut spec = narrow(Split::None);
    spec.features.push(volley_proto::spec::Feature {
        column: "x".into(),
        kind: FeatureKind::Continuous,
    });
    let f = Arc::new(Int64Array::from(vec![Some(4), None]));
    let x = Arc::new(Float64Array::from(vec![Some(2.5), None]));
    let loaded = load(
        &spec,
        vec![batch(vec![("f", f), ("x", x), ("y", labels(&[0.0, 1.0]))])],
    )
    .unwrap();
    assert_eq!(loaded.vocabularies()[0].distinct(), 2);
    let train = settled(loaded).remove(0).train;
    let number = |at: usize| Some(train.continuous[at]).filter(|x| !x.is_nan());
    let mut found: Vec<_> = (0..2)
        .map(|at| (train.codes[at], number(at), train.labels[at]))
        .collect();
    found.sort_by_key(|row| row.0);
    assert_eq!(found, [(1, None, 1.0), (2, Some(2.5), 0.0)]);
}

#[test]
fn the_order_of_arrival_leaves_no_trace() {
    let spec = spec();
    let all = rows(0..200);
    let backwards = arrow::array::UInt32Array::from_iter_values((0..200).rev());
    let backwards = take_record_batch(&all, &backwards).unwrap();
    let forwards = load(&spec, vec![all]).unwrap();
    let backwards = load(
        &spec,
        vec![backwards.slice(0, 31), backwards.slice(31, 169)],
    )
    .unwrap();
    // As text, where NaNs are equal.
    let [forwards, backwards] =
        [forwards, backwards].map(|shards| format!("{:?}", settled(shards)));
    assert!(forwards == backwards);
}

/// Returns the contents of shards as text, where NaNs are equal.
fn contents(loaded: &LoadedShards) -> String {
    let tallies = loaded.tallies();
    let rows = loaded.shards.iter().map(|shard| {
        let (numbers, labels) = (&shard.continuous, &shard.labels);
        let (weights, parts, sequence) = (&shard.weights, &shard.parts, &shard.sequence);
        let (folds, weightless) = (&shard.folds, shard.weightless);
        format!(
            "{numbers:?} {labels:?} {weights:?} {weightless} {parts:?} {sequence:?} {folds:?} {:?}",
            shard.codes
        )
    });
    format!(
        "{tallies:?} {:?} {:?}",
        rows.collect::<Vec<_>>(),
        loaded.defects()
    )
}

/// Returns text by a dictionary that repeats a value, and has null and a value of no row among its values.
fn dictionary() -> ArrayRef {
    let values = [
        Some("often and longer than a view"),
        Some("no row has it"),
        None,
        Some("b"),
        Some("often and longer than a view"),
        Some("a"),
    ];
    let keys = [0, 3, 4, 2, 5, 0, 3, 4].map(Some);
    let keys = keys.into_iter().chain([None, Some(5)]);
    let keys = Int32Array::from(keys.collect::<Vec<Option<i32>>>());
    let values = Arc::new(StringArray::from(values.to_vec()));
    Arc::new(DictionaryArray::try_new(keys, values).unwrap())
}

#[test]
fn dictionaries_leave_no_trace() {
    let dictionary = dictionary();
    let plain = cast(&dictionary, &DataType::Utf8).unwrap();
    let rows = |f: ArrayRef| {
        let y = (0..f.len()).map(|row| row as f64).collect::<Vec<_>>();
        batch(vec![("f", f), ("y", labels(&y))])
    };
    // Batches with more rows than the dictionary has values, and with fewer.
    let cuts = |of: &RecordBatch| [of.clone(), of.slice(1, 7), of.slice(3, 2), of.slice(8, 2)];
    let hashed = TrainSpec {
        vocabulary: VocabularyRule::Buckets(5),
        ..narrow(Split::None)
    };
    for spec in [narrow(Split::None), hashed] {
        let [by_keys, due] = [&dictionary, &plain].map(|f| {
            let batches = cuts(&rows(Arc::clone(f))).to_vec();
            contents(&load(&spec, batches).unwrap())
        });
        assert_eq!(by_keys, due);
    }
    let loaded = load(&narrow(Split::None), vec![rows(dictionary)]).unwrap();
    // Null and three values; that of no row is not one.
    assert_eq!(loaded.vocabularies()[0].distinct(), 4);
    // A label that is a class, and the split, may be dictionaries too.
    let classifier = TrainSpec {
        task: Task::Classification,
        ..narrow(Split::Column("part".into()))
    };
    let parts: DictionaryArray<Int8Type> = ["TRAIN", "EVAL", "TRAIN"].into_iter().collect();
    let parts: ArrayRef = Arc::new(parts);
    let classes: DictionaryArray<Int8Type> = ["no", "yes", "no"].into_iter().collect();
    let classes: ArrayRef = Arc::new(classes);
    let text = |of: &ArrayRef| cast(of, &DataType::Utf8).unwrap();
    let f: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let encoded = [
        [Arc::clone(&parts), Arc::clone(&classes)],
        [text(&parts), text(&classes)],
    ]
    .map(|[part, y]| {
        let batch = batch(vec![("f", Arc::clone(&f)), ("y", y), ("part", part)]);
        contents(&load(&classifier, vec![batch]).unwrap())
    });
    assert_eq!(encoded[0], encoded[1]);
}

#[test]
fn cached_shards_are_not_streamed_again_and_are_the_same() {
    let text = Arc::new(StringArray::from(vec![
        Some("a"),
        None,
        Some("b"),
        Some("a"),
    ]));
    let classes = Arc::new(StringArray::from(vec![
        Some("no"),
        Some("yes"),
        None,
        Some("no"),
    ]));
    let places = Arc::new(Int64Array::from(vec![Some(3), Some(-1), None, Some(2)]));
    let columns = vec![
        ("f", text as ArrayRef),
        ("y", classes),
        ("w", labels(&[1.0, 0.0, 2.0, -1.0])),
        ("s", places),
    ];
    let sequential = Split::Sequential {
        column: "s".into(),
        share: 0.5,
    };
    let classifier = TrainSpec {
        task: Task::Classification,
        sample_weight: Some("w".into()),
        ..narrow(sequential)
    };
    let cases = [
        (spec(), shards(&rows(0..100), 4)),
        (classifier, vec![(7, vec![batch(columns)])]),
    ];
    // In memory, and in files.
    for ((spec, batches), memory) in cases.iter().flat_map(|case| {
        let none = RowMemory {
            loading: 0,
            training: 0,
        };
        [(case, RowMemory::UNLIMITED), (case, none)]
    }) {
        let folder = tempfile::tempdir().unwrap();
        let cache = ShardCache::new(folder.path().join("not/yet/there"), memory);
        let first = load_cached(spec, batches.clone(), Some(&cache), |_| {}).unwrap();
        let in_files = first
            .shards
            .iter()
            .all(|shard| shard.storage != Storage::Memory);
        assert_eq!(in_files, memory != RowMemory::UNLIMITED);
        // One shard has moved here, and one file is truncated.
        let file = |id: usize| folder.path().join("not/yet/there").join(id.to_string());
        let moved = batches[0].0;
        std::fs::remove_file(file(moved)).unwrap();
        let mut streamed = vec![moved];
        if let Some((cut, _)) = batches.get(2) {
            let bytes = std::fs::read(file(*cut)).unwrap();
            std::fs::write(file(*cut), &bytes[..bytes.len() - 1]).unwrap();
            streamed.push(*cut);
        }
        let opened = Arc::new(Mutex::new(vec![]));
        let told = Arc::clone(&opened);
        let again = load_cached(spec, batches.clone(), Some(&cache), move |id| {
            told.lock().push(id)
        });
        assert_eq!(contents(&again.unwrap()), contents(&first));
        // Shards are opened concurrently.
        let mut opened = std::mem::take(&mut *opened.lock());
        opened.sort_unstable();
        assert_eq!(opened, streamed);
        let all = load_cached(spec, batches.clone(), Some(&cache), |id| {
            panic!("shard {id} is cached")
        });
        assert_eq!(contents(&all.unwrap()), contents(&first));
    }
}

#[test]
fn a_text_column_splits() {
    let spec = spec();
    let loaded = load_now(&spec, shards(&rows(0..100), 4)).unwrap();
    assert_eq!((loaded.rows(), loaded.defects()), (100, vec![]));
    let shards = settled(loaded);
    let train: usize = shards.iter().map(|shard| shard.train.len()).sum();
    let eval: usize = shards.iter().map(|shard| shard.eval.len()).sum();
    assert_eq!((train, eval), (70, 20));
}

#[test]
fn a_flag_splits() {
    let spec = narrow(Split::Column("e".into()));
    let flags = Arc::new(BooleanArray::from(vec![true, false, false]));
    let f = Arc::new(Int64Array::from(vec![1, 1, 1]));
    let rows = batch(vec![
        ("f", f),
        ("e", flags),
        ("y", labels(&[1.0, 2.0, 3.0])),
    ]);
    let shard = settled(load(&spec, vec![rows]).unwrap()).remove(0);
    assert_eq!(
        (shard.train.len(), shard.eval.labels.into_vec()),
        (2, vec![1.0])
    );
}

#[test]
fn other_values_do_not_split() {
    let f = || Arc::new(Int64Array::from(vec![1, 1, 1])) as ArrayRef;
    let spec = narrow(Split::Column("e".into()));
    let text = Arc::new(StringArray::from(vec![Some("train"), None, Some("EVAL")]));
    let found = defects(
        &spec,
        vec![("f", f()), ("e", text), ("y", labels(&[1.0; 3]))],
    );
    assert_eq!(found, [(Rule::SplitText, 2, "\"train\"".to_owned())]);
    let flags = Arc::new(BooleanArray::from(vec![Some(true), None, None]));
    let found = defects(
        &spec,
        vec![("f", f()), ("e", flags), ("y", labels(&[1.0; 3]))],
    );
    assert_eq!(found, [(Rule::SplitFlag, 2, "NULL".to_owned())]);
}

#[test]
fn a_random_split_depends_on_the_seed_and_the_hash_alone() {
    let drawn = |seed, backwards: bool, constant: bool| {
        let spec = TrainSpec {
            split: Split::Random(0.3),
            seed,
            ..narrow(Split::None)
        };
        let mut numbers: Vec<i64> = (0..2000).collect();
        if backwards {
            numbers.reverse();
        }
        // Two rows of each hash.
        let hashes = numbers
            .iter()
            .map(|n| Key::new(9, Purpose::Content).with((n / 2) as u64).hash());
        let f = numbers.iter().map(|n| if constant { 0 } else { *n });
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("f", Arc::new(Int64Array::from_iter_values(f))),
            (
                "y",
                labels(&numbers.iter().map(|n| *n as f64).collect::<Vec<_>>()),
            ),
            (split::HASH, Arc::new(UInt64Array::from_iter_values(hashes))),
        ];
        let shard = settled(load(&spec, vec![batch(columns)]).unwrap()).remove(0);
        let mut eval = shard.eval.labels.into_vec();
        eval.sort_unstable_by(f64::total_cmp);
        assert_eq!(shard.train.len() + eval.len(), 2000);
        eval
    };
    let one = drawn(1, false, false);
    assert!((500..700).contains(&one.len()), "{}", one.len());
    assert!(
        one.chunks(2).all(|pair| pair[0] + 1.0 == pair[1]),
        "equal hashes stay together"
    );
    assert_eq!(one, drawn(1, true, true));
    assert_ne!(one, drawn(2, false, false));
}

#[test]
fn rows_take_what_the_spec_says() {
    let batch = rows(0..400);
    for (spec, batch) in [(spec(), batch.clone()), (two_labels(), with_visits(&batch))] {
        let row = spec.rank_memory().unwrap().of_row() as usize;
        let numbers = spec.count(FeatureKind::Continuous) as usize + spec.label.columns.len();
        let unscaled = row + size_of::<f32>() * numbers;
        let loaded = load_now(&spec, shards(&batch, 4)).unwrap();
        let vocabularies = loaded.vocabularies();
        let mut trained = 0;
        for shard in loaded.shards {
            let rows = shard.rows();
            // The part of each row comes with them as they stream, and its place in an epoch later.
            assert_eq!(shard.bytes() as usize, rows * (unscaled + 1));
            assert_eq!(shard.settled_bytes() as usize, rows * (row + 4));
            let settled = settle(shard, &vocabularies, None);
            let train = settled.train.clone();
            if train.len() == 0 {
                continue;
            }
            assert_eq!(train.row_bytes(), unscaled);
            trained += train.len();
            // Rows in memory of their own are the same; null is NaN.
            let bits = |rows: &Rows<f64>| {
                let numbers = rows.continuous.iter().chain(&rows.labels);
                let numbers: Vec<_> = numbers.map(|x| x.to_bits()).collect();
                (rows.codes.to_vec(), numbers, rows.keys.to_vec())
            };
            assert_eq!(bits(&settled.stored().unwrap().train), bits(&train));
        }
        assert!(trained > 100, "{trained}");
    }
}

#[test]
fn bad_labels_are_counted_with_an_example() {
    let f = || Arc::new(Int64Array::from(vec![1; 4])) as ArrayRef;
    let y = Arc::new(Float64Array::from(vec![
        Some(1.0),
        None,
        Some(0.0),
        Some(-2.0),
    ]));
    let mut spec = narrow(Split::None);
    let found = defects(&spec, vec![("f", f()), ("y", y.clone())]);
    assert_eq!(found, [(Rule::Label, 1, "NULL".to_owned())]);
    spec.label.transform = LabelTransform::Ln;
    let found = defects(&spec, vec![("f", f()), ("y", y)]);
    assert_eq!(found, [(Rule::PositiveLabel, 3, "NULL".to_owned())]);
    let found = defects(
        &spec,
        vec![("f", f()), ("y", labels(&[1.0, f64::NAN, 1.0, 1.0]))],
    );
    assert_eq!(found, [(Rule::PositiveLabel, 1, "NaN".to_owned())]);
}

#[test]
fn each_of_several_labels_is_needed() {
    let f = || Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef;
    let mut spec = narrow(Split::None);
    spec.label.columns.push("z".into());
    let (y, z) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
    let columns = vec![("f", f()), ("y", labels(&y)), ("z", labels(&z))];
    let loaded = load(&spec, vec![batch(columns)]).unwrap();
    let train = settled(loaded).remove(0).train;
    assert_eq!(train.len(), 3);
    let mut rows: Vec<_> = train.labels.chunks_exact(2).map(<[f64]>::to_vec).collect();
    rows.sort_by(|left, right| left[0].total_cmp(&right[0]));
    assert_eq!(rows, [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]);
    let z = Arc::new(Float64Array::from(vec![Some(4.0), None, Some(6.0)]));
    let found = defects(&spec, vec![("f", f()), ("y", labels(&y)), ("z", z)]);
    assert_eq!(found, [(Rule::Label, 1, "NULL".to_owned())]);
}

#[test]
fn rows_for_testing_lend_their_values_and_need_no_label() {
    let spec = narrow(Split::Column("e".into()));
    let f = Arc::new(Int64Array::from(vec![1, 2]));
    let e = Arc::new(StringArray::from(vec!["TRAIN", "TEST"]));
    let y = Arc::new(Float64Array::from(vec![Some(1.0), None]));
    let loaded = load(&spec, vec![batch(vec![("f", f), ("e", e), ("y", y)])]).unwrap();
    assert_eq!(
        (loaded.vocabularies()[0].distinct(), loaded.defects()),
        (2, vec![])
    );
    assert_eq!(settled(loaded)[0].train.len(), 1);
}

#[test]
fn rows_for_testing_are_not_counted() {
    let mut spec = narrow(Split::Column("e".into()));
    spec.vocabulary = VocabularyRule::Values {
        min_frequency: 1,
        most: None,
    };
    let f = Arc::new(Int64Array::from(vec![7, 8, 9]));
    let e = Arc::new(StringArray::from(vec!["TRAIN", "TEST", "EVAL"]));
    let y = labels(&[1.0, 1.0, 1.0]);
    let loaded = load(&spec, vec![batch(vec![("f", f), ("e", e), ("y", y)])]).unwrap();
    let vocabulary = loaded.tallies().remove(0).vocabulary(&spec.vocabulary);
    assert_eq!(
        [7, 8, 9].map(|value| vocabulary.code_of_whole(value)),
        [1, 0, 2]
    );
}

#[test]
fn rows_of_weight_zero_leave_nothing() {
    let mut spec = narrow(Split::None);
    spec.sample_weight = Some("w".into());
    let f = Arc::new(Int64Array::from(vec![7, 8, 9]));
    let y = labels(&[1.0, f64::NAN, 3.0]);
    let w = labels(&[1.0, 0.0, 2.5]);
    let loaded = load(&spec, vec![batch(vec![("f", f), ("y", y), ("w", w)])]).unwrap();
    assert_eq!((loaded.rows(), loaded.weightless()), (2, 1));
    assert_eq!(loaded.defects(), vec![]);
    let vocabulary = loaded.vocabularies().remove(0);
    assert_eq!([7, 8, 9].map(|x| vocabulary.code_of_whole(x)), [1, 0, 2]);
    let train = settled(loaded).remove(0).train;
    let mut weights = train.weights.to_vec();
    weights.sort_unstable_by(f32::total_cmp);
    assert_eq!((train.len(), weights), (2, vec![1.0, 2.5]));
}

#[test]
fn other_weights_than_numbers_from_zero_are_refused() {
    let mut spec = narrow(Split::None);
    spec.sample_weight = Some("w".into());
    let f = Arc::new(Int64Array::from(vec![1; 5]));
    let w = Float64Array::from(vec![
        Some(-0.5),
        Some(f64::NAN),
        None,
        Some(1e300),
        Some(0.0),
    ]);
    let columns = vec![
        ("f", f as ArrayRef),
        ("y", labels(&[1.0; 5])),
        ("w", Arc::new(w)),
    ];
    assert_eq!(
        defects(&spec, columns),
        [(Rule::Weight, 4, "-0.5".to_owned())]
    );
}

#[test]
fn numbers_must_be_finite() {
    let mut spec = narrow(Split::None);
    spec.features[0].kind = FeatureKind::Continuous;
    let x = labels(&[1.0, f64::INFINITY, f64::NAN]);
    let found = defects(&spec, vec![("f", x), ("y", labels(&[1.0; 3]))]);
    assert_eq!(found, [(Rule::Continuous, 2, "inf".to_owned())]);
}
