//! `SIMILAR TO`, whose pattern must match a whole text: `%` and `_` as in `LIKE`, and `|`, `*`, `+`, `?`, `{}`, `()`
//! and `[]` as in regular expressions.
//!
//! DataFusion 55 treats the pattern as a regular expression that matches a part of the text.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value};

use crate::mends::clauses::{Clause, Reading, refuse_if, wrong};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "similar_to",
    wrong: "`SIMILAR TO` takes its pattern for a regular expression of a part of the text",
    upstream: Upstream::Thread("apache/datafusion#22263"),
    query: include_str!("query.sql"),
    acts: &[Act::Clause(Clause::Expr(similar_to))],
};

/// Characters to escape in a regular expression.
const SPECIAL: &str = r"\.+*?()|[]{}^$&-~";

/// Rewrites the expression as a regular expression match.
fn similar_to(expr: &mut Expr, _: &Reading<'_>) -> Result<()> {
    let Expr::SimilarTo {
        negated,
        expr: text,
        pattern,
        escape_char,
    } = expr
    else {
        return Ok(());
    };
    let Expr::Value(value) = pattern.as_mut() else {
        return refuse_if(true, || {
            format!("SIMILAR TO {pattern}, a pattern that is computed: ~ takes regular expressions")
        });
    };
    let Value::SingleQuotedString(pattern) = &mut value.value else {
        return Ok(());
    };
    let escape = match escape_char.as_ref().map(|escape| &escape.value) {
        None => Some('\\'),
        Some(Value::SingleQuotedString(escape)) => {
            let mut chars = escape.chars();
            match (chars.next(), chars.next()) {
                (escape, None) => escape,
                _ => return wrong("ESCAPE", format!("'{escape}' is of several characters")),
            }
        }
        Some(other) => return wrong("ESCAPE", format!("{other} is not a text")),
    };
    *pattern = regular_expression(pattern, escape);
    let op = match negated {
        true => BinaryOperator::PGRegexNotMatch,
        false => BinaryOperator::PGRegexMatch,
    };
    let nothing = || Box::new(Expr::value(Value::Null));
    let left = std::mem::replace(text, nothing());
    let right = Box::new(Expr::Value(value.clone()));
    *expr = Expr::Nested(Box::new(Expr::BinaryOp { left, op, right }));
    Ok(())
}

/// Converts a pattern into a regular expression.
fn regular_expression(pattern: &str, escape: Option<char>) -> String {
    let mut all = "^(?s:".to_owned();
    let mut chars = pattern.chars();
    let mut in_brackets = false;
    while let Some(c) = chars.next() {
        match c {
            c if Some(c) == escape => {
                let literal = chars.next().unwrap_or(c);
                if SPECIAL.contains(literal) {
                    all.push('\\');
                }
                all.push(literal);
            }
            ']' => {
                in_brackets = false;
                all.push(c);
            }
            c if in_brackets => all.push(c),
            '[' => {
                in_brackets = true;
                all.push(c);
            }
            '%' => all.push_str(".*"),
            '_' => all.push('.'),
            '.' | '^' | '$' | '\\' => all.extend(['\\', c]),
            c => all.push(c),
        }
    }
    all.push_str(")$");
    all
}
