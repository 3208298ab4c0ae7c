//! A query's rows from any system, and their comparison with another system's.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Rows of an answer, in order. Columns are matched by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    rows: Vec<BTreeMap<String, Value>>,
}

impl Answer {
    /// Builds an answer from rows as objects.
    pub(super) fn of_rows(rows: Vec<Value>) -> Self {
        let object = |row| match row {
            Value::Object(row) => row,
            _ => Map::new(),
        };
        let row = |row| {
            let fields = object(row).into_iter();
            fields
                .map(|(name, value)| (name.to_lowercase(), value))
                .collect()
        };
        Self {
            rows: rows.into_iter().map(row).collect(),
        }
    }

    /// Builds an answer from a peer's reply: names in `columns`, and values in `rows`.
    pub(super) fn of_peer(said: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let names = list(&said["columns"]);
        let names = names.iter().filter_map(Value::as_str);
        let names: Vec<_> = names.map(str::to_lowercase).collect();
        let row = |row: &Value| names.iter().cloned().zip(list(row)).collect();
        Self {
            rows: list(&said["rows"]).iter().map(row).collect(),
        }
    }

    /// Returns the first difference from the expected answer.
    pub(super) fn differs(&self, expected: &Self) -> Option<String> {
        let (found, wanted) = (self.rows.len(), expected.rows.len());
        if found != wanted {
            return Some(format!("{found} rows instead of {wanted}"));
        }
        let pairs = self.rows.iter().zip(&expected.rows);
        pairs.enumerate().find_map(|(at, (found, wanted))| {
            let different = found.len() != wanted.len()
                || wanted
                    .iter()
                    .any(|(name, value)| !found.get(name).is_some_and(|found| same(found, value)));
            let shown = |row| serde_json::to_string(row).unwrap_or_default();
            different.then(|| {
                let row = at + 1;
                format!("row {row} is {} instead of {}", shown(found), shown(wanted))
            })
        })
    }
}

/// Compares two values; numbers with a tolerance, because some systems round averages.
fn same(a: &Value, b: &Value) -> bool {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-4 + 1e-6 * a.abs().max(b.abs()),
        _ => a == b,
    }
}

/// Returns a number, even if it is written as text to keep its digits.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_shown() {
        let expected = json!({"columns": ["N", "x"], "rows": [["a", 1.0], ["b", null]]});
        let expected = Answer::of_peer(&expected);
        let answer = |x: Value| {
            Answer::of_rows(vec![
                json!({"n": "a", "X": x}),
                json!({"n": "b", "X": null}),
            ])
        };
        assert_eq!(answer(json!("1.00001")).differs(&expected), None);
        assert_eq!(
            answer(json!(2)).differs(&expected).unwrap(),
            r#"row 1 is {"n":"a","x":2} instead of {"n":"a","x":1.0}"#
        );
        assert!(answer(json!(null)).differs(&expected).is_some());
        let fewer = Answer::of_rows(vec![]).differs(&expected);
        assert_eq!(fewer.unwrap(), "0 rows instead of 2");
    }
}
