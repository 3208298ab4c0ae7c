//! What a training run does while its statement waits, as lines on standard error.
//!
//! The scheduler is asked what became of the run, by its train id. Progress is a courtesy: when it
//! cannot be had, the statement goes on without it.

use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use volley_proto::TrainId;
use volley_proto::store::EpochRecord;
use volley_proto::wire::event::Event as Kind;
use volley_proto::wire::training_client::TrainingClient;
use volley_proto::wire::{Event, WatchRequest};

/// How often the scheduler is asked while nothing is new.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long to ask for the last events once the statement has ended; the scheduler holds back its
/// answer while there are none.
const LAST: Duration = Duration::from_millis(200);

/// Follows one training run.
#[derive(Debug)]
pub(super) struct Progress {
    /// `host:port`
    scheduler: String,
    request: WatchRequest,
}

impl Progress {
    pub(super) fn new(scheduler: &str, id: TrainId) -> Self {
        let request = WatchRequest {
            train_id: id.to_string(),
            seen: 0,
        };
        Self {
            scheduler: scheduler.to_owned(),
            request,
        }
    }

    /// Does the work, printing meanwhile what the run does.
    pub(super) async fn beside<T>(mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut client = tokio::select! {
            done = &mut work => return done,
            client = connect(&self.scheduler) => client,
        };
        let done = tokio::select! {
            done = &mut work => done,
            () = self.follow(&mut client) => work.await,
        };
        let rest = async { while self.ask(&mut client).await.is_some_and(|news| news > 0) {} };
        // Running out of time is the usual end: the scheduler waits for what does not come.
        let _ = timeout(LAST, rest).await;
        done
    }

    /// Prints events until the scheduler stops answering.
    async fn follow(&mut self, client: &mut Option<TrainingClient<Channel>>) {
        loop {
            match self.ask(client).await {
                Some(0) => sleep(INTERVAL).await,
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Prints the events since the last time; how many there were, or nothing when there is nobody
    /// to ask any more.
    async fn ask(&mut self, client: &mut Option<TrainingClient<Channel>>) -> Option<usize> {
        match client.as_mut()?.watch(self.request.clone()).await {
            Ok(answer) => {
                let events = answer.into_inner().events;
                self.request.seen += events.len() as u64;
                events
                    .iter()
                    .filter_map(describe)
                    .for_each(|line| eprintln!("{line}"));
                Some(events.len())
            }
            // The run is not known until its stage is reached.
            Err(status) if status.code() == tonic::Code::NotFound => Some(0),
            Err(status) => {
                tracing::debug!("no more progress: {status}");
                *client = None;
                None
            }
        }
    }
}

async fn connect(scheduler: &str) -> Option<TrainingClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{scheduler}")).ok()?;
    match endpoint.connect().await {
        Ok(channel) => Some(TrainingClient::new(channel)),
        Err(error) => {
            tracing::debug!("no progress: {error}");
            None
        }
    }
}

/// An event in a line; nothing for one that this build does not know.
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
        ("validation loss", record.eval_loss),
        ("exp_rmspe", record.eval_rmspe),
    ];
    for (name, value) in evaluated {
        line.extend(value.map(|value| format!(", {name} {value:.5}")));
    }
    let share = |seconds: f64| 100.0 * seconds / record.seconds.max(f64::MIN_POSITIVE);
    let (compute, reduce) = (share(record.compute_seconds), share(record.reduce_seconds));
    let seconds = record.seconds;
    line + &format!("; {seconds:.1} s ({compute:.0} % compute, {reduce:.0} % all-reduce)")
}

#[cfg(test)]
mod tests {
    use volley_proto::wire::Started;

    use super::*;

    #[test]
    fn events_read_as_lines() {
        let record = EpochRecord {
            epoch: 2,
            steps: 10,
            rows: 100,
            loss: 0.25,
            eval_loss: Some(0.5),
            eval_mae: None,
            eval_rmspe: None,
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
            "epoch 2: loss 0.25000, validation loss 0.50000; 2.0 s (50 % compute, 25 % all-reduce)";
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
