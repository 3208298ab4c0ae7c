//! The cluster's work as tables: in SQL, and as the page's JSON.

use std::thread;
use std::time::Duration;

use volley_tests::{Cluster, eventually};

use crate::{create_model, write_table};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn sql_tells_of_the_work() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 400);
    let executors = cluster.query("SELECT * FROM volley.executors ORDER BY executor_id");
    assert_eq!(executors.len(), 2);
    assert_eq!(
        (&executors[0]["role"], &executors[0]["device"]),
        (&"any".into(), &"cpu".into())
    );
    // Executors in tests are built without CUDA.
    assert_eq!(executors[0]["free_gpus"], 0);
    let gpus = cluster.query("SELECT unnest(gpus) AS gpu FROM volley.executors");
    assert!(gpus.is_empty(), "{gpus:?}");

    // Ranks hold all slots meanwhile: these queries need none.
    let model = create_model("m", ", ranks = 2, epochs = 100000");
    let training = thread::scope(|scope| {
        let training =
            scope.spawn(|| cluster.run(&["--format", "json", "-c", &table, "-c", &model]));
        let run = eventually("a run that trains", SOON, || {
            let runs = cluster.query("SELECT * FROM volley.training_runs WHERE state = 'training'");
            let run = runs.into_iter().next()?;
            (run["epoch"].as_u64() > Some(3)).then_some(run)
        });
        assert_eq!((&run["model"], &run["ranks"]), (&"m".into(), &2.into()));
        assert!(run["loss"].as_f64() > Some(0.0) && run["eta_seconds"].as_f64() > Some(0.0));
        let ranks = cluster.query("SELECT rank, rows FROM volley.training_ranks ORDER BY rank");
        let rows: u64 = ranks.iter().filter_map(|rank| rank["rows"].as_u64()).sum();
        assert_eq!((ranks.len(), rows), (2, 400));
        let epochs = cluster.query("SELECT * FROM ML.TRAINING_INFO(MODEL m)");
        assert!(
            epochs.len() >= 3 && epochs[0]["published"] == false,
            "{epochs:?}"
        );
        let steps = "SELECT count(*) AS n, min(loss) AS least FROM volley.training_steps";
        assert!(cluster.query(steps)[0]["n"].as_u64() > Some(0));
        let stages = cluster.query("SELECT * FROM volley.stages WHERE kind = 'training'");
        assert_eq!(
            (&stages[0]["state"], &stages[0]["running"]),
            (&"running".into(), &2.into())
        );
        let busy = cluster.query("SELECT sum(free_slots) AS free FROM volley.executors");
        assert_eq!(busy[0]["free"], 0);
        let page = cluster.get("/");
        assert!(page.contains("<title>Volley</title>"), "{page}");
        let job = run_job(&cluster);
        let curve = cluster.get(&format!("/api/volley/training_steps?job={job}"));
        assert!(curve.contains("rows_per_second"), "{curve}");
        let points: Vec<serde_json::Value> = serde_json::from_str(&curve).unwrap();
        let first = points[0]["at"].as_u64().unwrap();
        let later = format!("/api/volley/training_steps?job={job}&after={first}");
        let later: Vec<serde_json::Value> = serde_json::from_str(&cluster.get(&later)).unwrap();
        assert!(later.len() + 1 >= points.len());
        assert!(later.iter().all(|point| point["at"].as_u64() > Some(first)));
        assert!(cluster.get("/api/volley/jobs?job=none").contains("[]"));
        cluster.manage_jobs(&["cancel", &job]);
        training.join().unwrap()
    });
    assert_eq!(training.code, Some(1), "it was cancelled");
    let json = |line: &&str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    let told = training.stderr.lines().filter(json).count();
    assert!(
        told > 3,
        "progress is JSON where rows are:\n{}",
        training.stderr
    );

    let log =
        "SELECT text FROM volley.log WHERE train_id IS NOT NULL AND text LIKE 'generation 1%'";
    assert_eq!(cluster.query(log).len(), 1);
    let joined =
        format!("{table}SELECT count(*) AS n FROM t JOIN volley.executors e ON t.id < e.slots");
    assert!(
        cluster.query(&joined)[0]["n"].as_u64() >= Some(2),
        "rows go with the plan"
    );
}

fn run_job(cluster: &Cluster) -> String {
    let jobs = cluster.query("SELECT job_id FROM volley.jobs WHERE state = 'running'");
    jobs[0]["job_id"].as_str().unwrap().to_owned()
}

#[test]
fn explain_analyze_tells_of_every_stage() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 400);
    let sql = format!(
        "SET volley.single_task_bytes = 0; {table}EXPLAIN ANALYZE SELECT k, count(*) FROM t GROUP BY k"
    );
    let parts = cluster.query(&sql);
    let stages: Vec<&str> = parts
        .iter()
        .filter_map(|part| part["plan_type"].as_str())
        .collect();
    assert_eq!(stages, ["query", "stages", "stage 1", "stage 2"]);
    let told = parts[1]["plan"].as_str().unwrap();
    assert!(told.starts_with("stage  tasks"), "{told}");
    let first = parts[2]["plan"].as_str().unwrap();
    assert!(
        first.contains("AggregateExec") && first.contains("Exec: rows="),
        "{first}"
    );
    let create = create_model("m", ", ranks = 2");
    let parts = cluster.query(&format!("{table}EXPLAIN {create}"));
    let needs = parts[0]["plan"].as_str().unwrap();
    for line in ["2 can run one now", "all-reduced a step", "a rank's memory"] {
        assert!(needs.contains(line), "{line} in\n{needs}");
    }
    assert!(
        cluster.query("SHOW MODELS").is_empty(),
        "nothing was trained"
    );
}

#[test]
fn what_executors_warn_of_is_in_the_log() {
    let cluster = Cluster::start(1);
    let table = write_table(cluster.dir(), 50);
    cluster.fail(&format!("{table}SELECT 1 / k AS inverse FROM t"));
    let log = "SELECT executor_id, text, name FROM volley.log \
               JOIN volley.jobs ON jobs.job_id = log.job_id \
               WHERE executor_id IS NOT NULL AND failure";
    let line = eventually("the executor's error", SOON, || {
        cluster.query(log).into_iter().next()
    });
    assert_eq!(line["executor_id"], "executor-0");
    let (text, name) = (
        line["text"].as_str().unwrap(),
        line["name"].as_str().unwrap(),
    );
    assert!(
        text.starts_with("task failed") && text.contains("division by zero"),
        "{text}"
    );
    assert!(name.contains("inverse"), "{name}");
}
