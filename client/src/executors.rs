//! Executors of a cluster, and their planned departures. Not here: the executor's end, which the scheduler and the
//! executor agree on.
//!
//! ```text
//!   request ──► poll the registration ──► absent: the executor has left
//!      │               │
//!      │               └ after a restart of the scheduler: a grace period for registering again; an executor that has
//!      │                 registered and does not drain is asked again
//!      └ no answer: retried for a minute, then DrainLost. So is a poll.
//! ```

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Status};
use volley_proto::tables::Executor;
use volley_proto::wire::DrainRequest;
use volley_proto::wire::cluster_client::ClusterClient;

use crate::cluster::{REDIAL, RETURN, is_no_answer};
use crate::session::await_scheduler;
use crate::system_tables::{Scope, SystemTables};
use crate::{Error, Result, SchedulerAddress};

/// Time limit of retries while the scheduler does not answer.
const RETRY_LIMIT: Duration = if cfg!(test) { REDIAL } else { RETURN };
/// Poll interval of a registration.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of one request to leave.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Grace period for registering with a restarted scheduler: an executor misses a frozen one after 10 s by default, and
/// pauses up to 10 s between attempts.
const GRACE_PERIOD: Duration = Duration::from_secs(25);

/// Failure of a request that the scheduler has not answered.
type NoAnswer = Box<dyn std::error::Error + Send + Sync>;

/// Executors of one scheduler.
#[derive(Debug)]
pub struct Executors {
    scheduler: SchedulerAddress,
}

/// Executor that is to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    id: String,
    /// Time at which it registered, in milliseconds since 1970: one that comes back has another.
    since: Option<u64>,
    /// True if the scheduler has been away since it was asked, and may know nothing of it.
    lost: bool,
}

/// Registration of an executor, as polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Registration {
    since: u64,
    draining: bool,
}

/// Progress of a planned departure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has left.
    Left,
    /// It is still there, or may come back.
    Stays,
    /// It has registered with a scheduler that was restarted, where it drains already or must be asked once more.
    Again(Registration),
}

impl Executors {
    /// Connects to a scheduler, and waits until it answers.
    ///
    /// # Errors
    /// When the scheduler does not answer in time, or refuses this client.
    pub async fn connect(scheduler: SchedulerAddress, patience: Duration) -> Result<Self> {
        await_scheduler(&scheduler, patience).await?;
        Ok(Self { scheduler })
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &SchedulerAddress {
        &self.scheduler
    }

    /// Has an executor take no new tasks, and leave once nothing there is needed, or after its `--drain-timeout`.
    ///
    /// # Errors
    /// When the scheduler refuses: only administrators may do this, with an executor that is registered. The error is
    /// [`Error::DrainLost`] when it does not answer for a minute.
    pub async fn drain(&self, id: &str) -> Result<Leaving> {
        let (unknown, asked_again) = self.answered(id, || self.ask_to_leave(id)).await?;
        if let Some(unknown) = unknown.filter(|_| !asked_again) {
            return Err(unknown);
        }
        let tables = SystemTables::of(&self.scheduler);
        // It may have left by now.
        let (found, lost) = self.answered(id, || registration(&tables, id)).await?;
        Ok(Leaving {
            id: id.to_owned(),
            since: found.map(|found| found.since),
            lost: asked_again || lost,
        })
    }

    /// Waits until an executor has left; its `--drain-timeout` bounds the wait. An executor that has registered with a
    /// scheduler that was restarted, which may have lost the request, is asked again.
    ///
    /// # Errors
    /// When the scheduler refuses. The error is [`Error::DrainLost`] when it does not answer for a minute.
    pub async fn await_left(&self, leaving: &Leaving) -> Result<()> {
        let Leaving { id, since, lost } = leaving;
        let (mut since, mut back) = (*since, lost.then(Instant::now));
        let tables = SystemTables::of(&self.scheduler);
        loop {
            let (found, lost) = self.answered(id, || registration(&tables, id)).await?;
            if lost {
                back = Some(Instant::now());
            }
            match progress(since, found, back.map(|back| back.elapsed())) {
                Progress::Left => return Ok(()),
                Progress::Stays => {}
                Progress::Again(found) => {
                    (since, back) = (Some(found.since), None);
                    if !found.draining {
                        let asked = self.answered(id, || self.ask_to_leave(id)).await?;
                        // Its registration, or this request, was lost with a scheduler once more.
                        if let (Some(_), _) | (_, true) = asked {
                            back = Some(Instant::now());
                        }
                    }
                }
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends a request about an executor until the scheduler answers, for a minute. Returns also whether it was sent more
    /// than once.
    async fn answered<T, Sent>(
        &self,
        executor: &str,
        mut send: impl FnMut() -> Sent,
    ) -> Result<(T, bool)>
    where
        Sent: Future<Output = Result<Result<T>, NoAnswer>>,
    {
        let schedulers = self.scheduler.schedulers();
        let mut silent_since = None;
        loop {
            let tried = schedulers.current().to_owned();
            let source = match send().await {
                Ok(answer) => return Ok((answer?, silent_since.is_some())),
                Err(source) => source,
            };
            // Another of several schedulers may lead.
            schedulers.distrust(&tried);
            let since: Instant = *silent_since.get_or_insert_with(|| {
                let address = self.scheduler.as_str();
                tracing::warn!(
                    "the scheduler at {address} does not answer: waiting up to {RETRY_LIMIT:?} for it to come back"
                );
                Instant::now()
            });
            if since.elapsed() >= RETRY_LIMIT {
                return Err(Error::DrainLost {
                    address: self.scheduler.to_string(),
                    executor: executor.to_owned(),
                    waited: RETRY_LIMIT,
                    source,
                });
            }
            sleep(REDIAL).await;
        }
    }

    /// Asks once that an executor leaves. Returns an error where the scheduler does not know it, as one that was restarted
    /// before the executor has registered.
    async fn ask_to_leave(&self, id: &str) -> Result<Result<Option<Error>>, NoAnswer> {
        const REQUEST: &str = "drain the executor";
        let channel = match self.scheduler.connect().await {
            Ok(channel) => channel,
            // A token that cannot be read.
            Err(source) => return source.downcast::<Error>().map(|error| Err(*error)),
        };
        let client = ClusterClient::new(channel);
        let answer = self.scheduler.authenticated(|| {
            let mut request = Request::new(DrainRequest {
                executor_id: id.to_owned(),
            });
            request.set_timeout(REQUEST_TIMEOUT);
            let mut client = client.clone();
            async move { client.drain(request).await }
        });
        let refused = |status| Error::refused(self.scheduler.as_str(), REQUEST, status);
        match answer.await {
            Ok(_) => Ok(Ok(None)),
            Err(status) if is_no_answer(&status) => Err(status.into()),
            Err(status) if status.code() == Code::NotFound => Ok(Ok(Some(refused(status)))),
            Err(status) => Ok(Err(refused(status))),
        }
    }
}

/// Asks once for the registration of an executor.
async fn registration(
    tables: &SystemTables,
    id: &str,
) -> Result<Result<Option<Registration>>, NoAnswer> {
    let rows: Result<Vec<Executor>> = tables.rows(Scope::All).await;
    match rows {
        Ok(rows) => {
            let row = rows.into_iter().find(|row| row.executor_id == id);
            Ok(Ok(row.map(|row| Registration {
                since: row.since,
                draining: row.draining,
            })))
        }
        Err(Error::Request { source, .. }) if !is_answer(&*source) => Err(source),
        Err(error) => Ok(Err(error)),
    }
}

/// Checks whether a failure of a request came from the scheduler, or could not be sent for another reason than its silence.
fn is_answer(source: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    match source.downcast_ref::<Status>() {
        Some(status) => !is_no_answer(status),
        None => source.is::<Error>(),
    }
}

/// Decides whether an executor that registered at a time has left, by its registration now and, if the scheduler has been
/// away, by the time since it is back.
fn progress(since: Option<u64>, found: Option<Registration>, back: Option<Duration>) -> Progress {
    match (found, back) {
        (None, Some(back)) if back < GRACE_PERIOD => Progress::Stays,
        (None, _) => Progress::Left,
        // One that was lost meanwhile still drains.
        (Some(found), None) if since == Some(found.since) || found.draining => Progress::Stays,
        // Another one has come in its place.
        (Some(_), None) => Progress::Left,
        (Some(found), Some(_)) => Progress::Again(found),
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::access::Credential;

    use super::*;

    #[test]
    fn an_executor_that_is_asked_has_left_once_it_cannot_come_back() {
        let registered = |since, draining| Some(Registration { since, draining });
        let soon = Some(GRACE_PERIOD / 2);
        for (found, back, expected) in [
            (registered(1, true), None, Progress::Stays),
            (None, None, Progress::Left),
            (registered(2, true), None, Progress::Stays),
            // One that was started again once it had left.
            (registered(2, false), None, Progress::Left),
            // The scheduler was restarted, and the executor may not have registered yet.
            (None, soon, Progress::Stays),
            (None, Some(GRACE_PERIOD), Progress::Left),
        ] {
            assert_eq!(progress(Some(1), found, back), expected, "{found:?}");
        }
        // A scheduler that was restarted may have lost the request.
        for found in [(1, true), (1, false), (2, true), (2, false)] {
            let found = registered(found.0, found.1);
            let again = Progress::Again(found.unwrap());
            assert_eq!(progress(Some(1), found, soon), again);
        }
        assert_eq!(progress(None, None, None), Progress::Left);
    }

    #[tokio::test]
    async fn a_scheduler_that_does_not_come_back_is_lost() {
        let nobody = SchedulerAddress::open("127.0.0.1:1", None, &Credential::Found).unwrap();
        let executors = Executors { scheduler: nobody };
        let error = executors.drain("e-1").await.unwrap_err();
        let Error::DrainLost { executor, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(executor, "e-1");
        assert!(
            error.to_string().starts_with("lost the scheduler"),
            "{error}"
        );
    }
}
