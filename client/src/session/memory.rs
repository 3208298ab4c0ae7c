//! Tables in memory: `CREATE TABLE … AS`, whose rows this session holds.
//!
//! A query of such a table sends its rows to the cluster, so their number is limited.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Fields, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{CreateMemoryTable, DmlStatement};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{ColumnOption, CreateTable, Statement};
use futures::TryStreamExt;
use volley_engine::ROWS_LIMIT;

use super::settings::JobDescription;
use crate::{Error, Result};

/// Returns the positions of the NOT NULL columns of a `CREATE TABLE … AS`, which its plan omits.
pub(super) fn not_null(statement: &DfStatement) -> Vec<usize> {
    let DfStatement::Statement(statement) = statement else {
        return vec![];
    };
    let Statement::CreateTable(CreateTable {
        columns,
        query: Some(_),
        ..
    }) = statement.as_ref()
    else {
        return vec![];
    };
    let columns = columns.iter().enumerate().filter(|(_, column)| {
        let mut options = column.options.iter().map(|option| &option.option);
        options.any(|option| matches!(option, ColumnOption::NotNull))
    });
    columns.map(|(at, _)| at).collect()
}

/// Creates a table from the rows of a query, which runs on the cluster as a job named `text`.
///
/// # Errors
/// When the table exists, the query fails, it has more than [`ROWS_LIMIT`] rows, or they have NULL in a `not_null`
/// column.
pub(super) async fn create(
    context: &SessionContext,
    statement: CreateMemoryTable,
    not_null: &[usize],
    text: &str,
) -> Result<()> {
    let CreateMemoryTable {
        name,
        // Rows are not checked against constraints, and plans do not rely on them.
        constraints: _,
        input,
        if_not_exists,
        or_replace,
        column_defaults,
        temporary,
    } = statement;
    let refuse = |what: String| Err(Error::NotSupported { what });
    if temporary {
        return refuse("TEMPORARY: a table in memory lasts as long as its session".to_owned());
    }
    if if_not_exists && or_replace {
        return refuse("OR REPLACE together with IF NOT EXISTS".to_owned());
    }
    let exists = context.table_exist(name.clone())?;
    match (exists, if_not_exists, or_replace) {
        (true, true, _) => return Ok(()),
        (true, false, false) => {
            return Err(Error::TableExists {
                table: name.to_string(),
            });
        }
        _ => {}
    }
    let names = input.schema().iter().map(|(_, field)| field.name());
    let mut seen = std::collections::HashSet::new();
    for column in names {
        if !seen.insert(column) {
            let column = column.clone();
            return Err(Error::RepeatedColumn { column });
        }
    }
    let declared = Arc::clone(input.schema().inner());
    let mut state = context.state();
    JobDescription::of(text).note(state.config_mut());
    let mut stream = DataFrame::new(state, Arc::unwrap_or_clone(input))
        .execute_stream()
        .await?;
    let coerced = stream.schema();
    let (mut rows, mut size) = (Vec::new(), 0);
    while let Some(batch) = stream.try_next().await? {
        size += batch.get_array_memory_size();
        if size > ROWS_LIMIT {
            return Err(Error::TableTooLarge {
                table: name.to_string(),
                limit: ROWS_LIMIT >> 20,
            });
        }
        rows.push(batch);
    }
    let has_nulls = |at: &&usize| rows.iter().any(|batch| batch.column(**at).null_count() > 0);
    if let Some(at) = not_null.iter().find(has_nulls) {
        return Err(Error::Clause {
            clause: format!("NOT NULL of column {}", declared.field(*at).name()),
            reason: format!("rows of {name} have NULL there"),
        });
    }
    let schema = Arc::new(columns(&declared, &coerced, &rows, not_null));
    if !not_null.is_empty() {
        let typed = |batch: RecordBatch| {
            let typed = RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec());
            typed.map_err(DataFusionError::from)
        };
        rows = rows.into_iter().map(typed).collect::<Result<_, _>>()?;
    }
    let table = MemTable::try_new(schema, vec![rows])?
        .with_column_defaults(column_defaults.into_iter().collect());
    if exists {
        context.deregister_table(name.clone())?;
    }
    context.register_table(name, Arc::new(table))?;
    Ok(())
}

/// Returns the columns of a table: those of its statement, with their coerced types (for a union, the common type of
/// its branches). A column is nullable if its rows may have NULLs, which also depends on how the query runs.
fn columns(
    declared: &Schema,
    coerced: &Schema,
    rows: &[RecordBatch],
    not_null: &[usize],
) -> Schema {
    let has_nulls = |at: usize| {
        let mut batches = rows.iter().map(RecordBatch::schema);
        batches.any(|batch| batch.field(at).is_nullable())
    };
    let fields = declared.fields().iter().zip(coerced.fields()).enumerate();
    let fields: Fields = fields
        .map(|(at, (field, coerced))| {
            let nullable = !not_null.contains(&at) && (field.is_nullable() || has_nulls(at));
            let field = field.as_ref().clone().with_nullable(nullable);
            field.with_data_type(coerced.data_type().clone())
        })
        .collect();
    Schema::new_with_metadata(fields, declared.metadata().clone())
}

/// Returns the table in memory that a statement changes, if it is one.
pub(super) fn target(change: &DmlStatement) -> Option<Arc<dyn TableProvider>> {
    let table = source_as_provider(&change.target).ok()?;
    table.is::<MemTable>().then_some(table)
}
