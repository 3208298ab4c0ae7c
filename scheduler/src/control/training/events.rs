//! The event log of a training run: bounded, and numbered so that a watcher can resume where it stopped.
//!
//! A gang may wait for days, and each change of the reason is an event, so only the newest of consecutive waits are
//! kept. When there are too many events, the oldest others are dropped first, and epochs last.

use std::time::SystemTime;

use volley_proto::store::EpochRecord;

/// Most events kept of a run.
const KEPT: usize = 4096;
/// Most consecutive waits kept.
const WAITS: usize = 16;

/// Event of a training run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RunEvent {
    /// The gang waits for slots.
    Waiting { reason: String },
    /// A generation has been bound.
    Started {
        generation: u64,
        executors: Vec<String>,
    },
    /// A rank has streamed its shards.
    Loaded {
        rank: usize,
        rows: u64,
        seconds: f64,
    },
    /// An epoch is done.
    Epoch(Box<EpochRecord>),
    /// The generation has ended in failure.
    Failed(Failure),
    /// Text that a user should know.
    Note(String),
}

/// Reason why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) executor: String,
    pub(crate) error: String,
}

/// Events that a watcher has not seen, and the number from which to ask for the next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shown {
    pub(crate) events: Vec<RunEvent>,
    pub(crate) seen: u64,
}

/// Events of a run, the oldest first.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    kept: Vec<Entry>,
    /// Number of events so far, dropped ones included.
    told: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    at: SystemTime,
    event: RunEvent,
}

impl EventLog {
    pub(super) fn push(&mut self, event: RunEvent, at: SystemTime) {
        if matches!(event, RunEvent::Waiting { .. }) {
            let waits = self.kept.iter().rev();
            let waits = waits
                .take_while(|entry| matches!(entry.event, RunEvent::Waiting { .. }))
                .count();
            if waits >= WAITS {
                self.kept.remove(self.kept.len() - waits);
            }
        }
        if self.kept.len() >= KEPT {
            let is_epoch = |entry: &Entry| matches!(entry.event, RunEvent::Epoch(_));
            let oldest = self.kept.iter().position(|entry| !is_epoch(entry));
            self.kept.remove(oldest.unwrap_or(0));
        }
        self.told += 1;
        let number = self.told;
        self.kept.push(Entry { number, at, event });
    }

    pub(super) fn last(&self) -> Option<&RunEvent> {
        self.kept.last().map(|entry| &entry.event)
    }

    /// Returns the kept events with their times.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (SystemTime, &RunEvent)> {
        self.kept.iter().map(|entry| (entry.at, &entry.event))
    }

    /// Returns the events after number `seen`, if there are any.
    pub(super) fn since(&self, seen: u64) -> Option<Shown> {
        // Whoever has seen more has seen those of an earlier scheduler.
        let seen = if seen > self.told { 0 } else { seen };
        let news = self.kept.partition_point(|entry| entry.number <= seen);
        let news = self.kept.get(news..).filter(|news| !news.is_empty())?;
        Some(Shown {
            events: news.iter().map(|entry| entry.event.clone()).collect(),
            seen: self.told,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(number: usize) -> RunEvent {
        RunEvent::Waiting {
            reason: number.to_string(),
        }
    }

    #[test]
    fn a_gang_that_waits_for_days_keeps_the_newest_reasons() {
        let (mut log, now) = (EventLog::default(), SystemTime::now());
        log.push(RunEvent::Note("before".into()), now);
        for number in 0..100_000 {
            log.push(wait(number), now);
        }
        assert_eq!(log.iter().count(), 1 + WAITS);
        assert_eq!(log.last(), Some(&wait(99_999)));
        let shown = log.since(100_000).unwrap();
        assert_eq!((shown.events, shown.seen), (vec![wait(99_999)], 100_001));
        assert_eq!(log.since(100_001), None);
    }

    #[test]
    fn the_oldest_events_go_and_watchers_miss_none_that_are_kept() {
        let (mut log, now) = (EventLog::default(), SystemTime::now());
        let (mut seen, mut watched) = (0, 0);
        for number in 0..3 * KEPT {
            log.push(RunEvent::Note(number.to_string()), now);
            if number % 100 == 0 {
                let shown = log.since(seen).unwrap();
                (seen, watched) = (shown.seen, watched + shown.events.len());
            }
        }
        assert_eq!(log.iter().count(), KEPT);
        let rest = log.since(seen).unwrap().events.len();
        assert_eq!(watched + rest, 3 * KEPT);
        assert_eq!(log.since(0).unwrap().events.len(), KEPT);
    }
}
