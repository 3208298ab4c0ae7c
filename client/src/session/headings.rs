//! Headings of a result: expressions of a query's `SELECT` list as they were typed.
//!
//! DataFusion names a column without an alias by its plan: `1 + 1` is `Int64(1) + Int64(1)`. Only a result that is shown is
//! renamed, and only columns whose name has such a literal: tables, views, written files and data frames keep DataFusion's
//! names.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{SelectItem, SetExpr, Statement};
use futures::TryStreamExt;

use super::Output;

/// Starts of literals in DataFusion's names.
const LITERALS: [&str; 9] = [
    "Int64(",
    "UInt64(",
    "Float64(",
    "Utf8(",
    "Boolean(",
    "Decimal128(",
    "Decimal256(",
    "IntervalMonthDayNano(",
    "Binary(",
];

/// Most characters of a heading; a longer expression keeps DataFusion's name.
const LONGEST: usize = 200;

/// Expressions of a `SELECT` list.
#[derive(Debug, Default)]
pub(super) struct Headings {
    /// Columns before a wildcard, or all; `None` for one with a name.
    first: Vec<Option<String>>,
    /// Columns after the wildcard, if there is one.
    last: Option<Vec<Option<String>>>,
}

impl Headings {
    /// Reads the `SELECT` list of a query; nothing of other statements.
    pub(super) fn of(statement: &DfStatement) -> Self {
        let DfStatement::Statement(statement) = statement else {
            return Self::default();
        };
        match statement.as_ref() {
            Statement::Query(query) => Self::of_body(&query.body),
            _ => Self::default(),
        }
    }

    /// Reads the list of the first `SELECT`, which names the columns of a union.
    fn of_body(body: &SetExpr) -> Self {
        match body {
            SetExpr::Select(select) => Self::of_list(&select.projection),
            SetExpr::Query(query) => Self::of_body(&query.body),
            SetExpr::SetOperation { left, .. } => Self::of_body(left),
            _ => Self::default(),
        }
    }

    fn of_list(list: &[SelectItem]) -> Self {
        let mut headings = Self::default();
        for item in list {
            let typed = match item {
                SelectItem::UnnamedExpr(expr) => Some(expr.to_string()),
                SelectItem::ExprWithAlias { .. } => None,
                // The columns of two wildcards cannot be told apart.
                _ if headings.last.is_some() => return Self::default(),
                _ => {
                    headings.last = Some(Vec::new());
                    continue;
                }
            };
            let typed = typed.filter(|typed| typed.chars().count() <= LONGEST);
            headings
                .last
                .as_mut()
                .unwrap_or(&mut headings.first)
                .push(typed);
        }
        headings
    }

    /// Returns the heading of a column of so many.
    fn get(&self, at: usize, columns: usize) -> Option<&str> {
        let typed = match &self.last {
            None if self.first.len() == columns => self.first.get(at),
            Some(last) if self.first.len() + last.len() <= columns => {
                let after = (at + last.len()).checked_sub(columns);
                self.first.get(at).or_else(|| last.get(after?))
            }
            _ => None,
        };
        typed?.as_deref()
    }

    /// Renames the columns of a result.
    pub(super) fn name(&self, output: Output) -> Output {
        let schema = self.schema(&output.schema);
        if schema == output.schema {
            return output;
        }
        let named = Arc::clone(&schema);
        let rows = output.rows.map_ok(move |batch| {
            let columns = batch.columns().to_vec();
            // The types are those of the same columns.
            let renamed = RecordBatch::try_new(Arc::clone(&named), columns);
            renamed.unwrap_or(batch)
        });
        Output {
            rows: Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), rows)),
            schema,
            ..output
        }
    }

    fn schema(&self, planned: &SchemaRef) -> SchemaRef {
        let columns = planned.fields().len();
        let fields = planned.fields().iter().enumerate().map(|(at, field)| {
            let is_planned = LITERALS
                .iter()
                .any(|literal| field.name().contains(literal));
            match self.get(at, columns).filter(|_| is_planned) {
                Some(typed) => Arc::new(Field::clone(field).with_name(typed)),
                None => Arc::clone(field),
            }
        });
        let fields: Vec<_> = fields.collect();
        Arc::new(Schema::new_with_metadata(
            fields,
            planned.metadata().clone(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn named(sql: &str, planned: &[&str]) -> Vec<String> {
        let statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
        let field = |name: &&str| Field::new(*name, arrow::datatypes::DataType::Int64, true);
        let planned: Vec<_> = planned.iter().map(field).collect();
        let schema = Headings::of(&statement).schema(&Arc::new(Schema::new(planned)));
        schema
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect()
    }

    #[test]
    fn columns_have_the_text_that_was_typed() {
        let one = [
            "Int64(1) + Int64(1)",
            "Utf8(\"me\")",
            "count(*)",
            "Int64(2)",
        ];
        assert_eq!(
            named("SELECT 1+1, 'me', count(*), 2 AS \"Int64(2)\" FROM t", &one),
            ["1 + 1", "'me'", "count(*)", "Int64(2)"]
        );
        let all = ["a", "b", "t.a + Int64(1)"];
        assert_eq!(named("SELECT *, a + 1 FROM t", &all), ["a", "b", "a + 1"]);
        let first = ["t.a + Int64(1)", "a", "b"];
        assert_eq!(named("SELECT a + 1, * FROM t", &first), ["a + 1", "a", "b"]);
        let union = "SELECT 1 UNION ALL SELECT 2";
        assert_eq!(named(union, &["Int64(1)"]), ["1"]);
    }

    #[test]
    fn columns_that_cannot_be_told_keep_their_names() {
        let planned = ["a", "Int64(1)", "b"];
        for sql in [
            "SELECT *, 1, * FROM t",
            "SELECT 1 FROM t",
            "VALUES (1, 2, 3)",
            "SHOW TABLES",
            &format!("SELECT a, 1{}, b FROM t", " + 1".repeat(100)),
        ] {
            assert_eq!(named(sql, &planned), planned, "{sql}");
        }
    }
}
