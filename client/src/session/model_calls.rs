//! Calls of `ML` functions with a model and a data frame, instead of their names in SQL.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;

use super::Session;
use super::settings::JobDescription;
use super::temporary_view::{TemporaryView, parsed};
use crate::sql::{MlPlanner, NamedModels, quoted};
use crate::{Model, Result};

impl Session {
    /// Returns all columns of `ML.function` for a model and rows, in one batch. The function's result must be small.
    pub(crate) async fn call(
        &self,
        function: &str,
        model: &Model,
        rows: DataFrame,
    ) -> Result<RecordBatch> {
        let manifest = model.manifest();
        let (name, version) = (&manifest.spec.model, manifest.version);
        let mut models = NamedModels::default();
        models.published((name.clone(), Some(version)), manifest.clone());
        let store = model.store().clone();
        let planner = Arc::new(MlPlanner { store, models });

        let (_, plan) = rows.into_parts();
        let view = TemporaryView::of(self, plan)?;
        let text = format!(
            "SELECT * FROM ml.{function}(model => {}, version => {version}, (SELECT * FROM {}))",
            quoted(name.as_str()),
            view.name
        );
        let plan = self.plan_with(parsed(&text)?, planner).await?;
        let mut state = self.context().state();
        let job = JobDescription::of(&format!("ML.{}(MODEL {name})", function.to_uppercase()));
        job.note(state.config_mut());
        let frame = DataFrame::new(state, plan);
        let planned = Arc::clone(frame.schema().inner());
        let batches = frame.collect().await?;
        let schema = batches.first().map_or(planned, RecordBatch::schema);
        let batch = concat_batches(&schema, &batches);
        Ok(batch.map_err(DataFusionError::from)?)
    }
}
