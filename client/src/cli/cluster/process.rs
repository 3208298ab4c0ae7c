//! Process of a cluster: started apart from the command, recognised, stopped.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::state::{Component, Process};

/// Interval of checks while waiting for a process.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// Process to start.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) component: Component,
    pub(super) id: String,
    /// Path among `arguments` that identifies the process.
    pub(super) mark: PathBuf,
    /// Program, if it is not the component's own.
    pub(super) program: Option<PathBuf>,
    pub(super) arguments: Vec<String>,
}

impl Launch {
    /// Starts the program, from `programs` unless it is given, in its own process group, so that Ctrl-C here does not
    /// reach it. Its output goes to `DIR/ID.log`.
    pub(super) fn start(self, programs: &Path, dir: &Path) -> anyhow::Result<(Child, Process)> {
        let Self {
            component,
            id,
            mark,
            program: given,
            arguments,
        } = self;
        let log = dir.join(format!("{id}.log"));
        let open = || {
            let output = File::create(&log)?;
            Ok((output.try_clone()?, output))
        };
        let opened: std::io::Result<_> = open();
        let (stdout, stderr) = opened.with_context(|| format!("cannot write {}", log.display()))?;
        let name = given.as_ref().and_then(|program| program.file_name());
        let name = name.map(|name| name.to_string_lossy().into_owned());
        let program = given.unwrap_or_else(|| programs.join(component.program()));
        let child = Command::new(&program)
            .args(arguments)
            // The logs are files, so no colours.
            .env("NO_COLOR", "1")
            // The cluster makes its own tokens.
            .env_remove("VOLLEY_JOIN_TOKEN_FILE")
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id();
        Ok((
            child,
            Process {
                component,
                id,
                pid,
                address: None,
                log,
                mark,
                program: name,
            },
        ))
    }
}

impl Process {
    /// Returns whether the process still runs, and is the one that was started.
    pub(super) fn is_alive(&self) -> bool {
        command_line(self.pid).is_some_and(|arguments| self.is(&arguments))
    }

    /// Returns whether a command line belongs to this process.
    fn is(&self, arguments: &[String]) -> bool {
        let program = arguments
            .first()
            .and_then(|path| Path::new(path).file_name());
        // A given program may be a script: its command line starts with the interpreter, and then the script.
        let is_program =
            self.program.is_some() || program.is_some_and(|name| name == self.component.program());
        is_program
            && arguments
                .iter()
                .any(|argument| Path::new(argument) == self.mark)
    }

    /// Sends a signal, if the process is still the one that was started.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        let pid = i32::try_from(self.pid).context("a pid that no system gives")?;
        match kill(Pid::from_raw(pid), signal) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).context(format!("cannot stop {} (pid {pid})", self.id)),
        }
    }

    /// Returns the last lines of the log, for an error.
    pub(super) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        format!(
            "the end of {}:\n{}",
            self.log.display(),
            tail(&String::from_utf8_lossy(&log), 20)
        )
    }
}

/// Stops the processes with SIGTERM, and with SIGKILL those that still run after `grace`.
///
/// # Errors
/// When a process cannot be stopped at all.
pub(super) async fn stop_all(processes: &[&Process], grace: Duration) -> anyhow::Result<()> {
    for (signal, patience) in [
        (Signal::SIGTERM, grace),
        (Signal::SIGKILL, Duration::from_secs(5)),
    ] {
        for process in processes {
            process.signal(signal)?;
        }
        let deadline = Instant::now() + patience;
        while processes.iter().any(|process| process.is_alive()) && Instant::now() < deadline {
            sleep(POLL).await;
        }
    }
    match processes.iter().find(|process| process.is_alive()) {
        Some(process) => bail!("{} (pid {}) does not stop", process.id, process.pid),
        None => Ok(()),
    }
}

/// Returns the arguments of a running process; none for a dead one, a zombie included.
fn command_line(pid: u32) -> Option<Vec<String>> {
    if Path::new("/proc/self/cmdline").exists() {
        let text = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let text = String::from_utf8_lossy(&text);
        return Some(text.split_terminator('\0').map(str::to_owned).collect());
    }
    // This is for systems without /proc. It splits paths with spaces, so such a cluster looks dead.
    let pid = pid.to_string();
    let listed = Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&listed.stdout);
    Some(text.split_whitespace().map(str::to_owned).collect())
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(pid: u32) -> Process {
        Process {
            component: Component::Executor,
            id: "executor-0".into(),
            pid,
            address: None,
            log: "/d/executor-0.log".into(),
            mark: "/d/executor-0".into(),
            program: None,
        }
    }

    #[test]
    fn a_process_is_known_by_its_mark_and_its_program_unless_that_is_another() {
        let is = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(str::to_owned).collect();
            executor(1).is(&arguments)
        };
        assert!(is("/b/volley-executor --work-dir /d/executor-0 --vcores 2"));
        assert!(!is("/b/volley-executor --work-dir /other/executor-0"));
        assert!(!is("vim /d/executor-0"));
        let own = Process {
            program: Some("my-executor".to_owned()),
            ..executor(1)
        };
        assert!(own.is(&["/b/my-executor", "/d/executor-0"].map(str::to_owned)));
        assert!(own.is(&["/bin/sh", "/b/my-executor", "/d/executor-0"].map(str::to_owned)));
        assert!(!own.is(&["/b/my-executor", "/other/executor-0"].map(str::to_owned)));
        assert!(!executor(1).is(&[]));
    }

    #[tokio::test]
    async fn a_foreign_process_is_left_alone() {
        let process = executor(std::process::id());
        assert!(!process.is_alive());
        stop_all(&[&process], Duration::ZERO).await.unwrap();
    }

    #[test]
    fn tails_are_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }
}
