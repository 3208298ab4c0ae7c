//! The rows of a table in memory, which travel with a plan.

use std::io::Cursor;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::not_impl_err;
use datafusion::datasource::{MemTable, TableType};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;

use crate::Error;

/// The most that the rows of tables in memory may take in one query, in Arrow's format.
///
/// They go to the scheduler, and to each executor that computes with them, in messages of at most
/// [`MESSAGE_LIMIT`](crate::limits::MESSAGE_LIMIT) with what else a plan has.
pub const ROWS_LIMIT: usize = 8 << 20;

/// The rows of a table in memory as they were at one time, encoded.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    schema: SchemaRef,
    /// One or more.
    partitions: Vec<Arc<[u8]>>,
}

impl Rows {
    /// # Errors
    /// When the table is declared to be in an order, which is not sent.
    pub(super) async fn of(table: &MemTable) -> Result<Self> {
        if !table.sort_order.lock().is_empty() {
            return not_impl_err!("a table in memory with a declared order on a cluster");
        }
        let schema = table.schema();
        let mut partitions = Vec::with_capacity(table.batches.len());
        for partition in &table.batches {
            let batches = partition.read().await;
            partitions.push(encode(&schema, &batches)?.into());
        }
        Ok(Self { schema, partitions })
    }

    /// How many bytes they are.
    pub(super) fn size(&self) -> usize {
        self.partitions.iter().map(|rows| rows.len()).sum()
    }

    /// Lengths, each before what is so long.
    pub(super) fn write(&self, buf: &mut Vec<u8>) {
        for rows in &self.partitions {
            buf.extend_from_slice(&(rows.len() as u64).to_le_bytes());
            buf.extend_from_slice(rows);
        }
    }

    pub(super) fn read(mut buf: &[u8], schema: SchemaRef) -> Result<MemTable> {
        let mut partitions = Vec::new();
        while let Some((length, rest)) = buf.split_first_chunk() {
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(malformed)?;
            let Some((rows, rest)) = rest.split_at_checked(length) else {
                return Err(malformed("it ends in the middle of its rows"));
            };
            partitions.push(decode(rows)?);
            buf = rest;
        }
        MemTable::try_new(schema, partitions)
    }
}

fn encode(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    for batch in batches {
        writer.write(batch)?;
    }
    Ok(writer.into_inner()?)
}

fn decode(rows: &[u8]) -> Result<Vec<RecordBatch>> {
    let batches = StreamReader::try_new(Cursor::new(rows), None)?;
    Ok(batches.collect::<Result<_, _>>()?)
}

fn malformed(error: impl ToString) -> DataFusionError {
    Error::malformed("table in memory", error.to_string()).into()
}

#[async_trait]
impl TableProvider for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = self.partitions.iter().map(|rows| decode(rows));
        let rows = MemTable::try_new(self.schema(), partitions.collect::<Result<_>>()?)?;
        rows.scan(session, projection, filters, limit).await
    }
}
