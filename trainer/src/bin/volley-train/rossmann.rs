//! The Rossmann job without its tables: its network, and made-up rows with as many features of as many values each.
//!
//! `benchmarks/peers/rossmann_rows.py` makes the same rows for other systems: change both.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Float32Array, Int32Array, StringArray, UInt64Array};
use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use futures::stream;
use tokio_util::sync::CancellationToken;
use volley_proto::spec::{
    Activation, AdamForm, BatchSize, ClassWeights, Device, Elastic, EmbeddingWidth, EnsembleSize,
    Feature, FeatureKind, IfExists, Keep, Label, LabelTransform, Layer, Loss, Network,
    NumericTransform, Optimizer, Output, Ranks, Refit, Rule, Split, Start, Task, TooFew, TrainSpec,
    split,
};
use volley_proto::{TrainId, splitmix};
use volley_trainer::{LoadedShards, Result, ShardCache, load};

/// Distinct values of each categorical feature in the real tables.
const VALUES: [u64; 18] = [
    1115, 12, 7, 3, 12, 31, 52, 25, 26, 4, 3, 4, 23, 8, 22, 2, 2, 2,
];
const STORE: usize = 0;
const PROMO: usize = 15;
/// Categorical features that are text.
const TEXTS: [usize; 5] = [1, 9, 10, 11, 14];
const CONTINUOUS: usize = 18;
/// Default number of shards.
pub(crate) const SHARDS: usize = 4;

/// Draws a random number of a row, for a feature or for the noise in its sales.
fn draw(row: usize, column: usize) -> u64 {
    splitmix::at(1, (row * 64 + column) as u64)
}

fn code(row: usize, feature: usize) -> i32 {
    ((draw(row, feature) >> 33) % VALUES[feature]) as i32
}

/// Draws a number in 0..1.
fn share(row: usize, number: usize) -> f64 {
    splitmix::unit(draw(row, VALUES.len() + number))
}

fn sales(row: usize) -> i32 {
    let store = splitmix::unit(splitmix::at(2, code(row, STORE) as u64));
    let promo = f64::from(code(row, PROMO));
    let effects = 0.8 * store + 0.3 * promo + 0.2 * share(row, 0) + 0.1 * share(row, CONTINUOUS);
    (8.1 + effects).exp().round() as i32
}

/// Builds rows with the columns of [`spec`], and the hashes that random splits use.
pub(crate) fn batch(rows: Range<usize>) -> RecordBatch {
    let categorical = (0..VALUES.len()).map(|at| {
        let codes = rows.clone().map(|row| code(row, at));
        let array: ArrayRef = if TEXTS.contains(&at) {
            let texts = codes.map(|code| Some(code.to_string()));
            Arc::new(StringArray::from_iter(texts))
        } else {
            Arc::new(Int32Array::from_iter_values(codes))
        };
        (format!("c{at}"), array)
    });
    let continuous = (0..CONTINUOUS).map(|at| {
        let numbers = rows.clone().map(|row| (100.0 * share(row, at)) as f32);
        let array = Float32Array::from_iter_values(numbers);
        (format!("n{at}"), Arc::new(array) as ArrayRef)
    });
    let sales: ArrayRef = Arc::new(Int32Array::from_iter_values(rows.clone().map(sales)));
    let hashes = rows.clone().map(|row| splitmix::at(3, row as u64));
    let hashes: ArrayRef = Arc::new(UInt64Array::from_iter_values(hashes));
    let others = [
        ("sales".to_owned(), sales),
        (split::HASH.to_owned(), hashes),
    ];
    let columns = categorical.chain(continuous).chain(others);
    RecordBatch::try_from_iter(columns).expect("columns are of one length")
}

/// Loads shards from their batches.
pub(crate) fn loaded<Batches>(
    spec: &TrainSpec,
    schema: &Schema,
    shards: Vec<(usize, Batches)>,
    cache: Option<&ShardCache>,
) -> Result<LoadedShards>
where
    Batches: Iterator<Item = RecordBatch> + Send + 'static,
{
    let shards = shards.into_iter().map(|(shard, batches)| {
        let batches = batches.map(Ok::<_, ArrowError>);
        (shard, move || Ok(stream::iter(batches)))
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime without threads or I/O");
    let never = CancellationToken::new();
    runtime.block_on(load(spec, schema, shards.collect(), cache, &never))
}

/// Id of every training.
const ID: &str = "01990000-0000-7000-8000-000000000000";

/// Builds the spec of the Rossmann network.
pub(crate) fn spec(batch_size: usize) -> TrainSpec {
    let features = |prefix: &'static str, count, kind| {
        (0..count).map(move |at| Feature {
            column: format!("{prefix}{at}"),
            kind,
        })
    };
    let categorical = features("c", VALUES.len(), FeatureKind::Categorical);
    let continuous = features("n", CONTINUOUS, FeatureKind::Continuous);
    TrainSpec {
        // The same in all processes of a world.
        train_id: TrainId::from_str(ID).expect("an id"),
        model: "rossmann".parse().expect("a name"),
        if_exists: IfExists::Replace,
        store: "file:///nowhere/".parse().expect("a URL"),
        newest_version: None,
        features: categorical.chain(continuous).collect(),
        vocabulary: Default::default(),
        task: Task::Regression,
        label: Label {
            columns: vec!["sales".into()],
            loss_weights: vec![],
            transform: LabelTransform::Ln,
            standardize: false,
        },
        numeric_transform: NumericTransform::None,
        split: Split::None,
        split_key: vec![],
        transform: None,
        network: Network {
            embedding_dim: EmbeddingWidth::Same(10),
            batch_norm: true,
            numeric_embedding: Default::default(),
            layers: Layer::stack(
                &[1000, 1000, 1000, 500],
                Activation::Relu,
                &[0.0, 0.0, 0.0, 0.5],
            ),
            output: Output::ScaledSigmoid,
            linear: Default::default(),
            factors: 0,
            ensemble_size: EnsembleSize::ONE,
        },
        loss: Loss::Mae,
        sample_weight: None,
        class_weights: ClassWeights::Equal,
        optimizer: Optimizer {
            learn_rate: 1e-4,
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
        l2: Some(5e-5),
        accumulate: 1,
        batch_size: Some(BatchSize::OfRank(batch_size)),
        epochs: Some(1_000_000),
        early_stop: None,
        keep: Keep::Last,
        refit: Refit::Never,
        seed: 1,
        ranks: Ranks::All,
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: Duration::from_secs(10),
            too_few: TooFew::Fail,
        },
        start: Start::Fresh,
        begin_early: false,
        checkpoint_every: None,
        trace: false,
        shards: SHARDS,
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
