//! How large a message between processes may be.

/// Bytes that a query may take on its way to the scheduler, and a task on its way to an executor.
pub const MESSAGE_LIMIT: usize = 16 * 1024 * 1024;

/// Bytes that all tasks may take that an executor is sent at once. Each has been measured before, so
/// this is what the wire can count to.
pub const LAUNCH_LIMIT: u32 = u32::MAX;

/// Bytes of a message once it is encoded.
pub fn bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// A number of bytes as users read it.
pub fn size(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}
