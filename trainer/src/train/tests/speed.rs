//! Time of a step of the reference network. It is not a test: run it by name, with `--ignored --nocapture`,
//! on a quiet machine.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use volley_proto::spec::{
    BatchSize, EmbeddingWidth, Feature, FeatureKind, Loss, Output, TrainSpec,
};
use volley_proto::store::Scale;

use crate::collective::{Communicator, Options};
use crate::encode::{FeatureScale, Rows, Scaling, Settled, Statistics, Storage};
use crate::network::{Architecture, Compute, CustomLayers, Host, HostDevice, Normalization, Sizes};
use crate::random::{Key, Purpose};
use crate::testing::{Deaf, dense, spec};
use crate::train::TrainingState;
use crate::train::agree::World;
use crate::train::coverage::Covered;
use crate::train::fit::{Fit, Tools};
use crate::train::state::{Basis, ShardRows, Weights};

const VOCABULARIES: [usize; 18] = [
    1115, 12, 7, 3, 12, 31, 52, 25, 26, 4, 3, 4, 23, 8, 22, 2, 2, 2,
];

fn rossmann(batch_size: usize) -> TrainSpec {
    let mut spec = TrainSpec {
        batch_size: Some(BatchSize::OfRank(batch_size)),
        l2: Some(5e-5),
        loss: Loss::Mae,
        ..spec()
    };
    let feature = |kind| {
        move |at| Feature {
            column: format!("{kind:?}{at}"),
            kind,
        }
    };
    let categorical = (0..18).map(feature(FeatureKind::Categorical));
    spec.features = categorical
        .chain((0..18).map(feature(FeatureKind::Continuous)))
        .collect();
    spec.network.embedding_dim = EmbeddingWidth::Same(10);
    spec.network.layers = dense(&[1000, 1000, 1000, 500], &[0.0, 0.0, 0.0, 0.5]);
    spec.network.output = Output::ScaledSigmoid;
    spec
}

fn shard(rows: usize) -> Settled {
    let key = Key::new(1, Purpose::Content);
    let (mut codes, mut continuous) = (vec![], vec![]);
    let (mut labels, mut keys) = (vec![], vec![]);
    for row in 0..rows as u64 {
        let mut offset = 0;
        for (at, values) in VOCABULARIES.iter().enumerate() {
            let value = key.with(row).at(at as u64) % *values as u64;
            codes.push(offset + 1 + value as u32);
            offset += *values as u32 + 1;
        }
        continuous.extend((0..18).map(|at| key.with(row).with(at).unit() as f32));
        labels.push(8.0 + key.with(row).unit() as f32);
        keys.push(key.with(row).hash());
    }
    Settled {
        id: 0,
        train: Rows {
            codes: codes.into(),
            continuous: continuous.into(),
            labels: labels.into(),
            keys: keys.into(),
            ..Rows::default()
        },
        eval: Rows::default(),
        storage: Storage::Memory,
    }
}

/// Returns the processor time of this thread, which the load of other processes affects little; 0 if the
/// system does not report it.
fn thread_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat
        .split(' ')
        .next()
        .and_then(|number| number.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

#[test]
#[ignore = "a measurement"]
fn step_time_of_the_rossmann_network() {
    for (batch_size, steps) in [(100, 60), (1024, 12)] {
        let spec = rossmann(batch_size);
        let rows = batch_size * steps;
        let shards = [shard(rows)];
        let held = ShardRows::of(&shards[0]);
        let world = World {
            shards: BTreeMap::from([(0, held)]),
            train: held.train,
            eval: Covered::default(),
            largest_label: 9.0,
            features: vec![],
            labels: vec![Statistics::default()],
            classes: vec![],
            means: vec![0.5; 18],
            ranks: 1,
            spills: false,
        };
        let sizes = Sizes {
            codes: VOCABULARIES.iter().map(|values| values + 1).collect(),
            continuous: 18,
            bins: vec![],
            outputs: 1,
            rows: held.train.rows,
        };
        let layers = CustomLayers::new();
        let architecture = Architecture::new(&spec, &sizes, 12.0, &layers).unwrap();
        let weights = Weights {
            values: architecture.initial_values(1),
            running: Normalization::unit(architecture.normalized()),
        };
        let unscaled = Scaling {
            features: vec![FeatureScale::default(); 18],
            labels: vec![Scale::IDENTITY],
        };
        let basis = Basis::new(&spec, world.shards.clone(), &[]);
        let state =
            TrainingState::begin(basis, &spec.optimizer, batch_size as u64, unscaled, weights);
        let cancel = CancellationToken::new();
        let mut alone = Communicator::in_process(1, &Options::default(), &cancel).unwrap();
        for pass in 0..4 {
            let tools = Tools::alone(&architecture, &mut alone[0]).unwrap();
            let state = state.clone();
            let values = state.weights.values.clone();
            let network = Host::new(&architecture, values, &HostDevice::default()).unwrap();
            let mut fit =
                Fit::new(&spec, &architecture, state, &world, &shards, network, tools).unwrap();
            let (start, busy) = (Instant::now(), thread_seconds());
            fit.run(&mut alone[0], &Deaf, &cancel).unwrap();
            let step = start.elapsed().as_secs_f64() * 1e3 / steps as f64;
            let cpu = (thread_seconds() - busy) * 1e3 / steps as f64;
            let loss = fit.state().unwrap().finish().0[0].loss;
            println!(
                "batch {batch_size}, pass {pass}: {step:.1} ms a step, {cpu:.1} of this thread, \
                 loss {loss:.4}"
            );
        }
    }
}
