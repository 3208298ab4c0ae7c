//! Events of a training run, as lines.

use volley::{SchedulerAddress, TrainId, TrainingEvent, TrainingEvents};
use volley_proto::limits::row_count;
use volley_proto::store::EpochRecord;

use super::short;

/// Maximum number of epochs in one answer that get a line each.
const READABLE: usize = 3;

/// Events of one training run.
#[derive(Debug)]
pub(super) struct Events {
    events: TrainingEvents,
    /// True if every epoch is reported, for a program that reads them.
    all: bool,
}

impl Events {
    pub(super) fn of(scheduler: &SchedulerAddress, id: TrainId, all: bool) -> Self {
        let events = TrainingEvents::of(scheduler, id);
        Self { events, all }
    }

    /// Waits for the next events. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> Vec<String> {
        let most = if self.all { usize::MAX } else { READABLE };
        describe_all(&self.events.next().await, most)
    }
}

/// Formats events as lines; if there are more than `most` epochs, only the last of them.
fn describe_all(events: &[TrainingEvent], most: usize) -> Vec<String> {
    let is_epoch = |event: &&TrainingEvent| matches!(event, TrainingEvent::Epoch(_));
    let epochs = events.iter().filter(is_epoch).count();
    let last = events.iter().rfind(is_epoch);
    let shown = events.iter().filter(|event| {
        let is_last = last.is_some_and(|last| std::ptr::eq(last, *event));
        epochs <= most || is_last || !is_epoch(event)
    });
    shown.filter_map(describe).collect()
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
        let lines = |epochs: usize| {
            let events: Vec<_> = (1..=epochs).map(epoch).chain([note.clone()]).collect();
            describe_all(&events, READABLE)
        };
        assert_eq!(lines(3).len(), 4);
        let few = lines(40);
        assert_eq!((few.len(), few[1].as_str()), (2, "a note"));
        assert!(few[0].starts_with("epoch 40: "), "{few:?}");
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
