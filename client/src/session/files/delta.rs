//! Delta tables: folders with a log that says which of their files are rows now.
//!
//! ```text
//!   folder/_delta_log ── Delta's kernel ──> newest snapshot: columns, files ──> a table of these Parquet files
//! ```
//!
//! A snapshot is read whenever a query is planned; the scheduler and executors see Parquet files only. So deletion
//! vectors, column mapping, and partitions outside of hive folders are refused by name. Nothing is written.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use delta_kernel::engine::arrow_conversion::TryIntoArrow;
use delta_kernel::scan::state::ScanFile;
use delta_kernel::table_features::ColumnMappingMode;
use delta_kernel::{KernelError, KernelResult};
use delta_kernel_default_engine::executor::TaskExecutor;
use delta_kernel_default_engine::{DefaultEngine, DefaultEngineBuilder};
use futures::TryStreamExt;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use tokio::runtime::{EnterGuard, Handle};
use url::Url;
use volley_engine::NULL_PARTITION;
use volley_engine::object_stores::shown;

use crate::{Error, Result};

/// The folder of a table's log, in the table's.
pub(super) const LOG: &str = "_delta_log";

/// The newest snapshot of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The table's folder, with a slash at its end.
    pub(super) folder: Url,
    /// All columns, in the table's order.
    pub(super) schema: SchemaRef,
    /// From the outermost hive folder.
    pub(super) partition_columns: Vec<FieldRef>,
    /// The current data files, without removed ones, with their bytes.
    files: Vec<(Url, u64)>,
}

impl Snapshot {
    /// Reads the log of a table in a store.
    ///
    /// # Errors
    /// When it cannot be read, or files alone do not say what rows are.
    pub(super) async fn read(folder: Url, store: Arc<dyn ObjectStore>) -> Result<Self> {
        let runtime = Handle::current();
        let of_kernel = Arc::clone(&store);
        let read = move || {
            let engine = DefaultEngineBuilder::new(of_kernel)
                .with_task_executor(Arc::new(SessionRuntime(runtime)))
                .build();
            read(&folder, &engine)
        };
        // The kernel waits for its store: on a thread that is none of the runtime's.
        let (done, snapshot) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("delta-log".to_owned());
        let failed = |source| Error::from(volley_proto::Error::malformed("Delta log", source));
        thread
            .spawn(move || {
                // Whoever waits may be gone.
                done.send(read()).ok();
            })
            .map_err(|error| failed(error.to_string()))?;
        let snapshot = snapshot.await;
        let snapshot = snapshot.map_err(|_| failed("its reader has panicked".to_owned()))??;
        snapshot.check(store.as_ref()).await?;
        Ok(snapshot)
    }

    /// Iterates over the URLs of its files.
    pub(super) fn files(&self) -> impl Iterator<Item = &Url> {
        self.files.iter().map(|(file, _)| file)
    }

    /// Checks that all files are there: a table of files has what it finds of them.
    async fn check(&self, store: &dyn ObjectStore) -> Result<()> {
        let unreadable = |file: &str, source: Box<dyn std::error::Error + Send + Sync>| {
            let file = shown(file);
            Error::from(volley_proto::Error::Unreadable { file, source })
        };
        let folder = Path::from_url_path(self.folder.path());
        let folder = folder.map_err(|error| unreadable(self.folder.as_str(), error.into()))?;
        let mut listed = store.list(Some(&folder));
        let mut there: HashMap<Path, u64> = HashMap::new();
        loop {
            match listed.try_next().await {
                Ok(Some(file)) => there.insert(file.location, file.size),
                Ok(None) => break,
                Err(error) => return Err(unreadable(self.folder.as_str(), error.into())),
            };
        }
        for (file, bytes) in &self.files {
            let path = Path::from_url_path(file.path());
            let path = path.map_err(|error| unreadable(file.as_str(), error.into()))?;
            let problem = match there.get(&path) {
                Some(found) if found == bytes => continue,
                Some(found) => format!("it has {found} bytes, and the Delta log says {bytes}"),
                None => "the Delta log names it, and it is not there".to_owned(),
            };
            return Err(unreadable(file.as_str(), problem.into()));
        }
        Ok(())
    }

    /// Returns the columns that the files contain.
    pub(super) fn file_schema(&self) -> SchemaRef {
        let fields = self.schema.fields().iter();
        let fields = fields.filter(|field| !self.partition_columns.contains(field));
        Arc::new(Schema::new(fields.cloned().collect::<Vec<_>>()))
    }

    /// Checks whether the columns' order differs from that of a table of files, where partition columns come last.
    pub(super) fn is_reordered(&self) -> bool {
        let partition = self.partition_columns.iter();
        let schema = self.file_schema();
        let there = schema.fields().iter().chain(partition);
        !there.eq(self.schema.fields().iter())
    }
}

fn read(folder: &Url, engine: &DefaultEngine<SessionRuntime>) -> Result<Snapshot> {
    let typed = shown(folder.as_str());
    let unreadable = |error: KernelError| {
        Error::from(volley_proto::Error::Unreadable {
            file: typed.clone(),
            source: Box::new(error),
        })
    };
    let refuse =
        |what: String| Error::not_supported(format!("reading the Delta table {typed}: {what}"));
    let mut plain = folder.clone();
    plain.set_password(None).ok();
    let snapshot = delta_kernel::Snapshot::builder_for(plain.as_str()).build(engine);
    let snapshot = snapshot.map_err(unreadable)?;
    let mapping = snapshot.table_properties().column_mapping_mode;
    if !matches!(mapping, None | Some(ColumnMappingMode::None)) {
        let what = "it has column mapping, so that columns have other names in its files";
        return Err(refuse(what.to_owned()));
    }
    let schema: Schema = snapshot
        .schema()
        .as_ref()
        .try_into_arrow()
        .map_err(|error| refuse(error.to_string()))?;
    // Delta's metadata of columns has no use here.
    let fields = schema.fields().iter();
    let fields = fields.map(|field| field.as_ref().clone().with_metadata(HashMap::new()));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    let scan = Arc::clone(&snapshot)
        .scan_builder()
        .build()
        .map_err(unreadable)?;
    let mut found: Vec<ScanFile> = Vec::new();
    for files in scan.scan_metadata(engine).map_err(unreadable)? {
        let files = files.map_err(unreadable)?;
        let all = files.visit_scan_files(found, |found, file| found.push(file));
        found = all.map_err(unreadable)?;
    }
    let partition_columns: Vec<FieldRef> = snapshot
        .table_configuration()
        .metadata()
        .partition_columns()
        .iter()
        .filter_map(|column| {
            schema
                .fields()
                .find(column)
                .map(|(_, field)| FieldRef::clone(field))
        })
        .collect();
    let mut files = Vec::with_capacity(found.len());
    for ScanFile {
        path,
        size,
        dv_info,
        partition_values,
        ..
    } in found
    {
        if dv_info.has_vector() {
            return Err(refuse(format!(
                "a deletion vector takes rows out of its file {path}: have it purged (REORG TABLE … APPLY (PURGE))"
            )));
        }
        let url = folder.join(&path).map_err(|e| refuse(e.to_string()))?;
        let Some(below) = url.as_str().strip_prefix(folder.as_str()) else {
            return Err(refuse(format!("its file {path} is not in its folder")));
        };
        // An empty value is NULL. Files in other folders than those of their partition are left out.
        let expected = partition_columns.iter().map(|field| {
            let value = partition_values.get(field.name());
            let value = value.filter(|value| !value.is_empty());
            let value = value.map_or(NULL_PARTITION, String::as_str);
            (field.name().clone(), value.to_owned())
        });
        let expected: Vec<_> = expected.collect();
        let is_partitioned = !partition_columns.is_empty();
        if is_partitioned && hive_values(below) != Some(expected) {
            return Err(refuse(format!(
                "its file {path} is not in folders that are named after the values of its partition, {}",
                shown_values(&partition_values)
            )));
        }
        files.push((url, u64::try_from(size).unwrap_or_default()));
    }
    files.sort_unstable();
    Ok(Snapshot {
        folder: folder.clone(),
        schema: Arc::new(schema),
        partition_columns,
        files,
    })
}

/// Returns the columns and values of a file's hive folders, as DataFusion reads them, from the part of its URL below
/// the table's folder; `None` if one of the folders is not a hive folder.
fn hive_values(below: &str) -> Option<Vec<(String, String)>> {
    let (folders, _) = below.rsplit_once('/')?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let values = folders.split('/').map(|folder| {
        // A URL's escapes, and then those of the folder's name.
        let name = decoded(folder);
        let (column, value) = name.split_once('=')?;
        Some((column.to_owned(), decoded(value)))
    });
    values.collect()
}

fn shown_values(values: &HashMap<String, String>) -> String {
    let mut shown: Vec<_> = values.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    shown.sort_unstable();
    match shown.is_empty() {
        true => "which are NULL".to_owned(),
        false => shown.join(", "),
    }
}

/// The session's runtime as the kernel's executor: requests to a store stay where its connections are.
struct SessionRuntime(Handle);

impl TaskExecutor for SessionRuntime {
    type Guard<'a> = EnterGuard<'a>;

    fn block_on<T>(&self, task: T) -> T::Output
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        self.0.block_on(task)
    }

    fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.spawn(task);
    }

    fn spawn_blocking<T, R>(&self, task: T) -> BoxFuture<'_, KernelResult<R>>
    where
        T: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let done = self.0.spawn_blocking(task);
        Box::pin(async move { done.await.map_err(KernelError::join_failure) })
    }

    fn enter(&self) -> EnterGuard<'_> {
        self.0.enter()
    }
}
