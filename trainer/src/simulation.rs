//! Steps of training in virtual time: how long a step takes with many ranks, by the collectives that training uses.
//!
//! ```text
//!   sum the moments ─► compute (given) ─► sum the gradient ─► update (given)       as in train::fit
//! ```
//!
//! Training hides part of the gradient's sum behind the computation, if ranks are on several hosts; this does not.
//! The sums are the real ones, of real numbers, over a [simulated](crate::collective::simulate) network. The time of
//! computation is an input, because it does not depend on the number of ranks. It trains nothing.

use std::time::Duration;

use volley_proto::splitmix;

use crate::collective::{Network, Result, SimulatedRank, simulate};

/// Training to simulate.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Number of ranks.
    pub ranks: usize,
    /// Network between them.
    pub network: Network,
    /// Numbers in the first sum of a step, in double precision: moments, rows, checksum and weight.
    pub moments: usize,
    /// Numbers in the gradient's sum.
    pub gradient: usize,
    /// Mean time of a rank's computation up to its gradient.
    pub backward: Duration,
    /// Mean time of the update of its weights.
    pub update: Duration,
    /// Standard deviation of a rank's computation from step to step, relative to its mean: it is normally
    /// distributed, at three deviations at most.
    pub jitter: f64,
    /// Factor by which rank 0 computes more slowly than the others.
    pub straggler: f64,
    /// Steps that count. One more comes before them.
    pub steps: usize,
    /// Seed of the jitter.
    pub seed: u64,
}

/// Timings of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Timings {
    /// Time of each step, from the slowest rank's end of the step before to its own.
    pub steps: Vec<Duration>,
    /// Time in sums, waiting for other ranks included, of the rank that spends the least.
    pub sums: Duration,
    /// Bytes that a rank sends in a step, at most.
    pub bytes: u64,
}

impl Workload {
    /// Returns the time of a step without peers.
    pub fn alone(&self) -> Duration {
        self.backward + self.update
    }
}

impl Timings {
    /// Returns the mean time of a step.
    pub fn mean(&self) -> Duration {
        let steps = u32::try_from(self.steps.len().max(1)).unwrap_or(u32::MAX);
        self.steps.iter().sum::<Duration>() / steps
    }
}

/// Report of a rank.
struct Report {
    ends: Vec<Duration>,
    sums: Duration,
    bytes: u64,
}

/// Simulates steps.
///
/// # Errors
/// When memory cannot be shared.
///
/// # Panics
/// When a sum is wrong.
pub fn steps(workload: &Workload) -> Result<Timings> {
    let body = |rank: &mut SimulatedRank| run(workload, rank);
    let reports = simulate(workload.ranks, &workload.network, workload.gradient, body)?;
    let end = |step: usize| reports.iter().map(|of| of.ends[step]).max();
    let ends: Vec<Duration> = (0..=workload.steps).filter_map(end).collect();
    let sums = reports.iter().map(|of| of.sums).min();
    let bytes = reports.iter().map(|of| of.bytes).max();
    Ok(Timings {
        steps: ends.windows(2).map(|ends| ends[1] - ends[0]).collect(),
        sums: sums.unwrap_or_default() / u32::try_from(workload.steps).unwrap_or(u32::MAX).max(1),
        bytes: bytes.unwrap_or(0) / workload.steps.max(1) as u64,
    })
}

/// Runs the steps of one rank.
fn run(workload: &Workload, rank: &mut SimulatedRank) -> Result<Report> {
    let own = rank.communicator.rank();
    let ranks = workload.ranks;
    // Whole numbers, so that sums are exact whatever their order.
    let whole = (ranks * (ranks + 1) / 2) as f64;
    let mut moments = vec![0.0; workload.moments];
    let mut report = Report {
        ends: Vec::with_capacity(workload.steps + 1),
        sums: Duration::ZERO,
        bytes: 0,
    };
    for step in 0..=workload.steps {
        let before = rank.communicator.counters().bytes_sent;
        moments.fill((own + 1) as f64);
        rank.buffer.fill((own % 8) as f32);
        let started = rank.now();
        rank.communicator.all_reduce_sum_f64(&mut moments)?;
        let mut sums = rank.now() - started;
        let slow = if own == 0 { workload.straggler } else { 1.0 };
        let varies = 1.0 + workload.jitter * normal(workload.seed, (step * ranks + own) as u64);
        rank.compute(workload.backward.mul_f64(slow * varies.max(0.0)))?;
        let started = rank.now();
        rank.communicator.all_reduce_sum(&mut rank.buffer)?;
        sums += rank.now() - started;
        rank.compute(workload.update.mul_f64(slow))?;
        assert!(moments.iter().all(|sum| *sum == whole), "sum of moments");
        let due = (0..ranks).map(|rank| (rank % 8) as f32).sum::<f32>();
        assert!(
            rank.buffer.iter().all(|sum| *sum == due),
            "sum of gradients"
        );
        report.ends.push(rank.now());
        if step > 0 {
            report.sums += sums;
            report.bytes += rank.communicator.counters().bytes_sent - before;
        }
    }
    Ok(report)
}

/// Draws a number of the standard normal distribution, cut off at three deviations.
fn normal(seed: u64, number: u64) -> f64 {
    let unit = |at| splitmix::unit(splitmix::at(seed, at));
    let [first, second] = [unit(2 * number), unit(2 * number + 1)];
    let radius = (-2.0 * (1.0 - first).ln()).sqrt();
    (radius * (std::f64::consts::TAU * second).cos()).clamp(-3.0, 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Costs;

    fn workload(ranks: usize, ranks_per_host: usize) -> Workload {
        Workload {
            ranks,
            network: Network {
                ranks_per_host,
                latency: Duration::from_micros(20),
                bandwidth: 25e9 / 8.0,
                costs: Costs {
                    call: Duration::from_micros(1),
                    send: 0.11e-9,
                    receive: 0.15e-9,
                    memory: 0.05e-9,
                    local_latency: Duration::from_micros(2),
                },
            },
            moments: 43,
            gradient: 100_000,
            backward: Duration::from_millis(9),
            update: Duration::from_millis(1),
            jitter: 0.0,
            straggler: 1.0,
            steps: 2,
            seed: 1,
        }
    }

    #[test]
    fn a_rank_alone_only_computes() {
        let timings = steps(&workload(1, 1)).unwrap();
        assert_eq!(timings.steps, [Duration::from_millis(10); 2]);
        assert_eq!((timings.sums, timings.bytes), (Duration::ZERO, 0));
    }

    #[test]
    fn steps_of_many_ranks_take_longer_by_their_sums() {
        let mut before = Duration::ZERO;
        for (ranks, ranks_per_host) in [(2, 1), (16, 4), (48, 4), (64, 1)] {
            let workload = workload(ranks, ranks_per_host);
            let timings = steps(&workload).unwrap();
            assert_eq!(timings, steps(&workload).unwrap(), "virtual time");
            let least = workload.alone() + timings.sums;
            let mean = timings.mean();
            assert!(mean >= least && mean < least + Duration::from_micros(300));
            assert!(mean > before, "{ranks} ranks take {mean:?}");
            before = mean;
        }
    }

    #[test]
    fn all_ranks_wait_for_the_slowest() {
        let even = workload(16, 4);
        let mean = |workload: Workload| steps(&workload).unwrap().mean();
        let slow = mean(Workload {
            straggler: 1.5,
            ..even
        });
        assert!(slow >= mean(even) + Duration::from_millis(4), "{slow:?}");
        let uneven = mean(Workload {
            jitter: 0.1,
            ..even
        });
        assert!(
            uneven > mean(even) + Duration::from_micros(500),
            "{uneven:?}"
        );
    }

    #[test]
    fn jitter_is_normal() {
        let drawn: Vec<f64> = (0..10_000).map(|at| normal(3, at)).collect();
        let mean = drawn.iter().sum::<f64>() / 1e4;
        let variance = drawn.iter().map(|x| x * x).sum::<f64>() / 1e4;
        assert!(
            mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
    }
}
