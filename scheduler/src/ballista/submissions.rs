//! Submissions: those under way, and those of jobs that have not ended, kept for reruns.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ballista_core::serde::protobuf::ExecuteQueryParams;
use parking_lot::Mutex;
use volley_engine::object_stores::{Declared, Stores};
use volley_proto::{Error, Result, nesting};

use super::gateway::{put_settings, settings_of};
use crate::record::Kept;

/// Submissions by job; cheap to clone. The controller says when one is no longer needed.
#[derive(Debug, Clone, Default)]
pub(super) struct Submissions {
    jobs: Arc<Mutex<HashMap<String, ExecuteQueryParams>>>,
    /// Owners of submissions under way, and the ids that these have given them.
    under_way: Arc<Mutex<HashSet<(String, String)>>>,
}

/// Submission under way, until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay {
    operation: (String, String),
    under_way: Arc<Mutex<HashSet<(String, String)>>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.under_way.lock().remove(&self.operation);
    }
}

impl Submissions {
    /// Begins a submission; `None` if it is under way, for its client sends it again when it gets no answer. Without an id,
    /// each is another one.
    pub(super) fn begin(&self, owner: &str, id: &str) -> Option<UnderWay> {
        let operation = (owner.to_owned(), id.to_owned());
        let is_new = self.under_way.lock().insert(operation.clone());
        (is_new || id.is_empty()).then(|| UnderWay {
            operation,
            under_way: Arc::clone(&self.under_way),
        })
    }

    pub(super) fn keep(&self, job: &str, submission: ExecuteQueryParams) {
        self.jobs.lock().insert(job.to_owned(), submission);
    }

    /// Keeps the submission of a job of an earlier scheduler, and registers the options of stores that it refers to. Returns
    /// the submission.
    ///
    /// # Errors
    /// When it cannot be decoded.
    pub(super) fn restore(&self, stores: &Stores, kept: Kept) -> Result<ExecuteQueryParams> {
        const RECORD: &str = "record of jobs";
        let submission = nesting::decode::<ExecuteQueryParams>(&kept.request);
        let mut submission = submission.map_err(|error| Error::malformed(RECORD, error))?;
        let declared = serde_json::from_slice::<Vec<Declared>>(&kept.stores);
        stores.receive(declared.map_err(|error| Error::malformed(RECORD, error))?);
        let job = settings_of(&submission);
        let mut job = job.map_err(|status| Error::malformed(RECORD, status.message()))?;
        job.restored = true;
        put_settings(&mut submission, &job);
        self.keep(&kept.job, submission.clone());
        Ok(submission)
    }

    pub(super) fn of(&self, job: &str) -> Option<ExecuteQueryParams> {
        self.jobs.lock().get(job).cloned()
    }

    /// Releases the submission of a job, and returns it.
    pub(super) fn release(&self, job: &str) -> Option<ExecuteQueryParams> {
        self.jobs.lock().remove(job)
    }
}
