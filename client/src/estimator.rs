//! `CREATE MODEL` in Rust: a typed builder of what is to be trained.

use datafusion::dataframe::DataFrame;

use crate::{Model, Result, Session, TrainOptions};

/// What is to be trained, before it has seen rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimator {
    name: String,
    options: TrainOptions,
}

impl Estimator {
    /// Trains a model of this name, with every option at its default.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), options: TrainOptions::default() }
    }

    /// Trains on the cluster and publishes the model.
    ///
    /// # Errors
    /// When an option or a column is not usable, the model exists, or training fails.
    pub async fn fit(self, session: &Session, rows: DataFrame) -> Result<Model> {
        let _ = (self.name, self.options, rows, session);
        unimplemented!("estimator")
    }
}
