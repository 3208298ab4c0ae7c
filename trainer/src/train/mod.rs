//! Training on one rank: from loaded shards to a model, in step with the other ranks.
//!
//! ```text
//!  agree      values, defects, failures of all ranks ─▶ the same vocabularies, or the same error
//!  settle     shards in canonical order, in memory or in files; census of rows
//!               ─▶ shard manifest, steps per epoch, scaling of numbers
//!  sample     if numbers are ranked or binned: numbers of sampled rows ─▶ quantiles
//!  origin     the newest state of any rank, a model's weights, or fresh ones ─▶ the same state
//!  link       GPUs of one host ─▶ steps that sum between them, or in the host's memory
//!  fit        epoch: step … step │ evaluate │ account for every row ─▶ record
//!               step: gather rows ─ all-reduce moments ─ forward, backward ─ all-reduce gradient ─ Adam
//!  early      a training that begins early: agree, settle and fit the first epoch, wave after wave of shards
//!  refit      small table only: fit anew, on all rows, for as many epochs as were kept
//!  publish    rank 0: the kept epoch's weights as files
//! ```
//!
//! The first invariant: the trained model depends on the spec, the rows and the global batch, and not on the
//! distribution of shards over ranks. `n` ranks with batches of `b` rows compute what one rank with batches
//! of `n·b` does, up to the rounding of sums.
//!
//! The second: between two steps all ranks hold the same [`TrainingState`], which contains only whole steps.
//! Whatever ends training (a lost peer, cancellation, a deadline) leaves that state, and training continues
//! from it in another world as if nothing had happened:
//!
//! ```text
//!  generation 1   rank 0 1 2 3   ── step ── step ── × rank 2 is lost
//!                        │ │   │                    Interrupted { error, state } on 0, 1, 3
//!  generation 2   rank   0 1   2  ── step ── step ── …       Origin::State(state)
//! ```
//!
//! Training blocks: a rank has its own OS thread. The choice of the device is made here and nowhere else.

mod agree;
mod batch;
#[doc(hidden)]
pub mod bench;
mod choose;
mod coverage;
mod dropout;
mod early;
mod evaluate;
mod features;
mod finite;
mod fit;
mod lbfgs;
mod link;
mod loss;
mod metrics;
mod misfits;
#[cfg(any(test, feature = "wgpu"))]
mod on_burn;
mod optimizer;
mod origin;
mod pace;
mod publish;
mod rank;
mod refit;
mod sample;
mod schedule;
mod shuffle;
mod state;
mod tensorboard;
#[cfg(test)]
mod tests;
mod trace;
mod tried;

use std::rc::Rc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use volley_proto::did_you_mean;
use volley_proto::spec::{ClassWeights, FeatureKind, RankDevice, TrainSpec};
use volley_proto::store::{Classes, FeatureSummary, Refitted};

pub(crate) use choose::{columns_differ, factors};
pub use origin::{Beginning, Origin};
pub use rank::{Artifacts, Interrupted, Observer, Outcome, Rank, RankReport, Shards, Step};
pub use state::TrainingState;

use crate::collective::Communicator;
use crate::device::Opened;
use crate::encode::{LoadedShards, Scaling, Settled, Vocabulary, settle};
use crate::model::Successor;
use crate::network::{
    Architecture, Compute, CustomLayers, Host, HostDevice, Normalization, Parameter, Plan, Sizes,
    uncovered,
};
use crate::threads::Threads;
use crate::{Error, Model, Result};
use agree::{Census, World};
use choose::{Choice, Chosen, Subject, choose};
use early::Waves;
use fit::{Fit, Tools, agree_on_sparse, check, gradient_len};
use link::{Linked, link};
use origin::Agreed;
use state::{Basis, Weights};
use trace::Trace;

/// Trains on this rank's shards, in step with the other ranks, which must call it too.
///
/// It takes the result of [`load`](crate::load()) even if that is an error: then all ranks learn of it and end,
/// instead of waiting for this one. With that of [`load_early`](crate::load_early), the first epoch begins with the shards
/// that have arrived. Ranks may bring different [origins](Origin): all continue from the newest
/// state of any of them.
///
/// # Errors
/// This rank's own failure to load or to start, or a custom layer that it lacks; else [`Error::Peer`] with
/// another rank's; [`Error::Defect`] with the same rows on every rank; [`Error::StateOption`] and similar
/// when the state brought is of another training; [`Error::Cancelled`]; [`Error::Collective`] and
/// [`Error::AtStep`] when a rank is lost. The state to continue from comes with it.
pub fn train(
    spec: &TrainSpec,
    shards: impl Into<Shards>,
    rank: Rank<'_>,
) -> Result<Outcome, Interrupted> {
    let trained = train_on(spec, shards.into(), rank);
    // Before all rows have arrived, there is nothing to continue from.
    trained.map_err(|Interrupted { error, state }| Interrupted {
        error,
        state: state.filter(|state| state.basis.has_shards()),
    })
}

fn train_on(spec: &TrainSpec, shards: Shards, rank: Rank<'_>) -> Result<Outcome, Interrupted> {
    let Rank {
        communicator,
        device,
        threads,
        layers,
        observer,
        cancel,
        mut origin,
    } = rank;
    let start = Instant::now();
    let threads = Threads::start(threads);
    let opened = layers.check(&spec.network, device);
    let (shards, opened) = match opened.and_then(|()| device.open()) {
        Ok(opened) => (shards, opened),
        Err(error) => (shards.or(error), Opened::Cpu { instead: None }),
    };
    if let Shards::Loaded(Ok(loaded)) = &shards {
        observer.loaded(loaded.rows(), loaded.seconds());
    }
    let own = early::Own {
        threads: &threads,
        observer,
        cancel,
    };
    // Patiently, since some ranks have more rows to settle than others.
    let prepared = communicator.patiently(|peers| match shards {
        Shards::Loaded(loaded) => prepare(spec, loaded, &origin, layers, (&threads, cancel), peers),
        Shards::Arriving(arriving) => {
            early::prepare(spec, arriving, &mut origin, layers, own, peers)
        }
    });
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            let state = origin.into_state().map(Box::new);
            return Err(Interrupted { error, state });
        }
    };
    let state = prepared.agreed.state.take();
    let state = state.or_else(|| origin.into_state());
    let state = state.expect("ranks agree on a state that one of them has");
    let beginning = prepared.agreed.beginning;
    observer.started(beginning);
    // A training that continues has been noted on.
    if communicator.rank() == 0 && !matches!(beginning, Beginning::Resumed { .. }) {
        observer.noted(&features::note(&prepared.features, &prepared.vocabularies));
        prepared.notes.iter().for_each(|note| observer.noted(note));
    }
    let subject = Subject {
        spec: &prepared.spec,
        architecture: &prepared.architecture,
        state: &state,
        world: &prepared.world,
        shards: &prepared.shards,
    };
    let choice = communicator.patiently(|peers| choose(opened, subject, &threads, peers));
    let Choice {
        chosen,
        computed,
        reason,
    } = match choice {
        Ok(choice) => choice,
        Err(error) => return Err(Interrupted::with(error, state)),
    };
    if let Some(reason) = reason {
        observer.fell_back(computed, &reason);
    }
    let sizes = (prepared.world.train.rows, state.global_batch);
    let on_host = matches!(chosen, Chosen::Host);
    let (spec, architecture) = (&prepared.spec, &prepared.architecture);
    let sparse = match agree_on_sparse(spec, architecture, sizes, on_host, communicator) {
        Ok(sparse) => sparse,
        Err(error) => return Err(Interrupted::with(error, state)),
    };
    let runtime = match &chosen {
        Chosen::Plan(device) => Some(Rc::clone(&device.runtime)),
        _ => None,
    };
    let parameters = architecture.parameters().iter();
    let numbers = parameters.map(Parameter::len).sum();
    // The host's part in a step cannot be recorded with sums between GPUs.
    let unlinked = uncovered(architecture);
    let linked = communicator.patiently(|peers| link(runtime.as_ref(), unlinked, numbers, peers));
    let Linked { is_linked, note } = match linked {
        Ok(linked) => linked,
        Err(error) => return Err(Interrupted::with(error, state)),
    };
    if let Some(note) = note.filter(|_| communicator.rank() == 0) {
        observer.noted(&note);
    }
    prepared.load_seconds += start.elapsed().as_secs_f64();
    let own = Own {
        communicator,
        observer,
        cancel,
        computed,
        sparse,
        linked: is_linked,
        threads: threads.clone(),
        start: Instant::now(),
    };
    match chosen {
        Chosen::Host => {
            let factors = factors(own.computed.precision);
            run::<Host>(prepared, state, own, HostDevice { threads, factors })
        }
        Chosen::Plan(device) => run::<Plan>(prepared, state, own, device),
        #[cfg(feature = "cuda")]
        Chosen::Tensors(device) => {
            use crate::network::Tensors;
            type Cuda = Tensors<burn::backend::Autodiff<burn_cuda::Cuda>>;
            run::<Cuda>(prepared, state, own, device)
        }
        #[cfg(any(test, feature = "wgpu"))]
        Chosen::Burn(device, name) => on_burn::run_on(device, &name, prepared, state, own),
    }
}

/// A rank's communicator, observer, device and threads.
struct Own<'a> {
    communicator: &'a mut Communicator,
    observer: &'a dyn Observer,
    cancel: &'a CancellationToken,
    computed: RankDevice,
    /// True if gradients contain only the picked rows of tables.
    sparse: bool,
    /// True if the ranks' GPUs are linked.
    linked: bool,
    threads: Threads,
    /// Time when the first step could begin.
    start: Instant,
}

fn run<C: Compute>(
    prepared: Prepared,
    mut state: TrainingState,
    own: Own<'_>,
    device: C::Device,
) -> Result<Outcome, Interrupted> {
    let Own {
        communicator,
        observer,
        cancel,
        computed,
        sparse,
        linked,
        threads,
        start,
    } = own;
    let Prepared {
        spec,
        features,
        load_seconds,
        vocabularies,
        classes,
        class_weights,
        mut trained,
        mut shards,
        mut world,
        scaling,
        architecture,
        mut population,
        waves,
        ..
    } = prepared;
    let spec = &spec;
    let most = gradient_len(&architecture, sparse, state.global_batch);
    let gradient = match communicator.buffer(most) {
        Ok(gradient) => gradient,
        Err(error) => return Err(Interrupted::with(error, state)),
    };
    let mut tools = Tools {
        gradient,
        sparse,
        linked,
        curve: Vec::new(),
        trace: Trace::new(spec.trace),
        threads,
    };
    let mut begun = None;
    if let Some(waves) = waves {
        let terms = early::Terms {
            spec,
            architecture: &architecture,
            vocabularies: &vocabularies,
            scaling: &scaling,
            class_weights: class_weights.as_deref(),
        };
        let threads = tools.threads.clone();
        let own = early::Own {
            threads: &threads,
            observer,
            cancel,
        };
        let (waves, held) = ((waves, (shards, world)), (state, tools));
        let arrived = early::first_epoch::<C>(terms, waves, held, &device, own, communicator);
        let arrived = arrived.map_err(|error| Interrupted { error, state: None })?;
        (shards, world, population) = (arrived.shards, arrived.world, arrived.population);
        (trained, state, tools) = (arrived.trained, arrived.state, arrived.tools);
        begun = Some(arrived.begun);
    }
    let sum = |shards: &[Settled], rows: fn(&Settled) -> usize| {
        shards.iter().map(|shard| rows(shard) as u64).sum::<u64>()
    };
    let train_rows = sum(&shards, |shard| shard.train.len());
    let all_rows = world.train.rows + world.eval.rows;
    let all_train = world.train;
    let (eval_rows, all_eval) = match spec.cross_validates() {
        true => (train_rows, all_train.rows),
        false => (sum(&shards, |shard| shard.eval.len()), world.eval.rows),
    };
    // A device that fails takes the state with it.
    let lost = |error| Interrupted { error, state: None };
    let network = |state: &mut TrainingState| {
        let values = std::mem::take(&mut state.weights.values);
        C::new(&architecture, values, &device)
    };

    if state.selected.is_none() && refit::follows(spec, &world) {
        let network = network(&mut state).map_err(lost)?;
        let fit = Fit::new(spec, &architecture, state, &world, &shards, network, tools);
        let mut fit = fit.map_err(lost)?;
        if let Some(begun) = begun.take() {
            fit.continues(begun);
        }
        let fitted = fit.run(communicator, observer, cancel);
        let (left, used) = fit.into_parts();
        (state, tools) = match (fitted, left) {
            (Ok(()), Ok(state)) => (state, used),
            (Err(error), left) => return Err(ended(error, left)),
            (Ok(()), Err(error)) => return Err(lost(error)),
        };
        let weights = Weights {
            values: architecture.initial_values(spec.seed),
            running: population,
        };
        state = state.refit(&spec.optimizer, all_rows, weights);
    }
    let refit = state.selected.map(|selected| Refitted {
        first_epoch: selected.epochs + 1,
        rows: all_rows,
    });
    if refit.is_some() {
        (shards, world) = match refit::merge(shards, &world, class_weights.as_deref(), cancel) {
            Ok(merged) => merged,
            Err(error) => return Err(Interrupted::with(error, state)),
        };
        trained = match trained_codes(&shards, &vocabularies, communicator) {
            Ok(trained) => trained,
            Err(error) => return Err(Interrupted::with(error, state)),
        };
    }
    let network = network(&mut state).map_err(lost)?;
    let fit = Fit::new(spec, &architecture, state, &world, &shards, network, tools);
    let mut fit = fit.map_err(lost)?;
    if let Some(begun) = begun {
        fit.continues(begun);
    }
    let fitted = fit.run(communicator, observer, cancel);
    let evaluated = fitted.and_then(|()| {
        let loss = fit.evaluate_training(communicator, cancel)?;
        let traces = fit.traces(communicator)?;
        let devices = agree::gather(&computed, "device", communicator)?;
        Ok((loss, traces, devices))
    });
    let (left, Tools { curve, .. }) = fit.into_parts();
    let (eval_train_loss, traces, rank_devices) = match evaluated {
        Ok(evaluated) => evaluated,
        Err(error) => return Err(ended(error, left)),
    };
    let (history, kept_epoch, weights) = left.map_err(lost)?.finish();

    let report = RankReport {
        train_rows,
        eval_rows,
        refit_rows: refit.map(|_| sum(&shards, |shard| shard.train.len())),
        epochs: history.len(),
        kept: history[kept_epoch - 1].clone(),
        eval_train_loss,
        computed,
        load_seconds,
        train_seconds: start.elapsed().as_secs_f64(),
    };
    let artifacts = (communicator.rank() == 0).then(|| {
        let trained = publish::FinishedTraining {
            spec,
            features,
            vocabularies: &vocabularies,
            classes,
            trained: &trained,
            scaling: &scaling,
            architecture: &architecture,
            world: &world,
            rows: (all_train, all_eval),
            rank_devices,
            history,
            curve,
            traces,
            kept_epoch,
            refit,
        };
        trained.publish(weights)
    });
    Ok(Outcome { report, artifacts })
}

/// Pairs the error that ended a training with its state, if that can still be read.
fn ended(error: Error, left: Result<TrainingState>) -> Interrupted {
    let state = left.map(Box::new);
    Interrupted {
        state: state
            .inspect_err(|error| tracing::warn!(%error, "the state of the training is lost"))
            .ok(),
        error,
    }
}

/// Maximum number of classes; a label with more values is more likely a quantity.
const MOST_CLASSES: usize = 10_000;

/// Everything that a rank needs for its first step.
struct Prepared {
    /// The spec, with the split that the ranks agreed on.
    spec: TrainSpec,
    features: Vec<FeatureSummary>,
    load_seconds: f64,
    vocabularies: Vec<Vocabulary>,
    /// Classes of a classification label.
    classes: Option<Classes>,
    /// Training weights of the classes, unless all are equal.
    class_weights: Option<Vec<f64>>,
    /// Total weight of the training rows with each code of the embedding table.
    trained: Vec<f64>,
    shards: Vec<Settled>,
    world: World,
    scaling: Scaling,
    architecture: Architecture,
    /// Initial statistics of batch norm.
    population: Normalization,
    agreed: Agreed,
    /// Notes on features that cannot generalize.
    notes: Vec<String>,
    /// Waves after these shards, in a training that begins early.
    waves: Option<Waves>,
}

/// Agrees with the other ranks on everything before the first step.
fn prepare(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    origin: &Origin,
    layers: &CustomLayers,
    (threads, cancel): (&Threads, &CancellationToken),
    communicator: &mut Communicator,
) -> Result<Prepared> {
    let (loaded, mut vocabularies) = agree::on_values(spec, loaded, communicator)?;
    let classes = match loaded.has_classes() {
        true => vocabularies.pop(),
        false => None,
    };
    if let Some(classes) = &classes {
        check_classes(spec, &classes.classes())?;
    }
    let loaded = agree::on_sequence(loaded, &spec.split, communicator)?;
    let (loaded, split) = agree::on_folds(loaded, spec, communicator)?;
    let spec = &TrainSpec {
        split,
        ..spec.clone()
    };
    let load_seconds = loaded.seconds();
    let weightless = loaded.weightless();
    let features = loaded.features;
    let at_once = loaded.at_once;
    let settled = |shard| settle(shard, &vocabularies, classes.as_ref()).stored();
    let unscaled = some_at_once(threads, cancel, at_once, loaded.shards, settled)?;
    let continuous = features
        .iter()
        .filter(|feature| feature.kind == FeatureKind::Continuous);
    let classes = classes.as_ref().map(Vocabulary::classes);
    let count = classes.as_ref().map_or(0, Classes::len);
    let labels = spec.label.columns.len();
    let census = Census::take(&unscaled, continuous.count(), labels, count).beside(weightless);
    let mut world = agree::on_rows(census, spec.sample_weight.as_deref(), communicator)?;
    let samples = match Scaling::ranks(spec) {
        true => sample::numbers(spec.seed, &world, &unscaled, communicator)?,
        false => vec![],
    };
    let fitted = Scaling::fit(spec, &world.features, &world.labels, &samples);
    let scaling = agree::on_scaling(origin.scaling(), fitted, communicator)?;
    let class_weights = match &classes {
        Some(classes) => class_weights(spec, classes, &world.classes)?,
        None => None,
    };
    let scaled = |shard| {
        let mut shard = scaling.apply(shard);
        if let Some(weights) = &class_weights {
            shard.train.weigh(weights);
        }
        shard.stored()
    };
    let shards = some_at_once(threads, cancel, at_once, unscaled, scaled)?;
    let trained = trained_codes(&shards, &vocabularies, communicator)?;
    let rows = (shards.as_slice(), &world);
    let notes = misfits::notes(spec, &vocabularies, &trained, rows, communicator)?;
    let architecture = architecture(spec, &vocabularies, &world, &scaling, layers)?;

    let basis = Basis::new(spec, world.shards.clone(), &vocabularies);
    let global_batch = spec.global_batch(world.train.rows, world.ranks);
    let begin = |values, running| {
        let weights = Weights { values, running };
        TrainingState::begin(
            basis.clone(),
            &spec.optimizer,
            global_batch,
            scaling.clone(),
            weights,
        )
    };
    let population = match architecture.batch_norm {
        true => scaling.moments(&world.features),
        false => Normalization::unit(0),
    };
    world.means.clone_from(&population.mean);
    let fresh = || {
        let values = architecture.initial_values(spec.seed);
        Ok(begin(values, population.clone()))
    };
    let warm = |model: &Model| {
        let successor = Successor {
            spec,
            vocabularies: &vocabularies,
            architecture: &architecture,
        };
        let (values, running) = model.start(&successor, architecture.initial_values(spec.seed))?;
        Ok(begin(values, running))
    };
    let agreed = origin::agree(origin, fresh, warm, communicator).and_then(|agreed| {
        if let Some(state) = agreed.state.as_ref().or(origin.state()) {
            state.check(&basis, spec, &architecture)?;
        }
        let hash = agreed.hash;
        Ok((agreed, hash))
    });
    let agreed = agree::on_start(spec, agreed, communicator)?;
    Ok(Prepared {
        spec: spec.clone(),
        features,
        load_seconds,
        vocabularies,
        classes,
        class_weights,
        trained,
        shards,
        world,
        scaling,
        architecture,
        population,
        agreed,
        notes,
        waves: None,
    })
}

/// Maps shards, at most `at_once` at a time, which bounds the shards in memory.
fn some_at_once<T: Send, U: Send>(
    threads: &Threads,
    cancel: &CancellationToken,
    at_once: usize,
    shards: Vec<T>,
    work: impl Fn(T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let mut shards = shards.into_iter();
    let mut done = Vec::with_capacity(shards.len());
    loop {
        check(cancel)?;
        let some: Vec<T> = shards.by_ref().take(at_once).collect();
        if some.is_empty() {
            return Ok(done);
        }
        for shard in threads.map(some, &work) {
            done.push(shard?);
        }
    }
}

/// Checks that the label's number of classes is in range.
fn check_classes(spec: &TrainSpec, classes: &Classes) -> Result<()> {
    match classes.len() {
        // Missing rows are reported by the check of row counts.
        0 | 2..=MOST_CLASSES => Ok(()),
        found => Err(Error::Classes {
            column: spec.label.column().to_owned(),
            found,
            most: MOST_CLASSES,
        }),
    }
}

/// Returns the training weights of classes, or `None` if all are equal.
///
/// `rows` is the total weight of each class's training rows.
fn class_weights(spec: &TrainSpec, classes: &Classes, rows: &[f64]) -> Result<Option<Vec<f64>>> {
    match &spec.class_weights {
        ClassWeights::Equal => Ok(None),
        ClassWeights::Balanced => {
            let all: f64 = rows.iter().sum();
            // A class without training rows counts as one row.
            let weight = |rows: &f64| {
                let rows = if *rows > 0.0 { *rows } else { 1.0 };
                all / (classes.len() as f64 * rows)
            };
            Ok(Some(rows.iter().map(weight).collect()))
        }
        ClassWeights::Given(given) => {
            let known = classes.texts();
            let mut weights = vec![1.0; known.len()];
            for (class, weight) in given {
                let at = known.iter().position(|known| known == class);
                let at = at.ok_or_else(|| Error::ClassWeight {
                    class: class.clone(),
                    hint: did_you_mean(class, known.iter().map(String::as_str)),
                })?;
                weights[at] = *weight;
            }
            Ok(Some(weights))
        }
    }
}

/// Returns the total weight of all ranks' training rows with each code of the embedding table.
fn trained_codes(
    shards: &[Settled],
    vocabularies: &[Vocabulary],
    communicator: &mut Communicator,
) -> Result<Vec<f64>> {
    let mut rows = vec![0.0; vocabularies.iter().map(Vocabulary::codes).sum()];
    for shard in shards {
        for row in 0..shard.train.len() {
            let weight = f64::from(shard.train.weight(row));
            for code in shard.train.codes_of(row) {
                rows[*code as usize] += weight;
            }
        }
    }
    if !rows.is_empty() {
        communicator.all_reduce_sum_f64(&mut rows)?;
    }
    Ok(rows)
}

fn architecture(
    spec: &TrainSpec,
    vocabularies: &[Vocabulary],
    world: &World,
    scaling: &Scaling,
    layers: &CustomLayers,
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
    let sizes = Sizes {
        codes: vocabularies.iter().map(Vocabulary::codes).collect(),
        continuous: scaling.inputs(),
        bins: scaling.bins(),
        outputs: Architecture::outputs_of(spec, world.classes.len()),
        rows: world.train.rows + world.eval.rows,
    };
    Architecture::new(spec, &sizes, output_scale, layers)
}
