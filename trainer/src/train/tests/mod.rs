//! Training as a whole, in worlds of several ranks.

mod coverage;
mod failures;
mod gradient;
mod learning;
mod resume;
mod speed;
mod warm;
mod worlds;

use tokio_util::sync::CancellationToken;

use super::agree::{Census, on_rows};
use super::fit::{Fit, gradient_len};
use super::state::{Basis, Weights};
use super::{TrainingState, architecture};
use crate::collective::{Communicator, Options};
use crate::encode::{Settled, settle};
use crate::network::{Host, Normalization, Parameter, Start};
use crate::testing::{load_now, rows, shards, spec};

type CpuFit<'a> = Fit<'a, Host>;

/// Calls `body` with a rank before its first step, alone in its world. Its shards may be spoilt
/// after they were counted.
fn with_fit<R>(
    spoil: impl FnOnce(&mut [Settled]),
    body: impl FnOnce(&mut CpuFit<'_>, &mut Communicator) -> R,
) -> R {
    let spec = spec();
    let cancel = CancellationToken::new();
    let mut alone = Communicator::in_process(1, &Options::default(), &cancel).unwrap();
    let loaded = load_now(&spec, shards(&rows(0..100), 4)).unwrap();
    let vocabularies = loaded.vocabularies();
    let settled = |shard| settle(shard, &vocabularies, &spec.split, spec.seed);
    let mut shards: Vec<_> = loaded.shards.into_iter().map(settled).collect();
    let world = on_rows(Census::take(&shards, spec.features.len()), &mut alone[0]).unwrap();
    let architecture = architecture(&spec, &vocabularies, &world).unwrap();
    let weights = Weights {
        values: architecture.initial_values(spec.seed),
        running: Normalization::unit(architecture.normalized()),
    };
    let basis = Basis::new(&spec, world.shards.clone(), &vocabularies);
    let state = TrainingState::begin(basis, 30, weights);
    spoil(&mut shards);
    let gradient = alone[0].buffer(gradient_len(&architecture)).unwrap();
    let mut fit = Fit::new(&spec, &architecture, state, &world, &shards, &(), gradient);
    body(&mut fit, &mut alone[0])
}

/// A parameter for the optimizer.
pub(super) fn parameter(len: usize, penalized: bool) -> Parameter {
    let start = Start::Constant(0.0);
    Parameter {
        name: "w".into(),
        shape: vec![len],
        start,
        penalized,
    }
}
