//! How large a message between processes may be, how deeply what it says may nest, and how often who reads rows
//! says so.

use std::time::Duration;

/// Bytes that a query may take on its way to the scheduler, and a task on its way to an executor.
pub const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Bytes that all tasks may take that an executor is sent at once. Each has been measured before, so
/// this is what the wire can count to.
pub const LAUNCH_LIMIT: u32 = u32::MAX;

/// Levels of an expression, as it is written. A process takes [`STACK`] for the threads that walk through them.
pub const NESTED_EXPRESSIONS: usize = 1000;

/// Operators of a query, each the input of the next.
pub const NESTED_OPERATORS: usize = 300;

/// Messages in each other, in what a process is sent: an expression or an operator takes two or three.
pub const NESTED_MESSAGES: usize = 5000;

/// Groups in each other, in what a process is sent. Nobody sends any; long tables of one row may look like them.
pub const NESTED_GROUPS: u16 = 50_000;

/// Bytes of a request for a partition's rows.
pub const TICKET_LIMIT: usize = 64 * 1024;

/// Bytes of a document that is read whole, such as a manifest.
pub const DOCUMENT_LIMIT: u64 = 256 * 1024 * 1024;

/// Queries of a union: they are one operator where they are sent, and nest where they arrive.
pub const UNION_BRANCHES: usize = 2000;

/// Bytes of address space for the stack of a thread that plans or computes; memory is taken as it is used.
pub const STACK: usize = 64 * 1024 * 1024;

/// How often a client that reads a job's rows says that it is there.
pub const READER_SIGN: Duration = Duration::from_secs(10);

/// Bytes of a message once it is encoded.
pub fn bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// A number of bytes as users read it.
pub fn size(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
