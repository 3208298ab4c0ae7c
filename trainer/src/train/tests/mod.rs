//! Tests of training as a whole, in worlds of several ranks.

mod burn;
mod coverage;
mod devices;
mod digits;
mod early;
mod ensemble;
mod failures;
mod fuzz;
mod gradient;
mod learning;
mod linear;
mod mistaken;
mod overlap;
mod refit;
mod resume;
mod runs;
mod sparse;
mod speed;
mod spilled;
mod streamed;
mod tried;
mod warm;
mod weighted;
#[cfg(feature = "wgpu")]
mod wgpu;
mod worlds;

use tokio_util::sync::CancellationToken;

pub(super) use self::mistaken::Mistaken;
use super::agree::{Census, on_rows};
use super::fit::{Fit, Tools};
use super::state::{Basis, Weights};
use super::{TrainingState, architecture};
use crate::collective::{Communicator, Options};
use crate::encode::{Scaling, Settled, settle};
use crate::network::{Compute, Host, HostDevice};
use crate::testing::{custom_layers, load_now, rows, shards, spec};

type CpuFit<'a> = Fit<'a, Host>;

/// Calls `body` with a rank before its first step, alone in its world. `spoil` may change its shards after
/// they were counted.
fn with_fit<R>(
    spoil: impl FnOnce(&mut [Settled]),
    body: impl FnOnce(&mut CpuFit<'_>, &mut Communicator) -> R,
) -> R {
    let spec = spec();
    let cancel = CancellationToken::new();
    let mut alone = Communicator::in_process(1, &Options::default(), &cancel).unwrap();
    let loaded = load_now(&spec, shards(&rows(0..100), 4)).unwrap();
    let vocabularies = loaded.vocabularies();
    let settled = |shard| settle(shard, &vocabularies, None);
    let unscaled: Vec<_> = loaded.shards.into_iter().map(settled).collect();
    let mut world = on_rows(Census::take(&unscaled, 2, 1, 0), None, &mut alone[0]).unwrap();
    let scaling = Scaling::fit(&spec, &world.features, &world.labels, &[]);
    let scaled = unscaled.into_iter().map(|shard| scaling.apply(shard));
    let mut shards: Vec<Settled> = scaled.collect();
    let running = scaling.moments(&world.features);
    world.means.clone_from(&running.mean);
    let layers = custom_layers();
    let architecture = architecture(&spec, &vocabularies, &world, &scaling, &layers).unwrap();
    let weights = Weights {
        values: architecture.initial_values(spec.seed),
        running,
    };
    let basis = Basis::new(&spec, world.shards.clone(), &vocabularies);
    let state = TrainingState::begin(basis, &spec.optimizer, 30, scaling, weights);
    spoil(&mut shards);
    let tools = Tools::alone(&architecture, &mut alone[0]).unwrap();
    let values = state.weights.values.clone();
    let network = Host::new(&architecture, values, &HostDevice::default()).unwrap();
    let mut fit = Fit::new(&spec, &architecture, state, &world, &shards, network, tools).unwrap();
    body(&mut fit, &mut alone[0])
}
