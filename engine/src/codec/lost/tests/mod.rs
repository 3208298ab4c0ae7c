//! Tests that send every operator and expression for which the engine has a message: nothing that they show may get
//! lost.
//!
//! With a new operator or expression in the engine, these tests do not compile; with a new field of an operator, they
//! fail.

mod expressions;
mod operators;
mod scans;

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use prost::Message;
use tempfile::TempDir;

use super::*;
use crate::VolleyPhysicalCodec;

/// Creates a session with settings and tables: `t` of two Parquet files, `c` of CSV, `j` of JSON, `a` of Arrow, `o` of
/// Parquet ordered by `k`, `h` of folders.
async fn session(settings: &[(&str, &str)]) -> (SessionContext, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = SessionConfig::new()
        .with_target_partitions(4)
        // Not every dialect has lambdas.
        .set_str("datafusion.sql_parser.dialect", "duckdb")
        // Clients turn these into joins: see `single_value`.
        .set_bool(
            "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery",
            false,
        );
    for (key, value) in settings {
        config = config.set_str(key, value);
    }
    let session = SessionContext::new_with_config(config);
    let rows = "(SELECT value AS k, value % 3 AS v, 'x' || value AS s, [value, 2] AS l, \
                {'m': value} AS m, value > 5 AS b, CAST(value AS DOUBLE) AS f, \
                CAST(value AS DECIMAL(9, 2)) AS d, DATE '2024-01-01' AS day FROM range(0, 10))";
    let flat = format!("(SELECT k, v, s FROM {rows})");
    for statement in [
        format!("COPY {rows} TO '{{d}}/t/1.parquet' STORED AS PARQUET"),
        format!("COPY {rows} TO '{{d}}/t/2.parquet' STORED AS PARQUET"),
        format!("COPY {flat} TO '{{d}}/c/1.csv.gz' STORED AS CSV OPTIONS ('format.compression' 'gzip', 'format.delimiter' ';')"),
        format!("COPY {flat} TO '{{d}}/j/1.json.gz' STORED AS JSON OPTIONS ('format.compression' 'gzip')"),
        format!("COPY {flat} TO '{{d}}/a/1.arrow' STORED AS ARROW"),
        format!("COPY {flat} TO '{{d}}/h/' STORED AS PARQUET PARTITIONED BY (v)"),
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{d}/t/'".to_owned(),
        "CREATE EXTERNAL TABLE o (k BIGINT, v BIGINT) STORED AS PARQUET WITH ORDER (k ASC) LOCATION '{d}/t/'".to_owned(),
        "CREATE EXTERNAL TABLE c (k BIGINT, v BIGINT, s VARCHAR) STORED AS CSV LOCATION '{d}/c/' OPTIONS (\
         'format.compression' 'gzip', 'format.delimiter' ';', 'format.quote' '~', 'format.escape' '^', \
         'format.comment' '#', 'format.newlines_in_values' 'true', 'format.truncated_rows' 'true', \
         'format.null_regex' 'x+')".to_owned(),
        "CREATE EXTERNAL TABLE n (k BIGINT, v BIGINT, s VARCHAR) STORED AS CSV LOCATION '{d}/c/' OPTIONS (\
         'format.has_header' 'false', 'format.terminator' '|')".to_owned(),
        "CREATE EXTERNAL TABLE j STORED AS JSON LOCATION '{d}/j/' OPTIONS ('format.compression' 'gzip')".to_owned(),
        "CREATE EXTERNAL TABLE a STORED AS ARROW LOCATION '{d}/a/'".to_owned(),
        "CREATE EXTERNAL TABLE h STORED AS PARQUET PARTITIONED BY (v) LOCATION '{d}/h/'".to_owned(),
    ] {
        let statement = statement.replace("{d}", dir.path().to_str().unwrap());
        let frame = session.sql(&statement).await.unwrap();
        frame.collect().await.unwrap();
    }
    (session, dir)
}

async fn plan(session: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = session.sql(sql).await;
    let frame = frame.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let plan = frame.create_physical_plan().await;
    plan.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// Returns the plan's message, and the plan as it is decoded.
fn sent(
    plan: &Arc<dyn ExecutionPlan>,
    session: &SessionContext,
) -> (PhysicalPlanNode, Arc<dyn ExecutionPlan>) {
    let codec = VolleyPhysicalCodec::default();
    let message = Converter.execution_plan_to_proto(plan, &codec);
    let message = message.unwrap_or_else(|e| panic!("{}: {e}", plan.name()));
    let bytes = message.encode_to_vec();
    let read = PhysicalPlanNode::decode(bytes.as_slice()).unwrap();
    let task = session.task_ctx();
    let context = PhysicalPlanDecodeContext::new(&task, &codec);
    let arrived = Converter.proto_to_execution_plan(&read, &context);
    (
        message,
        arrived.unwrap_or_else(|e| panic!("{}: {e}", plan.name())),
    )
}
