//! `/metrics`: what the scheduler knows of the cluster, for Prometheus, in OpenMetrics text.
//!
//! It is computed when it is asked for. Only what is there now has labels of its own, executors and active training runs, so
//! that series are bounded. Not here: rows, statements and names of users.

use std::fmt;
use std::sync::atomic::AtomicU64;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use volley_proto::tables::{Executor, JobState, Run, RunState};

use crate::access::Caller;
use crate::tables::{Figures, Tables, Totals};

/// Content type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

impl Figures {
    /// Returns the figures as text.
    ///
    /// # Errors
    /// When a value has no text.
    fn text(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("volley");
        self.count(&mut registry);
        let mut gauges = |name: &str, help: &str| {
            let gauges = Gauges::default();
            registry.register(name, help, gauges.clone());
            gauges
        };
        let label = |name, value: &str| vec![(name, value.to_owned())];
        let jobs = gauges(
            "jobs",
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
        let oldest = gauges(
            "jobs_oldest_waiting_seconds",
            "Age of the oldest job that waits",
        );
        let waiting = self.jobs.iter().filter(|job| job.waits.is_some());
        let age = waiting.map(|job| job.seconds).fold(0.0, f64::max);
        oldest.get_or_create(&vec![]).set(age);
        let executors = gauges(
            "executors",
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
                "executor_slots",
                "Tasks that an executor runs at once",
                |executor| executor.slots,
            ),
            (
                "executor_free_slots",
                "Slots that no task holds",
                |executor| executor.free_slots,
            ),
            ("executor_gpus", "GPUs of an executor", |executor| {
                executor.gpus.len() as u64
            }),
            (
                "executor_free_gpus",
                "GPUs that no rank holds",
                |executor| executor.free_gpus,
            ),
            (
                "executor_memory_limit_bytes",
                "Memory for the queries of an executor",
                |executor| executor.memory_bytes,
            ),
            (
                "executor_rank_memory_limit_bytes",
                "Memory limit of each rank of an executor",
                |executor| executor.rank_memory_bytes,
            ),
        ];
        for (name, help, of) in of_executor {
            let gauge = gauges(name, help);
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
        let runs = gauges(
            "training_runs",
            "Training runs that have not ended, by state",
        );
        for run in &active {
            runs.get_or_create(&label("state", &run.state.to_string()))
                .inc();
        }
        type OfRun = fn(&Run) -> Option<f64>;
        let of_run: [(&str, &str, OfRun); 5] = [
            ("training_ranks", "Ranks of a run", |run| {
                Some(run.ranks as f64)
            }),
            ("training_steps", "Steps that a run has done", |run| {
                Some(run.steps as f64)
            }),
            ("training_loss", "Mean loss of the last steps", |run| {
                run.loss
            }),
            (
                "training_rows_per_second",
                "Rows a second over all ranks",
                |run| run.rows_per_second,
            ),
            (
                "training_eta_seconds",
                "Estimated time to the end of a run",
                |run| run.eta_seconds,
            ),
        ];
        for (name, help, of) in of_run {
            let gauge = gauges(name, help);
            for run in &active {
                if let Some(value) = of(run) {
                    let labels = vec![("model", run.model.clone()), ("run", run.train_id.clone())];
                    gauge.get_or_create(&labels).set(value);
                }
            }
        }
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    /// Registers the numbers since the scheduler started.
    fn count(&self, registry: &mut Registry) {
        let Totals {
            submitted,
            reruns,
            succeeded,
            failed,
            cancelled,
        } = self.totals;
        for (name, help, count) in [
            ("jobs_submitted", "Jobs that were submitted", submitted),
            (
                "job_reruns",
                "Times that a job was run again, as after the loss of an executor",
                reruns,
            ),
        ] {
            let counter: Counter = Counter::default();
            counter.inc_by(count);
            registry.register(name, help, counter);
        }
        let ended = Family::<Labels, Counter>::default();
        for (state, count) in [
            (JobState::Succeeded, succeeded),
            (JobState::Failed, failed),
            (JobState::Cancelled, cancelled),
        ] {
            let labels = vec![("state", state.to_string())];
            ended.get_or_create(&labels).inc_by(count);
        }
        registry.register("jobs_ended", "Jobs that have ended, by state", ended);
    }
}

/// Answers with the figures. Who sees only jobs of their own is not told of training runs.
pub(super) async fn metrics(
    State(tables): State<Tables>,
    Extension(caller): Extension<Caller>,
) -> Response {
    let mut figures = tables.figures();
    if caller.sees().is_some() {
        figures.runs.clear();
    }
    match figures.text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_since_the_start_are_counters() {
        let figures = Figures {
            totals: Totals {
                submitted: 7,
                failed: 2,
                ..Totals::default()
            },
            jobs: vec![],
            executors: vec![],
            runs: vec![],
        };
        let text = figures.text().unwrap();
        for line in [
            "# TYPE volley_jobs_submitted counter",
            "volley_jobs_submitted_total 7",
            "volley_jobs_ended_total{state=\"failed\"} 2",
            "volley_jobs_ended_total{state=\"succeeded\"} 0",
            "volley_jobs_oldest_waiting_seconds 0.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
