//! Tables in memory: `CREATE TABLE … AS`, whose rows this session has.
//!
//! A query of one takes its rows along to the cluster, so there is a limit to how many there are.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Fields, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::logical_expr::{CreateMemoryTable, DmlStatement};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use volley_proto::plan::ROWS_LIMIT;

use super::settings::JobDescription;
use crate::{Error, Result};

/// Makes a table of the rows of a query, which runs on the cluster as the job of that name.
///
/// # Errors
/// When there is one already, the query fails, or its rows are more than [`ROWS_LIMIT`].
pub(super) async fn create(
    context: &SessionContext,
    statement: CreateMemoryTable,
    text: &str,
) -> Result<()> {
    let CreateMemoryTable {
        name,
        constraints,
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
    let schema = Arc::new(columns(&declared, &coerced, &rows));
    let table = MemTable::try_new(schema, vec![rows])?
        .with_constraints(constraints)
        .with_column_defaults(column_defaults.into_iter().collect());
    if exists {
        context.deregister_table(name.clone())?;
    }
    context.register_table(name, Arc::new(table))?;
    Ok(())
}

/// The columns of a table: as its statement has them, of the types that these are coerced to (a union's to what all of its
/// branches fit into), with NULLs allowed where rows may have them, which how a query is run decides, too.
fn columns(declared: &Schema, coerced: &Schema, rows: &[RecordBatch]) -> Schema {
    let has_nulls = |at: usize| {
        let mut batches = rows.iter().map(RecordBatch::schema);
        batches.any(|batch| batch.field(at).is_nullable())
    };
    let fields = declared.fields().iter().zip(coerced.fields()).enumerate();
    let fields: Fields = fields
        .map(|(at, (field, coerced))| {
            let nullable = field.is_nullable() || has_nulls(at);
            let field = field.as_ref().clone().with_nullable(nullable);
            field.with_data_type(coerced.data_type().clone())
        })
        .collect();
    Schema::new_with_metadata(fields, declared.metadata().clone())
}

/// The table in memory that a statement changes, if it is one.
pub(super) fn target(change: &DmlStatement) -> Option<Arc<dyn TableProvider>> {
    let table = source_as_provider(&change.target).ok()?;
    table.is::<MemTable>().then_some(table)
}
