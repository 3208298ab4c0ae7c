//! A schema adapter for Arrow files, of both of Arrow's formats.
//!
//! DataFusion takes every Arrow file to have just the columns of its table, where it finds those of a Parquet file by their
//! names and casts them, and all files of a scan to have the same of the two formats, which a scan that is sent does not tell.
//! Here each file tells both before it is read. Reading is DataFusion's.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    ArrowSource, FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::object_store::ObjectStore;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapterFactory,
};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::{StreamExt, stream};
use volley_proto::plan::ArrowFile;

/// A source of Arrow files whose schemas are adapted to their table's: columns are found by name, and cast.
pub(super) struct AdaptedArrow {
    source: Arc<dyn FileSource>,
}

impl AdaptedArrow {
    /// The source, if it is one of Arrow files.
    pub(super) fn of(source: &Arc<dyn FileSource>) -> Option<Self> {
        let source = source.is::<ArrowSource>().then(|| Arc::clone(source))?;
        Some(Self { source })
    }
}

impl FileSource for AdaptedArrow {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        Ok(Arc::new(Opener {
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
        let source = self.source.with_batch_size(batch_size);
        Arc::new(Self { source })
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

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.source.apply_expressions(f)
    }
}

/// Opens Arrow files.
#[derive(Clone)]
struct Opener {
    source: Arc<dyn FileSource>,
    store: Arc<dyn ObjectStore>,
    scan: FileScanConfig,
    partition: usize,
}

impl FileOpener for Opener {
    fn open(&self, mut file: PartitionedFile) -> Result<FileOpenFuture> {
        let opener = self.clone();
        Ok(Box::pin(async move {
            let found = ArrowFile::in_store(opener.store.as_ref(), &file.object_meta).await?;
            if !found.has_footer {
                // There is nothing to find its batches by: who has its begin reads all.
                match file.range.take() {
                    Some(part) if part.start > 0 => return Ok(stream::empty().boxed()),
                    _ => {}
                }
            }
            let source = source_of(found, opener.source.as_ref())?;
            let Opener {
                store,
                scan,
                partition,
                ..
            } = opener;
            let files = source.create_file_opener(store, &scan, partition)?;
            files.open(file)?.await
        }))
    }
}

/// The source of a table's files, for one of them.
fn source_of(found: ArrowFile, of_table: &dyn FileSource) -> Result<Arc<dyn FileSource>> {
    let table = of_table.table_schema();
    let file = TableSchema::builder(found.schema)
        .with_table_partition_cols(table.table_partition_cols().clone())
        .build();
    let (due, there) = (table.table_schema(), file.table_schema());
    let adapter = DefaultPhysicalExprAdapterFactory.create(Arc::clone(due), Arc::clone(there))?;
    let projection = of_table
        .projection()
        .cloned()
        .map(|projection| projection.try_map_exprs(|expr| adapter.rewrite(expr)));
    let source: Arc<dyn FileSource> = match found.has_footer {
        true => Arc::new(ArrowSource::new_file_source(file)),
        false => Arc::new(ArrowSource::new_stream_file_source(file)),
    };
    let projected = match projection.transpose()? {
        Some(projection) => source.try_pushdown_projection(&projection)?,
        None => None,
    };
    Ok(projected.unwrap_or(source))
}
