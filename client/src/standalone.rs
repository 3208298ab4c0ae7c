//! A cluster inside this process: one scheduler, some executors, loopback and free ports only.
//!
//! The same scheduler and executors as in a cluster of processes, talking over the same wires; only
//! the process is shared. It has threads of its own, with the stacks that planning and decoding take.
//! It is for trying things out, for examples and for small jobs.

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
pub use volley_executor::custom;
use volley_executor::custom::CustomLayers;
use volley_executor::{Executor, ExecutorConfig, rank_memory};
use volley_proto::limits::STACK;
use volley_proto::scratch::Scratch;
use volley_proto::spec::Device;
use volley_proto::traces::OtlpEndpoint;
use volley_scheduler::{Scheduler, SchedulerConfig, Tokens};

/// Time limit for the parts to stop before they are dropped.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Configuration of an embedded cluster.
#[derive(Debug, Clone)]
pub struct StandaloneConfig {
    /// Number of executors, and so the maximum number of ranks.
    pub executors: usize,
    /// Slots of each executor.
    pub vcores: usize,
    /// Folder of shuffle files; a temporary one, removed at the end, when `None`.
    pub work_dir: Option<PathBuf>,
    /// Device of the ranks.
    pub device: Device,
    /// Memory for queries, of each executor.
    pub memory: ByteSize,
    /// The custom layers that executors have.
    pub layers: CustomLayers,
    /// Collector that traces of jobs are sent to, if any is.
    pub otlp: Option<OtlpEndpoint>,
}

impl Default for StandaloneConfig {
    /// Two executors that share the cores.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            executors: 2,
            vcores: cores.div_ceil(2),
            work_dir: None,
            device: Device::Auto,
            memory: ByteSize::gib(4),
            layers: CustomLayers::new(),
            otlp: None,
        }
    }
}

/// Error of an embedded cluster that did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandaloneError {
    /// No temporary folder could be made.
    #[error("cannot make a temporary work folder")]
    WorkDir(#[source] std::io::Error),
    /// Its threads could not be started.
    #[error("cannot start the threads of the embedded cluster")]
    Threads(#[source] std::io::Error),
    /// The scheduler did not start.
    #[error("the embedded scheduler did not start")]
    Scheduler(#[source] volley_scheduler::Error),
    /// An executor did not start.
    #[error("embedded executor {id} did not start")]
    Executor {
        /// Its id.
        id: String,
        /// Cause.
        #[source]
        source: volley_executor::Error,
    },
}

/// A running embedded cluster; dropping it stops it.
///
/// ```no_run
/// # use volley::standalone::{Standalone, StandaloneConfig, StandaloneError};
/// # async fn start() -> Result<(), StandaloneError> {
/// let config = StandaloneConfig {
///     executors: 3,
///     vcores: 2,
///     ..StandaloneConfig::default()
/// };
/// let cluster = Standalone::start(config).await?;
/// println!("the scheduler listens at {}", cluster.scheduler());
/// cluster.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Standalone {
    parts: Parts,
    // Dropped after what runs on them.
    _threads: Threads,
    _work_dir: Option<Scratch>,
}

impl Standalone {
    /// Starts the cluster; all executors are registered when this returns.
    ///
    /// # Errors
    /// When a part of it does not start.
    pub async fn start(config: StandaloneConfig) -> Result<Self, StandaloneError> {
        let (work_dir, temporary) = match &config.work_dir {
            Some(dir) => (dir.clone(), None),
            None => {
                let dir = Scratch::create("volley-embedded-");
                let dir = dir.map_err(StandaloneError::WorkDir)?;
                (dir.path().to_owned(), Some(dir))
            }
        };
        let threads = Threads::start().map_err(StandaloneError::Threads)?;
        let parts = threads.run(Parts::start(config, work_dir)).await?;
        Ok(Self {
            parts,
            _threads: threads,
            _work_dir: temporary,
        })
    }

    /// Returns the scheduler's address, as `host:port`.
    pub fn scheduler(&self) -> &str {
        &self.parts.scheduler
    }

    /// Stops the executors, which deregister, and then the scheduler.
    pub async fn stop(mut self) {
        self.parts.stop().await;
    }
}

/// Threads of a cluster.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("volley-cluster")
            .thread_stack_size(STACK)
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a future on them, which is dropped with the one that is returned.
    ///
    /// # Panics
    /// When the future does.
    async fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let mut running = JoinSet::new();
        let runtime = self.0.as_ref().expect("it is taken where it is dropped");
        running.spawn_on(future, runtime.handle());
        match running.join_next().await.expect("one was spawned") {
            Ok(output) => output,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Drop for Threads {
    /// Waits for nothing: it may be dropped where nothing may block.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The scheduler and the executors.
#[derive(Debug)]
struct Parts {
    scheduler: String,
    stop_executors: CancellationToken,
    stop_scheduler: CancellationToken,
    executors: JoinSet<()>,
    serving: JoinSet<()>,
}

impl Parts {
    /// Starts them on the threads that poll this.
    async fn start(config: StandaloneConfig, work_dir: PathBuf) -> Result<Self, StandaloneError> {
        let (stop_executors, stop_scheduler) = (CancellationToken::new(), CancellationToken::new());
        let (mut executors, mut serving) = (JoinSet::new(), JoinSet::new());
        let scheduler = SchedulerConfig {
            tokens: Tokens::Embedded,
            otlp: config.otlp.clone(),
            ..SchedulerConfig::default()
        };
        let scheduler = Scheduler::start(scheduler)
            .await
            .map_err(StandaloneError::Scheduler)?;
        let address = scheduler.address().to_owned();
        let stopped = stop_scheduler.clone().cancelled_owned();
        serving.spawn(async move {
            if let Err(error) = scheduler.run_until(stopped).await {
                tracing::error!(%error, "the embedded scheduler ended");
            }
        });
        for number in 0..config.executors {
            let id = format!("embedded-{number}");
            let executor = ExecutorConfig {
                vcores: config.vcores,
                device: config.device,
                memory: config.memory,
                // All are of this host.
                rank_memory: rank_memory(config.executors * config.vcores),
                layers: config.layers.clone(),
                otlp: config.otlp.clone(),
                ..ExecutorConfig::local(&id, &*address, work_dir.join(&id))
            };
            let executor = Executor::start(executor)
                .await
                .map_err(|source| StandaloneError::Executor { id, source })?;
            let stopped = stop_executors.clone().cancelled_owned();
            executors.spawn(async move {
                if let Err(error) = executor.run_until(pending(), stopped).await {
                    tracing::error!(%error, "an embedded executor ended");
                }
            });
        }
        Ok(Self {
            scheduler: address,
            stop_executors,
            stop_scheduler,
            executors,
            serving,
        })
    }

    async fn stop(&mut self) {
        for (stop, part) in [
            (&self.stop_executors, &mut self.executors),
            (&self.stop_scheduler, &mut self.serving),
        ] {
            stop.cancel();
            let all = async { while part.join_next().await.is_some() {} };
            if tokio::time::timeout(STOP_PATIENCE, all).await.is_err() {
                tracing::warn!("parts of the embedded cluster did not stop in {STOP_PATIENCE:?}");
            }
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.stop_executors.cancel();
        self.stop_scheduler.cancel();
    }
}
