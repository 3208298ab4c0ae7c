//! The GPUs on which this executor predicts: found when a query first asks for one.
//!
//! They are those that the executor registers for ranks, as far as its `--device` allows. Executors of a host prefer
//! different ones. Whether a rank has one is known by its [lock](GpuLock); how it is used, by the [`Accelerator`].

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use volley_proto::spec::Device;
use volley_trainer::{Accelerator, GpuLock, ResolvedDevice, gpus, resolve_gpu};

use crate::ExecutorConfig;

/// Accelerator of an executor, if it has one.
#[derive(Debug)]
pub(crate) struct PredictionGpus {
    executor: String,
    device: Device,
    /// Number of tasks that may predict at the same time.
    slots: NonZeroUsize,
    accelerator: OnceLock<Option<Arc<Accelerator>>>,
}

impl PredictionGpus {
    pub(crate) fn new(config: &ExecutorConfig) -> Self {
        Self {
            executor: config.id.clone(),
            device: config.device,
            slots: NonZeroUsize::new(config.vcores).unwrap_or(NonZeroUsize::MIN),
            accelerator: OnceLock::new(),
        }
    }

    /// Returns the accelerator, which the first call starts; `None` if the executor has no GPU to predict on.
    pub(crate) fn accelerator(&self) -> Option<&Arc<Accelerator>> {
        let started = self.accelerator.get_or_init(|| {
            let started = self.start();
            started
                .inspect_err(|reason| tracing::info!(reason, "predictions are computed on the CPU"))
                .ok()
        });
        started.as_ref()
    }

    fn start(&self) -> Result<Arc<Accelerator>, String> {
        let all = match self.device {
            Device::Cpu => return Err("the executor was started with --device cpu".to_owned()),
            _ => gpus()?,
        };
        let allowed = all
            .into_iter()
            .enumerate()
            .filter(|(ordinal, _)| match self.device {
                Device::Cuda(only) => *ordinal == only,
                _ => true,
            });
        let locked = allowed.map(|(_, gpu)| {
            let device = resolve_gpu(gpu.uuid, true).map_err(|error| error.to_string())?;
            Ok((device, GpuLock::of(gpu.uuid)))
        });
        let mut locked = locked.collect::<Result<Vec<_>, String>>()?;
        if locked.is_empty() {
            return Err("the executor has no GPU".to_owned());
        }
        self.prefer(&mut locked);
        let started = Accelerator::start(locked, self.slots);
        started.map(Arc::new).map_err(|error| error.to_string())
    }

    /// Rotates the GPUs by the executor's id, so that executors of a host do not all use the first.
    fn prefer(&self, gpus: &mut [(ResolvedDevice, GpuLock)]) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.executor);
        gpus.rotate_left((hash % gpus.len() as u64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executor_that_is_to_use_its_cpu_predicts_on_it() {
        let mut config = ExecutorConfig::local("a", "localhost:1", "/nowhere".into());
        config.device = Device::Cpu;
        let gpus = PredictionGpus::new(&config);
        assert!(gpus.start().unwrap_err().contains("--device cpu"));
        assert!(gpus.accelerator().is_none());
    }
}
