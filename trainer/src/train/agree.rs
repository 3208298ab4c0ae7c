//! What ranks agree on before the first step, so that no later difference can come up. Where they
//! start from is [`origin`](super::origin)'s.
//!
//! Each agreement is one all-gather: every rank says what it has, and all draw the same
//! conclusion from the same messages. A rank that has failed says so instead.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use volley_proto::spec::TrainSpec;

use super::coverage::Covered;
use super::state::ShardRows;
use crate::collective::Communicator;
use crate::encode::{Defect, LoadedShards, Settled, Vocabulary, merge_defects};
use crate::{Error, Result};

/// How a rank's loading ended.
#[derive(Debug, Serialize, Deserialize)]
enum Loaded {
    Ready {
        vocabularies: Vec<Vocabulary>,
        defects: Vec<Defect>,
    },
    Failed {
        cause: String,
    },
    Cancelled,
}

/// Merges all ranks' vocabularies, or ends all ranks if one has failed.
pub(super) fn on_values(
    loaded: Result<LoadedShards>,
    communicator: &mut Communicator,
) -> Result<(LoadedShards, Vec<Vocabulary>)> {
    let mine = match &loaded {
        Ok(shards) => Loaded::Ready {
            vocabularies: shards.vocabularies(),
            defects: shards.defects(),
        },
        Err(Error::Cancelled) => Loaded::Cancelled,
        Err(error) => Loaded::Failed {
            cause: error.chain(),
        },
    };
    let all = gather(&mine, "report on its rows", communicator);
    let loaded = loaded?; // this rank's own failure comes before any other
    let mut merged: Option<Vec<Vocabulary>> = None;
    let mut found = Vec::new();
    for (rank, report) in all?.into_iter().enumerate() {
        match report {
            Loaded::Cancelled => return Err(Error::Cancelled),
            Loaded::Failed { cause } => return Err(Error::Peer { rank, cause }),
            Loaded::Ready {
                vocabularies,
                defects,
            } => {
                found.extend(defects);
                match &mut merged {
                    None => merged = Some(vocabularies),
                    Some(merged) if merged.len() == vocabularies.len() => {
                        merged
                            .iter_mut()
                            .zip(&vocabularies)
                            .for_each(|(m, v)| m.merge(v));
                    }
                    Some(_) => {
                        return Err(Error::Disagreement {
                            left: 0,
                            right: rank,
                            what: "features",
                        });
                    }
                }
            }
        }
    }
    match merge_defects(found).into_iter().next() {
        Some(defect) => Err(Error::Defect(defect)),
        None => Ok((loaded, merged.unwrap_or_default())),
    }
}

/// What a rank's settled shards hold.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Census {
    /// What each shard holds, by its number.
    shards: Vec<(usize, ShardRows)>,
    /// The largest transformed label that is trained on.
    largest_label: Option<f64>,
    /// Σx over the training rows, per continuous feature.
    totals: Vec<f64>,
}

impl Census {
    /// Counts settled shards; `most` is at least the number of continuous features.
    pub(super) fn take(shards: &[Settled], most: usize) -> Self {
        let labels = shards.iter().flat_map(|shard| &shard.train.labels);
        let mut totals = vec![0.0; most];
        for rows in shards
            .iter()
            .map(|shard| &shard.train)
            .filter(|rows| rows.len() > 0)
        {
            for row in rows
                .continuous
                .chunks_exact((rows.continuous.len() / rows.len()).max(1))
            {
                totals
                    .iter_mut()
                    .zip(row)
                    .for_each(|(total, x)| *total += f64::from(*x));
            }
        }
        Self {
            shards: shards.iter().map(|s| (s.id, ShardRows::of(s))).collect(),
            largest_label: labels.copied().reduce(f32::max).map(f64::from),
            totals,
        }
    }
}

/// What all ranks together hold.
#[derive(Debug)]
pub(super) struct World {
    /// The shard manifest: what each shard holds, by its number.
    pub(super) shards: BTreeMap<usize, ShardRows>,
    /// All that is trained on in an epoch.
    pub(super) train: Covered,
    pub(super) eval_rows: u64,
    pub(super) largest_label: f64,
    /// The mean of each continuous feature over the training rows; zeros may follow.
    pub(super) means: Vec<f64>,
    pub(super) ranks: usize,
}

/// Adds up all ranks' rows.
pub(super) fn on_rows(mine: Census, communicator: &mut Communicator) -> Result<World> {
    let all = gather(&mine, "census of its rows", communicator)?;
    let mut world = World {
        shards: BTreeMap::new(),
        train: Covered::default(),
        eval_rows: 0,
        largest_label: f64::NEG_INFINITY,
        means: vec![0.0; mine.totals.len()],
        ranks: all.len(),
    };
    for census in all {
        for (shard, rows) in census.shards {
            world.train.add(rows.train);
            world.eval_rows += rows.eval.rows;
            if world.shards.insert(shard, rows).is_some() {
                return Err(Error::SharedShard { shard });
            }
        }
        world.largest_label = world
            .largest_label
            .max(census.largest_label.unwrap_or(f64::MIN));
        world
            .means
            .iter_mut()
            .zip(census.totals)
            .for_each(|(mean, total)| *mean += total);
    }
    if world.train.rows == 0 {
        return Err(Error::NoTrainingRows(if world.eval_rows > 0 {
            "all of them are to be evaluated"
        } else {
            "the query gave none that is not for testing"
        }));
    }
    world
        .means
        .iter_mut()
        .for_each(|total| *total /= world.train.rows as f64);
    Ok(world)
}

/// What a rank would start with.
#[derive(Debug, Serialize, Deserialize)]
enum Start {
    /// Hashes of its spec and its state.
    Ready {
        spec: u64,
        state: u64,
    },
    Failed {
        cause: String,
    },
}

/// Checks that all ranks start from the same spec and the same state, given with its hash; or ends
/// all ranks if one could not prepare its start.
pub(super) fn on_start<T>(
    spec: &TrainSpec,
    prepared: Result<(T, u64)>,
    communicator: &mut Communicator,
) -> Result<T> {
    let json = serde_json::to_vec(spec).expect("a spec is made of what JSON can say");
    let spec = XxHash64::oneshot(0, &json);
    let mine = match &prepared {
        Ok((_, state)) => Start::Ready {
            spec,
            state: *state,
        },
        Err(error) => Start::Failed {
            cause: error.chain(),
        },
    };
    let all = gather(&mine, "start", communicator);
    let (prepared, _) = prepared?; // this rank's own failure comes before any other
    let mut hashes = Vec::new();
    for (rank, start) in all?.into_iter().enumerate() {
        match start {
            Start::Ready { spec, state } => hashes.push((spec, state)),
            Start::Failed { cause } => return Err(Error::Peer { rank, cause }),
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

/// Every rank's message, by rank.
pub(super) fn gather<T: Serialize + DeserializeOwned>(
    mine: &T,
    what: &'static str,
    communicator: &mut Communicator,
) -> Result<Vec<T>> {
    let mine = serde_json::to_vec(mine).expect("reports are made of what JSON can say");
    let decode = |(rank, bytes): (usize, Vec<u8>)| {
        let peer_message = |source| Error::PeerMessage { rank, what, source };
        serde_json::from_slice(&bytes).map_err(peer_message)
    };
    communicator
        .all_gather(&mine)?
        .into_iter()
        .enumerate()
        .map(decode)
        .collect()
}
