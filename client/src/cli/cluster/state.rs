//! State of a cluster between commands: `cluster.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use comfy_table::{Table, presets};
use serde::{Deserialize, Serialize};

const FILE: &str = "cluster.json";

/// Processes of one cluster. The file is written after each start, so that no process is forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// True if it speaks TLS only; `None` if another version started it.
    #[serde(default)]
    pub(super) tls: Option<bool>,
    /// Certificates of its authority, if it speaks TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tls_ca: Option<PathBuf>,
    pub(super) processes: Vec<Process>,
}

/// Process of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Process {
    pub(super) component: Component,
    /// Id, unique in the cluster.
    pub(super) id: String,
    pub(super) pid: u32,
    /// Address `host:port`, once it is known.
    pub(super) address: Option<String>,
    pub(super) log: PathBuf,
    /// Path among its arguments that no other process has, by which it is recognised.
    pub(super) mark: PathBuf,
    /// File name of its program, if it is not the component's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<String>,
}

impl Process {
    /// Returns the file name of its program.
    pub(super) fn program(&self) -> &str {
        self.program.as_deref().unwrap_or(self.component.program())
    }
}

/// Component that a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Component {
    Scheduler,
    Executor,
}

impl Component {
    /// Returns the file name of its program, unless another is given.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Scheduler => "volley-scheduler",
            Self::Executor => "volley-executor",
        }
    }
}

impl State {
    /// Reads the cluster's state in `dir`, if one was started there.
    ///
    /// # Errors
    /// When the file cannot be read, or has another format.
    pub(super) fn read(dir: &Path) -> anyhow::Result<Option<Self>> {
        let path = dir.join(FILE);
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
        };
        let malformed = || format!("{} is not a cluster's state", path.display());
        serde_json::from_slice(&json)
            .map(Some)
            .with_context(malformed)
    }

    /// Replaces the state file in one step.
    pub(super) fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let (path, draft) = (dir.join(FILE), dir.join("cluster.json.new"));
        let json = serde_json::to_vec_pretty(self).context("cannot encode the cluster's state")?;
        fs::write(&draft, json)
            .and_then(|()| fs::rename(&draft, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the state file and the processes' scratch files in `dir`; the logs stay.
    pub(super) fn remove(&self, dir: &Path) -> anyhow::Result<()> {
        for Process { mark, .. } in self.processes.iter().filter(|p| p.mark.starts_with(dir)) {
            let removed = if mark.is_dir() {
                fs::remove_dir_all(mark)
            } else {
                fs::remove_file(mark)
            };
            if let Err(error) = removed
                && error.kind() != ErrorKind::NotFound
            {
                tracing::warn!("cannot remove {}: {error}", mark.display());
            }
        }
        let path = dir.join(FILE);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Returns the scheduler's address, once it is known.
    pub(super) fn scheduler(&self) -> Option<&str> {
        let scheduler = self
            .processes
            .iter()
            .find(|process| process.component == Component::Scheduler)?;
        scheduler.address.as_deref()
    }

    /// Formats a table with a header and a line for each process.
    pub(super) fn table(&self, is_alive: impl Fn(&Process) -> bool) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["PROCESS", "ID", "PID", "STATE", "ADDRESS", "LOG"]);
        for process in &self.processes {
            table.add_row([
                process.program(),
                &process.id,
                &process.pid.to_string(),
                if is_alive(process) { "alive" } else { "dead" },
                process.address.as_deref().unwrap_or("-"),
                &process.log.display().to_string(),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.trim_fmt() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor(dir: &Path) -> Process {
        Process {
            component: Component::Executor,
            id: "executor-0".into(),
            pid: 4_000_000,
            address: Some("127.0.0.1:1234".into()),
            log: dir.join("executor-0.log"),
            mark: dir.join("executor-0"),
            program: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), None);
        let state = State {
            tls: Some(false),
            tls_ca: None,
            processes: vec![executor(dir.path())],
        };
        state.write(dir.path()).unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), Some(state));
        fs::write(dir.path().join(FILE), "{}").unwrap();
        assert!(State::read(dir.path()).is_err());
    }

    #[test]
    fn removal_takes_scratch_files_and_leaves_others() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(dir.path().join("executor-0")).unwrap();
        let foreign = Process {
            mark: other.path().into(),
            ..executor(dir.path())
        };
        let state = State {
            tls: Some(false),
            tls_ca: None,
            processes: vec![executor(dir.path()), foreign],
        };
        state.write(dir.path()).unwrap();
        state.remove(dir.path()).unwrap();
        assert!(!dir.path().join("executor-0").exists() && other.path().exists());
        assert_eq!(State::read(dir.path()).unwrap(), None);
    }

    #[test]
    fn the_table_is_aligned() {
        let state = State {
            tls: Some(false),
            tls_ca: None,
            processes: vec![executor(Path::new("/d"))],
        };
        let expected = "\
PROCESS          ID          PID      STATE  ADDRESS         LOG
volley-executor  executor-0  4000000  dead   127.0.0.1:1234  /d/executor-0.log
";
        assert_eq!(state.table(|_| false), expected);
    }
}
