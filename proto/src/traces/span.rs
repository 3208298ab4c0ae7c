//! Spans: what one part of a job did, from when to when, and how that ended.

use std::time::SystemTime;

use super::place::{Part, Place, SpanId, TraceId};

/// Most bytes of a text in a span; longer ones are cut.
const TEXT_BYTES: usize = 4096;
/// Most events of a span; later ones are counted only.
const EVENTS: usize = 256;

/// Span of a part of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub(super) trace: TraceId,
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) name: &'static str,
    /// True if it is that of a client, which waits for the others.
    pub(super) waits: bool,
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
    pub(super) attributes: Vec<(&'static str, Value)>,
    pub(super) events: Vec<SpanEvent>,
    /// Number of events that were left out.
    pub(super) left_out: u32,
    pub(super) outcome: Outcome,
}

/// Outcome of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It ended, neither well nor badly, as when it was cancelled.
    Ended,
    Succeeded,
    Failed(String),
}

/// Event within a span.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanEvent {
    pub(super) at: SystemTime,
    pub(super) name: &'static str,
    pub(super) attributes: Vec<(&'static str, Value)>,
}

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A real number.
    Real(f64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(cut(text.to_owned()))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(cut(text))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

/// Cuts a text that is too long.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_BYTES));
        text.push('…');
    }
    text
}

impl SpanEvent {
    /// Returns an event without attributes.
    pub fn new(name: &'static str, at: SystemTime) -> Self {
        Self {
            at,
            name,
            attributes: Vec::new(),
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }

    /// Adds an attribute, if there is a value.
    #[must_use]
    pub fn maybe(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }
}

impl Span {
    /// Returns the span of a place that began and ended at these times, with the attributes that follow from the place.
    pub fn new(place: &Place<'_>, start: SystemTime, end: SystemTime) -> Self {
        let span = Self {
            trace: place.trace_id(),
            id: place.span_id(),
            parent: place.parent().map(|parent| parent.span_id()),
            name: place.part.name(),
            waits: place.part == Part::Client,
            start,
            // The clock may have been set back.
            end: end.max(start),
            attributes: Vec::new(),
            events: Vec::new(),
            left_out: 0,
            outcome: Outcome::Ended,
        };
        let [stage, task, own] = place.part.numbers();
        let key = match place.part {
            Part::Generation { .. } => "volley.generation",
            _ => "volley.checkpoint",
        };
        span.with("volley.job.id", place.job)
            .maybe("volley.attempt.id", place.part.attempt())
            .maybe("volley.stage", stage)
            .maybe("volley.task", task)
            .maybe(key, own)
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the error with which it failed.
    pub fn error(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Failed(error) => Some(error),
            Outcome::Ended | Outcome::Succeeded => None,
        }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }

    /// Adds an attribute, if there is a value.
    #[must_use]
    pub fn maybe(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Adds an event. Of many, the first are kept.
    pub fn add(&mut self, event: SpanEvent) {
        match self.events.len() < EVENTS {
            true => self.events.push(event),
            false => self.left_out = self.left_out.saturating_add(1),
        }
    }

    /// Sets the time of its end.
    #[must_use]
    pub fn ended(mut self, end: SystemTime) -> Self {
        self.end = end.max(self.start);
        self
    }

    /// Marks it as succeeded.
    #[must_use]
    pub fn succeeded(mut self) -> Self {
        self.outcome = Outcome::Succeeded;
        self
    }

    /// Marks it as failed.
    #[must_use]
    pub fn failed(mut self, reason: impl Into<String>) -> Self {
        self.outcome = Outcome::Failed(cut(reason.into()));
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PLACE: Place<'_> = Place {
        job: "j",
        part: Part::Checkpoint {
            attempt: "k",
            stage: 3,
            task: 1,
            number: 7,
        },
    };

    #[test]
    fn attributes_follow_from_the_place() {
        let at = SystemTime::UNIX_EPOCH;
        let span = Span::new(&PLACE, at, at).maybe("none", None::<u64>);
        let due = [
            ("volley.job.id", "j".into()),
            ("volley.attempt.id", "k".into()),
            ("volley.stage", Value::Whole(3)),
            ("volley.task", Value::Whole(1)),
            ("volley.checkpoint", Value::Whole(7)),
        ];
        assert_eq!(span.attributes, due);
        assert_eq!(span.parent, PLACE.parent().map(|rank| rank.span_id()));
    }

    #[test]
    fn what_a_span_holds_is_bounded() {
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let span = Span::new(&PLACE, late, late);
        let mut span = span.ended(SystemTime::UNIX_EPOCH);
        for _ in 0..EVENTS + 3 {
            span.add(SpanEvent::new("epoch", late).with("loss", 0.5));
        }
        let span = span.failed("é".repeat(TEXT_BYTES));
        assert_eq!((span.events.len(), span.left_out), (EVENTS, 3));
        assert_eq!(span.end, late, "it does not end before it began");
        let Outcome::Failed(reason) = &span.outcome else {
            panic!("{:?}", span.outcome)
        };
        assert!(
            reason.len() <= TEXT_BYTES + '…'.len_utf8(),
            "{}",
            reason.len()
        );
        assert!(reason.ends_with("é…"));
    }
}
