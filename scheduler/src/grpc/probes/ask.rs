//! Probe requests to an executor, and the wait for their results.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;
use volley_proto::probe::{Probe, Probed};
use volley_proto::wire::{self, AttendResponse, ProbedRequest};

use super::super::attendance::Sign;

/// Time within which an executor must report the result of a probe: its longest try, and some more.
const PATIENCE: Duration = Duration::from_secs(15);

/// Executors that can be asked, and their open requests; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Weak senders: a stream ends when attendance drops its sender.
    streams: Mutex<HashMap<String, WeakUnboundedSender<Sign>>>,
    waiting: Mutex<HashMap<u64, Waiting>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    executor: String,
    answer: oneshot::Sender<Probed>,
}

/// Guard that removes an abandoned probe.
struct Forget<'a>(&'a Shared, u64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().remove(&self.1);
    }
}

impl Probes {
    /// Registers the stream of an executor that attends.
    pub(crate) fn attends(&self, executor: &str, signs: &UnboundedSender<Sign>) {
        let mut streams = self.shared.streams.lock();
        streams.retain(|_, signs| signs.strong_count() > 0);
        streams.insert(executor.to_owned(), signs.downgrade());
    }

    /// Asks an executor to probe.
    ///
    /// # Errors
    /// When there is no answer, with the reason.
    pub(super) async fn ask(&self, executor: &str, probe: &Probe) -> Result<Probed, String> {
        self.ask_within(PATIENCE, executor, probe).await
    }

    async fn ask_within(
        &self,
        patience: Duration,
        executor: &str,
        probe: &Probe,
    ) -> Result<Probed, String> {
        let gone = || format!("{executor} has left the cluster");
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            executor: executor.to_owned(),
            answer,
        };
        self.shared.waiting.lock().insert(id, waiting);
        let _forget = Forget(&self.shared, id);
        self.send(executor, id, probe)?;
        match timeout(patience, answered).await {
            Ok(Ok(probed)) => Ok(probed),
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(format!(
                "{executor} does not answer the scheduler within {patience:?}"
            )),
        }
    }

    /// Tells an executor to stop listening, if it is there.
    pub(super) fn stop(&self, executor: &str) {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        if let Err(reason) = self.send(executor, id, &Probe::Stop) {
            tracing::debug!(
                executor,
                reason,
                "an executor is not told that a probe is over"
            );
        }
    }

    fn send(&self, executor: &str, id: u64, probe: &Probe) -> Result<(), String> {
        let probe = serde_json::to_vec(probe).map_err(|error| error.to_string())?;
        let stream = self.shared.streams.lock().get(executor).cloned();
        let sign = AttendResponse {
            probes: vec![wire::Probe { id, probe }],
            ..AttendResponse::default()
        };
        let sent = stream.and_then(|stream| stream.upgrade()?.send(Ok(sign)).ok());
        sent.ok_or_else(|| format!("{executor} has left the cluster"))
    }

    /// Delivers an executor's result of a probe.
    ///
    /// # Errors
    /// When the executor was not asked for this probe, or nobody waits for it.
    pub(crate) fn probed(&self, probed: ProbedRequest) -> Result<(), Status> {
        let ProbedRequest {
            executor_id,
            id,
            probed,
        } = probed;
        let probed = serde_json::from_slice(&probed)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let mut waiting = self.shared.waiting.lock();
        let own = waiting
            .get(&id)
            .is_some_and(|waiting| waiting.executor == executor_id);
        match own.then(|| waiting.remove(&id)).flatten() {
            // The asker may be gone.
            Some(waiting) => waiting.answer.send(probed).or(Ok(())),
            None => Err(Status::not_found(format!(
                "executor {executor_id} is not asked for probe {id}, or was not waited for"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    fn answer(executor: &str, id: u64) -> ProbedRequest {
        ProbedRequest {
            executor_id: executor.to_owned(),
            id,
            probed: serde_json::to_vec(&Probed::Failed("so it is".to_owned())).unwrap(),
        }
    }

    #[tokio::test]
    async fn only_who_was_asked_answers_and_once() {
        let probes = Probes::default();
        let (signs, mut heard) = unbounded_channel();
        probes.attends("e", &signs);
        let asked = probes.ask("e", &Probe::Scheduler);
        let answering = async {
            let sign = heard.recv().await.unwrap().unwrap();
            let id = sign.probes[0].id;
            assert!(probes.probed(answer("another", id)).is_err());
            probes.probed(answer("e", id)).unwrap();
            assert!(probes.probed(answer("e", id)).is_err());
        };
        let (probed, ()) = tokio::join!(asked, answering);
        assert_eq!(probed, Ok(Probed::Failed("so it is".to_owned())));
        assert!(probes.shared.waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn an_executor_that_has_left_is_not_waited_for() {
        let probes = Probes::default();
        let (signs, heard) = unbounded_channel();
        probes.attends("e", &signs);
        drop((signs, heard));
        let said = probes.ask("e", &Probe::Scheduler).await.unwrap_err();
        assert_eq!(said, "e has left the cluster");
        assert!(probes.ask("nobody", &Probe::Scheduler).await.is_err());
    }

    #[tokio::test]
    async fn an_executor_that_is_silent_is_named() {
        let probes = Probes::default();
        let (signs, _heard) = unbounded_channel();
        probes.attends("e", &signs);
        let asked = probes.ask_within(Duration::from_millis(20), "e", &Probe::Scheduler);
        let said = asked.await.unwrap_err();
        assert!(said.contains("e does not answer the scheduler"), "{said}");
        assert!(probes.shared.waiting.lock().is_empty());
    }
}
