//! The node that gives files their names once all are written.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{AsArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::exec_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::Target;
use crate::plan::train::only;

/// Files that are renamed or removed at once.
const AT_ONCE: usize = 16;

/// As DataFusion's writer counts.
static COUNT: LazyLock<SchemaRef> = LazyLock::new(|| {
    let count = Field::new("count", DataType::UInt64, false);
    Arc::new(Schema::new(vec![count]))
});

/// Renames the files of all tasks of its input to what they are to be called; a row with how many
/// rows they hold.
#[derive(Debug, Clone)]
pub struct CommitExec {
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

    /// The folder, as the user named it.
    pub fn folder(&self) -> String {
        self.target.to_string()
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

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(self.target.clone(), only(children)?)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let written = self.input.execute(partition, Arc::clone(&context))?;
        let target = self.target.clone();
        let commit = async move {
            let written = Written::gather(written).await?;
            let store = target.url().object_store();
            let store = context.runtime_env().object_store(store)?;
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

    /// Renames the files, once all are found; removes those of tasks that count for nothing.
    async fn commit(&self, target: &Target, store: &dyn ObjectStore) -> Result<()> {
        let (mut found, mut renames, mut leftovers) = (HashMap::new(), Vec::new(), Vec::new());
        let mut files = store.list(Some(target.url().prefix()));
        while let Some(file) = files.try_next().await? {
            let from = file.location;
            let Some((name, task)) = from.filename().and_then(|name| target.committed(name)) else {
                continue;
            };
            if self.files.contains_key(task) {
                *found.entry(task.to_owned()).or_default() += 1;
                renames.push((from.clone(), sibling(&from, name)));
            } else {
                leftovers.push(from);
            }
        }
        let missing = |(task, files): (&String, &u64)| {
            *files - found.get(task).copied().unwrap_or(0).min(*files)
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
        let renames = futures::stream::iter(renames).map(rename);
        let renamed = renames.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>();
        renamed.await.map_err(DataFusionError::from)?;
        let remove = |leftover: Path| async move {
            if let Err(error) = store.delete(&leftover).await {
                tracing::warn!(%leftover, %error, "an uncommitted file stays");
            }
        };
        let leftovers = futures::stream::iter(leftovers);
        leftovers.for_each_concurrent(AT_ONCE, remove).await;
        Ok(())
    }
}

/// A file of another name in the same folder.
fn sibling(file: &Path, name: &str) -> Path {
    let mut parts: Vec<_> = file.parts().collect();
    parts.pop();
    Path::from_iter(parts).join(name)
}
