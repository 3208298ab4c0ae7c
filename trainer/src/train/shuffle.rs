//! External shuffle: copies the rows of spilled shards in the order of an epoch, so that the rows of a step
//! are adjacent.
//!
//! Each shard is permuted on its own, through memory, exactly as if its rows were in memory: an epoch has the
//! same rows in the same steps wherever rows are stored. A thread copies the shards of the next epoch while
//! this one is trained on. At most two copies are on disk, in files without names.
//!
//! ```text
//!  shard in a file, canonical order ──order of epoch 1──▶ copy ──▶ steps of epoch 1
//!                                   ──order of epoch 2──▶ copy       meanwhile
//! ```
//!
//! The [schedule](super::schedule) decides the order of rows.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::fit::check;
use super::schedule::{Epoch, Ordered, Schedule};
use crate::Result;
use crate::encode::{Rows, Settled};

/// Interval of checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// Source of this rank's rows in the order of one epoch after the other.
#[derive(Debug)]
pub(super) struct Shuffle {
    shards: Arc<[Source]>,
    ahead: Option<Ahead>,
}

/// Training rows of a spilled shard and the folder of its files; `None` for a shard in memory.
type Source = Option<(Rows, Arc<Path>)>;

/// A spilled shard's rows in the order of an epoch; `None` for a shard in memory.
type Copied = Option<Ordered>;

/// An epoch whose rows a thread copies.
#[derive(Debug)]
struct Ahead {
    epoch: usize,
    copied: Receiver<Result<Vec<Copied>>>,
    /// Ends the thread after the shard that it copies.
    _stop: DropGuard,
}

impl Shuffle {
    pub(super) fn new(shards: &[Settled]) -> Self {
        let source = |shard: &Settled| {
            let folder = shard.storage.folder()?;
            Some((shard.train.clone(), Arc::clone(folder)))
        };
        Self {
            shards: shards.iter().map(source).collect(),
            ahead: None,
        }
    }

    /// Returns the rows of an epoch in its order, and starts to copy those of the next unless this one is the
    /// last.
    ///
    /// # Errors
    /// When a file cannot be written, or training is cancelled.
    pub(super) fn take(
        &mut self,
        schedule: &Schedule,
        epoch: usize,
        last: bool,
        cancel: &CancellationToken,
    ) -> Result<Epoch> {
        if self.shards.iter().all(Option::is_none) {
            return Ok(schedule.epoch(epoch));
        }
        let ahead = self.ahead.take().filter(|ahead| ahead.epoch == epoch);
        let copied = match ahead.or_else(|| self.begin(schedule, epoch)) {
            Some(ahead) => ahead.wait(cancel)?,
            None => copy(schedule, epoch, &self.shards, cancel)?,
        };
        if !last {
            self.ahead = self.begin(schedule, epoch + 1);
        }
        let in_place = |shard| Ordered {
            order: schedule.order(epoch, shard).into(),
            rows: None,
        };
        let shards = copied.into_iter().enumerate();
        let ordered = shards.map(|(shard, copied)| copied.unwrap_or_else(|| in_place(shard)));
        Ok(schedule.epoch_of(epoch, ordered.collect()))
    }

    /// Starts a thread that copies the rows of an epoch; returns `None` if none can be started.
    fn begin(&self, schedule: &Schedule, epoch: usize) -> Option<Ahead> {
        let (schedule, shards) = (schedule.clone(), Arc::clone(&self.shards));
        let (done, copied) = mpsc::sync_channel(1);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let work = move || {
            // No receiver is left after a cancellation.
            done.send(copy(&schedule, epoch, &shards, &stopped)).ok();
        };
        let thread = thread::Builder::new().name("rank-shuffle".to_owned());
        if let Err(error) = thread.spawn(work) {
            tracing::warn!(%error, "no thread could be started to copy rows; the rank copies them itself and waits");
            return None;
        }
        Some(Ahead {
            epoch,
            copied,
            _stop: stop.drop_guard(),
        })
    }
}

impl Ahead {
    /// Waits for the ordered shards.
    fn wait(self, cancel: &CancellationToken) -> Result<Vec<Copied>> {
        loop {
            check(cancel)?;
            match self.copied.recv_timeout(LOOK) {
                Ok(copied) => return copied,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the thread that copies rows has panicked")
                }
            }
        }
    }
}

/// Copies the rows of spilled shards in the order of an epoch.
fn copy(
    schedule: &Schedule,
    epoch: usize,
    shards: &[Source],
    stop: &CancellationToken,
) -> Result<Vec<Copied>> {
    let copied = |(shard, source): (usize, &Source)| {
        check(stop)?;
        let Some((rows, folder)) = source else {
            return Ok(None);
        };
        let (rows, order) = rows.in_order(&schedule.order(epoch, shard), folder)?;
        Ok(Some(Ordered {
            order,
            rows: Some(rows),
        }))
    };
    shards.iter().enumerate().map(copied).collect()
}
