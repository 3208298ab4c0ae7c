//! Agreements of the ranks before the first step, so that they cannot differ later. They agree on the initial
//! state in [`origin`](super::origin).
//!
//! Each agreement is one all-gather: every rank announces what it has, and all draw the same conclusion from
//! the same messages. A rank that has failed announces that instead.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use volley_proto::spec::{Split, TrainSpec, VocabularyRule};
use volley_proto::store::{Position, Quantiles, Scale};

use super::coverage::Covered;
use super::state::ShardRows;
use crate::collective::Communicator;
use crate::encode::{
    Defect, FeatureScale, LoadedShards, Scaling, Settled, Statistics, Storage, Tally, Vocabulary,
    merge_defects,
};
use crate::{Error, Result};

/// Outcome of a rank's loading.
#[derive(Debug, Serialize, Deserialize)]
enum Loaded {
    Ready { defects: Vec<Defect> },
    Failed { cause: String },
    Cancelled,
}

/// Builds the vocabularies of all ranks' values, with that of a classification label last; or ends all ranks
/// if one has failed. Known vocabularies stay as they are.
pub(super) fn on_values(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    communicator: &mut Communicator,
) -> Result<(LoadedShards, Vec<Vocabulary>)> {
    let mut loaded = on_loaded(loaded, LoadedShards::defects, communicator)?;
    let vocabularies = match loaded.known.take() {
        Some(known) => known,
        None => vocabularies(spec, &loaded, communicator)?,
    };
    Ok((loaded, vocabularies))
}

/// Ends all ranks if one has failed to load its rows, or has rows that must not be trained on.
pub(super) fn on_loaded<T>(
    loaded: Result<T>,
    defects: impl FnOnce(&T) -> Vec<Defect>,
    communicator: &mut Communicator,
) -> Result<T> {
    let mine = match &loaded {
        Ok(loaded) => Loaded::Ready {
            defects: defects(loaded),
        },
        Err(Error::Cancelled) => Loaded::Cancelled,
        Err(error) => Loaded::Failed {
            cause: error.chain(),
        },
    };
    let all = gather(&mine, "report on its rows", communicator);
    let loaded = loaded?; // this rank's own failure comes before any other
    let mut found = Vec::new();
    for (rank, report) in all?.into_iter().enumerate() {
        match report {
            Loaded::Cancelled => return Err(Error::Cancelled),
            Loaded::Failed { cause } => return Err(Error::Peer { rank, cause }),
            Loaded::Ready { defects } => found.extend(defects),
        }
    }
    match merge_defects(found).into_iter().next() {
        Some(defect) => Err(Error::Defect(defect)),
        None => Ok(loaded),
    }
}

fn vocabularies(
    spec: &TrainSpec,
    loaded: &LoadedShards,
    communicator: &mut Communicator,
) -> Result<Vec<Vocabulary>> {
    let classes = loaded.classes();
    let message = |rank, source| Error::PeerMessage {
        rank,
        what: "values",
        source: Box::new(source),
    };
    let mine = communicator.rank();
    let bytes = Tally::encode(&loaded.tallies()).map_err(|source| message(mine, source))?;
    let mut parts: Vec<Vec<Tally>> = vec![vec![]; classes.len()];
    for (rank, bytes) in communicator.all_gather(&bytes)?.into_iter().enumerate() {
        let tallies = Tally::decode(&bytes, &classes).map_err(|source| message(rank, source))?;
        let of_rank = parts.iter_mut().zip(tallies);
        of_rank.for_each(|(parts, tally)| parts.push(tally));
    }
    let features = classes.len() - usize::from(loaded.has_classes());
    let merged = classes.into_iter().zip(parts).enumerate();
    let vocabulary = |(at, (class, parts))| {
        let rule = match at < features {
            true => spec.vocabulary,
            false => VocabularyRule::default(),
        };
        Tally::merge(class, parts).vocabulary(&rule)
    };
    Ok(merged.map(vocabulary).collect())
}

/// Assigns the last rows of all ranks' sequence to evaluation, if the split is sequential.
pub(super) fn on_sequence(
    mut loaded: LoadedShards,
    split: &Split,
    communicator: &mut Communicator,
) -> Result<LoadedShards> {
    let Split::Sequential { share, .. } = split else {
        return Ok(loaded);
    };
    let mut rows = [loaded.rows() as f64];
    communicator.all_reduce_sum_f64(&mut rows)?;
    let most = (rows[0] * share).floor();
    // Binary search for the first place with at most `most` rows after it.
    let (mut least, mut place) = (0, u64::MAX);
    while least < place {
        let middle = least + (place - least) / 2;
        let mut after = [loaded.rows_after(middle) as f64];
        communicator.all_reduce_sum_f64(&mut after)?;
        match after[0] <= most {
            true => place = middle,
            false => least = middle + 1,
        }
    }
    loaded.cut(place);
    Ok(loaded)
}

/// Agrees on the split: cross-validation if the spec has folds for this many rows and every fold has rows on
/// some rank, else a random split without folds.
pub(super) fn on_folds(
    mut loaded: LoadedShards,
    spec: &TrainSpec,
    communicator: &mut Communicator,
) -> Result<(LoadedShards, Split)> {
    let Split::CrossValidation(share) = spec.split else {
        return Ok((loaded, spec.split.clone()));
    };
    // The number of folds of a small table.
    let Some(folds) = spec.folds(0) else {
        return Ok((loaded, Split::Random(share)));
    };
    let mut rows = loaded.rows_by_fold(folds);
    communicator.all_reduce_sum_f64(&mut rows)?;
    let all: f64 = rows.iter().sum();
    let is_due = spec.folds(all as u64).is_some();
    let cross_validates = is_due && rows.iter().all(|rows| *rows > 0.0);
    loaded.settle_folds(cross_validates);
    let split = match cross_validates {
        true => spec.split.clone(),
        false => Split::Random(share),
    };
    Ok((loaded, split))
}

/// Contents of a rank's settled shards.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Census {
    /// Number of continuous features.
    features: usize,
    /// Number of classes of a classification label.
    classes: usize,
    shards: Vec<ShardCensus>,
    /// The largest transformed label among training rows.
    largest_label: Option<f64>,
    /// Rows of weight 0, which are in no shard.
    weightless: u64,
    /// True if some shards are in files.
    spills: bool,
}

/// Contents of a shard.
#[derive(Debug, Serialize, Deserialize)]
struct ShardCensus {
    id: usize,
    rows: ShardRows,
    /// Statistics of its training rows: of each continuous feature, then of each transformed label.
    numbers: Vec<Statistics>,
    /// Total weight of the training rows of each class; empty without classes.
    classes: Vec<f64>,
}

impl ShardCensus {
    fn take(shard: &Settled<f64>, features: usize, labels: usize, classes: usize) -> Self {
        let train = &shard.train;
        let weight = |row: usize| f64::from(train.weight(row));
        let mut numbers = vec![Statistics::default(); features + labels];
        let of_rows = train.continuous.chunks_exact(features.max(1)).enumerate();
        for (row, values) in of_rows {
            let of_features = numbers.iter_mut().zip(values);
            of_features.for_each(|(of, x)| of.add(*x, weight(row)));
        }
        let mut weights = vec![0.0; classes];
        for (row, values) in train.labels.chunks_exact(labels).enumerate() {
            let of_labels = numbers[features..].iter_mut().zip(values);
            of_labels.for_each(|(of, label)| of.add(*label, weight(row)));
            if let Some(of_class) = weights.get_mut(values[0] as usize) {
                *of_class += weight(row);
            }
        }
        Self {
            id: shard.id,
            rows: ShardRows::of(shard),
            numbers,
            classes: weights,
        }
    }
}

impl Census {
    /// Counts settled shards with these numbers of continuous features, labels and classes.
    pub(super) fn take(
        shards: &[Settled<f64>],
        features: usize,
        labels: usize,
        classes: usize,
    ) -> Self {
        let all_labels = shards.iter().flat_map(|shard| &shard.train.labels);
        let of_shard = |shard| ShardCensus::take(shard, features, labels, classes);
        Self {
            features,
            classes,
            shards: shards.iter().map(of_shard).collect(),
            largest_label: all_labels.copied().reduce(f64::max),
            weightless: 0,
            spills: shards.iter().any(|shard| shard.storage != Storage::Memory),
        }
    }

    /// Sets the number of rows of weight 0.
    pub(super) fn beside(self, weightless: u64) -> Self {
        Self { weightless, ..self }
    }

    /// Adds other shards of this rank.
    pub(super) fn add(&mut self, other: Self) {
        self.shards.extend(other.shards);
        let labels = [self.largest_label, other.largest_label].into_iter();
        self.largest_label = labels.flatten().reduce(f64::max);
        self.weightless = self.weightless.saturating_add(other.weightless);
        self.spills |= other.spills;
    }
}

/// Contents of all ranks' shards.
#[derive(Debug, Clone)]
pub(super) struct World {
    /// The shard manifest: the rows of each shard, by its number.
    pub(super) shards: BTreeMap<usize, ShardRows>,
    /// All training rows of an epoch.
    pub(super) train: Covered,
    pub(super) eval: Covered,
    pub(super) largest_label: f64,
    /// Statistics of each continuous feature over the training rows.
    pub(super) features: Vec<Statistics>,
    /// Statistics of each transformed label over the training rows.
    pub(super) labels: Vec<Statistics>,
    /// Total weight of the training rows of each class; empty without classes.
    pub(super) classes: Vec<f64>,
    /// Means of the numbers that batch norm normalizes; empty until the scaling is known.
    pub(super) means: Vec<f64>,
    pub(super) ranks: usize,
    /// True if some rank has shards in files.
    pub(super) spills: bool,
}

impl World {
    /// Returns a world whose rows are not known, with so many classes.
    pub(super) fn unknown(classes: usize) -> Self {
        Self {
            shards: BTreeMap::new(),
            train: Covered::default(),
            eval: Covered::default(),
            largest_label: f64::NEG_INFINITY,
            features: vec![],
            labels: vec![],
            classes: vec![0.0; classes],
            means: vec![],
            ranks: 0,
            spills: false,
        }
    }

    /// Returns the class with the greatest weight of training rows, the first of equals; `None` without
    /// classes.
    pub(super) fn majority(&self) -> Option<usize> {
        let classes = 0..self.classes.len();
        classes.reduce(|best, at| match self.classes[at] > self.classes[best] {
            true => at,
            false => best,
        })
    }
}

/// Rows of all ranks, of which there may be none to train on.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) world: World,
    /// Rows of weight 0, which are in no shard.
    weightless: u64,
    /// Training rows of the rank that has the fewest.
    pub(super) fewest: u64,
}

impl Counted {
    /// Checks that there are rows to train on; `weight` is the column of their weights, if they have one.
    pub(super) fn check(self, weight: Option<&str>) -> Result<World> {
        let Self {
            world, weightless, ..
        } = self;
        if world.train.rows > 0 {
            return Ok(world);
        }
        if let (Some(column), 1..) = (weight, weightless) {
            return Err(Error::NoWeight {
                column: column.to_owned(),
                rows: weightless,
                others: world.eval.rows,
            });
        }
        Err(Error::NoTrainingRows(if world.eval.rows > 0 {
            "all rows are held out for evaluation"
        } else {
            "the query returned no rows besides test rows"
        }))
    }
}

/// Sums the rows of all ranks, some of which are to be trained on; `weight` is the column of their weights, if they have
/// one.
pub(super) fn on_rows(
    mine: Census,
    weight: Option<&str>,
    communicator: &mut Communicator,
) -> Result<World> {
    count(&mine, communicator)?.check(weight)
}

/// Sums the rows of all ranks.
pub(super) fn count(mine: &Census, communicator: &mut Communicator) -> Result<Counted> {
    let (features, classes) = (mine.features, mine.classes);
    let all = gather(mine, "census of its rows", communicator)?;
    let mut world = World {
        ranks: all.len(),
        spills: all.iter().any(|census| census.spills),
        ..World::unknown(classes)
    };
    let of_rank = |census: &Census| -> u64 {
        let shards = census.shards.iter();
        shards.map(|shard| shard.rows.train.rows).sum()
    };
    let fewest = all.iter().map(of_rank).min().unwrap_or(0);
    let mut weightless = 0_u64;
    let mut statistics = BTreeMap::new();
    for census in all {
        weightless = weightless.saturating_add(census.weightless);
        for shard in census.shards {
            let ShardCensus { id, rows, .. } = shard;
            world.train.add(rows.train);
            world.eval.add(rows.eval);
            statistics.insert(id, (shard.numbers, shard.classes));
            if world.shards.insert(id, rows).is_some() {
                return Err(Error::SharedShard { shard: id });
            }
        }
        world.largest_label = world
            .largest_label
            .max(census.largest_label.unwrap_or(f64::MIN));
    }
    // In the order of shards, whichever ranks hold them.
    let mut merged: Vec<Statistics> = vec![];
    for (numbers, classes) in statistics.into_values() {
        merged.resize(numbers.len(), Statistics::default());
        let of_columns = merged.iter_mut().zip(&numbers);
        of_columns.for_each(|(all, of)| all.merge(of));
        let of_classes = world.classes.iter_mut().zip(&classes);
        of_classes.for_each(|(all, of)| *all += of);
    }
    world.labels = merged.split_off(features.min(merged.len()));
    world.features = merged;
    Ok(Counted {
        world,
        weightless,
        fewest,
    })
}

/// Scaling of a rank's origin.
#[derive(Debug, Serialize, Deserialize)]
struct Scaled {
    /// Position of the state; `None` for a model, which counts as older than all states.
    position: Option<Position>,
    features: Vec<ScaledFeature>,
    labels: Vec<ScaleBits>,
}

/// The bits of a scale's numbers, which JSON may not preserve, and its null indicator.
type ScaleBits = (u64, u64, u64, bool);

/// Scaling of a feature; further numbers as their bits.
#[derive(Debug, Serialize, Deserialize)]
struct ScaledFeature {
    scale: ScaleBits,
    quantiles: Option<Vec<u64>>,
    bins: Vec<u32>,
}

impl ScaledFeature {
    fn of(feature: &FeatureScale) -> Self {
        let quantiles = feature.quantiles.as_ref().map(Quantiles::to_vec);
        Self {
            scale: scale_bits(&feature.scale),
            quantiles: quantiles.map(|all| all.into_iter().map(f64::to_bits).collect()),
            bins: feature.bins.iter().map(|edge| edge.to_bits()).collect(),
        }
    }

    fn into_scale(self) -> FeatureScale {
        let numbers =
            |bits: Vec<u64>| -> Vec<f64> { bits.into_iter().map(f64::from_bits).collect() };
        FeatureScale {
            scale: scale_of(self.scale),
            quantiles: self.quantiles.map(|all| Quantiles::from(numbers(all))),
            bins: self.bins.into_iter().map(f32::from_bits).collect(),
        }
    }
}

fn scale_bits(of: &Scale) -> ScaleBits {
    let [null, shift, unit] = [of.null, of.shift, of.unit].map(f64::to_bits);
    (null, shift, unit, of.indicator)
}

fn scale_of((null, shift, unit, indicator): ScaleBits) -> Scale {
    let [null, shift, unit] = [null, shift, unit].map(f64::from_bits);
    Scale {
        null,
        shift,
        unit,
        indicator,
    }
}

/// Agrees on the scaling of numbers: that of the state to continue from, or of the model to start from, or
/// else the one fitted to the rows.
pub(super) fn on_scaling(
    origin: Option<(Option<Position>, &Scaling)>,
    fitted: Scaling,
    communicator: &mut Communicator,
) -> Result<Scaling> {
    let mine = origin.map(|(position, scaling)| Scaled {
        position,
        features: scaling.features.iter().map(ScaledFeature::of).collect(),
        labels: scaling.labels.iter().map(scale_bits).collect(),
    });
    let all = gather(&mine, "scaling", communicator)?;
    // The newest, and the lowest rank's among equally new ones; a model counts only on rank 0.
    let mut newest: Option<Scaled> = None;
    for (rank, scaled) in all.into_iter().enumerate() {
        let Some(scaled) = scaled else { continue };
        let counts = scaled.position.is_some() || rank == 0;
        if counts
            && newest
                .as_ref()
                .is_none_or(|newest| scaled.position > newest.position)
        {
            newest = Some(scaled);
        }
    }
    let Some(newest) = newest else {
        return Ok(fitted);
    };
    let fits = newest.features.len() == fitted.features.len()
        && newest.labels.len() == fitted.labels.len();
    if !fits {
        // It belongs to other columns; the check of the state or model refuses it.
        return Ok(fitted);
    }
    let features = newest.features.into_iter().zip(fitted.features);
    let features = features.map(|(newest, fitted)| {
        let mut feature = newest.into_scale();
        // One of them belongs to another network; that check refuses it too.
        if feature.bins.is_empty() || fitted.bins.is_empty() {
            feature.bins = fitted.bins;
        }
        feature
    });
    Ok(Scaling {
        features: features.collect(),
        labels: newest.labels.into_iter().map(scale_of).collect(),
    })
}

/// Start that a rank has prepared.
#[derive(Debug, Serialize, Deserialize)]
enum RankState {
    /// Hashes of its spec and its state.
    Ready {
        spec: u64,
        state: u64,
    },
    Failed {
        cause: String,
    },
}

/// Checks that all ranks start from the same spec and the same state, given with its hash; or ends all ranks
/// if one could not prepare its start.
pub(super) fn on_start<T>(
    spec: &TrainSpec,
    prepared: Result<(T, u64)>,
    communicator: &mut Communicator,
) -> Result<T> {
    let json = serde_json::to_vec(spec).expect("a spec is made of what JSON can say");
    let spec = XxHash64::oneshot(0, &json);
    let mine = match &prepared {
        Ok((_, state)) => RankState::Ready {
            spec,
            state: *state,
        },
        Err(error) => RankState::Failed {
            cause: error.chain(),
        },
    };
    let all = gather(&mine, "start", communicator);
    let (prepared, _) = prepared?; // this rank's own failure comes before any other
    let mut hashes = Vec::new();
    for (rank, start) in all?.into_iter().enumerate() {
        match start {
            RankState::Ready { spec, state } => hashes.push((spec, state)),
            RankState::Failed { cause } => return Err(Error::Peer { rank, cause }),
        }
    }
    let differs = |what, of: fn(&(u64, u64)) -> u64| {
        let right = hashes
            .iter()
            .position(|theirs| of(theirs) != of(&hashes[0]));
        right.map_or(Ok(()), |right| {
            Err(Error::Disagreement {
                left: 0,
                right,
                what,
            })
        })
    };
    differs("spec", |start| start.0)?;
    differs("state", |start| start.1)?;
    Ok(prepared)
}

/// Gathers every rank's message, by rank.
pub(super) fn gather<T: Serialize + DeserializeOwned>(
    mine: &T,
    what: &'static str,
    communicator: &mut Communicator,
) -> Result<Vec<T>> {
    let mine = serde_json::to_vec(mine).expect("reports are made of what JSON can say");
    let decode = |(rank, bytes): (usize, Vec<u8>)| {
        let peer_message = |source| Error::PeerMessage {
            rank,
            what,
            source: Box::new(source),
        };
        serde_json::from_slice(&bytes).map_err(peer_message)
    };
    communicator
        .all_gather(&mine)?
        .into_iter()
        .enumerate()
        .map(decode)
        .collect()
}
