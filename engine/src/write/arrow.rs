//! Writers of Arrow files that can be sent.
//!
//! DataFusion's own sink type is private, so it cannot be encoded. [`ArrowFile`] finds the columns of a file; reading
//! is DataFusion's. Files have Arrow's file format with LZ4-compressed batches, as DataFusion's have.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use datafusion::arrow::ipc::{CompressionType, MetadataVersion};
use datafusion::catalog::Session;
use datafusion::common::runtime::{JoinSet, SpawnedTask};
use datafusion::common::{GetExt, Statistics, not_impl_err};
use datafusion::datasource::file_format::arrow::{ArrowFormat, ArrowFormatFactory};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSink, FileSinkConfig, FileSource};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_expr::LexRequirement;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use datafusion_datasource::write::demux::DemuxedStreamReceiver;
use datafusion_datasource::write::{ObjectWriterBuilder, get_writer_schema};
use object_store::{ObjectMeta, ObjectStore};
use tokio::io::AsyncWriteExt;

use crate::ArrowFile;

/// Number of encoded bytes after which they are handed to the store.
const FLUSH_BYTES: usize = 1 << 20;

/// Factory of [`ArrowFiles`].
#[derive(Debug, Default)]
pub(crate) struct ArrowFilesFactory;

impl FileFormatFactory for ArrowFilesFactory {
    fn create(&self, _: &dyn Session, _: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        Ok(FileFormatFactory::default(self))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(ArrowFiles(ArrowFormat))
    }
}

impl GetExt for ArrowFilesFactory {
    fn get_ext(&self) -> String {
        ArrowFormatFactory::new().get_ext()
    }
}

/// Arrow's format with a writer that can be sent.
#[derive(Debug, Default)]
pub(crate) struct ArrowFiles(ArrowFormat);

#[async_trait]
impl FileFormat for ArrowFiles {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.0.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.0.compression_type()
    }

    async fn infer_schema(
        &self,
        _: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let mut schemas = Vec::with_capacity(objects.len());
        for object in objects {
            let file = ArrowFile::in_store(store.as_ref(), object).await?;
            schemas.push(Arc::unwrap_or_clone(file.schema));
        }
        Ok(Arc::new(Schema::try_merge(schemas)?))
    }

    async fn infer_stats(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.0.infer_stats(session, store, schema, object).await
    }

    async fn create_physical_plan(
        &self,
        _: &dyn Session,
        scan: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Each file says which of Arrow's two formats it has when it is read.
        Ok(DataSourceExec::from_data_source(scan))
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        _: &dyn Session,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if config.insert_op != InsertOp::Append {
            return not_impl_err!("{} into Arrow files", config.insert_op);
        }
        let sink = Arc::new(ArrowSink { config });
        Ok(Arc::new(DataSinkExec::new(input, sink, order)))
    }

    fn file_source(&self, schema: TableSchema) -> Arc<dyn FileSource> {
        self.0.file_source(schema)
    }
}

/// Sink that writes Arrow files.
#[derive(Debug)]
pub(crate) struct ArrowSink {
    config: FileSinkConfig,
}

impl ArrowSink {
    pub(crate) fn new(config: FileSinkConfig) -> Self {
        Self { config }
    }
}

impl DisplayAs for ArrowSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArrowSink")
    }
}

#[async_trait]
impl DataSink for ArrowSink {
    fn schema(&self) -> &SchemaRef {
        self.config.output_schema()
    }

    async fn write_all(
        &self,
        rows: SendableRecordBatchStream,
        context: &Arc<TaskContext>,
    ) -> Result<u64> {
        FileSink::write_all(self, rows, context).await
    }
}

#[async_trait]
impl FileSink for ArrowSink {
    fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    async fn spawn_writer_tasks_and_join(
        &self,
        context: &Arc<TaskContext>,
        split: SpawnedTask<Result<()>>,
        mut files: DemuxedStreamReceiver,
        store: Arc<dyn ObjectStore>,
    ) -> Result<u64> {
        let buffer_size = &context.session_config().options().execution;
        let buffer_size = buffer_size.objectstore_writer_buffer_size;
        let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5)?
            .try_with_compression(Some(CompressionType::LZ4_FRAME))?;
        let mut writers = JoinSet::new();
        while let Some((path, mut batches)) = files.recv().await {
            let plain = FileCompressionType::UNCOMPRESSED;
            let mut file = ObjectWriterBuilder::new(plain, &path, Arc::clone(&store))
                .with_buffer_size(Some(buffer_size))
                .build()?;
            let schema = get_writer_schema(&self.config);
            let mut writer =
                FileWriter::try_new_with_options(Vec::new(), &schema, options.clone())?;
            writers.spawn(async move {
                let mut rows = 0;
                while let Some(batch) = batches.recv().await {
                    rows += batch.num_rows() as u64;
                    writer.write(&batch)?;
                    if writer.get_ref().len() >= FLUSH_BYTES {
                        file.write_all(writer.get_ref()).await?;
                        writer.get_mut().clear();
                    }
                }
                file.write_all(&writer.into_inner()?).await?;
                file.shutdown().await?;
                Ok::<u64, DataFusionError>(rows)
            });
        }
        let mut rows = 0;
        while let Some(written) = writers.join_next().await {
            rows += written.map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))??;
        }
        split
            .join_unwind()
            .await
            .map_err(|e| DataFusionError::ExecutionJoin(Box::new(e)))??;
        Ok(rows)
    }
}
