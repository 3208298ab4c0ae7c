//! All-reduce between processes: Volley's collectives compared with PyTorch's over gloo. On one host, Volley's are over
//! TCP, and over Unix sockets with shared memory; on several, over shared memory within a host and TCP between them.
//!
//! `collective` starts Volley's ranks.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::collective::{Host, MESSAGES, Message, Transport, World, question};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};
use crate::peers::{Peer, Peers};

const GLOO: &str = "gloo";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds of each measurement
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Numbers of processes
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    processes: Vec<usize>,
    /// A host of as many processes as the other hosts have, as 'ADDRESS=COMMAND THAT STARTS A PROGRAM THERE'; its files
    /// are those of this host
    #[arg(long = "host")]
    hosts: Vec<Host>,
}

/// Runs the comparison and writes it into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let hosts = args.hosts.as_slice();
    ensure!(
        args.processes
            .iter()
            .all(|count| *count > 0 && count % hosts.len().max(1) == 0),
        "--processes: expected multiples of the {} hosts",
        hosts.len()
    );
    let peers = Peers::install("training")?;
    let dir = tempfile::tempdir()?;
    let mut gloo = peers.start("all_reduce.py", &[], dir.path())?;
    let mut comparison = Comparison::new("all-reduce", "All-reduce between processes", METHOD);
    comparison.note_versions(&gloo.ask(&json!({ "versions": true }))?);
    // The ratio is the required speed relative to gloo.
    let transports = match hosts {
        [] => vec![
            (Transport::Tcp, "TCP".to_owned(), 2.0),
            (Transport::Unix, "Unix sockets".to_owned(), 4.0),
        ],
        _ => vec![(
            Transport::Hosts(hosts),
            format!("{} hosts", hosts.len()),
            1.5,
        )],
    };
    for processes in &args.processes {
        let worlds = transports
            .iter()
            .map(|(transport, ..)| World::start(*processes, *transport, dir.path()));
        let mut worlds = worlds.collect::<anyhow::Result<Vec<_>>>()?;
        for message in MESSAGES {
            let case = |(_, over, ratio): &(_, String, f64)| {
                let name = format!("{}, {processes} processes, {over}", message.name);
                Case::new(name, Unit::Microseconds).at_least(*ratio, GLOO)
            };
            let mut cases: Vec<_> = transports.iter().map(case).collect();
            // One warm-up round.
            for round in 0..=args.rounds {
                // The last turn is gloo's.
                for turn in 0..=transports.len() {
                    let at = (turn + round) % (transports.len() + 1);
                    let median = match worlds.get_mut(at) {
                        Some(world) => world.measure(message)?,
                        None => measure_gloo(&mut gloo, (*processes, hosts), message)?,
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

const METHOD: &str = "Sums of `f32` over processes, in place. A figure is the median of a \
    round's calls on rank 0, from the call to its return. Calls come in groups of eight, one after \
    the other on the same numbers; after each group every rank checks every sum, and the first call \
    of the next is not counted. Rounds alternate between Volley over TCP, as between \
    containers of one host, PyTorch's `all_reduce` over gloo (which is over TCP), and Volley over Unix \
    sockets, as between processes of one host that see each other's files: those have sums of 64 KiB and \
    more in memory that they share, and over the sockets tell each other when to read it. On several hosts, \
    Volley's sum in shared memory within a host and over TCP between hosts. A round's figure for gloo stands in \
    each row.";

fn measure_gloo(
    gloo: &mut Peer,
    (processes, hosts): (usize, &[Host]),
    message: Message,
) -> anyhow::Result<f64> {
    let mut question = question(message);
    question["processes"] = processes.into();
    let hosts = hosts
        .iter()
        .map(|host| json!({ "address": host.address, "command": host.command }));
    question["hosts"] = Value::from_iter(hosts);
    let answer = gloo.ask(&question)?;
    let median = answer["microseconds"].as_f64();
    median.with_context(|| format!("all_reduce.py answered {answer}"))
}
