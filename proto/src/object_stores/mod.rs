//! Stores of files that are no local folders: S3, Google Cloud Storage, Azure Blob Storage, and files of web servers and HDFS.
//!
//! ```text
//! URL, options ── open ──> ObjectStore, and MultipartStore where the store takes uploads in parts
//!      └ Stores: those that a process has open, and what the names of options in URLs stand for
//! ```
//!
//! Where a store takes its credentials from is in [`StoreOptions`]. Local folders are no part of it. `Stores`, which
//! DataFusion's sessions have for a registry, is there with the feature `plan`.

mod open;
mod options;
#[cfg(feature = "plan")]
mod registry;
#[cfg(feature = "plan")]
mod remote;
mod retry;
mod statement;

pub use open::{Opened, SCHEMES, is_read_only, is_remote, open};
pub use options::{Secret, StoreOptions};
#[cfg(feature = "plan")]
pub use registry::{Declared, Stores, shown};
#[cfg(feature = "plan")]
pub(crate) use retry::is_truncated;
pub(crate) use retry::{Attempts, RetryPolicy, is_transient, retried};
pub use statement::redacted;
