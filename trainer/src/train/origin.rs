//! The state from which all ranks start: the newest that any of them brings.
//!
//! ```text
//!  rank 0  state at epoch 2, step 6 ─┐             ┌─ its own (same place, same hash)
//!  rank 1  nothing                  ─┼─ conclude ──┼─ from rank 2
//!  rank 2  state at epoch 2, step 7 ─┘             └─ its own: the newest; others get it
//! ```
//!
//! A rank that missed the end of a step is one step behind the others; a rank that joins has nothing; a rank
//! that was away may have any state. Every rank announces in one all-gather what it brings, and all draw the
//! same conclusion from the same messages, so all make the same calls.

use std::fmt;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;
use volley_proto::store::Position;

use super::agree::gather;
use super::state::TrainingState;
use crate::collective::Communicator;
use crate::encode::Scaling;
use crate::{Error, Model, Result};

/// Initial state that this rank brings.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a rank has one
pub enum Origin {
    /// Nothing: weights drawn by the seed.
    Fresh,
    /// A state to continue from, at exactly its step.
    State(TrainingState),
    /// A model that provides initial weights; only rank 0's counts, and only if no rank brings a state.
    Warm(Model),
}

/// Beginning of training, the same on all ranks except for the source of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// At the first step, with weights drawn by the seed.
    Fresh,
    /// At the first step, with a model's weights.
    Warm,
    /// At the position of a state.
    Resumed {
        /// Position of the next step.
        position: Position,
        /// The rank that sent the state; `None` if this rank brought the same.
        received_from: Option<usize>,
    },
}

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fresh => f.write_str("from the start"),
            Self::Warm => f.write_str("from the start, with a model's weights"),
            Self::Resumed {
                position,
                received_from: None,
            } => write!(f, "at {position}"),
            Self::Resumed {
                position,
                received_from: Some(rank),
            } => write!(f, "at {position}, with the state of rank {rank}"),
        }
    }
}

impl Origin {
    pub(super) fn state(&self) -> Option<&TrainingState> {
        match self {
            Self::State(state) => Some(state),
            Self::Fresh | Self::Warm(_) => None,
        }
    }

    /// Returns the scaling of its numbers, and its position if it is a state.
    pub(super) fn scaling(&self) -> Option<(Option<Position>, &Scaling)> {
        match self {
            Self::Fresh => None,
            Self::State(state) => Some((Some(state.position), &state.scaling)),
            Self::Warm(model) => Some((None, model.scaling())),
        }
    }

    pub(crate) fn into_state(self) -> Option<TrainingState> {
        match self {
            Self::State(state) => Some(state),
            Self::Fresh | Self::Warm(_) => None,
        }
    }
}

/// The state that all ranks start from.
#[derive(Debug)]
pub(super) struct Agreed {
    /// `None` if this rank brought the state itself.
    pub(super) state: Option<TrainingState>,
    /// Hash of the encoded state.
    pub(super) hash: u64,
    pub(super) beginning: Beginning,
}

/// Announcement of what a rank brings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Offer {
    Nothing,
    /// A model's weights, or the reason why they do not fit.
    Weights {
        failure: Option<String>,
    },
    State {
        position: Position,
        hash: u64,
    },
}

/// Conclusion from all offers.
#[derive(Debug, PartialEq)]
enum Conclusion {
    /// Every rank creates the fresh state itself.
    Fresh,
    /// Rank 0 has the initial state.
    Warm,
    /// Rank 0's model does not fit.
    Unfit { cause: String },
    /// `root` has the newest state, and sends it if some rank lacks it.
    Resume {
        root: usize,
        position: Position,
        hash: u64,
        send: bool,
    },
}

/// Agrees with the other ranks on the state to start from: `fresh`, or rank 0's `warm`, or the newest state
/// that a rank brings.
pub(super) fn agree(
    origin: &Origin,
    fresh: impl FnOnce() -> Result<TrainingState>,
    warm: impl FnOnce(&Model) -> Result<TrainingState>,
    communicator: &mut Communicator,
) -> Result<Agreed> {
    let hash = |bytes: &[u8]| XxHash64::oneshot(0, bytes);
    let rank = communicator.rank();
    let mine = origin.state().map(|state| (state.position, state.encode()));
    let warm = match origin {
        Origin::Warm(model) if rank == 0 => Some(warm(model)),
        _ => None,
    };
    let offer = match (&mine, &warm) {
        (Some((position, bytes)), _) => Offer::State {
            position: *position,
            hash: hash(bytes),
        },
        (None, Some(warm)) => Offer::Weights {
            failure: warm.as_ref().err().map(Error::chain),
        },
        (None, None) => Offer::Nothing,
    };
    let offers = gather(&offer, "offer of a state", communicator)?;

    match conclude(&offers) {
        Conclusion::Fresh => {
            let state = fresh()?;
            Ok(Agreed {
                hash: hash(&state.encode()),
                state: Some(state),
                beginning: Beginning::Fresh,
            })
        }
        Conclusion::Unfit { cause } => match warm {
            Some(Err(error)) => Err(error),
            _ => Err(Error::Peer { rank: 0, cause }),
        },
        Conclusion::Warm => {
            let mut bytes = match &warm {
                Some(Ok(state)) => state.encode().to_vec(),
                _ => Vec::new(),
            };
            communicator.broadcast(0, &mut bytes)?;
            let state = match warm {
                Some(Ok(state)) => state,
                _ => TrainingState::decode(&bytes)?,
            };
            Ok(Agreed {
                hash: hash(&bytes),
                state: Some(state),
                beginning: Beginning::Warm,
            })
        }
        Conclusion::Resume {
            root,
            position,
            hash: newest,
            send,
        } => {
            let brought = offers[rank] == offers[root];
            let mut bytes = match mine {
                Some((_, bytes)) if send && rank == root => bytes.to_vec(),
                _ => Vec::new(),
            };
            if send {
                communicator.broadcast(root, &mut bytes)?;
            }
            let state = match brought {
                true => None,
                false => Some(TrainingState::decode(&bytes)?),
            };
            Ok(Agreed {
                hash: if brought { newest } else { hash(&bytes) },
                state,
                beginning: Beginning::Resumed {
                    position,
                    received_from: Some(root).filter(|_| !brought),
                },
            })
        }
    }
}

/// Chooses the newest state, the lowest rank's among equally new ones; else rank 0's model; else a fresh
/// state.
fn conclude(offers: &[Offer]) -> Conclusion {
    let mut newest: Option<(usize, Position, u64)> = None;
    for (rank, offer) in offers.iter().enumerate() {
        if let Offer::State { position, hash } = offer
            && newest.is_none_or(|(_, newest, _)| *position > newest)
        {
            newest = Some((rank, *position, *hash));
        }
    }
    match (newest, offers.first()) {
        (Some((root, position, hash)), _) => Conclusion::Resume {
            root,
            position,
            hash,
            send: offers.iter().any(|offer| *offer != offers[root]),
        },
        (None, Some(Offer::Weights { failure: None })) => Conclusion::Warm,
        (
            None,
            Some(Offer::Weights {
                failure: Some(cause),
            }),
        ) => Conclusion::Unfit {
            cause: cause.clone(),
        },
        (None, _) => Conclusion::Fresh,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(epoch: usize, step: u64, hash: u64) -> Offer {
        Offer::State {
            position: at(epoch, step),
            hash,
        }
    }

    fn at(epoch: usize, step: u64) -> Position {
        Position {
            epoch,
            step,
            steps: (epoch as u64 - 1) * 7 + step,
        }
    }

    fn resume(root: usize, position: Position, hash: u64, send: bool) -> Conclusion {
        Conclusion::Resume {
            root,
            position,
            hash,
            send,
        }
    }

    #[test]
    fn the_newest_state_wins_and_is_sent_only_where_it_lacks() {
        let weights = |failure: Option<&str>| Offer::Weights {
            failure: failure.map(str::to_owned),
        };
        let nothing = || Offer::Nothing;
        let unfit = Conclusion::Unfit { cause: "x".into() };
        let script = [
            (vec![nothing(), nothing()], Conclusion::Fresh),
            (vec![weights(None), nothing()], Conclusion::Warm),
            (vec![nothing(), weights(None)], Conclusion::Fresh),
            (vec![weights(Some("x")), nothing()], unfit),
            // A state takes precedence over a model, even over one that does not fit.
            (
                vec![weights(Some("x")), state(1, 2, 5)],
                resume(1, at(1, 2), 5, true),
            ),
            (
                vec![state(2, 3, 5), state(2, 3, 5)],
                resume(0, at(2, 3), 5, false),
            ),
            (
                vec![state(2, 3, 5), state(2, 4, 6), nothing()],
                resume(1, at(2, 4), 6, true),
            ),
            // The end of an epoch's steps comes before the next epoch's first.
            (
                vec![state(2, 7, 5), state(3, 0, 6)],
                resume(1, at(3, 0), 6, true),
            ),
            // Two states at the same position that differ: the lower rank's wins.
            (
                vec![state(1, 1, 0), state(2, 3, 5), state(2, 3, 6)],
                resume(1, at(2, 3), 5, true),
            ),
        ];
        for (offers, conclusion) in script {
            assert_eq!(conclude(&offers), conclusion, "{offers:?}");
        }
    }
}
