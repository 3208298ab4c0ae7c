//! Error of the crate: the reasons why a rank, or a prediction, failed.

use std::path::PathBuf;

use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use volley_proto::store::{Coverage, Position};

use crate::collective;
use crate::encode::Defect;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why a rank, or a prediction, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device is out of memory.
    #[error(
        "{device} has {} of memory free, and {} are needed: lower batch_size, or use device = 'cpu'",
        bytesize::ByteSize(*free),
        bytesize::ByteSize(*bytes)
    )]
    DeviceMemory {
        /// The device.
        device: String,
        /// Bytes requested.
        bytes: u64,
        /// Bytes free.
        free: u64,
    },
    /// A device, or a library that it needs, has failed.
    #[error("{device} failed to {what}: {reason}")]
    DeviceFailed {
        /// The device.
        device: String,
        /// Operation that failed.
        what: String,
        /// Message of the device or library.
        reason: String,
    },
    /// A step does not fit in a device's memory.
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
        /// Rows in a step of this rank.
        rows: u64,
        /// Bytes that they take.
        bytes: u64,
        /// Bytes free.
        free: u64,
        /// Rows that would fit, approximately.
        fitting: u64,
        /// Passes (`accumulate`) that would fit, approximately, if its rows do.
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
    /// Rows that do not fit in memory cannot be written to files.
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
        /// Role of the column.
        role: &'static str,
    },
    /// A column's type does not suit its role.
    #[error("column {column:?} of type {actual} cannot be {role}: expected {expected}")]
    ColumnType {
        /// The column.
        column: String,
        /// Role of the column.
        role: &'static str,
        /// Actual type of the column.
        actual: String,
        /// Types that are accepted.
        expected: String,
    },
    /// Values do not fit the type that they are read as.
    #[error("column {column:?} holds values that cannot be read as {expected}")]
    Values {
        /// The column.
        column: String,
        /// Expected values.
        expected: &'static str,
        /// Arrow's error.
        source: ArrowError,
    },
    /// A row to predict has a number that training refuses.
    #[error(
        "column {column:?} must be a finite number within the range of f32, or NULL: a row has {value:e}; filter such rows, or \
         make the value NULL"
    )]
    NotFinite {
        /// The column.
        column: String,
        /// Value in the first such row.
        value: f64,
    },
    /// Rows, over all ranks, cannot be trained on.
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
        /// Number of its distinct values.
        found: usize,
        /// Maximum number of classes.
        most: usize,
    },
    /// A class with a weight does not occur.
    #[error("option class_weights: no training or evaluation row has the class {class:?}{hint}")]
    ClassWeight {
        /// The class as typed.
        class: String,
        /// Suggestion of the nearest class that occurs.
        hint: String,
    },
    /// No rank has a row to train on.
    #[error("there are no rows to train on: {0}")]
    NoTrainingRows(&'static str),
    /// Rows of weight 0 are left out, and no other rows are to be trained on.
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
        /// Rows of another weight, all to be evaluated.
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
    /// A number is not finite any more.
    #[error(
        "training diverged at {position}: {what} is {value}; lower learn_rate, or set clip_norm"
    )]
    Diverged {
        /// Step at which it was found.
        position: Position,
        /// Name of the number.
        what: &'static str,
        /// Value that is not finite.
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
    /// Ranks would not train the same thing.
    #[error(
        "ranks {left} and {right} do not start from the same {what}: they run different builds or specs"
    )]
    Disagreement {
        /// One of the ranks.
        left: usize,
        /// First rank that differs from it.
        right: usize,
        /// Property that differs.
        what: &'static str,
    },
    /// Two ranks own the same shard.
    #[error("shard {shard} is owned by two ranks")]
    SharedShard {
        /// The shard.
        shard: usize,
    },
    /// A peer's message is malformed.
    #[error("rank {rank} sent no {what}")]
    PeerMessage {
        /// The peer.
        rank: usize,
        /// Expected message.
        what: &'static str,
        /// The decoder's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A state belongs to another training: an option differs.
    #[error(
        "training cannot continue from the state at {position}: {option} was {then} and is {now} \
         now"
    )]
    StateOption {
        /// Position of the state.
        position: Position,
        /// The option, as users type it.
        option: String,
        /// Its value when the state was made.
        then: String,
        /// Its value now.
        now: String,
    },
    /// A state belongs to another training: a shard's rows differ.
    #[error(
        "training cannot continue from the state at {position}: shard {shard} had {then} {part} and \
         has {now} now; the query returned other rows than before: it is not deterministic, or its \
         tables have changed"
    )]
    StateRows {
        /// Position of the state.
        position: Position,
        /// First shard that differs.
        shard: usize,
        /// Part of the split that the rows belong to.
        part: &'static str,
        /// Rows and checksum when the state was made.
        then: String,
        /// Rows and checksum now.
        now: String,
    },
    /// A state belongs to another training: a column's values differ.
    #[error(
        "training cannot continue from the state at {position}: column {column:?} had {then} \
         distinct values and has {now} now, or others; the query gave other rows than before: it is \
         not deterministic, or its tables have changed"
    )]
    StateValues {
        /// Position of the state.
        position: Position,
        /// First column that differs.
        column: String,
        /// Number of distinct values when the state was made.
        then: usize,
        /// Number of distinct values now.
        now: usize,
    },
    /// A training state's bytes are invalid.
    #[error("training state: {problem}")]
    StateFile {
        /// Description of the problem.
        problem: String,
        /// The decoder's error, if there was one.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A model to start from has other features.
    #[error("the model to start from does not fit: {difference}")]
    WarmFeatures {
        /// First difference.
        difference: String,
    },
    /// A training that begins early starts from nothing.
    #[error(
        "training cannot begin before its rows have arrived (begin_early): there is no model to start from, whose values \
         and scaling it would take"
    )]
    NothingKnown,
    /// A model to start from has another network.
    #[error(
        "the model to start from does not fit: its parameter {parameter} is {then}, this one's is \
         {now}"
    )]
    WarmShape {
        /// First parameter that differs.
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
        /// Account of the epoch that does not add up.
        account: &'static str,
        /// Coverage by the shard manifest.
        expected: Coverage,
        /// Rows that were used.
        actual: Coverage,
    },
    /// The ranks lost each other while they trained.
    #[error("training was interrupted at {position}")]
    AtStep {
        /// Position of the next step.
        position: Position,
        /// Error by which they lost each other.
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
    /// A network's custom layer is not registered in this executor's binary.
    #[error(
        "layer {layer} is not registered in this executor's binary{hint}; registered: {known}; start executors from a \
         binary that registers it"
    )]
    UnknownLayer {
        /// The layer as typed.
        layer: String,
        /// Registered layers.
        known: String,
        /// Suggestion of the nearest name.
        hint: String,
    },
    /// A custom layer refuses its width or its arguments.
    #[error("layer {layer} cannot be made for rows of {width} numbers")]
    BuildLayer {
        /// The layer as typed.
        layer: String,
        /// Width of its input.
        width: usize,
        /// Error of the layer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A custom layer violates its contract.
    #[error("layer {layer} has a mistake: {problem}")]
    Layer {
        /// The layer as typed.
        layer: String,
        /// Description of the mistake.
        problem: String,
    },
    /// A custom layer is on a device that cannot compute it.
    #[error(
        "not supported: layer {layer} on device {device}: Burn has no custom layers; expected device = 'cpu' or 'cuda'"
    )]
    LayerDevice {
        /// The layer as typed.
        layer: String,
        /// The device.
        device: String,
    },
    /// This executor lacks a device.
    #[error("device {device} cannot be used: {reason}")]
    Device {
        /// The device as typed.
        device: String,
        /// Reason why it cannot be used.
        reason: String,
    },
    /// A model's file does not match the manifest.
    #[error("model file {file}: {problem}")]
    ModelFile {
        /// The file.
        file: &'static str,
        /// Description of the problem.
        problem: String,
        /// The decoder's error, if there was one.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl Error {
    /// Checks whether the error only reports the loss of a peer: a consequence, not a cause.
    pub fn is_peer_loss(&self) -> bool {
        match self {
            Self::Collective(error) => error.is_peer_loss(),
            Self::AtStep { source, .. } => source.is_peer_loss(),
            _ => false,
        }
    }

    /// Returns a conversion of Arrow's errors about values of a column.
    pub(crate) fn values(
        column: &str,
        expected: &'static str,
    ) -> impl Fn(ArrowError) -> Self + Copy {
        move |source| Self::Values {
            column: column.to_owned(),
            expected,
            source,
        }
    }

    /// Returns the error of a column whose type does not suit its role.
    pub(crate) fn column_type(
        column: &str,
        role: &'static str,
        actual: &DataType,
        expected: &str,
    ) -> Self {
        Self::ColumnType {
            column: column.to_owned(),
            role,
            actual: actual.to_string(),
            expected: expected.to_owned(),
        }
    }

    /// Returns the error of a model's file that does not match the manifest.
    pub(crate) fn model_file(file: &'static str, problem: impl Into<String>) -> Self {
        Self::ModelFile {
            file,
            problem: problem.into(),
            source: None,
        }
    }

    /// Adds the position of a step to an error by which ranks lose each other.
    pub(crate) fn at(self, position: Position) -> Self {
        match self {
            Self::Collective(_) => Self::AtStep {
                position,
                source: Box::new(self),
            },
            other => other,
        }
    }

    /// Returns the error and its sources in one line, as peers receive it.
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
