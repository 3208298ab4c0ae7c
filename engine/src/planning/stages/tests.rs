//! Plans cut into stages and run as tasks, which share nothing: their rows are those of the plan in one process, with a
//! task for each partition and with partitions put together. And plans that must not run.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::settings::{JOB, session_config};
use crate::{VolleyQueryPlanner, with_rules};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, NullEquality};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr::expressions::col;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use futures::future::BoxFuture;
use tempfile::TempDir;

use super::check::check;
use super::cut::{order_to_keep, stages};
use super::merge::{merge, of_plan};
use super::restrict::restrict;
use super::stage::{StageExec, StageInput, find, partitions};

type Plan = Arc<dyn ExecutionPlan>;

/// Settings of jobs with exchanges, though their tables are small.
const EXCHANGES: &str = r#"{"single_task_bytes": 0}"#;

/// Creates a session like the scheduler's, and its tables of CSV files: `a` of two, `b` of one, `e` of two without
/// rows, `s` of three in the order of `k`.
pub(super) async fn session(settings: &[(&str, &str)]) -> (SessionContext, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = session_config()
        .with_target_partitions(3)
        .with_repartition_file_min_size(1)
        .set_str(JOB, EXCHANGES);
    for (key, value) in settings {
        config = config.set_str(key, value);
    }
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_query_planner(Arc::new(VolleyQueryPlanner))
        .build();
    let session = SessionContext::new_with_state(with_rules(state).build());
    table(&session, dir.path(), "a", &[(1, 5), (6, 10)], "").await;
    table(&session, dir.path(), "b", &[(1, 100)], "").await;
    table(&session, dir.path(), "e", &[(1, 0), (1, 0)], "").await;
    let order = "WITH ORDER (k ASC)";
    table(
        &session,
        dir.path(),
        "s",
        &[(20, 40), (1, 30), (5, 8)],
        order,
    )
    .await;
    (session, dir)
}

async fn table(
    session: &SessionContext,
    dir: &Path,
    name: &str,
    files: &[(i32, i32)],
    order: &str,
) {
    let folder = dir.join(name);
    fs::create_dir(&folder).unwrap();
    for (number, (first, last)) in files.iter().enumerate() {
        let row = |k: i32| format!("{k},{},{}\n", k % 3, k * 7 % 10);
        let rows: String = (*first..=*last).map(row).collect();
        fs::write(
            folder.join(format!("{number}.csv")),
            format!("k,v,w\n{rows}"),
        )
        .unwrap();
    }
    let create = format!(
        "CREATE EXTERNAL TABLE {name} (k INT, v INT, w INT) STORED AS CSV {order} LOCATION '{}/' \
         OPTIONS ('format.has_header' 'true')",
        folder.display()
    );
    session.sql(&create).await.unwrap();
}

pub(super) async fn plan(session: &SessionContext, sql: &str) -> Plan {
    let frame = session.sql(sql).await.unwrap();
    let plan = frame.create_physical_plan().await;
    plan.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// Returns the rows of each partition of a stage. A task has as many partitions as may be merged, up to `most`.
fn run<'a>(
    stage: &'a Plan,
    context: &'a Arc<TaskContext>,
    most: usize,
) -> BoxFuture<'a, Vec<Vec<RecordBatch>>> {
    Box::pin(async move {
        let stage = stage.downcast_ref::<StageExec>().unwrap();
        let mut read = Vec::new();
        for exchange in stage.children() {
            let [input] = exchange.children()[..] else {
                panic!("{} has one input", exchange.name())
            };
            let rows = run(input, context, most).await;
            read.push(match exchange.downcast_ref::<RepartitionExec>() {
                Some(exchange) => {
                    let by = exchange.partitioning().clone();
                    let source = source(&rows, input);
                    let exchange: Plan = Arc::new(RepartitionExec::try_new(source, by).unwrap());
                    let partitions = partitions(&exchange);
                    let spread = (0..partitions).map(|partition| {
                        let rows = exchange.execute(partition, Arc::clone(context));
                        rows.unwrap().try_collect()
                    });
                    futures::future::try_join_all(spread).await.unwrap()
                }
                None => rows,
            });
        }
        let mut made = Vec::new();
        let all: Vec<_> = (0..partitions(stage.plan())).collect();
        let together = of_plan(stage.plan(), &|input| Some(vec![1; input.reads().1.len()]));
        for slice in all.chunks(together.map_or(1, |_| most)) {
            let task = restrict(Arc::clone(stage.plan()), slice).unwrap();
            let task = merge(task, &[slice.len()]).unwrap();
            check(&task).unwrap();
            let task = task.transform_up(|node| {
                let Some(input) = node.downcast_ref::<StageInput>() else {
                    return Ok(Transformed::no(node));
                };
                let (index, partitions) = input.reads();
                let rows_of = |ats: &Vec<usize>| {
                    let rows = ats.iter().flat_map(|at| read[index][*at].clone());
                    rows.collect()
                };
                let rows: Vec<_> = partitions.iter().map(rows_of).collect();
                Ok(Transformed::yes(source(&rows, &node)))
            });
            // Tasks share no operators: each has a message of its own.
            let task = reset_plan_states(task.data().unwrap()).unwrap();
            assert_eq!(partitions(&task), 1, "{}", task.name());
            let rows = task.execute(0, Arc::clone(context)).unwrap();
            // The first of the partitions stands for all.
            made.push(rows.try_collect().await.unwrap());
            made.extend(slice.iter().skip(1).map(|_| Vec::new()));
        }
        made
    })
}

/// These rows, in the place of an operator that makes them.
fn source(rows: &[Vec<RecordBatch>], like: &Plan) -> Plan {
    MemorySourceConfig::try_new_exec(rows, like.schema(), None).unwrap()
}

fn lines(rows: &[RecordBatch]) -> Vec<String> {
    let table = pretty_format_batches(rows).unwrap().to_string();
    let lines = table.lines().filter(|line| line.starts_with("| "));
    lines.skip(1).map(str::to_owned).collect()
}

const QUERIES: &[&str] = &[
    "SELECT a.k, b.k AS x FROM a LEFT JOIN b ON a.k < b.k AND b.w > 5",
    "SELECT a.k, b.k AS x FROM a FULL JOIN b ON a.k > b.k AND b.k > 7",
    "SELECT a.k, b.k AS x FROM b RIGHT JOIN a ON a.k > b.k",
    "SELECT k FROM b WHERE EXISTS (SELECT 1 FROM a WHERE a.k > b.k)",
    "SELECT k FROM b WHERE NOT EXISTS (SELECT 1 FROM a WHERE a.k > b.k)",
    "SELECT k FROM b WHERE k NOT IN (SELECT nullif(k, 20) FROM a)",
    "SELECT k FROM b WHERE k NOT IN (SELECT k FROM e)",
    "SELECT a.v, b.w, s.k FROM a JOIN b USING (k) LEFT JOIN s ON s.v = b.w",
    "SELECT count(*) AS n FROM b LEFT JOIN e USING (k)",
    "SELECT count(*) AS n FROM (SELECT b.k FROM a CROSS JOIN b UNION ALL SELECT k FROM b) q",
    "SELECT count(*) AS n FROM (SELECT max(k) AS k FROM a UNION ALL SELECT k FROM b) q",
    "SELECT v, count(*), sum(w), array_agg(k ORDER BY k DESC) FROM s GROUP BY v",
    "SELECT v, w, count(*) FROM s GROUP BY CUBE (v, w)",
    "SELECT count(DISTINCT v), sum(DISTINCT w) FROM s",
    "SELECT DISTINCT v FROM b",
    "SELECT k, row_number() OVER (PARTITION BY v ORDER BY k, w) AS x, \
     row_number() OVER (ORDER BY k DESC, w, v) AS y FROM b",
    "SELECT k, lag(k) OVER (ORDER BY k DESC) AS x, lead(k) OVER (ORDER BY k) AS y FROM b",
    "SELECT k, v, sum(w) OVER (PARTITION BY v ORDER BY k) AS x FROM s WHERE k > 20",
    "SELECT k FROM a UNION SELECT v FROM b INTERSECT SELECT w FROM s",
    "SELECT k FROM a EXCEPT SELECT w FROM b",
    "WITH RECURSIVE r(k) AS (SELECT k FROM a WHERE k < 3 UNION ALL \
     SELECT b.k FROM r JOIN b ON b.k = r.k * 2) SELECT k FROM r",
    "SELECT 1 AS k UNION ALL SELECT k FROM b WHERE false UNION ALL SELECT v FROM a",
];

/// The same, whose rows are in an order.
const ORDERED: &[&str] = &[
    "SELECT b.k FROM a JOIN b ON a.k = b.w ORDER BY b.k DESC",
    "SELECT k, v FROM b ORDER BY v, k LIMIT 7 OFFSET 3",
    "SELECT k FROM s ORDER BY k LIMIT 20",
    "SELECT v, max(k) AS x FROM b GROUP BY v ORDER BY x DESC LIMIT 2",
    "SELECT k, w FROM s ORDER BY k, w DESC",
    "SELECT b.k, x.w FROM b LEFT JOIN (SELECT * FROM a WHERE w = 7) x USING (k) \
     ORDER BY x.w NULLS FIRST, b.k",
    // A join keeps its right side's order, which an exchange forgets, and has the limit.
    "SELECT s.k, s.w FROM a JOIN s USING (v) ORDER BY s.k LIMIT 3",
    "SELECT s.k, s.w + 1 AS x FROM a JOIN s USING (v) ORDER BY s.k LIMIT 7 OFFSET 2",
    // Each side has a constant of its own in the first column.
    "(SELECT 'b' AS x, CAST(row_number() OVER (ORDER BY k) AS BIGINT) AS n FROM a) UNION ALL \
     (SELECT 'a' AS x, 1 AS n FROM a) ORDER BY x, n DESC",
];

const SETTINGS: &[&[(&str, &str)]] = &[
    &[],
    // Nothing is small enough to be sent to every task.
    &[("ballista.optimizer.broadcast_join_threshold_bytes", "0")],
    &[
        ("ballista.optimizer.broadcast_join_threshold_bytes", "0"),
        ("datafusion.optimizer.prefer_existing_sort", "true"),
    ],
    &[("datafusion.optimizer.prefer_hash_join", "false")],
    &[
        ("datafusion.optimizer.repartition_joins", "false"),
        ("datafusion.optimizer.prefer_existing_sort", "true"),
        ("datafusion.execution.batch_size", "3"),
    ],
];

#[tokio::test]
async fn tasks_that_share_nothing_make_the_rows_of_the_plan() {
    for settings in SETTINGS {
        let (session, _dir) = session(settings).await;
        let context = session.task_ctx();
        for sql in QUERIES.iter().chain(ORDERED) {
            let whole = plan(&session, sql).await;
            let order = order_to_keep(&whole).filter(|_| ORDERED.contains(sql));
            let staged = stages(Arc::clone(&whole), order, &context);
            let staged = staged.unwrap_or_else(|e| panic!("{sql}: {e}"));
            // Operators of one plan run once.
            let whole = plan(&session, sql).await;
            let due = collect(whole, Arc::clone(&context)).await.unwrap();
            let mut due = lines(&due);
            if !ORDERED.contains(sql) {
                due.sort();
            }
            assert!(!due.is_empty(), "{sql}");
            for most in [1, 2] {
                let rows = run(&staged, &context, most).await.concat();
                let mut rows = lines(&rows);
                if !ORDERED.contains(sql) {
                    rows.sort();
                }
                assert_eq!(rows, due, "{most} of {settings:?} {sql}");
            }
        }
    }
}

#[tokio::test]
async fn partitions_are_put_together_where_no_row_can_change() {
    let threshold = "ballista.optimizer.broadcast_join_threshold_bytes";
    let (session, _dir) = session(&[(threshold, "0")]).await;
    // For each query, whether the partitions of each of its stages of several may be put together; inputs first.
    for (sql, due) in [
        ("SELECT v, count(*) FROM b GROUP BY v", [true, true]),
        (
            "SELECT k, sum(w) OVER (PARTITION BY v ORDER BY k) FROM b",
            [true, true],
        ),
        // The files have an order.
        ("SELECT v, count(*) FROM s GROUP BY v", [false, true]),
        // The partitions are those of its inputs, one after the other.
        (
            "SELECT v, count(*) FROM (SELECT v FROM a UNION ALL SELECT w FROM b) GROUP BY v",
            [false, true],
        ),
    ] {
        let plan = plan(&session, sql).await;
        let staged = stages(plan, None, &session.task_ctx()).unwrap();
        let mut found = Vec::new();
        let visit = staged.transform_up(|node| {
            if let Some(stage) = node.downcast_ref::<StageExec>()
                && partitions(stage.plan()) > 1
            {
                let together = of_plan(stage.plan(), &|input| Some(vec![1; input.reads().1.len()]));
                found.push(together.is_some());
            }
            Ok(Transformed::no(node))
        });
        visit.unwrap();
        assert_eq!(found, due, "{sql}");
    }
}

#[tokio::test]
async fn parts_of_a_file_are_read_as_one() {
    let (session, _dir) = session(&[]).await;
    let plan = plan(&session, "SELECT v, count(*) FROM b GROUP BY v").await;
    let staged = stages(plan, None, &session.task_ctx()).unwrap();
    let mut scans = Vec::new();
    let visit = staged.apply(|node| {
        if let Some(stage) = node.downcast_ref::<StageExec>()
            && find::<DataSourceExec>(stage.plan().as_ref()).is_some()
        {
            scans.push(Arc::clone(stage.plan()));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    visit.unwrap();
    let [scan] = &scans[..] else {
        panic!("{scans:#?}")
    };
    let ranges = |plan: &Plan| {
        let scan = find::<DataSourceExec>(plan.as_ref()).unwrap();
        let files: &FileScanConfig = scan.data_source().downcast_ref().unwrap();
        let of_file = |file: &PartitionedFile| {
            let range = file.range.as_ref().unwrap();
            (range.start, range.end)
        };
        let groups = files.file_groups.iter();
        let groups = groups.map(|group| group.iter().map(of_file).collect());
        groups.collect::<Vec<Vec<_>>>()
    };
    let apart = ranges(scan).concat();
    let merged = ranges(&merge(Arc::clone(scan), &[2, 1]).unwrap());
    assert_eq!(merged, [[(apart[0].0, apart[1].1)], [apart[2]]]);
    // What lies between them stays unread.
    let ends = restrict(Arc::clone(scan), &[0, 2]).unwrap();
    assert_eq!(ranges(&merge(ends, &[2]).unwrap()), [[apart[0], apart[2]]]);
}

#[tokio::test]
async fn a_semi_join_reduction_has_the_rows_of_the_join() {
    let (reduced, _dir) = session(&[(JOB, r#"{"single_task_bytes": 0, "stage_bytes": 0}"#)]).await;
    let (plain, _plain) = session(&[]).await;
    let context = reduced.task_ctx();
    for sql in [
        "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.v = a.k)",
        "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.v = a.k AND b.w > a.w)",
        "SELECT * FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.v = a.v AND b.w < a.w)",
        "SELECT * FROM a WHERE nullif(k, 2) IN (SELECT nullif(v, 0) FROM b)",
        "SELECT * FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE nullif(b.v, 1) = nullif(a.k, 2))",
        "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.v = a.v AND b.w < a.w) OR w = 3",
        "SELECT v, w FROM a INTERSECT SELECT v, w FROM b",
        "SELECT v FROM a x WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = x.k) UNION ALL SELECT v FROM a WHERE k IN (SELECT w FROM b)",
        "SELECT * FROM (SELECT a.* FROM a JOIN s ON a.k = s.k) x WHERE EXISTS (SELECT 1 FROM b WHERE b.k = x.w)",
    ] {
        let whole = plan(&reduced, sql).await;
        let shown = displayable(whole.as_ref()).indent(false).to_string();
        assert!(
            !shown.contains("Partitioned, join_type=Left"),
            "{sql}: {shown}"
        );
        assert!(
            shown.contains("mode=CollectLeft, join_type=RightSemi"),
            "{sql}: {shown}"
        );
        let staged = stages(whole, None, &context);
        let staged = staged.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut rows = lines(&run(&staged, &context, 1).await.concat());
        let due = collect(plan(&plain, sql).await, plain.task_ctx()).await;
        let mut due = lines(&due.unwrap());
        rows.sort();
        due.sort();
        assert_eq!(rows, due, "{sql}: {shown}");
        assert!(!due.is_empty(), "{sql}");
    }
}

#[tokio::test]
async fn an_order_that_an_exchange_forgets_is_sorted_for_again() {
    let (session, _dir) = session(&[("datafusion.optimizer.prefer_existing_sort", "true")]).await;
    let sql = "SELECT k, sum(w) OVER (PARTITION BY k) AS x FROM s";
    let plan = plan(&session, sql).await;
    let exchange = find::<RepartitionExec>(plan.as_ref()).unwrap();
    let shown = displayable(plan.as_ref()).indent(false).to_string();
    assert!(
        exchange.preserve_order() && !shown.contains("SortExec"),
        "{shown}"
    );
    let staged = stages(plan, None, &session.task_ctx()).unwrap();
    let stage = staged.downcast_ref::<StageExec>().unwrap();
    let sort = find::<SortExec>(stage.plan().as_ref()).unwrap();
    assert!(sort.input().is::<StageInput>());
}

#[tokio::test]
async fn each_sort_of_tiny_batches_has_longer_runs() {
    let sql =
        "(SELECT 'b' AS x, k AS n FROM a) UNION ALL (SELECT 'a' AS x, v AS n FROM b) ORDER BY x, n";
    for (rows, lengthened) in [("1", true), ("511", true), ("512", false)] {
        let (session, _dir) = session(&[("datafusion.execution.batch_size", rows)]).await;
        let plan = plan(&session, sql).await;
        let staged = stages(plan, None, &session.task_ctx()).unwrap();
        let mut sorts = 0;
        staged
            .apply(|node| {
                let Some(stage) = node.downcast_ref::<StageExec>() else {
                    return Ok(TreeNodeRecursion::Continue);
                };
                stage.plan().apply(|node| {
                    if let Some(sort) = node.downcast_ref::<SortExec>() {
                        sorts += 1;
                        let input = sort.input().name();
                        assert_eq!(
                            input == "CoalesceBatchesExec",
                            lengthened,
                            "{rows}: {input}"
                        );
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
            .unwrap();
        assert!(sorts > 0);
    }
}

#[tokio::test]
async fn a_stage_that_relies_on_an_order_it_has_not_is_refused() {
    let (session, _dir) = session(&[]).await;
    let plan = plan(
        &session,
        "SELECT sum(w) OVER (PARTITION BY v ORDER BY k) FROM b",
    )
    .await;
    let without_sorts = plan.transform_up(|node| match node.downcast_ref::<SortExec>() {
        Some(sort) => Ok(Transformed::yes(Arc::clone(sort.input()))),
        None => Ok(Transformed::no(node)),
    });
    let without_sorts = without_sorts.data().unwrap();
    let window = find::<BoundedWindowAggExec>(without_sorts.as_ref()).map(|window| window.input());
    let window = window.or_else(|| {
        find::<WindowAggExec>(without_sorts.as_ref()).map(|window| window.children()[0])
    });
    assert!(
        window.is_some(),
        "{}",
        displayable(without_sorts.as_ref()).indent(false)
    );
    let error = check(&without_sorts).unwrap_err().to_string();
    assert!(error.contains("does not satisfy"), "{error}");
}

/// `a LEFT JOIN s` where every task has all of `a` and a part of `s`, and thinks that it alone knows which rows
/// of `a` have no partner.
async fn each_tells_unmatched_rows(kind: JoinType) -> Plan {
    let (session, _dir) = session(&[]).await;
    let (left, right) = (
        plan(&session, "SELECT k FROM b").await,
        plan(&session, "SELECT k FROM s").await,
    );
    assert!(partitions(&right) > 1);
    let left: Plan = match partitions(&left) {
        1 => left,
        _ => Arc::new(
            datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec::new(left),
        ),
    };
    let on = vec![(
        col("k", &left.schema()).unwrap(),
        col("k", &right.schema()).unwrap(),
    )];
    let mode = PartitionMode::CollectLeft;
    let equal = NullEquality::NullEqualsNothing;
    let join = HashJoinExec::try_new(left, right, on, None, &kind, None, mode, equal, false);
    Arc::new(join.unwrap())
}

#[tokio::test]
async fn operators_that_share_state_over_tasks_are_refused() {
    for kind in [
        JoinType::Left,
        JoinType::Full,
        JoinType::LeftSemi,
        JoinType::LeftAnti,
        JoinType::LeftMark,
    ] {
        let join = each_tells_unmatched_rows(kind).await;
        let error = check(&join).unwrap_err().to_string();
        assert!(error.contains("share state"), "{kind}: {error}");
    }
    for kind in [JoinType::Inner, JoinType::Right, JoinType::RightAnti] {
        check(&each_tells_unmatched_rows(kind).await).unwrap();
    }
}

#[tokio::test]
async fn an_exchange_inside_of_a_stage_is_refused() {
    let (session, _dir) = session(&[]).await;
    let plan = plan(&session, "SELECT k FROM s").await;
    let by = Partitioning::Hash(vec![col("k", &plan.schema()).unwrap()], 3);
    let exchange: Plan = Arc::new(RepartitionExec::try_new(plan, by).unwrap());
    let error = check(&exchange).unwrap_err().to_string();
    assert!(error.contains("inside of a stage"), "{error}");
}

/// As a nested loop join reads its left side that did not fit into memory.
#[tokio::test]
async fn a_scan_is_read_again() {
    let (session, _dir) = session(&[]).await;
    let scan = plan(&session, "SELECT k FROM s").await;
    assert!(partitions(&scan) > 1);
    let read = || async {
        let rows = collect(Arc::clone(&scan), session.task_ctx()).await;
        lines(&rows.unwrap()).len()
    };
    assert_eq!(read().await, 55);
    assert_eq!(read().await, 55);
}

/// Counts the inputs of the stage that has all joins of a query.
async fn reads(settings: &[(&str, &str)], sql: &str) -> usize {
    let (session, _dir) = session(settings).await;
    let plan = plan(&session, sql).await;
    let staged = stages(plan, None, &session.task_ctx()).unwrap();
    staged.children().len()
}

#[tokio::test]
async fn small_files_are_read_by_each_task_that_needs_them() {
    let join = "SELECT s.k FROM s JOIN a USING (v) JOIN b ON a.w = b.w";
    assert_eq!(reads(&[], join).await, 0);
    let unequal = "SELECT s.k FROM s RIGHT JOIN a ON s.k < a.k AND s.w > 2";
    assert_eq!(reads(&[], unequal).await, 0);
    // They may be others for each task.
    let first = "SELECT s.k FROM (SELECT * FROM a LIMIT 3) RIGHT JOIN s USING (v)";
    assert_ne!(reads(&[], first).await, 0);
    let drawn = "SELECT s.k FROM (SELECT * FROM a WHERE random() < 0.5) RIGHT JOIN s USING (v)";
    assert_ne!(reads(&[], drawn).await, 0);
    let sent = [("ballista.optimizer.broadcast_join_threshold_bytes", "1")];
    assert_ne!(reads(&sent, unequal).await, 0);
}

#[tokio::test]
async fn a_task_has_no_partition_that_is_not_its_own() {
    let (session, _dir) = session(&[]).await;
    let plan = plan(&session, "SELECT k FROM s UNION ALL SELECT k FROM a").await;
    let all = partitions(&plan);
    let context = session.task_ctx();
    let count = |plan: Plan| {
        let context = Arc::clone(&context);
        async move {
            let rows = collect(plan, context).await.unwrap();
            rows.iter().map(RecordBatch::num_rows).sum::<usize>()
        }
    };
    let mut sum = 0;
    for from in (0..all).step_by(2) {
        let slice: Vec<_> = (from..all.min(from + 2)).collect();
        let part = restrict(Arc::clone(&plan), &slice).unwrap();
        assert_eq!(partitions(&part), slice.len());
        sum += count(part).await;
    }
    assert_eq!(sum, count(Arc::clone(&plan)).await);
    let error = restrict(Arc::clone(&plan), &[all]).unwrap_err().to_string();
    assert!(
        error.contains(&format!("partition {all} of {all}")),
        "{error}"
    );
    let merged: Plan = Arc::new(SortPreservingMergeExec::new(
        [datafusion::physical_expr::PhysicalSortExpr::new_default(
            col("k", &plan.schema()).unwrap(),
        )]
        .into(),
        plan,
    ));
    assert!(restrict(merged, &[]).is_err());
}
