//! Remote file stores: S3, Google Cloud Storage, Azure Blob Storage, and files of web servers and HDFS.
//!
//! ```text
//! URL, options ── open ──> ObjectStore, and MultipartStore if the store takes uploads in parts
//! ```
//!
//! [`StoreOptions`] describes where a store takes its credentials from. This module does not handle local folders, nor
//! the registry of a process's open stores.

mod open;
mod options;
mod retry;
mod statement;

pub use open::{Opened, SCHEMES, is_read_only, is_remote, open, root};
pub use options::{Secret, StoreOptions};
pub(crate) use retry::{Attempts, is_transient};
pub use retry::{RetryPolicy, is_truncated, is_unanswered, retried};
pub use statement::redacted;
