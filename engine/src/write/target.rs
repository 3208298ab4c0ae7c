//! The target of a write, and the location of files until they are committed.

use std::fmt;
use std::sync::Arc;

use datafusion::common::plan_err;
use datafusion::datasource::file_format::csv::CsvSink;
use datafusion::datasource::file_format::json::JsonSink;
use datafusion::datasource::file_format::parquet::ParquetSink;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileSink, FileSinkConfig};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalPlanNode;
use object_store::path::Path;
use prost::Message;
use serde::{Deserialize, Serialize};
use url::Url;

use super::ArrowSink;
use super::exact::exact_sink;
use crate::error::{External, Malformed};
use crate::object_stores::shown;
use volley_proto::object_stores::is_remote;
use volley_proto::{Error, nesting};

/// Suffix of uncommitted files, for readers that look into every folder.
const UNCOMMITTED: &str = ".uncommitted";

/// Folder that a job writes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// A [`ParquetSink`], [`CsvSink`], [`JsonSink`] or [`ArrowSink`], which has the format and its options.
    sink: Arc<dyn FileSink>,
    job: String,
}

/// Target on the wire.
#[derive(Serialize, Deserialize)]
pub(crate) struct EncodedTarget {
    job: String,
    /// URL as the user wrote it, which DataFusion leaves out.
    url: String,
    /// DataFusion plan that writes no rows, in protobuf.
    writer: Vec<u8>,
}

impl Target {
    /// Returns the target of a writer, if that is a folder of files.
    pub(super) fn of(writer: &DataSinkExec, job: &str) -> Option<Self> {
        let config = config(writer.sink())?;
        if is_single(config) || config.insert_op != InsertOp::Append {
            return None;
        }
        // An append ignores existing files.
        let config = FileSinkConfig {
            file_group: FileGroup::default(),
            ..config.clone()
        };
        Some(Self {
            sink: sink_like(writer.sink(), config)?,
            job: job.to_owned(),
        })
    }

    pub(crate) fn encode(
        &self,
        codec: &dyn PhysicalExtensionCodec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<EncodedTarget> {
        let nothing = Arc::new(EmptyExec::new(Arc::clone(self.sink.schema())));
        let sink: Arc<dyn DataSink> = Arc::clone(&self.sink) as _;
        let writer = DataSinkExec::new(nothing, sink, None);
        let writer: Arc<dyn ExecutionPlan> = Arc::new(writer);
        let writer = converter.execution_plan_to_proto(&writer, codec)?;
        Ok(EncodedTarget {
            job: self.job.clone(),
            url: self.sink.config().original_url.clone(),
            writer: writer.encode_to_vec(),
        })
    }

    pub(crate) fn decode(
        encoded: &EncodedTarget,
        context: &TaskContext,
        codec: &dyn PhysicalExtensionCodec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Self> {
        let node: PhysicalPlanNode =
            nesting::decode(&encoded.writer).malformed("writer of files")?;
        let context = PhysicalPlanDecodeContext::new(context, codec);
        let writer = converter.proto_to_execution_plan(&node, &context)?;
        let writer = writer.downcast_ref::<DataSinkExec>();
        let target = writer.and_then(|writer| Self::of(writer, &encoded.job));
        let sink = target.and_then(|target| {
            let config = FileSinkConfig {
                original_url: encoded.url.clone(),
                ..target.sink.config().clone()
            };
            sink_like(target.sink.as_ref(), config)
        });
        let sink = sink
            .ok_or_else(|| Error::malformed("writer of files", "it writes no folder"))
            .external()?;
        Ok(Self {
            sink,
            job: encoded.job.clone(),
        })
    }

    /// Returns the extension of the files, such as `csv.gz`.
    pub(super) fn format(&self) -> &str {
        &self.sink.config().file_extension
    }

    /// Returns the folder.
    pub(crate) fn folder(&self) -> &ListingTableUrl {
        // `config` has checked that there is one.
        &self.sink.config().table_paths[0]
    }

    /// Checks whether the folder is in an object store, which has no folders, and cannot move files.
    pub(super) fn is_remote(&self) -> bool {
        is_remote(self.folder().get_url())
    }

    /// Returns the folder's URL.
    pub(crate) fn place(&self) -> Url {
        self.folder().get_url().clone()
    }

    /// Returns the folder of the job's uncommitted files, inside [`folder`](Self::folder).
    pub(super) fn staging(&self) -> Result<ListingTableUrl> {
        inside(self.folder(), &format!(".volley-{}", self.job))
    }

    /// Returns the folder of a task's uncommitted files, inside [`staging`](Self::staging).
    pub(super) fn of_task(&self, task: &str) -> Result<ListingTableUrl> {
        inside(&self.staging()?, task)
    }

    /// Creates a sink for a task's files.
    pub(super) fn sink(&self, task: &str) -> Result<Option<Arc<dyn FileSink>>> {
        let config = FileSinkConfig {
            table_paths: vec![self.of_task(task)?],
            file_extension: format!("{}{UNCOMMITTED}", self.format()),
            ..self.sink.config().clone()
        };
        Ok(sink_like(self.sink.as_ref(), config).map(exact_sink))
    }

    /// Returns the task that wrote a file, and the file's final path, whose name starts with the job's.
    pub(super) fn committed(
        &self,
        staging: &ListingTableUrl,
        file: &Path,
    ) -> Option<(String, Path)> {
        let mut parts = file.prefix_match(staging.prefix())?;
        let task = parts.next()?.as_ref().to_owned();
        let mut parts: Vec<_> = parts.collect();
        let name = parts.pop()?;
        let name = name.as_ref().strip_suffix(UNCOMMITTED)?;
        let folder: Path = self.folder().prefix().parts().chain(parts).collect();
        let belongs = format!("{folder}/{}-{name}", self.job);
        Some((task, Path::parse(belongs).ok()?))
    }

    /// Checks whether a file is one that the job has committed.
    pub(super) fn is_of_job(&self, file: &Path) -> bool {
        let name = file.filename().filter(|_| is_committed(file));
        let rest = name.and_then(|name| name.strip_prefix(self.job.as_str()));
        rest.is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Shows the folder, as the user named it where that is known.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&named(self.sink.config()))
    }
}

/// Checks by its name whether a file is committed.
pub(super) fn is_committed(file: &Path) -> bool {
    !file.as_ref().ends_with(UNCOMMITTED)
}

/// Returns the URL of a folder inside a folder.
fn inside(folder: &ListingTableUrl, name: &str) -> Result<ListingTableUrl> {
    let mut url = folder.get_url().clone();
    // Neither is a part of the path that files are written to.
    url.set_query(None);
    url.set_fragment(None);
    match url.path_segments_mut() {
        Ok(mut parts) => drop(parts.pop_if_empty().push(name).push("")),
        Err(()) => return plan_err!("{folder} is not a folder"),
    }
    ListingTableUrl::try_new(url, None)
}

/// Creates a sink with the same format and options for another configuration.
pub(super) fn sink_like(sink: &dyn DataSink, config: FileSinkConfig) -> Option<Arc<dyn FileSink>> {
    if let Some(parquet) = sink.downcast_ref::<ParquetSink>() {
        let options = parquet.parquet_options().clone();
        Some(Arc::new(ParquetSink::new(config, options)))
    } else if let Some(csv) = sink.downcast_ref::<CsvSink>() {
        Some(Arc::new(CsvSink::new(config, csv.writer_options().clone())))
    } else if let Some(json) = sink.downcast_ref::<JsonSink>() {
        let options = json.writer_options().clone();
        Some(Arc::new(JsonSink::new(config, options)))
    } else if sink.is::<ArrowSink>() {
        Some(Arc::new(ArrowSink::new(config)))
    } else {
        None
    }
}

/// Returns the configuration of a sink that writes files.
pub(super) fn config(sink: &dyn DataSink) -> Option<&FileSinkConfig> {
    None.or_else(|| sink.downcast_ref::<ParquetSink>().map(FileSink::config))
        .or_else(|| sink.downcast_ref::<CsvSink>().map(FileSink::config))
        .or_else(|| sink.downcast_ref::<JsonSink>().map(FileSink::config))
        .or_else(|| sink.downcast_ref::<ArrowSink>().map(FileSink::config))
        .filter(|config| !config.table_paths.is_empty())
}

/// Returns the location that a sink of files writes to.
pub(crate) fn folder_of_sink(sink: &dyn DataSink) -> Option<&ListingTableUrl> {
    config(sink).map(|config| &config.table_paths[0])
}

/// Checks whether a single file is written. Partition columns make folders, whatever the name looks like.
pub(super) fn is_single(config: &FileSinkConfig) -> bool {
    let url = &config.table_paths[0];
    config.table_partition_cols.is_empty() && config.file_output_mode.single_file_output(url)
}

/// Returns the target as the user named it; an INSERT knows only its table's folder.
pub(super) fn named(config: &FileSinkConfig) -> String {
    match config.original_url.as_str() {
        "" => shown(config.table_paths[0].as_str()),
        url => shown(url),
    }
}
