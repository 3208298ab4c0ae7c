//! One rank as its own process, which sums numbers with its peers and reports the time that this takes.
//! `volley-benchmarks all-reduce` starts several of them and is their rendezvous.
//!
//! ```text
//!   $ volley-collective ADDRESS [FOLDER FOR UNIX SOCKETS]    listens there; without folder: TCP
//!   $ volley-collective ADDRESS --tls CA CERTIFICATE KEY     TCP under TLS
//!   > (an endpoint)                              address for its peers
//!   < (a membership)                             list of all ranks
//!   < {"elements": n, "groups": n, "calls": n}   as often as wanted
//!   > {"microseconds": m}                        median time of a call
//! ```
//!
//! The calls of a group follow one another on the same numbers, and every result is checked at the end of the group.
//! The first call of each group is not counted: it also waits for ranks that are still checking.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use volley_proto::address::{ListenAddress, PortRange};
use volley_proto::tls::Tls;
use volley_trainer::collective::{Communicator, Listener, Membership, Options};

/// Request for a measurement.
#[derive(Debug, Deserialize)]
struct Question {
    elements: usize,
    groups: usize,
    /// Calls per group.
    calls: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from).peekable();
    let address = arguments.next().ok_or("no address to listen on")?;
    let address = address.to_str().ok_or("no address")?.parse()?;
    let address = ListenAddress::new(address, PortRange::FREE, None)?;
    let with_tls = arguments.next_if(|first| first.as_os_str() == "--tls");
    let tls = match with_tls {
        Some(_) => Tls::member_from_options(arguments.next(), arguments.next(), arguments.next())?,
        None => None,
    };
    let sockets = arguments.next();
    let listener = Listener::bind(&address, sockets.as_deref())?.with_tls(tls);
    say(listener.endpoint())?;
    let mut lines = stdin().lock().lines();
    let membership = lines.next().ok_or("no membership")??;
    let membership: Membership = serde_json::from_str(&membership)?;
    let abort = CancellationToken::new();
    let mut ranks = Communicator::connect(listener, &membership, &Options::default(), &abort)?;
    for question in lines {
        let question: Question = serde_json::from_str(&question?)?;
        say(&json!({ "microseconds": measure(&question, &mut ranks)? }))?;
    }
    Ok(())
}

fn say(what: &impl Serialize) -> Result<(), Box<dyn Error>> {
    let mut stdout = stdout().lock();
    serde_json::to_writer(&mut stdout, what)?;
    writeln!(stdout)?;
    Ok(stdout.flush()?)
}

fn measure(question: &Question, ranks: &mut Communicator) -> Result<f64, Box<dyn Error>> {
    let Question {
        elements,
        groups,
        calls,
    } = *question;
    // Whole numbers, and few enough calls that every sum is exact in an f32.
    let world_size = ranks.world_size() as f32;
    let pattern = |at: usize| (1 + at % 7) as f32;
    let first = (ranks.rank() + 1) as f32;
    let last = world_size * (world_size + 1.0) / 2.0 * world_size.powi(calls as i32 - 1);
    let mut numbers = ranks.buffer(elements)?;
    let mut durations = Vec::with_capacity(groups * calls);
    for _ in 0..groups {
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = first * pattern(at);
        }
        for call in 0..calls {
            let start = Instant::now();
            ranks.all_reduce_sum(&mut numbers)?;
            if call > 0 {
                durations.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        for (at, number) in numbers.iter().enumerate() {
            if *number != last * pattern(at) {
                return Err(format!("number {at} of {elements} is {number}").into());
            }
        }
    }
    durations.sort_by(f64::total_cmp);
    let middle = durations.get(durations.len() / 2);
    Ok(*middle.ok_or("nothing to measure: at least one group of two calls")?)
}
