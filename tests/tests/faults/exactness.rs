//! Tests that interrupted training gives the same result as uninterrupted training.

use volley_tests::Cluster;

use crate::dice::Dice;
use crate::fault::{Fault, effort, say, seed};
use crate::fitting::{Fit, differences, setup, weights};
use crate::scene::{self, Loss};
use crate::stores::await_checkpoint;

pub(crate) const FAULTS: &[Fault] = &[
    (
        "with replacements, weights are those of a run without faults",
        replaced,
    ),
    (
        "with fewer ranks, losses are those of a run without faults",
        fewer,
    ),
    (
        "resumed, weights are those of a run without faults",
        resumed,
    ),
];

fn epochs() -> usize {
    40 * effort() as usize
}

/// Trains without faults, and then with one fault at a random moment.
fn replaced() {
    let seed = seed("exactness");
    let mut cluster = scene::pools(1, 3);
    let options = "ranks = 2, regroup_timeout = '30s'";
    let whole = setup("whole", options).epochs(epochs()).start(&cluster);
    let (whole, _) = whole.trained(&cluster);
    for (round, name) in ["once", "again"].into_iter().enumerate() {
        let mut dice = Dice::new(seed, round as u64);
        let mut fit = setup(name, options).epochs(epochs()).start(&cluster);
        let executors = fit.await_generation(1);
        fit.await_epoch(2 + dice.below(epochs() / 2));
        Loss::Kill.strike(&mut cluster, executors[round]);
        assert_eq!(fit.await_generation(2).len(), 2);
        let (interrupted, _) = fit.trained(&cluster);
        let differences = differences(&whole, &interrupted);
        let difference = differences.into_iter().fold(0.0, f64::max);
        say(&format!("exactness: losses differ by {difference:.1e}"));
        assert!(difference < 1e-6, "losses differ by {difference}");
        assert_eq!(weights(&cluster, "whole"), weights(&cluster, name));
        scene::add(&mut cluster, "train");
        cluster.await_executors(4);
    }
}

fn fewer() {
    let mut cluster = scene::pools(1, 3);
    let options = "ranks = 3, min_ranks = 1, regroup_timeout = '100ms'";
    let whole = setup("whole", options).epochs(epochs()).start(&cluster);
    let (whole, _) = whole.trained(&cluster);
    let mut fit = setup("fewer", options).epochs(epochs()).start(&cluster);
    let executors = fit.await_generation(1);
    fit.await_epoch(5);
    Loss::Kill.strike(&mut cluster, executors[0]);
    assert_eq!(fit.await_generation(2).len(), 2);
    fit.await_epoch(15);
    Loss::Kill.strike(&mut cluster, executors[2]);
    assert_eq!(fit.await_generation(3).len(), 1);
    let (fewer, _) = fit.trained(&cluster);
    let differences = differences(&whole, &fewer);
    let largest = |differences: &[f64]| differences.iter().copied().fold(0.0, f64::max);
    let (soon, difference) = (largest(&differences[..20]), largest(&differences));
    say(&format!(
        "exactness: losses differ by {soon:.1e} in 20 epochs, and by {difference:.1e} at most"
    ));
    assert!(soon < 1e-4, "losses differ by {soon}");
    // With fewer ranks, sums are rounded differently. Epochs later, that may decide whether a unit next to zero is
    // off for a row, and from there on no two runs are alike: by 0.4 %, once in a hundred times.
    assert!(difference < 0.02, "losses differ by {difference}");
}

/// Ends a job with too few ranks, and continues from its checkpoint with another.
fn resumed() {
    let mut cluster = scene::pools(1, 2);
    let options = "ranks = 2, min_ranks = 2, regroup_timeout = '100ms'";
    let start = |cluster: &Cluster, name, more: &str| -> Fit {
        let options = format!("{options}, checkpoint_every = 7{more}");
        setup(name, &options).epochs(epochs()).start(cluster)
    };
    start(&cluster, "whole", "").trained(&cluster);
    let mut fit = start(&cluster, "resumed", "");
    let executors = fit.await_generation(1);
    fit.await_epoch(10);
    await_checkpoint(&cluster, "resumed");
    Loss::Kill.strike(&mut cluster, executors[1]);
    fit.fails();
    scene::add(&mut cluster, "train");
    cluster.await_executors(3);
    start(&cluster, "resumed", ", resume = true").trained(&cluster);
    assert_eq!(weights(&cluster, "whole"), weights(&cluster, "resumed"));
}
