//! Places of spans in the trace of a job, and the ids that follow from them.

use std::fmt;

use sha2::{Digest, Sha256};

/// Id of a trace: all spans of one job have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId([u8; 16]);

/// Id of a span.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId([u8; 8]);

/// Place of a span in the trace of its job.
///
/// ```
/// use volley_proto::traces::{Part, Place};
///
/// let task = Place {
///     job: "065f2a1c3b7d9",
///     part: Part::Task { attempt: "065f2a1c3b7d9", stage: 2, task: 0 },
/// };
/// let stage = task.parent().unwrap();
/// assert_eq!(stage.part, Part::Stage { attempt: "065f2a1c3b7d9", stage: 2 });
/// assert_eq!(stage.trace_id(), task.trace_id());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// Id of the job, which is that of its first attempt.
    pub job: &'a str,
    /// Part of the job.
    pub part: Part<'a>,
}

/// Part of a job that has a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// The whole job, from its submission to its end.
    Job,
    /// The client that submitted it, from the submission to the last row that it read.
    Client,
    /// One attempt.
    Attempt {
        /// Id of the attempt.
        attempt: &'a str,
    },
    /// The planning of an attempt.
    Planning {
        /// Id of the attempt.
        attempt: &'a str,
    },
    /// A stage of an attempt, from the first task that was placed to the last that ended.
    Stage {
        /// Id of the attempt.
        attempt: &'a str,
        /// Number of the stage.
        stage: usize,
    },
    /// A generation of a training's ranks.
    Generation {
        /// Id of the attempt.
        attempt: &'a str,
        /// Number of the barrier stage.
        stage: usize,
        /// Number of the generation.
        number: u64,
    },
    /// A task of a stage.
    Task {
        /// Id of the attempt.
        attempt: &'a str,
        /// Number of the stage.
        stage: usize,
        /// Number of the task in its stage.
        task: usize,
    },
    /// The rank that a task of a barrier stage runs.
    Rank {
        /// Id of the attempt.
        attempt: &'a str,
        /// Number of the stage.
        stage: usize,
        /// Number of the task in its stage.
        task: usize,
    },
    /// The write of a checkpoint by a rank.
    Checkpoint {
        /// Id of the attempt.
        attempt: &'a str,
        /// Number of the stage.
        stage: usize,
        /// Number of the task in its stage.
        task: usize,
        /// Number of the checkpoint among those of the rank.
        number: u64,
    },
    /// The publication of a model by a rank.
    Publication {
        /// Id of the attempt.
        attempt: &'a str,
        /// Number of the stage.
        stage: usize,
        /// Number of the task in its stage.
        task: usize,
    },
}

impl<'a> Part<'a> {
    /// Returns the name of spans of such parts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Client => "client",
            Self::Attempt { .. } => "attempt",
            Self::Planning { .. } => "planning",
            Self::Stage { .. } => "stage",
            Self::Generation { .. } => "generation",
            Self::Task { .. } => "task",
            Self::Rank { .. } => "rank",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Publication { .. } => "publication",
        }
    }

    /// Returns the part that it belongs to; `None` for the whole job.
    fn parent(self) -> Option<Self> {
        Some(match self {
            Self::Job => return None,
            Self::Client | Self::Attempt { .. } => Self::Job,
            Self::Planning { attempt } | Self::Stage { attempt, .. } => Self::Attempt { attempt },
            Self::Generation { attempt, stage, .. } | Self::Task { attempt, stage, .. } => {
                Self::Stage { attempt, stage }
            }
            Self::Rank {
                attempt,
                stage,
                task,
            } => Self::Task {
                attempt,
                stage,
                task,
            },
            Self::Checkpoint {
                attempt,
                stage,
                task,
                ..
            }
            | Self::Publication {
                attempt,
                stage,
                task,
            } => Self::Rank {
                attempt,
                stage,
                task,
            },
        })
    }

    /// Returns the id of the attempt that it is of, if it is of one.
    pub(super) fn attempt(&self) -> Option<&'a str> {
        match *self {
            Self::Job | Self::Client => None,
            Self::Attempt { attempt }
            | Self::Planning { attempt }
            | Self::Stage { attempt, .. }
            | Self::Generation { attempt, .. }
            | Self::Task { attempt, .. }
            | Self::Rank { attempt, .. }
            | Self::Checkpoint { attempt, .. }
            | Self::Publication { attempt, .. } => Some(attempt),
        }
    }

    /// Returns the numbers of its stage, its task, and its own, as far as it has them.
    pub(super) fn numbers(&self) -> [Option<u64>; 3] {
        match *self {
            Self::Job | Self::Client | Self::Attempt { .. } | Self::Planning { .. } => [None; 3],
            Self::Stage { stage, .. } => [Some(stage as u64), None, None],
            Self::Generation { stage, number, .. } => [Some(stage as u64), None, Some(number)],
            Self::Task { stage, task, .. }
            | Self::Rank { stage, task, .. }
            | Self::Publication { stage, task, .. } => {
                [Some(stage as u64), Some(task as u64), None]
            }
            Self::Checkpoint {
                stage,
                task,
                number,
                ..
            } => [Some(stage as u64), Some(task as u64), Some(number)],
        }
    }
}

impl Place<'_> {
    /// Returns the place that it belongs to; `None` for the whole job.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let part = self.part.parent()?;
        Some(Self { part, ..*self })
    }

    /// Returns the id of the job's trace.
    pub fn trace_id(&self) -> TraceId {
        TraceId(first(&["trace", self.job]))
    }

    /// Returns the id of the span at this place.
    pub fn span_id(&self) -> SpanId {
        let id = self.part.attempt().unwrap_or(self.job);
        let numbers = self.part.numbers().map(|number| match number {
            Some(number) => number.to_string(),
            None => String::new(),
        });
        let [stage, task, own] = &numbers;
        SpanId(first(&[self.part.name(), id, stage, task, own]))
    }
}

/// Returns the first bytes of the SHA-256 of words, each of which ends with a zero.
fn first<const BYTES: usize>(words: &[&str]) -> [u8; BYTES] {
    let mut hash = Sha256::new();
    for word in words {
        hash.update(word.as_bytes());
        hash.update([0]);
    }
    let hash: [u8; 32] = hash.finalize().into();
    let mut id = [0; BYTES];
    id.copy_from_slice(&hash[..BYTES]);
    id
}

impl TraceId {
    /// Returns the bytes of the id.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl SpanId {
    /// Returns the bytes of the id.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Writes hexadecimal digits, as tools show ids.
fn digits(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        digits(f, &self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        digits(f, &self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const JOB: &str = "065f2a1c3b7d9";
    const AGAIN: &str = "065f2a1c4f002";

    fn at(part: Part<'_>) -> Place<'_> {
        Place { job: JOB, part }
    }

    fn parts(attempt: &str) -> Vec<Part<'_>> {
        let (stage, task) = (1, 0);
        vec![
            Part::Attempt { attempt },
            Part::Planning { attempt },
            Part::Stage { attempt, stage },
            Part::Stage { attempt, stage: 0 },
            Part::Generation {
                attempt,
                stage,
                number: 1,
            },
            Part::Generation {
                attempt,
                stage,
                number: 2,
            },
            Part::Task {
                attempt,
                stage,
                task,
            },
            Part::Task {
                attempt,
                stage: 0,
                task: 1,
            },
            Part::Rank {
                attempt,
                stage,
                task,
            },
            Part::Checkpoint {
                attempt,
                stage,
                task,
                number: 0,
            },
            Part::Publication {
                attempt,
                stage,
                task,
            },
        ]
    }

    #[test]
    fn all_parts_of_a_job_are_in_one_trace_and_differ() {
        let own = [Part::Job, Part::Client];
        let parts = own.into_iter().chain(parts(JOB)).chain(parts(AGAIN));
        let places: Vec<_> = parts.map(at).collect();
        let traces: BTreeSet<_> = places.iter().map(Place::trace_id).collect();
        let spans: BTreeSet<_> = places.iter().map(Place::span_id).collect();
        assert_eq!((traces.len(), spans.len()), (1, places.len()));
        let other = Place {
            job: AGAIN,
            part: Part::Job,
        };
        assert!(!traces.contains(&other.trace_id()) && !spans.contains(&other.span_id()));
    }

    #[test]
    fn every_part_leads_up_to_the_job() {
        for part in parts(AGAIN) {
            let (mut place, mut above) = (at(part), 0);
            while let Some(parent) = place.parent() {
                (place, above) = (parent, above + 1);
            }
            assert_eq!(place.part, Part::Job, "of {part:?}");
            assert!(
                (1..=5).contains(&above),
                "{part:?} is {above} below the job"
            );
        }
    }

    /// Processes of different builds must agree on ids, so these never change.
    #[test]
    fn ids_are_those_of_other_builds() {
        let job = at(Part::Job);
        assert_eq!(job.trace_id().to_string(), TRACE);
        assert_eq!(job.span_id().to_string(), SPAN);
    }

    const TRACE: &str = "18234cfe873663afb42f26912f995ff0";
    const SPAN: &str = "5b49102ea75926ab";
}
