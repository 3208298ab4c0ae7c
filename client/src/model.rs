//! Published model, in Rust.

use datafusion::common::DFSchema;
use datafusion::dataframe::DataFrame;
use datafusion::sql::sqlparser::ast::ExprWithAlias;
use url::Url;
use volley_proto::ModelName;
use volley_proto::stack::deep;
use volley_proto::store::{EpochRecord, Manifest};

use crate::sql::predict;
use crate::{Result, Session};

/// Published version of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    store: Url,
    manifest: Manifest,
}

impl Model {
    /// Loads the current version of a model from the session's store.
    ///
    /// # Errors
    /// When there is no such model.
    pub async fn load(session: &Session, name: &str) -> Result<Self> {
        Self::load_version(session, &name.parse()?, None).await
    }

    /// Loads a version of a model, or its current one.
    ///
    /// # Errors
    /// When there is no such model or version.
    pub async fn load_version(
        session: &Session,
        name: &ModelName,
        version: Option<u32>,
    ) -> Result<Self> {
        let manifest = session.store().manifest(name, version).await?;
        Ok(Self {
            store: session.store().url().clone(),
            manifest,
        })
    }

    /// Returns the rows with columns of predictions added.
    ///
    /// # Errors
    /// When the rows lack a feature the model was trained on.
    pub fn transform(&self, rows: DataFrame) -> Result<DataFrame> {
        let (state, plan) = rows.into_parts();
        let mut expression = |expr, schema: &DFSchema| {
            let expr = ExprWithAlias { expr, alias: None };
            state.create_logical_expr_from_sql_expr(expr, schema)
        };
        let predicted = deep(|| predict(&self.manifest, &self.store, plan, &mut expression))?;
        Ok(DataFrame::new(state, predicted))
    }

    /// Returns the training history: per epoch, in order, a record of losses, evaluation errors and seconds.
    pub fn history(&self) -> &[EpochRecord] {
        &self.manifest.history
    }

    /// Returns the manifest: everything about the model but its weights.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// Methods that Volley adds to DataFusion's `DataFrame`.
pub trait DataFrameExt: Sized {
    /// Returns the rows with columns of predictions added.
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
