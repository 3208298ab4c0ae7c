//! Joins in little memory have the rows of DataFusion's in much.

use datafusion::arrow::array::AsArray;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;

/// Two tables: keys with several rows on both sides, on one side only, NULL, and one key with many rows of each.
const TABLES: [&str; 2] = [
    "CREATE TABLE a AS SELECT value AS id, CASE WHEN value % 19 = 0 THEN NULL WHEN value % 40 = 0 THEN -1 \
     ELSE value % 1400 END AS k, concat('a', value) AS name, repeat('x', 400) AS pad FROM range(8000)",
    "CREATE TABLE b AS SELECT value AS id, CASE WHEN value % 23 = 0 THEN NULL WHEN value % 250 = 0 THEN -1 \
     ELSE value % 2200 + 600 END AS k, concat('b', value % 90) AS name FROM range(3000)",
];

/// Session with the tables, whose queries may hold so many bytes.
async fn session(bytes: usize) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(bytes)))
        .build_arc();
    let mut config = SessionConfig::new()
        .with_target_partitions(1)
        .with_batch_size(64);
    let options = config.options_mut();
    options.execution.sort_spill_reservation_bytes = 1 << 10;
    // The large table is hashed.
    options.optimizer.join_reordering = false;
    let session = SessionContext::new_with_config_rt(config, runtime.unwrap());
    for table in TABLES {
        session.sql(table).await.unwrap();
    }
    session
}

/// Plans a query with joins of ours.
async fn plan(session: &SessionContext, query: &str) -> Plan {
    let query = session.sql(query).await.unwrap();
    let plan = query.create_physical_plan().await.unwrap();
    let joins = |node| Ok(Transformed::yes(grace_join(node)?));
    plan.transform_up(joins).unwrap().data
}

/// Returns the rows of a query as lines, and whether its joins had files.
async fn lines(session: &SessionContext, query: &str) -> Result<(Vec<String>, bool)> {
    let plan = plan(session, query).await;
    let batches = collect(Arc::clone(&plan), session.task_ctx()).await?;
    let rows = concat_batches(&plan.schema(), &batches)?;
    let options = FormatOptions::default().with_null("NULL");
    let columns = rows.columns().iter();
    let columns = columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let line = |row: usize| {
        let values = columns.iter().map(|column| column.value(row).to_string());
        values.collect::<Vec<_>>().join(",")
    };
    let mut spilled = false;
    plan.apply(|node| {
        let metrics = node.metrics();
        spilled |= metrics.is_some_and(|metrics| metrics.spill_count().unwrap_or(0) > 0);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(((0..rows.num_rows()).map(line).collect(), spilled))
}

/// Bytes in which all joins fit, and in which none does.
const MUCH: usize = 64 << 20;
const LITTLE: usize = 300 << 10;

/// Sessions with much memory and with little.
async fn sessions() -> (SessionContext, SessionContext) {
    (session(MUCH).await, session(LITTLE).await)
}

#[tokio::test]
async fn rows_are_those_of_a_join_that_fits() {
    let (much, little) = sessions().await;
    let kinds = [
        "a JOIN b",
        "a LEFT JOIN b",
        "a RIGHT JOIN b",
        "a FULL JOIN b",
        "a LEFT SEMI JOIN b",
        "a LEFT ANTI JOIN b",
        "a RIGHT SEMI JOIN b",
        "a RIGHT ANTI JOIN b",
    ];
    let conditions = [
        "a.k = b.k",
        "a.k = b.k AND a.id % 7 > b.id % 5 AND a.pad <> b.name",
        "(a.k IS NOT DISTINCT FROM b.k) AND a.id % 50 = b.id % 60",
    ];
    for kind in kinds {
        for condition in conditions {
            for columns in ["*", "1 AS one"] {
                if columns != "*" && condition != conditions[1] {
                    continue;
                }
                let query = format!("SELECT {columns} FROM {kind} ON {condition}");
                let (mut due, in_memory) = lines(&much, &query).await.unwrap();
                let (mut rows, in_files) = lines(&little, &query).await.unwrap();
                // Columns that nobody asks for are not read.
                let is_wide =
                    columns == "*" && !kind.contains("RIGHT SEMI") && !kind.contains("RIGHT ANTI");
                let is_wide = is_wide || condition.contains("pad");
                assert!(!in_memory && (in_files || !is_wide), "{query}");
                due.sort();
                rows.sort();
                assert!(
                    rows == due,
                    "{query}: {} rows, not {}",
                    rows.len(),
                    due.len()
                );
                assert!(!rows.is_empty(), "{query}");
            }
        }
    }
}

#[tokio::test]
async fn marks_are_those_of_a_join_that_fits() {
    let (much, little) = sessions().await;
    for condition in ["b.k = a.k", "b.k = a.k AND b.id > a.id"] {
        let query = format!(
            "SELECT id, pad FROM a WHERE id % 3 = 0 OR EXISTS (SELECT 1 FROM b WHERE {condition})"
        );
        let (mut due, _) = lines(&much, &query).await.unwrap();
        let (mut rows, in_files) = lines(&little, &query).await.unwrap();
        assert!(in_files, "{query}");
        due.sort();
        rows.sort();
        assert_eq!(rows, due, "{query}");
    }
}

#[tokio::test]
async fn one_key_may_exceed_the_memory() {
    let (much, little) = sessions().await;
    for kind in ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"] {
        let query = format!(
            "SELECT count(*), count(x.pad), count(y.id) FROM (SELECT 1 AS k, id, pad FROM a) x \
             {kind} (SELECT id % 2 AS k, id, name FROM b WHERE id < 40) y ON x.k = y.k AND x.id < 7500 + y.id"
        );
        let (due, _) = lines(&much, &query).await.unwrap();
        let (rows, in_files) = lines(&little, &query).await.unwrap();
        assert!(in_files, "{query}");
        assert_eq!(rows, due, "{query}");
    }
}

#[tokio::test]
async fn a_limit_ends_all_parts() {
    let little = session(LITTLE).await;
    for limit in [0, 1, 100, 2000] {
        let query = format!("SELECT a.id FROM a JOIN b ON a.k = b.k LIMIT {limit}");
        let (rows, _) = lines(&little, &query).await.unwrap();
        assert_eq!(rows.len(), limit);
    }
}

#[tokio::test]
async fn the_order_of_the_right_side_is_kept() {
    let (much, little) = sessions().await;
    let query = "SELECT b.id, a.name, b.name FROM a JOIN (SELECT * FROM b ORDER BY name, id LIMIT 100000) b \
                 ON a.k = b.k ORDER BY b.name, b.id";
    let (due, _) = lines(&much, query).await.unwrap();
    assert!(!due.is_empty());
    // A sort with a limit below is left alone; one without is removed by the planner.
    assert!(lines(&little, query).await.is_err());
    let session = session(3 * LITTLE).await;
    let kinds = ["JOIN", "RIGHT JOIN", "RIGHT SEMI JOIN", "RIGHT ANTI JOIN"];
    let mut all = vec![];
    for (kind, limit) in kinds
        .into_iter()
        .flat_map(|kind| [(kind, None), (kind, Some(120))])
    {
        let join =
            format!("SELECT * FROM a {kind} b ON a.k = b.k AND a.id > b.id AND a.pad <> b.name");
        let join = plan(&session, &join).await;
        let ordered = ordered(&join, limit);
        let batches = collect(ordered, session.task_ctx()).await.unwrap();
        let schema = batches[0].schema();
        let at = schema
            .fields()
            .iter()
            .rposition(|field| field.name() == "id")
            .unwrap();
        let ids = batches.iter().flat_map(|batch| {
            let ids = batch.column(at).as_primitive::<Int64Type>();
            ids.values().to_vec()
        });
        let ids: Vec<_> = ids.collect();
        assert!(ids.is_sorted() && ids.len() > 100, "{kind}: {}", ids.len());
        // The first rows of all are those that a limit keeps.
        match limit {
            None => all = ids,
            Some(limit) => assert_eq!(ids, all[..limit], "{kind}"),
        }
    }
}

/// Returns the join of a plan, with a right side in the order of its first column, and a limit.
fn ordered(plan: &Plan, limit: Option<usize>) -> Plan {
    let Some(join) = plan.downcast_ref::<HashJoinExec>() else {
        return ordered(plan.children()[0], limit);
    };
    let by_id: Arc<dyn PhysicalExpr> = Arc::new(Column::new("id", 0));
    let by_id = LexOrdering::from([PhysicalSortExpr::new_default(by_id)]);
    let right = SortExec::new(by_id, Arc::clone(join.right()));
    let inputs = vec![Arc::clone(join.left()), Arc::new(right) as _];
    let join = join.builder().with_new_children(inputs).unwrap();
    let join = join.with_fetch(limit).recompute_properties();
    let join = join.build_exec().unwrap();
    assert!(join.output_ordering().is_some());
    grace_join(join).unwrap()
}

#[tokio::test]
async fn a_sort_above_leaves_memory_to_the_join() {
    let (much, little) = sessions().await;
    let query =
        "SELECT a.id, a.pad, b.name FROM a JOIN b ON a.k = b.k ORDER BY a.pad, a.id, b.name";
    let (due, _) = lines(&much, query).await.unwrap();
    let (rows, in_files) = lines(&little, query).await.unwrap();
    assert!(
        in_files && rows == due,
        "{} rows, not {}",
        rows.len(),
        due.len()
    );
}

#[tokio::test]
async fn files_are_removed_with_the_stream() {
    let session = session(LITTLE).await;
    let plan = plan(&session, "SELECT a.pad FROM a JOIN b ON a.k = b.k").await;
    let mut rows = plan.execute(0, session.task_ctx()).unwrap();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    let used = || session.runtime_env().disk_manager.used_disk_space();
    assert!(used() > 0);
    drop(rows);
    for _ in 0..1000 {
        if used() == 0 && session.runtime_env().memory_pool.reserved() == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} bytes are left in files", used());
}
