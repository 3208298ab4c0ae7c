//! The gang protocol: what a rank does together with its peers, in one call.
//!
//! ```text
//!   connect ──► train ──► rank 0 publishes ──► its version, broadcast
//! ```
//!
//! A rank has succeeded once the model is published, whichever rank that is. Not here: where peers are, the rows, and the
//! store; the host of the rank has found its seat, [loads](crate::load) its shards and lends a [`Publisher`].

use std::num::NonZeroUsize;

use tokio_util::sync::CancellationToken;
use volley_proto::spec::TrainSpec;

use crate::collective::{self, Communicator, Listener, Membership, Options};
use crate::custom::CustomLayers;
use crate::train::train;
use crate::{
    Artifacts, Error, Interrupted, LoadedShards, Observer, Origin, Outcome, Rank, RankReport,
    ResolvedDevice, Result,
};

/// Publishes a model. Called on the rank's thread, which it may block.
pub trait Publisher: Send + Sync {
    /// Publishes it, and returns its version.
    ///
    /// # Errors
    /// When the store does not take it, or its rank is to end.
    fn publish(
        &self,
        artifacts: Artifacts,
    ) -> Result<u32, Box<dyn std::error::Error + Send + Sync>>;
}

/// A rank that has its seat in a generation.
#[allow(missing_debug_implementations)] // observers and publishers have no Debug
pub struct GangRank<'a> {
    /// What the membership says of this rank.
    pub listener: Listener,
    /// The ranks of the generation.
    pub membership: &'a Membership,
    /// Where to compute.
    pub device: ResolvedDevice,
    /// How many threads compute on the CPU.
    pub threads: NonZeroUsize,
    /// The custom layers that networks may name.
    pub layers: &'a CustomLayers,
    /// Hears how training goes.
    pub observer: &'a dyn Observer,
    /// Publishes the model; on rank 0 only.
    pub publisher: &'a dyn Publisher,
    /// Ends the rank.
    pub cancel: &'a CancellationToken,
    /// What this rank brings to start from.
    pub origin: Origin,
}

/// What a rank comes back with once the model is published.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The model's version, on every rank.
    pub version: u32,
    /// What this rank did.
    pub report: RankReport,
}

/// Connects the peers, trains with them and has the model published. All ranks of the membership call it.
///
/// It takes what [`load`](crate::load) came back with, as [`train`](crate::train()) does.
///
/// # Errors
/// As `train`; [`Error::Publish`] on rank 0, whose loss its peers see; and what ends a collective before and after
/// training. A state to go on from comes with it until training is over.
pub fn run_rank(
    spec: &TrainSpec,
    loaded: Result<LoadedShards>,
    rank: GangRank<'_>,
) -> Result<Published, Interrupted> {
    let GangRank {
        listener,
        membership,
        device,
        threads,
        layers,
        observer,
        publisher,
        cancel,
        origin,
    } = rank;
    let options = Options {
        // The loss of a peer's executor is noticed long before.
        connect_timeout: spec.loading_timeout,
        op_timeout: spec.collective_timeout,
        ..Options::default()
    };
    let mut communicator = match Communicator::connect(listener, membership, &options, cancel) {
        Ok(communicator) => communicator,
        Err(error) => {
            let state = origin.into_state().map(Box::new);
            let error = error.into();
            return Err(Interrupted { error, state });
        }
    };
    let rank = Rank {
        communicator: &mut communicator,
        device,
        threads,
        layers,
        observer,
        cancel,
        origin,
    };
    let Outcome { report, artifacts } = train(spec, loaded, rank)?;
    let version = publish(spec, artifacts, publisher, communicator);
    let version = version.map_err(|error| Interrupted { error, state: None })?;
    Ok(Published { version, report })
}

/// Has rank 0 publish the model, and tells its version to all ranks.
fn publish(
    spec: &TrainSpec,
    artifacts: Option<Artifacts>,
    publisher: &dyn Publisher,
    mut communicator: Communicator,
) -> Result<u32> {
    let mut version = Vec::new();
    if let Some(artifacts) = artifacts {
        let published = publisher.publish(artifacts);
        let published = published.map_err(|source| Error::Publish {
            model: spec.model.to_string(),
            source,
        })?;
        version = published.to_le_bytes().to_vec();
    }
    // The store takes as long as it takes.
    communicator.patiently(|peers| {
        peers.broadcast(0, &mut version)?;
        Ok::<_, collective::Error>(())
    })?;
    let version = <[u8; 4]>::try_from(version.as_slice());
    let version = version.map_err(|source| Error::PeerMessage {
        rank: 0,
        what: "version of the model",
        source: Box::new(source),
    })?;
    Ok(u32::from_le_bytes(version))
}
