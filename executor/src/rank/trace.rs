//! Spans of a rank, if jobs are traced: its own, with its epochs as events, and those of its checkpoints and its model.
//!
//! Not here: what ranks record beside their model with the option `trace`, which is the trainer's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use volley_engine::runtime::TaskIdentity;
use volley_proto::failure::chain;
use volley_proto::store::EpochRecord;
use volley_proto::traces::{Part, Place, Span, SpanEvent, Traces};

use crate::error::RankError;

/// Spans of a rank, or nothing where jobs are not traced; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct RankTrace {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    traces: Traces,
    task: TaskIdentity,
    executor: String,
    /// The rank's span until it is sent.
    span: Mutex<Option<Span>>,
    /// Number of checkpoints that have spans.
    checkpoints: AtomicU64,
}

impl Shared {
    fn place<'a>(&'a self, part: Part<'a>) -> Place<'a> {
        Place {
            job: &self.task.first_attempt,
            part,
        }
    }

    fn ends(&self, mark: impl FnOnce(Span) -> Span) {
        if let Some(span) = self.span.lock().take() {
            self.traces.send(mark(span.ended(SystemTime::now())));
        }
    }

    fn write(&self, part: Part<'_>, begun: SystemTime, error: Option<String>) {
        let span = Span::new(&self.place(part), begun, SystemTime::now());
        let span = span.with("volley.executor.id", self.executor.as_str());
        self.traces.send(match error {
            Some(error) => span.failed(error),
            None => span.succeeded(),
        });
    }
}

/// A rank whose task was cancelled tells nothing.
impl Drop for Shared {
    fn drop(&mut self) {
        self.ends(|span| span);
    }
}

impl RankTrace {
    /// Begins the span of a rank, which came at `begun`; `describe` adds its attributes.
    pub(super) fn begin(
        traces: &Traces,
        (executor, task): (&str, &TaskIdentity),
        begun: SystemTime,
        describe: impl FnOnce(Span) -> Span,
    ) -> Self {
        let shared = Shared {
            traces: traces.clone(),
            task: task.clone(),
            executor: executor.to_owned(),
            span: Mutex::default(),
            checkpoints: AtomicU64::new(0),
        };
        let part = Part::Rank {
            attempt: &task.job_id,
            stage: task.stage_id,
            task: task.task_id,
        };
        let span = Span::new(&shared.place(part), begun, begun);
        let span = span.with("volley.executor.id", executor);
        *shared.span.lock() = Some(describe(span));
        Self {
            shared: Some(Arc::new(shared)),
        }
    }

    fn add(&self, event: impl FnOnce(SystemTime) -> SpanEvent) {
        let Some(shared) = &self.shared else { return };
        if let Some(span) = shared.span.lock().as_mut() {
            span.add(event(SystemTime::now()));
        }
    }

    /// Adds that the rank has its rows.
    pub(super) fn loaded(&self, rows: u64) {
        self.add(|at| SpanEvent::new("loaded", at).with("volley.rows", rows));
    }

    /// Adds the end of an epoch.
    pub(super) fn epoch(&self, record: &EpochRecord) {
        self.add(|at| {
            SpanEvent::new("epoch", at)
                .with("volley.epoch", record.epoch)
                .with("volley.steps", record.steps)
                .with("volley.loss", record.loss)
                .maybe("volley.eval_loss", record.eval_loss)
        });
    }

    /// Sends the span of a checkpoint that was written, or was not.
    pub(super) fn checkpoint<E: std::error::Error + 'static>(
        &self,
        begun: SystemTime,
        written: &Result<(), E>,
    ) {
        let Some(shared) = &self.shared else { return };
        let TaskIdentity {
            job_id: attempt,
            stage_id: stage,
            task_id: task,
            ..
        } = &shared.task;
        let part = Part::Checkpoint {
            attempt,
            stage: *stage,
            task: *task,
            number: shared.checkpoints.fetch_add(1, Ordering::Relaxed),
        };
        let error = written.as_ref().err().map(|error| chain(error));
        shared.write(part, begun, error);
    }

    /// Sends the span of a model that was published, or was not.
    pub(super) fn publication<T, E: std::error::Error + 'static>(
        &self,
        begun: SystemTime,
        published: &Result<T, E>,
    ) {
        let Some(shared) = &self.shared else { return };
        let TaskIdentity {
            job_id: attempt,
            stage_id: stage,
            task_id: task,
            ..
        } = &shared.task;
        let part = Part::Publication {
            attempt,
            stage: *stage,
            task: *task,
        };
        let error = published.as_ref().err().map(|error| chain(error));
        shared.write(part, begun, error);
    }

    /// Sends the rank's span.
    pub(super) fn ends<T>(&self, ended: &Result<T, RankError>) {
        let Some(shared) = &self.shared else { return };
        shared.ends(|span| match ended {
            Ok(_) => span.succeeded(),
            Err(RankError::Cancelled { .. }) => span,
            // The ranks meet again: that is no failure of this one.
            Err(RankError::Regroup { reason, .. }) => span.with("volley.rank.end", reason.as_str()),
            Err(error) => span.failed(chain(error)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin() -> (RankTrace, tokio::sync::mpsc::Receiver<Span>) {
        let (traces, spans) = Traces::channel(8);
        let task = TaskIdentity {
            job_id: "k".into(),
            first_attempt: "j".into(),
            stage_id: 2,
            task_id: 1,
            partitions: vec![],
        };
        let begun = SystemTime::now();
        let trace = RankTrace::begin(&traces, ("e", &task), begun, |span| {
            span.with("volley.rank", 0_u64)
        });
        (trace, spans)
    }

    #[test]
    fn a_rank_has_one_span_however_it_ends() {
        let (trace, mut spans) = begin();
        let reporter = trace.clone();
        let broken = RankError::Broken {
            rank: 0,
            executor: "e".into(),
            message: "no".into(),
        };
        trace.ends(&Err::<(), _>(broken));
        drop((trace, reporter));
        let span = spans.try_recv().unwrap();
        assert_eq!(span.name(), "rank");
        assert!(span.error().is_some_and(|error| error.ends_with(": no")));
        assert!(spans.try_recv().is_err());

        let (trace, mut spans) = begin();
        drop(trace);
        let cancelled = spans.try_recv().unwrap();
        assert_eq!((cancelled.name(), cancelled.error()), ("rank", None));
    }

    #[test]
    fn writes_have_spans_of_their_own() {
        let (trace, mut spans) = begin();
        let begun = SystemTime::now();
        let written = Ok::<_, std::io::Error>(());
        trace.checkpoint(begun, &written);
        trace.checkpoint(begun, &Err(std::io::Error::other("full")));
        trace.publication(begun, &written);
        let sent: Vec<_> = std::iter::from_fn(|| spans.try_recv().ok()).collect();
        let names: Vec<_> = sent
            .iter()
            .map(|span| (span.name(), span.error()))
            .collect();
        let due = [
            ("checkpoint", None),
            ("checkpoint", Some("full")),
            ("publication", None),
        ];
        assert_eq!(names, due);
    }
}
