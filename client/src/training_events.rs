//! Events of a training run, as its scheduler reports them, and its early end.

use std::time::Duration;

use tokio::time::sleep;
use tonic::Code;
use volley_proto::TrainId;
use volley_proto::access::Authorized;
use volley_proto::store::EpochRecord;
use volley_proto::wire;
use volley_proto::wire::training_client::TrainingClient;

use crate::{Error, Result, SchedulerAddress};

/// Pause between two requests to the scheduler while there is nothing new.
const INTERVAL: Duration = Duration::from_millis(250);

/// Time limit for an answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Event of a training run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TrainingEvent {
    /// The ranks cannot start yet.
    Waiting {
        /// Reason that they wait.
        reason: String,
    },
    /// A generation of ranks has started.
    Started {
        /// Number of the generation, from 1.
        generation: u64,
        /// Executor of each rank, by rank.
        executors: Vec<String>,
    },
    /// A rank has streamed its rows.
    Loaded {
        /// The rank, from 0.
        rank: u64,
        /// Number of its rows.
        rows: u64,
        /// Seconds that it took.
        seconds: f64,
    },
    /// An epoch has ended.
    Epoch(Box<EpochRecord>),
    /// A rank has failed.
    Failed {
        /// The rank, from 0.
        rank: u64,
        /// Its executor.
        executor: String,
        /// Its error.
        error: String,
    },
    /// Text for the user.
    Note(String),
}

/// Events of one training run, from its first one on.
#[derive(Debug)]
pub struct TrainingEvents {
    scheduler: SchedulerAddress,
    client: Option<TrainingClient<Authorized>>,
    request: wire::WatchRequest,
}

impl TrainingEvents {
    /// Returns the events of a run on a scheduler, which it connects to on the first request.
    pub fn of(scheduler: &SchedulerAddress, id: TrainId) -> Self {
        let request = wire::WatchRequest {
            train_id: id.to_string(),
            seen: 0,
        };
        Self {
            scheduler: scheduler.clone(),
            client: None,
            request,
        }
    }

    /// Waits for the next events, however long the scheduler does not answer or does not know the run: those who wait
    /// for the run's job have a deadline. Dropping the future loses no events.
    pub async fn next(&mut self) -> Vec<TrainingEvent> {
        loop {
            if self.client.is_none() {
                self.client = connect(&self.scheduler).await;
            }
            let Some(client) = &mut self.client else {
                sleep(INTERVAL).await;
                continue;
            };
            let mut request = tonic::Request::new(self.request.clone());
            request.set_timeout(ANSWER);
            match client.watch(request).await {
                Ok(answer) => {
                    let wire::WatchResponse { events, seen } = answer.into_inner();
                    self.request.seen = seen;
                    let events: Vec<_> = events.into_iter().filter_map(TrainingEvent::of).collect();
                    if !events.is_empty() {
                        return events;
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

    /// Ends the run early: its ranks finish the epoch under way and publish the model, as after early stopping. Returns
    /// once the scheduler has accepted it. A run that has ended already, or is in a refit, is unaffected.
    ///
    /// # Errors
    /// When the scheduler does not answer within a minute, does not know the run (its job is not planned yet, or long
    /// over), or does not let this client change it.
    pub async fn stop(&mut self) -> Result<()> {
        const REQUEST: &str = "end the training early";
        let address = self.scheduler.as_str();
        let client = match &mut self.client {
            Some(client) => client,
            client => {
                let channel = self.scheduler.connect_for(REQUEST).await?;
                client.insert(TrainingClient::new(channel))
            }
        };
        let mut request = tonic::Request::new(wire::StopRequest {
            train_id: self.request.train_id.clone(),
        });
        request.set_timeout(ANSWER);
        let stopped = client.stop(request).await;
        stopped.map_err(|status| Error::refused(address, REQUEST, status))?;
        Ok(())
    }
}

impl TrainingEvent {
    /// Converts an event; `None` for one that this build does not know.
    fn of(event: wire::Event) -> Option<Self> {
        use wire::event::Event;
        Some(match event.event? {
            Event::Waiting(wire::Waiting { reason }) => Self::Waiting { reason },
            Event::Started(wire::Started {
                generation,
                executors,
            }) => Self::Started {
                generation,
                executors,
            },
            Event::Loaded(loaded) => Self::Loaded {
                rank: loaded.rank,
                rows: loaded.rows,
                seconds: loaded.seconds,
            },
            Event::Epoch(record) => Self::Epoch(serde_json::from_slice(&record).ok()?),
            Event::Failed(failure) => Self::Failed {
                rank: failure.rank,
                executor: failure.executor_id,
                error: failure.error,
            },
            Event::Note(text) => Self::Note(text),
        })
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

#[cfg(test)]
mod tests {
    use volley_proto::wire::event::Event;

    use super::*;

    #[test]
    fn an_unknown_event_is_none() {
        let of = |event| TrainingEvent::of(wire::Event { event });
        assert_eq!(of(None), None);
        assert_eq!(of(Some(Event::Epoch(b"?".to_vec()))), None);
        let record = EpochRecord {
            epoch: 2,
            loss: 0.5,
            ..EpochRecord::default()
        };
        let sent = Event::Epoch(serde_json::to_vec(&record).unwrap());
        assert_eq!(of(Some(sent)), Some(TrainingEvent::Epoch(record.into())));
    }
}
