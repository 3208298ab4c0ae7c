//! The notice log: the newest warnings and errors of executors.

use std::collections::VecDeque;

use volley_proto::tables::Line;

/// Number of lines kept.
const KEPT: usize = 4096;

/// Length of the longest text kept, in bytes.
const LONGEST: usize = 4096;

/// Shortens a long text to its beginning.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

/// Warning or error of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) executor: String,
    /// Attempt that the notice is about.
    pub(crate) attempt: Option<String>,
    /// Time in milliseconds since 1970, by the executor's clock.
    pub(crate) at: u64,
    /// True for an error, false for a warning.
    pub(crate) failure: bool,
    pub(crate) text: String,
}

/// Log of lines, the newest last.
#[derive(Debug, Default)]
pub(crate) struct NoticeLog {
    lines: VecDeque<Line>,
}

impl NoticeLog {
    /// Keeps a line, and drops the oldest when there are too many.
    pub(crate) fn keep(&mut self, line: Line) {
        let line = Line {
            text: shortened(line.text),
            executor_id: line.executor_id.map(shortened),
            ..line
        };
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Returns the wanted lines.
    pub(crate) fn lines(&self, wanted: impl Fn(&Line) -> bool) -> Vec<Line> {
        let lines = self.lines.iter();
        lines.filter(|line| wanted(line)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shortened("ä".into()), "ä");
        let cut = shortened("ä".repeat(LONGEST));
        assert!(cut.ends_with('…') && cut.len() <= LONGEST + 3);
    }

    #[test]
    fn the_newest_stay() {
        let mut log = NoticeLog::default();
        for at in 0..KEPT as u64 + 2 {
            log.keep(Line {
                at,
                job_id: None,
                train_id: None,
                executor_id: Some("e".into()),
                rank: None,
                failure: false,
                text: String::new(),
            });
        }
        let kept = log.lines(|_| true);
        assert_eq!((kept.len(), kept[0].at), (KEPT, 2));
        assert!(log.lines(|line| line.failure).is_empty());
    }
}
