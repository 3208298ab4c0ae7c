//! The notice log: the newest warnings and errors of executors.

use std::collections::VecDeque;

use volley_proto::tables::Line;

/// Lines that are kept.
const KEPT: usize = 4096;

/// Bytes of a text that is kept.
const LONGEST: usize = 4096;

/// A text that is kept: its beginning, where it is long.
pub(crate) fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

/// What an executor warns of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) executor: String,
    /// The attempt that it is about.
    pub(crate) attempt: Option<String>,
    /// Milliseconds since 1970, by the executor's clock.
    pub(crate) at: u64,
    /// Whether it is an error.
    pub(crate) failure: bool,
    pub(crate) text: String,
}

/// The lines, the newest last.
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

    /// The lines that are wanted.
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
