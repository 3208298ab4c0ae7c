//! A value as typed in `OPTIONS (…)`.

use std::fmt;

use datafusion::sql::sqlparser::ast::{Array, Expr, UnaryOperator, Value};

/// A value in `OPTIONS (…)`.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// `'text'`
    Text(String),
    /// `1`, `1e-4`, as written.
    Number(String),
    /// `true`, `false`
    Bool(bool),
    /// `[…]`
    List(Vec<OptionValue>),
}

impl OptionValue {
    /// The literal that an expression is, or `None` when it is not one.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::Value(literal) => match &literal.value {
                Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => {
                    Some(Self::Text(text.clone()))
                }
                Value::Number(number, _) => Some(Self::Number(number.to_string())),
                Value::Boolean(value) => Some(Self::Bool(*value)),
                _ => None,
            },
            Expr::UnaryOp {
                op: UnaryOperator::Minus,
                expr,
            } => match Self::of(expr)? {
                Self::Number(number) => Some(Self::Number(format!("-{number}"))),
                _ => None,
            },
            Expr::Array(Array { elem, .. }) => elem
                .iter()
                .map(Self::of)
                .collect::<Option<_>>()
                .map(Self::List),
            _ => None,
        }
    }

    /// A text in it, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number it is, if it parses as `T`.
    pub(super) fn number<T: std::str::FromStr>(&self) -> Option<T> {
        match self {
            Self::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    /// Its items as `T`, if it is a list of such.
    pub(super) fn list<T>(&self, item: impl Fn(&Self) -> Option<T>) -> Option<Vec<T>> {
        match self {
            Self::List(items) => items.iter().map(item).collect(),
            _ => None,
        }
    }
}

/// As in SQL.
impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Self::Number(number) => f.write_str(number),
            Self::Bool(value) => write!(f, "{value}"),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
        }
    }
}
