//! Published model, in Rust.

mod answer;
mod evaluation;
mod features;

use datafusion::common::DFSchema;
use datafusion::dataframe::DataFrame;
use datafusion::sql::sqlparser::ast::ExprWithAlias;
use url::Url;
use volley_proto::ModelName;
use volley_proto::stack::{deep, deeply};
use volley_proto::store::{EpochRecord, Manifest};

pub use self::evaluation::Evaluation;
pub use self::features::{FeatureImportance, FeatureInfo};

use self::answer::Answer;
use crate::sql::predict;
use crate::{Result, Session};

/// Published version of a model.
///
/// ```no_run
/// # use volley::{DataFrameExt, Error, Model, Session};
/// # async fn judge(session: &Session) -> Result<(), Error> {
/// let model = Model::load(session, "sales").await?;
/// let held_out = session.sql("SELECT * FROM 'sales.parquet' WHERE day >= '2024-06-01'").await?;
///
/// let evaluation = model.evaluate(session, held_out.clone()).await?;
/// println!("r² {:?}, mean absolute error {:?}", evaluation.r2_score, evaluation.mean_absolute_error);
/// for of in model.explain(session, held_out.clone()).await? {
///     println!("{}: {:?}", of.feature, of.attribution);
/// }
///
/// // The rows, with a column `predicted_LABEL`.
/// held_out.predict(&model)?.show().await?;
/// # Ok(())
/// # }
/// ```
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

    /// Compares predictions with the rows' labels: `ML.EVALUATE`. Runs as one query on the cluster.
    ///
    /// Rows without a label are left out. If the rows have the model's weight column, metrics are weighted by it.
    ///
    /// # Errors
    /// When the rows lack a feature or a label, or the query fails.
    pub async fn evaluate(&self, session: &Session, rows: DataFrame) -> Result<Evaluation> {
        let answer = deeply(session.call("evaluate", self, rows)).await?;
        Evaluation::of(&Answer(answer), self.manifest.spec.label.several())
    }

    /// Measures how much the model depends on each feature, the most important first: `ML.GLOBAL_EXPLAIN`.
    ///
    /// Predicts each row five times for each feature: pass a few thousand rows that the model was not trained on. The
    /// same rows give the same result.
    ///
    /// # Errors
    /// When the rows lack a feature or the label, the model has several labels, or the query fails.
    pub async fn explain(
        &self,
        session: &Session,
        rows: DataFrame,
    ) -> Result<Vec<FeatureImportance>> {
        let answer = deeply(session.call("global_explain", self, rows)).await?;
        FeatureImportance::of(&Answer(answer))
    }

    /// Describes the features' values in rows, and their drift from training, in the order of the model's features:
    /// `ML.FEATURE_INFO`. The [manifest](Self::manifest) describes them in training.
    ///
    /// # Errors
    /// When the rows lack a feature, or the query fails.
    pub async fn feature_info(
        &self,
        session: &Session,
        rows: DataFrame,
    ) -> Result<Vec<FeatureInfo>> {
        let answer = deeply(session.call("feature_info", self, rows)).await?;
        let names = self.manifest.features.iter();
        let names: Vec<_> = names.map(|feature| feature.column.as_str()).collect();
        FeatureInfo::of(&Answer(answer), &names)
    }

    /// Returns the training history: per epoch, in order, a record of losses, evaluation errors and seconds.
    pub fn history(&self) -> &[EpochRecord] {
        &self.manifest.history
    }

    /// Returns the manifest: everything about the model but its weights.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the URL of its store.
    pub(crate) fn store(&self) -> &Url {
        &self.store
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
