//! Submissions of jobs that have not ended, kept for reruns.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::serde::protobuf::ExecuteQueryParams;
use parking_lot::Mutex;

/// Submissions by job; cheap to clone. The controller says when one is no longer needed.
#[derive(Debug, Clone, Default)]
pub(super) struct Submissions {
    jobs: Arc<Mutex<HashMap<String, ExecuteQueryParams>>>,
}

impl Submissions {
    pub(super) fn keep(&self, job: &str, submission: ExecuteQueryParams) {
        self.jobs.lock().insert(job.to_owned(), submission);
    }

    pub(super) fn of(&self, job: &str) -> Option<ExecuteQueryParams> {
        self.jobs.lock().get(job).cloned()
    }

    pub(super) fn release(&self, job: &str) {
        self.jobs.lock().remove(job);
    }
}
