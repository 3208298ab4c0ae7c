//! Error messages as a user reads them.

use std::io::{self, ErrorKind, Write};

use super::Ended;

/// Prints an error and its causes to standard error.
pub(crate) fn report(error: &anyhow::Error) {
    eprintln!("error: {}", chain(error));
}

/// Prints that a signal has ended the command. Returns the end for its exit code.
pub(super) fn cancelled(code: u8) -> Ended {
    eprintln!("cancelled");
    Ended::Interrupted(code)
}

/// Prints a text to standard output at once, for commands with little to print.
///
/// # Errors
/// When standard output cannot be written to: on a full disk, or without a reader.
pub(super) fn print(text: &str) -> Result<(), Stdout> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    written.and_then(|()| stdout.flush()).map_err(Stdout)
}

/// Returns the error and its causes, one a line. Leaves out a cause that the text above it repeats.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(cause.trim()) {
            text.push_str("\n  caused by: ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns whether the reader of standard output is gone (`| head`), which ends a command quietly.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        cause
            .downcast_ref::<Stdout>()
            .is_some_and(|out| broken(&out.0))
    })
}

/// Error: standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub(super) struct Stdout(#[source] pub(super) io::Error);

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn repeated_causes_are_left_out() {
        let error = anyhow!("disk full")
            .context("cannot write: disk full")
            .context("a.sql:3");
        assert_eq!(
            chain(&error),
            "a.sql:3\n  caused by: cannot write: disk full"
        );
    }

    #[test]
    fn only_standard_output_breaks_quietly() {
        let broken = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(
            &anyhow::Error::from(Stdout(broken())).context("a.sql:3")
        ));
        let peer = Err::<(), _>(broken()).context("connection to the scheduler");
        assert!(!is_broken_pipe(&peer.unwrap_err()));
    }
}
