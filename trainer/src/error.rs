//! The crate's error: why a rank, or a prediction, could not go on.

use std::path::PathBuf;

use arrow::error::ArrowError;
use volley_proto::store::{Coverage, Position};

use crate::collective;
use crate::encode::Defect;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a rank, or a prediction, could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device has no more memory.
    #[error(
        "{device} has {} of memory free, and {} are needed: lower batch_size, or use device = 'cpu'",
        bytesize::ByteSize(*free),
        bytesize::ByteSize(*bytes)
    )]
    DeviceMemory {
        /// The device.
        device: String,
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A device, or a library that it needs, has failed.
    #[error("{device} failed to {what}: {reason}")]
    DeviceFailed {
        /// The device.
        device: String,
        /// Operation that failed.
        what: String,
        /// Its own words.
        reason: String,
    },
    /// A step does not fit a device.
    #[error(
        "a step of {rows} rows takes {} of memory on {device}, where {} are free: lower batch_size to {fitting}{}, or use \
         device = 'cpu'",
        bytesize::ByteSize(*bytes),
        bytesize::ByteSize(*free),
        accumulate.map_or(String::new(), |passes| format!(", set accumulate = {passes}"))
    )]
    DeviceBatch {
        /// The device.
        device: String,
        /// Rows of a step of this rank.
        rows: u64,
        /// Bytes that they take.
        bytes: u64,
        /// Bytes that are free.
        free: u64,
        /// Rows that would fit, about.
        fitting: u64,
        /// Passes that would fit, about, where its rows do.
        accumulate: Option<u64>,
    },
    /// A shard's rows could not be read.
    #[error("cannot read the rows of shard {shard}")]
    Input {
        /// The shard's global number.
        shard: usize,
        /// The stream's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Rows that memory has no room for cannot be written to files.
    #[error(
        "the rows do not fit into the rank's memory, and cannot be kept in {}: free space there, or raise --rank-memory of \
         volley-executor",
        folder.display()
    )]
    Spill {
        /// The folder of the files.
        folder: PathBuf,
        /// The file system's error.
        source: std::io::Error,
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
    /// A classifier's label has too few or too many values.
    #[error(
        "label {column:?} has {} where rows are trained on or evaluated, a classifier needs 2 to {most}; to predict a \
         number, use model_type = 'dnn_regressor'",
        if *found == 1 { "one value".to_owned() } else { format!("{found} distinct values") }
    )]
    Classes {
        /// The column.
        column: String,
        /// Its distinct values.
        found: usize,
        /// As many as there may be.
        most: usize,
    },
    /// A class that is given a weight does not occur.
    #[error(
        "option class_weights: no row that is trained on or evaluated is of class {class:?}{hint}"
    )]
    ClassWeight {
        /// The class as typed.
        class: String,
        /// The nearest that does.
        hint: String,
    },
    /// No rank has a row to train on.
    #[error("there are no rows to train on: {0}")]
    NoTrainingRows(&'static str),
    /// Rows of weight 0 are left out, and no others are to be trained on.
    #[error(
        "there are no rows to train on: the weight in column {column:?} (sample_weight_col) is 0 in {rows} rows{}",
        match others {
            0 => ", which are all that may be".to_owned(),
            others => format!(", and all {others} others are to be evaluated"),
        }
    )]
    NoWeight {
        /// The column.
        column: String,
        /// Rows of weight 0.
        rows: u64,
        /// Rows of another weight, which are to be evaluated.
        others: u64,
    },
    /// The scaled sigmoid's range would be empty.
    #[error(
        "output scaled_sigmoid needs a largest label above 0 (after its transform), it is {largest}: \
         use identity"
    )]
    OutputScale {
        /// The largest transformed training label.
        largest: f64,
    },
    /// Something is no number any more.
    #[error(
        "training diverged at {position}: {what} is {value}; lower learn_rate, or set clip_norm"
    )]
    Diverged {
        /// The step at which it was found.
        position: Position,
        /// Of what.
        what: &'static str,
        /// The number that is none.
        value: f64,
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
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A state of another training: an option is not as it was.
    #[error(
        "the training state ({position}) cannot be gone on from: {option} was {then} and is {now} \
         now"
    )]
    StateOption {
        /// Where the state stands.
        position: Position,
        /// The option, as users type it.
        option: String,
        /// Its value when the state was made.
        then: String,
        /// Its value now.
        now: String,
    },
    /// A state of another training: a shard's rows are not as they were.
    #[error(
        "the training state ({position}) cannot be gone on from: shard {shard} had {then} {part} and \
         has {now} now; the query gave other rows than before: it is not deterministic, or its \
         tables have changed"
    )]
    StateRows {
        /// Where the state stands.
        position: Position,
        /// The first shard that differs.
        shard: usize,
        /// What the rows are for.
        part: &'static str,
        /// Rows and checksum when the state was made.
        then: String,
        /// Rows and checksum now.
        now: String,
    },
    /// A state of another training: a column's values are not as they were.
    #[error(
        "the training state ({position}) cannot be gone on from: column {column:?} had {then} \
         distinct values and has {now} now, or others; the query gave other rows than before: it is \
         not deterministic, or its tables have changed"
    )]
    StateValues {
        /// Where the state stands.
        position: Position,
        /// The first column that differs.
        column: String,
        /// Distinct values when the state was made.
        then: usize,
        /// Distinct values now.
        now: usize,
    },
    /// A training state's bytes that do not hold one.
    #[error("training state: {problem}")]
    StateFile {
        /// What is wrong with it.
        problem: String,
        /// The decoder's error, if it was one.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A model to start from that has other features.
    #[error("the model to start from does not fit: {difference}")]
    WarmFeatures {
        /// The first difference.
        difference: String,
    },
    /// A model to start from that has another network.
    #[error(
        "the model to start from does not fit: its parameter {parameter} is {then}, this one's is \
         {now}"
    )]
    WarmShape {
        /// The first parameter that differs.
        parameter: String,
        /// Its shape in the model.
        then: String,
        /// Its shape here.
        now: String,
    },
    /// An epoch did not use every training row once.
    #[error(
        "epoch {epoch} did not use every training row once: by {account}, {} rows (checksum {}) \
         instead of {} (checksum {})",
        actual.rows, actual.checksum, expected.rows, expected.checksum
    )]
    Coverage {
        /// The epoch, from 1.
        epoch: usize,
        /// Which account of the epoch does not add up.
        account: &'static str,
        /// What the shard manifest says.
        expected: Coverage,
        /// What was used.
        actual: Coverage,
    },
    /// The ranks lost each other while they trained.
    #[error("training was interrupted at {position}")]
    AtStep {
        /// What was to come next.
        position: Position,
        /// How they lost each other.
        source: Box<Error>,
    },
    /// A collective operation failed.
    #[error("the ranks lost each other")]
    Collective(#[source] collective::Error),
    /// The model could not be published.
    #[error("cannot publish model {model}")]
    Publish {
        /// The model.
        model: String,
        /// The publisher's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Training was cancelled.
    #[error("training was cancelled")]
    Cancelled,
    /// A network's custom layer that this executor's binary has not registered.
    #[error(
        "layer {layer} is not registered in this executor's binary{hint}; registered: {known}; start executors from a \
         binary that registers it"
    )]
    UnknownLayer {
        /// The layer as typed.
        layer: String,
        /// What is registered.
        known: String,
        /// The nearest name.
        hint: String,
    },
    /// A custom layer that refuses its width or its arguments.
    #[error("layer {layer} cannot be made for rows of {width} numbers")]
    BuildLayer {
        /// The layer as typed.
        layer: String,
        /// The width of what enters it.
        width: usize,
        /// Its answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A custom layer that is not as it has to be.
    #[error("layer {layer} has a mistake: {problem}")]
    Layer {
        /// The layer as typed.
        layer: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A custom layer where it cannot be computed.
    #[error(
        "not supported: layer {layer} on device {device}: custom layers compute on the CPU only; expected device = 'cpu'"
    )]
    LayerDevice {
        /// The layer as typed.
        layer: String,
        /// The device.
        device: String,
    },
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
        match self {
            Self::Collective(error) => error.is_peer_loss(),
            Self::AtStep { source, .. } => source.is_peer_loss(),
            _ => false,
        }
    }

    /// The error of a step: where ranks lose each other, it says at which.
    pub(crate) fn at(self, position: Position) -> Self {
        match self {
            Self::Collective(_) => Self::AtStep {
                position,
                source: Box::new(self),
            },
            other => other,
        }
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
