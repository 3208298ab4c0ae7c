//! Events of a training run, as lines.

use std::time::Duration;

use tokio::time::sleep;
use tonic::Code;
use volley::SchedulerAddress;
use volley_proto::TrainId;
use volley_proto::access::Authorized;
use volley_proto::store::EpochRecord;
use volley_proto::wire::event::Event as Kind;
use volley_proto::wire::training_client::TrainingClient;
use volley_proto::wire::{Event, WatchRequest, WatchResponse};

/// Pause between two requests to the scheduler while there is nothing new.
const INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of epochs in one answer that get a line each.
const READABLE: usize = 3;

/// Events of one training run.
#[derive(Debug)]
pub(super) struct Events {
    scheduler: SchedulerAddress,
    client: Option<TrainingClient<Authorized>>,
    request: WatchRequest,
    /// True if every epoch is reported, for a program that reads them.
    all: bool,
}

impl Events {
    pub(super) fn of(scheduler: &SchedulerAddress, id: TrainId, all: bool) -> Self {
        let request = WatchRequest {
            train_id: id.to_string(),
            seen: 0,
        };
        Self {
            scheduler: scheduler.clone(),
            client: None,
            request,
            all,
        }
    }

    /// Waits for the next events, however long the scheduler does not answer: those who wait for the run's job have a
    /// deadline. Dropping the future loses no events.
    pub(super) async fn next(&mut self) -> Vec<String> {
        loop {
            if self.client.is_none() {
                self.client = connect(&self.scheduler).await;
            }
            let Some(client) = &mut self.client else {
                sleep(INTERVAL).await;
                continue;
            };
            match client.watch(self.request.clone()).await {
                Ok(answer) => {
                    let WatchResponse { events, seen } = answer.into_inner();
                    self.request.seen = seen;
                    if !events.is_empty() {
                        let most = if self.all { usize::MAX } else { READABLE };
                        return describe_all(&events, most);
                    }
                    sleep(INTERVAL).await;
                }
                // The scheduler does not know the run until its stage is reached.
                Err(status) if status.code() == Code::NotFound => sleep(INTERVAL).await,
                Err(status) => {
                    tracing::debug!("no progress: {status}");
                    self.client = None;
                    sleep(INTERVAL).await;
                }
            }
        }
    }
}

async fn connect(scheduler: &SchedulerAddress) -> Option<TrainingClient<Authorized>> {
    match scheduler.connect().await {
        Ok(channel) => Some(TrainingClient::new(channel)),
        Err(error) => {
            tracing::debug!("no progress: {error}");
            None
        }
    }
}

/// Formats events as lines; if there are more than `most` epochs, only the last of them.
fn describe_all(events: &[Event], most: usize) -> Vec<String> {
    let is_epoch = |event: &&Event| matches!(event.event, Some(Kind::Epoch(_)));
    let epochs = events.iter().filter(is_epoch).count();
    let last = events.iter().rfind(is_epoch);
    let shown = events.iter().filter(|event| {
        let is_last = last.is_some_and(|last| std::ptr::eq(last, *event));
        epochs <= most || is_last || !is_epoch(event)
    });
    shown.filter_map(describe).collect()
}

/// Formats an event as a line; `None` for an event that this build does not know.
fn describe(event: &Event) -> Option<String> {
    Some(match event.event.as_ref()? {
        Kind::Waiting(waiting) => format!("training waits: {}", waiting.reason),
        Kind::Started(started) => {
            let (ranks, executors) = (started.executors.len(), started.executors.join(", "));
            let noun = if ranks == 1 { "rank" } else { "ranks" };
            format!(
                "generation {}: {ranks} {noun} on {executors}",
                started.generation
            )
        }
        Kind::Loaded(rank) => {
            format!(
                "rank {}: {} rows loaded in {:.1} s",
                rank.rank, rank.rows, rank.seconds
            )
        }
        Kind::Epoch(record) => describe_epoch(&serde_json::from_slice(record).ok()?),
        Kind::Note(note) => note.clone(),
        Kind::Failed(failure) => {
            format!(
                "rank {} on {}: {}",
                failure.rank, failure.executor_id, failure.error
            )
        }
    })
}

fn describe_epoch(record: &EpochRecord) -> String {
    let mut line = format!("epoch {}: loss {:.5}", record.epoch, record.loss);
    let evaluated = [
        ("eval_loss", record.eval_loss),
        ("eval_rmspe", record.eval_rmspe),
        ("eval_r2", record.eval_r2),
        ("eval_accuracy", record.eval_accuracy),
        ("eval_interval_coverage", record.eval_interval_coverage),
    ];
    for (name, value) in evaluated {
        line.extend(value.map(|value| format!(", {name} {value:.5}")));
    }
    let share = |seconds: f64| 100.0 * seconds / record.seconds.max(f64::MIN_POSITIVE);
    let (compute, reduce) = (share(record.compute_seconds), share(record.reduce_seconds));
    let seconds = record.seconds;
    line += &format!("; {seconds:.1} s ({compute:.0} % compute, {reduce:.0} % all-reduce)");
    if let Some(why) = &record.ended {
        line += &format!("; it is the last: {why}");
    }
    line
}

#[cfg(test)]
mod tests {
    use volley_proto::wire::Started;

    use super::*;

    #[test]
    fn epochs_that_come_fast_do_not_each_have_a_line() {
        let epoch = |epoch| {
            let record = EpochRecord {
                epoch,
                seconds: 1.0,
                ..EpochRecord::default()
            };
            let record = serde_json::to_vec(&record).unwrap();
            Event {
                event: Some(Kind::Epoch(record)),
            }
        };
        let note = Event {
            event: Some(Kind::Note("a note".into())),
        };
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
            steps: 10,
            rows: 100,
            loss: 0.25,
            eval_loss: Some(0.5),
            eval_mae: None,
            eval_rmse: None,
            eval_r2: None,
            eval_rmspe: None,
            eval_accuracy: None,
            eval_majority: None,
            eval_interval_coverage: None,
            labels: vec![],
            learn_rate: None,
            ended: None,
            seconds: 2.0,
            compute_seconds: 1.0,
            reduce_seconds: 0.5,
            checksum: String::new(),
            ranks: Vec::new(),
            earlier: None,
        };
        let event = |kind| Event { event: Some(kind) };
        let epoch = Kind::Epoch(serde_json::to_vec(&record).unwrap());
        let line =
            "epoch 2: loss 0.25000, eval_loss 0.50000; 2.0 s (50 % compute, 25 % all-reduce)";
        assert_eq!(describe(&event(epoch)).unwrap(), line);
        for (generation, executors, line) in [
            (1, &["a", "b"][..], "generation 1: 2 ranks on a, b"),
            (2, &["b"][..], "generation 2: 1 rank on b"),
        ] {
            let executors = executors.iter().map(ToString::to_string).collect();
            let started = Started {
                generation,
                executors,
            };
            assert_eq!(describe(&event(Kind::Started(started))).unwrap(), line);
        }
        assert_eq!(describe(&event(Kind::Epoch(b"?".to_vec()))), None);
        assert_eq!(describe(&Event { event: None }), None);
    }
}
