//! A speed measurement of the trainer on made-up rows, without a cluster and without data, for GPUs above all. It
//! prints a line of JSON per case.
//!
//! ```text
//!   $ volley-train --device cuda:0 --batch 100,1024 --precision tf32
//!   {"system":"Volley","network":"rossmann","device":"cuda:0","precision":"tf32","batch":100,…}
//!   $ volley-train --device cuda:0 --batch 100 --compare    the same on the CPU, and both losses
//! ```
//!
//! Speeds are those of each epoch but the first, from the epochs' records: the optimizer's steps, without loading and
//! evaluation. The memory allocator is the system's, while executors have their own.
//!
//! The trainer chooses between a plan, Burn and the CPU: `computed_on` and the log on standard error name its choice.
//!
//! With `--address`, a process is one of the `--ranks` ranks, and whoever starts them is their rendezvous, as that of
//! `volley-collective` is:
//!
//! ```text
//!   $ volley-train --ranks 2 --address 10.0.0.1
//!   > (an endpoint)                              address for its peers, once for each case
//!   < (a membership)                             list of all ranks
//!   > {"system":"Volley",…}                      rank 0 only
//! ```

mod networks;
mod rossmann;
mod tables;

use std::error::Error;
use std::io::{Write, stderr, stdin, stdout};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::process::ExitCode;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytesize::ByteSize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use volley_proto::address::{ListenAddress, PortRange};
use volley_proto::metrics::status_bytes;
use volley_proto::spec::{Device, Precision, RankDevice, TrainSpec};
use volley_proto::store::EpochRecord;
use volley_trainer::collective::{Communicator, Listener, Membership, Options};
use volley_trainer::custom::CustomLayers;
use volley_trainer::{Observer, Origin, Rank, RowMemory, ShardCache, resolve_device, train};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const USAGE: &str = "\
usage: volley-train [--network rossmann|default-ensemble|linear|tables] [--codes N] [--device cpu|cuda:N|wgpu:N]
                    [--batch ROWS,…] [--precision NAME,…] [--threads N] [--rows ROWS] [--epochs N] [--compare]
                    [--ranks N] [--shards N] [--row-memory SIZE] [--address IP]";

/// Rows that losses are compared on, if more than one batch: few, since the CPU trains on them too.
const COMPARED_ROWS: usize = 8192;

#[derive(Debug)]
struct Args {
    network: String,
    /// Rows of all tables of the network `tables`.
    codes: usize,
    device: Device,
    batches: Vec<usize>,
    /// Requested precisions; the device's own, if none are given.
    precisions: Vec<Option<Precision>>,
    /// Number of rows; enough steps to measure, if not given.
    rows: Option<usize>,
    epochs: Option<usize>,
    threads: NonZeroUsize,
    ranks: usize,
    shards: usize,
    /// Memory for a rank's rows, beyond which they go to temporary files; unlimited, if not given.
    row_memory: Option<ByteSize>,
    /// Address of this process, if it is one rank of several processes.
    address: Option<IpAddr>,
    compare: bool,
}

/// Source of made-up rows, generated on request.
#[derive(Debug, Clone, Copy)]
struct Source {
    rows: usize,
    /// Number of values of all features, in tables of any size.
    codes: Option<usize>,
}

impl Source {
    /// Maximum number of rows of a record batch.
    const BATCH: usize = 1000;

    /// Iterates over the batches of one of this many shards.
    fn shard(self, shard: usize, shards: usize) -> impl Iterator<Item = RecordBatch> + Send {
        let end = |shard: usize| self.rows * shard / shards;
        let (first, end) = (end(shard), end(shard + 1));
        let firsts = (first..end).step_by(Self::BATCH);
        firsts.map(move |first| self.batch(first..end.min(first + Self::BATCH)))
    }

    fn schema(self) -> SchemaRef {
        self.batch(0..1).schema()
    }

    fn batch(self, rows: Range<usize>) -> RecordBatch {
        match self.codes {
            Some(codes) => tables::batch(codes, rows),
            None => rossmann::batch(rows),
        }
    }
}

/// Training to measure.
#[derive(Debug)]
struct Case<'a> {
    args: &'a Args,
    device: Device,
    /// Requested precision.
    precision: Option<Precision>,
    batch: usize,
    epochs: usize,
}

/// Result of a training.
#[derive(Debug)]
struct Trained {
    history: Vec<EpochRecord>,
    /// Mean loss of the rows with the last weights, without dropout.
    final_loss: f64,
    computed: RankDevice,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(stderr)
        .with_ansi(false)
        .init();
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("caused by: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}

/// Trains each case and prints its line.
fn run() -> Result<()> {
    let args = Args::parse(std::env::args().skip(1))?;
    for batch in &args.batches {
        let rows = args.rows_of(*batch);
        let source = match args.network.as_str() {
            "tables" => Source {
                rows: rows.max(tables::values(args.codes)),
                codes: Some(args.codes),
            },
            _ => Source { rows, codes: None },
        };
        let case = |device, precision| Case {
            args: &args,
            device,
            precision,
            batch: *batch,
            epochs: args.epochs.unwrap_or(if args.compare { 1 } else { 4 }),
        };
        let on_cpu = match args.compare {
            true => case(Device::Cpu, None).train(source)?,
            false => None,
        };
        for precision in args.precisions.iter().copied() {
            let case = case(args.device, precision);
            let Some(trained) = case.train(source)? else {
                continue;
            };
            let mut line = case.describe(source, &trained);
            match &on_cpu {
                Some(on_cpu) => compare(&trained, on_cpu, &mut line),
                None => speeds(&trained, &mut line),
            }
            let mut stdout = stdout().lock();
            writeln!(stdout, "{}", Value::Object(line))?;
            // The run may be cut off before the next case.
            stdout.flush()?;
        }
    }
    Ok(())
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut args = Self {
            network: "rossmann".to_owned(),
            codes: 10_000_000,
            device: Device::Cpu,
            batches: vec![100],
            precisions: vec![None],
            rows: None,
            epochs: None,
            threads: NonZeroUsize::MIN,
            ranks: 1,
            shards: rossmann::SHARDS,
            row_memory: None,
            address: None,
            compare: false,
        };
        while let Some(name) = words.next() {
            let mut value = || {
                let value = words.next();
                value.ok_or_else(|| format!("{name} has no value\n{USAGE}"))
            };
            match name.as_str() {
                "--compare" => args.compare = true,
                "--network" => args.network = value()?,
                "--codes" => args.codes = positive(&value()?)?,
                "--device" => args.device = value()?.parse()?,
                "--precision" => {
                    let all = value()?;
                    let all = all.split(',').map(|name| name.parse().map(Some));
                    args.precisions = all.collect::<Result<_, _>>()?;
                }
                "--batch" => {
                    args.batches = value()?.split(',').map(positive).collect::<Result<_>>()?;
                }
                "--rows" => args.rows = Some(positive(&value()?)?),
                "--epochs" => args.epochs = Some(positive(&value()?)?),
                "--threads" => args.threads = positive(&value()?)?.try_into()?,
                "--ranks" => args.ranks = positive(&value()?)?,
                "--shards" => args.shards = positive(&value()?)?,
                "--address" => args.address = Some(value()?.parse()?),
                "--row-memory" => {
                    let size = value()?;
                    let expected = || format!("expected a size like 30MB, not {size:?}\n{USAGE}");
                    args.row_memory = Some(size.parse().map_err(|_| expected())?);
                }
                _ => return Err(format!("unknown argument {name}\n{USAGE}").into()),
            }
        }
        Ok(args)
    }

    fn rows_of(&self, batch: usize) -> usize {
        if self.compare {
            return self.rows.unwrap_or((COMPARED_ROWS / batch).max(1) * batch);
        }
        let steps = match batch {
            ..=256 => 300,
            257..=2048 => 80,
            2049..=16384 => 20,
            _ => 6,
        };
        self.rows.unwrap_or(steps * batch)
    }
}

fn positive(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("expected a whole number above 0, not {text:?}\n{USAGE}").into()),
    }
}

impl Case<'_> {
    /// Returns the ranks of this process: all, or the one whose peers are other processes.
    fn connect(&self, cancel: &CancellationToken) -> Result<Vec<Communicator>> {
        let options = Options::default();
        let Some(address) = self.args.address else {
            return Ok(Communicator::in_process(self.args.ranks, &options, cancel)?);
        };
        let address = ListenAddress::new(address, PortRange::FREE, None)?;
        let listener = Listener::bind(&address, None)?;
        let mut stdout = stdout().lock();
        writeln!(stdout, "{}", serde_json::to_string(listener.endpoint())?)?;
        stdout.flush()?;
        let membership = stdin().lines().next().ok_or("no membership")??;
        let membership: Membership = serde_json::from_str(&membership)?;
        let (given, asked) = (membership.world_size(), self.args.ranks);
        if given != asked {
            return Err(format!("the membership has {given} ranks, --ranks {asked}").into());
        }
        let own = Communicator::connect(listener, &membership, &options, cancel)?;
        Ok(vec![own])
    }

    /// Trains; returns the result if rank 0 is in this process.
    fn train(&self, source: Source) -> Result<Option<Trained>> {
        let spec = TrainSpec {
            shards: self.args.shards.max(self.args.ranks),
            epochs: Some(self.epochs),
            device: self.device,
            precision: self.precision,
            ..networks::spec(&self.args.network, self.batch)?
        };
        let cancel = CancellationToken::new();
        let ranks = self.connect(&cancel)?;
        let device = resolve_device(self.device)?;
        let files = tempfile::tempdir()?;
        let work = |mut communicator: Communicator| {
            let rank = communicator.rank();
            let end = |rank: usize| spec.shards * rank / self.args.ranks;
            let folder = files.path().join(rank.to_string());
            let cache = self.args.row_memory.map(|memory| {
                let memory = RowMemory {
                    loading: memory.as_u64(),
                    training: memory.as_u64(),
                };
                ShardCache::new(folder, memory)
            });
            let shards = end(rank)..end(rank + 1);
            let shards = shards.map(|shard| (shard, source.shard(shard, spec.shards)));
            let loaded =
                rossmann::loaded(&spec, &source.schema(), shards.collect(), cache.as_ref());
            let rank = Rank {
                communicator: &mut communicator,
                device,
                threads: self.args.threads,
                layers: &CustomLayers::new(),
                observer: &Silent,
                cancel: &cancel,
                origin: Origin::Fresh,
            };
            train(&spec, loaded, rank)
        };
        let outcomes = std::thread::scope(|scope| {
            let work = &work;
            let start = |rank| scope.spawn(move || work(rank));
            let threads: Vec<_> = ranks.into_iter().map(start).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect::<Vec<_>>()
        });
        let outcome = outcomes.into_iter().next().ok_or("there are no ranks")?;
        let outcome = outcome.map_err(|_| "a rank panicked")??;
        Ok(outcome.artifacts.map(|artifacts| Trained {
            history: artifacts.manifest.history,
            final_loss: outcome.report.eval_train_loss,
            computed: outcome.report.computed,
        }))
    }

    fn describe(&self, source: Source, trained: &Trained) -> Map<String, Value> {
        let line = json!({
            "system": "Volley",
            "network": self.args.network,
            "device": self.device.to_string(),
            "computed_on": trained.computed.device,
            "precision": trained.computed.precision,
            "batch": self.batch,
            "rows": source.rows,
            "epochs": self.epochs,
            "threads": self.args.threads,
            "ranks": self.args.ranks,
            "row_memory": self.args.row_memory.map(|memory| memory.as_u64()),
            "memory": memory(),
        });
        match line {
            Value::Object(line) => line,
            _ => Map::new(),
        }
    }
}

/// Returns the resident, peak and anonymous (not backed by a file) memory of this process, in bytes; empty where the
/// system does not report it.
fn memory() -> Map<String, Value> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let fields = [
        ("resident", "VmRSS:"),
        ("peak", "VmHWM:"),
        ("anonymous", "RssAnon:"),
    ];
    let read =
        |(name, field): (&str, &str)| Some((name.to_owned(), status_bytes(&status, field)?.into()));
    fields.into_iter().filter_map(read).collect()
}

fn losses(trained: &Trained) -> Vec<f64> {
    trained.history.iter().map(|epoch| epoch.loss).collect()
}

fn speeds(trained: &Trained, line: &mut Map<String, Value>) {
    let seconds = |epoch: &EpochRecord| epoch.compute_seconds + epoch.reduce_seconds;
    let measured = || trained.history.iter().skip(1);
    let rows_per_second = measured().map(|epoch| epoch.rows as f64 / seconds(epoch));
    let ms_per_step = measured().map(|epoch| {
        let steps = epoch.steps as f64 / epoch.epoch as f64;
        1e3 * seconds(epoch) / steps
    });
    line.insert("rows_per_second".to_owned(), rows_per_second.collect());
    line.insert("ms_per_step".to_owned(), ms_per_step.collect());
    line.insert("losses".to_owned(), losses(trained).into());
}

fn compare(trained: &Trained, on_cpu: &Trained, line: &mut Map<String, Value>) {
    let all = |trained: &Trained| {
        let mut all = losses(trained);
        all.push(trained.final_loss);
        all
    };
    let (own, cpu) = (all(trained), all(on_cpu));
    let apart = own
        .iter()
        .zip(&cpu)
        .map(|(own, cpu)| (own - cpu).abs() / cpu.abs());
    // NaN is the largest difference.
    let apart = apart.fold(
        0.0,
        |most: f64, next| if next <= most { most } else { next },
    );
    line.insert("compared_losses".to_owned(), own.into());
    line.insert("cpu_losses".to_owned(), cpu.into());
    line.insert("apart".to_owned(), apart.into());
}

/// Observer that ignores all events: an epoch's record is in the model.
struct Silent;

impl Observer for Silent {}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::compute::cast;
    use arrow::datatypes::{DataType, Float64Type};

    use super::*;

    #[test]
    fn rows_are_those_of_the_python_program() {
        let batch = rossmann::batch(393_215..393_216);
        let last = |column: &str| {
            let column = cast(&batch[column], &DataType::Float64).expect("a number");
            column
                .as_primitive::<Float64Type>()
                .values()
                .last()
                .copied()
        };
        let codes = [509, 8, 1, 1, 4, 0, 8, 3, 13, 2, 2, 0, 6, 4, 7, 0, 0, 0];
        for (at, code) in codes.into_iter().enumerate() {
            assert_eq!(last(&format!("c{at}")), Some(f64::from(code)), "c{at}");
        }
        assert_eq!(last("n0"), Some(f64::from(44.707_355_f32)));
        assert_eq!(last("n1"), Some(f64::from(24.554_813_f32)));
        assert_eq!(last("sales"), Some(7346.0));
    }
}
