//! A scheduler and executors as processes, and the `volley` command against them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::{Process, binary, eventually};

/// Debug builds on a busy machine are slow to start.
const START: Duration = Duration::from_secs(60);
/// No single command of a test takes longer unless it hangs.
const COMMAND: Duration = Duration::from_secs(300);

/// A cluster on loopback with a model store and a folder of its own.
#[derive(Debug)]
pub struct Cluster {
    address: String,
    executors: Vec<Process>,
    scheduler: Process,
    dir: TempDir,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Run {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it printed to standard output.
    pub stdout: String,
    /// What it printed to standard error.
    pub stderr: String,
}

impl Cluster {
    /// Starts a scheduler and this many executors of one slot each.
    ///
    /// # Panics
    /// When it is not up by the deadline.
    pub fn start(executors: usize) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("volley-test-")
            .tempdir()
            .expect("a folder");
        let address_file = dir.path().join("address");
        let mut scheduler = Command::new(binary("volley-scheduler"));
        scheduler
            .args(["--bind", "127.0.0.1:0", "--address-file"])
            .arg(&address_file);
        let scheduler = Process::start(&mut scheduler, &dir.path().join("scheduler.log"));
        let address = eventually("the scheduler's address", START, || {
            std::fs::read_to_string(&address_file).ok()
        });
        let mut cluster = Self {
            address,
            executors: Vec::new(),
            scheduler,
            dir,
        };
        for _ in 0..executors {
            cluster.add_executor();
        }
        cluster.await_executors(executors);
        cluster
    }

    /// Starts one more executor.
    pub fn add_executor(&mut self) {
        let id = format!("executor-{}", self.executors.len());
        let mut executor = Command::new(binary("volley-executor"));
        executor
            .args([
                "--scheduler",
                &self.address,
                "--id",
                &id,
                "--vcores",
                "1",
                "--work-dir",
            ])
            .arg(self.dir.path().join(&id));
        let log = self.dir.path().join(format!("{id}.log"));
        self.executors.push(Process::start(&mut executor, &log));
    }

    /// Waits until this many executors are registered.
    ///
    /// # Panics
    /// When they are not by the deadline.
    pub fn await_executors(&self, count: usize) {
        eventually("executors to register", START, || {
            let answer: serde_json::Value =
                serde_json::from_str(&self.get("/api/executors")).ok()?;
            (answer.as_array()?.len() == count).then_some(())
        });
    }

    /// The body of the scheduler's answer to a GET, or nothing.
    pub fn get(&self, path: &str) -> String {
        let answer = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(
                stream,
                "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: application/json\r\n\r\n"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer
                .split_once("\r\n\r\n")
                .map(|(_, body)| body.to_owned())
                .unwrap_or_default())
        };
        answer().unwrap_or_default()
    }

    /// The scheduler, as `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A folder of the test's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The folder of the model store.
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// The executors' processes.
    pub fn executors(&mut self) -> &mut [Process] {
        &mut self.executors
    }

    /// The scheduler's process.
    pub fn scheduler(&mut self) -> &mut Process {
        &mut self.scheduler
    }

    /// The `volley` command against this cluster and its store.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary("volley"));
        command
            .args(["--scheduler", &self.address, "--store"])
            .arg(self.store());
        command.current_dir(self.dir.path());
        command
    }

    /// Runs `volley` with these arguments to its end.
    pub fn run(&self, args: &[&str]) -> Run {
        run(self.command().args(args))
    }

    /// Runs SQL and returns its rows as JSON.
    ///
    /// # Panics
    /// When it fails.
    pub fn query(&self, sql: &str) -> Vec<serde_json::Value> {
        let run = self.run(&["--format", "json", "--quiet", "-c", sql]);
        assert_eq!(run.code, Some(0), "{sql}\n{}", run.stderr);
        let row = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        run.stdout
            .lines()
            .filter(|line| !line.is_empty())
            .map(row)
            .collect()
    }

    /// Runs SQL that must fail, checks that the cluster is alive after it, and returns what was
    /// said to the user.
    ///
    /// # Panics
    /// When it succeeds, or the cluster answers nothing any more.
    pub fn fail(&self, sql: &str) -> String {
        let run = self.run(&["--format", "json", "--quiet", "-c", sql]);
        assert_eq!(
            run.code,
            Some(1),
            "should fail: {sql}\n{}\n{}",
            run.stdout,
            run.stderr
        );
        assert_eq!(self.query("SELECT 1 AS one")[0]["one"], 1, "after {sql}");
        run.stderr
    }
}

/// Runs a command to its end, or kills it at the deadline.
fn run(command: &mut Command) -> Run {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let read = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(mut stream) = stream {
                stream.read_to_string(&mut text).ok();
            }
            text
        })
    };
    let stdout = read(child.stdout.take().map(|s| Box::new(s) as _));
    let stderr = read(child.stderr.take().map(|s| Box::new(s) as _));
    let started = std::time::Instant::now();
    let code = loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => break status.code(),
            None if started.elapsed() > COMMAND => {
                child.kill().ok();
                child.wait().ok();
                let said = stderr.join().unwrap_or_default();
                panic!("{command:?} did not end within {COMMAND:?}\n{said}");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let text = |reader: std::thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Run {
        code,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}
