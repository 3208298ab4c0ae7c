//! The barrier between queries and training: the time from the last feature task's end to the first optimizer step,
//! on the whole Rossmann job.
//!
//! ```text
//!  feature tasks ─┬─ placement ─┬─ rendezvous ─┬─ streaming ─┬─ agreement, first step ─┬─ training
//!                 │             │              │             │                         │
//!  told by   executors' logs  scheduler's  executors'   client's progress     the first checkpoint's
//!                             log          logs         lines                 file in the store
//! ```
//!
//! It requests a checkpoint after every step, to observe the first one; training is then killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};

use crate::cluster::{Cluster, Owned, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY};
use crate::example::{self, Example, Training, command, file, training_defines};

/// Time limit for computing the features, and for the first step.
const DEADLINE: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Rounds, each on a new cluster
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Executors, each a process with one slot and one rank
    #[arg(long, default_value_t = 2)]
    executors: usize,
    /// Rows of one rank in one step
    #[arg(long, default_value_t = 50)]
    batch_size: usize,
}

/// Times of the events.
#[derive(Debug)]
struct Times {
    features: DateTime<Utc>,
    bound: DateTime<Utc>,
    joined: DateTime<Utc>,
    loaded: DateTime<Utc>,
    stepped: DateTime<Utc>,
}

/// Runs the measurement and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let mut comparison = Comparison::new("barrier", "From features to the first step", METHOD);
    let case = |name: &str| Case::new(name, Unit::Seconds);
    comparison.cases = vec![
        case("the last feature task to the first step").at_most(2.0),
        case("of it: placement"),
        case("of it: rendezvous"),
        case("of it: streaming and connecting"),
        case("of it: agreement and the first step"),
    ];
    for round in 0..args.rounds {
        let times = measure(args).with_context(|| format!("round {round}"))?;
        let Times {
            features,
            bound,
            joined,
            loaded,
            stepped,
        } = times;
        let spans = [
            (features, stepped),
            (features, bound),
            (bound, joined),
            (joined, loaded),
            (loaded, stepped),
        ];
        let mut told = Vec::new();
        for (case, (from, to)) in comparison.cases.iter_mut().zip(spans) {
            let seconds = (to - from).as_seconds_f64();
            case.push(VOLLEY, seconds);
            told.push(format!("{seconds:.3}"));
        }
        eprintln!("round {round}: {} s", told.join(", "));
    }
    comparison.write(results)
}

const METHOD: &str = "`tables.sql`, `features.sql` and `train.sql` of `examples/rossmann` on all rows, \
    each round on a new cluster: a scheduler and executors of one slot as processes. Feature tasks end \
    when the last of them does, by the executors' logs. Placement is until the scheduler has bound the \
    ranks' tasks; rendezvous until the last rank has joined; streaming until the client is told that \
    the last rank has its rows and is connected; the rest holds the agreement on vocabularies and \
    rows, the canonical order, the initial weights and the first step, and ends when the checkpoint \
    of that step is begun to be written, so it holds that checkpoint's encoding too.";

fn measure(args: &Args) -> anyhow::Result<Times> {
    let dir = scratch_folder()?;
    let cluster = Cluster::start(dir.path(), args.executors)?;
    let statement = example::statement("checkpoint_every = 1")?;
    let example = Example {
        cluster: &cluster,
        data: &std::path::absolute(&args.data)?,
        out: dir.path(),
    };
    let training = Training {
        rows: 0,
        ranks: args.executors,
        batch_size: args.batch_size,
        epochs: 1,
        device: "auto",
        tiny: false,
    };
    let client = cluster
        .client()?
        .args(example.defines(&training_defines(&training)))
        .args([file("tables.sql"), file("features.sql")])
        .arg(command(&statement))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut client = Client::follow(client)?;
    let stepped = client.first_checkpoint(&cluster.store().join("models/rossmann/checkpoints"))?;
    let loaded = client.loaded(args.executors)?;

    let executors = || (0..args.executors).map(|at| cluster.log(&format!("executor-{at}")));
    let last = |text: &str| executors().filter_map(|log| last(&log, text)).max();
    let times = Times {
        features: last("Finished task").context("no executor has logged a finished task")?,
        bound: self::last(&cluster.log("scheduler"), "gang bound")
            .context("the scheduler has not logged that it bound the ranks' tasks")?,
        joined: last("rank joined").context("no executor has logged that its rank joined")?,
        loaded,
        stepped,
    };
    let Times {
        features,
        bound,
        joined,
        loaded,
        stepped,
    } = &times;
    let order = [features, bound, joined, loaded, stepped];
    ensure!(order.is_sorted(), "not in order: {times:?}");
    Ok(times)
}

/// Returns the time of a log's last line with this text.
fn last(log: &str, text: &str) -> Option<DateTime<Utc>> {
    let line = log.lines().rfind(|line| line.contains(text))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Training client; killed when dropped.
struct Client {
    child: Owned,
    /// Lines of its standard error, with their times.
    lines: Receiver<(DateTime<Utc>, String)>,
}

impl Client {
    fn follow(mut child: Child) -> anyhow::Result<Self> {
        let stderr = child.stderr.take().context("it has no standard error")?;
        let (say, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if say.send((Utc::now(), line)).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child: Owned(child),
            lines,
        })
    }

    /// Waits for the first checkpoint's file, and returns its creation time.
    fn first_checkpoint(&mut self, checkpoints: &Path) -> anyhow::Result<DateTime<Utc>> {
        let started = Instant::now();
        loop {
            if let Some(made) = find_first(checkpoints) {
                return Ok(made.into());
            }
            if let Some(status) = self.child.0.try_wait()? {
                let said: Vec<_> = self.lines.try_iter().map(|(_, line)| line).collect();
                bail!("training ended before its first step: {status}: {said:?}");
            }
            ensure!(started.elapsed() < DEADLINE, "no step within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the time when the client reported that the last rank has its rows.
    fn loaded(&self, ranks: usize) -> anyhow::Result<DateTime<Utc>> {
        let mut loaded = Vec::new();
        while loaded.len() < ranks {
            let line = self.lines.recv_timeout(Duration::from_secs(5));
            let (at, line) = line.context("the client does not say that its ranks have rows")?;
            // {"event":"rank 0: 423,000 rows loaded in 1.2 s"}
            if line.contains("\"rank ") && line.contains(" loaded in ") {
                loaded.push(at);
            }
        }
        loaded.into_iter().max().context("no ranks")
    }
}

/// Returns the creation time of the checkpoint file at step 1 of any run, if there is one.
fn find_first(checkpoints: &Path) -> Option<SystemTime> {
    let runs = std::fs::read_dir(checkpoints).ok()?;
    runs.flatten().find_map(|run| {
        let file = run.path().join("000001-000000000001.state");
        file.metadata().ok()?.created().ok()
    })
}
