//! The size limit of task messages.
//!
//! Ballista sends all tasks for an executor in one message. If it cannot be sent, Ballista treats the executor as
//! lost, and everybody's work there with it. So each task is measured first, and one that is too large fails its own
//! job; messages themselves have only the wire's limit.

use volley_proto::limits::{MESSAGE_LIMIT, size};

/// Checks that a task of this many bytes can be sent.
///
/// # Errors
/// When the task is too large; names its size and the limit.
pub(super) fn task_fits(stage: usize, bytes: usize) -> Result<(), String> {
    if bytes <= MESSAGE_LIMIT {
        return Ok(());
    }
    Err(format!(
        "the query is too large: a task of its stage {stage} takes {} when it is sent to an \
         executor, and the limit is {}; long lists of values (IN (…), VALUES) belong in a table, such as a file, that the query joins",
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
