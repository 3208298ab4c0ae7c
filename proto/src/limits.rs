//! Limits on messages between processes, in size and nesting, and the interval of a reading client's sign of life.

use std::time::Duration;

/// Bytes of a query on its way to the scheduler, and of a task on its way to an executor.
pub const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Bytes of the rows of a result that come with the reports of its tasks, in equal shares for its partitions. Executors
/// write rows that exceed their share to files.
pub const SMALL_RESULT: usize = 256 * 1024;

/// Bytes of all tasks sent to an executor at once. Each task has been checked before, so this is the most that the wire
/// can express.
pub const LAUNCH_LIMIT: u32 = u32::MAX;

/// Levels of an expression, as written. Threads that walk through expressions have a stack of [`STACK`] bytes.
pub const NESTED_EXPRESSIONS: usize = 1000;

/// Operators of a query, each the input of the next.
pub const NESTED_OPERATORS: usize = 300;

/// Levels of nested messages that a process accepts: an expression or an operator takes two or three.
pub const NESTED_MESSAGES: usize = 5000;

/// Levels of nested groups that a process accepts. Nobody sends groups; long one-row tables may look like them.
pub const NESTED_GROUPS: u16 = 50_000;

/// Bytes of a request for a partition's rows.
pub const TICKET_LIMIT: usize = 64 * 1024;

/// Bytes of a document that is read whole, such as a manifest.
pub const DOCUMENT_LIMIT: u64 = 256 * 1024 * 1024;

/// Queries of a union: one operator at the sender, nested at the receiver.
pub const UNION_BRANCHES: usize = 2000;

/// Bytes of address space for the stack of a thread that plans or computes; memory is committed as it is used.
pub const STACK: usize = 64 * 1024 * 1024;

/// Interval at which a client that reads a job's rows reports that it is alive.
pub const READER_SIGN: Duration = Duration::from_secs(10);

/// Returns the encoded length of a message in bytes.
pub fn bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// Formats a number of bytes for users.
pub fn size(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

/// Formats a number of rows: `1 row`, `40,000 rows`.
pub fn row_count(rows: u64) -> String {
    let noun = if rows == 1 { "row" } else { "rows" };
    format!("{} {noun}", grouped(rows))
}

/// Formats a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
