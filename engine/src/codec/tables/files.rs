//! A table of files: DataFusion's listing table, which says where they are and how they are read, and which of the files
//! that it lists belong to it. Its [scan](super::scan) is ours.
//!
//! DataFusion's wire form of a listing table loses the pattern of its location, and the compression and
//! the metadata of its format; a table goes to the scheduler as this one instead. Its keys do not: nobody checks
//! whether files keep to a `PRIMARY KEY`, so nothing is concluded from one.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::{ScanArgs, ScanResult, Session, TableProvider};
use datafusion::common::{not_impl_err, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::physical_plan::{FileGroup, FileOutputMode, FileSinkConfig};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::cache::cache_manager::TableScopedPath;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, SortExpr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_sorts;
use datafusion_proto::logical_plan::to_proto::serialize_sorts;
use datafusion_proto::protobuf;
use object_store::ObjectMeta;
use prost::Message;
use serde::{Deserialize, Serialize};
use url::Url;

use super::format::EncodedFormat;
use super::typed::typed_as;
use crate::error::external;
use crate::object_stores::shown;
use volley_proto::{Error, nesting};

/// A table of files.
#[derive(Debug)]
pub struct Files {
    pub(super) listing: ListingTable,
    /// The files that belong to it, by their paths in the object store; all that are listed otherwise.
    only: Option<HashSet<String>>,
    /// The columns of the files, and the partition columns last.
    pub(super) schema: SchemaRef,
}

impl Files {
    /// Creates a table of the files that a listing table lists, or only of some of them, by their URLs. A partition
    /// column may be NULL.
    ///
    /// # Errors
    /// When a URL is not that of a file.
    pub fn try_new(listing: ListingTable, only: Option<&[Url]>) -> Result<Self> {
        let path = |url: &Url| {
            let url = ListingTableUrl::try_new(url.clone(), None)?;
            Ok(url.prefix().to_string())
        };
        let only = only
            .map(|files| files.iter().map(path).collect::<Result<_>>())
            .transpose()?;
        let schema = listing.schema();
        let of_files = schema.fields().len() - listing.options().table_partition_cols.len();
        let columns = schema.fields().iter().enumerate();
        let fields: Vec<_> = columns
            .map(|(at, field)| match at < of_files {
                true => Arc::clone(field),
                false => Arc::new(field.as_ref().clone().with_nullable(true)),
            })
            .collect();
        let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
        Ok(Self {
            listing,
            only,
            schema: Arc::new(schema),
        })
    }

    /// Creates a table with the schema of its listing.
    pub(super) fn of_plan(listing: ListingTable) -> Self {
        Self {
            schema: listing.schema(),
            listing,
            only: None,
        }
    }

    /// Returns the listing table.
    pub fn listing(&self) -> &ListingTable {
        &self.listing
    }

    pub(super) fn belongs(&self, file: &ObjectMeta) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| only.contains(file.location.as_ref()))
    }
}

/// Returns the name by which users refer to a file: a path in the local file system, a URL otherwise.
pub fn file_name(root: &str, location: &str) -> String {
    match root {
        "file:///" => format!("/{location}"),
        root => format!("{}{location}", shown(root)),
    }
}

#[async_trait]
impl TableProvider for Files {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        self.listing.table_type()
    }

    fn get_table_definition(&self) -> Option<&str> {
        self.listing.get_table_definition()
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.listing.get_column_default(column)
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let args = ScanArgs::default()
            .with_projection(projection.map(Vec::as_slice))
            .with_filters(Some(filters))
            .with_limit(limit);
        Ok(self.scan_with_args(session, args).await?.into_inner())
    }

    async fn scan_with_args<'a>(
        &self,
        session: &dyn Session,
        args: ScanArgs<'a>,
    ) -> Result<ScanResult> {
        Ok(ScanResult::new(self.plan(session, &args).await?))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        let pushdown = filters
            .iter()
            .map(|filter| match self.is_of_partitions(filter) {
                true => TableProviderFilterPushDown::Exact,
                false => TableProviderFilterPushDown::Inexact,
            });
        Ok(pushdown.collect())
    }

    async fn insert_into(
        &self,
        session: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        operation: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(place) = self.listing.table_paths().first()
            && matches!(place.scheme(), "http" | "https")
        {
            return not_impl_err!("writing to {place}: a web server is read-only");
        }
        let input = typed_as(input, &self.schema())?;
        let options = self.listing.options();
        let folder = self.listing.table_paths().first();
        let Some(folder) = folder.filter(|folder| folder.is_collection()) else {
            return plan_err!(
                "INSERT INTO a table of a file: rows are added to a folder, whose LOCATION ends with /"
            );
        };
        if let Some(lists) = session.runtime_env().cache_manager.get_list_files_cache() {
            let _ = lists.remove(&TableScopedPath {
                table: folder.get_table_ref().clone(),
                path: folder.prefix().clone(),
            });
        }
        // DataFusion's has columns of folders that are NOT NULL, and lists the files that are there.
        let sink = FileSinkConfig {
            original_url: String::new(),
            object_store_url: folder.object_store(),
            table_paths: self.listing.table_paths().clone(),
            file_group: FileGroup::default(),
            output_schema: self.schema(),
            table_partition_cols: options.table_partition_cols.clone(),
            insert_op: operation,
            keep_partition_by_columns: session.config_options().execution.keep_partition_by_columns,
            file_extension: options.format.get_ext(),
            file_output_mode: FileOutputMode::Automatic,
        };
        let properties = session.execution_props();
        let orders = self.listing.try_create_output_ordering(properties, &[])?;
        let order = orders.into_iter().next().map(Into::into);
        let format = &options.format;
        format
            .create_writer_physical_plan(input, session, sink, order)
            .await
    }
}

/// A table of files on the wire, without its columns, which the node of its scan has.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EncodedFiles {
    locations: Vec<Location>,
    only: Option<Vec<String>>,
    file_extension: String,
    format: EncodedFormat,
    /// Names, and types in protobuf.
    partition_columns: Vec<(String, Vec<u8>)>,
    /// Orders of the files' rows, each of expressions in protobuf.
    orders: Vec<Vec<Vec<u8>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Location {
    url: String,
    /// Pattern of the files below it.
    glob: Option<String>,
}

impl EncodedFiles {
    pub(super) fn of(
        listing: &ListingTable,
        only: Option<&HashSet<String>>,
        codec: &dyn LogicalExtensionCodec,
    ) -> Result<Self> {
        let ListingOptions {
            file_extension,
            format,
            table_partition_cols,
            file_sort_order,
            output_partitioning,
        } = listing.options();
        if output_partitioning.is_some() {
            return not_impl_err!("a table with declared partitions of its files on a cluster");
        }
        let location = |url: &ListingTableUrl| Location {
            url: url.get_url().to_string(),
            glob: url.get_glob().as_ref().map(|glob| glob.as_str().to_owned()),
        };
        let column = |(name, data_type): &(String, DataType)| {
            let data_type = protobuf::ArrowType::try_from(data_type)?;
            Ok((name.clone(), data_type.encode_to_vec()))
        };
        let order = |order: &Vec<SortExpr>| {
            let order = serialize_sorts(order, codec)?;
            Ok(order.iter().map(Message::encode_to_vec).collect())
        };
        Ok(Self {
            locations: listing.table_paths().iter().map(location).collect(),
            // Equal tables have equal bytes.
            only: only.map(|only| {
                let mut files = Vec::from_iter(only.iter().cloned());
                files.sort_unstable();
                files
            }),
            file_extension: file_extension.clone(),
            format: EncodedFormat::of(format.as_ref())?,
            partition_columns: table_partition_cols
                .iter()
                .map(column)
                .collect::<Result<_>>()?,
            orders: file_sort_order.iter().map(order).collect::<Result<_>>()?,
        })
    }

    /// Decodes the table, whose schema has the partition columns last.
    pub(super) fn table(
        self,
        schema: &SchemaRef,
        context: &TaskContext,
        codec: &dyn LogicalExtensionCodec,
    ) -> Result<Files> {
        let location = |location: Location| {
            let url = Url::parse(&location.url).map_err(malformed)?;
            let url = ListingTableUrl::try_new(url, None)?;
            match location.glob {
                Some(glob) => url.with_glob(&glob),
                None => Ok(url),
            }
        };
        let column = |(name, data_type): (String, Vec<u8>)| {
            let data_type: protobuf::ArrowType = nesting::decode(&data_type).map_err(malformed)?;
            Ok((name, DataType::try_from(&data_type)?))
        };
        let order = |order: Vec<Vec<u8>>| {
            let decode = |node: Vec<u8>| nesting::decode::<protobuf::SortExprNode>(&node);
            let order = order.into_iter().map(decode).collect::<Result<Vec<_>, _>>();
            Ok(parse_sorts(&order.map_err(malformed)?, context, codec)?)
        };
        let of_files = schema
            .fields()
            .len()
            .checked_sub(self.partition_columns.len());
        let of_files = of_files.ok_or_else(|| malformed("it lacks its partition columns"))?;
        let file_schema = Schema::new_with_metadata(
            schema.fields()[..of_files].to_vec(),
            schema.metadata().clone(),
        );
        let locations = self.locations.into_iter().map(location);
        let columns = self.partition_columns.into_iter().map(column);
        let orders = self.orders.into_iter().map(order);
        let options = ListingOptions::new(self.format.format()?)
            .with_file_extension(self.file_extension)
            .with_table_partition_cols(columns.collect::<Result<_>>()?)
            .with_file_sort_order(orders.collect::<Result<_>>()?);
        let config = ListingTableConfig::new_with_multi_paths(locations.collect::<Result<_>>()?)
            .with_listing_options(options)
            .with_schema(Arc::new(file_schema));
        Ok(Files {
            listing: ListingTable::try_new(config)?,
            only: self.only.map(HashSet::from_iter),
            schema: Arc::clone(schema),
        })
    }
}

impl Files {
    pub(super) fn encode(&self, codec: &dyn LogicalExtensionCodec) -> Result<EncodedFiles> {
        EncodedFiles::of(&self.listing, self.only.as_ref(), codec)
    }
}

fn malformed(error: impl ToString) -> DataFusionError {
    external(Error::malformed("table of files", error.to_string()))
}
