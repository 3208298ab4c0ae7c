//! Tests of folders in a store that cannot move files: the listed files, and the end of uploads.

use std::collections::HashSet;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int64Array, UInt64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::*;
use crate::object_stores::Stores;
use crate::with_rules;
use volley_proto::object_stores::Opened;

/// Store in memory that tracks open uploads, and completes only as many as the test allows.
#[derive(Default)]
struct Uploading {
    memory: Arc<InMemory>,
    open: Mutex<HashSet<String>>,
    completes: AtomicUsize,
}

#[async_trait]
impl MultipartStore for Uploading {
    async fn create_multipart(&self, path: &Path) -> object_store::Result<String> {
        let id = self.memory.create_multipart(path).await?;
        self.open.lock().unwrap().insert(id.clone());
        Ok(id)
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &String,
        part: usize,
        data: PutPayload,
    ) -> object_store::Result<PartId> {
        self.memory.put_part(path, id, part, data).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &String,
        parts: Vec<PartId>,
    ) -> object_store::Result<PutResult> {
        let more = |left: usize| left.checked_sub(1);
        let left = self
            .completes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if left.is_err() {
            return Err(object_store::Error::Generic {
                store: "test",
                source: "the store does not answer".into(),
            });
        }
        let completed = self.memory.complete_multipart(path, id, parts).await?;
        self.open.lock().unwrap().remove(id);
        Ok(completed)
    }

    async fn abort_multipart(&self, path: &Path, id: &String) -> object_store::Result<()> {
        self.open.lock().unwrap().remove(id);
        self.memory.abort_multipart(path, id).await
    }
}

/// Store that loses the responses to as many conditional puts, which it has done.
#[derive(Debug)]
struct Losing {
    memory: Arc<InMemory>,
    losses: AtomicUsize,
}

impl fmt::Display for Losing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Losing {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let is_conditional = options.mode == PutMode::Create;
        let put = self.memory.put_opts(location, payload, options).await?;
        let less = |left: usize| left.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if is_conditional && self.losses.fetch_update(set, fetch, less).is_ok() {
            return Err(object_store::Error::Generic {
                store: "test",
                source: "connection reset".into(),
            });
        }
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(location, options).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        self.memory.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.memory.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.memory.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

/// Session with the numbers 0 to 99 in three partitions, and a bucket.
struct Scene {
    session: SessionContext,
    store: Arc<Uploading>,
}

impl Scene {
    fn new() -> Self {
        Self::losing(0)
    }

    /// Scene whose bucket loses the responses to as many conditional puts.
    fn losing(losses: usize) -> Self {
        let job = JobSettings {
            id: Some("job".into()),
            ..JobSettings::default()
        };
        let store = Arc::new(Uploading::default());
        store.completes.store(usize::MAX, Ordering::Relaxed);
        let stores = Stores::default();
        let opened = Opened {
            root: "s3://bucket".into(),
            store: Arc::new(Losing {
                memory: Arc::clone(&store.memory),
                losses: losses.into(),
            }),
            multipart: Some(Arc::clone(&store) as _),
        };
        stores.register(&"s3://bucket/".parse().unwrap(), opened);
        let runtime = RuntimeEnvBuilder::new()
            .with_object_store_registry(Arc::new(stores.clone()))
            .build_arc()
            .unwrap();
        let mut config = SessionConfig::new()
            .with_target_partitions(3)
            .with_extension(Arc::new(stores));
        // Files of more than a few rows have several parts.
        config
            .options_mut()
            .execution
            .objectstore_writer_buffer_size = 64;
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config.with_option_extension(job))
            .with_runtime_env(runtime)
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        let batch = |from: i64, to: i64| {
            let ids = Arc::new(Int64Array::from_iter_values(from..to)) as ArrayRef;
            RecordBatch::try_from_iter([("id", ids)]).unwrap()
        };
        let parts = vec![
            vec![batch(0, 10)],
            vec![batch(10, 40)],
            vec![batch(40, 100)],
        ];
        let numbers = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
        session
            .register_table("numbers", Arc::new(numbers))
            .unwrap();
        Self { session, store }
    }

    async fn plan(&self, sql: &str) -> Arc<dyn ExecutionPlan> {
        let frame = self.session.sql(sql).await.unwrap();
        frame.create_physical_plan().await.unwrap()
    }

    /// Runs a plan that writes, and returns the number of rows that it reports.
    async fn run(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<u64> {
        let batches = collect(Arc::clone(plan), self.session.task_ctx()).await?;
        let count = batches[0].column(0).as_any().downcast_ref::<UInt64Array>();
        Ok(count.unwrap().value(0))
    }

    /// Returns the names of the files in the bucket, and the sum of their lines.
    async fn listed(&self) -> (Vec<String>, i64) {
        let files: Vec<_> = self.store.memory.list(None).try_collect().await.unwrap();
        let (mut names, mut sum) = (Vec::new(), 0);
        for file in files {
            let bytes = self.store.memory.get(&file.location).await.unwrap();
            let bytes = bytes.bytes().await.unwrap();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let lines = text.lines().filter_map(|line| line.parse::<i64>().ok());
            sum += lines.sum::<i64>();
            names.push(file.location.to_string());
        }
        (names, sum)
    }

    fn open(&self) -> usize {
        self.store.open.lock().unwrap().len()
    }

    /// Checks that all numbers are there once, and nothing else is.
    async fn is_whole(&self) {
        let (names, sum) = self.listed().await;
        assert_eq!(sum, (0..100).sum::<i64>(), "{names:?}");
        let is_committed = |name: &String| name.starts_with("out/") && name.contains("job-");
        assert!(names.iter().all(is_committed), "{names:?}");
        assert_eq!(self.open(), 0, "uploads are left");
    }
}

const COPY: &str = "COPY numbers TO 's3://bucket/out/' STORED AS CSV";

/// Returns the part of a plan that writes.
fn writer(copy: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let gathered = Arc::clone(copy.children()[0]);
    Arc::clone(gathered.children()[0])
}

#[tokio::test]
async fn nothing_is_listed_until_it_is_committed() {
    let scene = Scene::new();
    let copy = scene.plan(COPY).await;
    assert!(copy.is::<CommitExec>(), "{copy:?}");
    for partition in 0..3 {
        let rows = writer(&copy).execute(partition, scene.session.task_ctx());
        let rows: Vec<_> = rows.unwrap().try_collect().await.unwrap();
        assert_eq!(rows[0].num_rows(), 1);
    }
    let (names, _) = scene.listed().await;
    let is_record = |name: &String| name.contains(".volley-job/") && name.ends_with(".uncommitted");
    assert!(
        !names.is_empty() && names.iter().all(is_record),
        "{names:?}"
    );
    assert_eq!(scene.open(), 3);
    // The next attempt aborts the uploads of that attempt.
    assert_eq!(scene.run(&copy).await.unwrap(), 100);
    scene.is_whole().await;
    // A commit after the end adds nothing.
    let again = scene.plan(COPY).await;
    assert_eq!(scene.run(&again).await.unwrap(), 100);
    scene.is_whole().await;
}

#[tokio::test]
async fn another_commit_finishes_what_one_has_begun() {
    let scene = Scene::new();
    let copy = scene.plan(COPY).await;
    scene.store.completes.store(1, Ordering::Relaxed);
    let error = scene.run(&copy).await.unwrap_err().to_string();
    assert!(
        error.contains("does not answer") && error.contains("s3://bucket/out/"),
        "{error}"
    );
    scene.store.completes.store(usize::MAX, Ordering::Relaxed);
    let again = scene.plan(COPY).await;
    assert_eq!(scene.run(&again).await.unwrap(), 100);
    scene.is_whole().await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found() {
    let scene = Scene::losing(1);
    let copy = scene.plan(COPY).await;
    assert_eq!(scene.run(&copy).await.unwrap(), 100);
    scene.is_whole().await;
}

#[tokio::test]
async fn rows_are_spread_over_folders_and_added_to_a_table() {
    let scene = Scene::new();
    let parted = "COPY (SELECT id, id % 4 AS part FROM numbers) TO 's3://bucket/out/' STORED AS CSV \
                  PARTITIONED BY (part)";
    let copy = scene.plan(parted).await;
    assert_eq!(scene.run(&copy).await.unwrap(), 100);
    scene.is_whole().await;
    let (names, _) = scene.listed().await;
    assert!(
        names.iter().all(|name| name.starts_with("out/part=")),
        "{names:?}"
    );
    let create =
        "CREATE EXTERNAL TABLE kept (id BIGINT) STORED AS PARQUET LOCATION 's3://bucket/kept/'";
    scene.session.sql(create).await.unwrap();
    let insert = scene.plan("INSERT INTO kept SELECT id FROM numbers").await;
    assert_eq!(scene.run(&insert).await.unwrap(), 100);
    let rows = scene.session.table("kept").await.unwrap();
    assert_eq!(rows.count().await.unwrap(), 100);
    assert_eq!(scene.open(), 0);
}

#[tokio::test]
async fn no_rows_are_a_file_of_columns() {
    let scene = Scene::new();
    for (format, folder) in [("PARQUET", "p"), ("JSON", "j"), ("CSV", "c")] {
        let copy = format!(
            "COPY (SELECT * FROM numbers WHERE id < 0) TO 's3://bucket/{folder}/' STORED AS {format}"
        );
        let copy = scene.plan(&copy).await;
        assert_eq!(scene.run(&copy).await.unwrap(), 0);
        let (names, _) = scene.listed().await;
        let of_folder = names
            .iter()
            .filter(|name| name.starts_with(&format!("{folder}/")));
        assert_eq!(of_folder.count(), 1, "{names:?}");
    }
    assert_eq!(scene.open(), 0);
}

#[tokio::test]
async fn a_web_server_takes_no_files() {
    let scene = Scene::new();
    let frame = "COPY numbers TO 'https://example.org/out/' STORED AS CSV";
    let copy = scene.plan(frame).await;
    let error = scene.run(&copy).await.unwrap_err().to_string();
    assert!(error.contains("https://example.org/out/"), "{error}");
}
