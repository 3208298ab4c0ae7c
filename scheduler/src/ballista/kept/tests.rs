//! Attempts of a query whose stages are run by hand: which rows the next attempt takes.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use ballista_core::JobId;
use ballista_core::serde::protobuf::{ShuffleWritePartition, TaskStatus};
use ballista_core::serde::scheduler::{
    ExecutorMetadata, ExecutorOperatingSystemSpecification, ExecutorSpecification,
    PartitionLocation,
};
use ballista_scheduler::planner::DefaultDistributedPlanner;
use ballista_scheduler::state::execution_graph::StaticExecutionGraph;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use tempfile::TempDir;
use volley_engine::settings::{JOB, session_config};
use volley_engine::stages::{reuse_exchanges, stages};
use volley_engine::{VolleyQueryPlanner, with_rules};

use super::super::handover::Moved;
use super::super::losses;
use super::*;

/// Query whose second stage groups by the exact count of the first one's groups, in two exchanges.
const EXACT: &str =
    "SELECT n, count(*) FROM (SELECT v, count(*) AS n FROM a GROUP BY v) GROUP BY n";
/// The same with sums of floating-point numbers.
const SUMS: &str =
    "SELECT n, count(*) FROM (SELECT v, sum(k * 0.1e0) AS n FROM a GROUP BY v) GROUP BY n";

/// Session with a table `a` of three files, and exchanges in spite of its size.
async fn session() -> (SessionContext, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for file in 0..3 {
        let rows: String = (0..5).map(|k| format!("{k},{}\n", k % 2)).collect();
        std::fs::write(
            dir.path().join(format!("{file}.csv")),
            format!("k,v\n{rows}"),
        )
        .unwrap();
    }
    let config = session_config()
        .with_target_partitions(3)
        .set_str(JOB, r#"{"single_task_bytes": 0}"#);
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_query_planner(Arc::new(VolleyQueryPlanner))
        .build();
    let session = SessionContext::new_with_state(with_rules(state).build());
    let create = format!(
        "CREATE EXTERNAL TABLE a (k INT, v INT) STORED AS CSV LOCATION '{}/' OPTIONS ('format.has_header' 'true')",
        dir.path().display()
    );
    session.sql(&create).await.unwrap();
    (session, dir)
}

/// Plans an attempt.
async fn attempt(session: &SessionContext, id: &str, query: &str) -> ExecutionGraphBox {
    let plan = session.sql(query).await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let plan = reuse_exchanges(stages(plan, None, &session.task_ctx()).unwrap()).unwrap();
    let graph = StaticExecutionGraph::new(
        "scheduler",
        &JobId::from(id.to_owned()),
        query,
        "session",
        plan,
        0,
        Arc::new(session.copied_config()),
        &mut DefaultDistributedPlanner::new(),
        None,
    )
    .unwrap();
    let mut graph: ExecutionGraphBox = Box::new(graph);
    graph.revive();
    graph
}

fn executor(id: &str) -> ExecutorMetadata {
    ExecutorMetadata {
        id: id.to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 1,
        grpc_port: 2,
        specification: ExecutorSpecification::default(),
        os_info: ExecutorOperatingSystemSpecification::default(),
    }
}

/// Reports that a bound task has written a row for each partition of its exchange.
fn succeed(graph: &mut ExecutionGraphBox, (on, task): &BoundTask) {
    let partitions = (0..3).map(|partition| ShuffleWritePartition {
        partition_id: partition,
        num_batches: 1,
        num_rows: 1,
        num_bytes: 8,
        file_id: Some(task.key.task_id as u64),
        is_sort_shuffle: true,
    });
    let done = SuccessfulTask {
        executor_id: on.clone(),
        partitions: partitions.collect(),
        ..SuccessfulTask::default()
    };
    let status = TaskStatus {
        task_id: task.key.task_id as u32,
        job_id: graph.job_id().to_string(),
        stage_id: task.key.stage_id as u32,
        status: Some(Status::Successful(done)),
        ..TaskStatus::default()
    };
    graph
        .update_task_status(&executor(on), vec![status], 4, 4)
        .unwrap();
    graph.revive();
}

/// Binds a partition of a running stage to an executor.
fn bound(graph: &mut ExecutionGraphBox, id: usize, partition: usize, on: &str) -> BoundTask {
    let running = graph.running_stages().into_iter();
    let others: Vec<_> = running.filter(|other| *other != id).collect();
    let stage = graph.fetch_running_stage(&others).unwrap();
    assert_eq!(stage.stage_id, id);
    let rows = KeptRows {
        attempt: String::new(),
        pieces: Vec::new(),
        store: None,
    };
    let plan = kept_plan(&stage.plan, rows).unwrap();
    let (partitions, _) = take(&mut stage.pending, &[partition]).unwrap();
    let of = ("session", &JobId::from("any".to_owned()));
    describe(stage, of, (on.to_owned(), 1), partitions, plan).unwrap()
}

/// Computes a partition of a running stage on an executor.
fn compute(graph: &mut ExecutionGraphBox, id: usize, partition: usize, on: &str) {
    let task = bound(graph, id, partition, on);
    succeed(graph, &task);
}

/// Computes all partitions of a stage, each on its executor.
fn compute_all(graph: &mut ExecutionGraphBox, id: usize, on: [&str; 3]) {
    for (partition, on) in on.into_iter().enumerate() {
        compute(graph, id, partition, on);
    }
}

/// Takes what is kept, and reports that the tasks have succeeded. Returns the number of partitions of each stage.
fn adopt(kept: &Kept, graph: &mut ExecutionGraphBox) -> BTreeMap<usize, usize> {
    let since = |executor: &str| match executor {
        "drains" => None,
        // It was started anew.
        "back" => Some(SystemTime::now() + Duration::from_secs(60)),
        _ => Some(UNIX_EPOCH),
    };
    adopt_by(kept, graph, since).0
}

/// Does the same with a source of the times since which executors are there. Returns also the executors of the tasks.
fn adopt_by(
    kept: &Kept,
    graph: &mut ExecutionGraphBox,
    since: impl Fn(&str) -> Option<SystemTime>,
) -> (BTreeMap<usize, usize>, Vec<String>) {
    let takers = ["e0", "e2"].map(str::to_owned);
    let (bound, taken) = kept.adopt("j", graph, since, &takers);
    for task in &bound {
        succeed(graph, task);
    }
    let taken = taken.into_iter();
    let taken = taken.map(|taken| (taken.stage, taken.partitions)).collect();
    (taken, bound.into_iter().map(|(on, _)| on).collect())
}

/// Returns the settings of a job with a shuffle store.
fn with_store(session: &SessionContext) -> SessionContext {
    let mut state = session.state();
    let config = state.config_mut();
    let settings = r#"{"single_task_bytes": 0, "shuffle_store": "s3://bucket/prefix"}"#;
    config.options_mut().set(JOB, settings).unwrap();
    SessionContext::new_with_state(state)
}

/// Tells that tasks of a stage have copies of their rows in the job's store.
fn told(kept: &Kept, graph: &ExecutionGraphBox, stage: usize, tasks: &[usize]) {
    for number in tasks {
        let attempt = graph.job_id().to_string();
        let (stage, number) = (stage, *number);
        let task = Task {
            attempt,
            stage,
            number,
        };
        kept.stored(|| Some("j".to_owned()), task);
    }
}

fn pending(graph: &ExecutionGraphBox, id: usize) -> Vec<usize> {
    match &graph.stages()[&id] {
        ExecutionStage::Running(stage) => {
            let mut pending = stage.pending.clone().next_slice(usize::MAX);
            pending.sort_unstable();
            pending
        }
        other => panic!("stage {id} does not run: {other:?}"),
    }
}

#[tokio::test]
async fn what_is_left_is_taken_and_the_rest_computed() {
    let (session, _dir) = session().await;
    let kept = Kept::default();
    let mut first = attempt(&session, "j", EXACT).await;
    compute_all(&mut first, 1, ["e0", "e1", "e0"]);
    compute_all(&mut first, 2, ["e1", "e0", "e0"]);
    kept.capture(|| Some("j".to_owned()), (&first, &Places::default()), "e1");
    let mut next = attempt(&session, "k", EXACT).await;
    assert_eq!(adopt(&kept, &mut next), [(1, 2)].into());
    assert_eq!(pending(&next, 1), [1]);
    assert!(adopt(&kept, &mut next).is_empty(), "once for each stage");
    compute(&mut next, 1, 1, "e0");
    assert_eq!(adopt(&kept, &mut next), [(2, 2)].into());
    assert_eq!(pending(&next, 2), [0]);
    // The next one has all of both attempts, but what another executor held.
    kept.capture(|| Some("j".to_owned()), (&next, &Places::default()), "e2");
    let mut last = attempt(&session, "l", EXACT).await;
    assert_eq!(adopt(&kept, &mut last), [(1, 3)].into());
    assert_eq!(adopt(&kept, &mut last), [(2, 2)].into());
    let mut other = attempt(&session, "m", SUMS).await;
    assert!(adopt(&kept, &mut other).is_empty());
    kept.release("j");
    assert!(adopt(&kept, &mut attempt(&session, "n", EXACT).await).is_empty());
}

#[tokio::test]
async fn rows_that_do_not_repeat_are_taken_whole_or_not_at_all() {
    let (session, _dir) = session().await;
    for (second, due) in [(["e0", "e0", "e0"], Some(3)), (["e0", "e1", "e0"], None)] {
        let kept = Kept::default();
        let mut first = attempt(&session, "j", SUMS).await;
        compute_all(&mut first, 1, ["e0", "e1", "e0"]);
        compute_all(&mut first, 2, second);
        kept.capture(|| Some("j".to_owned()), (&first, &Places::default()), "e1");
        let mut next = attempt(&session, "k", SUMS).await;
        // States of sums, which repeat as far as their readers can tell.
        assert_eq!(adopt(&kept, &mut next), [(1, 2)].into());
        compute(&mut next, 1, 1, "e0");
        assert_eq!(adopt(&kept, &mut next).get(&2).copied(), due, "{second:?}");
    }
}

#[tokio::test]
async fn rows_over_other_rows_are_not_taken() {
    let (session, _dir) = session().await;
    let query = format!("SELECT n + 1, count(*) FROM ({SUMS}) GROUP BY n + 1");
    let kept = Kept::default();
    let mut first = attempt(&session, "j", &query).await;
    compute_all(&mut first, 1, ["e0", "e0", "e0"]);
    compute_all(&mut first, 2, ["e1", "e0", "e0"]);
    compute_all(&mut first, 3, ["e0", "e0", "e0"]);
    kept.capture(|| Some("j".to_owned()), (&first, &Places::default()), "e1");
    let mut next = attempt(&session, "k", &query).await;
    assert_eq!(adopt(&kept, &mut next), [(1, 3)].into());
    assert!(
        adopt(&kept, &mut next).is_empty(),
        "a part of the sums is lost"
    );
    compute_all(&mut next, 2, ["e0", "e0", "e0"]);
    // Their digits may differ from those that the third stage has read.
    assert!(adopt(&kept, &mut next).is_empty());
    // The attempt's own rows are what its next one takes.
    kept.capture(|| Some("j".to_owned()), (&next, &Places::default()), "e1");
    let mut last = attempt(&session, "l", &query).await;
    assert_eq!(adopt(&kept, &mut last), [(1, 3)].into());
    assert_eq!(adopt(&kept, &mut last), [(2, 3)].into());
    assert!(adopt(&kept, &mut last).is_empty());
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_not_taken_twice() {
    let (session, _dir) = session().await;
    let kept = Kept::default();
    let mut first = attempt(&session, "j", EXACT).await;
    compute_all(&mut first, 1, ["e0", "drains", "back"]);
    kept.capture_unreadable(
        || Some("j".to_owned()),
        (&first, &Places::default()),
        "that a task read from",
    );
    let mut next = attempt(&session, "k", EXACT).await;
    assert_eq!(
        adopt(&kept, &mut next),
        [(1, 1)].into(),
        "not of one that drains, nor of one that was started anew"
    );
    compute(&mut next, 1, 1, "e0");
    kept.capture_unreadable(
        || Some("j".to_owned()),
        (&next, &Places::default()),
        "that a task read from",
    );
    let mut last = attempt(&session, "l", EXACT).await;
    assert!(adopt(&kept, &mut last).is_empty());
    kept.loses("e0");
}

#[tokio::test]
async fn rows_that_have_moved_are_their_heir_s() {
    let (session, _dir) = session().await;
    let (kept, moved) = (Kept::default(), Moved::default());
    let mut first = attempt(&session, "j", EXACT).await;
    compute_all(&mut first, 1, ["e0", "leaves", "e0"]);
    compute(&mut first, 2, 0, "leaves");
    let lost = |executor: &str, first: &ExecutionGraphBox| {
        let places = moved.places_at_removal("j");
        losses::effect(first, executor, &places).is_some()
    };
    assert!(lost("leaves", &first) && !lost("heir", &first));
    let rows = losses::rows_on(&first, "leaves", &moved.places("j"));
    let rows: std::collections::BTreeSet<_> = rows.into_keys().collect();
    assert_eq!(rows, [(1, 1), (2, 0)].into());
    let of_first = [(1, 1)].into();
    moved.moves(&first, &of_first, ("leaves", &executor("heir")));
    let needs = |executor: &str, first: &ExecutionGraphBox| {
        losses::needs(first, executor, &moved.places("j"))
    };
    assert!(needs("leaves", &first), "for the rows of the second stage");
    moved.moves(&first, &rows, ("leaves", &executor("heir")));
    assert!(!needs("leaves", &first) && needs("heir", &first));
    // Whoever is lost, Ballista would repair what the graph places there.
    assert!(lost("heir", &first) && lost("leaves", &first) && lost("e0", &first));
    let mut location = first_location(&first);
    moved.places("j").relocate(&mut location);
    assert_eq!(location.executor_meta.id, "heir");
    // Rows that came back to an executor of the same name are on it.
    compute(&mut first, 2, 1, "leaves");
    assert!(needs("leaves", &first));
    kept.capture(|| Some("j".to_owned()), (&first, &moved.places("j")), "e0");
    let mut next = attempt(&session, "k", EXACT).await;
    assert_eq!(adopt(&kept, &mut next), [(1, 1)].into());
    let taken = tasks_of(&next.stages()[&1]);
    assert!(
        matches!(&taken[0].task_status, Status::Successful(done) if done.executor_id == "heir")
    );
    // What moved moves on.
    moved.moves(&first, &rows, ("heir", &executor("e2")));
    assert!(!needs("heir", &first) && needs("e2", &first));
    moved.release("j");
    assert!(needs("leaves", &first) && !needs("e2", &first));
}

/// Returns the place of the rows that the task of the second partition of the first stage has written.
fn first_location(graph: &ExecutionGraphBox) -> PartitionLocation {
    let ExecutionStage::Running(stage) = &graph.stages()[&2] else {
        panic!("the second stage runs")
    };
    let outputs = stage.inputs[&1].partition_locations.values();
    let mut locations = outputs.flatten();
    let location = locations.find(|location| location.executor_meta.id == "leaves");
    location.expect("it wrote some").clone()
}

#[tokio::test]
async fn copies_outlive_their_executors() {
    let (session, _dir) = session().await;
    let session = with_store(&session);
    let kept = Kept::default();
    let mut first = attempt(&session, "j", EXACT).await;
    compute_all(&mut first, 1, ["e0", "e1", "e1"]);
    told(&kept, &first, 1, &[1, 2]);
    compute_all(&mut first, 2, ["e1", "e1", "e1"]);
    told(&kept, &first, 2, &[0, 2]);
    kept.capture(|| Some("j".to_owned()), (&first, &Places::default()), "e1");
    let all_there = |_: &str| Some(UNIX_EPOCH);
    let mut next = attempt(&session, "k", EXACT).await;
    let (taken, mut on) = adopt_by(&kept, &mut next, all_there);
    assert_eq!(taken, [(1, 3)].into());
    on.sort();
    assert_eq!(on, ["e0", "e0", "e2"], "one is here, and two are fetched");
    let (taken, on) = adopt_by(&kept, &mut next, all_there);
    assert_eq!(taken, [(2, 2)].into(), "one was not copied");
    assert_eq!(on.len(), 2);
    assert_eq!(pending(&next, 2), [1]);
    // The copies are still those of the first attempt, wherever the rows were fetched to.
    kept.capture(|| Some("j".to_owned()), (&next, &Places::default()), "e2");
    kept.loses("e0");
    let outputs = kept.jobs.lock()["j"].outputs.clone();
    let copies = outputs.iter().filter_map(|output| output.copies.as_ref());
    let of_first = copies.filter(|copies| {
        copies.attempt == "j"
            && copies
                .store
                .as_ref()
                .is_some_and(|url| url.as_str() == "s3://bucket/prefix")
    });
    assert_eq!(of_first.count(), 4);
    let mut last = attempt(&session, "l", EXACT).await;
    let (taken, _) = adopt_by(&kept, &mut last, all_there);
    assert_eq!(taken, [(1, 2)].into(), "what was linked has no copy");
    // Tasks of a job that has ended are not noted.
    kept.release("j");
    let task = Task {
        attempt: "l".to_owned(),
        stage: 1,
        number: 0,
    };
    kept.stored(|| None, task);
    assert!(kept.jobs.lock().is_empty());
}

#[tokio::test]
async fn copies_are_fetched_where_their_executors_take_no_tasks() {
    let (session, _dir) = session().await;
    let session = with_store(&session);
    let kept = Kept::default();
    let mut first = attempt(&session, "j", EXACT).await;
    compute_all(&mut first, 1, ["drains", "back", "drains"]);
    told(&kept, &first, 1, &[0, 1]);
    kept.capture(|| Some("j".to_owned()), (&first, &Places::default()), "e1");
    let mut next = attempt(&session, "k", EXACT).await;
    assert_eq!(adopt(&kept, &mut next), [(1, 2)].into());
    assert_eq!(pending(&next, 1), [2]);
    compute(&mut next, 1, 2, "e0");
    // What was fetched may be what cannot be read.
    kept.capture_unreadable(|| Some("j".to_owned()), (&next, &Places::default()), "e0");
    let mut last = attempt(&session, "l", EXACT).await;
    assert!(adopt(&kept, &mut last).is_empty());
}

#[tokio::test]
async fn tasks_of_the_last_stage_have_no_store() {
    let (session, _dir) = session().await;
    let session = with_store(&session);
    let mut graph = attempt(&session, "j", EXACT).await;
    let has_store = |(_, task): &BoundTask| {
        let settings: Option<&JobSettings> = task.session_config.options().extensions.get();
        settings.unwrap().shuffle_store.is_some()
    };
    for stage in [1, 2] {
        let task = bound(&mut graph, stage, 0, "e0");
        assert!(has_store(&task), "stage {stage}");
        succeed(&mut graph, &task);
        compute(&mut graph, stage, 1, "e0");
        compute(&mut graph, stage, 2, "e0");
    }
    assert!(!has_store(&bound(&mut graph, 3, 0, "e0")));
}
