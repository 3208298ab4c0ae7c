//! Gang protocol: one rank's work with its peers, in one call.
//!
//! ```text
//!   connect ──► train ──► rank 0 publishes ──► its version, broadcast
//! ```
//!
//! Every rank succeeds once rank 0 has published the model. This module does not find peers, rows or the store: the
//! rank's host has found its seat, [loads](crate::load) its shards and lends a [`Publisher`].

use std::num::NonZeroUsize;

use tokio_util::sync::CancellationToken;
use volley_proto::spec::TrainSpec;

use crate::collective::{self, Communicator, Listener, Membership, Options};
use crate::custom::CustomLayers;
use crate::train::train;
use crate::{
    Artifacts, Error, Interrupted, Observer, Origin, Outcome, Rank, RankReport, ResolvedDevice,
    Result, Shards,
};

/// Publisher of a model. It is called on the rank's thread, which it may block.
pub trait Publisher: Send + Sync {
    /// Publishes the model and returns its version.
    ///
    /// # Errors
    /// When the store rejects it, or its rank must end.
    fn publish(
        &self,
        artifacts: Artifacts,
    ) -> Result<u32, Box<dyn std::error::Error + Send + Sync>>;
}

/// A rank with a seat in a generation.
#[allow(missing_debug_implementations)] // observers and publishers have no Debug
pub struct GangRank<'a> {
    /// Sockets on which this rank waits for its peers to dial.
    pub listener: Listener,
    /// Ranks of the generation.
    pub membership: &'a Membership,
    /// Device to compute on.
    pub device: ResolvedDevice,
    /// Number of threads that compute on the CPU.
    pub threads: NonZeroUsize,
    /// Custom layers that networks may name.
    pub layers: &'a CustomLayers,
    /// Observer of the training's progress.
    pub observer: &'a dyn Observer,
    /// Publisher of the model; used on rank 0 only.
    pub publisher: &'a dyn Publisher,
    /// Cancellation of the rank.
    pub cancel: &'a CancellationToken,
    /// Start that this rank brings.
    pub origin: Origin,
}

/// Result of a rank once the model is published.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Version of the model, on every rank.
    pub version: u32,
    /// Report of this rank's work.
    pub report: RankReport,
}

/// Connects the peers, trains with them and has the model published. All ranks of the membership call it.
///
/// It takes the result of [`load`](crate::load()) or of [`load_early`](crate::load_early), as [`train`](crate::train())
/// does.
///
/// # Errors
/// The errors of `train`; [`Error::Publish`] on rank 0, which its peers see as the loss of a peer; and collective
/// errors before and after training. Until training is over, the error comes with a state to resume from.
pub fn run_rank(
    spec: &TrainSpec,
    shards: impl Into<Shards>,
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
    let Outcome { report, artifacts } = train(spec, shards, rank)?;
    let version = publish(spec, artifacts, publisher, communicator);
    let version = version.map_err(|error| Interrupted { error, state: None })?;
    Ok(Published { version, report })
}

/// Has rank 0 publish the model, and broadcasts its version to all ranks.
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
    // Publishing has no deadline here.
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
