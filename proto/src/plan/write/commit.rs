//! The node that puts files where they belong once all are written.

use std::collections::HashMap;
use std::fmt;
use std::io::ErrorKind;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{AsArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::exec_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use url::Url;

use super::Target;
use super::exec::write_no_rows;
use super::target::is_committed;
use crate::plan::train::only;

/// Files that are moved or removed at once.
const AT_ONCE: usize = 16;

/// As DataFusion's writer counts.
static COUNT: LazyLock<SchemaRef> = LazyLock::new(|| {
    let count = Field::new("count", DataType::UInt64, false);
    Arc::new(Schema::new(vec![count]))
});

/// Moves the files of all tasks of its input to where they belong; a row with how many rows they hold.
#[derive(Debug, Clone)]
pub(in crate::plan) struct CommitExec {
    target: Target,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl CommitExec {
    pub(in crate::plan) fn new(target: Target, input: Arc<dyn ExecutionPlan>) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&COUNT)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        Self {
            target,
            input,
            properties,
        }
    }

    pub(in crate::plan) fn target(&self) -> &Target {
        &self.target
    }
}

impl DisplayAs for CommitExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitExec: {}", self.target)
    }
}

impl ExecutionPlan for CommitExec {
    fn name(&self) -> &str {
        "CommitExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(self.target.clone(), only(children)?)))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let written = self.input.execute(partition, Arc::clone(&context))?;
        let target = self.target.clone();
        let commit = async move {
            let mut written = Written::gather(written).await?;
            let store = target.folder().object_store();
            let store = context.runtime_env().object_store(store)?;
            if written.files.values().sum::<u64>() == 0
                && !has_files(&target, store.as_ref()).await?
            {
                let (task, files) = write_no_rows(&target, &context).await?;
                written.files.insert(task, files);
            }
            written.commit(&target, store.as_ref()).await?;
            let count = Arc::new(UInt64Array::from(vec![written.rows]));
            Ok(RecordBatch::try_new(Arc::clone(&COUNT), vec![count])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            futures::stream::once(commit),
        )))
    }
}

/// What the tasks have written.
#[derive(Default)]
struct Written {
    rows: u64,
    /// By task.
    files: HashMap<String, u64>,
}

impl Written {
    async fn gather(mut batches: SendableRecordBatchStream) -> Result<Self> {
        let mut written = Self::default();
        while let Some(batch) = batches.try_next().await? {
            let tasks = batch.column(0).as_string::<i32>().iter().flatten();
            let rows = batch.column(1).as_primitive::<UInt64Type>().values();
            let files = batch.column(2).as_primitive::<UInt64Type>().values();
            written.rows += rows.iter().sum::<u64>();
            let files = tasks.map(str::to_owned).zip(files.iter().copied());
            written.files.extend(files);
        }
        Ok(written)
    }

    /// Moves the files, once all are found, and removes the rest of what the job wrote.
    async fn commit(&self, target: &Target, store: &dyn ObjectStore) -> Result<()> {
        let staging = target.staging()?;
        let (mut found, mut moves, mut leftovers) = (HashMap::new(), Vec::new(), Vec::new());
        let mut files = store.list(Some(staging.prefix()));
        while let Some(file) = files.try_next().await? {
            match target.committed(&staging, &file.location) {
                Some((task, to)) if self.files.contains_key(&task) => {
                    *found.entry(task).or_default() += 1;
                    moves.push((file.location, to));
                }
                _ => leftovers.push(file.location),
            }
        }
        let missing = |(task, files): (&String, &u64)| {
            files.saturating_sub(found.get(task).copied().unwrap_or(0))
        };
        let missing: u64 = self.files.iter().map(missing).sum();
        if missing > 0 {
            return exec_err!(
                "{missing} of {} files that executors wrote into {target} are not there for the one \
                 that commits them: the folder must be the same one on all hosts",
                self.files.values().sum::<u64>()
            );
        }
        let rename = |(from, to): (Path, Path)| async move { store.rename(&from, &to).await };
        let moves = futures::stream::iter(moves).map(rename);
        let moved = moves.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>();
        moved.await.map_err(DataFusionError::from)?;
        let remove = |leftover: Path| async move {
            if let Err(error) = store.delete(&leftover).await {
                tracing::warn!(%leftover, %error, "an uncommitted file stays");
            }
        };
        let leftovers = futures::stream::iter(leftovers);
        leftovers.for_each_concurrent(AT_ONCE, remove).await;
        remove_folder(&staging).await;
        Ok(())
    }
}

/// Whether the folder has files that count.
async fn has_files(target: &Target, store: &dyn ObjectStore) -> Result<bool> {
    let mut files = store.list(Some(target.folder().prefix()));
    while let Some(file) = files.try_next().await? {
        if is_committed(&file.location) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes a folder where there are such things: object stores have names only.
async fn remove_folder(folder: &ListingTableUrl) {
    let path = Url::parse(folder.as_str()).map(|url| url.to_file_path());
    let Ok(Ok(path)) = path else {
        return;
    };
    match tokio::fs::remove_dir_all(&path).await {
        // No task had any rows.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "an empty folder stays"),
        Ok(()) => {}
    }
}
