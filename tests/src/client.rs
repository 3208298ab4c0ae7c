//! A `volley` command that runs while the test does something else.

use std::path::PathBuf;
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use crate::{Process, Run};

/// Running command; killed when dropped.
#[derive(Debug)]
pub struct Client {
    process: Process,
    /// File of its standard output, unless the test reads it.
    stdout: Option<PathBuf>,
}

impl Client {
    /// Starts a command with its output in these files.
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn start(command: &mut Command, stdout: PathBuf, log: PathBuf) -> Self {
        Self {
            process: Process::start_apart(command, Some(&stdout), &log),
            stdout: Some(stdout),
        }
    }

    /// Starts a command whose output the test reads, as slowly as it likes.
    pub(crate) fn start_piped(command: &mut Command, log: PathBuf) -> (Self, ChildStdout) {
        let mut process = Process::start_apart(command, None, &log);
        let stdout = process.take_stdout().expect("it was started with a pipe");
        let stdout_file = None;
        (
            Self {
                process,
                stdout: stdout_file,
            },
            stdout,
        )
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Returns its standard error so far.
    pub fn said(&self) -> String {
        self.process.output()
    }

    /// Waits until it prints a line that contains `part`, and returns the line; `None` if it ends without.
    ///
    /// # Panics
    /// When neither happens by the deadline.
    pub fn try_await_line(&mut self, part: &str, deadline: Duration) -> Option<String> {
        let started = Instant::now();
        loop {
            let ended = self.process.ended().is_some();
            let said = self.said();
            let whole = said.rfind('\n').map_or("", |end| &said[..end]);
            if let Some(line) = whole.lines().find(|line| line.contains(part)) {
                return Some(line.to_owned());
            }
            if ended {
                return None;
            }
            assert!(
                started.elapsed() < deadline,
                "waited {deadline:?} for a line with {part:?}:\n{said}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until it prints a line that contains `part`, and returns the line.
    ///
    /// # Panics
    /// When it ends without the line, or has not printed it by the deadline.
    pub fn await_line(&mut self, part: &str, deadline: Duration) -> String {
        let line = self.try_await_line(part, deadline);
        line.unwrap_or_else(|| panic!("it ended without saying {part:?}:\n{}", self.said()))
    }

    /// Waits until it ends, and removes the files of its output.
    ///
    /// # Panics
    /// When it has not ended by the deadline.
    pub fn wait(mut self, deadline: Duration) -> Run {
        self.end(deadline)
    }

    /// Does the same as [`wait`](Self::wait), once, for a command whose place another one takes.
    ///
    /// # Panics
    /// When it has not ended by the deadline.
    pub fn end(&mut self, deadline: Duration) -> Run {
        let started = Instant::now();
        let status = loop {
            match self.process.ended() {
                Some(status) => break status,
                None if started.elapsed() > deadline => {
                    panic!("it did not end within {deadline:?}:\n{}", self.said())
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let stdout = self.stdout.as_ref().map(std::fs::read_to_string);
        let run = Run {
            code: status.code(),
            stdout: stdout.and_then(Result::ok).unwrap_or_default(),
            stderr: self.said(),
        };
        self.process.remove_output();
        if let Some(stdout) = &self.stdout {
            std::fs::remove_file(stdout).ok();
        }
        run
    }
}
