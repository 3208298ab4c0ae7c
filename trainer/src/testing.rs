//! Test support: small specs, made-up rows, and whole worlds of ranks on threads.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Date32Array, Float64Array, Int32Array, StringArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int32Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use futures::stream;
use tokio_util::sync::CancellationToken;
use volley_proto::address::ListenAddress;
use volley_proto::spec::{
    Activation, AdamForm, BatchSize, ClassWeights, Device, DeviceKind, Elastic, EmbeddingWidth,
    EnsembleSize, Feature, FeatureKind, IfExists, Keep, Label, LabelTransform, Layer, Loss,
    Network, NumericTransform, Optimizer, Output, Precision, Ranks, Refit, Rule, Split, Start,
    Task, TooFew, TrainSpec,
};
use volley_proto::{Secret, TrainId};

use crate::collective::{Communicator, Counters, Listener, Membership, Options};
use crate::device::Emulated;
use crate::network::{
    CustomBatch, CustomLayer, CustomLayers, CustomOperation, Initializer, Parameter,
};
use crate::random::{Key, Purpose};
use crate::{
    Interrupted, LoadedShards, Model, Observer, Origin, Outcome, Rank, ResolvedDevice, Result,
    ShardCache, Shards, load, train,
};

/// Returns a spec of a small network over [`rows`]: MSE on the label itself, split by column.
pub(crate) fn spec() -> TrainSpec {
    let feature = |column: &str, kind| Feature {
        column: column.into(),
        kind,
    };
    TrainSpec {
        train_id: TrainId::generate(),
        model: "sales".parse().unwrap(),
        if_exists: IfExists::Replace,
        store: "file:///nowhere/".parse().unwrap(),
        newest_version: None,
        features: vec![
            feature("store", FeatureKind::Categorical),
            feature("distance", FeatureKind::Continuous),
            feature("kind", FeatureKind::Categorical),
            feature("day", FeatureKind::Categorical),
            feature("trend", FeatureKind::Continuous),
        ],
        vocabulary: Default::default(),
        task: Task::Regression,
        label: Label {
            columns: vec!["sales".into()],
            loss_weights: vec![],
            transform: LabelTransform::Identity,
            standardize: false,
        },
        numeric_transform: NumericTransform::None,
        split: Split::Column("part".into()),
        split_key: vec![],
        transform: None,
        network: Network {
            embedding_dim: EmbeddingWidth::Same(4),
            batch_norm: true,
            numeric_embedding: Default::default(),
            layers: dense(&[24, 16], &[0.125, 0.25]),
            output: Output::Identity,
            linear: Default::default(),
            factors: 0,
            ensemble_size: EnsembleSize::ONE,
        },
        loss: Loss::Mse,
        sample_weight: None,
        class_weights: ClassWeights::Equal,
        optimizer: Optimizer {
            learn_rate: 1e-2,
            rule: Rule::Adam {
                beta_1: 0.9,
                beta_2: 0.999,
                epsilon: 1e-3,
                form: AdamForm::Keras,
                weight_decay: 0.0,
            },
            ..Optimizer::default()
        },
        l1: 0.0,
        l2: Some(1e-4),
        accumulate: 1,
        batch_size: Some(BatchSize::OfRank(30)),
        epochs: Some(1),
        early_stop: None,
        keep: Keep::Last,
        refit: Refit::Never,
        seed: 11,
        ranks: Ranks::All,
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: Duration::from_secs(10),
            too_few: TooFew::Wait,
        },
        start: Start::Fresh,
        begin_early: false,
        checkpoint_every: None,
        trace: false,
        shards: 8,
        shard_by: vec![],
        device: Device::Cpu,
        precision: None,
        threads: None,
        device_share: false,
        rendezvous_timeout: Duration::from_secs(10),
        collective_timeout: Duration::from_secs(10),
        loading_timeout: Duration::from_secs(10),
    }
}

/// Returns the custom layers of tests: `squash`.
pub(crate) fn custom_layers() -> CustomLayers {
    CustomLayers::new().with("squash", Squash)
}

/// Returns `custom('squash', units, amplitude)`: amplitude · tanh(x·W + b).
pub(crate) fn squash(units: usize, amplitude: f64) -> Layer {
    Layer::Custom {
        name: "squash".into(),
        arguments: vec![units as f64, amplitude],
    }
}

/// Custom layer of tests; see [`squash`].
#[derive(Debug)]
pub(crate) struct Squash;

#[derive(Debug)]
struct Squashed {
    from: usize,
    to: usize,
    amplitude: f32,
}

impl CustomLayer for Squash {
    fn build(
        &self,
        width: usize,
        arguments: &[f64],
    ) -> Result<Box<dyn CustomOperation>, Box<dyn std::error::Error + Send + Sync>> {
        match *arguments {
            [units, amplitude] if units >= 1.0 => Ok(Box::new(Squashed {
                from: width,
                to: units as usize,
                amplitude: amplitude as f32,
            })),
            _ => Err("expected units and an amplitude".into()),
        }
    }
}

impl CustomOperation for Squashed {
    fn width(&self) -> usize {
        self.to
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: &str, shape, initializer, penalized| Parameter {
            name: name.into(),
            shape,
            initializer,
            penalized,
        };
        let (kernel, bias) = (vec![self.from, self.to], vec![self.to]);
        vec![
            parameter("kernel", kernel, Initializer::Uniform(0.5), true),
            parameter("bias", bias, Initializer::Constant(0.0), false),
        ]
    }

    fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]) {
        let (kernel, bias) = (&batch.parameters[0], &batch.parameters[1]);
        let rows = batch.x.chunks_exact(self.from);
        for (x, y) in rows.zip(y.chunks_exact_mut(self.to)) {
            for (to, y) in y.iter_mut().enumerate() {
                let terms = x.iter().enumerate();
                let sum: f32 = terms.map(|(at, x)| x * kernel[at * self.to + to]).sum();
                *y = self.amplitude * (sum + bias[to]).tanh();
            }
        }
    }

    fn backward(
        &self,
        batch: CustomBatch<'_>,
        y: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        mut gradients: Option<&mut [&mut [f32]]>,
    ) {
        let kernel = &batch.parameters[0];
        let entered = batch.x.chunks_exact(self.from);
        let entered = entered.zip(dx.chunks_exact_mut(self.from));
        let put_out = y.chunks_exact(self.to).zip(dy.chunks_exact(self.to));
        for ((x, dx), (y, dy)) in entered.zip(put_out) {
            for (to, (y, dy)) in y.iter().zip(dy).enumerate() {
                let slope = dy * (self.amplitude - y * y / self.amplitude);
                for (from, (x, dx)) in x.iter().zip(dx.iter_mut()).enumerate() {
                    let at = from * self.to + to;
                    *dx += kernel[at] * slope;
                    if let Some(gradients) = &mut gradients {
                        gradients[0][at] += x * slope;
                    }
                }
                if let Some(gradients) = &mut gradients {
                    gradients[1][to] += slope;
                }
            }
        }
    }
}

/// Returns dense layers with ReLU.
pub(crate) fn dense(widths: &[usize], dropout: &[f64]) -> Vec<Layer> {
    Layer::stack(widths, Activation::Relu, dropout)
}

pub(crate) fn schema() -> SchemaRef {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Arc::new(Schema::new(vec![
        field("store", DataType::Int32),
        field("kind", DataType::Utf8),
        field("day", DataType::Date32),
        field("distance", DataType::Float64),
        field("trend", DataType::Float64),
        field("sales", DataType::Float64),
        field("part", DataType::Utf8),
    ]))
}

/// Returns rows with learnable labels: a fifth is for evaluation, some are for testing and have no label.
pub(crate) fn rows(numbers: std::ops::Range<u64>) -> RecordBatch {
    let draw = |row: u64, what| Key::new(5, Purpose::Content).with(row).with(what).unit();
    let store = |row| (draw(row, 0) * 7.0) as i32;
    let kind = |row| ["a", "b", "c"].get((draw(row, 1) * 4.0) as usize).copied();
    let distance = |row| (draw(row, 2) > 0.1).then(|| 5000.0 + 3000.0 * draw(row, 3));
    let trend = |row| draw(row, 4);
    let part = |row| match row % 10 {
        3 | 7 => "EVAL",
        5 => "TEST",
        _ => "TRAIN",
    };
    let sales = |row| {
        let base = 2.0 + f64::from(store(row)) * 0.3 + trend(row);
        let kinds = if kind(row) == Some("b") { 1.0 } else { 0.0 };
        (part(row) != "TEST").then(|| base + kinds - distance(row).unwrap_or(0.0) / 1e4)
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from_iter_values(numbers.clone().map(store))),
        Arc::new(StringArray::from_iter(numbers.clone().map(kind))),
        Arc::new(Date32Array::from_iter_values(
            numbers.clone().map(|row| 19_000 + (row % 5) as i32),
        )),
        Arc::new(Float64Array::from_iter(numbers.clone().map(distance))),
        Arc::new(Float64Array::from_iter_values(numbers.clone().map(trend))),
        Arc::new(Float64Array::from_iter(numbers.clone().map(sales))),
        Arc::new(StringArray::from_iter_values(numbers.map(part))),
    ];
    RecordBatch::try_new(schema(), columns).unwrap()
}

/// Replaces the label by a class: the column `sales`, cut at `bounds`.
pub(crate) fn told_apart(batch: &RecordBatch, bounds: &[f64]) -> RecordBatch {
    let sales = batch["sales"].as_primitive::<Float64Type>();
    let class = |sales: f64| bounds.iter().filter(|bound| sales > **bound).count();
    let classes = sales
        .iter()
        .map(|sales| Some(["low", "middle", "high"][class(sales?)]));
    let classes: StringArray = classes.collect();
    let at = batch.schema().index_of("sales").unwrap();
    let mut fields = batch.schema().fields().to_vec();
    fields[at] = Arc::new(Field::new("sales", DataType::Utf8, true));
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(classes);
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Adds a second label of another magnitude: the column `visits`.
pub(crate) fn with_visits(batch: &RecordBatch) -> RecordBatch {
    let stores = batch["store"].as_primitive::<Int32Type>();
    let trends = batch["trend"].as_primitive::<Float64Type>();
    let parts = batch["part"].as_string::<i32>();
    let visits = (0..batch.num_rows()).map(|row| {
        let of_row = 1.0 + trends.value(row) + 0.2 * f64::from(stores.value(row));
        (parts.value(row) != "TEST").then_some(1000.0 * of_row)
    });
    let mut fields = batch.schema().fields().to_vec();
    fields.push(Arc::new(Field::new("visits", DataType::Float64, true)));
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(Float64Array::from_iter(visits)));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Returns a spec with both labels of such rows.
pub(crate) fn two_labels() -> TrainSpec {
    let mut spec = TrainSpec {
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    };
    spec.label.columns.push("visits".into());
    spec.label.loss_weights = vec![1.0, 0.5];
    spec.label.standardize = true;
    spec
}

/// Returns a classifier's spec for such rows.
pub(crate) fn classifier() -> TrainSpec {
    TrainSpec {
        task: Task::Classification,
        loss: Loss::LogLoss,
        numeric_transform: NumericTransform::Standardize,
        ..spec()
    }
}

/// Cuts rows into shards of very uneven size, one of them empty.
pub(crate) fn shards(batch: &RecordBatch, shards: usize) -> Vec<(usize, Vec<RecordBatch>)> {
    let mut rest = 0..batch.num_rows();
    let cut = |shard| {
        let len = match shard {
            2 => 0,
            _ if shard + 1 == shards => rest.len(),
            _ => (rest.len() / (1 + (shard * 5) % 4 + shards / 2)).min(rest.len()),
        };
        let batches = batch.slice(rest.start, len);
        rest.start += len;
        (
            shard,
            vec![
                batches.slice(0, len / 3),
                batches.slice(len / 3, len - len / 3),
            ],
        )
    };
    (0..shards).map(cut).collect()
}

/// Loads shards from memory.
pub(crate) fn load_now(
    spec: &TrainSpec,
    shards: Vec<(usize, Vec<RecordBatch>)>,
) -> Result<LoadedShards> {
    load_cached(spec, shards, None, |_| {})
}

/// Loads shards from memory or a cache, and reports each that is opened.
pub(crate) fn load_cached(
    spec: &TrainSpec,
    shards: Vec<(usize, Vec<RecordBatch>)>,
    cache: Option<&ShardCache>,
    opened: impl Fn(usize) + Clone + Send + 'static,
) -> Result<LoadedShards> {
    let schema = shards
        .iter()
        .find_map(|(_, batches)| batches.first())
        .map_or_else(schema, RecordBatch::schema);
    let open = |(id, batches): (usize, Vec<RecordBatch>)| {
        let opened = opened.clone();
        let open = move || {
            opened(id);
            Ok(stream::iter(batches.into_iter().map(Ok::<_, ArrowError>)))
        };
        (id, open)
    };
    let shards = shards.into_iter().map(open).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let cancel = CancellationToken::new();
    runtime.block_on(load(spec, &schema, shards, cache, &cancel))
}

/// Observer that ignores everything.
#[derive(Debug)]
pub(crate) struct Deaf;

impl Observer for Deaf {}

/// Inputs of one rank in a test's world.
pub(crate) struct Seat<'a> {
    pub(crate) shards: Shards,
    pub(crate) origin: Origin,
    pub(crate) device: ResolvedDevice,
    pub(crate) threads: NonZeroUsize,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) layers: CustomLayers,
    /// Cancellation of this rank only; its peers see a closed connection.
    pub(crate) cancel: CancellationToken,
}

impl Seat<'_> {
    /// Returns a rank with a fresh start and no observer.
    pub(crate) fn fresh(shards: impl Into<Shards>) -> Self {
        Self {
            shards: shards.into(),
            origin: Origin::Fresh,
            device: ResolvedDevice::CPU,
            threads: NonZeroUsize::MIN,
            observer: &Deaf,
            layers: custom_layers(),
            cancel: CancellationToken::new(),
        }
    }
}

/// Trains a world of ranks with these shards, one thread each.
pub(crate) fn train_world(
    spec: &TrainSpec,
    ranks: Vec<Result<LoadedShards>>,
) -> Vec<Result<Outcome>> {
    let seats = ranks.into_iter().map(Seat::fresh).collect();
    let outcomes = train_seats(spec, seats).into_iter();
    outcomes
        .map(|outcome| outcome.map_err(|interrupted| interrupted.error))
        .collect()
}

/// Trains a world of these ranks, one thread each.
pub(crate) fn train_seats(
    spec: &TrainSpec,
    seats: Vec<Seat<'_>>,
) -> Vec<Result<Outcome, Interrupted>> {
    let ends = train_counted(spec, seats).into_iter();
    ends.map(|(end, _)| end).collect()
}

/// Trains likewise; returns what each rank's communicator did, too.
pub(crate) fn train_counted(
    spec: &TrainSpec,
    seats: Vec<Seat<'_>>,
) -> Vec<(Result<Outcome, Interrupted>, Counters)> {
    let abort = CancellationToken::new();
    let options = Options {
        op_timeout: Duration::from_secs(20),
        ..Options::default()
    };
    let communicators = Communicator::in_process(seats.len(), &options, &abort).unwrap();
    train_connected(spec, communicators, seats)
}

/// Trains a world of these ranks, one thread each, and returns what their communicators did too.
pub(crate) fn train_connected(
    spec: &TrainSpec,
    communicators: Vec<Communicator>,
    seats: Vec<Seat<'_>>,
) -> Vec<(Result<Outcome, Interrupted>, Counters)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = communicators
            .into_iter()
            .zip(seats)
            .map(|(mut communicator, seat)| {
                scope.spawn(move || {
                    let rank = Rank {
                        communicator: &mut communicator,
                        device: seat.device,
                        threads: seat.threads,
                        layers: &seat.layers,
                        observer: seat.observer,
                        cancel: &seat.cancel,
                        origin: seat.origin,
                    };
                    let end = train(spec, seat.shards, rank);
                    (end, communicator.counters())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Connects ranks over TCP, as if each were on a host of its own, with an abort token for each.
pub(crate) fn over_tcp(options: &Options, aborts: &[CancellationToken]) -> Vec<Communicator> {
    let listener = |_| Listener::bind(&ListenAddress::loopback(), None).unwrap();
    let listeners: Vec<_> = aborts.iter().map(listener).collect();
    let endpoints = listeners.iter().map(|listener| listener.endpoint().clone());
    let peers: Vec<_> = endpoints.collect();
    std::thread::scope(|scope| {
        let ranks = listeners.into_iter().zip(aborts).enumerate();
        let connect = |(rank, (listener, abort))| {
            let membership = Membership {
                group: "a world of tests".to_owned(),
                generation: 1,
                rank,
                peers: peers.clone(),
                secret: Secret::from_bytes(&[7; Secret::BYTES]).unwrap(),
            };
            scope.spawn(move || Communicator::connect(listener, &membership, options, abort))
        };
        let threads: Vec<_> = ranks.map(connect).collect();
        let connected = threads.into_iter().map(|thread| thread.join().unwrap());
        connected.map(|connected| connected.unwrap()).collect()
    })
}

/// Splits the shards of `batch` among this many ranks, and loads each rank's own.
pub(crate) fn load_split(
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
) -> Vec<Result<LoadedShards>> {
    split(spec, batch, world_size, |_, shards| load_now(spec, shards))
}

/// Splits the shards of `batch` among this many ranks, and calls `load` for each rank.
pub(crate) fn split(
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
    load: impl Fn(usize, Vec<(usize, Vec<RecordBatch>)>) -> Result<LoadedShards>,
) -> Vec<Result<LoadedShards>> {
    let mut all = shards(batch, spec.shards);
    let ranks = (0..world_size).map(|rank| {
        let end = spec.shards * (rank + 1) / world_size - spec.shards * rank / world_size;
        load(rank, all.drain(..end).collect())
    });
    ranks.collect()
}

/// Trains on `batch` with this many ranks and the spec's number of shards.
pub(crate) fn train_split(
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
) -> Vec<Outcome> {
    let ranks = load_split(spec, batch, world_size);
    train_world(spec, ranks)
        .into_iter()
        .map(|outcome| outcome.unwrap())
        .collect()
}

/// Trains likewise on the emulated device, in `f32`; returns `None` without such a device.
pub(crate) fn train_emulated(
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
) -> Option<Vec<Outcome>> {
    train_spoilt(spec, batch, world_size, None)
}

/// Trains likewise on emulated devices that are spoilt, but not so that they cannot compute.
pub(crate) fn train_spoilt(
    spec: &TrainSpec,
    batch: &RecordBatch,
    world_size: usize,
    spoilt: Option<&'static str>,
) -> Option<Vec<Outcome>> {
    Emulated::find()?;
    let spec = TrainSpec {
        precision: spec.precision.or(Some(Precision::F32)),
        ..spec.clone()
    };
    let seats = load_split(&spec, batch, world_size).into_iter();
    let seats = seats.map(|loaded| Seat {
        device: ResolvedDevice::emulated(u64::MAX, spoilt, false),
        ..Seat::fresh(loaded)
    });
    let outcomes = train_seats(&spec, seats.collect()).into_iter();
    let outcomes = outcomes.map(|outcome| outcome.map_err(|end| end.error).unwrap());
    let outcomes: Vec<_> = outcomes.collect();
    let computed = outcomes[0].report.computed.device;
    assert_eq!(computed, DeviceKind::Cuda, "the plan is what computes");
    Some(outcomes)
}

/// Loads the published model.
pub(crate) fn model(outcomes: &[Outcome]) -> Model {
    let artifacts = outcomes[0].artifacts.as_ref().unwrap();
    Model::load(
        artifacts.manifest.clone(),
        &artifacts.files[0].1,
        &artifacts.files[1].1,
        &custom_layers(),
    )
    .unwrap()
}
