//! Whether a task fits into a message.
//!
//! Ballista sends all tasks that an executor gets at once in one message. If that cannot be sent, it
//! takes the executor for lost, and everybody's work with it. So each task is measured before, and one
//! that is too large fails its own job; messages themselves have no limit but the wire's.

use volley_proto::limits::{MESSAGE_LIMIT, size};

/// Whether a task of so many bytes can be sent.
///
/// # Errors
/// What is too large, and the limit.
pub(super) fn task_fits(stage: usize, bytes: usize) -> Result<(), String> {
    if bytes <= MESSAGE_LIMIT {
        return Ok(());
    }
    Err(format!(
        "the query is too large: a task of its stage {stage} takes {} when it is sent to an \
         executor, and the limit is {}; long lists of values (IN (…), VALUES) belong into a table, \
         a file for example, that the query joins",
        size(bytes),
        size(MESSAGE_LIMIT),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_said_with_the_limit() {
        assert_eq!(task_fits(2, MESSAGE_LIMIT), Ok(()));
        let said = task_fits(2, 3 * MESSAGE_LIMIT / 2).unwrap_err();
        assert!(said.contains("stage 2 takes 24.0 MiB"), "{said}");
        assert!(said.contains("the limit is 16.0 MiB"), "{said}");
    }
}
