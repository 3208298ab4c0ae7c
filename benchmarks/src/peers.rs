//! The systems that Volley is compared with: Python programs under `benchmarks/peers`, in virtual environments
//! created for them, never a dependency of Volley. Each group of peers has its own environment, so that comparing
//! SQL does not install the packages for comparing training.
//!
//! A peer is started once and then receives requests, each a line of JSON on its standard input, so that rounds of
//! several systems alternate while each stays warm. It answers each request with a line of JSON on its standard
//! output; `{"error": …}` is a failure. Its standard error goes to a log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::machine::{descendants, peak_memory_mib};

/// Timeout of each answer.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Python environment of a group of peers.
pub(crate) struct Peers {
    python: PathBuf,
}

impl Peers {
    /// Creates or updates a group's environment in the user's cache folder, with the packages in
    /// `peers/requirements-{group}.txt`. If `VOLLEY_PYTHON` names a Python that has them, nothing is installed.
    pub(crate) fn install(group: &str) -> anyhow::Result<Self> {
        if let Some(python) = std::env::var_os("VOLLEY_PYTHON") {
            let python = PathBuf::from(python);
            ensure!(
                python.is_file(),
                "VOLLEY_PYTHON = {} is no program: it is the path of a python with what \
                 peers/requirements-{group}.txt lists",
                python.display()
            );
            return Ok(Self { python });
        }
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let cache = cache
            .or_else(home)
            .context("neither XDG_CACHE_HOME nor HOME is set")?;
        let venv = cache.join(format!("volley-benchmarks/venv-{group}"));
        let python = venv.join("bin/python");
        if !python.exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        }
        let requirements = folder().join(format!("requirements-{group}.txt"));
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--requirement"])
            .arg(requirements);
        run(&mut pip)?;
        Ok(Self { python })
    }

    /// Returns the command for a program installed with the group's packages.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.python.with_file_name(name))
    }

    /// Starts a peer: a script under `benchmarks/peers`. Its log is `{script}.log` in `dir`.
    pub(crate) fn start(&self, script: &str, args: &[&str], dir: &Path) -> anyhow::Result<Peer> {
        let log = dir.join(format!("{script}.log"));
        let mut child = Command::new(&self.python)
            .arg(folder().join(script))
            .args(args)
            .current_dir(dir)
            .env("PYSPARK_PYTHON", &self.python)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {script}"))?;
        let questions = child.stdin.take();
        let stdout = child.stdout.take().context("it has no standard output")?;
        let (say, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Peer {
            script: script.to_owned(),
            child,
            questions,
            answers,
            log,
        })
    }
}

/// Running peer; killed when dropped.
pub(crate) struct Peer {
    script: String,
    child: Child,
    /// Standard input of the peer; closed when it receives no more requests.
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
    log: PathBuf,
}

impl Peer {
    /// Sends a request, and waits for the answer.
    pub(crate) fn ask(&mut self, question: &Value) -> anyhow::Result<Value> {
        let Self { script, log, .. } = self;
        let questions = self.questions.as_mut();
        writeln!(questions.context("it has no standard input")?, "{question}")
            .with_context(|| format!("{script} has ended: see {}", log.display()))?;
        // Libraries print to standard output too: only a line that is an object is an answer.
        let answer: Value = loop {
            let line = self.answers.recv_timeout(DEADLINE).with_context(|| {
                format!("no answer of {script} to {question}: see {}", log.display())
            })?;
            match serde_json::from_str(&line) {
                Ok(answer @ Value::Object(_)) => break answer,
                _ => continue,
            }
        };
        if let Some(error) = answer.get("error") {
            bail!("{script} failed at {question}: {error}");
        }
        Ok(answer)
    }

    /// Sends a request whose answer is a time, in seconds.
    pub(crate) fn seconds(&mut self, question: &Value) -> anyhow::Result<f64> {
        let answer = self.ask(question)?;
        let seconds = answer["seconds"].as_f64();
        seconds.with_context(|| format!("{} gave no seconds: {answer}", self.script))
    }

    /// Asks for the versions of the peer's software, by name.
    pub(crate) fn versions(&mut self) -> anyhow::Result<BTreeMap<String, String>> {
        let answer = self.ask(&json!({"versions": true}))?;
        serde_json::from_value(answer["versions"].clone())
            .with_context(|| format!("{} gave no versions: {answer}", self.script))
    }

    /// Closes the peer's input, and waits until the peer has ended.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.questions = None;
        let (script, log) = (&self.script, &self.log);
        // Remaining output is not an answer; it ends when the peer does.
        let ended = loop {
            match self.answers.recv_timeout(DEADLINE) {
                Ok(_) => {}
                Err(ended) => break ended,
            }
        };
        ensure!(
            ended == RecvTimeoutError::Disconnected,
            "{script} does not end: see {}",
            log.display()
        );
        let status = self.child.wait()?;
        ensure!(
            status.success(),
            "{script} ended with {status}: see {}",
            log.display()
        );
        Ok(())
    }

    /// Returns the sum of the peak memory of the peer and its living descendants, in MiB.
    pub(crate) fn peak_mib(&self) -> f64 {
        let own = self.child.id();
        let all = descendants(own).into_iter().chain([own]);
        all.filter_map(peak_memory_mib).sum()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let started_by_it = descendants(self.child.id());
        // The process may already have ended.
        self.child.kill().ok();
        self.child.wait().ok();
        for process in started_by_it {
            Command::new("kill").arg(process.to_string()).status().ok();
        }
    }
}

/// Returns the folder of the peers' programs.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
