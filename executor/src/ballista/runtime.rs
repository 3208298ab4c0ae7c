//! What tasks share of an executor, and what is each one's own.
//!
//! All tasks share the object stores, the footers of Parquet files (checked against a file's size and
//! time of change) and the folder that is spilled to. A task's memory is its own: its slots' share.

use std::path::Path;
use std::sync::Arc;

use ballista_executor::runtime_cache::SessionRuntimeCache;
use datafusion::error::Result;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;

use volley_proto::object_stores::Stores;

use super::local_files::LocalFiles;

/// Makes the runtimes of an executor's tasks.
pub(super) struct TaskRuntimes {
    shared: Arc<RuntimeEnv>,
    memory_per_slot: usize,
}

impl TaskRuntimes {
    /// For tasks that spill to a folder, as much as its disk takes, and have so many bytes of memory a
    /// slot.
    pub(super) fn new(spill_dir: &Path, memory_per_slot: usize, stores: &Stores) -> Result<Self> {
        let shared = RuntimeEnvBuilder::new()
            .with_temp_file_path(spill_dir)
            .with_max_temp_directory_size(u64::MAX)
            .with_object_store_registry(Arc::new(stores.clone()));
        let shared = shared.build_arc()?;
        let files = ObjectStoreUrl::local_filesystem();
        shared.register_object_store(files.as_ref(), Arc::new(LocalFiles::new()));
        Ok(Self {
            shared,
            memory_per_slot,
        })
    }

    /// What all tasks share.
    pub(super) fn shared(&self) -> Arc<RuntimeEnv> {
        Arc::clone(&self.shared)
    }
}

impl SessionRuntimeCache for TaskRuntimes {
    /// Sessions share what they read: the scheduler plans all in copies of one.
    fn produce_runtime(
        &self,
        _session: &str,
        _: &SessionConfig,
        slots: u32,
    ) -> Result<Arc<RuntimeEnv>> {
        let size = self.memory_per_slot.saturating_mul(slots.max(1) as usize);
        RuntimeEnvBuilder::from_runtime_env(&self.shared)
            .with_memory_pool(Arc::new(FairSpillPool::new(size)))
            .build_arc()
    }
}
