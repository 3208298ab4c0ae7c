//! Files as tables: `FROM 'folder/*.parquet'`, and what `CREATE EXTERNAL TABLE` finds out about its files.
//!
//! ```text
//! 'y=2024/*.csv.gz' ── place ──> files, sorted ── kind ──> format, compression
//!                                  │ folders k=v ────────> partition columns
//!                                  └ schema of each ─────> schema of all, or which two differ
//! 'folder' with a Delta log ─ delta ─> files, columns
//! ```
//!
//! Files are found anew whenever a query is planned; the columns are those of the first time that a
//! statement named them, which a view keeps. The scheduler reads the files that were found here, so both
//! must see them at the same paths, or in the same store.

mod create;
mod delta;
mod kind;
mod place;
mod remote;
mod schema;
mod table;

pub(super) use self::create::FilesFactory;
pub(super) use self::remote::located;
pub(super) use self::table::{FileTables, listed};
