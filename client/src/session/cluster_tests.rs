//! Tests of the session against a cluster in this process.

use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type};
use arrow::util::pretty::pretty_format_batches;
use futures::StreamExt;
use tempfile::TempDir;
use volley_proto::limits::STACK;
use volley_proto::store::ModelStore;

use super::Session;
use crate::standalone::{Standalone, StandaloneConfig};
use crate::testing::{manifest, sales_file};
use crate::{DataFrameExt, Error, Estimator, JobState, Jobs, Result, SessionConfig};

/// Runs a test with a cluster of two executors, a store with the model `known`, and `sales`.
fn with_cluster(test: impl AsyncFnOnce(&Session, &TempDir) + Send) {
    let body = async || {
        let cluster = Standalone::start(StandaloneConfig {
            vcores: 2,
            ..Default::default()
        });
        let cluster = cluster.await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let url = ModelStore::directory_url(&directory.path().join("store")).unwrap();
        let config = SessionConfig::new(cluster.scheduler(), url);
        let session = Session::connect(config).await.unwrap();
        let known = manifest("known");
        session.store().publish(1, known, Vec::new()).await.unwrap();
        text(&session, &sales_file(&directory)).await.unwrap();
        test(&session, &directory).await;
        cluster.stop().await;
    };
    // Planning recurses deeply in debug builds, here and on the cluster's threads.
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_stack_size(STACK)
            .enable_all()
            .build();
        runtime.unwrap().block_on(body());
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn_scoped(scope, run).unwrap();
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
            ("EXPLAIN ANALYZE SELECT count(*) FROM sales", "Exec: rows="),
        ] {
            let shown = text(session, sql)
                .await
                .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            assert!(shown.contains(expected), "{sql}: {shown}");
        }
    });
}

#[test]
fn a_script_is_read_as_it_sets() {
    with_cluster(async |session, _| {
        let script = "SET datafusion.sql_parser.dialect = 'databricks'; \
                      SELECT array_transform(make_array(\"Store\"), x -> x + 41) AS a FROM sales LIMIT 1";
        let script = script.replace('"', "`");
        let mut shown = Vec::new();
        for statement in session.parse(&script).unwrap() {
            shown = session
                .run(statement)
                .await
                .unwrap()
                .collect()
                .await
                .unwrap();
        }
        let shown = pretty_format_batches(&shown).unwrap().to_string();
        assert!(shown.contains("[42]"), "{shown}");
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
        assert!(shown.contains("| training  | features "), "{shown}");
        // The model has no weights: the error says so, once.
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
fn trains_predicts_and_evaluates() {
    with_cluster(async |session, directory| {
        let rows: String = (0..200)
            .map(|n| format!("{n},{},{}\n", n % 7, 100 + 10 * (n % 7)))
            .collect();
        let file = directory.path().join("rows.csv");
        std::fs::write(&file, format!("id,store,sales\n{rows}")).unwrap();
        let create = format!(
            "CREATE EXTERNAL TABLE rows STORED AS CSV LOCATION '{}' \
             OPTIONS ('format.has_header' 'true')",
            file.display()
        );
        text(session, &create).await.unwrap();
        let train = "CREATE MODEL m OPTIONS (input_label_cols = ['sales'], ranks = 2, \
                     categorical = ['store'], shard_by = ['id'], hidden_units = [16], \
                     label_transform = 'ln', epochs = 2, batch_size = 10, shards = 4) \
                     AS SELECT * FROM rows";
        let statement = session.parse(train).unwrap().remove(0);
        let output = session.run(statement).await.unwrap();
        let message = output.message.clone().unwrap();
        assert!(
            message.starts_with("model m published as version 1; r² "),
            "{message}"
        );
        assert!(
            message.contains("; then refit on all 200 rows"),
            "{message}"
        );
        let ranks = output.collect().await.unwrap().remove(0);
        let rank = ranks.column_by_name("rank").unwrap();
        assert_eq!(rank.as_primitive::<UInt32Type>().values(), &[0, 1]);
        for (sql, expected) in [
            (
                "SELECT count(predicted_sales) AS n FROM ML.PREDICT(MODEL m, TABLE rows) p WHERE store < 3",
                "| 87 ",
            ),
            (
                "SELECT rows, r2_score < 2 AS sane FROM ML.EVALUATE(MODEL m, TABLE rows)",
                "| 200  | true ",
            ),
            (
                "SELECT count(eval_loss) AS epochs FROM ML.TRAINING_INFO(MODEL m)",
                "| 2 ",
            ),
            ("SHOW MODELS", "| m "),
            ("DESCRIBE MODEL m", "2 (keep = best)"),
        ] {
            let shown = text(session, sql)
                .await
                .unwrap_or_else(|e| panic!("{sql}: {e:?}"));
            let kept = shown.contains("1 (keep = best)"); // either epoch may be the best
            assert!(shown.contains(expected) || kept, "{sql}: {shown}");
        }
        // An executor without a GPU predicts on the CPU.
        for device in ["auto", "cuda", "cpu"] {
            let set = format!("SET volley.predict_device = '{device}'");
            text(session, &set).await.unwrap();
            let sql = "SELECT count(predicted_sales) AS n FROM ML.PREDICT(MODEL m, TABLE rows)";
            let shown = text(session, sql).await.unwrap();
            assert!(shown.contains("| 200 "), "{device}: {shown}");
        }
        let model = Estimator::new("n")
            .label("sales")
            .continuous(["store"])
            .hidden_units([8])
            .epochs(1)
            .fit(session, session.sql("SELECT * FROM rows").await.unwrap())
            .await
            .unwrap();
        assert_eq!(model.history().len(), 2, "the second is the refit's");
        let rows = session.sql("SELECT store FROM rows").await.unwrap();
        let predicted = rows.predict(&model).unwrap().collect().await.unwrap();
        let count: usize = predicted.iter().map(|batch| batch.num_rows()).sum();
        assert_eq!(count, 200);
        let rows = session.sql("SELECT * FROM rows").await.unwrap();
        let evaluation = model.evaluate(session, rows.clone()).await.unwrap();
        assert_eq!((evaluation.rows, evaluation.accuracy), (200, None));
        assert!(evaluation.r2_score.is_some() && evaluation.labels.is_empty());
        let of_both = Estimator::new("both")
            .labels(["sales", "id"])
            .continuous(["store"])
            .hidden_units([8])
            .epochs(1)
            .fit(session, rows.clone())
            .await
            .unwrap();
        let evaluation = of_both.evaluate(session, rows.clone()).await.unwrap();
        let labels = evaluation
            .labels
            .iter()
            .map(|(label, of)| (&**label, of.rows));
        assert_eq!(labels.collect::<Vec<_>>(), [("sales", 200), ("id", 200)]);
        let refused = of_both.explain(session, rows).await;
        assert!(matches!(refused, Err(Error::NotSupported { .. })));
        let model = Estimator::new("scaled")
            .label("sales")
            .preprocess(["ML.STANDARD_SCALER(store) OVER () AS scaled", "sales"])
            .hidden_units([8])
            .epochs(1)
            .fit(session, session.sql("SELECT * FROM rows").await.unwrap())
            .await
            .unwrap();
        let rows = session.sql("SELECT store FROM rows").await.unwrap();
        let predicted = rows.predict(&model).unwrap();
        let names = predicted.schema().fields().iter();
        let names: Vec<_> = names.map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["store", "predicted_sales"]);
        let predicted = predicted.collect().await.unwrap();
        let count: usize = predicted.iter().map(|batch| batch.num_rows()).sum();
        assert_eq!(count, 200);
    });
}

#[test]
fn tables_in_memory_are_tables() {
    with_cluster(async |session, _| {
        text(session, "CREATE TABLE m AS VALUES (1)").await.unwrap();
        for (sql, rows) in [
            ("SELECT * FROM m", 1),
            ("SELECT * FROM generate_series(1, 3)", 3),
        ] {
            let shown = text(session, sql).await.unwrap();
            // Three header lines, and one line below.
            assert_eq!(shown.lines().count(), rows + 4, "{sql}: {shown}");
        }
    });
}

#[test]
fn one_task_joins_and_limits() {
    with_cluster(async |session, directory| {
        let written = directory.path().join("written");
        let joined = "SELECT a.\"Id\" FROM sales a JOIN sales b ON a.\"Id\" = b.\"Id\" LIMIT 1";
        let rows = session.sql(joined).await.unwrap().collect().await.unwrap();
        assert_eq!(rows.iter().map(|rows| rows.num_rows()).sum::<usize>(), 1);
        // A stage ends at the writers, of which there may be several; the limit applies to the whole query.
        let copy = format!("COPY ({joined}) TO '{}/' STORED AS CSV", written.display());
        assert!(text(session, &copy).await.unwrap().contains("| 1 "));
        let stages = text(session, &format!("EXPLAIN {joined}")).await.unwrap();
        assert_eq!(stages.matches("ShuffleWriterExec").count(), 1, "{stages}");
        let anti = "SELECT count(*) AS n FROM sales WHERE \"Id\" NOT IN \
                    (SELECT a.\"Id\" FROM sales a JOIN sales b ON a.\"Id\" = b.\"Id\" LIMIT 1)";
        let left = text(session, anti).await.unwrap();
        let all = text(session, "SELECT count(*) - 1 AS n FROM sales")
            .await
            .unwrap();
        assert_eq!(left, all);
    });
}

/// Creates views of a few rows. Returns a query of them that never ends.
async fn endless(session: &Session) -> &'static str {
    for view in [
        "CREATE VIEW a AS SELECT b.* FROM sales b CROSS JOIN sales c CROSS JOIN sales d",
        "CREATE VIEW b AS SELECT b.* FROM a b CROSS JOIN a c",
        "CREATE VIEW c AS SELECT b.* FROM b CROSS JOIN b c",
        "CREATE VIEW d AS SELECT b.* FROM a b CROSS JOIN c",
    ] {
        text(session, view).await.unwrap();
    }
    "SELECT sum(a.\"Id\" * d.\"Id\" % 7) FROM b a CROSS JOIN d"
}

#[test]
fn a_job_that_another_cancels_says_so() {
    with_cluster(async |session, _| {
        let statement = session.parse(endless(session).await).unwrap().remove(0);
        let output = session.run(statement).await.unwrap();
        let job = output.job();
        let cancelled = async {
            let soon = Duration::from_secs(60);
            let jobs = Jobs::connect(session.scheduler().clone(), soon);
            let jobs = jobs.await.unwrap();
            let mut tick = tokio::time::interval(Duration::from_millis(10));
            let known = async {
                loop {
                    tick.tick().await;
                    if let Some(id) = job.id() {
                        return id;
                    }
                }
            };
            let id = tokio::time::timeout(soon, known).await.unwrap();
            let (state, _) = jobs.cancel(&id, soon).await.unwrap();
            assert_eq!(state, JobState::Cancelled);
            id
        };
        let (rows, id) = tokio::join!(output.collect(), cancelled);
        let Err(Error::Cancelled { job }) = rows else {
            panic!("{rows:?}")
        };
        assert_eq!(job, id);
    });
}

#[test]
fn rows_dropped_early_cancel_their_job() {
    with_cluster(async |session, _| {
        let endless = endless(session).await;
        // Drop it during submission, and while it runs.
        for wait in [0, 500].map(Duration::from_millis) {
            let statement = session.parse(endless).unwrap().remove(0);
            let mut rows = session.run(statement).await.unwrap().rows;
            let first = tokio::time::timeout(wait, rows.next()).await;
            assert!(first.is_err(), "{first:?}");
            drop(rows);
            assert!(session.settle(Duration::from_secs(10)).await);
        }
        // The slots are free again.
        let next = text(session, "SELECT count(*) FROM sales");
        tokio::time::timeout(Duration::from_secs(60), next)
            .await
            .unwrap()
            .unwrap();
    });
}
