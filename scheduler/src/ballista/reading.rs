//! Rows that running tasks have read so far, as their executors tell.
//!
//! A report replaces the executor's previous one, and expires if none follows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_proto::wire::{Reading as Told, TaskReading};

/// Time for which what an executor has told counts. They tell it every half second.
const FRESH: Duration = Duration::from_secs(5);

/// Task of an attempt, on an executor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TaskOf {
    pub(super) executor: String,
    pub(super) stage: u64,
    pub(super) number: u64,
}

/// Rows read by running tasks; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    executors: Arc<Mutex<HashMap<String, Report>>>,
}

/// Tasks of an executor, and when it told them.
#[derive(Debug)]
struct Report {
    at: Instant,
    tasks: Vec<TaskReading>,
}

impl Reading {
    /// Takes what an executor tells.
    pub(super) fn take(&self, told: Told, now: Instant) {
        let Told { executor_id, tasks } = told;
        let mut executors = self.executors.lock();
        executors.retain(|_, report| now.saturating_duration_since(report.at) < FRESH);
        executors.insert(executor_id, Report { at: now, tasks });
    }

    /// Returns the rows that tasks of an attempt have read, by task. Some may have ended since their executors told.
    pub(super) fn of(&self, attempt: &str, now: Instant) -> HashMap<TaskOf, u64> {
        let executors = self.executors.lock();
        let fresh = executors
            .iter()
            .filter(|(_, report)| now.saturating_duration_since(report.at) < FRESH);
        let rows = fresh.flat_map(|(executor, report)| {
            let tasks = report.tasks.iter().filter(|task| task.job_id == attempt);
            tasks.map(|task| {
                let of = TaskOf {
                    executor: executor.clone(),
                    stage: task.stage_id,
                    number: task.task_id,
                };
                (of, task.rows)
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_executors_tell_counts_while_it_is_fresh() {
        let reading = Reading::default();
        let told = |executor: &str, tasks: &[(&str, u64, u64, u64)]| Told {
            executor_id: executor.into(),
            tasks: tasks
                .iter()
                .map(|(job, stage, task, rows)| TaskReading {
                    job_id: (*job).into(),
                    stage_id: *stage,
                    task_id: *task,
                    rows: *rows,
                })
                .collect(),
        };
        let start = Instant::now();
        let rows = |at| {
            let rows = reading.of("j", at).into_iter();
            let rows = rows.map(|(of, rows)| (of.executor, of.stage, of.number, rows));
            rows.collect::<BTreeSet<_>>()
        };
        let due = |rows: &[(&str, u64, u64, u64)]| {
            let rows = rows.iter();
            let rows = rows.map(|(executor, stage, task, rows)| {
                ((*executor).to_owned(), *stage, *task, *rows)
            });
            rows.collect::<BTreeSet<_>>()
        };
        let of_a = [("j", 1, 0, 10), ("j", 1, 1, 5), ("k", 1, 0, 99)];
        reading.take(told("a", &of_a), start);
        reading.take(told("b", &[("j", 1, 2, 1), ("j", 2, 3, 7)]), start);
        let of_b = [("b", 1, 2, 1), ("b", 2, 3, 7)];
        let [two, seven] = of_b;
        assert_eq!(
            rows(start),
            due(&[("a", 1, 0, 10), ("a", 1, 1, 5), two, seven])
        );
        let later = start + FRESH / 2;
        reading.take(told("a", &[("j", 1, 1, 40)]), later);
        assert_eq!(rows(later), due(&[("a", 1, 1, 40), two, seven]));
        assert_eq!(rows(start + FRESH), due(&[("a", 1, 1, 40)]));
        reading.take(told("c", &[]), start + FRESH);
        assert_eq!(reading.executors.lock().len(), 2);
    }
}
