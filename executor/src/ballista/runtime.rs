//! Runtime environments of tasks: the parts that all tasks of an executor share, and each task's own.
//!
//! All tasks share the object stores, the footers of Parquet files (checked against a file's size and modification
//! time) and the spill folder. Each task has its own memory: its slots' share, or less where the role of its job's
//! owner limits it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ballista_executor::runtime_cache::SessionRuntimeCache;
use bytesize::ByteSize;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit as MemoryLimitOfPool, MemoryPool, MemoryReservation,
};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::SessionConfig;
use volley_engine::object_stores::Stores;
use volley_engine::runtime::MORE_PARTITIONS;
use volley_engine::settings::{JobSettings, MemoryLimit};

use super::local_files::LocalFiles;

/// Factory of the runtime environments of an executor's tasks.
pub(super) struct TaskRuntimes {
    shared: Arc<RuntimeEnv>,
    memory_per_slot: usize,
}

impl TaskRuntimes {
    /// Creates the factory, for tasks that spill to a folder without limit and have `memory_per_slot` bytes of
    /// memory per slot.
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

    /// Returns the environment that all tasks share.
    pub(super) fn shared(&self) -> Arc<RuntimeEnv> {
        Arc::clone(&self.shared)
    }
}

impl SessionRuntimeCache for TaskRuntimes {
    /// Returns a runtime with the shared stores and caches in every session: the scheduler plans all jobs in copies
    /// of one session.
    fn produce_runtime(
        &self,
        _session: &str,
        config: &SessionConfig,
        slots: u32,
    ) -> Result<Arc<RuntimeEnv>> {
        let slots = slots.max(1) as usize;
        let job = config.options().extensions.get::<JobSettings>();
        let limit = job.and_then(|job| job.memory.clone());
        let limit = limit.filter(|limit| limit.per_slot < self.memory_per_slot as u64);
        let share = limit.as_ref().map(|limit| limit.per_slot);
        let share = share.and_then(|share| usize::try_from(share).ok());
        let per_slot = share.unwrap_or(self.memory_per_slot);
        let pool: Arc<dyn MemoryPool> = Arc::new(TaskPool {
            pool: FairSpillPool::new(per_slot.saturating_mul(slots)),
            per_slot: per_slot as u64,
            limit,
        });
        RuntimeEnvBuilder::from_runtime_env(&self.shared)
            .with_memory_pool(pool)
            .build_arc()
    }
}

/// Memory pool of a task; its errors say what limits it.
#[derive(Debug)]
struct TaskPool {
    pool: FairSpillPool,
    /// Bytes for each slot of the task.
    per_slot: u64,
    /// Limit of the role of the job's owner, if that is less than the slots' share.
    limit: Option<MemoryLimit>,
}

/// Checks whether a sort reserves the memory of its merge, which it does before it has read a row.
fn is_merge_of_a_sort(reservation: &MemoryReservation) -> bool {
    reservation
        .consumer()
        .name()
        .starts_with("ExternalSorterMerge")
}

impl TaskPool {
    /// Describes what a task may hold, and what limits it.
    fn allowance(&self) -> String {
        let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let share = match &self.limit {
            Some(limit) => {
                let (part, name) = match limit.of_owner {
                    true => ("all", "memory"),
                    false => ("its share", "query_memory"),
                };
                let (bytes, role) = (size(limit.bytes), &limit.role);
                format!("{part} of {bytes}, the limit {name} of the role {role}")
            }
            None => "its share of the executor's --memory".to_owned(),
        };
        let per_slot = size(self.per_slot);
        format!("a task of this query may hold {per_slot} for each of its slots, which is {share}")
    }

    /// Returns the error of a sort that needs more for its merge than the task may hold: more partitions do not help.
    fn too_little_to_sort(&self, needed: usize) -> String {
        format!(
            "a sort needs {} at least beside the rest of its task; {}: raise that, or lower \
             datafusion.execution.sort_spill_reservation_bytes",
            ByteSize(needed as u64).display().iec(),
            self.allowance()
        )
    }
}

impl fmt::Display for TaskPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

impl MemoryPool for TaskPool {
    fn name(&self) -> &str {
        self.pool.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.pool.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.pool.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.pool.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.pool.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let grown = self.pool.try_grow(reservation, additional);
        grown.map_err(|error| match error {
            // The error's class stays: operators that can spill then do so.
            DataFusionError::ResourcesExhausted(_)
                if reservation.size() == 0 && is_merge_of_a_sort(reservation) =>
            {
                DataFusionError::ResourcesExhausted(self.too_little_to_sort(additional))
            }
            DataFusionError::ResourcesExhausted(reason) => DataFusionError::ResourcesExhausted(
                format!("{reason}; {}{MORE_PARTITIONS}", self.allowance()),
            ),
            other => other,
        })
    }

    fn reserved(&self) -> usize {
        self.pool.reserved()
    }

    fn memory_limit(&self) -> MemoryLimitOfPool {
        self.pool.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sort_without_memory_to_merge_is_told_what_helps() {
        let pool: Arc<dyn MemoryPool> = Arc::new(TaskPool {
            pool: FairSpillPool::new(1 << 20),
            per_slot: 1 << 20,
            limit: None,
        });
        let grown = |name: &str| {
            let reservation = MemoryConsumer::new(name).register(&pool);
            reservation.try_grow(10 << 20).unwrap_err().to_string()
        };
        let merge = grown("ExternalSorterMerge[0]");
        assert!(
            merge.contains("a sort needs 10.0 MiB at least")
                && merge.contains("sort_spill_reservation_bytes")
                && !merge.contains(MORE_PARTITIONS),
            "{merge}"
        );
        let other = grown("HashJoinInput");
        assert!(
            other.contains("may hold 1.0 MiB for each of its slots")
                && other.ends_with(MORE_PARTITIONS),
            "{other}"
        );
    }
}
