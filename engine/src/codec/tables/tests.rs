//! Plans that are sent and read again.

use std::fs;
use std::path::Path;

use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{LogicalPlan, TableScan};
use datafusion::prelude::SessionContext;
use datafusion_proto::logical_plan::AsLogicalPlan;
use datafusion_proto::protobuf::LogicalPlanNode;

use super::*;
use crate::VolleyLogicalCodec;

/// Returns a plan as it arrives.
async fn sent(session: &SessionContext, plan: LogicalPlan) -> LogicalPlan {
    let codec = VolleyLogicalCodec::default();
    let plan = sendable(plan).await.unwrap();
    let node = LogicalPlanNode::try_from_logical_plan(&plan, &codec).unwrap();
    node.try_into_logical_plan(&session.task_ctx(), &codec)
        .unwrap()
}

fn session() -> SessionContext {
    let session = SessionContext::new();
    for function in table_functions() {
        session.register_udtf(function.name(), Arc::clone(function.function()));
    }
    session
}

async fn optimized(session: &SessionContext, sql: &str) -> LogicalPlan {
    let frame = session.sql(sql).await.unwrap();
    frame.into_optimized_plan().unwrap()
}

/// Returns the rows of a query in one process, and those of its plan after it was sent.
async fn both(session: &SessionContext, sql: &str) -> (String, String) {
    let plan = optimized(session, sql).await;
    let there = sent(session, plan.clone()).await;
    let mut shown = Vec::new();
    for plan in [plan, there] {
        let rows = session.execute_logical_plan(plan).await.unwrap();
        shown.push(
            pretty_format_batches(&rows.collect().await.unwrap())
                .unwrap()
                .to_string(),
        );
    }
    let there = shown.pop().unwrap();
    (shown.pop().unwrap(), there)
}

#[tokio::test]
async fn literals_of_half_precision_stay_so() {
    let session = session();
    let sql = "SELECT arrow_cast(1.5, 'Float16') AS h, k \
               FROM (VALUES (1, arrow_cast(0.1, 'Float16'))) t (k, h) WHERE h < arrow_cast(2, 'Float16')";
    let plan = optimized(&session, sql).await;
    let there = sent(&session, plan.clone()).await;
    assert_eq!(plan.schema(), there.schema());
    let (here, there) = both(&session, sql).await;
    assert_eq!(here, there);
}

fn files(dir: &Path) {
    for (name, text) in [
        ("p1.csv", "1;a|2;b|"),
        ("p2.csv", "3;c|"),
        ("q1.csv", "4;d|"),
        ("h/y=01/a.csv", "5;e|"),
        ("h/y=2/a.csv", "6;f|"),
    ] {
        let file = dir.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

#[tokio::test]
async fn a_table_of_files_arrives_whole() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    let session = session();
    let create = format!(
        "CREATE EXTERNAL TABLE t (k BIGINT, v VARCHAR, PRIMARY KEY (k)) STORED AS CSV \
         WITH ORDER (k ASC) LOCATION '{}/p*.csv' \
         OPTIONS ('format.has_header' 'false', 'format.delimiter' ';', 'format.terminator' '|', \
         'format.null_regex' 'x+', 'format.compression' 'uncompressed')",
        dir.path().display()
    );
    session.sql(&create).await.unwrap();
    let plan = optimized(&session, "SELECT k, v FROM t").await;
    let (LogicalPlan::TableScan(before), LogicalPlan::TableScan(after)) =
        (&plan, &sent(&session, plan.clone()).await)
    else {
        panic!("{plan}")
    };
    let before = source_as_provider(&before.source).unwrap();
    let before = before.downcast_ref::<ListingTable>().unwrap();
    let after = source_as_provider(&after.source).unwrap();
    let after = after.downcast_ref::<Files>().unwrap().listing();
    let places = |table: &ListingTable| {
        let paths = table.table_paths().iter();
        paths.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(places(before), places(after));
    let glob = after.table_paths()[0].get_glob().as_ref().unwrap();
    assert_eq!(glob.as_str(), "p*.csv");
    let (of, to) = (before.options(), after.options());
    assert_eq!(of.file_sort_order, to.file_sort_order);
    assert_eq!(of.file_extension, to.file_extension);
    assert!(after.constraints().is_none_or(|keys| keys.is_empty()));
    assert_eq!(before.schema(), after.schema());
    let csv = to.format.downcast_ref::<CsvFormat>().unwrap().options();
    assert_eq!((csv.terminator, csv.delimiter), (Some(b'|'), b';'));
    assert_eq!(csv.null_regex.as_deref(), Some("x+"));
}

#[tokio::test]
async fn rows_are_the_same_after_the_way() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    let session = session();
    for create in [
        "CREATE EXTERNAL TABLE p (k BIGINT, v VARCHAR) STORED AS CSV LOCATION '{d}/p*.csv' \
         OPTIONS ('format.has_header' 'false', 'format.delimiter' ';', 'format.terminator' '|')",
        "CREATE EXTERNAL TABLE y (k BIGINT, v VARCHAR, y INT) STORED AS CSV PARTITIONED BY (y) \
         LOCATION '{d}/h/' OPTIONS ('format.has_header' 'false', 'format.delimiter' ';', \
         'format.terminator' '|')",
        "CREATE TABLE \"P.csv\" AS SELECT * FROM p",
        "CREATE TABLE m AS VALUES (1, 'a', [1, 2]), (2, NULL, [])",
        "CREATE TABLE e (k BIGINT, v VARCHAR)",
    ] {
        let create = create.replace("{d}", dir.path().to_str().unwrap());
        let created = session.sql(&create).await.unwrap();
        created.collect().await.unwrap();
    }
    for sql in [
        "SELECT * FROM p ORDER BY k",
        "SELECT k, y FROM y WHERE y = 2",
        "SELECT k, y + 0 AS y FROM y WHERE y + 0 = 1",
        "SELECT * FROM m",
        "SELECT column3 FROM m WHERE column1 > 1",
        "SELECT count(*) FROM m a, m b",
        "SELECT count(*), max(k) FROM e",
        "SELECT count(*) FROM range(10)",
        "SELECT sum(value) FROM generate_series(1, 10, 3)",
        "SELECT value FROM range(3) ORDER BY value DESC",
        "SELECT * FROM range(NULL)",
        "SELECT value FROM generate_series(DATE '2024-01-01', DATE '2024-01-03', INTERVAL '1 day')",
        "SELECT m.column1, q.k FROM m LEFT JOIN (SELECT k FROM p WHERE false) q ON m.column1 = q.k \
         ORDER BY 1",
        "SELECT count(*), sum(k) FROM p WHERE false",
        "SELECT k, v FROM p WHERE false UNION ALL SELECT 9, 'z'",
        "SELECT (SELECT max(k) FROM p WHERE false) AS x",
        "SELECT sum(k), max(\"P.csv\".v) FROM \"P.csv\" WHERE \"P.csv\".k > 1",
        "SELECT \"A\".k FROM p \"A\" JOIN \"P.csv\" b ON \"A\".k = b.k WHERE b.v <> 'a' ORDER BY 1",
    ] {
        let (here, there) = both(&session, sql).await;
        assert_eq!(here, there, "{sql}");
    }
}

#[tokio::test]
async fn only_the_files_that_are_named_belong_to_a_table() {
    let dir = tempfile::tempdir().unwrap();
    files(dir.path());
    let session = session();
    let create = format!(
        "CREATE EXTERNAL TABLE y (k BIGINT, v VARCHAR, y INT) STORED AS CSV PARTITIONED BY (y) \
         LOCATION '{}/h/' OPTIONS ('format.has_header' 'false', 'format.delimiter' ';', \
         'format.terminator' '|')",
        dir.path().display()
    );
    session.sql(&create).await.unwrap();
    let plan = optimized(&session, "SELECT k, y FROM y").await;
    let LogicalPlan::TableScan(TableScan { source, .. }) = &plan else {
        panic!("{plan}")
    };
    let table = source_as_provider(source).unwrap();
    let listing = table.downcast_ref::<ListingTable>();
    let only = url::Url::from_file_path(dir.path().join("h/y=2/a.csv")).unwrap();
    let files = Files::try_new(listing.unwrap().clone(), Some(&[only])).unwrap();
    session.register_table("some", Arc::new(files)).unwrap();
    let every = Files::try_new(listing.unwrap().clone(), None).unwrap();
    session.register_table("every", Arc::new(every)).unwrap();
    for (sql, rows) in [
        ("SELECT k, y FROM some", "| 6 | 2 |"),
        ("SELECT k, y FROM some WHERE y = 2 LIMIT 1", "| 6 | 2 |"),
        ("SELECT count(*) AS n, 0 AS y FROM some", "| 1 | 0 |"),
        (
            "SELECT count(*) AS n, 0 AS y FROM some WHERE y = 1",
            "| 0 | 0 |",
        ),
        ("SELECT k, y FROM every WHERE y = 1", "| 5 | 1 |"),
    ] {
        let (here, there) = both(&session, sql).await;
        assert_eq!(here, there, "{sql}");
        assert!(here.contains(rows), "{sql}\n{here}");
    }
}

#[tokio::test]
async fn a_table_that_only_this_process_has_is_named() {
    let session = session();
    let stream = StreamingTable::try_new(Arc::new(Schema::empty()), vec![]).unwrap();
    session.register_table("s", Arc::new(stream)).unwrap();
    let codec = VolleyLogicalCodec::default();
    let plan = session.table("s").await.unwrap().into_unoptimized_plan();
    let plan = sendable(plan).await.unwrap();
    let error = LogicalPlanNode::try_from_logical_plan(&plan, &codec).unwrap_err();
    assert!(error.to_string().contains("table s"), "{error}");
}
