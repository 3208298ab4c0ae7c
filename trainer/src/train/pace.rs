//! The pace of training: the learning rate of each step, and the end of the epochs.
//!
//! All of it follows from the spec, the sizes and the finished epochs, so it is the same on every rank and
//! after every interruption, and needs no state of its own.

use volley_proto::spec::{BatchSize, Decay, EarlyStop, RateScaling, Rule, Schedule, TrainSpec};
use volley_proto::store::{EpochRecord, Position};

use super::state::Selected;

/// One-cycle schedule: the first rate as a share of the largest, and the share of steps in which the rate
/// rises.
const ONE_CYCLE: (f64, f64) = (1.0 / 25.0, 0.3);

/// Returns the last possible epoch. A refit adds as many epochs as were kept, or as many as are planned
/// with a rule that ends by itself.
pub(super) fn last_epoch(
    spec: &TrainSpec,
    steps_per_epoch: u64,
    selected: Option<Selected>,
    history: &[EpochRecord],
) -> usize {
    let planned = spec.planned_epochs(planned_steps(steps_per_epoch, selected, history));
    match (selected, &spec.optimizer.rule) {
        (None, _) => planned,
        (Some(selected), Rule::Lbfgs { .. }) => selected.epochs + planned,
        (Some(selected), _) => selected.epochs + selected.kept,
    }
}

/// Returns the steps per epoch by which the number of epochs was planned: those before a refit, if there is
/// one.
fn planned_steps(steps_per_epoch: u64, selected: Option<Selected>, history: &[EpochRecord]) -> u64 {
    let first = history.first().filter(|_| selected.is_some());
    first.map_or(steps_per_epoch, |first| first.steps)
}

/// Returns the L2 penalty for `rows` training rows: as given, or that of scikit-learn's `C = 1`.
pub(super) fn l2(spec: &TrainSpec, rows: u64) -> f64 {
    spec.l2.unwrap_or(0.5 / rows.max(1) as f64)
}

/// Returns the loss by which epochs are compared.
pub(super) fn score(record: &EpochRecord) -> f64 {
    record.eval_loss.unwrap_or(record.loss)
}

/// Progress of the finished epochs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    /// Lowest score.
    best: f64,
    /// Epochs since the last progress.
    stalled: usize,
    /// Number of times that progress stalled for the plateau's patience.
    plateaus: i32,
}

impl Past {
    /// Summarizes these epochs. An epoch makes progress if its score is below the lowest before by more than
    /// the share `min_rel_progress` of it; `patience` epochs without progress are a plateau.
    fn of<'a>(
        history: impl IntoIterator<Item = &'a EpochRecord>,
        min_rel_progress: f64,
        patience: usize,
    ) -> Self {
        let mut past = Self {
            best: f64::INFINITY,
            stalled: 0,
            plateaus: 0,
        };
        let mut since = 0;
        for record in history {
            let score = score(record);
            let due = past.best - min_rel_progress * past.best.abs();
            if score < due || past.best.is_infinite() {
                past.best = score;
                (past.stalled, since) = (0, 0);
            } else {
                past.stalled += 1;
                since += 1;
                if since == patience {
                    past.plateaus += 1;
                    since = 0;
                }
            }
        }
        past
    }
}

/// Returns the reason why training ends early after these epochs, if it does.
pub(super) fn stops<'a>(
    early_stop: Option<EarlyStop>,
    mut history: impl Iterator<Item = &'a EpochRecord> + Clone,
) -> Option<String> {
    let EarlyStop {
        patience,
        min_rel_progress,
    } = early_stop?;
    let Past { best, stalled, .. } = Past::of(history.clone(), min_rel_progress, patience);
    (stalled >= patience).then(|| {
        let of = match history.any(|record| record.eval_loss.is_some()) {
            true => "the evaluation loss",
            false => "the training loss",
        };
        format!("{of} has not fallen noticeably below {best:.5} for {patience} epochs")
    })
}

/// Returns the learning rate of the step at `at`. A refit repeats the rates of the epochs before it.
pub(super) fn learn_rate(
    spec: &TrainSpec,
    global_batch: u64,
    mut at: Position,
    steps_per_epoch: u64,
    selected: Option<Selected>,
    mut history: &[EpochRecord],
) -> f64 {
    let schedule = &spec.optimizer.schedule;
    let planned = planned_steps(steps_per_epoch, selected, history);
    let epochs = spec.planned_epochs(planned) as u64;
    if let Some(Selected { epochs: before, .. }) = selected {
        at.epoch -= before;
        at.steps -= history[before - 1].steps;
        history = &history[..(at.epoch - 1).min(before)];
    }
    let factor = factor(schedule, at, [steps_per_epoch, epochs], history);
    let ranks = match spec.batch_size {
        Some(BatchSize::OfRank(rows)) => global_batch as f64 / (rows * spec.accumulate) as f64,
        Some(BatchSize::Global { .. }) | None => 1.0,
    };
    let scale = match schedule.scaling {
        RateScaling::None => 1.0,
        RateScaling::Linear => ranks,
        RateScaling::Sqrt => ranks.sqrt(),
    };
    spec.optimizer.learn_rate * scale * factor
}

fn factor(
    schedule: &Schedule,
    at: Position,
    [steps_per_epoch, epochs]: [u64; 2],
    history: &[EpochRecord],
) -> f64 {
    let warmup = schedule.warmup_epochs * steps_per_epoch as f64;
    let done = at.steps as f64;
    if done + 1.0 < warmup {
        return (done + 1.0) / warmup;
    }
    let all = (epochs * steps_per_epoch) as f64;
    // The share of the steps after warm-up.
    let share = ((done - warmup) / (all - warmup).max(1.0)).clamp(0.0, 1.0);
    let falling = |share: f64| 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
    match schedule.decay {
        Decay::Constant => 1.0,
        Decay::Step { epochs, factor } => factor.powi(((at.epoch - 1) / epochs) as i32),
        Decay::Cosine => falling(share),
        Decay::OneCycle => {
            let (first, rising) = ONE_CYCLE;
            match share < rising {
                true => first + (1.0 - first) * (1.0 - falling(share / rising)),
                false => falling((share - rising) / (1.0 - rising)),
            }
        }
        Decay::Plateau { patience, factor } => {
            factor.powi(Past::of(history, 1e-4, patience).plateaus)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn epochs_of(scores: &[f64]) -> Vec<EpochRecord> {
        let record = |(at, score): (usize, &f64)| EpochRecord {
            epoch: at + 1,
            eval_loss: Some(*score),
            ..EpochRecord::default()
        };
        scores.iter().enumerate().map(record).collect()
    }

    fn at(steps: u64) -> Position {
        Position {
            epoch: 1 + (steps / 10) as usize,
            step: steps % 10,
            steps,
        }
    }

    #[test]
    fn rates_rise_and_fall_as_the_schedule_says() {
        let rates = |warmup_epochs, decay, steps: &[u64]| {
            let schedule = Schedule {
                warmup_epochs,
                decay,
                scaling: RateScaling::None,
            };
            let factor = |step: &u64| factor(&schedule, at(*step), [10, 4], &[]);
            steps.iter().map(factor).collect::<Vec<_>>()
        };
        let close = |actual: Vec<f64>, due: &[f64]| {
            let near = actual.iter().zip(due).all(|(a, d)| (a - d).abs() < 1e-9);
            assert!(near && actual.len() == due.len(), "{actual:?}, not {due:?}");
        };
        close(rates(0.0, Decay::Constant, &[0, 39]), &[1.0, 1.0]);
        close(
            rates(0.5, Decay::Constant, &[0, 3, 4, 9]),
            &[0.2, 0.8, 1.0, 1.0],
        );
        let halved = Decay::Step {
            epochs: 2,
            factor: 0.5,
        };
        close(rates(0.0, halved, &[0, 19, 20, 39]), &[1.0, 1.0, 0.5, 0.5]);
        close(rates(0.0, Decay::Cosine, &[0, 20, 40]), &[1.0, 0.5, 0.0]);
        close(rates(2.0, Decay::Cosine, &[9, 20, 30]), &[0.5, 1.0, 0.5]);
        close(
            rates(0.0, Decay::OneCycle, &[0, 6, 12, 26, 40]),
            &[0.04, 0.52, 1.0, 0.5, 0.0],
        );
    }

    #[test]
    fn rates_grow_with_the_ranks_where_each_has_its_rows() {
        let rate = |scaling| {
            let mut spec = testing::spec();
            spec.batch_size = Some(BatchSize::OfRank(10));
            spec.optimizer.learn_rate = 0.5;
            spec.optimizer.schedule.scaling = scaling;
            learn_rate(&spec, 40, at(0), 10, None, &[])
        };
        let all = [RateScaling::None, RateScaling::Linear, RateScaling::Sqrt].map(rate);
        assert_eq!(all, [0.5, 2.0, 1.0]);
    }

    #[test]
    fn a_plateau_is_patience_without_progress() {
        let schedule = Schedule {
            warmup_epochs: 0.0,
            decay: Decay::Plateau {
                patience: 2,
                factor: 0.1,
            },
            scaling: RateScaling::None,
        };
        let factor = |scores: &[f64]| {
            let history = epochs_of(scores);
            factor(&schedule, at(0), [10, 100], &history)
        };
        assert_eq!(factor(&[]), 1.0);
        assert_eq!(factor(&[3.0, 2.0, 2.0]), 1.0);
        assert_eq!(factor(&[3.0, 2.0, 2.0, 2.5]), 0.1);
        assert!((factor(&[3.0, 2.0, 2.0, 2.5, 2.1, 2.1]) - 0.01).abs() < 1e-12);
        assert_eq!(
            factor(&[3.0, 2.0, 2.0, 1.0, 1.5]),
            1.0,
            "there was progress"
        );
    }

    #[test]
    fn training_stops_once_patience_has_run_out() {
        let early_stop = Some(EarlyStop {
            patience: 3,
            min_rel_progress: 0.1,
        });
        assert_eq!(stops(None, epochs_of(&[1.0; 50]).iter()), None);
        assert_eq!(stops(early_stop, [].iter()), None);
        assert_eq!(
            stops(early_stop, epochs_of(&[1.0, 0.95, 0.93]).iter()),
            None
        );
        let why = stops(early_stop, epochs_of(&[1.0, 0.95, 0.93, 0.91]).iter()).unwrap();
        assert!(why.contains("1.00000 for 3 epochs"), "{why}");
        assert_eq!(
            stops(early_stop, epochs_of(&[1.0, 0.95, 0.93, 0.8, 0.8]).iter()),
            None
        );
        // Losses may be negative.
        assert_eq!(
            stops(early_stop, epochs_of(&[-1.0, -1.2, -1.4, -1.6]).iter()),
            None
        );
    }
}
