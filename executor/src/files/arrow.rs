//! A schema adapter for Arrow files, of both of Arrow's formats.
//!
//! DataFusion takes every Arrow file to have just the columns of its table, where it finds those of a Parquet file by their
//! names and casts them, and all files of a scan to have the same of the two formats, which a scan that is sent does not tell.
//! Here each file tells both before it is read. Reading is DataFusion's.

use std::sync::Arc;

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    ArrowSource, FileOpenFuture, FileOpener, FileScanConfig, FileSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::object_store::ObjectStore;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapterFactory,
};
use futures::{StreamExt, stream};
use volley_engine::ArrowFile;

/// Opens Arrow files whose schemas are adapted to their table's: columns are found by name, and cast.
#[derive(Clone)]
pub(super) struct Opener {
    pub(super) source: Arc<dyn FileSource>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) scan: FileScanConfig,
    pub(super) partition: usize,
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

/// Returns the source of a table's files for one of them.
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
