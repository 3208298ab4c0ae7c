//! A cluster of its own for a test: real scheduler and executors inside the process, on free ports.

use volley::datafusion::prelude::*;
use volley::standalone::{Standalone, StandaloneConfig};
use volley::store::ModelStore;
use volley::{Session, SessionConfig};

use crate::Result;

pub(crate) async fn run() -> Result {
    with_cluster(async |session| {
        let sum = session
            .sql("SELECT sum(value) AS n FROM range(101)")
            .await?;
        assert_eq!(sum.filter(col("n").eq(lit(5050)))?.count().await?, 1);
        Ok(())
    })
    .await
}

/// Runs a test with a cluster of two executors of one slot each, and an empty model store.
///
/// Nothing is left behind: the temporary folders are removed, and dropping the cluster stops it when the test fails.
async fn with_cluster(test: impl AsyncFnOnce(&Session) -> Result) -> Result {
    let config = StandaloneConfig {
        executors: 2,
        vcores: 1,
        ..StandaloneConfig::default()
    };
    let cluster = Standalone::start(config).await?;
    let folder = tempfile::tempdir()?;
    let models = ModelStore::directory_url(folder.path())?;
    let session = Session::connect(SessionConfig::new(cluster.scheduler(), models)).await?;
    test(&session).await?;
    cluster.stop().await;
    Ok(())
}
