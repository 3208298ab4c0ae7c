//! One statement of a script.

use volley_proto::TrainId;

/// One statement, with the text it was written in.
#[derive(Debug)]
pub struct Statement {
    text: String,
    line: u64,
    train_id: Option<TrainId>,
}

impl Statement {
    /// The statement as written, without its `;`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line of the script it starts on, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The training run that `CREATE MODEL` will start, by which its progress can be watched.
    pub fn train_id(&self) -> Option<TrainId> {
        self.train_id
    }
}
