//! Efficiency of training on many ranks: a step of the Rossmann network on up to a thousand ranks, in virtual time.
//!
//! The ranks run the trainer's own collectives, in this process, over a network that exists only in virtual time
//! ([`volley_trainer::simulation`]). The time of a rank's computation and what its system calls cost are measured
//! elsewhere and given. Sums of two processes over loopback TCP are measured here, beside a simulation of the same, to
//! show how far the simulation is right.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use volley_trainer::collective::{Costs, Network, simulate};
use volley_trainer::simulation::{Workload, steps};

use crate::collective::{MESSAGES, Message, Transport, World};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};

/// Numbers of ranks at which efficiency is simulated.
const RANKS: [usize; 10] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000];

/// Numbers in the gradient of the Rossmann network with the values of the real tables, and the two of the loss.
const GRADIENT: usize = 2_715_557 + 2;
/// Sums of a step's 18 numbers and their squares, its rows, the three pieces of their checksum, and their weight.
const MOMENTS: usize = 1 + 2 * 18 + 3 + 1;
/// Part of a rank's time without peers that the update of its weights takes.
const UPDATE: f64 = 0.05;

/// Name of the throughput of as many ranks without sums.
const LINEAR: &str = "ranks without sums";
/// Name of what is measured on this machine.
const MEASURED: &str = "measured";

/// Latency of the loopback interface, and a rank's costs: fitted to sums of two processes over loopback TCP on Zen 5,
/// which took 8 µs for 10 KB and 2.9 ms for 11 MB, and through shared memory, 0.38 ms for 11 MB.
const LOOPBACK: Duration = Duration::from_micros(1);
const COSTS: Costs = Costs {
    call: Duration::from_nanos(800),
    send: 0.11e-9,
    receive: 0.15e-9,
    memory: 0.035e-9,
    local_latency: Duration::from_nanos(700),
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rows per second of one rank without peers, at this batch size
    #[arg(long, default_value_t = 9847.0)]
    rows_per_second: f64,
    /// Rows of a rank in a step
    #[arg(long, default_value_t = 1024)]
    batch_size: usize,
    /// Ranks of each host
    #[arg(long, default_value_t = 4)]
    ranks_per_host: usize,
    /// Gigabits per second of a host's network interface
    #[arg(long, default_value_t = 25.0)]
    gigabits: f64,
    /// Microseconds from one host to another
    #[arg(long, default_value_t = 20)]
    latency: u64,
    /// Steps of each simulation
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// Most ranks: each takes 11 MB of memory
    #[arg(long, default_value_t = 1000)]
    most: usize,
}

const METHOD: &str = "Steps of training in virtual time. As many threads as ranks run the trainer's collectives, with the \
    numbers of the Rossmann network's gradient, which each rank checks after every sum. Only the wires are simulated: a \
    host has one network interface, which sends and receives a packet of up to 64 KiB at a time, the switch between hosts \
    never blocks, and reads, writes and waits cost a rank what they cost on loopback. The time of a rank's computation is \
    given; it is that of the training benchmark. A figure is the rows of a step over its mean time. The ratio to ranks \
    without sums is the efficiency. Sums over loopback are measured as in the all-reduce benchmark, and simulated with \
    the same costs, but without limits of the interface.";

/// One row of the results.
struct Variant {
    name: String,
    workload: Workload,
    /// Required efficiency.
    bar: Option<f64>,
}

/// Runs the simulations and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(
        args.rows_per_second > 0.0 && args.gigabits > 0.0 && args.steps > 0,
        "--rows-per-second, --gigabits and --steps: expected more than 0"
    );
    ensure!(
        args.ranks_per_host > 0 && args.batch_size > 0,
        "--ranks-per-host and --batch-size: expected at least 1"
    );
    let title = "Training on many ranks in virtual time";
    let mut comparison = Comparison::new("scale", title, METHOD);
    for Variant {
        name,
        workload,
        bar,
    } in variants(args)
    {
        let timings = steps(&workload).with_context(|| name.clone())?;
        let rows = (workload.ranks * args.batch_size) as f64;
        let linear = rows / workload.alone().as_secs_f64();
        let rate = rows / timings.mean().as_secs_f64();
        eprintln!(
            "{name}: {:.1} % efficient, a step of {:.1} ms with {:.1} ms of sums, {:.1} MB sent by a rank",
            100.0 * rate / linear,
            timings.mean().as_secs_f64() * 1e3,
            timings.sums.as_secs_f64() * 1e3,
            timings.bytes as f64 / 1e6,
        );
        let mut case = Case::new(name, Unit::RowsPerSecond);
        if let Some(bar) = bar {
            case = case.at_least(bar, LINEAR);
        }
        case.push(VOLLEY, rate);
        case.push(LINEAR, linear);
        comparison.cases.push(case);
    }
    let dir = tempfile::tempdir()?;
    let mut world = World::start(2, Transport::Tcp, dir.path())?;
    for message in MESSAGES {
        let name = format!("{} over loopback, 2 processes", message.name);
        let mut case = Case::new(name, Unit::Microseconds);
        case.push(VOLLEY, loopback(message)?.as_secs_f64() * 1e6);
        case.push(MEASURED, world.measure(message)?);
        comparison.cases.push(case);
    }
    comparison.remark(format!(
        "A rank alone takes {:.1} ms for {} rows. Volley's figures are simulated.",
        alone(args).as_secs_f64() * 1e3,
        args.batch_size
    ));
    comparison.write(results)
}

fn alone(args: &Args) -> Duration {
    Duration::from_secs_f64(args.batch_size as f64 / args.rows_per_second)
}

/// Returns the simulations: more and more ranks, and most of them under other conditions.
fn variants(args: &Args) -> Vec<Variant> {
    let alone = alone(args);
    let of = |ranks: usize| Workload {
        ranks,
        network: Network {
            ranks_per_host: args.ranks_per_host,
            latency: Duration::from_micros(args.latency),
            bandwidth: args.gigabits * 1e9 / 8.0,
            costs: COSTS,
        },
        moments: MOMENTS,
        gradient: GRADIENT,
        backward: alone.mul_f64(1.0 - UPDATE),
        update: alone.mul_f64(UPDATE),
        jitter: 0.0,
        straggler: 1.0,
        steps: args.steps,
        seed: 1,
    };
    let ranks = RANKS.into_iter().filter(|ranks| *ranks <= args.most);
    let mut variants: Vec<_> = ranks
        .map(|ranks| Variant {
            name: format!("{ranks} ranks"),
            workload: of(ranks),
            bar: (ranks == 512).then_some(0.9),
        })
        .collect();
    let most = args.most.min(512);
    let mut vary = |what: &str, change: &dyn Fn(&mut Workload)| {
        let mut workload = of(most);
        change(&mut workload);
        variants.push(Variant {
            name: format!("{most} ranks, {what}"),
            workload,
            bar: None,
        });
    };
    vary("one a host", &|of| of.network.ranks_per_host = 1);
    vary("8 a host", &|of| of.network.ranks_per_host = 8);
    vary("10 Gbit/s", &|of| of.network.bandwidth = 10e9 / 8.0);
    vary("100 Gbit/s", &|of| of.network.bandwidth = 100e9 / 8.0);
    vary("50 µs", &|of| {
        of.network.latency = Duration::from_micros(50)
    });
    vary("2 % jitter", &|of| of.jitter = 0.02);
    vary("5 % jitter", &|of| of.jitter = 0.05);
    vary("one rank slower by 20 %", &|of| of.straggler = 1.2);
    variants
}

/// Simulates a sum over loopback of two processes.
fn loopback(message: Message) -> anyhow::Result<Duration> {
    let network = Network {
        ranks_per_host: 1,
        latency: LOOPBACK,
        bandwidth: 1e12,
        costs: COSTS,
    };
    let times = simulate(2, &network, message.elements(), |rank| {
        rank.communicator.all_reduce_sum(&mut rank.buffer)?;
        let warm = rank.now();
        rank.communicator.all_reduce_sum(&mut rank.buffer)?;
        Ok(rank.now() - warm)
    })?;
    times.into_iter().max().context("no rank")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_at_many_ranks_is_what_the_book_claims() {
        let args = Args {
            rows_per_second: 9847.0,
            batch_size: 1024,
            ranks_per_host: 4,
            gigabits: 25.0,
            latency: 20,
            steps: 1,
            most: 64,
        };
        let variants = variants(&args);
        let of = |name: &str| {
            let variant = variants.iter().find(|variant| variant.name == name);
            let Variant { workload, .. } = variant.expect("a variant");
            let mean = steps(workload).expect("memory").mean();
            workload.alone().as_secs_f64() / mean.as_secs_f64()
        };
        let [few, many] = [of("2 ranks"), of("64 ranks")];
        assert!(few > 0.95 && few < 1.0, "{few}");
        assert!(many > 0.9 && many < few, "{many}");
        assert!(of("64 ranks, 10 Gbit/s") < many);
    }
}
