//! Tables on the way from a client to the scheduler.
//!
//! ```text
//! client                          wire                            scheduler
//! listing table ─ sendable ─> Files   locations, patterns, options    Files
//! table in memory ──────────> Rows    Arrow's format                  a table in memory
//! range(…) ─────────────────> Call    the function and its arguments  Call
//! ```
//!
//! DataFusion encodes listing tables itself, without their patterns and some options, and asks the
//! extension codec for what it does not know: so a plan is made of tables that it does not know.

mod files;
mod format;
mod rows;
mod scan;
mod send;
mod series;
#[cfg(test)]
mod tests;
mod typed;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use serde::{Deserialize, Serialize};

use self::files::EncodedFiles;
pub use self::files::{Files, file_name};
pub(super) use self::format::EncodedFormat;
pub use self::rows::ROWS_LIMIT;
use self::rows::Rows;
pub use self::send::sendable;
pub use self::series::table_functions;
use self::series::{Call, EncodedCall};
pub use self::typed::typed_as;
use super::MAGIC;
use crate::error::{External, Malformed};
use volley_proto::Error;

/// A table without its columns; the bytes of rows follow after it.
#[derive(Debug, Serialize, Deserialize)]
enum EncodedTable {
    Files(EncodedFiles),
    Rows,
    Call(EncodedCall),
}

/// Encodes a table of ours; `false` where it is none.
pub(super) fn encode_table(
    table: &dyn TableProvider,
    codec: &dyn LogicalExtensionCodec,
    buf: &mut Vec<u8>,
) -> Result<bool> {
    let (encoded, rows) = if let Some(files) = table.downcast_ref::<Files>() {
        (EncodedTable::Files(files.encode(codec)?), None)
    } else if let Some(rows) = table.downcast_ref::<Rows>() {
        (EncodedTable::Rows, Some(rows))
    } else if let Some(call) = table.downcast_ref::<Call>() {
        (EncodedTable::Call(call.encode(codec)?), None)
    } else {
        return Ok(false);
    };
    let json = serde_json::to_vec(&encoded).malformed("table")?;
    buf.extend_from_slice(MAGIC);
    buf.extend_from_slice(&(json.len() as u64).to_le_bytes());
    buf.extend_from_slice(&json);
    if let Some(rows) = rows {
        rows.write(buf);
    }
    Ok(true)
}

/// Checks whether a table is one of ours that reads no files.
pub(crate) fn is_without_files(table: &dyn TableProvider) -> bool {
    table.is::<Rows>() || table.is::<Call>()
}

/// Decodes a table; `None` where the bytes are not of one of ours.
pub(super) fn decode_table(
    buf: &[u8],
    schema: &SchemaRef,
    context: &TaskContext,
    codec: &dyn LogicalExtensionCodec,
) -> Result<Option<Arc<dyn TableProvider>>> {
    let Some(buf) = buf.strip_prefix(MAGIC) else {
        return Ok(None);
    };
    let malformed = || Error::malformed("table", "it ends too early");
    let (length, buf) = buf.split_first_chunk().ok_or_else(malformed).external()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (json, rows) = buf
        .split_at_checked(length)
        .ok_or_else(malformed)
        .external()?;
    let table = serde_json::from_slice(json).malformed("table")?;
    Ok(Some(match table {
        EncodedTable::Files(files) => Arc::new(files.table(schema, context, codec)?),
        EncodedTable::Rows => Arc::new(Rows::read(rows, Arc::clone(schema))?),
        EncodedTable::Call(call) => Arc::new(Call::decode(&call, context, codec)?),
    }))
}
