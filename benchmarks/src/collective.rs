//! Volley's ranks as processes of the trainer's `volley-collective`, which times and checks sums. This module starts
//! the processes and connects them; each benchmark adds its own systems to compare with.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use crate::cluster::{Certificates, Owned, binary};

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
    /// Unix sockets on each host, TCP between hosts. Each has as many ranks as the others, one after the other.
    Hosts(&'a [Host]),
}

/// Host of ranks: `ADDRESS=COMMAND`.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) address: IpAddr,
    /// Words before a program's, which start it there.
    pub(crate) command: Vec<String>,
}

impl FromStr for Host {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        const EXPECTED: &str = "expected an address, =, and a command that starts programs there, such as \
                                '10.0.0.2=ssh 10.0.0.2'";
        let (address, command) = text.split_once('=').context(EXPECTED)?;
        let command: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            bail!(EXPECTED);
        }
        let address = address.parse().context(EXPECTED)?;
        Ok(Self { address, command })
    }
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
    _child: Owned,
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
        let options = match transport {
            Transport::Tcp => vec![],
            Transport::Unix | Transport::Hosts(_) => vec![dir.to_owned()],
            Transport::Tls(certificates) => {
                let files = certificates.files().into_iter();
                std::iter::once("--tls".into()).chain(files).collect()
            }
        };
        let mut world = Self(Vec::new());
        let mut endpoints: Vec<Value> = Vec::new();
        for rank in 0..processes {
            let host = match transport {
                Transport::Hosts(hosts) => Some(&hosts[rank * hosts.len() / processes]),
                _ => None,
            };
            let address = host.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |host| host.address);
            let mut command = command(host, &program);
            command.arg(address.to_string()).args(&options);
            let mut rank = Rank::start(&mut command)?;
            let mut endpoint = rank.read()?;
            if host.is_some() {
                // Namespaces of one machine are hosts too.
                endpoint["host_id"] = address.to_string().into();
            }
            endpoints.push(endpoint);
            world.0.push(rank);
        }
        let over_unix = |endpoint: &Value| !endpoint["unix"].is_null();
        ensure!(
            endpoints
                .iter()
                .all(|it| over_unix(it)
                    == matches!(transport, Transport::Unix | Transport::Hosts(_))),
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

/// Returns a command for a program on a host, or else here.
fn command(host: Option<&Host>, program: &Path) -> Command {
    let Some((first, rest)) = host.and_then(|host| host.command.split_first()) else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    command
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
            _child: Owned(child),
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
