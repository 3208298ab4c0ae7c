//! Fixtures of this crate's tests: a session without a cluster, and a model made by hand.

use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use url::Url;
use volley_proto::TrainId;
use volley_proto::limits::STACK;
use volley_proto::spec::{
    Activation, BatchSize, ClassWeights, Device, Elastic, EmbeddingWidth, EnsembleSize, Feature,
    FeatureKind, IfExists, Keep, Label, LabelTransform, Layer, Linear, Loss, Network,
    NumericEmbedding, NumericTransform, Optimizer, Output, Ranks, Refit, Split, Start, Task,
    TooFew, TrainSpec, VocabularyRule,
};
use volley_proto::store::{EpochRecord, FeatureSummary, Manifest, ModelStore, Scale};

use crate::{Session, SessionConfig};

/// Returns the manifest of a model of `Sales` by `Store` and `Distance`, in the scale of logarithms.
pub(crate) fn manifest(name: &str) -> Manifest {
    let feature = |column: &str, kind| Feature {
        column: column.to_owned(),
        kind,
    };
    let summary = |column: &str, kind, data_type: &str, vocabulary| FeatureSummary {
        column: column.to_owned(),
        kind,
        data_type: data_type.to_owned(),
        vocabulary,
        scale: Scale::IDENTITY,
        quantiles: None,
        bins: vec![],
        numbers: None,
    };
    let (categorical, continuous) = (FeatureKind::Categorical, FeatureKind::Continuous);
    let spec = TrainSpec {
        train_id: TrainId::generate(),
        model: name.parse().unwrap(),
        if_exists: IfExists::Replace,
        store: Url::parse("file:///tmp/models").unwrap(),
        newest_version: None,
        features: vec![
            feature("Store", categorical),
            feature("Distance", continuous),
        ],
        vocabulary: VocabularyRule::default(),
        task: Task::Regression,
        label: Label {
            columns: vec!["Sales".into()],
            loss_weights: vec![],
            transform: LabelTransform::Ln,
            standardize: false,
        },
        numeric_transform: NumericTransform::None,
        split: Split::None,
        split_key: vec![],
        transform: None,
        network: Network {
            embedding_dim: EmbeddingWidth::Same(10),
            batch_norm: true,
            numeric_embedding: NumericEmbedding::None,
            layers: Layer::stack(&[8, 4], Activation::Relu, &[]),
            output: Output::Identity,
            linear: Linear::None,
            factors: 0,
            ensemble_size: EnsembleSize::ONE,
        },
        loss: Loss::Mae,
        sample_weight: None,
        class_weights: ClassWeights::Equal,
        optimizer: Optimizer {
            learn_rate: 1e-3,
            ..Optimizer::default()
        },
        l1: 0.0,
        l2: Some(0.0),
        accumulate: 1,
        batch_size: Some(BatchSize::OfRank(10)),
        epochs: Some(3),
        early_stop: None,
        keep: Keep::Best,
        refit: Refit::Never,
        seed: 0,
        ranks: Ranks::All,
        elastic: Elastic {
            min_ranks: 1,
            max_ranks: None,
            regroup_timeout: Duration::from_secs(30),
            too_few: TooFew::Fail,
        },
        start: Start::Fresh,
        begin_early: false,
        checkpoint_every: None,
        trace: false,
        shards: 12,
        shard_by: Vec::new(),
        device: Device::Auto,
        precision: None,
        threads: None,
        device_share: false,
        rendezvous_timeout: Duration::from_secs(60),
        collective_timeout: Duration::from_secs(60),
        loading_timeout: Duration::from_secs(3600),
    };
    let epoch = |epoch: usize, eval_loss| EpochRecord {
        epoch,
        steps: 10 * epoch as u64,
        rows: 100,
        loss: 0.5,
        eval_loss: Some(eval_loss),
        eval_mae: None,
        eval_rmse: None,
        eval_r2: None,
        eval_rmspe: Some(0.2),
        eval_accuracy: None,
        eval_majority: None,
        eval_interval_coverage: None,
        labels: vec![],
        learn_rate: None,
        ended: None,
        seconds: 1.5,
        compute_seconds: 1.0,
        reduce_seconds: 0.25,
        checksum: String::new(),
        ranks: Vec::new(),
        earlier: None,
    };
    Manifest {
        format: Manifest::FORMAT,
        version: 0,
        published: SystemTime::UNIX_EPOCH,
        begun: None,
        spec,
        features: vec![
            summary("Store", categorical, "Int64", Some(3)),
            summary("Distance", continuous, "Float64", None),
        ],
        parameters: 123,
        output_scale: 1.0,
        label_scales: vec![Scale::IDENTITY],
        classes: None,
        train_rows: 100,
        eval_rows: 20,
        world_size: 2,
        rank_devices: Vec::new(),
        train_checksum: String::new(),
        history: vec![epoch(1, 0.3), epoch(2, 0.1), epoch(3, 0.2)],
        kept_epoch: 2,
        refit: None,
        files: vec![],
    }
}

/// Returns a session without a scheduler, with the model `known` in its store and the table `sales` in a file.
pub(crate) async fn session() -> (Session, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let url = ModelStore::directory_url(&directory.path().join("store")).unwrap();
    let session = Session::detached(&SessionConfig::new("127.0.0.1:1", url), 4).unwrap();
    session
        .store()
        .publish(1, manifest("known"), Vec::new())
        .await
        .unwrap();
    let create = sales_file(&directory);
    session
        .run(session.parse(&create).unwrap().remove(0))
        .await
        .unwrap();
    (session, directory)
}

/// Writes three rows of sales. Returns the statement that creates a table of them.
pub(crate) fn sales_file(directory: &TempDir) -> String {
    let file = directory.path().join("sales.csv");
    let rows = "Id,Store,Distance,Promo,Sales\n1,1,0.5,x,100\n2,2,1.5,y,50\n3,3,2.5,z,\n";
    std::fs::write(&file, rows).unwrap();
    format!(
        "CREATE EXTERNAL TABLE sales (\"Id\" BIGINT, \"Store\" BIGINT, \"Distance\" DOUBLE, \
         \"Promo\" TEXT, \"Sales\" DOUBLE) STORED AS CSV LOCATION '{}' \
         OPTIONS ('format.has_header' 'true')",
        file.display()
    )
}

/// Runs a test on a large stack: planning recurses deeply in debug builds.
pub(crate) fn on_a_deep_stack(test: impl Future<Output = ()> + Send + 'static) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test);
    };
    let thread = std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(run)
        .unwrap();
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
