//! A child process with its output in files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

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
        command.stdout(output).stderr(errors);
        Self::spawn(command, log)
    }

    /// Starts a command with its standard output in a file, or left for the caller to [take](Self::take_stdout), and
    /// its errors in `log`.
    ///
    /// # Panics
    /// When the command cannot be started.
    pub fn start_apart(command: &mut Command, stdout: Option<&Path>, log: &Path) -> Self {
        let create = |path: &Path| File::create(path).expect("a file in the test's folder");
        command.stdout(stdout.map_or_else(Stdio::piped, |path| create(path).into()));
        command.stderr(create(log));
        Self::spawn(command, log)
    }

    fn spawn(command: &mut Command, log: &Path) -> Self {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// Returns the process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes its standard output, if it was started without a file for it.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Kills it without a warning, as a crash would.
    pub fn kill(&mut self) {
        // The process may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Stops it where it is, like a host that swaps, or whose cable is pulled.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Continues it after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Interrupts it, as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("process ids are small");
        // The id belongs to the child until it is waited for, which `kill` and `exit` do.
        nix::sys::signal::kill(Pid::from_raw(id), signal).ok();
    }

    /// Checks whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns its exit status; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Returns its output so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Removes the file of its output, which nobody needs any more.
    pub fn remove_output(&self) {
        std::fs::remove_file(&self.log).ok();
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

/// Asks repeatedly until there is an answer.
///
/// # Panics
/// When there is no answer by the deadline.
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
