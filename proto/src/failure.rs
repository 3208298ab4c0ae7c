//! Marked text of a task's failure, which survives the trip to the client.
//!
//! Ballista carries a failed task's error as the debug print of its own error types. A failure that is marked before
//! can be found again in that text, whole and unescaped: the mark includes the message's length, as a message may
//! contain the mark's end.
//!
//! ```text
//!   [[volley 21: label "Sales" is null]]
//! ```

use std::fmt;

/// Error of a job that was cancelled, as the engine's status carries it.
pub const CANCELLED: &str = "Cancelled";

const OPEN: &str = "[[volley ";
const CLOSE: &str = "]]";

/// Writes a message with its mark around it.
fn mark(f: &mut fmt::Formatter<'_>, open: &str, message: &str) -> fmt::Result {
    write!(f, "{open}{}: {message}{CLOSE}", message.len())
}

/// Returns the first marked message in a text. If escaping has changed the text, so that the length does not match, the
/// message ends at the first end of a mark.
fn marked<'a>(text: &'a str, open: &str) -> Option<&'a str> {
    text.match_indices(open).find_map(|(at, _)| {
        let (len, message) = text[at + open.len()..].split_once(": ")?;
        let len: usize = len.parse().ok()?;
        let whole = message.get(..len).zip(message.get(len..));
        match whole.filter(|(_, rest)| rest.starts_with(CLOSE)) {
            Some((message, _)) => Some(message),
            None => message.split_once(CLOSE).map(|(message, _)| message),
        }
    })
}

/// Error message, marked.
#[derive(Clone, PartialEq, Eq)]
pub struct TaskFailure {
    message: String,
}

impl TaskFailure {
    /// Marks an error's message, with its causes, each named once.
    pub fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self {
            message: chain(error),
        }
    }

    /// Returns the message of the first failure marked in a text.
    pub fn find(text: &str) -> Option<&str> {
        marked(text, OPEN)
    }
}

impl fmt::Debug for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        mark(f, OPEN, &self.message)
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for TaskFailure {}

/// Loss of a job's data that an executor held. The job can be run again.
///
/// The scheduler finds the marked text in an error again, whatever wraps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataLost {
    /// Executor that held the data.
    pub executor: String,
    /// Reason of the loss.
    pub reason: String,
}

impl DataLost {
    const OPEN: &'static str = "[[volley-lost ";

    /// Returns the first loss marked in a text.
    pub fn find(text: &str) -> Option<Self> {
        let (executor, reason) = marked(text, Self::OPEN)?.split_once(": ")?;
        Some(Self {
            executor: executor.to_owned(),
            reason: reason.to_owned(),
        })
    }
}

impl fmt::Display for DataLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { executor, reason } = self;
        mark(f, Self::OPEN, &format!("{executor}: {reason}"))
    }
}

impl std::error::Error for DataLost {}

/// Returns an error and its causes in one line, leaving out a cause that the line already contains.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_in_whatever_it_is_wrapped_in() {
        let error = std::io::Error::other("label \"Sales\" is null");
        let failure = TaskFailure::new(&error);
        let text = format!("Task failed: DataFusionError(External({failure:?}))");
        assert_eq!(TaskFailure::find(&text), Some("label \"Sales\" is null"));
        assert_eq!(TaskFailure::find("nothing"), None);
    }

    #[test]
    fn a_message_that_holds_the_mark_s_end_is_found_whole() {
        let said =
            "option class_weights = [['a', 2]]: only with a classifier; [[volley 7: x]] is none";
        let failure = TaskFailure::new(&std::io::Error::other(said));
        let text = format!("Task failed: External({failure}), after [[volley 3: cut");
        assert_eq!(TaskFailure::find(&text), Some(said));
        let escaped = format!(
            "{:?}",
            TaskFailure::new(&std::io::Error::other("a \"b\"")).to_string()
        );
        assert_eq!(TaskFailure::find(&escaped), Some("a \\\"b\\\""));
        for none in ["[[volley 9: cut", "[[volley x: x]]", "[[volley 1"] {
            assert_eq!(TaskFailure::find(none), None, "{none}");
        }
    }

    #[test]
    fn a_loss_is_found_with_its_executor() {
        let lost = DataLost {
            executor: "e-1".into(),
            reason: "cannot fetch: connection refused".into(),
        };
        let text = format!("Task failed: {:?}", TaskFailure::new(&lost));
        assert_eq!(DataLost::find(&text), Some(lost));
        assert_eq!(DataLost::find("[[volley 1: x]]"), None);
    }
}
