//! Sessions with Volley's rules, for tests of mends.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

use crate::with_rules;

/// Creates a session of two partitions with these tables.
pub(super) async fn session(config: SessionConfig, tables: &[&str]) -> SessionContext {
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config.with_target_partitions(2))
        .build();
    let session = SessionContext::new_with_state(with_rules(state).build());
    for create in tables {
        let created = session.sql(create).await.unwrap();
        created.collect().await.unwrap();
    }
    session
}

/// Returns the first character of each row of a query, in order.
pub(super) async fn column(session: &SessionContext, query: &str) -> String {
    let rows = session.sql(query).await.unwrap().collect().await.unwrap();
    let rows = pretty_format_batches(&rows).unwrap().to_string();
    let lines = rows.lines().filter_map(|row| row.strip_prefix("| "));
    lines.skip(1).filter_map(|row| row.get(..1)).collect()
}

/// Creates a session of three partitions with the numbers from 1 to 60 in a file, in no known order.
pub(super) async fn numbers() -> (SessionContext, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = SessionConfig::new().with_target_partitions(3);
    let state = SessionStateBuilder::new_with_default_features().with_config(config);
    let session = SessionContext::new_with_state(with_rules(state.build()).build());
    let at = dir.path().display();
    for statement in [
        format!(
            "COPY (SELECT value AS v, CASE WHEN value % 9 = 0 THEN value END AS x, value % 2 AS s \
             FROM range(1, 61)) TO '{at}/t/1.csv'"
        ),
        format!(
            "CREATE EXTERNAL TABLE t (v BIGINT, x BIGINT, s INT) STORED AS CSV LOCATION '{at}/t/'"
        ),
    ] {
        let done = session.sql(&statement).await.unwrap();
        done.collect().await.unwrap();
    }
    (session, dir)
}
