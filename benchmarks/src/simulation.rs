//! Cost of the scheduler's decisions, for a cluster and jobs that exist only in virtual time.
//!
//! The control core is the scheduler's own, in this process; [`volley_scheduler::simulation`] feeds it the events of
//! a cluster. It compares with no other system and starts no other process.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use volley_scheduler::Queue;
use volley_scheduler::simulation::{Timings, Workload, simulate};

use crate::comparison::{Case, Comparison, Unit, VOLLEY, percentile};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Executors, each with one slot
    #[arg(long, default_value_t = 1000)]
    executors: usize,
    /// Jobs, of which two train
    #[arg(long, default_value_t = 100)]
    jobs: usize,
    /// Partitions of all queries together
    #[arg(long, default_value_t = 10_000)]
    partitions: usize,
    /// Rounds, each with other durations of tasks
    #[arg(long, default_value_t = 5)]
    rounds: u64,
}

/// Number of jobs that train.
const GANGS: usize = 2;

/// Virtual time between submissions.
const EVERY: Duration = Duration::from_millis(20);

const QUEUES: [(&str, u32, Option<usize>); 3] = [
    ("default", 1, None),
    ("etl", 2, Some(200)),
    ("adhoc", 4, None),
];

const METHOD: &str = "The control core that the scheduler runs, on one thread, is told what would happen on a cluster \
    whose tasks take a tenth of a second to a second of virtual time: submissions 20 ms apart of seven users to three \
    queues, one of which has a cap, tasks bound and ended, and passing time. Each end of a task is followed by an offer \
    with all stages that have partitions left and the ids of all executors, as Ballista makes one. Each call is timed \
    by the clock, so what the kernel does meanwhile counts too. A task takes its part of the offer that placed it and \
    of the event that it was bound, and the event of its end; offers that place nothing are among the offers. Ballista, \
    its graphs and plans, and the network are left out. The first round warms up and does not count. A sample is a \
    round's figure.";

/// Runs the simulation and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    ensure!(
        args.executors > 0 && args.jobs > GANGS && args.rounds > 0,
        "--executors, --jobs and --rounds: expected at least 1, {} and 1",
        GANGS + 1
    );
    let queue = |(name, weight, user_slots): &(&str, u32, Option<usize>)| Queue {
        name: (*name).to_owned(),
        weight: *weight,
        user_slots: *user_slots,
    };
    let title = "The scheduler's decisions in virtual time";
    let mut comparison = Comparison::new("simulation", title, METHOD);
    let mut cases = Cases::default();
    for round in 0..=args.rounds {
        let timings = simulate(&Workload {
            executors: args.executors,
            slots: 1,
            jobs: args.jobs,
            partitions: args.partitions,
            gangs: GANGS,
            queues: QUEUES.iter().map(queue).collect(),
            every: EVERY,
            seed: round,
        });
        let tasks = timings.tasks.len();
        eprintln!(
            "round {round}: {tasks} tasks, {} events, {} offers, {:.3} s of {:.1} s of virtual time",
            timings.events.len(),
            timings.offers.len(),
            timings.total.as_secs_f64(),
            timings.virtual_time.as_secs_f64(),
        );
        if round > 0 {
            cases.add(&timings);
        }
    }
    comparison.cases = cases.list;
    comparison.remark(format!(
        "{} executors of one slot, {} jobs, {GANGS} of them gangs on a tenth of the executors each, and {} partitions.",
        args.executors, args.jobs, args.partitions
    ));
    comparison.write(results)
}

/// Cases in microseconds: per event, offer or task.
struct Cases {
    list: Vec<Case>,
}

impl Default for Cases {
    fn default() -> Self {
        let case = |name: &str| Case::new(name, Unit::Microseconds);
        Self {
            list: vec![
                case("a task, median").at_most(50.0),
                case("a task, p99"),
                case("a task, max"),
                case("a task, all offers and events over all tasks"),
                case("an event, median"),
                case("an event, p99"),
                case("an event, max"),
                case("an offer, median"),
                case("an offer, p99"),
                case("an offer, max"),
            ],
        }
    }
}

impl Cases {
    fn add(&mut self, timings: &Timings) {
        let micros = |all: &[Duration]| -> Vec<f64> {
            let micros = all.iter().map(|took| took.as_secs_f64() * 1e6);
            micros.collect()
        };
        let three =
            |all: &[Duration]| [0.5, 0.99, 1.0].map(|share| percentile(&micros(all), share));
        let all = timings.total.as_secs_f64() * 1e6 / timings.tasks.len().max(1) as f64;
        let figures = three(&timings.tasks)
            .into_iter()
            .chain([all])
            .chain(three(&timings.events))
            .chain(three(&timings.offers));
        for (case, figure) in self.list.iter_mut().zip(figures) {
            case.push(VOLLEY, figure);
        }
    }
}
