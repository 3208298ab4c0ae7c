//! Limits on messages between processes, in size and nesting, the interval of a reading client's sign of life, the days of a
//! window of usage, and sizes in options.

use std::time::Duration;

use bytesize::ByteSize;

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

/// Most days of a window in which usage counts, and for which the scheduler keeps it apart.
pub const USAGE_DAYS: u32 = 92;

/// Interval at which a client that reads a job's rows reports that it is alive.
pub const READER_SIGN: Duration = Duration::from_secs(10);

/// Returns the encoded length of a message in bytes.
pub fn bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// Least memory that an option may give: less is a number without a unit.
const LEAST_MEMORY: ByteSize = ByteSize::kib(64);

/// Parses an amount of memory in an option, such as `4GiB`.
///
/// # Errors
/// When it is no size, or less than 64 KiB; the text says what was probably meant.
pub fn memory(text: &str) -> Result<ByteSize, String> {
    let size = text.parse::<ByteSize>();
    let size = size.map_err(|_| "expected a size such as 4GiB".to_owned())?;
    if size >= LEAST_MEMORY {
        return Ok(size);
    }
    let bytes = size.as_u64();
    let plural = if bytes == 1 { "" } else { "s" };
    Err(match text.trim().parse::<u64>() {
        Ok(number @ 1..=1024) => {
            format!("this is {bytes} byte{plural}; did you mean {number}GiB?")
        }
        _ => format!("this is {bytes} byte{plural}; expected 64KiB at least"),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_unit_is_no_memory() {
        assert_eq!(memory("4GiB"), Ok(ByteSize::gib(4)));
        assert_eq!(memory("1MiB"), Ok(ByteSize::mib(1)));
        for (text, said) in [
            ("4", "this is 4 bytes; did you mean 4GiB?"),
            ("1", "this is 1 byte; did you mean 1GiB?"),
            ("0", "this is 0 bytes; expected 64KiB at least"),
            ("4096", "this is 4096 bytes; expected 64KiB at least"),
            ("3KiB", "this is 3072 bytes; expected 64KiB at least"),
            ("lots", "expected a size such as 4GiB"),
            ("", "expected a size such as 4GiB"),
        ] {
            assert_eq!(memory(text), Err(said.to_owned()), "{text}");
        }
    }
}
