//! What is written where, and what files are called until they count.

use std::fmt;
use std::sync::Arc;

use datafusion::datasource::file_format::csv::CsvSink;
use datafusion::datasource::file_format::json::JsonSink;
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileSink, FileSinkConfig};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalPlanNode;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::Error;

/// A folder that a statement writes.
#[derive(Debug, Clone)]
pub(in crate::plan) struct Target {
    /// DataFusion's writer, over no rows: it knows the folder, the format and its options.
    writer: Arc<dyn ExecutionPlan>,
    config: FileSinkConfig,
    /// The job's id.
    statement: String,
}

/// A target on the wire.
#[derive(Serialize, Deserialize)]
pub(in crate::plan) struct EncodedTarget {
    statement: String,
    /// What the user wrote, which DataFusion leaves out.
    url: String,
    /// A plan of DataFusion's, in protobuf.
    writer: Vec<u8>,
}

impl Target {
    /// Where the writer writes, if that is a folder of files.
    pub(super) fn of(writer: &DataSinkExec, statement: &str) -> Option<Self> {
        let config = config(writer.sink())?;
        let url = config.table_paths.first()?;
        // Partition columns make folders, whatever the name looks like.
        let single = config.table_partition_cols.is_empty()
            && config.file_output_mode.single_file_output(url);
        if single || config.insert_op != InsertOp::Append {
            return None;
        }
        let rows = Arc::new(EmptyExec::new(writer.input().schema()));
        let over_nothing = Arc::new(writer.clone()).replace_children(
            vec![rows],
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        );
        Some(Self {
            writer: over_nothing.ok()?,
            config: config.clone(),
            statement: statement.to_owned(),
        })
    }

    pub(in crate::plan) fn encode(
        &self,
        codec: &dyn PhysicalExtensionCodec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<EncodedTarget> {
        let writer = converter.execution_plan_to_proto(&self.writer, codec)?;
        Ok(EncodedTarget {
            statement: self.statement.clone(),
            url: self.config.original_url.clone(),
            writer: writer.encode_to_vec(),
        })
    }

    pub(in crate::plan) fn decode(
        encoded: &EncodedTarget,
        context: &TaskContext,
        codec: &dyn PhysicalExtensionCodec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Self> {
        let node = PhysicalPlanNode::decode(encoded.writer.as_slice())
            .map_err(|e| Error::malformed("writer of files", e))?;
        let context = PhysicalPlanDecodeContext::new(context, codec);
        let writer = converter.proto_to_execution_plan(&node, &context)?;
        let config = writer
            .downcast_ref::<DataSinkExec>()
            .and_then(|writer| config(writer.sink()))
            .ok_or_else(|| Error::malformed("writer of files", "it writes something else"))?;
        let config = FileSinkConfig {
            original_url: encoded.url.clone(),
            ..config.clone()
        };
        Ok(Self {
            config,
            writer: Arc::clone(&writer),
            statement: encoded.statement.clone(),
        })
    }

    pub(super) fn config(&self) -> &FileSinkConfig {
        &self.config
    }

    /// The folder.
    pub(super) fn url(&self) -> &ListingTableUrl {
        // Checked by `of`, and so are targets that come over the wire.
        &self.config.table_paths[0]
    }

    /// The extension of files that a task writes.
    pub(super) fn uncommitted(&self, task: &str) -> String {
        format!("{}{}{task}", self.config.file_extension, self.mark())
    }

    /// The name that a file is to have and the task that wrote it, where a file's name is one of this
    /// statement's that are not committed.
    pub(super) fn committed<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        name.rsplit_once(&self.mark())
    }

    /// What comes between the name of a file and the task that wrote it.
    fn mark(&self) -> String {
        format!(".volley-{}-", self.statement)
    }

    /// Something that writes files of this extension into the folder.
    pub(super) fn sink(&self, file_extension: String) -> Option<Arc<dyn DataSink>> {
        let config = FileSinkConfig {
            file_extension,
            ..self.config.clone()
        };
        let sink = self.writer.downcast_ref::<DataSinkExec>()?.sink();
        if let Some(parquet) = sink.downcast_ref::<ParquetSink>() {
            let options = parquet.parquet_options().clone();
            Some(Arc::new(ParquetSink::new(config, options)))
        } else if let Some(csv) = sink.downcast_ref::<CsvSink>() {
            Some(Arc::new(CsvSink::new(config, csv.writer_options().clone())))
        } else if let Some(json) = sink.downcast_ref::<JsonSink>() {
            let options = json.writer_options().clone();
            Some(Arc::new(JsonSink::new(config, options)))
        } else {
            None
        }
    }
}

/// The folder, as the user named it where that is known.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.config.original_url.as_str() {
            // An INSERT knows its table's folder only.
            "" => f.write_str(self.url().as_str()),
            url => f.write_str(url),
        }
    }
}

/// What DataFusion's writers of files know of their target.
fn config(sink: &dyn DataSink) -> Option<&FileSinkConfig> {
    None.or_else(|| sink.downcast_ref::<ParquetSink>().map(FileSink::config))
        .or_else(|| sink.downcast_ref::<CsvSink>().map(FileSink::config))
        .or_else(|| sink.downcast_ref::<JsonSink>().map(FileSink::config))
        .filter(|config| !config.table_paths.is_empty())
}
