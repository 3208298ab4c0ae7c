//! The operator that moves files to their final paths once all are written.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{AsArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties,
};
use futures::future::ready;
use futures::{Stream, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;

use super::Target;
use super::exec::write_no_rows;
use super::moves::{Moves, Staging};
use super::target::is_committed;
use super::uploads::Uploads;
use crate::operator;

/// Schema of the result, as DataFusion's writer has it.
static COUNT: LazyLock<SchemaRef> = LazyLock::new(|| {
    let count = Field::new("count", DataType::UInt64, false);
    Arc::new(Schema::new(vec![count]))
});

/// Operator that moves the files of all tasks of its input to their final paths, and returns one row with their number
/// of rows.
#[derive(Debug, Clone)]
pub(crate) struct CommitExec {
    target: Target,
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl CommitExec {
    pub(crate) fn new(target: Target, input: Arc<dyn ExecutionPlan>) -> Self {
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

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }
}

impl DisplayAs for CommitExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitExec: {}", self.target)
    }
}

impl ExecutionPlan for CommitExec {
    operator!("CommitExec", input, |commit, input| {
        Ok(Self::new(commit.target.clone(), input))
    });

    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
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
                && files(&target, store.as_ref(), is_committed)
                    .try_next()
                    .await?
                    .is_none()
            {
                let (task, files) = write_no_rows(&target, &context).await?;
                written.files.insert(task, files);
            }
            let rows = match target.is_remote() {
                true => {
                    let uploads = Uploads::of(&target, &context)?;
                    written.complete(&target, &uploads).await?
                }
                false => written.commit(&target, store.as_ref()).await?,
            };
            let count = Arc::new(UInt64Array::from(vec![rows]));
            Ok(RecordBatch::try_new(Arc::clone(&COUNT), vec![count])?)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            futures::stream::once(commit),
        )))
    }
}

/// Output of the tasks.
#[derive(Default)]
struct Written {
    rows: u64,
    /// Number of files of each task.
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

    /// Moves the files, once all are found, and removes the rest of the job's output. Returns the number of rows in
    /// place: that of an earlier attempt's record if there is one; once that is gone too, its own count.
    async fn commit(&self, target: &Target, store: &dyn ObjectStore) -> Result<u64> {
        let staging = Staging::of(target)?;
        let tasks = staging.tasks().await?;
        let (found, missing) = self.find(target, store).await?;
        let written = self.files.values().sum::<u64>();
        let decided = match staging.decided().await? {
            None if missing == 0 && !found.files.is_empty() => staging.decide(found).await?,
            decided => decided,
        };
        if let Some(moves) = &decided
            && !moves.are_of(target)?
        {
            return exec_err!(
                "the record of files that executors wrote into {target} names other files: another program \
                 has written it"
            );
        }
        // Listed last: a committer with another record has moved its files by now.
        let in_place = files(target, store, |file| target.is_of_job(file));
        let in_place: Vec<_> = in_place.try_collect().await?;
        let rows = match decided {
            Some(moves) if !moves.are_late(&in_place) => {
                moves.carry_out(store).await?;
                moves.rows
            }
            None if written > 0 && in_place.is_empty() => {
                return missing_files(target, missing, written);
            }
            _ => self.rows,
        };
        staging.clear(tasks).await?;
        Ok(rows)
    }

    /// Completes the uploads, once all are found, as [`commit`](Self::commit) moves files.
    async fn complete(&self, target: &Target, uploads: &Uploads) -> Result<u64> {
        let records = uploads.records().await?;
        let (found, missing) = uploads.find(&records, self.rows, &self.files).await?;
        let written = self.files.values().sum::<u64>();
        let decided = match uploads.decided().await? {
            None if missing == 0 && !found.is_empty() => uploads.decide(found).await?,
            decided => decided,
        };
        // Listed last, as above.
        let in_place = files(target, uploads.store(), |file| target.is_of_job(file));
        let in_place: Vec<_> = in_place.try_collect().await?;
        let mut kept: HashSet<_> = in_place.iter().map(Path::to_string).collect();
        let is_carried_out = match &decided {
            Some(commit) => uploads.carry_out(commit, &in_place).await?,
            None => false,
        };
        let rows = match decided {
            Some(commit) if is_carried_out => {
                kept.extend(commit.files());
                commit.rows()
            }
            None if written > 0 && in_place.is_empty() => {
                return missing_files(target, missing, written);
            }
            _ => self.rows,
        };
        uploads.clear(records, &kept).await;
        Ok(rows)
    }

    /// Finds the tasks' files that are to be moved, and counts the missing ones.
    async fn find(&self, target: &Target, store: &dyn ObjectStore) -> Result<(Moves, u64)> {
        let staging = target.staging()?;
        let mut found = HashMap::<String, u64>::new();
        let mut moves = Moves {
            rows: self.rows,
            ..Moves::default()
        };
        let mut files = store.list(Some(staging.prefix()));
        while let Some(file) = files.try_next().await? {
            if let Some((task, to)) = target.committed(&staging, &file.location)
                && self.files.contains_key(&task)
            {
                *found.entry(task).or_default() += 1;
                let paths = (file.location.to_string(), to.to_string());
                moves.files.push(paths);
            }
        }
        let missing = |(task, files): (&String, &u64)| {
            files.saturating_sub(found.get(task).copied().unwrap_or(0))
        };
        let missing = self.files.iter().map(missing).sum();
        Ok((moves, missing))
    }
}

/// Fails because files that tasks have written are gone: all of them, if none is missing any more but their folder is
/// gone.
fn missing_files(target: &Target, missing: u64, written: u64) -> Result<u64> {
    let missing = if missing > 0 { missing } else { written };
    exec_err!(
        "{missing} of {written} files that executors wrote into {target} are invisible to the process that \
         commits them: all hosts must see the same folder"
    )
}

/// Lists the files in the folder, at any depth, whose paths match.
fn files<'a>(
    target: &Target,
    store: &'a dyn ObjectStore,
    are: impl Fn(&Path) -> bool + Send + 'a,
) -> impl Stream<Item = object_store::Result<Path>> + Send + Unpin + 'a {
    let files = store.list(Some(target.folder().prefix()));
    files.try_filter_map(move |file| ready(Ok(Some(file.location).filter(|path| are(path)))))
}
