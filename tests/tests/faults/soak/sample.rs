//! Resources that the cluster holds at a time: memory and descriptors of its processes, and files.

use volley_tests::Cluster;

use crate::growth::{FILES, Held, files, held};

/// Files of the scheduler's record, which is compacted after 256 changes.
const RECORD_FILES: usize = 2 * 256 + FILES;

/// What is held at a time, or the least over some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    scheduler: Held,
    /// Of the executor that stays.
    executor: Held,
    /// Files of executors' work folders.
    work_files: usize,
    record_files: usize,
    store_files: usize,
}

impl Sample {
    /// Measures a cluster in which these executors have work folders; the first one stays.
    pub(super) fn of(cluster: &mut Cluster, present: &[usize]) -> Self {
        let work_files = present.iter().map(|one| files(&cluster.work_dir(*one)));
        Self {
            work_files: work_files.sum(),
            record_files: files(&cluster.record()),
            store_files: files(&cluster.store()),
            scheduler: held(cluster.scheduler()),
            executor: held(&cluster.executors()[present[0]]),
        }
    }

    /// Returns the smaller of each resource.
    pub(super) fn least(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or(self);
        Self {
            scheduler: self.scheduler.least(other.scheduler),
            executor: self.executor.least(other.executor),
            work_files: self.work_files.min(other.work_files),
            record_files: self.record_files.min(other.record_files),
            store_files: self.store_files.min(other.store_files),
        }
    }

    /// Requires that nothing has grown since the first quarter of a run.
    pub(super) fn is_flat_since(self, before: Self) {
        let (now, then) = ("the run", "a quarter");
        let held = [
            ("the scheduler", self.scheduler, before.scheduler),
            ("the executor that stays", self.executor, before.executor),
        ];
        for (name, after, before) in held {
            after.is_flat(name, now, before, then);
        }
        let folders = [
            ("work folders", self.work_files, before.work_files),
            ("the model store", self.store_files, before.store_files),
        ];
        for (name, after, before) in folders {
            let most = 2 * before + FILES;
            assert!(after <= most, "{name}: {after} files, and {before} before");
        }
        assert!(self.record_files <= RECORD_FILES, "{self:?}");
    }
}
