//! The scan of a table of files: which files there are, the values of their partition columns, and their groups.
//!
//! ```text
//! places ── list ──> files ── partition values ──> prune ── statistics ──> groups ──> scan
//! ```
//!
//! DataFusion's listing table has no NULL in partition columns (it reads `__HIVE_DEFAULT_PARTITION__` as a text), opens all
//! files that are named at the same time, and looks for the folder `m=1` where `m = 1` is asked for, though one is called
//! `m=01`. Here a folder of that name is NULL, as Hive and Spark write it, and few files are open. Reading is the format's.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{ScanArgs, Session};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{
    ColumnStatistics, DFSchema, ScalarValue, Statistics, exec_err, plan_err, project_schema,
};
use datafusion::datasource::listing::helpers::{
    evaluate_partition_prefix, expr_applicable_for_cols, parse_partitions_for_path,
};
use datafusion::datasource::listing::{ListingTableUrl, PartitionedFile};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::cache::cache_manager::{
    CachedFileMetadata, SchemaFingerprint, TableScopedPath,
};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::conjunction;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, Partitioning, PhysicalExpr, create_physical_expr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_datasource::compute_all_files_statistics;
use datafusion_datasource::file_scan_config::output_partitioning_from_partition_fields;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore};

use super::files::{Files, file_name};
use crate::error::reason;
use crate::mends::checked_arithmetic::checked;
use crate::write::NULL_PARTITION;
use volley_proto::Error;
use volley_proto::failure::TaskFailure;

/// Returns how many files are looked for, or opened for what they say of themselves, at a time.
fn at_once(session: &dyn Session) -> usize {
    let execution = &session.config_options().execution;
    execution.meta_fetch_concurrency.get()
}

/// Files of a scan.
struct Found {
    group: FileGroup,
    /// A limit made the others unnecessary.
    is_cut: bool,
}

impl Files {
    /// Plans the scan of the files that are there now.
    pub(super) async fn plan(
        &self,
        session: &dyn Session,
        args: &ScanArgs<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let projection = args.projection().map(<[usize]>::to_vec);
        let filters = args.filters().unwrap_or_default();
        let (of_partitions, others): (Vec<_>, Vec<_>) = filters
            .iter()
            .partition(|filter| self.is_of_partitions(filter));
        let of_partitions: Vec<_> = of_partitions.into_iter().cloned().collect();
        let limit = args.limit().filter(|_| others.is_empty());
        let empty = || -> Result<Arc<dyn ExecutionPlan>> {
            let schema = project_schema(&self.schema, projection.as_ref())?;
            Ok(Arc::new(EmptyExec::new(schema)))
        };
        let Some(first) = self.listing.table_paths().first() else {
            return empty();
        };
        let store = session.runtime_env().object_store(first)?;
        let files = self.list(session, &store, &of_partitions).await?;
        let found = self.described(session, &store, files, limit).await?;
        if found.group.is_empty() {
            return empty();
        }
        let groups = [found.group];
        let orders = self
            .listing
            .try_create_output_ordering(session.execution_props(), &groups)?;
        let [group] = groups;
        let group = match self.needed_columns(args, &orders) {
            Some(needed) => with_statistics_of(group, &needed),
            None => group,
        };
        let (groups, partitioning) = self.grouped(session, group, &orders)?;
        let (groups, statistics) = compute_all_files_statistics(
            groups,
            Arc::clone(&self.schema),
            session.config_options().execution.collect_statistics,
            found.is_cut,
        )?;
        let format = &self.listing.options().format;
        let of_folders = &self.schema.fields()[self.of_files()..];
        let columns = TableSchema::builder(self.file_schema())
            .with_table_partition_cols(of_folders.to_vec())
            .build();
        let source = format.file_source(columns);
        let scan = FileScanConfigBuilder::new(first.object_store(), source)
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(projection)?
            .with_limit(args.limit())
            .with_output_ordering(orders)
            .with_output_partitioning(partitioning)
            .build();
        format.create_physical_plan(session, scan).await
    }

    fn partition_columns(&self) -> &[(String, DataType)] {
        &self.listing.options().table_partition_cols
    }

    /// Returns the number of columns that files have.
    fn of_files(&self) -> usize {
        let all = self.schema.fields().len();
        all.saturating_sub(self.partition_columns().len())
    }

    fn file_schema(&self) -> SchemaRef {
        let fields = self.schema.fields()[..self.of_files()].to_vec();
        let metadata = self.schema.metadata().clone();
        Arc::new(Schema::new_with_metadata(fields, metadata))
    }

    /// Checks whether a filter says which folders are read, and nothing else has to apply it.
    pub(super) fn is_of_partitions(&self, filter: &Expr) -> bool {
        let columns = self.partition_columns().iter();
        let columns: Vec<_> = columns.map(|(name, _)| name.as_str()).collect();
        !columns.is_empty() && expr_applicable_for_cols(&columns, filter)
    }

    /// Lists the non-empty files of the table whose partition values satisfy the filters, sorted by path.
    async fn list(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        filters: &[Expr],
    ) -> Result<Vec<PartitionedFile>> {
        let columns = self.partition_columns();
        let schema = self.schema.fields().iter().skip(self.of_files());
        let schema = schema.map(|field| Field::new(field.name(), field.data_type().clone(), true));
        let schema = DFSchema::from_unqualified_fields(schema.collect(), Default::default())?;
        // Other values than texts have several names.
        let is_text = columns.iter().all(|(_, data_type)| is_text(data_type));
        let prefix = is_text.then(|| evaluate_partition_prefix(columns, filters));
        let prefix = prefix.flatten();
        let filter = FolderFilter::of(filters, schema, session)?;
        let places: Vec<_> = self
            .listing
            .table_paths()
            .iter()
            .map(|place| {
                let ending = &self.listing.options().file_extension;
                let prefix = prefix.clone();
                async move {
                    let files = place
                        .list_prefixed_files(session, store.as_ref(), prefix, ending)
                        .await?;
                    files
                        .map_ok(move |file| (place, file))
                        .try_collect::<Vec<_>>()
                        .await
                }
                .boxed()
            })
            .collect();
        let mut places: BoxStream<'_, Result<Vec<(&ListingTableUrl, ObjectMeta)>>> =
            stream::iter(places).buffered(at_once(session)).boxed();
        let mut seen = HashSet::new();
        let mut files = Vec::new();
        while let Some(found) = places.try_next().await? {
            for (place, file) in found {
                let belongs = file.size > 0 && self.belongs(&file);
                if !belongs || !seen.insert(file.location.clone()) {
                    continue;
                }
                if let Some(file) = self.partitioned(place, file)?
                    && filter.holds(&file)?
                {
                    files.push(file);
                }
            }
        }
        files.sort_unstable_by(|a, b| a.path().cmp(b.path()));
        Ok(files)
    }

    /// Returns a file with the values of its partition columns, unless it is in other folders.
    fn partitioned(
        &self,
        place: &ListingTableUrl,
        file: ObjectMeta,
    ) -> Result<Option<PartitionedFile>> {
        let columns = self.partition_columns();
        let values = match columns.is_empty() {
            true => Some(Vec::new()),
            false => {
                let names = columns.iter().map(|(name, _)| name.as_str());
                let values = parse_partitions_for_path(place, &file.location, names);
                values.filter(|values| values.len() == columns.len())
            }
        };
        let Some(values) = values else {
            return Ok(None);
        };
        let fields = &self.schema.fields()[self.of_files()..];
        let values = values.into_iter().zip(columns).zip(fields);
        let values = values.map(|((value, (_, data_type)), field)| {
            if value != NULL_PARTITION {
                return ScalarValue::try_from_string(value.into_owned(), data_type);
            }
            if !field.is_nullable() {
                return exec_err!(
                    "column {} of a table is NOT NULL, and it is NULL for {}",
                    field.name(),
                    file.location
                );
            }
            ScalarValue::try_new_null(data_type)
        });
        let values = values.collect::<Result<_>>()?;
        let mut file = PartitionedFile::from(file);
        file.partition_values = values;
        file.table_reference.clone_from(place.get_table_ref());
        Ok(Some(file))
    }

    /// Reads the statistics and the ordering of each file, up to the files that a limit needs.
    async fn described(
        &self,
        session: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        files: Vec<PartitionedFile>,
        limit: Option<usize>,
    ) -> Result<Found> {
        let describes = session.config_options().execution.collect_statistics;
        let schema = self.file_schema();
        if !describes {
            let unknown = Arc::new(Statistics::new_unknown(&schema));
            let files = files
                .into_iter()
                .map(|file| with_statistics(file, Arc::clone(&unknown)));
            return Ok(Found {
                group: FileGroup::new(files.collect()),
                is_cut: false,
            });
        }
        let fingerprint = Arc::new(SchemaFingerprint::from_schema(&schema));
        let cache = session
            .runtime_env()
            .cache_manager
            .get_file_statistic_cache();
        let (cache, schema, fingerprint) = (&cache, &schema, &fingerprint);
        let count = files.len();
        let described: Vec<_> = files
            .into_iter()
            .map(|file| {
                async move {
                    let path = TableScopedPath {
                        table: file.table_reference.clone(),
                        path: file.object_meta.location.clone(),
                    };
                    let known = cache.as_ref().and_then(|cache| cache.get(&path));
                    let known =
                        known.filter(|known| known.is_valid_for(&file.object_meta, fingerprint));
                    let known = match known {
                        Some(known) => known,
                        None => {
                            let format = &self.listing.options().format;
                            let says = format.infer_stats_and_ordering(
                                session,
                                store,
                                Arc::clone(schema),
                                &file.object_meta,
                            );
                            let says = says.await.map_err(|error| {
                                let root = self.listing.table_paths()[0].object_store();
                                let unreadable = Error::Unreadable {
                                    file: file_name(root.as_str(), file.path().as_ref()),
                                    source: reason(&error).into(),
                                };
                                // It goes on as text.
                                DataFusionError::External(TaskFailure::new(&unreadable).into())
                            })?;
                            let known = CachedFileMetadata::new(
                                file.object_meta.clone(),
                                Arc::clone(fingerprint),
                                Arc::new(says.statistics),
                                says.ordering,
                            );
                            if let Some(cache) = cache {
                                cache.put(&path, known.clone());
                            }
                            known
                        }
                    };
                    Ok(with_statistics(file, known.statistics).with_ordering(known.ordering))
                }
                .boxed()
            })
            .collect();
        let mut described: BoxStream<'_, Result<PartitionedFile>> =
            stream::iter(described).buffered(at_once(session)).boxed();
        let mut group = FileGroup::default();
        let mut rows = Some(0);
        while let Some(file) = described.try_next().await? {
            let known = file.statistics.as_ref();
            let of_file = known.and_then(|known| known.num_rows.get_value().copied());
            let is_exact = known.is_some_and(|known| known.num_rows.is_exact() == Some(true));
            rows = rows.zip(of_file.filter(|_| is_exact)).map(|(a, b)| a + b);
            group.push(file);
            if limit.zip(rows).is_some_and(|(limit, rows)| rows > limit) {
                break;
            }
        }
        let is_cut = group.len() < count;
        Ok(Found { group, is_cut })
    }

    /// Distributes the files over the partitions of the scan.
    fn grouped(
        &self,
        session: &dyn Session,
        files: FileGroup,
        orders: &[LexOrdering],
    ) -> Result<(Vec<FileGroup>, Option<Partitioning>)> {
        let options = session.config_options();
        let partitions = session.config().target_partitions();
        if partitions == 0 {
            return plan_err!("datafusion.execution.target_partitions is 0: at least 1");
        }
        let columns = &self.schema.fields()[self.of_files()..];
        let at_least = options.optimizer.preserve_file_partitions;
        if at_least > 0 && !columns.is_empty() {
            let groups = files.clone().group_by_partition_values(partitions);
            if groups.len() >= at_least {
                let columns = columns.iter().cloned().collect();
                let partitioning =
                    output_partitioning_from_partition_fields(&self.schema, &columns, groups.len());
                return Ok((groups, partitioning));
            }
        }
        let groups = files.split_files(partitions);
        if let Some(order) = orders.first()
            && options.execution.split_file_groups_by_statistics
        {
            let ordered = FileScanConfig::split_groups_by_statistics_with_target_partitions(
                &self.schema,
                &groups,
                order,
                partitions,
            );
            // Statistics that do not say an order are no error.
            if let Ok(ordered) = ordered
                && ordered.len() <= partitions
            {
                return Ok((ordered, None));
            }
        }
        Ok((groups, None))
    }

    /// Marks the columns that a scan reads, filters by or is ordered by, unless it reads all.
    fn needed_columns(&self, args: &ScanArgs<'_>, orders: &[LexOrdering]) -> Option<Vec<bool>> {
        let mut needed = vec![false; self.schema.fields().len()];
        for column in args.projection()? {
            *needed.get_mut(*column)? = true;
        }
        let filters = args.filters().unwrap_or_default().iter();
        for column in filters.flat_map(Expr::column_refs) {
            needed[self.schema.index_of(&column.name).ok()?] = true;
        }
        // An order of files one after the other is only believed by statistics of all of its columns.
        let ordered = orders.iter().flat_map(|order| order.iter());
        for column in ordered.flat_map(|key| collect_columns(&key.expr)) {
            *needed.get_mut(column.index())? = true;
        }
        Some(needed)
    }
}

/// The filters of partition columns, in which operations on numbers are checked as in tasks.
struct FolderFilter {
    filter: Option<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
}

impl FolderFilter {
    fn of(filters: &[Expr], schema: DFSchema, session: &dyn Session) -> Result<Self> {
        let filter = conjunction(filters.iter().cloned()).map(|filter| {
            let context = PhysicalPlanningContext::default();
            // NULL is not true.
            let filter = filter.is_true();
            let filter =
                create_physical_expr(&filter, &schema, session.execution_props(), &context)?;
            filter
                .transform_up(|node| checked(node, schema.as_arrow()).map(Transformed::yes))
                .data()
        });
        Ok(Self {
            filter: filter.transpose()?,
            schema: Arc::clone(schema.inner()),
        })
    }

    fn holds(&self, file: &PartitionedFile) -> Result<bool> {
        let Some(filter) = &self.filter else {
            return Ok(true);
        };
        let values = file.partition_values.iter().map(ScalarValue::to_array);
        let row = RecordBatch::try_new(Arc::clone(&self.schema), values.collect::<Result<_>>()?)?;
        let holds = filter.evaluate(&row)?.into_array(1)?;
        Ok(holds.as_boolean().value(0))
    }
}

/// Attaches statistics to a file. DataFusion's statistics of a partition column say that it has no NULL; those of a NULL
/// column are unknown here.
fn with_statistics(file: PartitionedFile, known: Arc<Statistics>) -> PartitionedFile {
    let of_file = known.column_statistics.len();
    let mut file = file.with_statistics(known);
    if file.partition_values.iter().any(ScalarValue::is_null)
        && let Some(known) = &mut file.statistics
    {
        let known = Arc::make_mut(known);
        let values = file.partition_values.iter();
        let columns = known.column_statistics.iter_mut().skip(of_file);
        for (column, _) in columns.zip(values).filter(|(_, value)| value.is_null()) {
            *column = ColumnStatistics::new_unknown();
        }
    }
    file
}

/// Drops the statistics of columns that a scan does not need. Statistics are sent with each task, and would take longer to
/// encode than the plan.
fn with_statistics_of(group: FileGroup, needed: &[bool]) -> FileGroup {
    let files = group.into_inner().into_iter().map(|mut file| {
        if let Some(known) = &mut file.statistics {
            let known = Arc::make_mut(known);
            let columns = known.column_statistics.iter_mut().zip(needed);
            for (column, _) in columns.filter(|(_, needed)| !**needed) {
                *column = ColumnStatistics::new_unknown();
            }
        }
        file
    });
    FileGroup::new(files.collect())
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_text(values),
        data_type => data_type.is_string(),
    }
}
