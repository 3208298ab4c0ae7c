//! The crate's error: why a rank, or a prediction, could not go on.

use arrow::error::ArrowError;

use crate::collective;
use crate::encode::Defect;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a rank, or a prediction, could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shard's rows could not be read.
    #[error("cannot read the rows of shard {shard}")]
    Input {
        /// The shard's global number.
        shard: usize,
        /// The stream's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The rows lack a column.
    #[error("the rows have no column {column:?}, which is {role}")]
    MissingColumn {
        /// The column.
        column: String,
        /// What it is for.
        role: &'static str,
    },
    /// A column whose type does not suit its role.
    #[error("column {column:?} of type {actual} cannot be {role}: expected {expected}")]
    ColumnType {
        /// The column.
        column: String,
        /// What it is for.
        role: &'static str,
        /// The type it has.
        actual: String,
        /// The types that would do.
        expected: String,
    },
    /// Values that do not fit the type they are read as.
    #[error("column {column:?} holds values that cannot be read as {expected}")]
    Values {
        /// The column.
        column: String,
        /// What they should have been.
        expected: &'static str,
        /// Arrow's error.
        source: ArrowError,
    },
    /// Rows that cannot be trained on, over all ranks.
    #[error("{0}")]
    Defect(Defect),
    /// No rank has a row to train on.
    #[error("there are no rows to train on: {0}")]
    NoTrainingRows(&'static str),
    /// The scaled sigmoid's range would be empty.
    #[error(
        "output scaled_sigmoid needs a largest label above 0 (after its transform), it is {largest}: \
         use identity"
    )]
    OutputScale {
        /// The largest transformed training label.
        largest: f64,
    },
    /// The loss is no number any more.
    #[error("training diverged in epoch {epoch}: the loss is {loss}; lower learn_rate")]
    Diverged {
        /// The epoch, from 1.
        epoch: usize,
        /// The loss.
        loss: f64,
    },
    /// Another rank failed before training began.
    #[error("rank {rank} failed: {cause}")]
    Peer {
        /// The first rank that failed.
        rank: usize,
        /// Its error, with the errors beneath it.
        cause: String,
    },
    /// Ranks that would not train the same thing.
    #[error(
        "ranks {left} and {right} do not start from the same {what}: they run different builds or specs"
    )]
    Disagreement {
        /// A rank.
        left: usize,
        /// The first that differs from it.
        right: usize,
        /// What differs.
        what: &'static str,
    },
    /// Two ranks own the same shard.
    #[error("shard {shard} is owned by two ranks")]
    SharedShard {
        /// The shard.
        shard: usize,
    },
    /// A peer's message that is none.
    #[error("rank {rank} sent no {what}")]
    PeerMessage {
        /// The peer.
        rank: usize,
        /// What was expected.
        what: &'static str,
        /// The decoder's error.
        source: serde_json::Error,
    },
    /// A collective operation failed.
    #[error("the ranks lost each other")]
    Collective(#[source] collective::Error),
    /// Training was cancelled.
    #[error("training was cancelled")]
    Cancelled,
    /// A device that this executor does not have.
    #[error("device {device} cannot be used: {reason}")]
    Device {
        /// The device as typed.
        device: String,
        /// Why not.
        reason: String,
    },
    /// A model's file that does not hold what the manifest says.
    #[error("model file {file}: {problem}")]
    ModelFile {
        /// The file.
        file: &'static str,
        /// What is wrong with it.
        problem: String,
        /// The decoder's error, if it was one.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    /// Whether it says no more than that a peer went away: a consequence, not a cause.
    pub fn is_peer_loss(&self) -> bool {
        matches!(self, Self::Collective(error) if error.is_peer_loss())
    }

    /// The error and what is beneath it, in one line: how a peer learns of it.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(error) = next {
            text.push_str(": ");
            text.push_str(&error.to_string());
            next = error.source();
        }
        text
    }
}

impl From<collective::Error> for Error {
    fn from(source: collective::Error) -> Self {
        if source.is_abort() {
            Self::Cancelled
        } else {
            Self::Collective(source)
        }
    }
}
