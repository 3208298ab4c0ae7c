//! Stores of files that are no local folders: S3, Google Cloud Storage, Azure Blob Storage, and files of web servers and HDFS.
//!
//! ```text
//! URL, options ── open ──> ObjectStore, and MultipartStore where the store takes uploads in parts
//! ```
//!
//! Where a store takes its credentials from is in [`StoreOptions`]. Local folders are no part of it, nor is which stores
//! a process has open.

mod open;
mod options;
mod retry;
mod statement;

pub use open::{Opened, SCHEMES, is_read_only, is_remote, open, root};
pub use options::{Secret, StoreOptions};
pub(crate) use retry::{Attempts, is_transient};
pub use retry::{RetryPolicy, is_truncated, retried};
pub use statement::redacted;
