//! A table of files: DataFusion's listing table, and which of the files that it lists belong to it.
//!
//! ```text
//! url, pattern ──> listing table ──> files ── only those named, where it says which ──> scan
//! ```
//!
//! DataFusion's wire form of a listing table loses the pattern of its location, and the compression and
//! the metadata of its format; a table goes to the scheduler as this one instead. Its keys do not: nobody checks
//! whether files keep to a `PRIMARY KEY`, so nothing is concluded from one.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::{ScanArgs, ScanResult, Session, TableProvider};
use datafusion::common::{ColumnStatistics, Statistics, not_impl_err};
use datafusion::datasource::TableType;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl, PartitionedFile,
};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, SortExpr, TableProviderFilterPushDown, not};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_sorts;
use datafusion_proto::logical_plan::to_proto::serialize_sorts;
use datafusion_proto::protobuf;
use futures::TryStreamExt;
use object_store::ObjectMeta;
use prost::Message;
use serde::{Deserialize, Serialize};
use url::Url;

use super::format::EncodedFormat;
use super::typed::typed_as;
use crate::error::external;
use crate::object_stores::shown;
use volley_proto::failure::TaskFailure;
use volley_proto::{Error, nesting};

/// A table of files.
#[derive(Debug)]
pub struct Files {
    listing: ListingTable,
    /// The files that belong to it, by their paths in the object store; all that are listed otherwise.
    only: Option<HashSet<String>>,
}

impl Files {
    /// A table of the files that a listing table lists, or only of some of them, by their URLs.
    ///
    /// # Errors
    /// When a URL is not one of a file.
    pub fn try_new(listing: ListingTable, only: Option<&[Url]>) -> Result<Self> {
        let path = |url: &Url| {
            let url = ListingTableUrl::try_new(url.clone(), None)?;
            Ok(url.prefix().to_string())
        };
        let only = only
            .map(|files| files.iter().map(path).collect::<Result<_>>())
            .transpose()?;
        Ok(Self { listing, only })
    }

    /// The listing table.
    pub fn listing(&self) -> &ListingTable {
        &self.listing
    }

    /// The error of a scan that could not be planned, with the file that is to blame.
    async fn blame(&self, session: &dyn Session, error: DataFusionError) -> DataFusionError {
        let format = &self.listing.options().format;
        let Some(first) = self.listing.table_paths().first() else {
            return error;
        };
        let Ok(store) = session.runtime_env().object_store(first) else {
            return error;
        };
        let Ok(files) = self.list(session).await else {
            return error;
        };
        for file in files {
            let location = file.location.to_string();
            if let Err(cause) = format.infer_schema(session, &store, &[file]).await {
                let root = first.object_store();
                let unreadable = Error::Unreadable {
                    file: file_name(root.as_str(), &location),
                    source: cause.find_root().to_string().into(),
                };
                // It goes on as text.
                return DataFusionError::External(TaskFailure::new(&unreadable).into());
            }
        }
        error
    }

    /// The files that are there now.
    async fn list(&self, session: &dyn Session) -> Result<Vec<ObjectMeta>> {
        let mut files = Vec::new();
        for url in self.listing.table_paths() {
            let store = session.runtime_env().object_store(url)?;
            let extension = &self.listing.options().file_extension;
            let listed = url
                .list_all_files(session, store.as_ref(), extension)
                .await?;
            files.extend(listed.try_collect::<Vec<_>>().await?);
        }
        files.retain(|file| self.belongs(file) && file.size > 0);
        Ok(files)
    }

    fn belongs(&self, file: &ObjectMeta) -> bool {
        let only = self.only.as_ref();
        only.is_none_or(|only| only.contains(file.location.as_ref()))
    }

    /// Which columns a scan reads or filters by, unless it reads all.
    fn needed_columns(&self, args: &ScanArgs) -> Option<Vec<bool>> {
        let schema = self.schema();
        let mut needed = vec![false; schema.fields().len()];
        for column in args.projection()? {
            *needed.get_mut(*column)? = true;
        }
        let filters = args.filters().unwrap_or_default().iter();
        for column in filters.flat_map(Expr::column_refs) {
            needed[schema.index_of(&column.name).ok()?] = true;
        }
        Some(needed)
    }

    /// A scan of what belongs to the table.
    fn restrict(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(exec) = plan.downcast_ref::<DataSourceExec>() else {
            return Ok(plan);
        };
        let Some(scan) = exec.data_source().downcast_ref::<FileScanConfig>() else {
            return Ok(plan);
        };
        let all = |group: &FileGroup| group.iter().all(|file| self.belongs(&file.object_meta));
        if scan.file_groups.iter().all(all) {
            return Ok(plan);
        }
        let kept = scan.file_groups.iter().map(|group| {
            let files = group.iter().filter(|file| self.belongs(&file.object_meta));
            FileGroup::new(files.cloned().collect())
        });
        // Partitions that are told to hold some values stay, with no files.
        let groups: Vec<_> = match scan.output_partitioning {
            Some(_) => kept.collect(),
            None => kept.filter(|group| !group.is_empty()).collect(),
        };
        if groups.iter().all(FileGroup::is_empty) {
            return Ok(Arc::new(EmptyExec::new(plan.schema())));
        }
        let statistics = session.config_options().execution.collect_statistics;
        let (groups, statistics) = datafusion_datasource::compute_all_files_statistics(
            groups,
            self.schema(),
            statistics,
            false,
        )?;
        let scan = FileScanConfigBuilder::from(scan.clone())
            .with_file_groups(groups)
            .with_statistics(statistics)
            .build();
        Ok(DataSourceExec::from_data_source(scan))
    }
}

/// A scan with statistics of the columns that it needs. They are sent with each task: of other columns they take longer
/// to encode than the plan.
fn with_statistics_of(
    plan: Arc<dyn ExecutionPlan>,
    mut needed: Vec<bool>,
) -> Arc<dyn ExecutionPlan> {
    let exec = plan.downcast_ref::<DataSourceExec>();
    let scan = exec.and_then(|exec| exec.data_source().downcast_ref::<FileScanConfig>());
    let Some(scan) = scan else {
        return plan;
    };
    // An order of files one after the other is only believed by statistics of all of its columns.
    let ordered = scan.output_ordering.iter().flat_map(|order| order.iter());
    for column in ordered.flat_map(|key| collect_columns(&key.expr)) {
        if let Some(needed) = needed.get_mut(column.index()) {
            *needed = true;
        }
    }
    let of_needed = |known: &Statistics| {
        let mut known = known.clone();
        let columns = known.column_statistics.iter_mut().zip(&needed);
        for (column, _) in columns.filter(|(_, needed)| !**needed) {
            *column = ColumnStatistics::new_unknown();
        }
        known
    };
    let of_file = |file: &PartitionedFile| {
        let mut file = file.clone();
        file.statistics = file.statistics.map(|known| Arc::new(of_needed(&known)));
        file
    };
    let groups = scan.file_groups.iter().map(|group| {
        let files = FileGroup::new(group.iter().map(of_file).collect());
        match group.file_statistics(None) {
            Some(known) => files.with_statistics(Arc::new(of_needed(known))),
            None => files,
        }
    });
    let statistics = of_needed(&scan.statistics());
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_file_groups(groups.collect())
        .with_statistics(statistics);
    DataSourceExec::from_data_source(scan.build())
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        data_type => data_type.is_string(),
    }
}

/// A file as a user names it: a path where it is of this file system, a URL otherwise.
pub fn file_name(root: &str, location: &str) -> String {
    match root {
        "file:///" => format!("/{location}"),
        root => format!("{}{location}", shown(root)),
    }
}

#[async_trait]
impl TableProvider for Files {
    fn schema(&self) -> SchemaRef {
        self.listing.schema()
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
        // DataFusion looks for the folder `m=1` where `m = 1` is asked for, and misses `m=01`: such a
        // condition is hidden from it, and holds for each file that is listed.
        let columns = &self.listing.options().table_partition_cols;
        let hidden = |filter: &Expr| not(not(filter.clone()));
        let filters: Option<Vec<_>> = columns
            .iter()
            .any(|(_, data_type)| !is_text(data_type))
            .then(|| {
                args.filters()
                    .unwrap_or_default()
                    .iter()
                    .map(hidden)
                    .collect()
            });
        let args = match &filters {
            Some(filters) => args.with_filters(Some(filters)),
            None => args,
        };
        // A limit leaves out files that it does not need, of all that are listed.
        let args = match self.only {
            Some(_) => args.with_limit(None),
            None => args,
        };
        let needed = self.needed_columns(&args);
        let scan = match self.listing.scan_with_args(session, args).await {
            Ok(scan) => scan.into_inner(),
            Err(error) => return Err(self.blame(session, error).await),
        };
        let scan = match self.only {
            Some(_) => self.restrict(scan, session)?,
            None => scan,
        };
        Ok(ScanResult::new(match needed {
            Some(needed) => with_statistics_of(scan, needed),
            None => scan,
        }))
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        self.listing.supports_filters_pushdown(filters)
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
            return not_impl_err!("writing to {place}: a web server is only read from");
        }
        let input = typed_as(input, &self.schema())?;
        self.listing.insert_into(session, input, operation).await
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
    /// Which files below it, as a pattern.
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
            only: only.map(|only| only.iter().cloned().collect()),
            file_extension: file_extension.clone(),
            format: EncodedFormat::of(format.as_ref())?,
            partition_columns: table_partition_cols
                .iter()
                .map(column)
                .collect::<Result<_>>()?,
            orders: file_sort_order.iter().map(order).collect::<Result<_>>()?,
        })
    }

    /// The table, whose schema has the partition columns last.
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
        let cache = context
            .runtime_env()
            .cache_manager
            .get_file_statistic_cache();
        Ok(Files {
            listing: ListingTable::try_new(config)?.with_cache(cache),
            only: self.only.map(HashSet::from_iter),
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
