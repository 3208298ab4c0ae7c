//! Types of columns, and their values.

use std::cmp::Ordering;

/// Type of a column or an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    Bool,
    Small,
    Int,
    Double,
    Decimal,
    Text,
    Date,
    Timestamp,
    /// List of `Int`.
    List,
    /// Struct of `a`, an `Int`, and `b`, a `Text`.
    Struct,
}

/// Value of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// Value of `Small` or `Int`.
    Int(i64),
    Double(f64),
    /// Number of hundredths.
    Decimal(i64),
    Text(String),
    /// Days since 1970.
    Date(i32),
    /// Seconds since 1970.
    Timestamp(i64),
    List(Vec<Option<i64>>),
    Struct(Option<i64>, Option<String>),
}

impl Type {
    /// Types that have an order and literals.
    pub(crate) const PLAIN: [Self; 8] = [
        Self::Int,
        Self::Text,
        Self::Small,
        Self::Double,
        Self::Decimal,
        Self::Bool,
        Self::Date,
        Self::Timestamp,
    ];

    /// Returns its name in SQL.
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Self::Bool => "BOOLEAN",
            Self::Small => "INT",
            Self::Int => "BIGINT",
            Self::Double => "DOUBLE",
            Self::Decimal => "DECIMAL(12, 2)",
            Self::Text => "VARCHAR",
            Self::Date => "DATE",
            Self::Timestamp => "TIMESTAMP",
            Self::List => "BIGINT[]",
            Self::Struct => "STRUCT<a BIGINT, b VARCHAR>",
        }
    }

    /// Returns whether it consists of other types.
    pub(crate) fn is_nested(self) -> bool {
        matches!(self, Self::List | Self::Struct)
    }
}

impl Value {
    /// Formats the value as a cell of a CSV file.
    pub(crate) fn csv(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Double(value) => double(*value),
            Self::Decimal(cents) => decimal(*cents),
            Self::Text(text) if text.contains([',', '"', '\n']) => {
                format!("\"{}\"", text.replace('"', "\"\""))
            }
            Self::Text(text) => text.clone(),
            Self::Date(days) => date(i64::from(*days)),
            Self::Timestamp(seconds) => timestamp(*seconds),
            Self::List(_) | Self::Struct(..) => format!("\"{}\"", self.json().replace('"', "\"\"")),
        }
    }

    /// Formats the value as a constant in a statement.
    pub(crate) fn sql(&self) -> String {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let whole =
            |value: &Option<i64>| value.map_or("NULL".to_owned(), |value| value.to_string());
        match self {
            Self::Null => "NULL".to_owned(),
            Self::Bool(_) | Self::Int(_) | Self::Decimal(_) => self.csv(),
            Self::Double(value) => format!("CAST('{}' AS DOUBLE)", double(*value)),
            Self::Text(text) => quoted(text),
            Self::Date(_) => format!("DATE '{}'", self.csv()),
            Self::Timestamp(_) => format!("TIMESTAMP '{}'", self.csv()),
            Self::List(values) => {
                let values: Vec<_> = values.iter().map(whole).collect();
                format!("CAST([{}] AS BIGINT[])", values.join(", "))
            }
            Self::Struct(a, b) => {
                let b = b.as_deref().map_or("NULL".to_owned(), quoted);
                format!(
                    "{{'a': CAST({} AS BIGINT), 'b': CAST({b} AS VARCHAR)}}",
                    whole(a)
                )
            }
        }
    }

    /// Formats the value for a JSON file.
    pub(crate) fn json(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let whole =
            |value: &Option<i64>| value.map_or("null".to_owned(), |value| value.to_string());
        match self {
            Self::Null => "null".to_owned(),
            Self::Double(value) if !value.is_finite() => "null".to_owned(),
            Self::Bool(_) | Self::Int(_) | Self::Double(_) | Self::Decimal(_) => self.csv(),
            Self::Text(text) => quoted(text),
            Self::Date(_) | Self::Timestamp(_) => quoted(&self.csv()),
            Self::List(values) => {
                format!(
                    "[{}]",
                    values.iter().map(whole).collect::<Vec<_>>().join(",")
                )
            }
            Self::Struct(a, b) => {
                let b = b.as_deref().map_or("null".to_owned(), quoted);
                format!("{{\"a\":{},\"b\":{b}}}", whole(a))
            }
        }
    }

    /// Compares two values of one type, in SQL's order.
    pub(crate) fn order(&self, other: &Self, descending: bool, nulls_first: bool) -> Ordering {
        let nulls = |ordering: Ordering| {
            if nulls_first {
                ordering
            } else {
                ordering.reverse()
            }
        };
        let ordering = match (self, other) {
            (Self::Null, Self::Null) => return Ordering::Equal,
            (Self::Null, _) => return nulls(Ordering::Less),
            (_, Self::Null) => return nulls(Ordering::Greater),
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Int(a), Self::Int(b))
            | (Self::Decimal(a), Self::Decimal(b))
            | (Self::Timestamp(a), Self::Timestamp(b)) => a.cmp(b),
            (Self::Double(a), Self::Double(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Date(a), Self::Date(b)) => a.cmp(b),
            (a, b) => panic!("one column holds {a:?} and {b:?}, or is not one to sort by"),
        };
        if descending {
            ordering.reverse()
        } else {
            ordering
        }
    }
}

pub(super) fn double(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        _ if value == f64::INFINITY => "inf".to_owned(),
        _ if value == f64::NEG_INFINITY => "-inf".to_owned(),
        _ => format!("{value:?}"),
    }
}

fn decimal(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.abs() / 100, cents.abs() % 100)
}

/// Formats a day in the Gregorian calendar (H. Hinnant, "chrono-compatible low-level date algorithms").
fn date(days: i64) -> String {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

fn timestamp(seconds: i64) -> String {
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}", date(days))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_sql_reads_them() {
        let written = |value: Value| value.csv();
        assert_eq!(written(Value::Date(0)), "1970-01-01");
        assert_eq!(written(Value::Date(18_661)), "2021-02-03");
        assert_eq!(written(Value::Date(-1)), "1969-12-31");
        assert_eq!(written(Value::Date(11_016)), "2000-02-29");
        assert_eq!(written(Value::Timestamp(86_399)), "1970-01-01T23:59:59");
        assert_eq!(written(Value::Decimal(-5)), "-0.05");
        assert_eq!(written(Value::Text("a,\"b\"".into())), "\"a,\"\"b\"\"\"");
        assert_eq!(written(Value::Double(f64::NEG_INFINITY)), "-inf");
        assert_eq!(Value::Text("it's".into()).sql(), "'it''s'");
        assert_eq!(Value::Timestamp(0).sql(), "TIMESTAMP '1970-01-01T00:00:00'");
        assert_eq!(
            Value::List(vec![Some(1), None]).sql(),
            "CAST([1, NULL] AS BIGINT[])"
        );
        assert_eq!(
            Value::Struct(None, Some("x".into())).json(),
            r#"{"a":null,"b":"x"}"#
        );
    }
}
