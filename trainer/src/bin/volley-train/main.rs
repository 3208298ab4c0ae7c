//! Trains one rank on made-up rows and says how fast, a line of JSON a case: what is measured on a GPU that is lent for
//! minutes, without a cluster and without data.
//!
//! ```text
//!   $ volley-train --device cuda:0 --batch 100,1024 --precision tf32
//!   {"system":"Volley","network":"rossmann","device":"cuda:0","precision":"tf32","batch":100,…}
//!   $ volley-train --device cuda:0 --batch 100 --compare    the same on the CPU, and both losses
//! ```
//!
//! Speeds are those of each epoch but the first, by the epochs' records: the optimizer's steps, without loading and
//! evaluation. Memory is the system's allocator's, where executors have their own.
//!
//! Whether a plan, Burn or the CPU computes is the trainer's choice: `computed_on` and the log on standard error tell.

mod networks;
mod rossmann;
mod tables;

use std::error::Error;
use std::io::{Write, stderr, stdout};
use std::num::NonZeroUsize;
use std::process::ExitCode;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{Device, Precision, RankDevice, TrainSpec};
use volley_proto::store::EpochRecord;
use volley_trainer::collective::{Communicator, Options};
use volley_trainer::custom::CustomLayers;
use volley_trainer::{Beginning, Observer, Origin, Position, Rank, Step, resolve_device, train};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

const USAGE: &str = "\
usage: volley-train [--network rossmann|default-ensemble|linear|tables] [--codes N] [--device cpu|cuda:N]
                    [--batch ROWS,…] [--precision NAME,…] [--threads N] [--rows ROWS] [--epochs N] [--compare]";

/// Rows that losses are compared on, if they are more than one batch: few, for the CPU's sake.
const COMPARED_ROWS: usize = 8192;

#[derive(Debug)]
struct Args {
    network: String,
    /// Rows of all tables of the network `tables`.
    codes: usize,
    device: Device,
    batches: Vec<usize>,
    /// The device's own, where none are given.
    precisions: Vec<Option<Precision>>,
    /// As many as make enough steps to measure, where it is not given.
    rows: Option<usize>,
    epochs: Option<usize>,
    threads: NonZeroUsize,
    compare: bool,
}

/// One training.
#[derive(Debug)]
struct Case<'a> {
    network: &'a str,
    device: Device,
    /// As asked for.
    precision: Option<Precision>,
    batch: usize,
    epochs: usize,
    threads: NonZeroUsize,
}

/// What a training came to.
#[derive(Debug)]
struct Trained {
    history: Vec<EpochRecord>,
    /// The mean loss of the rows by the last weights, without dropout.
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
        let rows = match args.network.as_str() {
            "tables" => tables::rows(args.codes, args.rows_of(*batch)),
            _ => rossmann::rows(args.rows_of(*batch)),
        };
        let case = |device, precision| Case {
            network: &args.network,
            device,
            precision,
            batch: *batch,
            epochs: args.epochs.unwrap_or(if args.compare { 1 } else { 4 }),
            threads: args.threads,
        };
        let on_cpu = match args.compare {
            true => Some(case(Device::Cpu, None).train(&rows)?),
            false => None,
        };
        for precision in args.precisions.iter().copied() {
            let case = case(args.device, precision);
            let trained = case.train(&rows)?;
            let mut line = case.describe(&rows, &trained);
            match &on_cpu {
                Some(on_cpu) => compare(&trained, on_cpu, &mut line),
                None => speeds(&trained, &mut line),
            }
            let mut stdout = stdout().lock();
            writeln!(stdout, "{}", Value::Object(line))?;
            // A lent machine may be gone before the next case.
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
            compare: false,
        };
        while let Some(name) = words.next() {
            if name == "--compare" {
                args.compare = true;
                continue;
            }
            let known = [
                "--network",
                "--codes",
                "--device",
                "--batch",
                "--precision",
                "--rows",
                "--epochs",
                "--threads",
            ];
            if !known.contains(&name.as_str()) {
                return Err(format!("unknown argument {name}\n{USAGE}").into());
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{name} has no value\n{USAGE}"))?;
            match name.as_str() {
                "--network" => args.network = value,
                "--codes" => args.codes = positive(&value)?,
                "--device" => args.device = value.parse()?,
                "--precision" => {
                    let all = value.split(',').map(|name| name.parse().map(Some));
                    args.precisions = all.collect::<Result<_, _>>()?;
                }
                "--batch" => {
                    args.batches = value.split(',').map(positive).collect::<Result<_>>()?
                }
                "--rows" => args.rows = Some(positive(&value)?),
                "--threads" => args.threads = positive(&value)?.try_into()?,
                _ => args.epochs = Some(positive(&value)?),
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
    fn train(&self, rows: &[RecordBatch]) -> Result<Trained> {
        let spec = TrainSpec {
            epochs: Some(self.epochs),
            device: self.device,
            precision: self.precision,
            ..networks::spec(self.network, self.batch)?
        };
        let cancel = CancellationToken::new();
        let mut ranks = Communicator::in_process(1, &Options::default(), &cancel)?;
        let rank = Rank {
            communicator: &mut ranks[0],
            device: resolve_device(self.device)?,
            threads: self.threads,
            layers: &CustomLayers::new(),
            observer: &Silent,
            cancel: &cancel,
            origin: Origin::Fresh,
        };
        let outcome = train(&spec, Ok(rossmann::loaded(&spec, rows)), rank)?;
        let artifacts = outcome.artifacts.ok_or("rank 0 has no model")?;
        Ok(Trained {
            history: artifacts.manifest.history,
            final_loss: outcome.report.eval_train_loss,
            computed: outcome.report.computed,
        })
    }

    fn describe(&self, rows: &[RecordBatch], trained: &Trained) -> Map<String, Value> {
        let rows: usize = rows.iter().map(RecordBatch::num_rows).sum();
        let line = json!({
            "system": "Volley",
            "network": self.network,
            "device": self.device.to_string(),
            "computed_on": trained.computed.device,
            "precision": trained.computed.precision,
            "batch": self.batch,
            "rows": rows,
            "epochs": self.epochs,
            "threads": self.threads,
        });
        match line {
            Value::Object(line) => line,
            _ => Map::new(),
        }
    }
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
    // NaN is the farthest.
    let apart = apart.fold(
        0.0,
        |most: f64, next| if next <= most { most } else { next },
    );
    line.insert("compared_losses".to_owned(), own.into());
    line.insert("cpu_losses".to_owned(), cpu.into());
    line.insert("apart".to_owned(), apart.into());
}

/// Hears nothing: an epoch's record is in the model.
struct Silent;

impl Observer for Silent {
    fn loaded(&self, _: u64, _: f64) {}

    fn started(&self, _: Beginning) {}

    fn step(&self, _: &Step) {}

    fn epoch(&self, _: &EpochRecord) {}

    fn checkpoint(&self, _: Position, _: Bytes) {}
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::compute::cast;
    use arrow::datatypes::{DataType, Float64Type};

    use super::*;

    #[test]
    fn rows_are_those_of_the_python_program() {
        let batch = rossmann::rows(393_216).pop().expect("there are rows");
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
