//! The models that an executor predicts with: loaded once, shared by its tasks.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use tokio::sync::Mutex;
use volley_engine::runtime::{ModelRuntime, Predictor};
use volley_proto::ModelRef;
use volley_proto::settings::PredictDevice;
use volley_proto::store::ModelStore;
use volley_trainer::custom::CustomLayers;
use volley_trainer::{AcceleratedModel, Model, VOCABULARIES, WEIGHTS};

use crate::ExecutorConfig;
use crate::accelerator::PredictionGpus;

/// Number of models kept in memory; the least recently used one is dropped first.
const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// Models that the executor has loaded, the most recently used last.
#[derive(Debug)]
pub(crate) struct Models {
    layers: CustomLayers,
    gpus: Arc<PredictionGpus>,
    loaded: Mutex<Vec<(ModelRef, Arc<LoadedModel>)>>,
}

impl Models {
    /// Returns an empty cache; networks of its models may use the executor's layers.
    pub(crate) fn new(config: &ExecutorConfig) -> Self {
        Self {
            layers: config.layers.clone(),
            gpus: Arc::new(PredictionGpus::new(config)),
            loaded: Mutex::default(),
        }
    }
}

#[async_trait]
impl ModelRuntime for Models {
    /// Loads under the lock: tasks that need the same model wait for the task that loads it.
    async fn predictor(&self, model: &ModelRef) -> Result<Arc<dyn Predictor>> {
        let mut loaded = self.loaded.lock().await;
        let entry = match loaded.iter().position(|(of, _)| of == model) {
            Some(known) => loaded.remove(known),
            None => {
                let loaded = load(model, self.layers.clone()).await;
                let loaded = loaded.map_err(DataFusionError::External)?;
                let loaded = LoadedModel {
                    model: Arc::new(loaded),
                    gpus: Arc::clone(&self.gpus),
                    on_gpu: OnceLock::new(),
                };
                (model.clone(), Arc::new(loaded))
            }
        };
        let predictor = Arc::clone(&entry.1);
        loaded.push(entry);
        if loaded.len() > KEPT.get() {
            loaded.remove(0);
        }
        Ok(predictor)
    }
}

/// Loads a published model.
///
/// # Errors
/// When the store does not hold the model, or it cannot be decoded.
pub(crate) async fn load(
    model: &ModelRef,
    layers: CustomLayers,
) -> Result<Model, Box<dyn std::error::Error + Send + Sync>> {
    let store = ModelStore::open(&model.store)?;
    let manifest = store.manifest(&model.name, Some(model.version)).await?;
    let weights = store.read(model, &manifest, WEIGHTS).await?;
    let vocabularies = store.read(model, &manifest, VOCABULARIES).await?;
    let decode = move || Model::load(manifest, &weights, &vocabularies, &layers);
    Ok(tokio::task::spawn_blocking(decode).await??)
}

#[derive(Debug)]
struct LoadedModel {
    model: Arc<Model>,
    gpus: Arc<PredictionGpus>,
    /// The model on the executor's GPUs, once a query has asked for one; `None` if there is no GPU.
    on_gpu: OnceLock<Option<AcceleratedModel>>,
}

impl LoadedModel {
    /// Returns the model on the executor's GPUs, if the device may be one of them.
    fn on_gpu(&self, device: PredictDevice) -> Option<&AcceleratedModel> {
        if device == PredictDevice::Cpu {
            return None;
        }
        let find = || {
            let accelerator = self.gpus.accelerator()?;
            Some(accelerator.with(Arc::clone(&self.model)))
        };
        self.on_gpu.get_or_init(find).as_ref()
    }
}

impl Predictor for LoadedModel {
    fn predict(&self, rows: &RecordBatch, device: PredictDevice) -> Result<Vec<ArrayRef>> {
        let predicted = match self.on_gpu(device) {
            None => self.model.predict(rows),
            Some(model) => model.predict(rows, device == PredictDevice::Auto),
        };
        predicted.map_err(external)
    }

    fn explain(
        &self,
        rows: &RecordBatch,
        top: usize,
        device: PredictDevice,
    ) -> Result<Vec<ArrayRef>> {
        let explained = match self.on_gpu(device) {
            None => self.model.explain(rows, top),
            Some(model) => model.explain(rows, top, device == PredictDevice::Auto),
        };
        explained.map_err(external)
    }
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
