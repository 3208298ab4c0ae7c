//! What executors warn of: the newest lines of all of them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
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

/// The lines; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    lines: Arc<Mutex<VecDeque<Line>>>,
}

impl Heard {
    /// Keeps a line, and forgets the oldest when there are too many.
    pub(crate) fn keep(&self, line: Line) {
        let line = Line {
            text: shortened(line.text),
            executor_id: line.executor_id.map(shortened),
            ..line
        };
        let mut lines = self.lines.lock();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines that are wanted.
    pub(crate) fn lines(&self, wanted: impl Fn(&Line) -> bool) -> Vec<Line> {
        let lines = self.lines.lock();
        lines.iter().filter(|line| wanted(line)).cloned().collect()
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
        let heard = Heard::default();
        for at in 0..KEPT as u64 + 2 {
            heard.keep(Line {
                at,
                job_id: None,
                train_id: None,
                executor_id: Some("e".into()),
                rank: None,
                failure: false,
                text: String::new(),
            });
        }
        let kept = heard.lines(|_| true);
        assert_eq!((kept.len(), kept[0].at), (KEPT, 2));
        assert!(heard.lines(|line| line.failure).is_empty());
    }
}
