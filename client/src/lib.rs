//! Volley: a distributed dataframe engine with an integrated trainer.
//!
//! Five types do most of the work:
//!
//! | | |
//! |---|---|
//! | [`Standalone`](standalone::Standalone) | cluster inside the process, for tests, examples and small jobs |
//! | [`Session`] | connection to a cluster and a model store: DataFusion's `SessionContext` whose plans run on the cluster, with SQL for models (`CREATE MODEL`, `ML.PREDICT`) |
//! | [`DataFrame`](datafusion::dataframe::DataFrame) | rows of files, of SQL or of other frames; the cluster computes them when they are read |
//! | [`Estimator`] | builder of a training: `CREATE MODEL` in Rust |
//! | [`Model`] | published model: predicts, is evaluated and explained |
//!
//! [`Jobs`] manages jobs of all clients, [`SystemTables`] reads the state of the cluster, and [`Error`] tells what went
//! wrong. The example `guide` has a module for each topic.
//!
//! # Example
//!
//! ```
//! use volley::datafusion::prelude::*;
//! use volley::standalone::{Standalone, StandaloneConfig};
//! use volley::store::ModelStore;
//! use volley::{DataFrameExt, Estimator, FileOptions, Session, SessionConfig};
//!
//! async fn learn() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     // Standalone: a scheduler and two executors.
//!     let cluster = Standalone::start(StandaloneConfig::default()).await?;
//!
//!     // Session: its model store is a folder, or a URL of an object store.
//!     let folder = tempfile::tempdir()?;
//!     let models = ModelStore::directory_url(&folder.path().join("models"))?;
//!     let session = Session::connect(SessionConfig::new(cluster.scheduler(), models)).await?;
//!
//!     // DataFrame: from files, from `session.sql("SELECT …")`, or from another frame.
//!     let file = folder.path().join("sales.csv");
//!     std::fs::write(&file, "day,sales\n1,2\n2,4\n3,6\n4,8\n5,\n")?;
//!     let days = session.read_csv(&file, FileOptions::new()).await?;
//!     let sold = days.clone().filter(col("sales").is_not_null())?;
//!     assert_eq!(sold.clone().count().await?, 4);
//!
//!     // Estimator: every option has a default.
//!     let model = Estimator::new("sales")
//!         .label("sales")
//!         .continuous(["day"])
//!         .hidden_units([4])
//!         .epochs(2)
//!         .split_none()
//!         .fit(&session, sold)
//!         .await?;
//!     assert_eq!(model.history().len(), 2);
//!
//!     // Model: predictions are a column of a frame.
//!     let predicted = days.predict(&model)?.select_columns(&["day", "predicted_sales"])?;
//!     assert_eq!(predicted.count().await?, 5);
//!     cluster.stop().await;
//!     Ok(())
//! }
//! # let runtime = tokio::runtime::Runtime::new()?;
//! # runtime.block_on(async { runtime.spawn(learn()).await })?.map_err(|e| e.to_string())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The programs of the page about Rust, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rust.md")]
mod rust_page {}

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
    Dropout, EarlyStopOptions, Excerpt, LossName, LossOptions, NetworkOptions, OptimizerName,
    OptimizerOptions, OptionValue, QuantileLevels, ScheduleName, SplitMethod, Statement,
    TrainOption, TrainOptions, VocabularyOptions, WarmStart, train_options,
};
pub use system_tables::{Scope, SystemTables};
pub use training_events::{TrainingEvent, TrainingEvents};
pub use volley_proto::access::{Credential, Token};
pub use volley_proto::tls::TlsFiles;
pub use volley_proto::traces::OtlpEndpoint;
pub use volley_proto::{Error as ProtoError, ModelName, TrainId, spec, store, tables};
