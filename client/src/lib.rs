//! Volley: a distributed dataframe engine with an integrated trainer.
//!
//! A [`Session`] is DataFusion's `SessionContext` whose plans run on a cluster, with SQL for
//! training and prediction on top (`CREATE MODEL`, `ML.PREDICT`), and the same in Rust:
//! [`Estimator`] → [`fit`](Estimator::fit) → [`Model`] → [`transform`](Model::transform).
//!
//! # Example
//!
//! A cluster inside the process, a model, and predictions:
//!
//! ```
//! use volley::standalone::{Standalone, StandaloneConfig};
//! use volley::{DataFrameExt, Estimator, Session, SessionConfig};
//!
//! async fn learn() -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
//!     let cluster = Standalone::start(StandaloneConfig::default()).await?;
//!     let models = tempfile::tempdir()?;
//!     let store = url::Url::from_directory_path(models.path()).map_err(|()| "no absolute path")?;
//!     let session = Session::connect(SessionConfig::new(cluster.scheduler(), store)).await?;
//!
//!     let rows = "SELECT column1 AS day, 2.0 * column1 AS sales FROM (VALUES (1), (2), (3), (4))";
//!     let model = Estimator::new("sales")
//!         .label("sales")
//!         .continuous(["day"])
//!         .hidden_units([4])
//!         .epochs(2)
//!         .fit(&session, session.sql(rows).await?)
//!         .await?;
//!     assert_eq!(model.history().len(), 2);
//!
//!     let days = session.sql("SELECT column1 AS day FROM (VALUES (5), (6))").await?;
//!     let predicted = days.predict(&model)?.collect().await?;
//!     cluster.stop().await;
//!     Ok(predicted.iter().map(|batch| batch.num_rows()).sum())
//! }
//!
//! let runtime = tokio::runtime::Runtime::new()?;
//! let rows = runtime.block_on(async { runtime.spawn(learn()).await })?.map_err(|e| e.to_string())?;
//! assert_eq!(rows, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster;
mod config;
mod error;
mod estimator;
mod executors;
mod jobs;
mod model;
mod root_cause;
mod scheduler;
mod session;
mod sql;
#[cfg(feature = "standalone")]
pub mod standalone;
mod system_tables;
#[cfg(test)]
mod testing;
mod training_events;

pub use config::SessionConfig;
pub use datafusion;
pub use error::{Error, Result};
pub use estimator::Estimator;
pub use executors::{Executors, Leaving};
pub use jobs::{Job, JobEvent, JobState, Jobs};
pub use model::{DataFrameExt, Evaluation, FeatureImportance, FeatureInfo, Model};
pub use scheduler::SchedulerAddress;
pub use session::{FileOptions, Output, QueryJob, Session};
pub use sql::{
    Dropout, EarlyStopOptions, LossName, LossOptions, NetworkOptions, OptimizerName,
    OptimizerOptions, OptionValue, QuantileLevels, ScheduleName, SplitMethod, Statement,
    TrainOption, TrainOptions, VocabularyOptions, WarmStart, train_options,
};
pub use system_tables::{Scope, SystemTables};
pub use training_events::{TrainingEvent, TrainingEvents};
pub use volley_proto::access::{Credential, Token};
pub use volley_proto::tls::TlsFiles;
pub use volley_proto::{Error as ProtoError, ModelName, TrainId, spec, store, tables};
