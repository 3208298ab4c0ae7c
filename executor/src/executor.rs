//! The executor as a running process part: Ballista's executor and the runtimes it offers to plans.

use std::fmt;
use std::sync::Arc;

use volley_proto::runtime::Runtimes;
use volley_trainer::resolve_device;

use crate::ballista::{self, Process};
use crate::models::Models;
use crate::rank::RankHost;
use crate::{Error, ExecutorConfig, Result};

/// An executor that is registered with its scheduler; dropping it stops it.
pub struct Executor {
    config: ExecutorConfig,
    process: Process,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Executor {
    /// Starts an executor; it is registered when this returns.
    ///
    /// # Errors
    /// When the work folder, the device or the address cannot be used, or the scheduler does not
    /// answer or accept it.
    pub async fn start(config: ExecutorConfig) -> Result<Self> {
        let work_dir = |source| Error::WorkDir {
            path: config.work_dir.clone(),
            source,
        };
        std::fs::create_dir_all(&config.work_dir).map_err(work_dir)?;
        let device = resolve_device(config.device).map_err(|source| Error::Device {
            device: config.device.to_string(),
            source,
        })?;
        tracing::info!(executor = %config.id, %device, vcores = config.vcores, "starting");
        let channel = ballista::connect(&config).await?;
        let runtimes = Runtimes {
            ranks: Arc::new(RankHost::new(&config, channel.clone())),
            models: Arc::new(Models::default()),
        };
        let process = ballista::start(&config, channel, runtimes).await?;
        Ok(Self { config, process })
    }

    /// Runs until told to stop, then takes leave of the scheduler.
    ///
    /// # Errors
    /// When the scheduler is lost before that.
    pub async fn run_until(self, told: impl Future<Output = ()>) -> Result<()> {
        self.process.run_until(told).await
    }
}
