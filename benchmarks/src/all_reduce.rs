//! All-reduce between processes of one host: Volley's collectives over TCP, and over Unix sockets
//! with shared memory, against PyTorch's over gloo.
//!
//! Volley's ranks are processes of the trainer's `volley-collective`, which knows how a call is
//! timed and checked; here they are started and told of each other.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::cluster::{Certificates, binary};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};
use crate::peers::{Peer, Peers};

const GLOO: &str = "gloo";
/// Calls in a group; the first is not counted.
const CALLS: usize = 8;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How many processes take part
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    processes: Vec<usize>,
}

/// What is summed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) name: &'static str,
    elements: usize,
    /// Groups of calls in a round.
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
    // Nearly the gradient of the Rossmann network.
    Message {
        name: "11 MB",
        elements: 2_750_000,
        groups: 10,
    },
];

/// How Volley's ranks are connected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Transport<'a> {
    Tcp,
    Unix,
    Tls(&'a Certificates),
}

/// Runs the comparison and writes it into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let peers = Peers::install("training")?;
    let dir = tempfile::tempdir()?;
    let mut gloo = peers.start("all_reduce.py", &[], dir.path())?;
    let mut comparison = Comparison::new("all-reduce", "All-reduce on one host", METHOD);
    comparison.note_versions(&gloo.ask(&json!({ "versions": true }))?);
    let transports = [Transport::Tcp, Transport::Unix];
    for processes in &args.processes {
        let start = |transport: &Transport<'_>| World::start(*processes, *transport, dir.path());
        let mut worlds: Vec<_> = transports
            .iter()
            .map(start)
            .collect::<anyhow::Result<_>>()?;
        for message in MESSAGES {
            let case = |transport: &Transport<'_>| case(*processes, message, *transport);
            let mut cases: Vec<_> = transports.iter().map(case).collect();
            // One round to warm up.
            for round in 0..=args.rounds {
                // The last turn is gloo's.
                for turn in 0..=transports.len() {
                    let at = (turn + round) % (transports.len() + 1);
                    let median = match worlds.get_mut(at) {
                        Some(world) => world.measure(message)?,
                        None => measure_gloo(&mut gloo, *processes, message)?,
                    };
                    if round == 0 {
                        continue;
                    }
                    match cases.get_mut(at) {
                        Some(case) => case.push(VOLLEY, median),
                        None => cases.iter_mut().for_each(|case| case.push(GLOO, median)),
                    }
                }
            }
            eprintln!("{}, {processes} processes", message.name);
            comparison.cases.extend(cases);
        }
    }
    if args
        .processes
        .iter()
        .any(|n| *n > comparison.report.machine.cores)
    {
        comparison.remark(
            "With more processes than cores, the kernel's scheduling is a large part of a call."
                .to_owned(),
        );
    }
    comparison.write(results)
}

const METHOD: &str = "Sums of `f32` over processes of one host, in place. A figure is the median of a \
    round's calls on rank 0, from the call to its return. Calls come in groups of eight, one after \
    the other on the same numbers; after each group every rank checks every sum, and the first call \
    of the next is not counted. Rounds alternate between Volley over TCP, as between \
    containers of one host, PyTorch's `all_reduce` over gloo (which is over TCP), and Volley over Unix \
    sockets, as between processes of one host that see each other's files: those have sums of 64 KiB and \
    more in memory that they share, and over the sockets tell each other when to read it. A round's figure \
    for gloo stands in each row.";

fn case(processes: usize, message: Message, transport: Transport<'_>) -> Case {
    let (over, at_least) = match transport {
        Transport::Tcp => ("TCP", Some(2.0)),
        Transport::Unix => ("Unix sockets", Some(4.0)),
        // Gloo does not encrypt: there is nothing to compare with.
        Transport::Tls(_) => ("TLS", None),
    };
    let name = format!("{}, {processes} processes, {over}", message.name);
    let case = Case::new(name, Unit::Microseconds);
    match at_least {
        Some(ratio) => case.at_least(ratio, GLOO),
        None => case,
    }
}

fn measure_gloo(gloo: &mut Peer, processes: usize, message: Message) -> anyhow::Result<f64> {
    let mut question = question(message);
    question["processes"] = processes.into();
    let answer = gloo.ask(&question)?;
    let median = answer["microseconds"].as_f64();
    median.with_context(|| format!("all_reduce.py answered {answer}"))
}

fn question(message: Message) -> Value {
    let Message {
        elements, groups, ..
    } = message;
    json!({ "elements": elements, "groups": groups, "calls": CALLS })
}

/// Volley's ranks, connected; killed when dropped.
pub(crate) struct World(Vec<Rank>);

struct Rank {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl World {
    /// Connects so many processes; sockets and certificates are in a folder.
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
        // There is nobody to keep it from.
        let secret = [7_u8; 32];
        for (at, rank) in world.0.iter_mut().enumerate() {
            let membership = json!({
                "group": "benchmark", "generation": 1, "rank": at, "peers": endpoints, "secret": secret,
            });
            rank.write(&membership)?;
        }
        Ok(world)
    }

    /// The median of a call on rank 0, in microseconds.
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
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
