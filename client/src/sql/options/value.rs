//! Values as typed in `OPTIONS (…)`.

use std::fmt;

use datafusion::sql::sqlparser::ast::{
    Array, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator, Value,
};

/// Value in `OPTIONS (…)`.
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
    /// `relu`
    Word(String),
    /// `dense(128)`
    Call(String, Vec<OptionValue>),
}

impl OptionValue {
    /// Reads a value from an expression; `None` if the expression is not a literal value.
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
            Expr::Identifier(word) => Some(Self::Word(word.value.clone())),
            Expr::Function(call) => Self::of_call(call),
            _ => None,
        }
    }

    fn of_call(call: &Function) -> Option<Self> {
        let FunctionArguments::List(arguments) = &call.args else {
            return None;
        };
        let is_plain = call.filter.is_none()
            && call.over.is_none()
            && call.within_group.is_empty()
            && arguments.clauses.is_empty()
            && arguments.duplicate_treatment.is_none();
        let argument = |argument: &FunctionArg| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Self::of(expr),
            _ => None,
        };
        let arguments = arguments.args.iter().map(argument).collect::<Option<_>>()?;
        is_plain.then(|| Self::Call(call.name.to_string(), arguments))
    }

    /// Returns the text, if the value is a text.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the number, if the value parses as `T`.
    pub(crate) fn number<T: std::str::FromStr>(&self) -> Option<T> {
        match self {
            Self::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    /// Returns the items as `T`, if the value is a list of such items.
    pub(crate) fn list<T>(&self, item: impl Fn(&Self) -> Option<T>) -> Option<Vec<T>> {
        match self {
            Self::List(items) => items.iter().map(item).collect(),
            _ => None,
        }
    }
}

/// Prints the value as in SQL.
impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            Self::Number(number) => f.write_str(number),
            Self::Bool(value) => write!(f, "{value}"),
            Self::List(items) => write!(f, "[{}]", listed(items)),
            Self::Word(word) => f.write_str(word),
            Self::Call(name, arguments) => write!(f, "{name}({})", listed(arguments)),
        }
    }
}

fn listed(values: &[OptionValue]) -> String {
    let values: Vec<_> = values.iter().map(OptionValue::to_string).collect();
    values.join(", ")
}
