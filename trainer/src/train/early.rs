//! Training that begins early: the first epoch takes steps on the shards that have arrived, while the others are read and
//! encoded.
//!
//! ```text
//!  rank 0   shards 0 1 │ 2 3 │ 4 5 │ …     encode    ████████████████████████████
//!  rank 1   shards 7 8 │ 9   │ 6   │ …     wave 0         step step │ wave 1  step step │ … │ evaluate │ epoch 2 …
//! ```
//!
//! Whatever steps depend on besides the rows is known before them: vocabularies, classes and the scaling of numbers are
//! those of the [model](Model::inherited) to start from. So rows are settled and scaled as they arrive, and stay so for
//! later epochs, which shuffle all rows as usual. In the first one, the ranks go through [waves](WAVES) of shards together:
//! each takes its own part of a wave once it has arrived, and a wave that does not fill a step joins the next. The rows
//! of a wave are shuffled, and divided among steps like those of an epoch, none of which has more rows than the global
//! batch. A rank's waves follow from its shards and not from their arrival, so the same ranks compute the same model
//! again.
//!
//! The invariants of the [coverage](super::coverage) are those of any epoch: once all rows are there, the manifest is
//! known, and both accounts of the waves must equal it. Until then there is no state that another generation could
//! continue from: a training that is interrupted in its first epoch begins again.
//!
//! The number of rows, from which learning rates, a default batch size and the display of progress follow, is estimated
//! from the shards that have arrived. Everything that needs to know more is refused by the spec.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use volley_proto::spec::TrainSpec;

use super::agree::{self, Census, World};
use super::coverage::Covered;
use super::fit::{Begun, Fit, Tools};
use super::origin::{self, Beginning, Origin};
use super::rank::Observer;
use super::schedule::steps_per_epoch;
use super::state::{Basis, TrainingState, Weights};
use super::{Prepared, class_weights, misfits, some_at_once, trained_codes};
use crate::collective::Communicator;
use crate::encode::{ArrivingShards, LocalShard, Scaling, Settled, Vocabulary, WAVES, settle};
use crate::model::{Inherited, Successor};
use crate::network::{Architecture, Compute, CustomLayers, Normalization};
use crate::threads::Threads;
use crate::{Error, Model, Result};

/// Note at the start of a training that begins early.
const NOTE: &str = "the first epoch begins as rows arrive, with the values and the scaling of the model to start from";

/// Waves of a first epoch whose rows arrive.
#[derive(Debug)]
pub(super) struct Waves {
    arriving: ArrivingShards,
    /// Number of the next wave.
    next: usize,
    /// Classes of a classification label.
    classes: Option<Vocabulary>,
    /// This rank's shards in the waves so far.
    census: Census,
    /// Training rows and shards of all ranks in the waves so far.
    rows: u64,
    shards: usize,
    /// Time spent waiting for this rank's shards.
    waited: Duration,
}

/// What rows are settled and scaled by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) spec: &'a TrainSpec,
    pub(super) architecture: &'a Architecture,
    /// Vocabularies of the categorical features.
    pub(super) vocabularies: &'a [Vocabulary],
    pub(super) scaling: &'a Scaling,
    /// Training weights of the classes, unless all are equal.
    pub(super) class_weights: Option<&'a [f64]>,
}

/// A rank's thread pool, observer and cancellation.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) threads: &'a Threads,
    pub(super) observer: &'a dyn Observer,
    pub(super) cancel: &'a CancellationToken,
}

/// Shards to train on, and those of all ranks.
pub(super) type Wave = (Vec<Settled>, World);

/// A first epoch that has taken its steps.
pub(super) struct Arrived {
    pub(super) shards: Vec<Settled>,
    pub(super) world: World,
    /// Statistics of the network's inputs over all training rows.
    pub(super) population: Normalization,
    /// Total weight of the training rows with each code of the embedding table.
    pub(super) trained: Vec<f64>,
    /// State after the last step, with the manifest of all rows.
    pub(super) state: TrainingState,
    pub(super) tools: Tools,
    pub(super) begun: Begun,
}

/// Agrees with the other ranks on everything before the first step, over the rows of the first wave. If a rank brings a
/// state to continue from, it is over all rows instead, as in any training; the state becomes the origin of all.
pub(super) fn prepare(
    spec: &TrainSpec,
    arriving: Result<ArrivingShards>,
    origin: &mut Origin,
    layers: &CustomLayers,
    own: Own<'_>,
    communicator: &mut Communicator,
) -> Result<Prepared> {
    let arriving = agree::on_loaded(arriving, |_| vec![], communicator)?;
    let fresh = || Err(Error::NothingKnown);
    let warm = |model: &Model| begin(spec, model, &arriving, layers);
    let agreed = origin::agree(origin, fresh, warm, communicator)?;
    if let beginning @ Beginning::Resumed { .. } = agreed.beginning {
        if let Some(state) = agreed.state {
            *origin = Origin::State(state);
        }
        let known = origin.state().and_then(|state| state.basis.vocabularies());
        let known = known.map(<[Vocabulary]>::to_vec);
        let loaded = arriving.all(own.cancel).map(|mut loaded| {
            own.observer.loaded(loaded.rows(), loaded.seconds());
            loaded.known = known;
            loaded
        });
        let calls = (own.threads, own.cancel);
        let mut prepared = super::prepare(spec, loaded, origin, layers, calls, communicator)?;
        prepared.agreed.beginning = beginning;
        return Ok(prepared);
    }
    let hash = agreed.hash;
    let mut agreed = agree::on_start(spec, Ok((agreed, hash)), communicator)?;
    let state = agreed.state.as_mut();
    let state = state.expect("a model's weights are every rank's state");

    let known = state.basis.vocabularies().unwrap_or_default();
    let mut vocabularies = known.to_vec();
    let label = arriving.label().and_then(|_| vocabularies.pop());
    let classes = label.as_ref().map(Vocabulary::classes);
    let weights = match &classes {
        Some(classes) => class_weights(spec, classes, &[])?,
        None => None,
    };
    let scaling = state.scaling.clone();
    let architecture = architecture(spec, &vocabularies, label.as_ref(), &scaling, layers)?;
    state.check(&state.basis, spec, &architecture)?;
    let terms = Terms {
        spec,
        architecture: &architecture,
        vocabularies: &vocabularies,
        scaling: &scaling,
        class_weights: weights.as_deref(),
    };
    let features = arriving.features();
    let mut waves = Waves::new(arriving, label, spec);
    let (shards, world) = match waves.next(terms, state, own, communicator)? {
        Some(wave) => wave,
        None => unreachable!("there is a first wave"),
    };
    Ok(Prepared {
        spec: spec.clone(),
        features,
        // Until the first step, which its caller measures.
        load_seconds: 0.0,
        vocabularies,
        classes,
        class_weights: weights,
        trained: vec![],
        shards,
        world,
        scaling,
        architecture,
        population: Normalization::unit(0),
        agreed,
        notes: vec![NOTE.to_owned()],
        waves: Some(waves),
    })
}

/// Returns the state of a training that starts from a model and has no rows yet.
fn begin(
    spec: &TrainSpec,
    model: &Model,
    arriving: &ArrivingShards,
    layers: &CustomLayers,
) -> Result<TrainingState> {
    let Inherited {
        vocabularies,
        classes,
        scaling,
    } = model.inherited(spec, &arriving.classes(), arriving.label())?;
    let architecture = architecture(spec, &vocabularies, classes.as_ref(), &scaling, layers)?;
    let successor = Successor {
        spec,
        vocabularies: &vocabularies,
        architecture: &architecture,
    };
    let (values, running) = model.start(&successor, architecture.initial_values(spec.seed))?;
    let basis = Basis::new(spec, BTreeMap::new(), &vocabularies);
    let known = vocabularies.into_iter().chain(classes);
    // The rows of a step follow from the first wave.
    let global_batch = 1;
    Ok(TrainingState::begin(
        basis.keep(known.collect()),
        &spec.optimizer,
        global_batch,
        scaling,
        Weights { values, running },
    ))
}

/// Returns the network, which does not depend on the rows.
fn architecture(
    spec: &TrainSpec,
    vocabularies: &[Vocabulary],
    classes: Option<&Vocabulary>,
    scaling: &Scaling,
    layers: &CustomLayers,
) -> Result<Architecture> {
    let classes = classes.map_or(0, |classes| classes.classes().len());
    super::architecture(
        spec,
        vocabularies,
        &World::unknown(classes),
        scaling,
        layers,
    )
}

impl Waves {
    fn new(arriving: ArrivingShards, classes: Option<Vocabulary>, spec: &TrainSpec) -> Self {
        let count = classes.as_ref().map_or(0, |of| of.classes().len());
        let labels = spec.label.columns.len();
        Self {
            next: 0,
            census: Census::take(&[], arriving.numbers(), labels, count),
            arriving,
            classes,
            rows: 0,
            shards: 0,
            waited: Duration::ZERO,
        }
    }

    fn is_last(&self) -> bool {
        self.next == WAVES
    }

    /// Returns the expected training rows of the epoch, if `shards` of the shards have `rows` of them.
    fn expected(&self, spec: &TrainSpec, rows: u64, shards: usize) -> u64 {
        match self.is_last() {
            true => rows,
            false => {
                let all = u128::from(rows) * spec.shards as u128 / shards.max(1) as u128;
                u64::try_from(all).unwrap_or(u64::MAX)
            }
        }
    }

    /// Waits for shards that fill a step, or for the last ones, and settles them. The first have rows of every rank that
    /// has any, and determine the global batch. Returns `None` after the last.
    fn next(
        &mut self,
        terms: Terms<'_>,
        state: &mut TrainingState,
        own: Own<'_>,
        communicator: &mut Communicator,
    ) -> Result<Option<Wave>> {
        let Terms {
            spec,
            vocabularies,
            scaling,
            class_weights,
            ..
        } = terms;
        let (features, labels) = (self.arriving.numbers(), spec.label.columns.len());
        let classes = self.classes.clone();
        let count = classes.as_ref().map_or(0, |of| of.classes().len());
        let (mut shards, mut census) = (vec![], Census::take(&[], features, labels, count));
        while !self.is_last() {
            let begun = Instant::now();
            let arrived = self.arriving.wave(self.next, own.cancel);
            self.waited += begun.elapsed();
            self.next += 1;
            if arrived.is_ok() && self.is_last() {
                own.observer
                    .loaded(self.arriving.rows, self.arriving.seconds);
            }
            let defects = |arrived: &Vec<LocalShard>| {
                let of =
                    |shard: &LocalShard| shard.defects_with(spec.label.column(), classes.as_ref());
                arrived.iter().flat_map(of).collect::<Vec<_>>()
            };
            let arrived = agree::on_loaded(arrived, defects, communicator)?;
            let settled = |shard: LocalShard| -> Result<(Census, Settled)> {
                let weightless = shard.weightless();
                let unscaled = settle(shard, vocabularies, classes.as_ref());
                let of_shard = std::slice::from_ref(&unscaled);
                let census = Census::take(of_shard, features, labels, count).beside(weightless);
                let mut scaled = scaling.apply(unscaled);
                if let Some(weights) = class_weights {
                    scaled.train.weigh(weights);
                }
                Ok((census, scaled.stored()?))
            };
            let at_once = self.arriving.at_once();
            for (of_shard, shard) in
                some_at_once(own.threads, own.cancel, at_once, arrived, settled)?
            {
                census.add(of_shard);
                shards.push(shard);
            }
            let counted = agree::count(&census, communicator)?;
            let rows = self.rows + counted.world.train.rows;
            let seen = self.shards + counted.world.shards.len();
            let is_first = self.rows == 0;
            let global_batch = match is_first {
                true => {
                    let expected = self.expected(spec, rows, seen);
                    spec.global_batch(expected, communicator.world_size())
                }
                false => state.global_batch,
            };
            let fills = counted.world.train.rows >= global_batch;
            let is_ready = fills && (counted.fewest > 0 || !is_first);
            if !is_ready && !self.is_last() {
                continue;
            }
            (self.rows, self.shards) = (rows, seen);
            self.census.add(census);
            state.global_batch = global_batch;
            let mut world = match is_first {
                true => counted.check(spec.sample_weight.as_deref())?,
                false => counted.world,
            };
            // Sums of numbers are taken around these.
            world.means.clone_from(&state.weights.running.mean);
            return Ok(Some((shards, world)));
        }
        Ok(None)
    }
}

/// Trains on the first wave, and on the others as they arrive.
///
/// # Errors
/// Those of steps and of loading. No state is left: the training begins again.
pub(super) fn first_epoch<C: Compute>(
    terms: Terms<'_>,
    (mut waves, first): (Waves, Wave),
    (mut state, mut tools): (TrainingState, Tools),
    device: &C::Device,
    own: Own<'_>,
    communicator: &mut Communicator,
) -> Result<Arrived> {
    let Terms {
        spec,
        architecture,
        vocabularies,
        scaling,
        ..
    } = terms;
    let mut begun = Begun {
        own: Covered::default(),
        since: Instant::now(),
        reducing: communicator.counters().time,
        waited: Duration::ZERO,
    };
    waves.waited = Duration::ZERO;
    let mut all = vec![];
    let (mut shards, mut world) = first;
    loop {
        if world.train.rows > 0 {
            let of_wave = steps_per_epoch(world.train.rows, state.global_batch);
            let rows = waves.expected(spec, waves.rows, waves.shards);
            let done = state.position.steps + of_wave;
            let expected = match waves.is_last() {
                true => done,
                false => done.max(steps_per_epoch(rows, state.global_batch)),
            };
            let values = std::mem::take(&mut state.weights.values);
            let network = C::new(architecture, values, device)?;
            let mut fit = Fit::new(spec, architecture, state, &world, &shards, network, tools)?;
            let taken = fit.run_wave(expected, communicator, own.observer, own.cancel);
            begun.own.add(fit.own);
            let (left, used) = fit.into_parts();
            taken?;
            (state, tools) = (left?, used);
            state.position.step = 0;
        }
        all.append(&mut shards);
        let next = communicator.patiently(|peers| waves.next(terms, &mut state, own, peers))?;
        match next {
            Some(next) => (shards, world) = next,
            None => break,
        }
    }
    begun.waited = waves.waited;
    all.sort_by_key(|shard: &Settled| shard.id);

    let mut world = agree::on_rows(waves.census, spec.sample_weight.as_deref(), communicator)?;
    let population = match architecture.batch_norm {
        true => scaling.moments(&world.features),
        false => Normalization::unit(0),
    };
    world.means.clone_from(&population.mean);
    let trained = trained_codes(&all, vocabularies, communicator)?;
    let notes = misfits::notes(
        spec,
        vocabularies,
        &trained,
        (all.as_slice(), &world),
        communicator,
    )?;
    if communicator.rank() == 0 {
        notes.iter().for_each(|note| own.observer.noted(note));
    }
    state.basis.set_shards(world.shards.clone());
    state.position.step = steps_per_epoch(world.train.rows, state.global_batch);
    Ok(Arrived {
        shards: all,
        world,
        population,
        trained,
        state,
        tools,
        begun,
    })
}
