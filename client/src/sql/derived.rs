//! Calls that are queries over their rows: written as text, parsed, and planned like any other.
//!
//! Not here: which query a call is.

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{Cte, Ident, Query, TableAlias, With};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use volley_proto::store::ClassType;

use super::call::Call;

/// What the caller's rows are called.
pub(super) const ROWS: &str = "__volley_rows";

/// A query of this text, in which [`ROWS`] are the caller's.
pub(super) fn query(text: &str, rows: Box<Query>) -> Result<Box<Query>> {
    let query = Parser::new(&GenericDialect {})
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_query());
    let mut query = query.map_err(|error| DataFusionError::Internal(error.to_string()))?;
    let with = query.with.get_or_insert_with(|| With {
        with_token: AttachedToken::empty(),
        recursive: false,
        cte_tables: vec![],
    });
    let given = Cte {
        alias: TableAlias {
            explicit: true,
            name: Ident::new(ROWS),
            columns: vec![],
            at: None,
        },
        query: rows,
        from: None,
        materialized: None,
        closing_paren_token: AttachedToken::empty(),
    };
    with.cte_tables.insert(0, given);
    Ok(query)
}

/// A name as it is written in SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The model of a call, as an argument of another.
pub(super) fn model(call: &Call) -> String {
    let name = match call.model.quote_style {
        Some(_) => quoted(&call.model.value),
        None => call.model.value.clone(),
    };
    match call.version {
        Some(version) => format!("model => {name}, version => {version}"),
        None => format!("model => {name}"),
    }
}

/// The type of a label that is a class.
pub(super) fn sql_type(class: ClassType) -> &'static str {
    match class {
        ClassType::Integer => "BIGINT",
        ClassType::Text => "VARCHAR",
        ClassType::Boolean => "BOOLEAN",
        ClassType::Date => "DATE",
    }
}
