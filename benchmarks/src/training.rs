//! Training speed: the Rossmann network on the Rossmann features, compared with PyTorch.
//!
//! Both read the same rows from the same Parquet file and train two epochs from fresh weights; the second is
//! measured. The seconds before the first step are not included (`barrier` measures them), nor is evaluation.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde_json::json;

use crate::cluster::{Cluster, Layout, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, median, number};
use crate::example::{Example, Training};
use crate::peers::{Peer, Peers};

/// Number of epochs: the first warms up, the last is measured.
const EPOCHS: usize = 2;
/// Tolerated relative difference between the losses of both systems.
const LOSSES_WITHIN: f64 = 0.2;
const PYTORCH: &str = "PyTorch";
/// PyTorch variants and their arguments: the first is the system of the targets, the others may be faster.
const VARIANTS: [(&str, &[&str]); 3] = [
    (PYTORCH, &[]),
    ("PyTorch, tuned malloc", &["--tuned-malloc"]),
    ("PyTorch, torch.compile", &["--compile"]),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Rows of one rank in one step
    #[arg(long, value_delimiter = ',', default_value = "100,1024,8192")]
    batches: Vec<usize>,
    /// Ranks, each a process, and the threads of each
    #[arg(long, value_delimiter = ',', default_value = "1x1,1x2,2x1")]
    worlds: Vec<Shape>,
    /// Leave out the variants of PyTorch without a target
    #[arg(long)]
    eager_only: bool,
    /// Leave out PyTorch
    #[arg(long)]
    alone: bool,
    /// Two layers of 16 units instead of the example's four of up to 1000: little but sums and embeddings
    #[arg(long, requires = "alone")]
    tiny: bool,
}

/// Processes and threads of a world; written `RANKSxTHREADS` as an argument.
#[derive(Debug, Clone, Copy)]
struct Shape {
    ranks: usize,
    /// Threads per rank.
    threads: usize,
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts = text
            .split_once('x')
            .map(|(ranks, threads)| (ranks.parse(), threads.parse()));
        match parts {
            Some((Ok(ranks @ 1..), Ok(threads @ 1..))) => Ok(Self { ranks, threads }),
            _ => bail!("expected RANKSxTHREADS, as 2x1, not {text:?}"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, threads } = self;
        write!(f, "{ranks} rank{}", if *ranks == 1 { "" } else { "s" })?;
        match threads {
            1 => Ok(()),
            _ => write!(f, " of {threads} threads"),
        }
    }
}

/// Measurements of one training.
struct Measured {
    rows_per_second: f64,
    /// Mean loss over the last epoch's rows.
    loss: f64,
    /// Share of the time in which ranks sum and wait for each other, where it is known.
    reduce_share: Option<f64>,
}

/// Processes of one world.
struct World {
    shape: Shape,
    cluster: Cluster,
    _dir: tempfile::TempDir,
}

/// Runs the comparison and writes the results into a folder.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let data = std::path::absolute(&args.data)?;
    let dir = scratch_folder()?;
    let worlds = args.worlds.iter().map(|shape| World::start(*shape));
    let worlds = worlds.collect::<anyhow::Result<Vec<_>>>()?;
    let example = |world: usize| Example {
        cluster: &worlds[world].cluster,
        data: &data,
        out: dir.path(),
    };
    let trainings = trainings(args);
    let most = trainings.iter().map(|(_, training)| training.rows).max();
    example(0).export()?;
    let sample = example(0).sample(most.context("neither batches nor ranks")?)?;

    let variants = match args {
        Args { alone: true, .. } => 0,
        Args {
            eager_only: true, ..
        } => 1,
        _ => VARIANTS.len(),
    };
    let mut pytorch = Vec::new();
    if variants > 0 {
        let peers = Peers::install("training")?;
        for (system, flags) in &VARIANTS[..variants] {
            let log = dir.path().join(format!("pytorch-{}", pytorch.len()));
            std::fs::create_dir(&log)?;
            pytorch.push((*system, peers.start("training.py", flags, &log)?));
        }
    }
    let mut comparison = Comparison::new("training", "Training speed", METHOD);
    if let Some((_, peer)) = pytorch.first_mut() {
        comparison.note_versions(&peer.ask(&json!({ "versions": true }))?);
    }
    let cases = trainings
        .iter()
        .map(|(world, training)| case(worlds[*world].shape, training));
    comparison.cases.extend(cases);
    let mut losses = vec![Vec::new(); trainings.len()];
    let mut reduce_shares = vec![Vec::new(); trainings.len()];
    for round in 0..args.rounds {
        for (at, (world, training)) in trainings.iter().enumerate() {
            for turn in 0..=pytorch.len() {
                // The order of the systems rotates by round.
                let turn = (turn + round) % (pytorch.len() + 1);
                let (system, measured) = match turn.checked_sub(1).map(|peer| &mut pytorch[peer]) {
                    None => (VOLLEY, volley(&example(*world), training)),
                    Some((system, peer)) => {
                        (*system, ask(peer, &sample, worlds[*world].shape, training))
                    }
                };
                let measured = match measured {
                    Err(error) if ![VOLLEY, PYTORCH].contains(&system) => {
                        comparison.remark(format!("{system} does not run: {error}."));
                        continue;
                    }
                    measured => measured.with_context(|| format!("{system}, {training:?}"))?,
                };
                let Measured {
                    rows_per_second,
                    loss,
                    reduce_share,
                } = measured;
                reduce_shares[at].extend(reduce_share);
                eprintln!(
                    "round {round}, {}: {system} {rows_per_second:.0} rows/s, loss {loss:.4}",
                    comparison.cases[at].name
                );
                comparison.cases[at].push(system, rows_per_second);
                if round == 0 {
                    losses[at].push((system, loss));
                }
            }
        }
    }
    for (case, losses) in comparison.cases.iter().zip(&losses) {
        check(&case.name, losses)?;
    }
    let names = || comparison.cases.iter().map(|case| case.name.clone());
    let shares = names().zip(&reduce_shares);
    let shares = shares.map(|(name, shares)| format!("{name}: {:.1} %", median(shares) * 100.0));
    let shares = shares.collect::<Vec<_>>().join("; ");
    let remark: Vec<_> = names().zip(&losses).map(told).collect();
    comparison.remark(format!(
        "Share of the epoch in which Volley's ranks sum and wait for each other, the median of the rounds: {shares}."
    ));
    if args.tiny {
        comparison.remark("Two layers of 16 units, not the example's four.".to_owned());
    }
    comparison.remark(format!(
        "Mean losses over the measured epoch: {}.",
        remark.join("; ")
    ));
    comparison.write(results)
}

const METHOD: &str = "The network of `examples/rossmann/train.sql` on some rows of the Rossmann \
    features, from one Parquet file: two epochs from fresh weights, of which the second is measured \
    (forward, backward, the sum over ranks and the optimizer; not reading, encoding or evaluation). \
    A rank is a process with so many threads, one where nothing is said, and each thread has a core. Volley is a \
    scheduler and executors of as many slots, given `CREATE MODEL`, and its figure is the epoch's record in the model. PyTorch is eager, with \
    fused Adam, one embedding table for all features, tensors in memory, and for two ranks \
    DistributedDataParallel over gloo. Rounds alternate between the systems.";

/// Returns the world and the training of each case.
fn trainings(args: &Args) -> Vec<(usize, Training)> {
    let of = |(world, Shape { ranks, .. }): (usize, &Shape)| {
        let of = |batch_size: &usize| {
            // The number of steps is large enough to measure, and small enough to repeat.
            let steps = match batch_size {
                ..=256 => 150,
                ..=2048 => 40,
                _ => 10,
            };
            let training = Training {
                rows: steps * batch_size * ranks,
                ranks: *ranks,
                batch_size: *batch_size,
                epochs: EPOCHS,
                device: "cpu",
                tiny: args.tiny,
            };
            (world, training)
        };
        args.batches.iter().map(of).collect::<Vec<_>>()
    };
    args.worlds.iter().enumerate().flat_map(of).collect()
}

/// Returns an empty case, with its target if there is one.
fn case(shape: Shape, training: &Training) -> Case {
    let batch_size = training.batch_size;
    let case = Case::new(format!("{shape}, batch {batch_size}"), Unit::RowsPerSecond);
    match (shape.ranks, shape.threads, batch_size) {
        (1, 1, 100) => case.at_least(1.3, PYTORCH),
        (1, 1, 1024) => case.at_least(1.1, PYTORCH),
        (1, 1 | 2, 8192) => case.at_least(1.05, PYTORCH),
        (1, 2, 100) | (2, 1, 100) => case.at_least(1.5, PYTORCH),
        (1, 2, 1024) | (2, 1, 1024) => case.at_least(1.15, PYTORCH),
        (2, 1, 8192) => case.at_least(1.1, PYTORCH),
        _ => case,
    }
}

fn volley(example: &Example<'_>, training: &Training) -> anyhow::Result<Measured> {
    let trained = example.train(training)?;
    let epoch = trained.history.last().context("no epoch")?;
    Ok(Measured {
        rows_per_second: epoch.rows_per_second(),
        loss: epoch.loss,
        reduce_share: Some(epoch.reduce_share()),
    })
}

fn ask(
    peer: &mut Peer,
    sample: &Path,
    shape: Shape,
    training: &Training,
) -> anyhow::Result<Measured> {
    let question = json!({
        "parquet": sample,
        "rows": training.rows,
        "batch": training.batch_size,
        "ranks": shape.ranks,
        "threads": shape.threads,
    });
    let answer = peer.ask(&question)?;
    let of = |name: &str| answer[name].as_f64().with_context(|| format!("no {name}"));
    ensure!(
        of("rows")? == training.rows as f64,
        "trained on other rows: {answer}"
    );
    Ok(Measured {
        rows_per_second: of("rows")? / of("seconds")?,
        loss: of("loss")?,
        reduce_share: None,
    })
}

/// Checks that all systems trained alike: losses are finite and near Volley's.
fn check(case: &str, losses: &[(&str, f64)]) -> anyhow::Result<()> {
    let volley = losses.iter().find(|(system, _)| *system == VOLLEY);
    let (_, volley) = volley.context("Volley was not measured")?;
    for (system, loss) in losses {
        if !loss.is_finite() || (loss - volley).abs() > LOSSES_WITHIN * volley {
            bail!("{case}: {system} has a loss of {loss}, {VOLLEY} of {volley}");
        }
    }
    Ok(())
}

fn told((case, losses): (String, &Vec<(&str, f64)>)) -> String {
    let each = losses
        .iter()
        .map(|(system, loss)| format!("{system} {}", number(*loss)));
    format!("{case}: {}", each.collect::<Vec<_>>().join(", "))
}

impl World {
    fn start(shape: Shape) -> anyhow::Result<Self> {
        let dir = scratch_folder()?;
        let layout = Layout {
            slots: shape.threads,
            ..Layout::of(shape.ranks)
        };
        let cluster = Cluster::start_with(dir.path(), layout)?;
        Ok(Self {
            shape,
            cluster,
            _dir: dir,
        })
    }
}
