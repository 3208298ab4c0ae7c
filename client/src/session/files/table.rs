//! A table by the place of its files.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, UrlTableFactory};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, plan_datafusion_err};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::{TableType, ViewTable, provider_as_source, source_as_provider};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, TableProviderFilterPushDown, TableSource,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parking_lot::RwLock;
use url::Url;
use volley_engine::object_stores::shown;
use volley_engine::{Files, NULL_PARTITION};
use volley_proto::object_stores::is_remote;

use super::delta::Snapshot;
use super::kind::Kind;
use super::place::{Found, Hive, Place};
use super::remote::remote_url;
use super::schema::{self, Columns};
use crate::{Error, Result};

/// Makes tables of names that are places of files.
#[derive(Debug, Default)]
pub(in crate::session) struct FileTables {
    /// The session that it is a part of, which is made after it.
    session: OnceLock<Weak<RwLock<SessionState>>>,
}

impl FileTables {
    /// Makes tables with a session's options from now on.
    pub(in crate::session) fn belong_to(&self, context: &SessionContext) {
        self.session.get_or_init(|| context.state_weak_ref());
    }
}

#[async_trait]
impl UrlTableFactory for FileTables {
    async fn try_new(
        &self,
        name: &str,
    ) -> datafusion::error::Result<Option<Arc<dyn TableProvider>>> {
        let Some(place) = Place::of(name)? else {
            return Ok(None);
        };
        let session = self.session.get().and_then(Weak::upgrade);
        let state = session.map(|session| session.read().clone());
        let state = state.ok_or_else(|| plan_datafusion_err!("the session has ended"))?;
        Ok(Some(FilesTable::open(place, &state).await?))
    }
}

/// A table of the files at a place: those that are there when it is scanned.
#[derive(Debug)]
pub(super) struct FilesTable {
    place: Place,
    source: Source,
    format: Arc<dyn FileFormat>,
    partition_columns: Vec<(String, DataType)>,
    /// The columns in the files.
    schema: SchemaRef,
    /// The files that it was made from.
    first: Files,
}

/// Source of a table's list of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Their folder or pattern: all of a kind.
    Names(Kind),
    /// A Delta log.
    Delta,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names(kind) => kind.fmt(f),
            Self::Delta => f.write_str("a Delta table"),
        }
    }
}

impl FilesTable {
    /// Opens the table, with the columns of the files that are there now.
    ///
    /// # Errors
    /// When there are none, one cannot be read, or two have incompatible columns.
    pub(super) async fn open(place: Place, state: &SessionState) -> Result<Arc<dyn TableProvider>> {
        match place.list(state.runtime_env()).await? {
            Found::Files(files, metas) => {
                let table = Self::of_files(place, files, metas, state).await?;
                Ok(Arc::new(table))
            }
            Found::Delta(snapshot) => Self::of_delta(place, &snapshot, state),
        }
    }

    async fn of_files(
        place: Place,
        files: Vec<PathBuf>,
        metas: Option<Vec<ObjectMeta>>,
        state: &SessionState,
    ) -> Result<Self> {
        let kind = Kind::of_all(&files)?;
        let format = kind.format(state)?;
        let (store, metas) = heads(&files, metas, state).await?;
        let named = schema::named(&files, metas);
        let schema = schema::of_all(named, &format, &store, state).await?;
        let hive = Hive::of(&files);
        let partition_columns = hive.as_ref().map(columns).unwrap_or_default();
        let names: Vec<_> = partition_columns
            .iter()
            .map(|(column, _)| column.clone())
            .collect();
        let columns = Columns::of(format.as_ref());
        let one = || files[0].display().to_string();
        let schema = schema::without_partition_columns(&schema, &names, columns, one)?;
        let first = table(&files, &format, &partition_columns, &schema)?;
        Ok(Self {
            place,
            source: Source::Names(kind),
            format,
            partition_columns,
            schema,
            first,
        })
    }

    /// Creates the table of a Delta log's snapshot, with its columns in the log's order.
    fn of_delta(
        place: Place,
        snapshot: &Snapshot,
        state: &SessionState,
    ) -> Result<Arc<dyn TableProvider>> {
        let format = Kind::PARQUET.format(state)?;
        let partition_columns = snapshot.partition_columns.iter();
        let partition_columns: Vec<_> = partition_columns
            .map(|field| (field.name().clone(), field.data_type().clone()))
            .collect();
        let schema = snapshot.file_schema();
        let table = Self {
            place,
            source: Source::Delta,
            first: delta_table(snapshot, &format, &partition_columns, &schema)?,
            format,
            partition_columns,
            schema,
        };
        if !snapshot.is_reordered() {
            return Ok(Arc::new(table));
        }
        let names = snapshot.schema.fields().iter();
        let columns = names.map(|field| Expr::Column(Column::from_name(field.name())));
        let files = LogicalPlanBuilder::scan("files", provider_as_source(Arc::new(table)), None)?;
        let plan = files.project(columns)?.build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }

    /// Returns the table of the files that were found at its place.
    ///
    /// # Errors
    /// When a file is of another kind than the earlier ones.
    fn now(&self, found: &Found) -> Result<Files> {
        let differs = |one: String, how: String| Error::FilesDiffer {
            one,
            other: "the files that were there before".to_owned(),
            how,
        };
        let source = match found {
            Found::Files(files, _) => Source::Names(Kind::of_all(files)?),
            Found::Delta(_) => Source::Delta,
        };
        if source != self.source {
            let one = match found {
                Found::Files(files, _) => files[0].display().to_string(),
                Found::Delta(snapshot) => shown(snapshot.folder.as_str()),
            };
            let before = self.source;
            return Err(differs(
                one,
                format!("the one is {source} and they were {before}"),
            ));
        }
        match found {
            Found::Files(files, _) => {
                table(files, &self.format, &self.partition_columns, &self.schema)
            }
            Found::Delta(snapshot) => {
                let now = snapshot.partition_columns.iter().map(|field| field.name());
                let before = self.partition_columns.iter().map(|(column, _)| column);
                if !now.eq(before) {
                    let one = shown(snapshot.folder.as_str());
                    return Err(differs(
                        one,
                        "it is partitioned by other columns".to_owned(),
                    ));
                }
                delta_table(
                    snapshot,
                    &self.format,
                    &self.partition_columns,
                    &self.schema,
                )
            }
        }
    }
}

#[async_trait]
impl TableProvider for FilesTable {
    fn schema(&self) -> SchemaRef {
        self.first.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        let found = self.place.list(session.runtime_env()).await?;
        let files = self.now(&found)?;
        files.scan(session, projection, filters, limit).await
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> datafusion::error::Result<Vec<TableProviderFilterPushDown>> {
        self.first.supports_filters_pushdown(filters)
    }
}

/// Replaces the tables in a plan by those of the files that are there now. Each place is listed once, so that a query
/// sees one snapshot of it wherever it is named.
pub(in crate::session) async fn listed(
    plan: &LogicalPlan,
    session: &dyn Session,
) -> datafusion::error::Result<LogicalPlan> {
    let mut tables: Vec<(Arc<dyn TableSource>, Arc<dyn TableProvider>)> = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && provider.is::<FilesTable>()
        {
            tables.push((Arc::clone(&scan.source), provider));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if tables.is_empty() {
        return Ok(plan.clone());
    }
    let mut places: Vec<(&Place, Found)> = Vec::new();
    let mut found: Vec<(Arc<dyn TableSource>, Arc<dyn TableSource>)> = Vec::new();
    for (source, provider) in &tables {
        let Some(table) = provider.downcast_ref::<FilesTable>() else {
            continue;
        };
        let place = &table.place;
        let at = match places.iter().position(|(known, _)| known.is_same(place)) {
            Some(at) => at,
            None => {
                places.push((place, place.list(session.runtime_env()).await?));
                places.len() - 1
            }
        };
        let files = table.now(&places[at].1)?;
        found.push((Arc::clone(source), provider_as_source(Arc::new(files))));
    }
    let plan = plan.clone().transform_down_with_subqueries(|node| {
        let LogicalPlan::TableScan(mut scan) = node else {
            return Ok(Transformed::no(node));
        };
        let own = found.iter().find(|(own, _)| Arc::ptr_eq(own, &scan.source));
        Ok(match own {
            Some((_, files)) => {
                scan.source = Arc::clone(files);
                Transformed::yes(LogicalPlan::TableScan(scan))
            }
            None => Transformed::no(LogicalPlan::TableScan(scan)),
        })
    })?;
    Ok(plan.data)
}

/// Returns the store of the files, and the metadata of each.
async fn heads(
    files: &[PathBuf],
    metas: Option<Vec<ObjectMeta>>,
    state: &SessionState,
) -> Result<(Arc<dyn ObjectStore>, Vec<ObjectMeta>)> {
    let urls: Vec<_> = files.iter().map(url).collect::<Result<_>>()?;
    let store = urls
        .first()
        .map(|url| state.runtime_env().object_store(url));
    let store = store.ok_or_else(|| Error::NoFiles {
        place: String::new(),
        reason: "no file that can be read".to_owned(),
    })??;
    if let Some(metas) = metas {
        return Ok((store, metas));
    }
    // Each opens a file, and a process has a bounded number of them.
    let heads: Vec<_> = urls
        .iter()
        .map(|url| store.head(url.prefix()).boxed())
        .collect();
    let heads = stream::iter(heads).buffered(schema::AT_ONCE);
    let heads = heads.try_collect::<Vec<_>>().await;
    let heads = heads.map_err(|error| {
        Error::from(volley_proto::Error::Unreadable {
            file: files[0].display().to_string(),
            source: error.into(),
        })
    })?;
    Ok((store, heads))
}

fn url(file: &PathBuf) -> Result<ListingTableUrl> {
    let url = match remote_url(file)? {
        Some(url) => url,
        None => Url::from_file_path(file).map_err(|()| Error::FileName {
            file: file.display().to_string(),
        })?,
    };
    Ok(ListingTableUrl::try_new(url, None)?)
}

/// Returns the URL of a folder.
fn folder_url(folder: &Path) -> Result<ListingTableUrl> {
    let with_slash = PathBuf::from(format!("{}/", folder.display()));
    let url = match remote_url(&with_slash)? {
        Some(url) => url,
        None => Url::from_directory_path(folder).map_err(|()| Error::FileName {
            file: folder.display().to_string(),
        })?,
    };
    Ok(ListingTableUrl::try_new(url, None)?)
}

/// Returns the columns that folders are named after. A column has numbers or dates if all its values except NULL are
/// written as such: `00501` is text, because it would become `501`.
fn columns(hive: &Hive) -> Vec<(String, DataType)> {
    let data_type = |values: &Vec<String>| {
        let is_number = |value: &String| {
            let number = value.parse::<i64>();
            number.is_ok_and(|number| number.to_string() == *value)
        };
        let is_date = |value: &String| {
            value.len() == 10 && chrono::NaiveDate::parse_from_str(value, "%Y-%m-%d").is_ok()
        };
        let values: Vec<_> = values
            .iter()
            .filter(|value| *value != NULL_PARTITION)
            .collect();
        if values.is_empty() {
            DataType::Utf8
        } else if values.iter().all(|value| is_number(value)) {
            DataType::Int64
        } else if values.iter().all(|value| is_date(value)) {
            DataType::Date32
        } else {
            DataType::Utf8
        }
    };
    let types = hive.values.iter().map(data_type);
    hive.columns.iter().cloned().zip(types).collect()
}

/// Default extension of a Delta table's data files.
const PARQUET: &str = ".parquet";

/// Creates the table of a snapshot's files.
fn delta_table(
    snapshot: &Snapshot,
    format: &Arc<dyn FileFormat>,
    partition_columns: &[(String, DataType)],
    schema: &SchemaRef,
) -> Result<Files> {
    let folder = || ListingTableUrl::try_new(snapshot.folder.clone(), None);
    let files: Vec<Url> = snapshot.files().cloned().collect();
    // Beside them are the log, and what other programs keep there.
    let is_usual = files.iter().all(|file| file.path().ends_with(PARQUET));
    let usual = if is_usual { PARQUET } else { "" };
    let (places, only, ending) = match &files[..] {
        // No file ends so.
        [] => (vec![folder()?], None, "/"),
        // Values are found in what comes after a table's folder.
        all if !partition_columns.is_empty() => (vec![folder()?], Some(all), usual),
        all => {
            let urls = all.iter().cloned();
            let urls = urls.map(|file| ListingTableUrl::try_new(file, None));
            (urls.collect::<datafusion::error::Result<_>>()?, None, "")
        }
    };
    let options = ListingOptions::new(Arc::clone(format))
        .with_file_extension(ending)
        .with_table_partition_cols(partition_columns.to_vec());
    let config = ListingTableConfig::new_with_multi_paths(places)
        .with_listing_options(options)
        .with_schema(Arc::clone(schema));
    Ok(Files::try_new(ListingTable::try_new(config)?, only)?)
}

/// Creates a table of exactly these files.
fn table(
    files: &[PathBuf],
    format: &Arc<dyn FileFormat>,
    partition_columns: &[(String, DataType)],
    schema: &SchemaRef,
) -> Result<Files> {
    let urls: Vec<_> = files.iter().map(url).collect::<Result<_>>()?;
    let options = ListingOptions::new(Arc::clone(format))
        .with_file_extension("")
        .with_table_partition_cols(partition_columns.to_vec());
    let listing = |places: Vec<ListingTableUrl>| {
        let config = ListingTableConfig::new_with_multi_paths(places)
            .with_listing_options(options.clone())
            .with_schema(Arc::clone(schema));
        ListingTable::try_new(config)
    };
    let only: Vec<_> = urls.iter().map(|url| url.get_url().clone()).collect();
    if partition_columns.is_empty() {
        if files.len() == 1 || !only.iter().all(is_remote) {
            return Ok(Files::try_new(listing(urls)?, None)?);
        }
        // A store is asked once for the files of a folder, not for each.
        let folders: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).collect();
        let folders = folders.into_iter().map(folder_url);
        let folders = listing(folders.collect::<Result<_>>()?)?;
        return Ok(Files::try_new(folders, Some(&only))?);
    }
    // Values are found in what comes after a table's folder.
    let hive = Hive::of(files).filter(|hive| {
        let names = partition_columns.iter().map(|(name, _)| name);
        names.eq(&hive.columns)
    });
    let hive = hive.ok_or_else(|| Error::FilesDiffer {
        one: files[0].display().to_string(),
        other: "another".to_owned(),
        how: "they are not in folders that are named after the same columns".to_owned(),
    })?;
    let folders = hive.roots.iter().map(|root| folder_url(root));
    let folders = folders.collect::<Result<_>>()?;
    Ok(Files::try_new(listing(folders)?, Some(&only))?)
}
