//! `TRANSFORM (…)` of `CREATE MODEL`: the columns that a model computes from its rows, in training and in prediction.
//!
//! ```text
//! Clause ── columns ──> Columns: `*` expanded, ML functions parsed ── fits ──> queries ──> numbers
//!                          └───────────── settle(numbers) ──> SQL text ──> Transform, in the manifest
//! Transform ── expressions ──> expressions over rows, in training and in prediction alike
//! ```
//!
//! The functions are BigQuery ML's for manual preprocessing. This module does no I/O: queries are text, which the
//! session runs.

mod apply;
mod columns;
mod fit;
mod functions;

pub(crate) use apply::{Labelled, expressions, labelled, prepared, read_columns};
pub(crate) use columns::{Clause, Columns, only};
pub(crate) use fit::cut_query;

use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use crate::{Error, Result};

/// Builds the error of an expression.
fn wrong(expression: impl ToString, reason: impl Into<String>) -> Error {
    Error::Transform {
        expression: expression.to_string(),
        reason: reason.into(),
    }
}

/// Parses an expression that was saved, or generated here.
fn parse(sql: &str) -> Result<Expr> {
    let expr = Parser::new(&GenericDialect {})
        .try_with_sql(sql)
        .and_then(|mut parser| {
            let expr = parser.parse_expr()?;
            parser.expect_token(&datafusion::sql::sqlparser::tokenizer::Token::EOF)?;
            Ok(expr)
        });
    expr.map_err(|error| DataFusionError::SQL(Box::new(error), None).into())
}

#[cfg(test)]
mod tests;
