//! Training: one rank's way from loaded shards to a model, in step with the other ranks.
//!
//! ```text
//!  agree      values, defects, failures of all ranks ─▶ the same vocabularies, or the same error
//!  settle     shards in canonical order; census of rows ─▶ shard manifest, steps an epoch
//!  origin     the newest state of any rank, a model's weights, or fresh ones ─▶ the same state
//!  fit        epoch: step … step │ evaluate │ account for every row ─▶ record
//!               step: gather rows ─ all-reduce moments ─ forward, backward ─ all-reduce gradient ─ Adam
//!  publish    rank 0: the kept epoch's weights as files
//! ```
//!
//! The first invariant: what is trained depends on the spec, the rows and the global batch, and not
//! on how shards are spread over ranks. `n` ranks with batches of `b` rows compute what one rank
//! with batches of `n·b` does, up to the rounding of sums.
//!
//! The second: between two steps all ranks hold the same [`TrainingState`], and nothing but whole
//! steps is in it. Whatever ends training (a lost peer, cancellation, a deadline) leaves that
//! state, and training goes on from it in another world as if nothing had happened:
//!
//! ```text
//!  generation 1   rank 0 1 2 3   ── step ── step ── × rank 2 is lost
//!                        │ │   │                    Interrupted { error, state } on 0, 1, 3
//!  generation 2   rank   0 1   2  ── step ── step ── …       Origin::State(state)
//! ```
//!
//! Blocking: a rank has an OS thread of its own. What computes is picked here and nowhere else.

mod adam;
mod agree;
mod batch;
#[doc(hidden)]
pub mod bench;
mod coverage;
mod dropout;
mod evaluate;
mod fit;
mod loss;
mod metrics;
mod origin;
mod publish;
mod rank;
mod schedule;
mod state;
mod tensorboard;
#[cfg(test)]
mod tests;
mod trace;

use std::time::Instant;

use volley_proto::spec::TrainSpec;
use volley_proto::store::FeatureSummary;

pub use origin::{Beginning, Origin};
pub use rank::{Artifacts, Interrupted, Observer, Outcome, Rank, RankReport, Step};
pub use state::TrainingState;

use crate::collective::Communicator;
use crate::device::Backend;
use crate::encode::{LoadedShards, Settled, Vocabulary, settle};
use crate::model::Successor;
use crate::network::{Architecture, Compute, Host, Normalization};
use crate::{Error, Model, Result};
use agree::{Census, World};
use fit::{Fit, gradient_len};
use origin::Agreed;
use state::{Basis, Weights};

/// Trains on this rank's shards, in step with the other ranks, which must call it too.
///
/// It takes what [`load`](crate::load) came back with, also when that is an error: then all ranks
/// learn of it and end, instead of waiting for this one. Ranks may bring different
/// [origins](Origin): the newest state of any of them is everyone's.
///
/// # Errors
/// This rank's own failure to load or to start; else [`Error::Peer`] with another's;
/// [`Error::Defect`] with the same rows on every rank; [`Error::StateOption`] and its like when the
/// state that was brought is of another training; [`Error::Cancelled`]; [`Error::Collective`] and
/// [`Error::AtStep`] when a rank is lost. With it comes the state to go on from.
pub fn train(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    rank: Rank<'_>,
) -> Result<Outcome, Interrupted> {
    match rank.device.backend() {
        Backend::Cpu => run::<Host>(spec, loaded, rank, ()),
        #[cfg(feature = "cuda")]
        Backend::Cuda(device) => {
            use crate::network::Tensors;
            run::<Tensors<burn::backend::Autodiff<burn_cuda::Cuda>>>(spec, loaded, rank, device)
        }
    }
}

fn run<C: Compute>(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    rank: Rank<'_>,
    device: C::Device,
) -> Result<Outcome, Interrupted> {
    let Rank {
        communicator,
        observer,
        cancel,
        origin,
        ..
    } = rank;
    let start = Instant::now();
    if let Ok(loaded) = &loaded {
        observer.loaded(loaded.rows(), loaded.seconds());
    }
    let prepared = match prepare(spec, loaded, &origin, communicator) {
        Ok(prepared) => prepared,
        Err(error) => {
            let state = origin.into_state().map(Box::new);
            return Err(Interrupted { error, state });
        }
    };
    let Prepared {
        features,
        load_seconds,
        vocabularies,
        shards,
        world,
        architecture,
        agreed,
    } = prepared;
    let state = agreed.state.or_else(|| origin.into_state());
    let state = state.expect("ranks agree on a state that one of them has");
    observer.started(agreed.beginning);

    let gradient = match communicator.buffer(gradient_len(&architecture)) {
        Ok(gradient) => gradient,
        Err(error) => {
            return Err(Interrupted {
                error: error.into(),
                state: Some(Box::new(state)),
            });
        }
    };
    let mut fit = Fit::<C>::new(
        spec,
        &architecture,
        state,
        &world,
        &shards,
        &device,
        gradient,
    );
    if let Err(error) = fit.run(communicator, observer, cancel) {
        let state = Some(Box::new(fit.state()));
        return Err(Interrupted { error, state });
    }
    let (curve, traces) = (fit.take_curve(), fit.take_traces());
    let (history, kept_epoch, weights) = fit.state().finish();

    let sum = |rows: fn(&Settled) -> usize| shards.iter().map(|s| rows(s) as u64).sum();
    let report = RankReport {
        train_rows: sum(|shard| shard.train.len()),
        eval_rows: sum(|shard| shard.eval.len()),
        epochs: history.len(),
        kept: history[kept_epoch - 1].clone(),
        load_seconds,
        train_seconds: start.elapsed().as_secs_f64(),
    };
    let artifacts = (communicator.rank() == 0).then(|| {
        let trained = publish::Trained {
            spec,
            features,
            vocabularies: &vocabularies,
            architecture: &architecture,
            world: &world,
            world_size: communicator.world_size(),
            history,
            curve,
            traces,
            kept_epoch,
        };
        trained.publish(weights)
    });
    Ok(Outcome { report, artifacts })
}

/// Everything that a rank needs for its first step.
struct Prepared {
    features: Vec<FeatureSummary>,
    load_seconds: f64,
    vocabularies: Vec<Vocabulary>,
    shards: Vec<Settled>,
    world: World,
    architecture: Architecture,
    agreed: Agreed,
}

/// Agrees with the other ranks on everything before the first step.
fn prepare(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    origin: &Origin,
    communicator: &mut Communicator,
) -> Result<Prepared> {
    let (loaded, vocabularies) = agree::on_values(loaded, communicator)?;
    let load_seconds = loaded.seconds();
    let features = loaded.features;
    let settled = |shard| settle(shard, &vocabularies, &spec.split, spec.seed);
    let shards: Vec<Settled> = loaded.shards.into_iter().map(settled).collect();
    let world = agree::on_rows(Census::take(&shards, features.len()), communicator)?;
    let architecture = architecture(spec, &vocabularies, &world)?;

    let basis = Basis::new(spec, world.shards.clone(), &vocabularies);
    let global_batch = spec.batch_size as u64 * world.ranks as u64;
    let begin = |values, running| {
        let weights = Weights { values, running };
        TrainingState::begin(basis.clone(), global_batch, weights)
    };
    let fresh = || {
        let running = Normalization::unit(architecture.normalized());
        begin(architecture.initial_values(spec.seed), running)
    };
    let warm = |model: &Model| {
        let successor = Successor {
            features: &spec.features,
            vocabularies: &vocabularies,
            architecture: &architecture,
        };
        let (values, running) = model.start(&successor, architecture.initial_values(spec.seed))?;
        Ok(begin(values, running))
    };
    let agreed = origin::agree(origin, fresh, warm, communicator).and_then(|agreed| {
        if let Some(state) = agreed.state.as_ref().or(origin.state()) {
            state.check(&basis, spec.epochs, &architecture)?;
        }
        let hash = agreed.hash;
        Ok((agreed, hash))
    });
    let agreed = agree::on_start(spec, agreed, communicator)?;
    Ok(Prepared {
        features,
        load_seconds,
        vocabularies,
        shards,
        world,
        architecture,
        agreed,
    })
}

fn architecture(
    spec: &TrainSpec,
    vocabularies: &[Vocabulary],
    world: &World,
) -> Result<Architecture> {
    use volley_proto::spec::Output;
    let output_scale = match spec.network.output {
        Output::Identity | Output::Sigmoid => 1.0,
        Output::ScaledSigmoid if world.largest_label > 0.0 => 1.2 * world.largest_label,
        Output::ScaledSigmoid => {
            return Err(Error::OutputScale {
                largest: world.largest_label,
            });
        }
    };
    let table_rows = vocabularies.iter().map(Vocabulary::codes).sum();
    Ok(Architecture::new(spec, table_rows, output_scale))
}
