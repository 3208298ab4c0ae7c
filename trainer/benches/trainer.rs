//! Benchmarks of the parts of a training step, each by itself: encoding, matrix products, the all-reduce over
//! ranks, the optimizer, and a whole step of one rank. Sizes are those of the Rossmann job, rows are generated.
//!
//! Memory is allocated as in executors, and each rank has one thread. Comparisons with other systems are in
//! `volley-benchmarks`.

#[path = "../src/bin/volley-train/rossmann.rs"]
mod rossmann;

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{Precision, TrainSpec};
use volley_proto::store::EpochRecord;
use volley_trainer::bench::{self, Dense};
use volley_trainer::collective::{Communicator, Options};
use volley_trainer::custom::CustomLayers;
use volley_trainer::{
    Beginning, LoadedShards, Observer, Origin, Position, Rank, ResolvedDevice, Step, train,
};

use rossmann::{SHARDS, batch, spec};

/// As in executors: see `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Trainable weights of the Rossmann network.
const WEIGHTS: usize = 2_715_557;
const ROWS: usize = 40_000;

/// A step's steps before time counts: allocations, caches.
const WARM_UP: u64 = 5;

/// Rows of a record batch.
const ROWS_A_BATCH: usize = 1000;

/// Made-up rows.
fn rows() -> Vec<RecordBatch> {
    let firsts = (0..ROWS).step_by(ROWS_A_BATCH);
    firsts
        .map(|first| batch(first..first + ROWS_A_BATCH))
        .collect()
}

/// Loads the rows as one rank's shards.
fn loaded(spec: &TrainSpec, rows: &[RecordBatch]) -> LoadedShards {
    let shards = rows.chunks(rows.len().div_ceil(SHARDS));
    let shards = shards.map(|rows| Vec::from(rows).into_iter()).enumerate();
    rossmann::loaded(spec, &rows[0].schema(), shards.collect(), None)
        .expect("the rows suit the spec")
}

criterion_group!(
    benches, encoding, products, all_reduce, ring, optimizer, step
);
criterion_main!(benches);

fn encoding(criterion: &mut Criterion) {
    let rows = rows();
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("record batches to shards", |bencher| {
        bencher.iter(|| loaded(&spec(100), &rows));
    });
}

fn products(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("products of a layer of 1000 units");
    let all = [Precision::F32, Precision::Bf16];
    let cases = [100, 1024].map(|rows| all.map(|precision| (rows, precision)));
    for (batch_size, precision) in cases.into_iter().flatten() {
        let mut dense = Dense::new(batch_size, 1000, precision);
        group.throughput(Throughput::Elements(dense.operations()));
        let mut measure = |name, product: fn(&mut Dense)| {
            let name = format!("{name}, {precision}");
            group.bench_function(BenchmarkId::new(name, batch_size), |bencher| {
                bencher.iter(|| product(&mut dense));
            });
        };
        measure("output", Dense::forward);
        measure("kernel's gradient", Dense::kernel_gradient);
        measure("input's gradient", Dense::input_gradient);
    }
}

/// Measures the all-reduce of a buffer, in shared memory where the buffer is large enough.
fn all_reduce(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce of a buffer, 2 ranks of one host");
    for elements in [2_500, 250_000, WEIGHTS] {
        group.throughput(Throughput::Bytes(4 * elements as u64));
        let mut ranks = world(2);
        group.bench_function(BenchmarkId::from_parameter(elements), |bencher| {
            bencher.iter_custom(|calls| {
                timed(&mut ranks, |rank| {
                    let mut buffer = rank.buffer(elements).expect("both ranks live");
                    let mut sum = || rank.all_reduce_sum(&mut buffer).expect("both ranks live");
                    repeat(calls, &mut sum)
                })
            });
        });
    }
}

/// Through sockets, as between hosts but for the network.
fn ring(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all-reduce around the ring, 2 ranks");
    group.throughput(Throughput::Bytes(4 * WEIGHTS as u64));
    let mut ranks = world(2);
    group.bench_function(BenchmarkId::from_parameter(WEIGHTS), |bencher| {
        bencher.iter_custom(|calls| {
            timed(&mut ranks, |rank| {
                let mut numbers = vec![0.0; WEIGHTS / 2];
                let mut sum = || {
                    rank.all_reduce_sum_f64(&mut numbers)
                        .expect("both ranks live")
                };
                repeat(calls, &mut sum)
            })
        });
    });
}

/// Runs `work` on two ranks at once; returns the first one's time.
fn timed(
    ranks: &mut [Communicator],
    work: impl Fn(&mut Communicator) -> Duration + Sync,
) -> Duration {
    let (own, peer) = ranks.split_at_mut(1);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&mut peer[0]));
        work(&mut own[0])
    })
}

/// Times `calls` calls, after one that touches every page.
fn repeat(calls: u64, call: &mut dyn FnMut()) -> Duration {
    call();
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed()
}

fn optimizer(criterion: &mut Criterion) {
    let spec = spec(100);
    let mut optimizer = bench::Optimizer::new(&spec, WEIGHTS);
    let mut group = criterion.benchmark_group("optimizer");
    group.throughput(Throughput::Elements(WEIGHTS as u64));
    group.bench_function("Adam", |bencher| bencher.iter(|| optimizer.step()));
}

fn step(criterion: &mut Criterion) {
    let rows = rows();
    let mut group = criterion.benchmark_group("step of 1 rank");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for batch_size in [100, 1024, 8192] {
        group.throughput(Throughput::Elements(batch_size as u64));
        group.bench_function(BenchmarkId::new("batch", batch_size), |bencher| {
            bencher.iter_custom(|steps| train_steps(&spec(batch_size), &rows, steps));
        });
    }
}

/// Times so many steps, each from the end of the one before to its own end.
fn train_steps(spec: &TrainSpec, rows: &[RecordBatch], steps: u64) -> Duration {
    let stopwatch = Stopwatch {
        steps,
        done: CancellationToken::new(),
        time: Mutex::new((Instant::now(), Duration::ZERO)),
    };
    let mut ranks = world(1);
    let rank = Rank {
        communicator: &mut ranks[0],
        device: ResolvedDevice::CPU,
        threads: NonZeroUsize::MIN,
        layers: &CustomLayers::new(),
        observer: &stopwatch,
        cancel: &stopwatch.done,
        origin: Origin::Fresh,
    };
    let interrupted = train(spec, Ok(loaded(spec, rows)), rank).expect_err("it is cancelled");
    assert!(stopwatch.done.is_cancelled(), "{interrupted}");
    stopwatch.time.into_inner().1
}

/// Adds up steps, not what is between epochs, and ends training when there were enough.
struct Stopwatch {
    steps: u64,
    done: CancellationToken,
    /// When the rank last had something else to say, and the time of its steps.
    time: Mutex<(Instant, Duration)>,
}

impl Stopwatch {
    fn reset(&self) {
        self.time.lock().0 = Instant::now();
    }
}

impl Observer for Stopwatch {
    fn started(&self, _: Beginning) {
        self.reset();
    }

    fn step(&self, step: &Step) {
        let position = step.next;
        let mut time = self.time.lock();
        if position.steps > WARM_UP {
            let step = time.0.elapsed();
            time.1 += step;
        }
        if position.steps == WARM_UP + self.steps {
            self.done.cancel();
        }
        time.0 = Instant::now();
    }

    fn epoch(&self, _: &EpochRecord) {
        self.reset();
    }

    fn checkpoint(&self, _: Position, _: Bytes) {
        self.reset();
    }
}

fn world(ranks: usize) -> Vec<Communicator> {
    Communicator::in_process(ranks, &Options::default(), &CancellationToken::new())
        .expect("there are sockets")
}
