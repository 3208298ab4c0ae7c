//! A test against the one unforgivable outcome: rows that are wrong and look right.
//!
//! A holder of shuffle data is killed repeatedly at random moments; the engine alone counts rows twice or hangs.

use std::time::Instant;

use volley_tests::Numbers;

use crate::asking::{Phase, ask, question, work};
use crate::dice::Dice;
use crate::fault::{Fault, say, seed};
use crate::scene::{self, SOON};

pub(crate) const FAULTS: &[Fault] = &[(
    "executors are killed at random moments of a join",
    killed_at_random_moments,
)];

/// Number of rounds without `VOLLEY_ROUNDS`.
const ROUNDS: u64 = 10;

fn killed_at_random_moments() {
    let seed = seed("wrong rows");
    let rounds = std::env::var("VOLLEY_ROUNDS").ok();
    let rounds = rounds.map_or(ROUNDS, |rounds| rounds.parse().expect("a whole number"));
    let mut cluster = scene::cluster(3);
    let numbers = Numbers::write(cluster.dir(), 6_000);
    // Time without a fault.
    let started = Instant::now();
    question(Phase::Scan, &cluster, &numbers).answered(&cluster);
    let took = started.elapsed();

    let work = work(1);
    let answer = numbers.answer(work);
    let mut alive = vec![0, 1, 2];
    let mut rerun = 0;
    for round in 0..rounds {
        let mut dice = Dice::new(seed, round);
        let client = ask(&numbers, work, &cluster, cluster.command());
        let moment = dice.up_to(took);
        std::thread::sleep(moment);
        let victim = alive.remove(dice.below(alive.len()));
        cluster.executors()[victim].kill();
        let run = client.wait(SOON);
        assert_eq!(run.rows(), answer, "round {round}, seed {seed}: {moment:?}");
        let jobs = cluster.jobs().unwrap_or_default();
        rerun += usize::from(jobs.first().is_some_and(|job| job.attempts.len() > 1));
        alive.push(cluster.add_executor());
        cluster.await_executors(3);
    }
    say(&format!("wrong rows: {rerun} of {rounds} were run again"));
    scene::is_well(&cluster, 3);
}
