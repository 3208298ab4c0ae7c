use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::*;

fn of(data_type: DataType) -> Schema {
    Schema::new(vec![Field::new("a", data_type, true)])
}

/// Follows a text in pieces of a size; what is wrong with it.
fn followed(schema: &Schema, text: &str, piece: usize) -> Result<(), String> {
    let mut check = Check::new(schema);
    let mut pieces = text.as_bytes().chunks(piece);
    let followed = pieces.try_for_each(|piece| check.follow(piece));
    followed.map_err(|misfit| misfit.error(10).to_string())
}

#[test]
fn values_go_with_columns_that_keep_them() {
    use DataType::{Boolean, Date32, Decimal128, Float64, Int8, Int64, List, UInt64, Utf8};
    let list = List(Arc::new(Field::new_list_field(Int64, true)));
    let time = DataType::Timestamp(TimeUnit::Second, None);
    for (data_type, right, wrong) in [
        (
            Int64,
            &[
                "7",
                "-9223372036854775808",
                "7.0",
                "7e2",
                "1.50e1",
                "0.0e-5",
                "\"12\"",
                "null",
                "-0",
            ][..],
            &[
                "7.5",
                "9223372036854775808",
                "\"0012\"",
                "\"1.0\"",
                "\"1e3\"",
                "\" 7\"",
                "\"\"",
                "\"x\"",
                "true",
                "[7]",
                "{\"a\":7}",
                "0012",
                "1e-1",
                "9007199254740993.0",
                "1e99",
                "1e99999999999999999999",
            ][..],
        ),
        (Int8, &["-128", "127", "\"5\""], &["128", "\"128\"", "1e3"]),
        (
            UInt64,
            &["18446744073709551615"],
            &["-1", "18446744073709551616"],
        ),
        (
            Float64,
            &[
                "7",
                "7.25",
                "0.1",
                "12345678901234567000",
                "9007199254740994",
                "\"1.50\"",
                "\"NaN\"",
                "1e300",
            ],
            &[
                "1e400",
                "9007199254740993",
                "18446744073709551615",
                "\"007\"",
                "\"\"",
                "\"x\"",
                "false",
                "[]",
            ],
        ),
        (
            Decimal128(10, 2),
            &["1.25", "\"1.25\"", "12"],
            &["\"01\"", "\"\"", "true", "{}"],
        ),
        (
            Utf8,
            &["\"x\"", "7", "1.50", "true", "\"\\\"\\\\\""],
            &["[1]", "{\"b\":1}"],
        ),
        (Boolean, &["true", "false"], &["\"true\"", "1", "[true]"]),
        (Date32, &["\"2020-01-02\"", "18000"], &["1.5", "{}"]),
        (time, &["\"2020-01-02T03:04:05\"", "18000"], &["1.5", "[]"]),
        (
            list,
            &["[]", "[1, null,\"2\"]", "null"],
            &["1", "[1.5]", "[[1]]", "{}"],
        ),
    ] {
        let schema = of(data_type);
        let row = |value: &str| format!("{{\"b\": [{{\"a\":\"x\"}}, 1], \"a\" :\n{value}}}");
        for value in right {
            assert_eq!(
                followed(&schema, &row(value), 7),
                Ok(()),
                "{schema} {value}"
            );
        }
        for value in wrong {
            assert!(
                followed(&schema, &row(value), 7).is_err(),
                "{schema} {value}"
            );
        }
    }
}

#[test]
fn an_error_names_the_line_the_column_and_the_value() {
    let inside: Fields = vec![Field::new("b", DataType::Int64, true)].into();
    let schema = of(DataType::Struct(inside));
    let text =
        "{\"a\":{\"b\":1}}\n\n{\"x\":{\"b\":\"z\"},\"a\":{\"c\":0.5,\"\\u0062\":\"0\\u0030x\"}}\n";
    for piece in 1..=text.len() {
        let error = followed(&schema, text, piece).unwrap_err();
        assert!(
            error.contains("line 13 has the text \"0\\u0030x\" in column \"a.b\", which is Int64"),
            "{error}"
        );
    }
}

/// Draws a value that may have others in it.
fn drawn(rng: &mut StdRng, depth: usize) -> Value {
    match rng.random_range(0..if depth > 0 { 9 } else { 7 }) {
        0 => Value::Null,
        1 => json!(rng.random_range(-5..5)),
        2 => json!(f64::from(rng.random_range(-5..5)) / 2.0),
        3 => json!(rng.random::<bool>()),
        4 => json!(["", "7", "07", "x\"y\\", "{\"a\":", "]", "é\n"][rng.random_range(0..7)]),
        5 | 6 => json!(rng.random::<i64>()),
        7 => (0..rng.random_range(0..4))
            .map(|_| drawn(rng, depth - 1))
            .collect(),
        _ => {
            let names = ["a", "b", "c\"", "d"];
            let fields = (0..rng.random_range(0..4)).map(|_| {
                (
                    names[rng.random_range(0..4)].to_owned(),
                    drawn(rng, depth - 1),
                )
            });
            Value::Object(fields.collect())
        }
    }
}

/// Checks whether a value goes with a type, by a walk through the parsed value.
fn goes_with(value: &Value, of: &DataType) -> bool {
    match (value, of) {
        (Value::Null, _) => true,
        (Value::Array(items), DataType::List(item)) => {
            items.iter().all(|value| goes_with(value, item.data_type()))
        }
        (Value::Object(fields), DataType::Struct(of)) => fields.iter().all(|(name, value)| {
            of.find(name)
                .is_none_or(|(_, field)| goes_with(value, field.data_type()))
        }),
        (Value::Bool(_), DataType::Boolean) => true,
        (Value::Bool(_) | Value::Number(_) | Value::String(_), DataType::Utf8) => true,
        (Value::Number(number), DataType::Int64) => {
            number.is_i64() || number.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        (Value::String(text), DataType::Int64) => text == "7",
        _ => false,
    }
}

#[test]
fn drawn_values_are_followed_however_the_bytes_arrive() {
    let list = |of| DataType::List(Arc::new(Field::new_list_field(of, true)));
    let inside: Fields = vec![
        Field::new("a", DataType::Int64, true),
        Field::new("c\"", list(DataType::Utf8), true),
    ]
    .into();
    let fields: Fields = vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", DataType::Struct(inside), true),
        Field::new("c\"", list(list(DataType::Boolean)), true),
    ]
    .into();
    let (schema, row) = (Schema::new(fields.clone()), DataType::Struct(fields));
    let mut rng = StdRng::seed_from_u64(1);
    let mut seen = [0, 0];
    for _ in 0..20_000 {
        let value = loop {
            let value = drawn(&mut rng, 3);
            if value.is_object() {
                break value;
            }
        };
        let text = match rng.random() {
            true => value.to_string(),
            false => serde_json::to_string_pretty(&value).unwrap(),
        };
        let due = goes_with(&value, &row);
        let piece = rng.random_range(1..=text.len());
        let found = followed(&schema, &text, piece);
        assert_eq!(found.is_ok(), due, "{text}: {found:?}");
        seen[usize::from(due)] += 1;
    }
    assert!(seen.iter().all(|seen| *seen > 1000), "{seen:?}");
}

#[test]
fn no_bytes_make_it_panic() {
    let inside: Fields = vec![Field::new("b", DataType::Float64, true)].into();
    let schema = of(DataType::Struct(inside));
    bolero::check!().with_iterations(10_000).for_each(|bytes| {
        let mut check = Check::new(&schema);
        let _ = check.follow(bytes);
        let _ = check.follow(bytes);
    });
}
