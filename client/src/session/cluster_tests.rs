//! The session against a cluster in this process.

use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::util::pretty::pretty_format_batches;
use futures::StreamExt;
use tempfile::TempDir;
use volley_proto::store::ModelStore;

use super::Session;
use crate::standalone::{Standalone, StandaloneConfig};
use crate::testing::{manifest, sales_file};
use crate::{Error, Result, SessionConfig};

/// Runs a test with a cluster of two executors, a store with the model `known`, and `sales`.
fn with_cluster(test: impl AsyncFnOnce(&Session, &TempDir)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_stack_size(16 << 20)
        .enable_all()
        .build()
        .unwrap();
    let body = async {
        let cluster = Standalone::start(StandaloneConfig {
            vcores: 2,
            ..Default::default()
        });
        let cluster = cluster.await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let url = ModelStore::directory_url(&directory.path().join("store")).unwrap();
        let config = SessionConfig::new(cluster.scheduler(), url);
        let session = Session::connect(config).await.unwrap();
        session
            .store()
            .publish(manifest("known"), Vec::new())
            .await
            .unwrap();
        text(&session, &sales_file(&directory)).await.unwrap();
        test(&session, &directory).await;
        cluster.stop().await;
    };
    std::thread::scope(|scope| {
        let run = || runtime.block_on(body);
        std::thread::Builder::new()
            .stack_size(16 << 20)
            .spawn_scoped(scope, run)
            .unwrap();
    });
}

async fn text(session: &Session, sql: &str) -> Result<String> {
    let statement = session.parse(sql)?.remove(0);
    let batches = session.run(statement).await?.collect().await?;
    Ok(pretty_format_batches(&batches).unwrap().to_string())
}

#[test]
fn runs_datafusions_statements() {
    with_cluster(async |session, _| {
        for (sql, expected) in [
            ("SELECT sum(\"Sales\") AS s FROM sales", "150.0"),
            ("SELECT 1 + 1 AS two", "2"),
            ("SHOW TABLES", "sales"),
            ("DESCRIBE sales", "Distance"),
            ("EXPLAIN SELECT count(*) FROM sales", "TableScan: sales"),
            ("EXPLAIN ANALYZE SELECT count(*) FROM sales", "output_rows"),
        ] {
            let shown = text(session, sql)
                .await
                .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            assert!(shown.contains(expected), "{sql}: {shown}");
        }
    });
}

#[test]
fn runs_functions_of_models() {
    with_cluster(async |session, _| {
        let info = "SELECT iteration, eval_mae FROM ML.TRAINING_INFO(MODEL known) WHERE published";
        let batches = session.sql(info).await.unwrap().collect().await.unwrap();
        let iterations: Vec<_> = batches
            .iter()
            .flat_map(|batch| {
                batch
                    .column(0)
                    .as_primitive::<Int64Type>()
                    .values()
                    .to_vec()
            })
            .collect();
        assert_eq!(iterations, [2]);
        let explain = "EXPLAIN CREATE MODEL m OPTIONS (input_label_cols = ['Sales']) AS \
                       SELECT \"Store\", \"Sales\" FROM sales";
        let shown = text(session, explain).await.unwrap();
        assert!(shown.contains("Train: model=m"), "{shown}");
        // The model has no weights: that is said, and said once.
        let predict = "SELECT * FROM ML.PREDICT(MODEL known, TABLE sales)";
        let error = text(session, predict).await.unwrap_err();
        let Error::Engine { cause, .. } = error else {
            panic!("{error:?}")
        };
        assert!(
            !cause.contains("Job ") && !cause.contains("DataFusionError"),
            "{cause}"
        );
    });
}

#[test]
fn rows_dropped_early_cancel_their_job() {
    with_cluster(async |session, _| {
        let endless = "SELECT count(*) FROM generate_series(1, 1000000000000) a";
        let statement = session.parse(endless).unwrap().remove(0);
        let mut rows = session.run(statement).await.unwrap().rows;
        let first = tokio::time::timeout(Duration::from_millis(500), rows.next()).await;
        assert!(first.is_err(), "{first:?}");
        drop(rows);
        assert!(session.settle(Duration::from_secs(10)).await);
        // Its slots are free again.
        let next = text(session, "SELECT count(*) FROM sales");
        tokio::time::timeout(Duration::from_secs(60), next)
            .await
            .unwrap()
            .unwrap();
    });
}
