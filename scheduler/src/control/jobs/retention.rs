//! The retention of the rows of a job that has succeeded, decided purely.
//!
//! ```text
//!   succeeded ──► kept ──┬ read, or given up by a cancellation ───────────► removed
//!                        ├ no client has asked for them for a while ─────► removed, with a reason
//!                        └ their reader reads nothing for a long time ───► removed, with a reason
//! ```
//!
//! A reader reports its progress regularly, however slowly it reads. So rows stay for hours while they are read, and
//! not for long when nobody is left.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use volley_proto::limits::READER_SIGN;

/// Time that rows are kept after a reader is done: others that have begun may not have reported yet.
const SETTLE: Duration = Duration::from_secs(READER_SIGN.as_secs() * 3 / 2);

/// Retention times of rows that nobody reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetentionPolicy {
    /// Time after the last sign of life of anybody.
    pub(crate) unread: Duration,
    /// Time for a reader that is there and reads nothing.
    pub(crate) idle: Duration,
}

/// Rows of a job.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Time of the last sign of somebody who wants them.
    asked: Instant,
    readers: HashMap<u64, Reader>,
    /// True once a reader has had all that it wanted, or the client has given them up.
    read: bool,
    /// Reason why they are no longer kept.
    removed: Option<String>,
}

#[derive(Debug)]
struct Reader {
    batches: u64,
    /// Time of its last report.
    heard: Instant,
    /// Time of its last progress.
    advanced: Instant,
}

/// Report of a reader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) reader: u64,
    pub(crate) batches: u64,
    pub(crate) done: bool,
}

impl Rows {
    /// Starts the retention of a job that has succeeded now.
    pub(crate) fn kept(now: Instant) -> Self {
        Self {
            asked: now,
            readers: HashMap::new(),
            read: false,
            removed: None,
        }
    }

    /// Returns the rows of a job that were lost, for a reason.
    pub(crate) fn lost(reason: String, now: Instant) -> Self {
        Self {
            removed: Some(reason),
            ..Self::kept(now)
        }
    }

    /// Checks whether they are removed.
    pub(crate) fn are_removed(&self) -> bool {
        self.removed.is_some()
    }

    /// Checks whether a reader has had all that it wanted, or the client has given them up.
    pub(crate) fn are_read(&self) -> bool {
        self.read
    }

    /// Checks whether someone reads them, or may want to.
    pub(crate) fn are_wanted(&self) -> bool {
        self.removed.is_none() && !(self.read && self.readers.is_empty())
    }

    /// Returns why they are removed.
    pub(crate) fn removed(&self) -> Option<&str> {
        self.removed.as_deref()
    }

    /// Records a question about the job, whose client may want to read its rows.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.asked = now;
    }

    /// Records a reader's progress. Returns why it cannot continue, if so.
    pub(crate) fn reads(&mut self, reading: Reading, now: Instant) -> Option<&str> {
        let Reading {
            reader,
            batches,
            done,
        } = reading;
        self.asked = now;
        if done {
            self.readers.remove(&reader);
            self.read = true;
        } else {
            let known = self.readers.entry(reader).or_insert(Reader {
                batches,
                heard: now,
                advanced: now,
            });
            known.heard = now;
            if batches > known.batches {
                (known.batches, known.advanced) = (batches, now);
            }
        }
        self.removed.as_deref()
    }

    /// Gives them up for the client; present readers may continue.
    pub(crate) fn given_up(&mut self) {
        self.read = true;
    }

    /// Checks whether they must be removed now, and returns the reason if it is worth a note.
    pub(crate) fn due(&self, policy: &RetentionPolicy, now: Instant) -> Option<Option<String>> {
        if self.removed.is_some() {
            return None;
        }
        let since = |then: Instant| now.saturating_duration_since(then);
        let is_there = |reader: &&Reader| since(reader.heard) <= policy.unread;
        let there: Vec<_> = self.readers.values().filter(is_there).collect();
        let reads = |reader: &&Reader| since(reader.advanced) <= policy.idle;
        if there.iter().any(reads) {
            return None;
        }
        if !there.is_empty() {
            let idle = humantime::format_duration(policy.idle);
            return Some(Some(format!("its client has read nothing for {idle}")));
        }
        if self.read && since(self.asked) > SETTLE {
            return Some(None);
        }
        let unread = humantime::format_duration(policy.unread);
        (since(self.asked) > policy.unread)
            .then(|| Some(format!("no client has asked for them for {unread}")))
    }

    /// Marks them as removed; the reason is worth telling if they have not been read.
    pub(crate) fn remove(&mut self, reason: Option<String>) {
        self.removed = Some(reason.unwrap_or_else(|| "they have been read".to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetentionPolicy = RetentionPolicy {
        unread: Duration::from_secs(300),
        idle: Duration::from_secs(3600),
    };
    /// Interval of a reader's reports, in seconds.
    const SIGN: u64 = 10;

    /// Rows of a job, and a clock.
    struct Script {
        rows: Rows,
        start: Instant,
    }

    impl Script {
        fn new() -> Self {
            let start = Instant::now();
            let rows = Rows::kept(start);
            Self { rows, start }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn reads(&mut self, seconds: u64, reader: u64, batches: u64, done: bool) {
            let reading = Reading {
                reader,
                batches,
                done,
            };
            let now = self.at(seconds);
            assert_eq!(self.rows.reads(reading, now), None);
        }

        /// Returns the reason to remove them, if they are due; `-` for none.
        fn due(&self, seconds: u64) -> Option<String> {
            let due = self.rows.due(&POLICY, self.at(seconds))?;
            Some(due.unwrap_or_else(|| "-".to_owned()))
        }
    }

    #[test]
    fn ten_minutes_and_ten_hours_of_slow_reading_lose_no_row() {
        let mut script = Script::new();
        for second in (0..36_000).step_by(SIGN as usize) {
            // A batch every five minutes.
            script.reads(second, 1, second / 300, false);
            assert_eq!(script.due(second + SIGN), None, "after {second} s");
        }
        script.reads(36_000, 1, 120, true);
        assert_eq!(script.due(36_001), None, "others may have begun");
        assert_eq!(script.due(36_020).as_deref(), Some("-"));
    }

    #[test]
    fn a_reader_that_is_gone_is_waited_for_and_then_not() {
        let mut script = Script::new();
        script.reads(400, 1, 3, false);
        assert_eq!(script.due(699), None);
        let said = "no client has asked for them for 5m";
        assert_eq!(script.due(701).as_deref(), Some(said));
    }

    #[test]
    fn rows_that_nobody_reads_are_removed_after_a_while() {
        let mut script = Script::new();
        script.rows.asked(script.at(100));
        assert_eq!(script.due(399), None);
        assert!(script.due(401).is_some());
        script.rows.remove(script.due(401));
        assert_eq!(script.due(402), None, "once");
        let reading = Reading {
            reader: 1,
            batches: 0,
            done: false,
        };
        let now = script.at(403);
        let told = script.rows.reads(reading, now).map(str::to_owned);
        assert_eq!(told.as_deref(), Some("no client has asked for them for 5m"));
    }

    #[test]
    fn rows_that_are_given_up_are_removed_soon_but_not_from_a_reader() {
        let mut script = Script::new();
        script.rows.given_up();
        assert_eq!(script.due(10), None, "others may have begun");
        assert_eq!(script.due(16).as_deref(), Some("-"));
        let mut script = Script::new();
        script.reads(1, 1, 1, false);
        script.rows.given_up();
        assert_eq!(script.due(100), None);
        script.reads(100, 1, 2, true);
        assert_eq!(script.due(116).as_deref(), Some("-"));
    }

    #[test]
    fn a_reader_that_reads_nothing_holds_rows_for_an_hour() {
        let mut script = Script::new();
        for second in (0..3_600).step_by(SIGN as usize) {
            script.reads(second, 1, 1, false);
            assert_eq!(script.due(second), None);
        }
        script.reads(3_601, 1, 1, false);
        let said = "its client has read nothing for 1h";
        assert_eq!(script.due(3_601).as_deref(), Some(said));
    }

    #[test]
    fn one_reader_does_not_take_the_rows_of_another() {
        let mut script = Script::new();
        script.reads(0, 1, 1, false);
        script.reads(5, 2, 0, true);
        for second in (10..600).step_by(SIGN as usize) {
            script.reads(second, 1, second, false);
            assert_eq!(script.due(second + SIGN), None);
        }
        script.reads(600, 1, 600, true);
        assert_eq!(script.due(616).as_deref(), Some("-"));
    }
}
