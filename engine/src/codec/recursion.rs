//! Recursive queries on the wire, for which the engine has no messages.
//!
//! The work table that a recursive term reads is the result of its last round, kept by the query's operator. Both are
//! in one task, and are linked again when the operator is created there.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::work_table::WorkTableExec;
use serde::{Deserialize, Serialize};

/// Maximum number of columns of a work table: unread columns are filled with placeholders.
const MOST_COLUMNS: usize = 1 << 16;

/// Recursive query without its two terms and its columns.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Recursion {
    name: String,
    is_distinct: bool,
}

impl Recursion {
    pub(crate) fn of(query: &RecursiveQueryExec) -> Self {
        Self {
            name: query.name().to_owned(),
            is_distinct: query.is_distinct(),
        }
    }

    pub(crate) fn query(
        self,
        schema: SchemaRef,
        terms: [Arc<dyn ExecutionPlan>; 2],
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [first, recursive] = terms;
        let query =
            RecursiveQueryExec::try_new(self.name, schema, first, recursive, self.is_distinct)?;
        Ok(Arc::new(query))
    }
}

/// Work table that a recursive term reads, without its columns: those after its projection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkTable {
    name: String,
    projection: Option<Vec<usize>>,
}

impl WorkTable {
    /// # Errors
    /// When the table does not say which columns are read.
    pub(crate) fn of(table: &WorkTableExec) -> Result<Self> {
        // DataFusion keeps the projection private, and shows it only in this text.
        let text = format!("{table:?}");
        let projection = text
            .split_once(", projection: ")
            .and_then(|(_, rest)| rest.split_once(", work_table: "))
            .map(|(projection, _)| projection)
            .ok_or_else(|| {
                internal_datafusion_err!("a work table that does not say what is read")
            })?;
        let columns = projection
            .strip_prefix("Some(")
            .and_then(|rest| rest.strip_suffix(')'));
        let projection = columns.map(serde_json::from_str).transpose();
        Ok(Self {
            name: table.name().to_owned(),
            projection: projection
                .map_err(|error| internal_datafusion_err!("a work table reads {text}: {error}"))?,
        })
    }

    /// Creates the work table, read with these columns.
    pub(crate) fn table(self, columns: &SchemaRef) -> Result<Arc<dyn ExecutionPlan>> {
        let table = match self.projection {
            None => WorkTableExec::new(self.name, Arc::clone(columns), None)?,
            Some(projection) => {
                let last = projection.iter().max();
                if projection.len() != columns.fields().len()
                    || last.is_some_and(|last| *last >= MOST_COLUMNS)
                {
                    return internal_err!(
                        "a work table of {} columns that reads the columns {projection:?}",
                        columns.fields().len()
                    );
                }
                // Only the columns that are read are ever used.
                let width = projection.iter().max().map_or(0, |last| last + 1);
                let nothing = Field::new("", DataType::Null, true);
                let nothing = Arc::new(nothing);
                let mut fields: Vec<_> = (0..width).map(|_| Arc::clone(&nothing)).collect();
                for (at, field) in projection.iter().zip(columns.fields()) {
                    fields[*at] = Arc::clone(field);
                }
                let schema = Schema::new_with_metadata(fields, columns.metadata().clone());
                WorkTableExec::new(self.name, Arc::new(schema), Some(projection))?
            }
        };
        Ok(Arc::new(table))
    }
}
