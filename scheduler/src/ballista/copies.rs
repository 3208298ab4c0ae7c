//! Removal of the copies of jobs' rows from shuffle stores, when the jobs have ended.
//!
//! Executors write the copies, below a folder of the job. They are removed in the background: at once, and again when tasks
//! that were cancelled have ended, since these may have written until then. Copies that are left when the scheduler ends are
//! removed by the next one if it runs the job again: a job keeps its folder.

use std::time::Duration;

use ballista_core::serde::protobuf::ExecuteQueryParams;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use volley_engine::object_stores::{ShuffleStore, Stores};
use volley_proto::failure::chain;

use super::gateway::settings_of;

/// Time limit for one removal.
const REMOVAL: Duration = Duration::from_secs(300);
/// Time after the first removal in which cancelled tasks have ended.
const LATE: Duration = Duration::from_secs(60);

/// Copies of jobs; dropping this stops their removal.
#[derive(Debug)]
pub(super) struct Copies {
    stores: Stores,
    removals: Mutex<JoinSet<()>>,
}

impl Copies {
    pub(super) fn new(stores: Stores) -> Self {
        Self {
            stores,
            removals: Mutex::default(),
        }
    }

    /// Begins to remove the copies of a job that has ended, if it had a store.
    pub(super) fn remove(&self, job: &str, submission: &ExecuteQueryParams) {
        // The settings were read when the job was submitted.
        let settings = settings_of(submission).ok();
        let Some(url) = settings.and_then(|settings| settings.shuffle_store) else {
            return;
        };
        let store = ShuffleStore::new(&self.stores, &url, job);
        let job = job.to_owned();
        let mut removals = self.removals.lock();
        while removals.try_join_next().is_some() {}
        removals.spawn(async move {
            remove(&store, &job).await;
            sleep(LATE).await;
            remove(&store, &job).await;
        });
    }
}

/// Removes the copies of a job; failures go to the log.
async fn remove(store: &ShuffleStore, job: &str) {
    let reason = match timeout(REMOVAL, store.remove()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => chain(&error),
        Err(_) => format!("it takes longer than {REMOVAL:?}"),
    };
    let url = store.url().as_str();
    tracing::warn!(
        job,
        store = url,
        reason,
        "copies of a job's rows are not removed"
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use url::Url;
    use volley_engine::settings::JobSettings;

    use super::super::gateway::put_settings;
    use super::*;

    #[tokio::test]
    async fn the_copies_of_a_job_are_removed_when_it_has_ended() {
        let shared = tempfile::tempdir().unwrap();
        let url = Url::from_directory_path(shared.path()).unwrap();
        let copies = Copies::new(Stores::default());
        let here = tempfile::NamedTempFile::new().unwrap();
        let name = Path::new("a/1/0/data.arrow");
        for job in ["j", "k"] {
            let store = ShuffleStore::new(&copies.stores, &url, job);
            store.upload(here.path(), name).await.unwrap();
        }
        let is_there = |job: &str| shared.path().join("volley-shuffle").join(job).exists();
        let mut submission = ExecuteQueryParams::default();
        copies.remove("k", &submission);
        assert!(copies.removals.lock().is_empty(), "it has no store");
        let settings = JobSettings {
            shuffle_store: Some(url),
            ..JobSettings::default()
        };
        put_settings(&mut submission, &settings);
        copies.remove("j", &submission);
        let removed = async {
            while is_there("j") {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(REMOVAL, removed).await.unwrap();
        assert!(is_there("k"));
    }
}
