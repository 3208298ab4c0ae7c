//! Events of a training run, as lines.

use std::time::{Duration, Instant};

use volley::{SchedulerAddress, TrainId, TrainingEvent, TrainingEvents};
use volley_proto::limits::row_count;
use volley_proto::store::EpochRecord;

use super::short;

/// Maximum number of epochs in one answer that get a line each.
const READABLE: usize = 3;

/// Number of epochs that have a line each, and of lines in the time so far if there are more.
const LINES: usize = 50;
/// Shortest interval of lines of epochs after these.
const INTERVAL: Duration = Duration::from_secs(1);

/// Events of one training run.
#[derive(Debug)]
pub(super) struct Events {
    events: TrainingEvents,
    /// Choice of the epochs that have a line; `None` if all have one, for a program that reads them.
    sparse: Option<Sparse>,
}

/// Choice of the epochs of a long training that have a line.
#[derive(Debug)]
struct Sparse {
    began: Instant,
    /// Number of lines of epochs, and the time of the last.
    lines: usize,
    last: Instant,
    /// Line of the newest epoch, if it is not shown.
    held: Option<String>,
}

impl Events {
    pub(super) fn of(scheduler: &SchedulerAddress, id: TrainId, all: bool) -> Self {
        Self {
            events: TrainingEvents::of(scheduler, id),
            sparse: (!all).then(|| Sparse::new(Instant::now())),
        }
    }

    /// Waits for the next events. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> Vec<String> {
        let events = self.events.next().await;
        match &mut self.sparse {
            Some(sparse) => sparse.describe(&events, Instant::now()),
            None => events.iter().filter_map(describe).collect(),
        }
    }

    /// Returns the line of the last epoch, if it is not shown yet.
    pub(super) fn rest(&mut self) -> Option<String> {
        self.sparse.as_mut()?.held.take()
    }
}

impl Sparse {
    fn new(now: Instant) -> Self {
        Self {
            began: now,
            lines: 0,
            last: now,
            held: None,
        }
    }

    /// Formats events as lines. Of more than [`READABLE`] epochs, and of those that come soon after the last line, only
    /// the newest has a line, and only before another event.
    fn describe(&mut self, events: &[TrainingEvent], now: Instant) -> Vec<String> {
        let is_epoch = |event: &&TrainingEvent| matches!(event, TrainingEvent::Epoch(_));
        let are_many = events.iter().filter(is_epoch).count() > READABLE;
        let mut lines = Vec::new();
        for event in events {
            let Some(line) = describe(event) else {
                continue;
            };
            match is_epoch(&event) {
                true if are_many || !self.is_due(now) => self.held = Some(line),
                true => lines.push(self.show(line, now)),
                false => {
                    let before = self.held.take();
                    lines.extend(before.map(|line| self.show(line, now)));
                    lines.push(line);
                }
            }
        }
        if self.is_due(now) {
            let newest = self.held.take();
            lines.extend(newest.map(|line| self.show(line, now)));
        }
        lines
    }

    fn is_due(&self, now: Instant) -> bool {
        let elapsed = now.duration_since(self.began);
        let interval = INTERVAL.max(elapsed / LINES as u32);
        self.lines < LINES || now.duration_since(self.last) >= interval
    }

    /// Takes a shown line of an epoch into account.
    fn show(&mut self, line: String, now: Instant) -> String {
        (self.lines, self.last, self.held) = (self.lines + 1, now, None);
        line
    }
}

/// Formats an event as a line; `None` for an event that this build does not know.
fn describe(event: &TrainingEvent) -> Option<String> {
    Some(match event {
        TrainingEvent::Waiting { reason } => format!("training waits: {reason}"),
        TrainingEvent::Started {
            generation,
            executors,
        } => {
            let (ranks, executors) = (executors.len(), executors.join(", "));
            let noun = if ranks == 1 { "rank" } else { "ranks" };
            format!("generation {generation}: {ranks} {noun} on {executors}")
        }
        TrainingEvent::Loaded {
            rank,
            rows,
            seconds,
        } => format!("rank {rank}: {} loaded in {seconds:.1} s", row_count(*rows)),
        TrainingEvent::Epoch(record) => describe_epoch(record),
        TrainingEvent::Note(note) => note.clone(),
        TrainingEvent::Failed {
            rank,
            executor,
            error,
        } => format!("rank {rank} on {executor}: {error}"),
        _ => return None,
    })
}

fn describe_epoch(record: &EpochRecord) -> String {
    let mut line = format!("epoch {}: loss {}", record.epoch, short(record.loss));
    let evaluated = [
        ("eval_loss", record.eval_loss),
        ("eval_rmspe", record.eval_rmspe),
        ("eval_r2", record.eval_r2),
        ("eval_accuracy", record.eval_accuracy),
        ("eval_interval_coverage", record.eval_interval_coverage),
    ];
    for (name, value) in evaluated {
        line.extend(value.map(|value| format!(", {name} {}", short(value))));
    }
    let share = |seconds: f64| 100.0 * seconds / record.seconds.max(f64::MIN_POSITIVE);
    let (compute, reduce) = (share(record.compute_seconds), share(record.reduce_seconds));
    let seconds = record.seconds;
    line += &format!("; {seconds:.1} s ({compute:.0} % compute, {reduce:.0} % all-reduce)");
    if let Some(why) = &record.ended {
        line += &format!("; the last epoch: {why}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_that_come_fast_do_not_each_have_a_line() {
        let epoch = |epoch| {
            let record = EpochRecord {
                epoch,
                seconds: 1.0,
                ..EpochRecord::default()
            };
            TrainingEvent::Epoch(record.into())
        };
        let note = TrainingEvent::Note("a note".into());
        let now = Instant::now();
        let lines = |epochs: usize| {
            let events: Vec<_> = (1..=epochs).map(epoch).chain([note.clone()]).collect();
            Sparse::new(now).describe(&events, now)
        };
        assert_eq!(lines(3).len(), 4);
        let few = lines(40);
        assert_eq!((few.len(), few[1].as_str()), (2, "a note"));
        assert!(few[0].starts_with("epoch 40: "), "{few:?}");

        // A thousand epochs, 10 ms apart, each in an answer of its own.
        let mut sparse = Sparse::new(now);
        let mut shown = Vec::new();
        for number in 1..=1000 {
            let at = now + Duration::from_millis(10 * number as u64);
            shown.extend(sparse.describe(&[epoch(number)], at));
        }
        assert_eq!(shown.len(), LINES + 9);
        assert!(shown[LINES - 1].starts_with("epoch 50: "), "{shown:?}");
        // The last epoch precedes the next event, or is the rest.
        let end = now + Duration::from_millis(10_001);
        let due = sparse.describe(std::slice::from_ref(&note), end);
        assert!(due[0].starts_with("epoch 1000: ") && due[1] == "a note");
        assert_eq!(sparse.held, None);
        // Hours later, lines are minutes apart.
        let late = now + Duration::from_secs(3 * 3600);
        assert_eq!(sparse.describe(&[epoch(1001)], late).len(), 1);
        let soon = late + Duration::from_secs(60);
        assert_eq!(sparse.describe(&[epoch(1002)], soon).len(), 0);
        assert!(sparse.held.is_some());
    }

    #[test]
    fn events_read_as_lines() {
        let record = EpochRecord {
            epoch: 2,
            loss: 0.25,
            eval_loss: Some(0.5),
            seconds: 2.0,
            compute_seconds: 1.0,
            reduce_seconds: 0.5,
            ..EpochRecord::default()
        };
        let epoch = TrainingEvent::Epoch(record.into());
        let line =
            "epoch 2: loss 0.25000, eval_loss 0.50000; 2.0 s (50 % compute, 25 % all-reduce)";
        assert_eq!(describe(&epoch).unwrap(), line);
        for (generation, executors, line) in [
            (1, &["a", "b"][..], "generation 1: 2 ranks on a, b"),
            (2, &["b"][..], "generation 2: 1 rank on b"),
        ] {
            let executors = executors.iter().map(ToString::to_string).collect();
            let started = TrainingEvent::Started {
                generation,
                executors,
            };
            assert_eq!(describe(&started).unwrap(), line);
        }
    }
}
