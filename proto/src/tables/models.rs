//! Rows of the table of models, from the contents of a store.

use super::{Model, millis};
use crate::Result;
use crate::store::ModelStore;

impl ModelStore {
    /// Returns the versions of all models, by name and version.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn rows(&self) -> Result<Vec<Model>> {
        let mut rows = Vec::new();
        for model in self.list().await? {
            let current = model.versions.last().copied();
            for version in model.versions {
                let manifest = self.manifest(&model.name, Some(version)).await?;
                let kept = manifest.history.get(manifest.kept_epoch.wrapping_sub(1));
                rows.push(Model {
                    model: model.name.to_string(),
                    version: version.into(),
                    current: current == Some(version),
                    published: millis(manifest.published),
                    label: manifest.spec.label.columns.join(", "),
                    parameters: manifest.parameters,
                    train_rows: manifest.train_rows,
                    ranks: manifest.world_size as u64,
                    epochs: manifest.history.len() as u64,
                    kept_epoch: manifest.kept_epoch as u64,
                    loss: kept.map(|epoch| epoch.loss),
                    eval_loss: kept.and_then(|epoch| epoch.eval_loss),
                    eval_r2: kept.and_then(|epoch| epoch.eval_r2),
                    eval_accuracy: kept.and_then(|epoch| epoch.eval_accuracy),
                    eval_rmspe: kept.and_then(|epoch| epoch.eval_rmspe),
                    train_id: manifest.spec.train_id.to_string(),
                    report: self.has_report(&model.name, version).await?,
                });
            }
        }
        Ok(rows)
    }
}
