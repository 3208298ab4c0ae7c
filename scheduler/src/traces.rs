//! Traces of jobs: the spans of a job that the scheduler knows, built from what passes the [handle](crate::handle), and
//! sent when their part of the job has ended.
//!
//! ```text
//!   JobSubmitted, JobResubmitted ─► attempt ─┐
//!   Change::Planned ──────────────► planning │
//!   TasksBound ─┬─────────────────► stage    ├─ AttemptEnded ─► sent
//!               └─ of a gang ─────► generation, sent when it is over
//!   Change::Ended ────────────────► job, sent
//! ```
//!
//! It decides nothing, and the controller knows nothing of it. Attempts that were under way when a scheduler was killed
//! have no span; the job has one, from the scheduler that sees its end.

use std::collections::BTreeMap;
use std::time::SystemTime;

use indexmap::IndexMap;
use parking_lot::Mutex;
use volley_proto::TrainId;
use volley_proto::tables::JobState;
use volley_proto::traces::{Part, Place, Span, Traces};

use crate::control::{AttemptEnd, Change, Command, Controller, Event, Job, JobEnd, Topic};

/// Most attempts whose spans are open.
const ATTEMPTS: usize = 4096;
/// Most stages of an attempt that have spans.
const STAGES: usize = 1024;

/// Spans of the jobs that are under way.
#[derive(Debug)]
pub(crate) struct JobTraces {
    traces: Traces,
    /// Attempts by id, the oldest first.
    open: Mutex<IndexMap<String, Attempt>>,
}

/// Part of an event that spans follow from.
#[derive(Debug)]
pub(crate) enum Seen {
    Begins {
        attempt: String,
    },
    Bound {
        attempt: String,
        stage: usize,
        tasks: usize,
        train: Option<TrainId>,
    },
    TaskEnded {
        attempt: String,
        stage: usize,
        succeeded: bool,
    },
    Ends {
        attempt: String,
        /// Loss that ended it, if it is known.
        lost: Option<String>,
    },
}

/// Attempt that is under way.
#[derive(Debug)]
struct Attempt {
    begun: SystemTime,
    planned: Option<SystemTime>,
    stages: BTreeMap<usize, Stage>,
    generation: Option<Generation>,
    /// Time of its end, and the loss that caused it, if it has ended before its job is known.
    ended: Option<(SystemTime, Option<String>)>,
}

impl Attempt {
    fn new(begun: SystemTime) -> Self {
        Self {
            begun,
            planned: None,
            stages: BTreeMap::new(),
            generation: None,
            ended: None,
        }
    }
}

#[derive(Debug)]
struct Stage {
    begun: SystemTime,
    /// Time at which a task ended last.
    last: SystemTime,
    tasks: usize,
    succeeded: usize,
    failed: usize,
    train: Option<TrainId>,
}

#[derive(Debug)]
struct Generation {
    train: TrainId,
    stage: usize,
    number: u64,
    begun: SystemTime,
    ranks: usize,
}

/// End of an attempt.
struct Outcome {
    state: String,
    succeeded: bool,
    error: Option<String>,
}

impl Outcome {
    /// Returns the end of an attempt that has ended, from the state of its job since then.
    fn of(attempt: &str, job: &Job, lost: Option<String>) -> Self {
        let number = job.attempts.iter().position(|known| known == attempt);
        let is_followed = number.is_some_and(|at| at + 1 < job.attempts.len());
        if job.state == JobState::Rerunning || is_followed {
            let note = || job.notes.last().map(|note| note.text.clone());
            return Self {
                state: "lost".to_owned(),
                succeeded: false,
                error: lost.or_else(note),
            };
        }
        let failed = job.state == JobState::Failed;
        let error = job.shown_error().filter(|_| failed);
        Self {
            state: job.state.to_string(),
            succeeded: job.state == JobState::Succeeded,
            error: error.map(str::to_owned),
        }
    }

    fn mark(&self, span: Span) -> Span {
        match &self.error {
            Some(error) => span.failed(error.as_str()),
            None if self.succeeded => span.succeeded(),
            None => span,
        }
    }
}

impl JobTraces {
    pub(crate) fn new(traces: Traces) -> Self {
        Self {
            traces,
            open: Mutex::default(),
        }
    }

    /// Returns the handle by which spans are sent.
    pub(crate) fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Returns what spans follow from in an event, before the controller takes it.
    pub(crate) fn sees(event: &Event) -> Option<Seen> {
        Some(match event {
            Event::JobSubmitted(submission) => Seen::Begins {
                attempt: submission.job.clone(),
            },
            Event::JobResubmitted { attempt, .. } => Seen::Begins {
                attempt: attempt.clone(),
            },
            Event::TasksBound { binding, tasks } => Seen::Bound {
                attempt: binding.attempt.clone(),
                stage: binding.stage,
                tasks: tasks.len(),
                train: binding.gang.as_ref().map(|gang| gang.gang.train),
            },
            Event::TaskSucceeded { task, .. } => Seen::TaskEnded {
                attempt: task.attempt.clone(),
                stage: task.stage,
                succeeded: true,
            },
            Event::TaskFailed { task, .. } => Seen::TaskEnded {
                attempt: task.attempt.clone(),
                stage: task.stage,
                succeeded: false,
            },
            Event::AttemptEnded { attempt, end } => Seen::Ends {
                attempt: attempt.clone(),
                lost: match end {
                    AttemptEnd::Lost(data) => Some(format!(
                        "data of executor {} is lost: {}",
                        data.loss.executor, data.loss.reason
                    )),
                    _ => None,
                },
            },
            _ => return None,
        })
    }

    /// Follows an event that the controller has handled.
    pub(crate) fn follows(&self, seen: Seen, controller: &Controller, now: SystemTime) {
        let mut open = self.open.lock();
        match seen {
            Seen::Begins { attempt } => {
                let known = self.opened(&mut open, &attempt, now);
                if let Some(job) = controller.job(&attempt) {
                    // The first attempt, whose tasks may have been bound before.
                    known.begun = known.begun.min(job.submitted);
                }
                if let Some((at, lost)) = known.ended.take() {
                    let ended = open.shift_remove(&attempt);
                    self.attempt_ends((&attempt, ended), (at, lost), controller);
                }
            }
            Seen::Bound {
                attempt,
                stage,
                tasks,
                train,
            } => {
                if controller.jobs().is_over(&attempt) {
                    return;
                }
                let known = self.opened(&mut open, &attempt, now);
                if known.stages.len() >= STAGES && !known.stages.contains_key(&stage) {
                    return self.traces.gives_up(1);
                }
                let of_stage = known.stages.entry(stage).or_insert(Stage {
                    begun: now,
                    last: now,
                    tasks: 0,
                    succeeded: 0,
                    failed: 0,
                    train,
                });
                of_stage.tasks += tasks;
                let run = train.and_then(|train| Some((train, controller.run(train)?)));
                if let Some((train, run)) = run {
                    let next = Generation {
                        train,
                        stage,
                        number: run.generation(),
                        begun: now,
                        ranks: tasks,
                    };
                    if let Some(before) = known.generation.replace(next) {
                        let span = before.span(&attempt, controller, now);
                        self.traces.send(span);
                    }
                }
            }
            Seen::TaskEnded {
                attempt,
                stage,
                succeeded,
            } => {
                let known = open.get_mut(&attempt);
                if let Some(of_stage) = known.and_then(|known| known.stages.get_mut(&stage)) {
                    of_stage.last = now;
                    match succeeded {
                        true => of_stage.succeeded += 1,
                        false => of_stage.failed += 1,
                    }
                }
            }
            Seen::Ends { attempt, lost } => match controller.jobs().knows(&attempt) {
                true => {
                    let ended = open.shift_remove(&attempt);
                    self.attempt_ends((&attempt, ended), (now, lost), controller);
                }
                false => {
                    let known = self.opened(&mut open, &attempt, now);
                    known.ended.get_or_insert((now, lost));
                }
            },
        }
    }

    /// Follows commands of the controller.
    pub(crate) fn decided(&self, commands: &[Command], controller: &Controller, now: SystemTime) {
        for command in commands {
            match command {
                Command::Record(Change::Ended { job, end }) => {
                    if let Some(job) = controller.job(job) {
                        self.traces.send(of_job(job, end));
                    }
                }
                Command::Record(Change::Planned { job }) => {
                    let job = controller.job(job);
                    if let Some(job) = job
                        && let Some(attempt) = self.open.lock().get_mut(job.attempt())
                    {
                        attempt.planned.get_or_insert(now);
                    }
                }
                Command::Wake(Topic::Run(train)) => self.run_changed(*train, controller, now),
                _ => {}
            }
        }
    }

    /// Ends the span of a run's generation, if that is over.
    fn run_changed(&self, train: TrainId, controller: &Controller, now: SystemTime) {
        let Some(reason) = controller.run(train).and_then(|run| run.over()) else {
            return;
        };
        for (attempt, known) in self.open.lock().iter_mut() {
            let over = known
                .generation
                .take_if(|generation| generation.train == train);
            if let Some(over) = over {
                let span = over.span(attempt, controller, now);
                let span = span.with("volley.generation.end", reason);
                self.traces.send(span);
            }
        }
    }

    /// Returns an attempt, opened if need be; gives up the oldest one if there are too many.
    fn opened<'a>(
        &self,
        open: &'a mut IndexMap<String, Attempt>,
        attempt: &str,
        now: SystemTime,
    ) -> &'a mut Attempt {
        if open.len() >= ATTEMPTS
            && !open.contains_key(attempt)
            && let Some((_, oldest)) = open.shift_remove_index(0)
        {
            self.traces.gives_up(1 + oldest.stages.len());
        }
        let known = open.entry(attempt.to_owned());
        known.or_insert_with(|| Attempt::new(now))
    }

    /// Sends the spans of an attempt that has ended, unless they were sent before.
    fn attempt_ends(
        &self,
        (attempt, ended): (&str, Option<Attempt>),
        (end, lost): (SystemTime, Option<String>),
        controller: &Controller,
    ) {
        let job = controller.job(controller.jobs().job_of(attempt));
        let Some((of, job)) = ended.zip(job) else {
            return;
        };
        let outcome = Outcome::of(attempt, job, lost);
        let place = |part| Place { job: &job.id, part };
        let first = of.stages.values().map(|stage| stage.begun).min();
        // Tasks of a small query may be bound before its job is known, and then no change says that it is planned.
        let planned = of.planned.into_iter().chain(first).min();
        let part = Part::Planning { attempt };
        let span = Span::new(&place(part), of.begun, planned.unwrap_or(end));
        self.traces.send(match planned {
            Some(_) => span.succeeded(),
            None => outcome.mark(span),
        });
        for (number, stage) in &of.stages {
            let part = Part::Stage {
                attempt,
                stage: *number,
            };
            let has_ended = stage.succeeded + stage.failed >= stage.tasks;
            let to = if has_ended { stage.last } else { end };
            let span = Span::new(&place(part), stage.begun, to)
                .with("volley.stage.tasks", stage.tasks)
                .with("volley.stage.failed_tasks", stage.failed)
                .maybe("volley.train.id", stage.train.map(|id| id.to_string()));
            let is_done = has_ended && (stage.failed == 0 || outcome.succeeded);
            self.traces.send(match is_done {
                true => span.succeeded(),
                false => outcome.mark(span),
            });
        }
        if let Some(generation) = of.generation {
            let span = generation.span(attempt, controller, end);
            self.traces.send(outcome.mark(span));
        }
        let number = job.attempts.iter().position(|known| known == attempt);
        let span = Span::new(&place(Part::Attempt { attempt }), of.begun, end)
            .maybe("volley.attempt.number", number.map(|at| at + 1))
            .with("volley.attempt.state", outcome.state.as_str());
        self.traces.send(outcome.mark(span));
    }
}

impl Generation {
    fn span(&self, attempt: &str, controller: &Controller, end: SystemTime) -> Span {
        let part = Part::Generation {
            attempt,
            stage: self.stage,
            number: self.number,
        };
        let job = controller.jobs().job_of(attempt);
        Span::new(&Place { job, part }, self.begun, end)
            .with("volley.train.id", self.train.to_string())
            .with("volley.ranks", self.ranks)
    }
}

/// Returns the span of a job that has ended.
fn of_job(job: &Job, end: &JobEnd) -> Span {
    let place = Place {
        job: &job.id,
        part: Part::Job,
    };
    let span = Span::new(&place, job.submitted, end.at)
        .with("volley.job.name", job.name.as_str())
        .with("volley.job.owner", job.owner.as_str())
        .with("volley.job.queue", &*job.account.queue)
        .with("volley.job.state", end.state.to_string())
        .with("volley.job.attempts", job.attempts.len())
        .maybe("volley.train.id", job.train.map(|id| id.to_string()));
    match end.state {
        JobState::Succeeded => span.succeeded(),
        JobState::Failed => span.failed(job.shown_error().unwrap_or_default()),
        JobState::Running | JobState::Rerunning | JobState::Cancelled => span,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use volley_proto::metrics::Metrics;

    use super::*;
    use crate::control::{
        Binding, BoundTask, Now, Policy, Queues, RetentionPolicy, Submission, Task,
    };

    const LONG: Duration = Duration::from_secs(3600);

    /// A controller whose jobs are traced, as its handle has it.
    struct Traced {
        controller: Controller,
        traces: JobTraces,
        spans: mpsc::Receiver<Span>,
    }

    impl Traced {
        fn new() -> Self {
            let (traces, spans) = Traces::channel(64);
            let policy = Policy {
                executor_timeout: LONG,
                client_timeout: LONG,
                retention: RetentionPolicy {
                    unread: LONG,
                    idle: LONG,
                },
                queues: Queues::default(),
                reservation_limit: LONG,
            };
            Self {
                controller: Controller::new(policy),
                traces: JobTraces::new(traces),
                spans,
            }
        }

        fn on(&mut self, event: Event) {
            let (now, seen) = (Now::read(), JobTraces::sees(&event));
            let commands = self.controller.on(event, now);
            if let Some(seen) = seen {
                self.traces.follows(seen, &self.controller, now.time);
            }
            self.traces.decided(&commands, &self.controller, now.time);
        }

        fn submits(&mut self, job: &str) {
            self.on(Event::JobSubmitted(Submission::query(job)));
        }

        fn binds(&mut self, stage: usize) {
            let task = BoundTask {
                executor: "e".to_owned(),
                number: 0,
                slots: 1,
                gpu: None,
            };
            self.on(Event::TasksBound {
                binding: Binding {
                    attempt: "j".to_owned(),
                    stage,
                    tasks: Vec::new(),
                    gang: None,
                },
                tasks: vec![task],
            });
        }

        /// Returns the spans since the last call, in the order in which they were sent.
        fn sent(&mut self) -> Vec<Span> {
            std::iter::from_fn(|| self.spans.try_recv().ok()).collect()
        }
    }

    fn ends(attempt: &str, end: AttemptEnd) -> Event {
        let attempt = attempt.to_owned();
        Event::AttemptEnded { attempt, end }
    }

    fn failed() -> AttemptEnd {
        AttemptEnd::Failed("label is null".to_owned())
    }

    fn names(spans: &[Span]) -> Vec<&'static str> {
        spans.iter().map(Span::name).collect()
    }

    #[test]
    fn an_attempts_spans_come_with_its_end_and_that_of_its_job_last() {
        let mut traced = Traced::new();
        traced.submits("j");
        traced.binds(1);
        traced.binds(2);
        traced.on(Event::TaskSucceeded {
            executor: "e".to_owned(),
            task: Task {
                attempt: "j".to_owned(),
                stage: 1,
                number: 0,
            },
        });
        assert!(traced.sent().is_empty(), "nothing has ended");
        traced.on(ends("j", failed()));
        let sent = traced.sent();
        let due = ["planning", "stage", "stage", "attempt", "job"];
        assert_eq!(names(&sent), due);
        let errors: Vec<_> = sent.iter().map(Span::error).collect();
        let error = Some("label is null");
        assert_eq!(errors, [None, None, error, error, error]);
        // An end may be reported again.
        traced.on(ends("j", failed()));
        assert!(traced.sent().is_empty());
    }

    #[test]
    fn an_attempt_that_ends_before_its_job_is_known_has_its_spans() {
        let mut traced = Traced::new();
        traced.on(ends("j", failed()));
        assert!(traced.sent().is_empty(), "its job is not known");
        traced.submits("j");
        let sent = traced.sent();
        assert_eq!(names(&sent), ["planning", "attempt", "job"]);
        let mut sent = sent.iter();
        assert!(sent.all(|span| span.error() == Some("label is null")));
    }

    #[test]
    fn a_cancelled_job_has_not_failed() {
        let mut traced = Traced::new();
        traced.submits("j");
        let now = Now::read();
        traced.controller.cancel("j", now);
        let commands = traced.controller.take_commands();
        traced
            .traces
            .decided(&commands, &traced.controller, now.time);
        traced.on(ends("j", AttemptEnd::Cancelled));
        let sent = traced.sent();
        assert_eq!(names(&sent), ["job", "planning", "attempt"]);
        assert!(sent.iter().all(|span| span.error().is_none()));
    }

    #[test]
    fn open_attempts_are_bounded() {
        let mut traced = Traced::new();
        for number in 0..ATTEMPTS + 5 {
            traced.on(ends(&number.to_string(), failed()));
        }
        assert_eq!(traced.traces.open.lock().len(), ATTEMPTS);
        let mut metrics = Metrics::default();
        traced.traces.traces().count(&mut metrics);
        let text = metrics.text().unwrap();
        assert!(text.contains("{outcome=\"dropped\"} 5\n"), "{text}");
    }
}
