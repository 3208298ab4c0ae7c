//! Calls that become queries over their rows: written as text, parsed, and planned like any other query.
//!
//! The query of each call is defined elsewhere.

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{Cte, Ident, Query, TableAlias, With};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use volley_proto::store::ClassType;

use super::call::Call;

/// Name of the caller's rows.
pub(super) const ROWS: &str = "__volley_rows";

/// Labelled rows to judge predictions by.
pub(super) struct Judged<'a> {
    pub(super) rows: Box<Query>,
    /// Name of the label column.
    pub(super) label: &'a str,
    /// Name of the weight column, if there is one.
    pub(super) weight: Option<&'a str>,
    /// Columns that the rows are grouped by.
    pub(super) by: &'a [String],
}

impl Judged<'_> {
    /// Returns a row's weight, if there is one.
    pub(super) fn weight(&self) -> Option<String> {
        let column = self.weight.map(quoted);
        column.map(|column| format!("CAST({column} AS DOUBLE)"))
    }

    /// Returns the condition that a row has a positive weight, to follow others.
    pub(super) fn weighs(&self) -> String {
        let weighs = self.weight().map(|weight| format!(" AND {weight} > 0.0"));
        weighs.unwrap_or_default()
    }
}

/// Parses the text of a query, in which [`ROWS`] are the caller's rows.
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

/// Returns a name as a quoted SQL identifier.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns the model of a call as arguments for another call.
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

/// Returns the SQL type of a class label.
pub(super) fn sql_type(class: ClassType) -> &'static str {
    match class {
        ClassType::Integer => "BIGINT",
        ClassType::Text => "VARCHAR",
        ClassType::Boolean => "BOOLEAN",
        ClassType::Date => "DATE",
    }
}
