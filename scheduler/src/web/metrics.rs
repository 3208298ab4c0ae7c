//! `/metrics`: what the scheduler knows of the cluster, for Prometheus, in OpenMetrics text.
//!
//! It is computed when it is asked for. Only what is there now has labels of its own, executors and active training runs, so
//! that series are bounded. Not here: rows, statements and names of users.

use std::fmt;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use volley_proto::metrics::{Metrics, OPEN_METRICS};
use volley_proto::tables::{Executor, JobState, Run, RunState};

use crate::access::{AccessCounts, Caller};
use crate::tables::{Figures, Tables, Totals, Unmet, WriterFigures};

impl Figures {
    /// Returns the figures as text.
    ///
    /// # Errors
    /// When a value has no text.
    fn text(&self, counts: &AccessCounts) -> Result<String, fmt::Error> {
        let mut metrics = Metrics::default();
        self.count(&mut metrics);
        of_access(counts, &mut metrics);
        if let Some(writer) = &self.record {
            of_record(writer, &mut metrics);
        }
        if let Some(traces) = &self.traces {
            traces.count(&mut metrics);
        }
        metrics.process();
        let label = |name, value: &str| vec![(name, value.to_owned())];
        let jobs = metrics.gauges(
            "volley_jobs",
            "Jobs that have not ended, by queue and by whether their tasks wait",
        );
        for job in &self.jobs {
            let state = if job.waits.is_some() {
                "waiting"
            } else {
                "running"
            };
            let labels = vec![("queue", job.queue.clone()), ("state", state.to_owned())];
            jobs.get_or_create(&labels).inc();
        }
        let waiting = self.jobs.iter().filter(|job| job.waits.is_some());
        let age = waiting.map(|job| job.seconds).fold(0.0, f64::max);
        metrics.gauge(
            "volley_jobs_oldest_waiting_seconds",
            "Age of the oldest job that waits",
            age,
        );
        self.demand(&mut metrics);
        let executors = metrics.gauges(
            "volley_executors",
            "Executors that are registered, by role, version and whether they are about to leave",
        );
        for executor in &self.executors {
            let labels = vec![
                ("role", executor.role.clone()),
                ("version", executor.version.clone()),
                ("draining", executor.draining.to_string()),
            ];
            executors.get_or_create(&labels).inc();
        }
        type OfExecutor = fn(&Executor) -> u64;
        let of_executor: [(&str, &str, OfExecutor); 6] = [
            (
                "volley_executor_slots",
                "Tasks that an executor runs at once",
                |executor| executor.slots,
            ),
            (
                "volley_executor_free_slots",
                "Slots that no task holds",
                |executor| executor.free_slots,
            ),
            ("volley_executor_gpus", "GPUs of an executor", |executor| {
                executor.gpus.len() as u64
            }),
            (
                "volley_executor_free_gpus",
                "GPUs that no rank holds",
                |executor| executor.free_gpus,
            ),
            (
                "volley_executor_memory_limit_bytes",
                "Memory for the queries of an executor",
                |executor| executor.memory_bytes,
            ),
            (
                "volley_executor_rank_memory_limit_bytes",
                "Memory limit of each rank of an executor",
                |executor| executor.rank_memory_bytes,
            ),
        ];
        for (name, help, of) in of_executor {
            let gauge = metrics.gauges(name, help);
            for executor in &self.executors {
                let labels = label("executor", &executor.executor_id);
                gauge.get_or_create(&labels).set(of(executor) as f64);
            }
        }
        let active: Vec<_> = self
            .runs
            .iter()
            .filter(|run| {
                !matches!(
                    run.state,
                    RunState::Finished | RunState::Ended | RunState::Failed
                )
            })
            .collect();
        let runs = metrics.gauges(
            "volley_training_runs",
            "Training runs that have not ended, by state",
        );
        for run in &active {
            runs.get_or_create(&label("state", &run.state.to_string()))
                .inc();
        }
        type OfRun = fn(&Run) -> Option<f64>;
        let of_run: [(&str, &str, OfRun); 5] = [
            ("volley_training_ranks", "Ranks of a run", |run| {
                Some(run.ranks as f64)
            }),
            (
                "volley_training_steps",
                "Steps that a run has done",
                |run| Some(run.steps as f64),
            ),
            (
                "volley_training_loss",
                "Mean loss of the last steps",
                |run| run.loss,
            ),
            (
                "volley_training_rows_per_second",
                "Rows a second over all ranks",
                |run| run.rows_per_second,
            ),
            (
                "volley_training_eta_seconds",
                "Estimated time to the end of a run",
                |run| run.eta_seconds,
            ),
        ];
        for (name, help, of) in of_run {
            let gauge = metrics.gauges(name, help);
            for run in &active {
                if let Some(value) = of(run) {
                    let labels = vec![("model", run.model.clone()), ("run", run.train_id.clone())];
                    gauge.get_or_create(&labels).set(value);
                }
            }
        }
        metrics.text()
    }

    /// Adds what the cluster would have to grow by.
    fn demand(&self, metrics: &mut Metrics) {
        let Unmet {
            tasks,
            gangs,
            ranks,
        } = self.unmet;
        metrics.gauge(
            "volley_tasks_waiting",
            "Tasks of queries that wait for a slot",
            tasks as f64,
        );
        metrics.gauge(
            "volley_gangs_waiting",
            "Trainings whose ranks wait for slots or GPUs",
            gangs as f64,
        );
        metrics.gauge(
            "volley_ranks_waiting",
            "Ranks of these trainings, each of which takes a slot of another executor",
            ranks as f64,
        );
        let held = self.executors.iter();
        let held = held.map(|executor| executor.slots.saturating_sub(executor.free_slots));
        metrics.gauge(
            "volley_slots_needed",
            "Slots that running and waiting tasks and ranks take together",
            (held.sum::<u64>() + (tasks + ranks) as u64) as f64,
        );
    }

    /// Adds the numbers since the scheduler started.
    fn count(&self, metrics: &mut Metrics) {
        let Totals {
            submitted,
            reruns,
            succeeded,
            failed,
            cancelled,
        } = self.totals;
        metrics.counter(
            "volley_jobs_submitted",
            "Jobs that were submitted",
            submitted,
        );
        metrics.counter(
            "volley_job_reruns",
            "Times that a job was run again, as after the loss of an executor",
            reruns,
        );
        metrics.counter(
            "volley_executors_lost",
            "Executors that have left without having been told to",
            self.lost_executors,
        );
        let ended = metrics.counters("volley_jobs_ended", "Jobs that have ended, by state");
        for (state, count) in [
            (JobState::Succeeded, succeeded),
            (JobState::Failed, failed),
            (JobState::Cancelled, cancelled),
        ] {
            let labels = vec![("state", state.to_string())];
            ended.get_or_create(&labels).inc_by(count);
        }
    }
}

/// Adds the numbers of logins and of refused requests.
fn of_access(counts: &AccessCounts, metrics: &mut Metrics) {
    let logins = metrics.counters("volley_logins", "Logins to the web page, by outcome");
    for (outcome, count) in [
        ("succeeded", &counts.logins),
        ("refused", &counts.refused_logins),
    ] {
        let labels = vec![("outcome", outcome.to_owned())];
        logins.get_or_create(&labels).inc_by(count.get());
    }
    let refused = metrics.counters(
        "volley_requests_refused",
        "Requests that were refused at the port, by reason",
    );
    for (reason, count) in [
        ("unauthenticated", &counts.unauthenticated),
        ("forbidden", &counts.forbidden),
        ("version", &counts.other_versions),
    ] {
        let labels = vec![("reason", reason.to_owned())];
        refused.get_or_create(&labels).inc_by(count.get());
    }
}

/// Adds the state of the writer of the record of jobs.
fn of_record(writer: &WriterFigures, metrics: &mut Metrics) {
    let WriterFigures {
        writes,
        failures,
        failing,
        silence,
    } = *writer;
    metrics.counter(
        "volley_record_writes",
        "Writes of changed jobs to the record of jobs",
        writes,
    );
    metrics.counter(
        "volley_record_write_failures",
        "Writes to the record of jobs that have failed",
        failures,
    );
    metrics.gauge(
        "volley_record_failing",
        "1 while the last write to the record of jobs has failed, else 0",
        f64::from(u8::from(failing)),
    );
    metrics.gauge(
        "volley_record_silence_seconds",
        "Time since the record of jobs last took a write or a sign of life",
        silence.as_secs_f64(),
    );
}

/// Answers with the figures. Who sees only jobs of their own is not told of training runs.
pub(super) async fn metrics(
    State(tables): State<Tables>,
    Extension(caller): Extension<Caller>,
    Extension(counts): Extension<Arc<AccessCounts>>,
) -> Response {
    let mut figures = tables.figures();
    if caller.sees().is_some() {
        figures.runs.clear();
    }
    match figures.text(&counts) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use volley_proto::traces::Traces;

    use super::*;

    #[test]
    fn numbers_since_the_start_are_counters() {
        let figures = Figures {
            totals: Totals {
                submitted: 7,
                failed: 2,
                ..Totals::default()
            },
            lost_executors: 4,
            unmet: Unmet {
                tasks: 5,
                gangs: 1,
                ranks: 3,
            },
            jobs: vec![],
            executors: vec![],
            runs: vec![],
            record: Some(WriterFigures {
                writes: 3,
                failures: 1,
                failing: true,
                silence: Duration::from_millis(2500),
            }),
            traces: Some(Traces::channel(1).0),
        };
        let counts = AccessCounts::default();
        counts.refused_logins.add(1);
        counts.refused_logins.add(1);
        counts.forbidden.add(1);
        let text = figures.text(&counts).unwrap();
        for line in [
            "# TYPE volley_jobs_submitted counter",
            "volley_jobs_submitted_total 7",
            "volley_jobs_ended_total{state=\"failed\"} 2",
            "volley_jobs_ended_total{state=\"succeeded\"} 0",
            "volley_jobs_oldest_waiting_seconds 0.0",
            "volley_executors_lost_total 4",
            "volley_tasks_waiting 5.0",
            "volley_gangs_waiting 1.0",
            "volley_ranks_waiting 3.0",
            "volley_slots_needed 8.0",
            "volley_logins_total{outcome=\"refused\"} 2",
            "volley_requests_refused_total{reason=\"forbidden\"} 1",
            "volley_record_write_failures_total 1",
            "volley_record_failing 1.0",
            "volley_record_silence_seconds 2.5",
            "volley_trace_spans_total{outcome=\"sent\"} 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
