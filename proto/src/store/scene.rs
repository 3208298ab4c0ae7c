//! Temporary stores for tests: over a folder, and over objects in memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::path::Path;
use tempfile::TempDir;

use super::open::Kind;
use super::publish::{ATTEMPTS, UNPUBLISHED};
use super::{FoundCheckpoint, KeptOptions, Manifest, ModelStore, Position, Writer};
use crate::spec::{
    BatchSize, ClassWeights, Device, Elastic, EmbeddingWidth, EnsembleSize, Feature, FeatureKind,
    IfExists, Keep, Label, LabelTransform, Loss, Network, NumericTransform, Optimizer, Output,
    Ranks, Refit, Split, Start, Task, TooFew, TrainSpec,
};
use crate::store::Scale;
use crate::{Error, ModelName, ModelRef, Result, TrainId};

pub(super) struct Scene {
    directory: Option<TempDir>,
    pub(super) store: ModelStore,
    pub(super) model: ModelName,
}

impl Scene {
    /// Returns one scene of each kind.
    pub(super) fn all() -> [Self; 2] {
        [Self::folder(), Self::memory()]
    }

    pub(super) fn folder() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = ModelStore::directory_url(directory.path()).unwrap();
        Self {
            directory: Some(directory),
            store: ModelStore::open(&url).unwrap(),
            model: "sales".parse().unwrap(),
        }
    }

    pub(super) fn memory() -> Self {
        let (url, objects) = ("memory:///a/prefix", Arc::new(InMemory::new()));
        let root = Path::from("a/prefix");
        Self {
            directory: None,
            store: ModelStore::over(url.parse().unwrap(), objects, root, Kind::Objects),
            model: "sales".parse().unwrap(),
        }
    }

    pub(super) fn is_folder(&self) -> bool {
        self.directory.is_some()
    }

    /// Returns a path in the folder.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.as_ref().unwrap().path().join(path)
    }

    /// Returns the name of a path among the objects.
    pub(super) fn object(&self, path: &str) -> Path {
        let root = self.store.root.clone();
        path.split('/').fold(root, |path, part| path.join(part))
    }

    pub(super) async fn get(&self, path: &Path) -> Bytes {
        self.store.objects.read(path).await.unwrap()
    }

    /// Puts an object directly, as a program that knows nothing of the store would.
    pub(super) async fn put(&self, path: &Path, content: impl Into<Bytes>) {
        let content = content.into();
        self.store.objects.replace(path, &content).await.unwrap();
    }

    pub(super) async fn remove(&self, path: &Path) {
        assert!(self.exists(path).await, "{path}");
        self.store.objects.delete(path).await.unwrap();
    }

    pub(super) async fn exists(&self, path: &Path) -> bool {
        self.store.exists(path).await.unwrap()
    }

    /// Saves a checkpoint by the first generation.
    pub(super) async fn save(&self, run: TrainId, steps: u64) {
        self.save_by(run, 1, steps).await.unwrap();
    }

    pub(super) async fn save_by(&self, run: TrainId, generation: u64, steps: u64) -> Result<()> {
        let position = Position {
            epoch: 1 + steps as usize / 100,
            step: steps % 100,
            steps,
        };
        let (store, writer) = (&self.store, Writer { run, generation });
        let kept = KeptOptions {
            shards: Some(60),
            transform: None,
        };
        let saved = store.save_checkpoint(&self.model, writer, position, kept, state(steps));
        saved.await
    }

    pub(super) async fn newest(&self, run: Option<TrainId>) -> FoundCheckpoint {
        self.store
            .newest_checkpoint(&self.model, run)
            .await
            .unwrap()
    }

    /// Returns the path of the information of a checkpoint.
    pub(super) fn info(&self, run: TrainId, generation: u64, steps: u64) -> Path {
        let file = format!("models/sales/checkpoints/{run}/{generation:06}-{steps:012}.json");
        self.object(&file)
    }

    /// Returns the existing states of a checkpoint.
    pub(super) async fn states(&self, run: TrainId, generation: u64, steps: u64) -> Vec<Path> {
        let folder = self.object(&format!("models/sales/checkpoints/{run}"));
        let mut states = self.store.files_under(&folder).await.unwrap();
        let start = format!("{generation:06}-{steps:012}.");
        states.retain(|path| {
            let name = path.filename().unwrap();
            name.starts_with(&start) && name.ends_with(".state")
        });
        states
    }

    /// Returns the path of a version's file.
    pub(super) async fn weights(&self, version: u32) -> Path {
        let manifest = self.store.manifest(&self.model, Some(version)).await;
        let manifest = manifest.unwrap();
        let path = match &manifest.files[0].path {
            Some(path) => format!("models/sales/{path}"),
            None => format!("models/sales/{version}/weights"),
        };
        self.object(&path)
    }

    /// Reads the file of a version as predictors do.
    pub(super) async fn read(&self, version: u32) -> Result<Bytes> {
        let model = ModelRef {
            store: self.store.url().clone(),
            name: self.model.clone(),
            version,
        };
        let manifest = self.store.manifest(&self.model, Some(version)).await?;
        self.store.read(&model, &manifest, "weights").await
    }

    /// Returns files of unpublished versions.
    pub(super) async fn unpublished(&self) -> Vec<Path> {
        let mut published = Vec::new();
        for version in self.store.versions(&self.model).await.unwrap() {
            published.push(self.weights(version).await);
        }
        let mut files = Vec::new();
        for folder in [UNPUBLISHED, ATTEMPTS] {
            let folder = self.object(&format!("models/sales/{folder}"));
            files.extend(self.store.files_under(&folder).await.unwrap());
        }
        files.retain(|file| !published.contains(file));
        files
    }

    pub(super) async fn publish(&self, run: TrainId, if_exists: IfExists) -> Result<u32, Error> {
        self.publish_by(run, 1, if_exists).await
    }

    pub(super) async fn publish_by(
        &self,
        run: TrainId,
        generation: u64,
        if_exists: IfExists,
    ) -> Result<u32, Error> {
        let files = vec![("weights", Bytes::from_static(b"w"))];
        self.store
            .publish(generation, self.manifest(run, if_exists), files)
            .await
    }

    pub(super) fn manifest(&self, run: TrainId, if_exists: IfExists) -> Manifest {
        Manifest {
            format: Manifest::FORMAT,
            version: 0,
            published: SystemTime::now(),
            begun: None,
            spec: spec(run, &self.model, if_exists),
            features: vec![],
            parameters: 0,
            output_scale: 1.0,
            label_scales: vec![Scale::IDENTITY],
            classes: None,
            train_rows: 0,
            train_checksum: String::new(),
            eval_rows: 0,
            world_size: 1,
            rank_devices: vec![],
            history: vec![],
            kept_epoch: 1,
            refit: None,
            files: vec![],
        }
    }
}

/// Returns a run's state after `steps` steps.
pub(super) fn state(steps: u64) -> Bytes {
    Bytes::from(format!("the state after {steps} steps"))
}

pub(super) fn steps(found: &FoundCheckpoint) -> Option<u64> {
    let (info, bytes) = found.checkpoint.as_ref()?;
    assert_eq!(*bytes, state(info.position.steps));
    Some(info.position.steps)
}

fn spec(train_id: TrainId, model: &ModelName, if_exists: IfExists) -> TrainSpec {
    TrainSpec {
        train_id,
        model: model.clone(),
        if_exists,
        store: "file:///nowhere/".parse().unwrap(),
        newest_version: None,
        features: vec![Feature {
            column: "x".into(),
            kind: FeatureKind::Continuous,
        }],
        vocabulary: Default::default(),
        task: Task::Regression,
        label: Label {
            columns: vec!["y".into()],
            loss_weights: vec![],
            transform: LabelTransform::Identity,
            standardize: false,
        },
        numeric_transform: NumericTransform::None,
        split: Split::None,
        split_key: vec![],
        transform: None,
        network: Network {
            embedding_dim: EmbeddingWidth::Same(1),
            batch_norm: false,
            numeric_embedding: Default::default(),
            layers: vec![],
            output: Output::Identity,
            linear: Default::default(),
            factors: 0,
            ensemble_size: EnsembleSize::ONE,
        },
        loss: Loss::Mse,
        sample_weight: None,
        class_weights: ClassWeights::Equal,
        optimizer: Optimizer {
            learn_rate: 0.1,
            ..Optimizer::default()
        },
        l1: 0.0,
        l2: Some(0.0),
        accumulate: 1,
        batch_size: Some(BatchSize::OfRank(1)),
        epochs: Some(1),
        early_stop: None,
        keep: Keep::Last,
        refit: Refit::Never,
        seed: 0,
        ranks: Ranks::All,
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: Duration::from_secs(1),
            too_few: TooFew::Wait,
        },
        start: Start::Fresh,
        begin_early: false,
        checkpoint_every: None,
        trace: false,
        shards: 1,
        shard_by: vec![],
        device: Device::Cpu,
        precision: None,
        threads: None,
        device_share: false,
        rendezvous_timeout: Duration::from_secs(1),
        collective_timeout: Duration::from_secs(1),
        loading_timeout: Duration::from_secs(1),
    }
}
