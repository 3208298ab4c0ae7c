//! The progress of a training run: the latest step reports of its ranks, and the curve from these.
//!
//! It decides nothing. The clock is passed in.

use std::time::SystemTime;

use volley_proto::tables::{Point, Rank, millis};

/// Points of a curve after thinning: at twice as many, every other one is dropped, but the first and the newest are
/// kept.
const POINTS: usize = 2048;
/// EWMA weight of the newest report in the rate.
const NEWEST: f64 = 0.3;

/// Report of a rank's latest steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StepReport {
    /// Current epoch, from 1, and the number of epochs.
    pub(crate) epoch: u64,
    pub(crate) epochs: u64,
    /// Steps done in the epoch, and the number of its steps.
    pub(crate) step: u64,
    pub(crate) steps_per_epoch: u64,
    /// Steps done since training began.
    pub(crate) total: u64,
    /// Rows of all ranks in the reported steps, and the sum of their losses.
    pub(crate) rows: u64,
    pub(crate) loss: f64,
    /// Seconds that the reported steps took this rank, and those of them in collectives.
    pub(crate) seconds: f64,
    pub(crate) reduce_seconds: f64,
}

/// Progress of a run.
#[derive(Debug, Default)]
pub(crate) struct RunProgress {
    ranks: Vec<RankProgress>,
    /// Latest report of rank 0.
    last: Option<StepReport>,
    /// Rows of all ranks per second, smoothed.
    rate: Option<f64>,
    /// Mean loss of the latest report.
    loss: Option<f64>,
    points: Vec<Spot>,
    /// Time when the run first had ranks.
    pub(crate) started: Option<SystemTime>,
    /// Times of this generation's start and of its ranks' newest report.
    began: Option<SystemTime>,
    heard: Option<SystemTime>,
}

/// Reports of a rank in this generation.
#[derive(Debug, Clone, Default)]
struct RankProgress {
    loaded: Option<(u64, f64)>,
    compute_seconds: f64,
    reduce_seconds: f64,
}

/// Point of the curve.
#[derive(Debug, Clone, Copy)]
struct Spot {
    at: SystemTime,
    generation: u64,
    epoch: u64,
    steps: u64,
    loss: f64,
    rate: f64,
}

impl RunProgress {
    /// Starts a generation with this many ranks.
    pub(crate) fn starts(&mut self, ranks: usize, now: SystemTime) {
        self.ranks = vec![RankProgress::default(); ranks];
        self.rate = None;
        self.started.get_or_insert(now);
        (self.began, self.heard) = (Some(now), Some(now));
    }

    /// Records that a rank has reported: time has passed for all of them.
    pub(crate) fn hears(&mut self, now: SystemTime) {
        self.heard = Some(now);
    }

    /// Returns the seconds of this generation up to the newest report.
    fn seconds(&self) -> f64 {
        let times = self.began.zip(self.heard);
        let passed = times.and_then(|(began, heard)| heard.duration_since(began).ok());
        passed.unwrap_or_default().as_secs_f64()
    }

    /// Records that a rank has its rows.
    pub(crate) fn loads(&mut self, rank: usize, rows: u64, seconds: f64) {
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.loaded = Some((rows, seconds));
        }
    }

    /// Records a rank's latest steps.
    pub(crate) fn steps(
        &mut self,
        generation: u64,
        rank: usize,
        steps: StepReport,
        now: SystemTime,
    ) {
        let Some(teller) = self.ranks.get_mut(rank) else {
            return;
        };
        teller.reduce_seconds += steps.reduce_seconds;
        teller.compute_seconds += (steps.seconds - steps.reduce_seconds).max(0.0);
        if rank > 0 || steps.rows == 0 || steps.seconds <= 0.0 {
            return;
        }
        let rate = steps.rows as f64 / steps.seconds;
        let smooth = |before: f64| before + NEWEST * (rate - before);
        self.rate = Some(self.rate.map_or(rate, smooth));
        let loss = steps.loss / steps.rows as f64;
        self.loss = Some(loss);
        if self.points.len() == 2 * POINTS {
            let mut at = 0;
            self.points.retain(|_| {
                at += 1;
                at == 1 || at % 2 == 0
            });
        }
        self.points.push(Spot {
            at: now,
            generation,
            epoch: steps.epoch,
            steps: steps.total,
            loss,
            rate,
        });
        self.last = Some(steps);
    }

    /// Returns the latest report of rank 0.
    pub(crate) fn last(&self) -> Option<&StepReport> {
        self.last.as_ref()
    }

    /// Checks whether this generation has done steps.
    pub(crate) fn is_stepping(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns the rows of all ranks per second.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Returns the mean loss of the latest steps.
    pub(crate) fn loss(&self) -> Option<f64> {
        self.loss
    }

    /// Returns the seconds to the end of the last epoch at the current rate. Evaluation is left out, because its time
    /// is not known beforehand.
    pub(crate) fn eta_seconds(&self) -> Option<f64> {
        let (last, rate) = (self.last.as_ref()?, self.rate?);
        let all = last.epochs.saturating_mul(last.steps_per_epoch);
        let done = last.epoch.saturating_sub(1);
        let done = done.saturating_mul(last.steps_per_epoch);
        let done = done.saturating_add(last.step);
        let rows_per_step = last.rows as f64 / self.steps_told()?;
        Some(all.saturating_sub(done) as f64 * rows_per_step / rate)
    }

    /// Returns the number of steps in the latest report.
    fn steps_told(&self) -> Option<f64> {
        let before = match self.points[..] {
            [.., before, _] => before.steps,
            _ => 0,
        };
        let told = self.last.as_ref()?.total.saturating_sub(before);
        (told > 0).then_some(told as f64)
    }

    /// Returns the ranks as rows of their table.
    pub(crate) fn ranks(&self, train_id: &str, generation: u64, executors: &[&str]) -> Vec<Rank> {
        let ranks = self.ranks.iter().zip(executors).enumerate();
        let row = |(rank, (progress, executor)): (usize, (&RankProgress, &&str))| Rank {
            train_id: train_id.to_owned(),
            generation,
            rank: rank as u64,
            executor_id: (*executor).to_owned(),
            rows: progress.loaded.map(|(rows, _)| rows),
            load_seconds: progress.loaded.map(|(_, seconds)| seconds),
            compute_seconds: progress.compute_seconds,
            reduce_seconds: progress.reduce_seconds,
            seconds: self.seconds(),
        };
        ranks.map(row).collect()
    }

    /// Returns the curve as rows of its table.
    pub(crate) fn points(&self, train_id: &str, model: &str) -> Vec<Point> {
        let row = |spot: &Spot| Point {
            train_id: train_id.to_owned(),
            model: model.to_owned(),
            generation: spot.generation,
            epoch: spot.epoch,
            steps: spot.steps,
            loss: spot.loss,
            rows_per_second: spot.rate,
            at: millis(spot.at),
        };
        self.points.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(total: u64) -> StepReport {
        StepReport {
            epoch: 1 + total / 100,
            epochs: 2,
            step: total % 100,
            steps_per_epoch: 100,
            total,
            rows: 1000,
            loss: 500.0,
            seconds: 2.0,
            reduce_seconds: 0.5,
        }
    }

    #[test]
    fn speed_and_what_is_left() {
        let (mut progress, now) = (RunProgress::default(), SystemTime::now());
        progress.starts(2, now);
        assert_eq!(progress.eta_seconds(), None);
        for total in [10, 20] {
            progress.steps(1, 0, steps(total), now);
        }
        progress.steps(1, 1, steps(20), now);
        progress.steps(1, 7, steps(20), now);
        assert_eq!((progress.rate(), progress.loss()), (Some(500.0), Some(0.5)));
        // 180 steps of 100 rows are left.
        assert_eq!(progress.eta_seconds(), Some(36.0));
        let ranks = progress.ranks("t", 1, &["a", "b"]);
        assert_eq!(
            (ranks[0].compute_seconds, ranks[0].reduce_seconds),
            (3.0, 1.0)
        );
        assert_eq!(
            (ranks[1].compute_seconds, ranks[1].reduce_seconds),
            (1.5, 0.5)
        );
        assert_eq!(progress.points("t", "m").len(), 2, "rank 0's only");
    }

    #[test]
    fn long_curves_are_thinned() {
        let (mut progress, now) = (RunProgress::default(), SystemTime::now());
        progress.starts(1, now);
        for total in 1..=10_000 {
            progress.steps(1, 0, steps(total), now);
        }
        let points = progress.points("t", "m");
        assert!((POINTS..=2 * POINTS).contains(&points.len()));
        assert_eq!((points[0].steps, points.last().unwrap().steps), (1, 10_000));
        assert!(points.is_sorted_by_key(|point| point.steps));
    }

    #[test]
    fn thinning_keeps_the_newest_point() {
        let (mut progress, now) = (RunProgress::default(), SystemTime::now());
        progress.starts(1, now);
        let full = 2 * POINTS as u64;
        for total in 1..=full + 1 {
            progress.steps(1, 0, steps(total), now);
        }
        let points = progress.points("t", "m");
        let newest: Vec<_> = points.iter().rev().take(2).map(|p| p.steps).collect();
        assert_eq!((points.len(), newest), (POINTS + 2, vec![full + 1, full]));
        assert_eq!(
            progress.steps_told(),
            Some(1.0),
            "the last report was of one step"
        );
    }
}
