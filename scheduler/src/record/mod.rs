//! The record of jobs, from which a restarted scheduler, or a standby, restores the jobs of the previous leader.
//!
//! ```text
//!   gateway ── opened: job and submission ──┐
//!   controller ── Change, by the handle ────┴─► Record: jobs that changed ──► writer ──► segments of a log
//!                                                                                         │ snapshot now and then
//!   start ── lead: is the one before gone? ◄──────────────────────────────────────────────┘
//! ```
//!
//! A change is written within a second, together with others, and at once where somebody waits for it: a job that goes on
//! without its client is accepted once it is recorded. So a small query costs no write of its own: if it has ended by
//! then, its plan is not written at all. The newest jobs that have ended are kept, as the controller keeps them, and what
//! users have used.
//!
//! [`state`] is the content of the record, [`writer`] writes it, [`lead`] elects the scheduler that writes. Not here:
//! recovery of the restored jobs, which the controller decides.

mod lead;
mod state;
mod writer;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

pub(crate) use self::lead::{LEASE, Leader, Led, lead};
use self::state::{Changed, State};
pub(crate) use self::state::{Kept, Submitted};
use crate::control::Change;

/// Time limit for a write that somebody waits for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the write of an end that is about to be told, or of an attempt that is about to be submitted.
const SETTLING: Duration = Duration::from_secs(1);

/// The record, or nothing where jobs are not recorded; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Record {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    pending: Mutex<Pending>,
    /// Wakes the writer.
    changed: Notify,
    /// Number of the last change that is written, or why it is not.
    written: watch::Sender<Written>,
    /// Time of the last sign of life, or of the last write.
    confirmed: Mutex<Instant>,
}

/// Jobs as they are, and which of them are not written yet.
struct Pending {
    state: State,
    changed: BTreeSet<String>,
    /// True if the list of executors is not written yet.
    executors: bool,
    /// Number of changes.
    changes: u64,
    /// True if somebody waits.
    urgent: bool,
}

#[derive(Debug, Clone, Default)]
struct Written {
    changes: u64,
    error: Option<String>,
    /// Number of writes, and of those that have failed.
    writes: u64,
    failures: u64,
}

/// Figures of the record's writer, since the scheduler leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriterFigures {
    /// Number of writes that have succeeded.
    pub(crate) writes: u64,
    /// Number of writes that have failed.
    pub(crate) failures: u64,
    /// True if the last write has failed.
    pub(crate) failing: bool,
    /// Time since the last sign of life, or since the last write that has succeeded.
    pub(crate) silence: Duration,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("keeps", &self.shared.is_some())
            .finish()
    }
}

impl Record {
    /// Creates the record that goes on from a state.
    fn of(state: State) -> Self {
        let shared = Shared {
            pending: Mutex::new(Pending {
                state,
                changed: BTreeSet::new(),
                executors: false,
                changes: 0,
                urgent: false,
            }),
            changed: Notify::new(),
            written: watch::Sender::default(),
            confirmed: Mutex::new(Instant::now()),
        };
        Self {
            shared: Some(Arc::new(shared)),
        }
    }

    /// Checks whether jobs are recorded.
    pub(crate) fn keeps(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns the figures of its writer; `None` where jobs are not recorded.
    pub(crate) fn figures(&self) -> Option<WriterFigures> {
        let shared = self.shared.as_ref()?;
        let written = shared.written.borrow();
        Some(WriterFigures {
            writes: written.writes,
            failures: written.failures,
            failing: written.error.is_some(),
            silence: shared.confirmed.lock().elapsed(),
        })
    }

    /// Waits for a while until a job's end is written, if a later scheduler would run the job again.
    pub(crate) async fn settled(&self, job: &str) {
        let is_owed = |shared: &Arc<Shared>| {
            let pending = shared.pending.lock();
            pending.changed.contains(job) && pending.state.is_owed(job)
        };
        if self.shared.as_ref().is_some_and(is_owed)
            && let Err(error) = self.written_within(SETTLING).await
        {
            tracing::warn!(
                job,
                error,
                "the end of a job is reported before it is recorded"
            );
        }
    }

    /// Records a job that the engine has accepted.
    pub(crate) fn opened(&self, job: Submitted<'_>) {
        if let Some(shared) = &self.shared {
            let id = job.submission.job.clone();
            shared.change(|pending| {
                pending.state.open(job);
                pending.changed.insert(id);
            });
        }
    }

    /// Records that a job is about to be submitted again, and waits for a while until that is written: if planning it ends
    /// the scheduler, the next one is to know.
    pub(crate) async fn submits(&self, job: &str) {
        let Some(shared) = &self.shared else {
            return;
        };
        shared.change(|pending| {
            pending.state.submits(job);
            pending.changed.insert(job.to_owned());
        });
        // What waits for it is the work of all jobs.
        if shared.written.borrow().error.is_none()
            && let Err(error) = self.written_within(SETTLING).await
        {
            tracing::warn!(job, error, "a job runs again before that is recorded");
        }
    }

    /// Records a change.
    pub(crate) fn change(&self, change: Change) {
        let Some(shared) = &self.shared else {
            return;
        };
        shared.change(|pending| {
            pending.urgent |= pending.state.is_urgent(&change);
            match pending.state.apply(change) {
                Changed::Job(job) => {
                    pending.changed.insert(job);
                }
                Changed::Executors => pending.executors = true,
                // The state knows whose.
                Changed::Usage => {}
            }
        });
    }

    /// Waits until all changes so far are written.
    ///
    /// # Errors
    /// When they cannot be written, with the reason, or are not in time.
    pub(crate) async fn written(&self) -> Result<(), String> {
        self.written_within(PATIENCE).await
    }

    async fn written_within(&self, patience: Duration) -> Result<(), String> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let mut written = shared.written.subscribe();
        written.mark_unchanged();
        let due = shared.hurry();
        if written.borrow().changes >= due {
            return Ok(());
        }
        let wait = async {
            loop {
                if written.changed().await.is_err() {
                    return Err("the scheduler is stopping".to_owned());
                }
                let Written { changes, error, .. } = written.borrow_and_update().clone();
                match error {
                    _ if changes >= due => return Ok(()),
                    Some(error) => return Err(error),
                    None => {}
                }
            }
        };
        let late = || Err(format!("it is not written within {patience:?}"));
        timeout(patience, wait).await.unwrap_or_else(|_| late())
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock();
        change(&mut pending);
        pending.changes += 1;
        drop(pending);
        self.changed.notify_one();
    }

    /// Notes that the store has just taken a write, or a sign of life.
    fn confirm(&self) {
        *self.confirmed.lock() = Instant::now();
    }

    /// Has the writer write at once. Returns the number of changes so far.
    fn hurry(&self) -> u64 {
        let mut pending = self.pending.lock();
        pending.urgent = true;
        let changes = pending.changes;
        drop(pending);
        self.changed.notify_one();
        changes
    }
}
