//! Limits on a job by its owner's role: pure decisions when time passes and when a job has succeeded.
//!
//! Limits are known when a job is submitted, and hold for all of its attempts together. Other code checks the content
//! of requests; [quotas](crate::control::quotas) are kept where tasks are placed.

use std::time::Duration;

use humantime::format_duration;
use serde::{Deserialize, Serialize};
use volley_proto::access::Role;

use crate::control::quotas::{GpuQuota, MemoryQuota};

/// Limits of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobLimits {
    /// Role that sets the limits.
    pub(crate) role: Role,
    /// Longest time from submission to end.
    pub(crate) time: Option<Duration>,
    /// Most rows of the result.
    pub(crate) rows: Option<u64>,
    /// Most jobs of its owner that have not ended, when another one is submitted.
    pub(crate) jobs: Option<u64>,
    /// Limits on the memory of its owner's queries.
    pub(crate) memory: MemoryQuota,
    /// Limit on the GPU hours of its owner's trainings.
    pub(crate) gpus: Option<GpuQuota>,
}

impl JobLimits {
    /// Returns limits of a role that limit nothing.
    pub(crate) const fn none(role: Role) -> Self {
        Self {
            role,
            time: None,
            rows: None,
            jobs: None,
            memory: MemoryQuota {
                limit: None,
                slot: None,
            },
            gpus: None,
        }
    }

    /// Returns the error of a job that has run for too long, if it has.
    pub(super) fn overrun(&self, ran: Duration) -> Option<String> {
        let most = self.time.filter(|most| ran >= *most)?;
        Some(format!(
            "it has run for {}, the limit query_time of the role {}",
            format_duration(most),
            self.role
        ))
    }

    /// Returns the error of a result with too many rows, or with rows that were not counted.
    pub(super) fn exceeded(&self, rows: Option<u64>) -> Option<String> {
        let most = self.rows?;
        let found = match rows {
            Some(rows) if rows <= most => return None,
            Some(rows) => rows.to_string(),
            None => "an unknown number of".to_owned(),
        };
        // Only some roles may write.
        let or_write = match self.role {
            Role::Run | Role::Administer => ", or write them (COPY)",
            Role::Read | Role::Executor => "",
        };
        Some(format!(
            "its result has {found} rows, and the limit result_rows of the role {} is {most}: ask for fewer \
             (LIMIT){or_write}",
            self.role
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: JobLimits = JobLimits {
        time: Some(Duration::from_secs(600)),
        rows: Some(1000),
        ..JobLimits::none(Role::Read)
    };

    #[test]
    fn what_is_exceeded_is_named_with_its_role() {
        assert_eq!(LIMITS.overrun(Duration::from_secs(599)), None);
        let said = LIMITS.overrun(Duration::from_secs(600)).unwrap();
        let due = "it has run for 10m, the limit query_time of the role read";
        assert_eq!(said, due);
        assert_eq!(LIMITS.exceeded(Some(1000)), None);
        let said = LIMITS.exceeded(Some(1001)).unwrap();
        let due = "its result has 1001 rows, and the limit result_rows of the role read is 1000";
        assert!(said.starts_with(due) && !said.contains("COPY"), "{said}");
        let run = JobLimits {
            role: Role::Run,
            ..LIMITS
        };
        let said = run.exceeded(Some(1001)).unwrap();
        assert!(said.ends_with("or write them (COPY)"), "{said}");
        assert!(LIMITS.exceeded(None).is_some());
        let none = JobLimits {
            time: None,
            rows: None,
            ..LIMITS
        };
        assert_eq!(none.overrun(Duration::MAX), None);
        assert_eq!(none.exceeded(Some(u64::MAX)).or(none.exceeded(None)), None);
    }
}
