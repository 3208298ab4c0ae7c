//! Traces of jobs: a collector receives one trace for each job, with spans from all processes, whatever becomes of the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use volley_proto::traces::{Part, Place};
use volley_tests::{
    Cluster, CollectedSpan, Collector, JobState, Setup, SpanStatus, eventually, executor_id,
};

use crate::{create_model, write_table};

const SOON: Duration = Duration::from_secs(60);

/// Name of the span above each span.
const ABOVE: [(&str, &str); 9] = [
    ("attempt", "job"),
    ("checkpoint", "rank"),
    ("client", "job"),
    ("generation", "stage"),
    ("planning", "attempt"),
    ("publication", "rank"),
    ("rank", "task"),
    ("stage", "attempt"),
    ("task", "stage"),
];

fn cluster(collector: &Collector) -> Cluster {
    let to = || vec!["--otlp-endpoint".to_owned(), collector.endpoint()];
    Cluster::start_with(Setup {
        executors: 2,
        scheduler_args: to(),
        executor_args: to(),
        always_in_stages: true,
        ..Setup::default()
    })
}

fn place(job: &str) -> Place<'_> {
    let part = Part::Job;
    Place { job, part }
}

/// A job's spans, by name.
struct Trace(BTreeMap<String, Vec<CollectedSpan>>);

impl Trace {
    /// Waits for the spans of a job, until there is each of these, and one for each task that its stages have placed.
    fn of(collector: &Collector, job: &str, due: &[&str]) -> Self {
        let id = place(job).trace_id().to_string();
        eventually(&format!("{due:?} of job {job}"), SOON, || {
            let mut named = BTreeMap::<String, Vec<CollectedSpan>>::new();
            for span in collector.trace(&id) {
                named.entry(span.name.clone()).or_default().push(span);
            }
            let trace = Self(named);
            let placed = trace.all("stage").iter();
            let placed = placed.map(|stage| stage.attribute("volley.stage.tasks"));
            let placed: usize = placed.map(|tasks| tasks.parse::<usize>().unwrap()).sum();
            let is_whole = due.iter().all(|name| !trace.all(name).is_empty());
            (is_whole && trace.all("task").len() == placed).then_some(trace)
        })
    }

    fn all(&self, name: &str) -> &[CollectedSpan] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    fn only(&self, name: &str) -> &CollectedSpan {
        let [span] = self.all(name) else {
            panic!("one {name}: {:?}", self.all(name))
        };
        span
    }

    /// Checks that each span is below the one that it belongs to, and was sent once, by its process.
    fn check(&self, job: &str) {
        let root = self.only("job");
        assert_eq!(root.id, place(job).span_id().to_string());
        assert_eq!(root.parent, None);
        let by_id: BTreeMap<_, _> = self
            .0
            .values()
            .flatten()
            .map(|span| (&span.id, span))
            .collect();
        assert_eq!(by_id.len(), self.0.values().flatten().count());
        for span in self.0.values().flatten() {
            assert_eq!(span.attribute("volley.job.id"), job);
            let [begun, ended] = span.times;
            assert!(begun <= ended, "{span:?}");
            let by = match &*span.name {
                "client" => "volley",
                "task" | "rank" | "checkpoint" | "publication" => "volley-executor",
                _ => "volley-scheduler",
            };
            assert_eq!(span.service, by, "{span:?}");
            let above = ABOVE.iter().find(|(name, _)| *name == span.name);
            let Some((_, above)) = above else {
                assert_eq!(span.name, "job");
                continue;
            };
            let parent = span.parent.as_ref().unwrap();
            let parent = by_id
                .get(parent)
                .unwrap_or_else(|| panic!("nothing above {span:?}"));
            assert_eq!(parent.name, *above, "{span:?}");
        }
    }
}

/// Runs a statement. Returns the job that it was.
fn job_of(
    cluster: &Cluster,
    collector: &Collector,
    table: &str,
    sql: &str,
) -> (Option<i32>, String) {
    let ids = || {
        let jobs = eventually("the jobs", SOON, || cluster.jobs());
        jobs.into_iter().map(|job| job.id).collect::<BTreeSet<_>>()
    };
    let before = ids();
    let endpoint = collector.endpoint();
    let run = cluster.run(&["--otlp-endpoint", &endpoint, "-c", table, "-c", sql]);
    let after = ids();
    let new: Vec<_> = after.difference(&before).cloned().collect();
    let [job] = &new[..] else {
        panic!("one job: {new:?}, {}", run.stderr)
    };
    (run.code, job.clone())
}

#[test]
fn a_query_has_one_trace_whether_it_succeeds_or_fails() {
    let collector = Collector::start();
    let cluster = cluster(&collector);
    let table = write_table(cluster.dir(), 400);
    let due = ["job", "client", "attempt", "planning", "stage", "task"];

    let counts = "SELECT k, count(*) AS n FROM t GROUP BY k";
    let (code, job) = job_of(&cluster, &collector, &table, counts);
    assert_eq!(code, Some(0));
    let trace = Trace::of(&collector, &job, &due);
    trace.check(&job);
    for span in ["job", "attempt", "planning"].map(|name| trace.only(name)) {
        assert_eq!(span.status, SpanStatus::Succeeded, "{span:?}");
    }
    let root = trace.only("job");
    assert_eq!(root.attribute("volley.job.state"), "succeeded");
    assert_eq!(root.attribute("volley.job.queue"), "default");
    assert!(!root.attribute("volley.job.owner").is_empty());
    assert_eq!(trace.only("client").attribute("volley.rows"), "7");
    let stages = trace.all("stage");
    assert!(stages.len() > 1, "{stages:?}");
    for span in stages.iter().chain(trace.all("task")) {
        assert_eq!(span.status, SpanStatus::Succeeded, "{span:?}");
    }
    let executors = [0, 1].map(executor_id);
    for task in trace.all("task") {
        assert!(executors.contains(&task.instance), "{task:?}");
        assert_eq!(task.attribute("volley.executor.id"), task.instance);
        task.attribute("volley.rows").parse::<u64>().unwrap();
        task.attribute("volley.bytes").parse::<u64>().unwrap();
    }

    let (code, job) = job_of(&cluster, &collector, &table, "SELECT 1 / (k - 3) FROM t");
    assert_eq!(code, Some(1));
    let trace = Trace::of(&collector, &job, &due);
    trace.check(&job);
    let is_failure = |span: &CollectedSpan| match &span.status {
        SpanStatus::Failed(error) => error.contains("division by zero"),
        SpanStatus::Succeeded | SpanStatus::Unset => false,
    };
    for span in ["job", "client", "attempt"].map(|name| trace.only(name)) {
        assert!(is_failure(span), "{span:?}");
    }
    assert!(trace.all("task").iter().any(is_failure));
    assert_eq!(trace.only("planning").status, SpanStatus::Succeeded);
    let root = trace.only("job");
    assert_eq!(root.attribute("volley.job.state"), "failed");
}

#[test]
fn a_training_has_one_trace_with_its_ranks() {
    let collector = Collector::start();
    let cluster = cluster(&collector);
    let table = write_table(cluster.dir(), 400);
    let train = create_model("m", ", ranks = 2, epochs = 2");
    let endpoint = collector.endpoint();
    let run = cluster.run(&["--otlp-endpoint", &endpoint, "-c", &table, "-c", &train]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    // Other jobs may have prepared it.
    let job = eventually("the training's span", SOON, || {
        let mut spans = collector.spans().into_iter();
        let trains = |span: &CollectedSpan| {
            span.name == "job" && span.attributes.contains_key("volley.train.id")
        };
        let root = spans.find(trains)?;
        Some(root.attribute("volley.job.id").to_owned())
    });
    let due = [
        "attempt",
        "checkpoint",
        "client",
        "generation",
        "job",
        "planning",
        "publication",
        "rank",
        "stage",
        "task",
    ];
    let trace = Trace::of(&collector, &job, &due);
    trace.check(&job);
    let train = trace.only("job").attribute("volley.train.id");
    let generation = trace.only("generation");
    assert_eq!(generation.attribute("volley.train.id"), train);
    assert_eq!(generation.attribute("volley.generation"), "1");
    assert_eq!(generation.attribute("volley.ranks"), "2");
    assert_eq!(generation.status, SpanStatus::Succeeded);
    let ranks = trace.all("rank");
    let of_ranks = |key: &str| -> BTreeSet<String> {
        let values = ranks.iter().map(|rank| rank.attribute(key).to_owned());
        values.collect()
    };
    let set = |values: &[&str]| -> BTreeSet<String> {
        let values = values.iter().map(|value| (*value).to_owned());
        values.collect()
    };
    assert_eq!(ranks.len(), 2);
    assert_eq!(of_ranks("volley.rank"), set(&["0", "1"]));
    assert_eq!(of_ranks("volley.train.id"), set(&[train]));
    assert_eq!(of_ranks("volley.generation"), set(&["1"]));
    assert_eq!(of_ranks("volley.model"), set(&["m"]));
    let executors = BTreeSet::from([0, 1].map(executor_id));
    assert_eq!(of_ranks("volley.executor.id"), executors);
    for rank in ranks {
        assert_eq!(rank.status, SpanStatus::Succeeded, "{rank:?}");
        let epochs = rank.events.iter().filter(|event| *event == "epoch");
        assert_eq!(epochs.count(), 2, "{rank:?}");
    }
    let publication = trace.only("publication");
    assert_eq!(publication.status, SpanStatus::Succeeded);
    let first = ranks
        .iter()
        .find(|rank| rank.attribute("volley.rank") == "0");
    assert_eq!(publication.parent.as_ref(), first.map(|rank| &rank.id));
}

/// Waits until a rank of an attempt has met the others.
fn ranks_meet(cluster: &mut Cluster, attempt: &str) {
    eventually("the ranks to meet", SOON, || {
        let log = cluster.executors()[0].output();
        let mut lines = log.lines().filter(|line| line.contains("rank joined"));
        lines.any(|line| line.contains(attempt)).then_some(())
    });
}

#[test]
fn a_restarted_scheduler_continues_the_trace() {
    let collector = Collector::start();
    let mut cluster = cluster(&collector);
    let table = write_table(cluster.dir(), 400);
    let train = create_model("m", ", ranks = 2, epochs = 1000000");
    let run = cluster.run(&["--detach", "-c", &table, "-c", &train]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let jobs = eventually("the jobs", SOON, || cluster.jobs());
    let mut running = jobs
        .into_iter()
        .filter(|job| job.state == JobState::Running);
    let job = running.next().expect("the training runs").id;
    ranks_meet(&mut cluster, &job);
    cluster.restart_scheduler();
    let again = eventually("another attempt", SOON, || {
        let attempts = cluster.job(&job)?.attempts;
        (attempts.len() == 2).then(|| attempts[1].clone())
    });
    ranks_meet(&mut cluster, &again);
    let cancelled = cluster.manage_jobs(&["cancel", &job]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);

    let id = place(&job).trace_id().to_string();
    let spans = eventually("the job's span, and ranks of two attempts", SOON, || {
        let spans = collector.trace(&id);
        let ranks = spans.iter().filter(|span| span.name == "rank");
        let attempts = ranks.map(|rank| rank.attribute("volley.attempt.id"));
        let attempts = attempts.collect::<BTreeSet<_>>().len();
        let has_ended = spans.iter().any(|span| span.name == "job");
        (has_ended && attempts == 2).then_some(spans)
    });
    let roots: Vec<_> = spans.iter().filter(|span| span.name == "job").collect();
    let [root] = roots[..] else {
        panic!("one root: {roots:?}")
    };
    assert_eq!(root.attribute("volley.job.id"), job);
    assert_eq!(root.attribute("volley.job.state"), "cancelled");
    assert_eq!(root.attribute("volley.job.attempts"), "2");
    assert_eq!(root.status, SpanStatus::Unset);
    let first = spans.iter().map(|span| span.times[0]).min();
    assert_eq!(first, Some(root.times[0]), "it began before the restart");
}
