//! A child process with its output in a file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A child process; killed when dropped, its output printed when the test is failing.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command with its output in `log`.
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let output = File::create(log).expect("a log can be made in the test's folder");
        let errors = output.try_clone().expect("a file can be shared");
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it without a warning, as a crash would.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has printed.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.output());
        }
    }
}

/// Asks again and again until there is an answer.
///
/// # Panics
/// When there is none by the deadline.
pub fn eventually<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            started.elapsed() < deadline,
            "waited {deadline:?} for {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
