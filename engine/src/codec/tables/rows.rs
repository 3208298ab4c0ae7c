//! The rows of a table in memory, which travel with a plan.

use std::io::Cursor;
use std::panic::catch_unwind;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::arrow::ipc::{MessageHeader, root_as_message};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::not_impl_err;
use datafusion::datasource::{MemTable, TableType};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;

use crate::error::external;
use volley_proto::Error;

/// The most that the rows of tables in memory may take in one query, in Arrow's format.
///
/// They go to the scheduler, and to each executor that computes with them, in messages of at most
/// [`MESSAGE_LIMIT`](volley_proto::limits::MESSAGE_LIMIT) with what else a plan has.
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

    /// Returns the size of the encoded rows in bytes.
    pub(super) fn size(&self) -> usize {
        self.partitions.iter().map(|rows| rows.len()).sum()
    }

    /// Writes the partitions, each preceded by its length.
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
    check(rows)?;
    // Arrow's reader expects of offsets that are none what it expects of its own.
    let read = || -> Result<Vec<RecordBatch>> {
        let batches = StreamReader::try_new(Cursor::new(rows), None)?;
        Ok(batches.collect::<Result<_, _>>()?)
    };
    catch_unwind(read).unwrap_or_else(|_| Err(malformed("its rows contradict themselves")))
}

/// Checks the lengths in rows in Arrow's format against what is there: its reader reserves what they say.
fn check(mut rows: &[u8]) -> Result<()> {
    const CONTINUES: [u8; 4] = [0xff; 4];
    let short = || malformed("it ends in the middle of its rows");
    loop {
        if rows.is_empty() {
            return Ok(());
        }
        // Before Arrow 0.15 there was only a length; nothing that is sent is so old.
        let rest = rows.strip_prefix(&CONTINUES).ok_or_else(short)?;
        let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let length = usize::try_from(i32::from_le_bytes(*length)).map_err(malformed)?;
        if length == 0 {
            return Ok(());
        }
        let (message, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        let message = root_as_message(message).map_err(malformed)?;
        let length = usize::try_from(message.bodyLength()).map_err(malformed)?;
        let (body, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        let batch = match message.header_type() {
            MessageHeader::DictionaryBatch => {
                let dictionary = message.header_as_dictionary_batch();
                let data = dictionary.and_then(|dictionary| dictionary.data());
                Some(data.ok_or_else(|| malformed("a dictionary without values"))?)
            }
            _ => message.header_as_record_batch(),
        };
        if let Some(batch) = batch {
            if batch.compression().is_some() {
                return Err(malformed(
                    "its rows are compressed, and rows are sent as they are",
                ));
            }
            let is_within = |offset: i64, length: i64| {
                let end = offset
                    .checked_add(length)
                    .and_then(|end| usize::try_from(end).ok());
                offset >= 0 && length >= 0 && end.is_some_and(|end| end <= body.len())
            };
            let mut buffers = batch.buffers().into_iter().flatten();
            if !buffers.all(|buffer| is_within(buffer.offset(), buffer.length())) {
                return Err(malformed("its rows lie elsewhere"));
            }
        }
        rows = rest;
    }
}

fn malformed(error: impl ToString) -> DataFusionError {
    external(Error::malformed("table in memory", error.to_string()))
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
