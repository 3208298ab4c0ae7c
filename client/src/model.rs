//! A published model in Rust.

use datafusion::dataframe::DataFrame;
use volley_proto::ModelRef;
use volley_proto::store::{EpochRecord, Manifest};

use crate::{Result, Session};

/// One published version of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    reference: ModelRef,
    manifest: Manifest,
}

impl Model {
    /// The current version of a model in the session's store.
    ///
    /// # Errors
    /// When there is no such model.
    pub async fn load(session: &Session, name: &str) -> Result<Self> {
        let manifest = session.store().manifest(&name.parse()?, None).await?;
        let reference = ModelRef {
            store: session.store().url().clone(),
            name: manifest.spec.model.clone(),
            version: manifest.version,
        };
        Ok(Self { reference, manifest })
    }

    /// The rows with one more column, the prediction.
    ///
    /// # Errors
    /// When the rows lack a feature the model was trained on.
    pub fn transform(&self, rows: DataFrame) -> Result<DataFrame> {
        let _ = (rows, &self.reference);
        unimplemented!("model")
    }

    /// One record an epoch.
    pub fn history(&self) -> &[EpochRecord] {
        &self.manifest.history
    }

    /// Everything about the model but its numbers.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// Volley's verbs on DataFusion's dataframes.
pub trait DataFrameExt: Sized {
    /// The rows with one more column, the model's prediction.
    ///
    /// # Errors
    /// When the rows lack a feature the model was trained on.
    fn predict(self, model: &Model) -> Result<Self>;
}

impl DataFrameExt for DataFrame {
    fn predict(self, model: &Model) -> Result<Self> {
        model.transform(self)
    }
}
