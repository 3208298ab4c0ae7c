//! Sources of files that name the file in their errors.
//!
//! Schemas of [Arrow files](arrow) are adapted to the schema of their table. In [CSV files](csv), an unclosed quote is an
//! error, and each part begins and ends with a record. Values of [JSON files](json) are checked against the types of their
//! columns.
//!
//! A reader of CSV, JSON or Parquet says what is wrong and where in the file, not in which. Before a
//! stage's plan runs here, each of its scans gets a source of files that adds it; nothing else of it
//! changes, and it is never encoded again.

mod arrow;
mod csv;
mod json;

use std::fmt;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{exec_datafusion_err, internal_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    ArrowSource, CsvSource, FileOpener, FileScanConfig, FileScanConfigBuilder, FileSource,
    JsonSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::{
    GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::filter_pushdown::FilterPushdownPropagation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use volley_engine::{decompressed, file_name};

/// Bytes of a local file that one read returns.
const PIECE: usize = 256 << 10;

/// Reads bytes of a file, decompressed; all of them if no range is given.
async fn bytes_of(
    store: &dyn ObjectStore,
    file: &ObjectMeta,
    range: Option<GetRange>,
    compression: FileCompressionType,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let options = GetOptions {
        range,
        ..GetOptions::default()
    };
    let read = store.get_opts(&file.location, options).await?;
    Ok(decompressed(pieces(read)?, compression))
}

/// Returns the bytes of a response in pieces.
fn pieces(read: GetResult) -> Result<BoxStream<'static, Result<Bytes>>> {
    let GetResultPayload::File(mut file, _) = read.payload else {
        return Ok(read.into_stream().map_err(DataFusionError::from).boxed());
    };
    // The store's own stream of a local file has a task on another thread for each 8 KiB.
    file.seek(SeekFrom::Start(read.range.start))?;
    let mut left = file.take(read.range.end - read.range.start);
    let pieces = std::iter::from_fn(move || {
        let mut piece = vec![0; PIECE.min(left.limit() as usize)];
        let mut filled = 0;
        while filled < piece.len() {
            match left.read(&mut piece[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) => return Some(Err(error.into())),
            }
        }
        piece.truncate(filled);
        (filled > 0).then(|| Ok(Bytes::from(piece)))
    });
    Ok(stream::iter(pieces).boxed())
}

/// Equips a scan of files with errors that name the file, adapted schemas and parts of whole records; `None` for other
/// operators.
pub(crate) fn equipped_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let exec = plan.downcast_ref::<DataSourceExec>()?;
    let scan = exec.data_source().downcast_ref::<FileScanConfig>()?;
    let root = scan.object_store_url.as_str().into();
    let source = Arc::new(Named::new(Arc::clone(scan.file_source()), root));
    let scan = FileScanConfigBuilder::from(scan.clone()).with_source(source);
    let scan = exec.clone().with_data_source(Arc::new(scan.build()));
    Some(Arc::new(scan))
}

/// A source of files that DataFusion does not open rightly: an opener of ours does. It is asked for nothing else.
struct Opened {
    source: Arc<dyn FileSource>,
    batch_size: Option<usize>,
}

impl Opened {
    fn of(source: Arc<dyn FileSource>) -> Arc<dyn FileSource> {
        match source.is::<CsvSource>() || source.is::<JsonSource>() || source.is::<ArrowSource>() {
            true => Arc::new(Self {
                source,
                batch_size: None,
            }),
            false => source,
        }
    }
}

impl FileSource for Opened {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let size = || match self.batch_size {
            Some(size) => Ok(size),
            None => internal_err!("{} files without a size of batches", self.file_type()),
        };
        if let Some(csv) = self.source.downcast_ref::<CsvSource>() {
            return csv::opener(csv, size()?, store, scan);
        }
        if let Some(json) = self.source.downcast_ref::<JsonSource>() {
            return json::opener(json, size()?, store, scan);
        }
        Ok(Arc::new(arrow::Opener {
            source: Arc::clone(&self.source),
            store,
            scan: scan.clone(),
            partition,
        }))
    }

    fn table_schema(&self) -> &TableSchema {
        self.source.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self {
            source: self.source.with_batch_size(batch_size),
            batch_size: Some(batch_size),
        })
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.source.metrics()
    }

    fn file_type(&self) -> &str {
        self.source.file_type()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.source.apply_expressions(f)
    }
}

/// A source of files whose errors name the file.
struct Named {
    source: Arc<dyn FileSource>,
    /// The source that opens the files.
    opened: Arc<dyn FileSource>,
    /// Prefix of the files' paths.
    root: Arc<str>,
}

impl Named {
    fn new(source: Arc<dyn FileSource>, root: Arc<str>) -> Self {
        Self {
            opened: Opened::of(Arc::clone(&source)),
            source,
            root,
        }
    }
}

impl FileSource for Named {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        self.opened.create_file_opener(store, scan, partition)
    }

    fn create_morselizer(
        &self,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Box<dyn Morselizer>> {
        let files = self.opened.create_morselizer(store, scan, partition)?;
        let root = Arc::clone(&self.root);
        Ok(Box::new(NamedFiles { files, root }))
    }

    fn table_schema(&self) -> &TableSchema {
        self.source.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        Arc::new(Self {
            source: self.source.with_batch_size(batch_size),
            opened: self.opened.with_batch_size(batch_size),
            root: Arc::clone(&self.root),
        })
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.source.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.source.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.source.metrics()
    }

    fn file_type(&self) -> &str {
        self.source.file_type()
    }

    fn fmt_extra(&self, kind: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt_extra(kind, f)
    }

    fn supports_repartitioning(&self) -> bool {
        self.source.supports_repartitioning()
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let mut pushed = self.source.try_pushdown_filters(filters, config)?;
        let named = |source| Arc::new(Self::new(source, Arc::clone(&self.root))) as _;
        pushed.updated_node = pushed.updated_node.map(named);
        Ok(pushed)
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        self.source.reorder_files(files)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.source.apply_expressions(f)
    }
}

#[derive(Debug)]
struct NamedFiles {
    files: Box<dyn Morselizer>,
    root: Arc<str>,
}

impl Morselizer for NamedFiles {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        let name = Name(file_name(&self.root, file.object_meta.location.as_ref()).into());
        let file = self.files.plan_file(file);
        let part = file.map_err(|error| name.of(error))?;
        Ok(Box::new(Part { part, name }))
    }
}

/// A file's name, and errors with it.
#[derive(Debug, Clone)]
struct Name(Arc<str>);

/// Error of a value in a CSV file that is not of its column's type.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {value:?} in column {column:?} is not of type {data_type}")]
struct MistypedValue {
    /// Line of the file, from 1.
    line: u64,
    value: String,
    column: String,
    data_type: String,
    /// Delimiter of the file, unless it is a comma.
    delimiter: Option<char>,
}

impl MistypedValue {
    /// Names the file, and says how to give the column another type.
    fn of_file(&self, file: &str) -> DataFusionError {
        let Self {
            line,
            value,
            column,
            data_type,
            delimiter,
        } = self;
        let delimiter = delimiter.map(|delimiter| match delimiter {
            '\t' => ", 'format.delimiter' '\\t'".to_owned(),
            delimiter => format!(", 'format.delimiter' '{delimiter}'"),
        });
        let delimiter = delimiter.unwrap_or_default();
        exec_datafusion_err!(
            "{file}, line {line}: {value:?} in column {column:?} is not of its type, {data_type}. If that was inferred \
             from the file's first rows, declare the types of the columns, CREATE EXTERNAL TABLE t (column type, …), or \
             infer them from more rows: CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{file}' OPTIONS \
             ('format.schema_infer_max_rec' '2000000'{delimiter})"
        )
    }
}

impl Name {
    fn of(&self, error: DataFusionError) -> DataFusionError {
        let file = self.0.to_string();
        let root = error.find_root();
        if let DataFusionError::External(error) = root
            && let Some(mistyped) = error.downcast_ref::<MistypedValue>()
        {
            return mistyped.of_file(&file);
        }
        // Scans compute filters and columns of the query, whose errors are not the file's.
        if let DataFusionError::ArrowError(error, _) = root
            && let Some(reason) = computed(error)
        {
            return exec_datafusion_err!("{reason} (in rows of {file})");
        }
        let source = match root {
            DataFusionError::Execution(reason) => reason.clone().into(),
            _ => error.into(),
        };
        volley_engine::error::external(volley_proto::Error::Unreadable { file, source })
    }
}

/// Returns the text of an error that is about a computation with values and not about bytes of a file.
fn computed(error: &ArrowError) -> Option<String> {
    match error {
        ArrowError::CastError(reason)
        | ArrowError::ComputeError(reason)
        | ArrowError::ArithmeticOverflow(reason) => Some(reason.clone()),
        ArrowError::DivideByZero => Some("division by zero".to_owned()),
        _ => None,
    }
}

/// A part of a file, which is planned or read.
#[derive(Debug)]
struct Part<T: ?Sized> {
    name: Name,
    part: Box<T>,
}

impl MorselPlanner for Part<dyn MorselPlanner> {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        let Self { part, name } = *self;
        let planned = part.plan().map_err(|error| name.of(error))?;
        let Some(mut plan) = planned else {
            return Ok(None);
        };
        let named = |part: Box<dyn MorselPlanner>, name: &Name| -> Box<dyn MorselPlanner> {
            let name = name.clone();
            Box::new(Part { name, part })
        };
        let morsels = plan.take_morsels().into_iter().map(|part| {
            let name = name.clone();
            Box::new(Part { name, part }) as Box<dyn Morsel>
        });
        let morsels: Vec<_> = morsels.collect();
        let planners = plan.take_ready_planners().into_iter();
        let planners: Vec<_> = planners.map(|part| named(part, &name)).collect();
        let pending = plan.take_pending_planner();
        let mut plan = plan.with_morsels(morsels).with_planners(planners);
        if let Some(pending) = pending {
            plan.set_pending_planner(async move {
                match pending.await {
                    Ok(part) => Ok(named(part, &name)),
                    Err(error) => Err(name.of(error)),
                }
            });
        }
        Ok(Some(plan))
    }
}

impl Morsel for Part<dyn Morsel> {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        let Self { part, name } = *self;
        let rows = part.into_stream();
        rows.map(move |rows| rows.map_err(|error| name.of(error)))
            .boxed()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::tree_node::{Transformed, TreeNode};
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;
    use volley_engine::task::filter;

    use super::*;

    #[tokio::test]
    async fn dynamic_filters_reach_scans_that_name_their_files() {
        let dir = tempfile::tempdir().unwrap();
        let session = SessionContext::new();
        let at = dir.path().display();
        for statement in [
            "SET datafusion.optimizer.enable_dynamic_filter_pushdown = false".to_owned(),
            format!("COPY (SELECT value AS id FROM range(100)) TO '{at}/t.parquet'"),
            format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{at}/t.parquet'"),
        ] {
            let done = session.sql(&statement).await.unwrap();
            done.collect().await.unwrap();
        }
        let query = "SELECT t.id FROM (VALUES (5), (6)) v (id) JOIN t ON t.id = v.id";
        let plan = session.sql(query).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let equip = |node| {
            Ok(match equipped_scan(&node) {
                Some(equipped) => Transformed::yes(equipped),
                None => Transformed::no(node),
            })
        };
        let plan = plan.transform_up(equip).unwrap().data;
        let plan = filter(plan, &ConfigOptions::new()).unwrap();
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        assert!(shown.contains("DynamicFilter"), "{shown}");
    }
}
