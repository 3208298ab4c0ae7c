//! The store over a directory: what is published, and what unfinished runs leave.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tempfile::TempDir;

use super::{FeatureSummary, FoundCheckpoint, Manifest, ModelStore, Position, Writer, WrittenFile};
use crate::spec::{
    AdamForm, BatchSize, ClassWeights, Device, Elastic, EmbeddingWidth, Feature, FeatureKind,
    IfExists, Keep, Label, LabelTransform, Loss, Network, NumericTransform, Optimizer, Output,
    Ranks, Refit, Rule, Split, Start, Task, TooFew, TrainSpec,
};
use crate::store::Scale;
use crate::{Error, ModelName, ModelRef, Result, TrainId};

pub(super) struct Scene {
    directory: TempDir,
    pub(super) store: ModelStore,
    pub(super) model: ModelName,
}

impl Scene {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = ModelStore::directory_url(directory.path()).unwrap();
        Self {
            directory,
            store: ModelStore::open(&url).unwrap(),
            model: "sales".parse().unwrap(),
        }
    }

    /// By the first generation.
    async fn save(&self, run: TrainId, steps: u64) {
        self.save_by(run, 1, steps).await.unwrap();
    }

    async fn save_by(&self, run: TrainId, generation: u64, steps: u64) -> Result<()> {
        let position = Position {
            epoch: 1 + steps as usize / 100,
            step: steps % 100,
            steps,
        };
        let (store, writer) = (&self.store, Writer { run, generation });
        let saved = store.save_checkpoint(&self.model, writer, position, None, state(steps));
        saved.await
    }

    /// Where this is in the store.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Reads the file of a version as predictors do.
    async fn read(&self, version: u32) -> Result<Bytes> {
        let model = ModelRef {
            store: self.store.url().clone(),
            name: self.model.clone(),
            version,
        };
        let manifest = self.store.manifest(&self.model, Some(version)).await?;
        self.store.read(&model, &manifest, "weights").await
    }

    async fn newest(&self, run: Option<TrainId>) -> FoundCheckpoint {
        self.store
            .newest_checkpoint(&self.model, run)
            .await
            .unwrap()
    }

    /// The file of a checkpoint of the first generation.
    fn file(&self, run: TrainId, steps: u64, extension: &str) -> PathBuf {
        let file = format!("models/sales/checkpoints/{run}/000001-{steps:012}.{extension}");
        self.path(&file)
    }

    fn manifest(&self, run: TrainId, if_exists: IfExists) -> Manifest {
        Manifest {
            format: Manifest::FORMAT,
            version: 0,
            published: SystemTime::now(),
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
            history: vec![],
            kept_epoch: 1,
            refit: None,
            files: vec![],
        }
    }

    pub(super) async fn publish(&self, run: TrainId, if_exists: IfExists) -> Result<u32, Error> {
        let files = vec![("weights", Bytes::from_static(b"w"))];
        self.store
            .publish(self.manifest(run, if_exists), files)
            .await
    }
}

/// A run's state after so many steps.
fn state(steps: u64) -> Bytes {
    Bytes::from(format!("the state after {steps} steps"))
}

fn steps(found: &FoundCheckpoint) -> Option<u64> {
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
        },
        loss: Loss::Mse,
        sample_weight: None,
        class_weights: ClassWeights::Equal,
        optimizer: Optimizer {
            learn_rate: 0.1,
            rule: Rule::Adam {
                beta_1: 0.9,
                beta_2: 0.999,
                epsilon: 1e-7,
                form: AdamForm::Keras,
                weight_decay: 0.0,
            },
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
        checkpoint_every: None,
        trace: false,
        shards: 1,
        shard_by: vec![],
        device: Device::Cpu,
        rendezvous_timeout: Duration::from_secs(1),
        collective_timeout: Duration::from_secs(1),
        loading_timeout: Duration::from_secs(1),
    }
}

#[tokio::test]
async fn the_newest_checkpoint_of_a_run_is_found_and_two_are_kept() {
    let scene = Scene::new();
    let run = TrainId::generate();
    assert_eq!(scene.newest(Some(run)).await, FoundCheckpoint::default());
    for steps in [90, 100, 200, 1200] {
        scene.save(run, steps).await;
    }
    let found = scene.newest(Some(run)).await;
    assert_eq!(steps(&found), Some(1200));
    assert!(found.skipped.is_empty());
    let info = found.checkpoint.unwrap().0;
    assert_eq!((info.train_id, info.position.epoch), (run, 13));
    for (steps, kept) in [(90, false), (100, false), (200, true), (1200, true)] {
        for extension in ["state", "json"] {
            assert_eq!(scene.file(run, steps, extension).exists(), kept, "{steps}");
        }
    }
    // A generation that had to go back behind them has the newest all the same.
    scene.save_by(run, 2, 150).await.unwrap();
    assert_eq!(steps(&scene.newest(Some(run)).await), Some(150));
    assert!(scene.file(run, 1200, "json").exists() && !scene.file(run, 200, "json").exists());
    scene.save_by(run, 2, 250).await.unwrap();
    assert_eq!(steps(&scene.newest(Some(run)).await), Some(250));
    // The same place again.
    scene.save_by(run, 2, 250).await.unwrap();
    let before = format!("models/sales/checkpoints/{run}/000002-{:012}.json", 150);
    assert!(scene.path(&before).exists() && !scene.file(run, 1200, "json").exists());
    assert_eq!(steps(&scene.newest(Some(run)).await), Some(250));
    scene
        .store
        .drop_checkpoints(&scene.model, run)
        .await
        .unwrap();
    assert_eq!(scene.newest(None).await, FoundCheckpoint::default());
    scene
        .store
        .drop_checkpoints(&scene.model, run)
        .await
        .unwrap();
}

/// A rank 0 that was frozen and given up goes on once a later generation has written.
#[tokio::test]
async fn a_generation_that_was_given_up_harms_no_later_one() {
    let scene = Scene::new();
    let run = TrainId::generate();
    scene.save(run, 100).await;
    for steps in [50, 60] {
        scene.save_by(run, 2, steps).await.unwrap();
    }
    // Also where it would be further on, or stand at the very same step.
    for late in [50, 60, 200] {
        match scene.save_by(run, 1, late).await {
            Err(Error::Superseded {
                generation: 1,
                by: 2,
                ..
            }) => {}
            other => panic!("{other:?}"),
        }
    }
    let newest = scene.newest(Some(run)).await;
    assert_eq!((steps(&newest), newest.skipped.len()), (Some(60), 0));
    // It had looked around before the later one wrote: its files are its own, and count for less.
    for extension in ["state", "json"] {
        let [from, to] = [60, 200].map(|steps| scene.file(run, steps, extension));
        let later = from.with_file_name(format!("000002-{:012}.{extension}", 60));
        std::fs::copy(later, to).unwrap();
    }
    assert_eq!(steps(&scene.newest(Some(run)).await), Some(60));
    scene.save_by(run, 3, 70).await.unwrap();
    assert_eq!(steps(&scene.newest(Some(run)).await), Some(70));
    assert!(!scene.file(run, 200, "json").exists());
}

#[tokio::test]
async fn a_checkpoint_of_old_names_no_generation() {
    let scene = Scene::new();
    let run = TrainId::generate();
    scene.save(run, 100).await;
    for extension in ["state", "json"] {
        let file = scene.file(run, 100, extension);
        let old = file.with_file_name(format!("{:012}.{extension}", 100));
        std::fs::rename(file, &old).unwrap();
        if extension == "json" {
            let json = std::fs::read_to_string(&old).unwrap();
            std::fs::write(&old, json.replace("\"generation\": 1,", "")).unwrap();
        }
    }
    let found = scene.newest(Some(run)).await;
    assert_eq!((steps(&found), found.skipped.len()), (Some(100), 0));
}

#[tokio::test]
async fn what_is_not_whole_is_skipped_and_named() {
    type Spoil = fn(&Scene, TrainId);
    let spoils: [(Spoil, &str); 6] = [
        (
            |scene, run| {
                let state = state(1200);
                std::fs::write(scene.file(run, 1200, "state"), &state[..9]).unwrap();
            },
            "its state has 9 bytes instead of 26",
        ),
        (
            |scene, run| {
                let mut state = state(1200).to_vec();
                state[17] ^= 0x10;
                std::fs::write(scene.file(run, 1200, "state"), state).unwrap();
            },
            "hash",
        ),
        (
            |scene, run| std::fs::remove_file(scene.file(run, 1200, "json")).unwrap(),
            "not written to its end",
        ),
        (
            |scene, run| std::fs::remove_file(scene.file(run, 1200, "state")).unwrap(),
            "its state is missing",
        ),
        (
            |scene, run| {
                let path = scene.file(run, 1200, "json");
                let json = std::fs::read(&path).unwrap();
                std::fs::write(&path, &json[..json.len() / 2]).unwrap();
            },
            "corrupt",
        ),
        (
            |scene, run| {
                let path = scene.file(run, 1200, "json");
                let json = std::fs::read_to_string(&path).unwrap();
                std::fs::write(&path, json.replace("\"format\": 1", "\"format\": 9")).unwrap();
            },
            "has format 9, this build reads 1",
        ),
    ];
    for (spoil, reason) in spoils {
        let scene = Scene::new();
        let run = TrainId::generate();
        scene.save(run, 1100).await;
        scene.save(run, 1200).await;
        spoil(&scene, run);
        for asked in [Some(run), None] {
            let found = scene.newest(asked).await;
            assert_eq!(steps(&found), Some(1100), "{reason}");
            let [skipped] = &found.skipped[..] else {
                panic!("{found:?}")
            };
            let start = format!("checkpoint at step 1200 of run {run} ");
            assert!(skipped.starts_with(&start), "{skipped}");
            assert!(skipped.contains(reason), "{skipped}");
            assert!(skipped.ends_with("; using the one before"), "{skipped}");
        }
        std::fs::remove_file(scene.file(run, 1100, "state")).unwrap();
        let found = scene.newest(None).await;
        assert_eq!((steps(&found), found.skipped.len()), (None, 2));
        assert!(found.skipped[1].ends_with("; there is none before it"));
    }
}

#[tokio::test]
async fn the_last_run_to_write_comes_first() {
    let scene = Scene::new();
    let (early, late) = (TrainId::generate(), TrainId::generate());
    scene.save(late, 5).await;
    scene.save(early, 900).await;
    scene.save(late, 10).await;
    assert_eq!(steps(&scene.newest(None).await), Some(10));
    assert_eq!(steps(&scene.newest(Some(early)).await), Some(900));
    scene
        .store
        .drop_checkpoints(&scene.model, late)
        .await
        .unwrap();
    assert_eq!(steps(&scene.newest(None).await), Some(900));
}

#[tokio::test]
async fn checkpoints_are_no_versions_and_go_with_the_model() {
    let scene = Scene::new();
    let run = TrainId::generate();
    scene.save(run, 100).await;
    assert!(scene.store.versions(&scene.model).await.unwrap().is_empty());
    assert!(scene.store.list().await.unwrap().is_empty());
    let misspelt = "sale".parse().unwrap();
    for name in [&scene.model, &misspelt] {
        match scene.store.drop_model(name).await {
            Err(Error::UnknownModel { hint, .. }) => assert_eq!(hint, ""),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(scene.publish(run, IfExists::Fail).await.unwrap(), 1);
    assert_eq!(scene.store.list().await.unwrap()[0].versions, [1]);
    assert_eq!(steps(&scene.newest(Some(run)).await), Some(100));
    match scene.store.drop_model(&misspelt).await {
        Err(Error::UnknownModel { hint, .. }) => assert!(hint.contains("sales")),
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.store.drop_model(&scene.model).await.unwrap(), 1);
    assert_eq!(scene.newest(None).await, FoundCheckpoint::default());
}

#[tokio::test]
async fn a_run_that_has_published_is_not_resumed_and_can_be_cleared_away() {
    let scene = Scene::new();
    let (done, under_way) = (TrainId::generate(), TrainId::generate());
    scene.save(under_way, 7).await;
    scene.save(done, 100).await;
    assert_eq!(steps(&scene.newest(None).await), Some(100));
    scene.publish(done, IfExists::Fail).await.unwrap();
    assert_eq!(steps(&scene.newest(None).await), Some(7));
    let drop = async |except| {
        let (store, model) = (&scene.store, &scene.model);
        store
            .drop_finished_checkpoints(model, except)
            .await
            .unwrap();
    };
    drop(done).await;
    assert_eq!(steps(&scene.newest(Some(done)).await), Some(100));
    drop(under_way).await;
    assert_eq!(scene.newest(Some(done)).await, FoundCheckpoint::default());
    assert_eq!(steps(&scene.newest(None).await), Some(7));
}

#[test]
fn features_of_old_have_neither_quantiles_nor_bins() {
    let old = r#"{"column":"x","kind":"continuous","data_type":"Float64","vocabulary":null}"#;
    let summary: FeatureSummary = serde_json::from_str(old).unwrap();
    assert_eq!((summary.quantiles, summary.bins.len()), (None, 0));
}

#[tokio::test]
async fn a_run_publishes_once() {
    let scene = Scene::new();
    let (run, other) = (TrainId::generate(), TrainId::generate());
    assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 1);
    assert_eq!(scene.publish(other, IfExists::Replace).await.unwrap(), 2);
    assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 1);
    assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1, 2]);
    let unpublished = std::fs::read_dir(scene.path("models/sales/unpublished"));
    assert_eq!(unpublished.unwrap().count(), 0);
    // A version that a build of old has begun in place, and not published to its end, is nobody's.
    std::fs::remove_file(scene.path("models/sales/1/manifest.json")).unwrap();
    assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 3);
    assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [2, 3]);
}

/// One that was given up while it published does so beside the one of the next generation.
#[tokio::test]
async fn generations_that_publish_at_once_publish_once() {
    let scene = Scene::new();
    let (run, other) = (TrainId::generate(), TrainId::generate());
    let publish = || scene.publish(run, IfExists::Replace);
    let all = tokio::join!(
        publish(),
        publish(),
        publish(),
        scene.publish(other, IfExists::Replace)
    );
    let [one, same, again, others] = [all.0, all.1, all.2, all.3].map(Result::unwrap);
    assert_eq!([one, one], [same, again]);
    assert_ne!(one, others);
    assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1, 2]);
    assert_eq!(scene.read(one).await.unwrap(), "w");
    // It comes back when its folder is gone, and when nothing of its run is left but the version.
    assert_eq!(publish().await.unwrap(), one);
}

#[tokio::test]
async fn a_model_s_file_that_is_not_what_was_published_is_an_error() {
    type Spoil = fn(&std::path::Path);
    let spoils: [(Spoil, &str, &str); 3] = [
        (
            |file| std::fs::write(file, "").unwrap(),
            "0 bytes",
            "1 bytes",
        ),
        (|file| std::fs::write(file, "v").unwrap(), "hash", "hash"),
        (
            |file| std::fs::remove_file(file).unwrap(),
            "no content",
            "1 bytes",
        ),
    ];
    for (spoil, has, had) in spoils {
        let scene = Scene::new();
        let run = TrainId::generate();
        scene.publish(run, IfExists::Fail).await.unwrap();
        assert_eq!(scene.read(1).await.unwrap(), "w");
        spoil(&scene.path("models/sales/1/weights"));
        match scene.read(1).await {
            Err(Error::ModelFile {
                file,
                found,
                expected,
            }) => {
                assert!(file.ends_with("models/sales/1/weights"), "{file}");
                assert!(found.contains(has) && expected.contains(had), "{found}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Of a format that kept no hashes: it is read as it is.
#[tokio::test]
async fn a_model_of_old_is_read() {
    let scene = Scene::new();
    scene
        .publish(TrainId::generate(), IfExists::Fail)
        .await
        .unwrap();
    let path = scene.path("models/sales/1/manifest.json");
    let json = std::fs::read(&path).unwrap();
    let mut manifest: Manifest = serde_json::from_slice(&json).unwrap();
    assert_eq!(manifest.files, [WrittenFile::of("weights", b"w")]);
    manifest.files.clear();
    let json = serde_json::to_string(&manifest).unwrap();
    assert!(!json.contains("\"files\""));
    let old = json.replace("\"format\":6", "\"format\":5");
    std::fs::write(&path, &old).unwrap();
    assert_eq!(scene.read(1).await.unwrap(), "w");
    let cut = &old[..old.len() / 2];
    std::fs::write(&path, cut).unwrap();
    match scene.read(1).await {
        Err(Error::Unreadable { file, .. }) => assert!(file.ends_with("1/manifest.json"), "{file}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_report_is_kept_beside_its_version() {
    let scene = Scene::new();
    let Scene { store, model, .. } = &scene;
    for version in [1, 2] {
        let run = TrainId::generate();
        assert_eq!(
            scene.publish(run, IfExists::Replace).await.unwrap(),
            version
        );
    }
    for html in ["<p>old", "<p>new"] {
        store.keep_report(model, 1, html.to_owned()).await.unwrap();
    }
    let report = store.report(model, 1).await.unwrap().unwrap();
    assert_eq!(&report[..], b"<p>new");
    assert_eq!(store.report(model, 2).await.unwrap(), None);
    let rows = store.rows().await.unwrap();
    let kept: Vec<_> = rows.iter().map(|row| row.report).collect();
    assert_eq!(kept, [true, false]);
    match store.keep_report(model, 3, String::new()).await {
        Err(Error::UnknownVersion { version: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(store.versions(model).await.unwrap(), [1, 2]);
    assert_eq!(store.drop_model(model).await.unwrap(), 2);
    assert_eq!(store.report(model, 1).await.unwrap(), None);
}

#[tokio::test]
async fn a_model_that_another_run_published_meanwhile_is_not_replaced_unasked() {
    let scene = Scene::new();
    let (run, other) = (TrainId::generate(), TrainId::generate());
    assert_eq!(scene.publish(other, IfExists::Fail).await.unwrap(), 1);
    match scene.publish(run, IfExists::Fail).await {
        Err(Error::PublishedMeanwhile { version: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    // The one that did publish may say so again.
    assert_eq!(scene.publish(other, IfExists::Fail).await.unwrap(), 1);
    assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1]);
    assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 2);
}
