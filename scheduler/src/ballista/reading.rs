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

    /// Returns the rows that the running tasks of an attempt have read, by stage.
    pub(super) fn of(&self, attempt: &str, now: Instant) -> HashMap<u64, u64> {
        let mut stages = HashMap::new();
        let executors = self.executors.lock();
        let fresh = |report: &&Report| now.saturating_duration_since(report.at) < FRESH;
        for task in executors
            .values()
            .filter(fresh)
            .flat_map(|report| &report.tasks)
        {
            if task.job_id == attempt {
                *stages.entry(task.stage_id).or_default() += task.rows;
            }
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_executors_tell_is_added_up_while_it_is_fresh() {
        let reading = Reading::default();
        let told = |executor: &str, tasks: &[(&str, u64, u64)]| Told {
            executor_id: executor.into(),
            tasks: tasks
                .iter()
                .map(|(job, stage, rows)| TaskReading {
                    job_id: (*job).into(),
                    stage_id: *stage,
                    rows: *rows,
                })
                .collect(),
        };
        let start = Instant::now();
        let rows = |at| {
            let stages = reading.of("j", at);
            [1, 2].map(|stage| stages.get(&stage).copied())
        };
        reading.take(told("a", &[("j", 1, 10), ("j", 1, 5), ("k", 1, 99)]), start);
        reading.take(told("b", &[("j", 1, 1), ("j", 2, 7)]), start);
        assert_eq!(rows(start), [Some(16), Some(7)]);
        let later = start + FRESH / 2;
        reading.take(told("a", &[("j", 1, 40)]), later);
        assert_eq!(rows(later), [Some(41), Some(7)]);
        assert_eq!(rows(start + FRESH), [Some(40), None]);
        reading.take(told("c", &[]), start + FRESH);
        assert_eq!(reading.executors.lock().len(), 2);
    }
}
