//! Volley's ranks as processes of the trainer's `volley-collective`, which times and checks sums. This module starts
//! the processes and connects them; each benchmark adds its own systems to compare with.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::{Certificates, binary};

/// Calls in a group; the first call is not counted.
const CALLS: usize = 8;

/// Size of a message and number of its measurements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) name: &'static str,
    elements: usize,
    /// Groups of calls per round.
    groups: usize,
}

pub(crate) const MESSAGES: [Message; 3] = [
    Message {
        name: "10 KB",
        elements: 2_500,
        groups: 200,
    },
    Message {
        name: "1 MB",
        elements: 250_000,
        groups: 40,
    },
    // About the size of the Rossmann network's gradient.
    Message {
        name: "11 MB",
        elements: 2_750_000,
        groups: 10,
    },
];

impl Message {
    /// Returns the numbers of the message.
    pub(crate) fn elements(self) -> usize {
        self.elements
    }
}

/// Transport between Volley's ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transport<'a> {
    Tcp,
    Unix,
    Tls(&'a Certificates),
}

/// Builds the measuring request for a peer.
pub(crate) fn question(message: Message) -> Value {
    let Message {
        elements, groups, ..
    } = message;
    json!({ "elements": elements, "groups": groups, "calls": CALLS })
}

/// Connected Volley ranks; killed when dropped.
pub(crate) struct World(Vec<Rank>);

struct Rank {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl World {
    /// Starts and connects the processes. `dir` holds sockets and certificates.
    pub(crate) fn start(
        processes: usize,
        transport: Transport<'_>,
        dir: &Path,
    ) -> anyhow::Result<Self> {
        let program = binary("volley-collective")?;
        let arguments = match transport {
            Transport::Tcp => vec![],
            Transport::Unix => vec![dir.to_owned()],
            Transport::Tls(certificates) => {
                let files = certificates.files().into_iter();
                std::iter::once("--tls".into()).chain(files).collect()
            }
        };
        let mut world = Self(Vec::new());
        let mut endpoints: Vec<Value> = Vec::new();
        for _ in 0..processes {
            let mut command = Command::new(&program);
            let mut rank = Rank::start(command.args(&arguments))?;
            endpoints.push(rank.read()?);
            world.0.push(rank);
        }
        let over_unix = |endpoint: &Value| !endpoint["unix"].is_null();
        ensure!(
            endpoints
                .iter()
                .all(|it| over_unix(it) == matches!(transport, Transport::Unix)),
            "ranks listen elsewhere than asked to: {endpoints:?}"
        );
        // A constant is enough: the secret protects nothing here.
        let secret = [7_u8; 32];
        for (at, rank) in world.0.iter_mut().enumerate() {
            let membership = json!({
                "group": "benchmark", "generation": 1, "rank": at, "peers": endpoints, "secret": secret,
            });
            rank.write(&membership)?;
        }
        Ok(world)
    }

    /// Measures a message; returns rank 0's median time per call, in microseconds.
    pub(crate) fn measure(&mut self, message: Message) -> anyhow::Result<f64> {
        let question = question(message);
        for rank in &mut self.0 {
            rank.write(&question)?;
        }
        let answers = self.0.iter_mut().map(Rank::read);
        let answers = answers.collect::<anyhow::Result<Vec<_>>>()?;
        let median = answers[0]["microseconds"].as_f64();
        median.with_context(|| format!("rank 0 answered {answers:?}"))
    }
}

impl Rank {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stdin = child.stdin.take().context("it has no standard input")?;
        let stdout = child.stdout.take().context("it has no standard output")?;
        let stdout = BufReader::new(stdout);
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    fn write(&mut self, line: &Value) -> anyhow::Result<()> {
        writeln!(self.stdin, "{line}").context("a rank has ended")
    }

    fn read(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line)?;
        ensure!(read > 0, "a rank has ended: its error is above");
        serde_json::from_str(&line).with_context(|| format!("a rank said {line:?}"))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // The process may already have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
