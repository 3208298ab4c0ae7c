//! The writer of the record: one task, which writes what has changed, and shows that its scheduler lives.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use volley_proto::Result;
use volley_proto::failure::chain;
use volley_proto::store::Log;

use super::lead::pulse;
use super::state::Segment;
use super::{Pending, Record, Shared};

/// Time after which a change is written that nobody waits for.
const SOON: Duration = Duration::from_secs(1);
/// Interval between two signs of life.
const BEAT: Duration = Duration::from_secs(2);
/// Interval at which the writer looks whether another scheduler has taken over.
const LOOK: Duration = Duration::from_secs(2);
/// Time without a sign of life in a store that others may reach, after which this scheduler no longer leads.
const CUT_OFF: Duration = Duration::from_secs(30);
/// Time limit for one write.
const WRITE: Duration = Duration::from_secs(8);
/// Pause after a write that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Time limit for what is written when the scheduler stops.
const LAST: Duration = Duration::from_secs(5);
/// Number of segments after which a snapshot is written.
const SEGMENTS: u64 = 256;

/// Writer of a record.
#[derive(Debug)]
pub(crate) struct Writer {
    log: Log,
    /// Id of the scheduler's leadership.
    id: String,
    /// Number of the next segment.
    next: u64,
    /// Number of the segment after which the last snapshot was written, or its writing was tried.
    snapshot: u64,
    record: Record,
    /// Signs of life, and the snapshot that is being written: a write may take longer than others wait.
    tasks: JoinSet<()>,
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrote {
    Done,
    /// Not written; another try may succeed.
    Failed,
    /// Another scheduler has written the segment.
    Superseded,
}

impl Writer {
    /// Creates a writer, which shows signs of life from now on.
    pub(super) fn new(log: Log, next: u64, (id, record): (String, Record)) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(beat(log.clone(), id.clone(), record.clone()));
        Self {
            log,
            id,
            next,
            // The segments of earlier schedulers count.
            snapshot: 0,
            record,
            tasks,
        }
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Writes until told to stop, and then what is left. Returns false if another scheduler has taken over, or must be
    /// taken to have: the record cannot be reached, and others may reach it.
    pub(crate) async fn run(mut self, stop: impl Future<Output = ()>) -> bool {
        let Some(shared) = self.record.shared.clone() else {
            return true;
        };
        tokio::pin!(stop);
        let mut look_at = Instant::now() + LOOK;
        let mut write_at = None;
        loop {
            let due = write_at.map_or(look_at, |at: Instant| at.min(look_at));
            let stops = tokio::select! {
                () = &mut stop => true,
                () = shared.changed.notified() => false,
                () = sleep_until(due) => false,
            };
            if stops {
                self.tasks.shutdown().await;
                let last = async {
                    if self.write(&shared, true).await == Wrote::Done {
                        // Others need not wait for the lease.
                        self.log.beat(&pulse(&self.id, None)).await.ok();
                    }
                };
                if timeout(LAST, last).await.is_err() {
                    tracing::warn!("the last changes were not recorded within {LAST:?}");
                }
                return true;
            }
            if Instant::now() >= look_at {
                if self.is_superseded().await {
                    return gives_up(&shared, "another scheduler has taken over the record");
                }
                look_at = Instant::now() + LOOK;
            }
            if self.is_cut_off(&shared) {
                return gives_up(&shared, "the record cannot be reached");
            }
            let (has_changed, is_urgent) = {
                let pending = shared.pending.lock();
                (
                    !pending.changed.is_empty()
                        || pending.executors
                        || pending.state.has_unwritten_usage(),
                    pending.urgent,
                )
            };
            if !has_changed && !is_urgent {
                write_at = None;
                continue;
            }
            let at = *write_at.get_or_insert_with(|| Instant::now() + SOON);
            if !is_urgent && Instant::now() < at {
                continue;
            }
            write_at = match self.write(&shared, false).await {
                Wrote::Done => None,
                Wrote::Failed => Some(Instant::now() + PAUSE),
                Wrote::Superseded => {
                    return gives_up(&shared, "another scheduler has taken over the record");
                }
            };
        }
    }

    /// Writes what has changed; `resigns` also gives up the record.
    async fn write(&mut self, shared: &Shared, resigns: bool) -> Wrote {
        let (segment, changed, executors, changes) = {
            let mut pending = shared.pending.lock();
            let changed = std::mem::take(&mut pending.changed);
            let executors = std::mem::take(&mut pending.executors);
            pending.urgent = false;
            let segment = pending.state.segment(&changed, executors);
            (segment, changed, executors, pending.changes)
        };
        let segment = Segment {
            resigns,
            writer: self.id.clone(),
            ..segment
        };
        let has_content = !segment.jobs.is_empty() || !segment.usage.is_empty();
        let is_empty = !has_content && !executors && !resigns;
        let appended = timeout(WRITE, self.append(&segment, is_empty)).await;
        let error = match appended {
            Ok(Ok(true)) => {
                if !is_empty {
                    shared.confirm();
                }
                let mut pending = shared.pending.lock();
                let Pending { state, changed, .. } = &mut *pending;
                state.wrote(&segment);
                state.evict(changed);
                drop(pending);
                shared.written.send_modify(|written| {
                    (written.changes, written.error) = (changes, None);
                    written.writes += u64::from(!is_empty);
                });
                self.compact(shared);
                return Wrote::Done;
            }
            Ok(Ok(false)) => return Wrote::Superseded,
            Ok(Err(error)) => chain(&error),
            // It may be written all the same, which the next write finds out.
            Err(_) => format!("it is not written within {WRITE:?}"),
        };
        tracing::error!(error, "the record of jobs cannot be written; trying again");
        let mut pending = shared.pending.lock();
        pending.changed.extend(changed);
        pending.executors |= executors;
        pending.state.unwrote(segment);
        drop(pending);
        shared.written.send_modify(|written| {
            written.error = Some(error);
            written.failures += 1;
        });
        Wrote::Failed
    }

    /// Appends a segment. Returns false if another scheduler has written one of its number.
    async fn append(&mut self, segment: &Segment, is_empty: bool) -> Result<bool> {
        if is_empty {
            return Ok(true);
        }
        let content = Bytes::from(segment.encode_to_vec());
        while !self.log.append(self.next, &content).await? {
            if self.log.is_past(self.next).await? || !self.is_own(self.next).await? {
                return Ok(false);
            }
            // It was written, and the answer was lost. Jobs are written whole, so what is written twice does no harm.
            self.next += 1;
        }
        self.next += 1;
        Ok(true)
    }

    /// Checks whether this scheduler has written a segment.
    async fn is_own(&self, number: u64) -> Result<bool> {
        let content = self.log.segment(number).await?;
        let segment = content.and_then(|content| Segment::decode(content).ok());
        Ok(segment.is_some_and(|segment| segment.writer == self.id))
    }

    /// Writes a snapshot in place of many segments, in the background.
    fn compact(&mut self, shared: &Shared) {
        while self.tasks.try_join_next().is_some() {}
        if self.next - self.snapshot < SEGMENTS {
            return;
        }
        // If it fails, there are more segments until the next try.
        self.snapshot = self.next;
        let snapshot = shared.pending.lock().state.snapshot();
        let (log, next) = (self.log.clone(), self.next);
        self.tasks.spawn(async move {
            let compacted = match snapshot {
                Ok(snapshot) => log.compact(next, snapshot.encode_to_vec().into()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = compacted {
                tracing::warn!(
                    error = chain(&error),
                    "cannot write a snapshot of the record"
                );
            }
        });
    }

    /// Checks whether another scheduler has taken over.
    async fn is_superseded(&self) -> bool {
        let looked = timeout(LOOK, async {
            match self.log.segment(self.next).await? {
                Some(_) => self.is_own(self.next).await.map(|is_own| !is_own),
                None => self.log.is_past(self.next).await,
            }
        });
        match looked.await {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "the record cannot be read");
                false
            }
            Err(_) => false,
        }
    }

    /// Checks whether others may have taken over without this scheduler being able to see it.
    fn is_cut_off(&self, shared: &Shared) -> bool {
        self.log.folder().is_none() && shared.confirmed.lock().elapsed() >= CUT_OFF
    }
}

/// Tells those who wait that nothing will be written any more. Returns false.
fn gives_up(shared: &Shared, reason: &str) -> bool {
    tracing::error!(reason, "this scheduler no longer leads");
    shared
        .written
        .send_modify(|written| written.error = Some(reason.to_owned()));
    false
}

/// Shows that this scheduler lives, for as long as it is polled.
async fn beat(log: Log, id: String, record: Record) {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 1_u64.. {
        beats.tick().await;
        let beat = pulse(&id, Some(number));
        match timeout(BEAT, log.beat(&beat)).await {
            Ok(Ok(())) => {
                if let Some(shared) = &record.shared {
                    shared.confirm();
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    error = chain(&error),
                    "cannot renew the lease in the record"
                );
            }
            Err(_) => tracing::warn!("the lease in the record was not renewed within {BEAT:?}"),
        }
    }
}
