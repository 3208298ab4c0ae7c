//! `CREATE EXTERNAL TABLE`: DataFusion's, with what files say of themselves.
//!
//! - A compression is found in the names of files where no option says it.
//! - Columns that are not given are those of all files; DataFusion looks at a thousand rows in all.
//! - Two files that do not go together, or one that cannot be read, are named.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::plan_datafusion_err;
use datafusion::datasource::listing::{ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::datasource::listing_table_factory::ListingTableFactory;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::CreateExternalTable;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore};
use volley_proto::object_stores::{StoreOptions, redacted, shown};
use volley_proto::plan::file_name;

use super::delta::LOG;
use super::kind::Kind;
use super::located;
use super::place::{Found, Place};
use super::schema;
use super::table::FilesTable;
use crate::Error;

/// What tables of Delta logs are stored as.
const DELTA: &str = "DELTA";

/// Makes tables of `CREATE EXTERNAL TABLE`.
#[derive(Debug, Default)]
pub(in crate::session) struct FilesFactory {
    inner: ListingTableFactory,
}

impl FilesFactory {
    /// The names of formats whose tables it makes.
    pub(in crate::session) const FORMATS: [&str; 7] =
        ["CSV", "JSON", "NDJSON", "PARQUET", "AVRO", "ARROW", DELTA];
}

#[async_trait]
impl TableProviderFactory for FilesFactory {
    async fn create(
        &self,
        session: &dyn Session,
        statement: &CreateExternalTable,
    ) -> Result<Arc<dyn TableProvider>> {
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return self.inner.create(session, statement).await;
        };
        let mut statement = statement.clone();
        find_places(&mut statement, state)?;
        if statement.file_type.eq_ignore_ascii_case(DELTA) {
            return delta(&statement, state).await;
        }
        refuse_delta(&statement, state).await?;
        find_compression(&mut statement, state).await;
        let is_inferred = statement.schema.fields().is_empty();
        let made = match is_inferred {
            true => {
                self.inner
                    .create(session, &first_row_only(&statement))
                    .await
            }
            false => self.inner.create(session, &statement).await,
        };
        match made {
            Ok(table) if is_inferred => match table.downcast_ref::<ListingTable>() {
                Some(listing) => Ok(Arc::new(
                    with_all_columns(listing, &statement, state).await?,
                )),
                None => Ok(table),
            },
            Ok(table) => Ok(table),
            Err(error) if is_inferred => {
                Err(blame(&error, &statement, state).await.unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }
}

/// The table of a Delta log.
async fn delta(
    statement: &CreateExternalTable,
    state: &SessionState,
) -> Result<Arc<dyn TableProvider>> {
    let refuse = |what: &str| {
        let what = format!("STORED AS DELTA {what}");
        DataFusionError::from(Error::NotSupported { what })
    };
    let says = |what: &str| refuse(&format!("with {what}: the table's log says it"));
    if !statement.schema.fields().is_empty() {
        return Err(says("columns"));
    }
    if !statement.table_partition_cols.is_empty() {
        return Err(says("PARTITIONED BY"));
    }
    if !statement.order_exprs.is_empty() {
        return Err(refuse("WITH ORDER"));
    }
    if let Some(option) = statement.options.keys().next() {
        return Err(refuse(&format!("with the option {option}")));
    }
    let [location] = &statement.locations[..] else {
        return Err(refuse("of several places"));
    };
    let place = Place::of_table(location)?;
    if place.delta(state.runtime_env()).await?.is_none() {
        let place = shown(location);
        return Err(refuse(&format!(
            "at {place}: there is no folder {LOG} in it"
        )));
    }
    Ok(FilesTable::open(place, state).await?)
}

/// Refuses to read the files of a Delta table as if all of them were rows.
async fn refuse_delta(statement: &CreateExternalTable, state: &SessionState) -> Result<()> {
    for location in &statement.locations {
        // What is no place will be said by whoever reads it.
        let Ok(place) = Place::of_table(location) else {
            continue;
        };
        if place.delta(state.runtime_env()).await?.is_some() {
            return Err(Error::NotSupported {
                what: format!(
                    "STORED AS {} at {}: it is a Delta table, whose log says which of its files are rows; STORED AS DELTA",
                    statement.file_type,
                    shown(location)
                ),
            }
            .into());
        }
    }
    Ok(())
}

/// Whether rows tell the types of columns.
fn is_text(statement: &CreateExternalTable) -> bool {
    let format = statement.file_type.to_ascii_uppercase();
    matches!(format.as_str(), "CSV" | "JSON" | "NDJSON")
}

/// The statement, for whoever infers columns from the first row of text alone: what DataFusion finds in more of them
/// depends on the order in which the file system lists files, and all files are looked at afterwards. Not of several
/// places, whose columns it compares, nor where it looks for columns that order rows.
fn first_row_only(statement: &CreateExternalTable) -> CreateExternalTable {
    const KEY: &str = "format.schema_infer_max_rec";
    let mut statement = statement.clone();
    let compares = statement.locations.len() > 1 || !statement.order_exprs.is_empty();
    if is_text(&statement) && !compares {
        let options = &mut statement.options;
        options.retain(|key, _| !key.eq_ignore_ascii_case(KEY));
        options.insert(KEY.to_owned(), "1".to_owned());
    }
    statement
}

/// Takes the options of a store out of the statement, and puts a name for them into its places.
fn find_places(statement: &mut CreateExternalTable, state: &SessionState) -> Result<()> {
    let mut of_store = StoreOptions::default();
    for (key, value) in &statement.options {
        if StoreOptions::is_one(key) {
            of_store.set(key, value)?;
        }
    }
    let options = &mut statement.options;
    options.retain(|key, _| !StoreOptions::is_one(key));
    for location in &mut statement.locations {
        if let Some(url) = located(location, of_store.clone(), state)? {
            *location = url;
        }
    }
    let definition = statement.definition.as_deref();
    statement.definition = definition.map(redacted);
    Ok(())
}

/// Adds the compression that the names of all files have.
async fn find_compression(statement: &mut CreateExternalTable, state: &SessionState) {
    const KEY: &str = "format.compression";
    let is_given = |key: &String| key.eq_ignore_ascii_case(KEY);
    if !is_text(statement) || statement.options.keys().any(is_given) {
        return;
    }
    let mut found = None;
    for location in &statement.locations {
        let files = async {
            match Place::of_table(location)?.list(state.runtime_env()).await? {
                Found::Files(files, _) => Kind::of_all(&files),
                Found::Delta(_) => Ok(Kind::PARQUET),
            }
        };
        match files.await {
            Ok(kind) if found.is_none_or(|found| found == kind.compression) => {
                found = Some(kind.compression);
            }
            // It will be said by those who read them.
            _ => return,
        }
    }
    if let Some(Some(compression)) = found {
        let options = &mut statement.options;
        options.insert(KEY.to_owned(), compression.to_owned());
    }
}

/// The table with the columns of all its files.
async fn with_all_columns(
    listing: &ListingTable,
    statement: &CreateExternalTable,
    state: &SessionState,
) -> Result<ListingTable> {
    let mut options = listing.options().clone();
    if let Some(factory) = state.get_file_format_factory(&statement.file_type) {
        options.format = factory.create(state, &statement.options)?;
    }
    let Some((store, files)) = list(listing.table_paths(), &options.file_extension, state).await?
    else {
        return Ok(listing.clone());
    };
    let schema = schema::of_all(files, &options.format, &store, state).await?;
    let config = ListingTableConfig::new_with_multi_paths(listing.table_paths().clone())
        .with_listing_options(options)
        .with_schema(schema);
    let cache = state.runtime_env().cache_manager.get_file_statistic_cache();
    Ok(ListingTable::try_new(config)?
        .with_cache(cache)
        .with_definition(statement.definition.clone())
        .with_constraints(statement.constraints.clone())
        .with_column_defaults(statement.column_defaults.clone()))
}

/// What is wrong with the files of a table that cannot be made, if it is that.
async fn blame(
    error: &DataFusionError,
    statement: &CreateExternalTable,
    state: &SessionState,
) -> Option<DataFusionError> {
    let factory = state.get_file_format_factory(&statement.file_type)?;
    let options: HashMap<_, _> = statement.options.clone();
    let format = factory.create(state, &options).ok()?;
    let urls = statement.locations.iter().map(ListingTableUrl::parse);
    let urls: Vec<_> = urls.collect::<Result<_>>().ok()?;
    let (store, files) = list(&urls, "", state).await.ok()??;
    let compression = format.compression_type();
    let ending = compression.and_then(|kind| format.get_ext_with_compression(&kind).ok());
    let ending = format!(".{}", ending.unwrap_or_else(|| format.get_ext()));
    let is_other = |(file, _): &(String, ObjectMeta)| !file.ends_with(&ending);
    let found_none = error.message().starts_with("No files found");
    let other = files
        .first()
        .filter(|_| found_none && files.iter().all(is_other));
    let other = other.map(|(file, _)| file.clone());
    match schema::of_all(files, &format, &store, state).await {
        Err(error) => Some(error.into()),
        // A folder of files with other endings is looked at as if it was empty.
        Ok(_) => other.map(|other| {
            let places: Vec<_> = statement.locations.iter().map(|url| shown(url)).collect();
            let place = places.join(", ");
            plan_datafusion_err!(
                "no file at {place} ends in {ending}, and columns are inferred of such; there is {other}: \
                 give the columns, or a pattern of the files"
            )
        }),
    }
}

/// The files at places, by their names; nothing where there are no places.
async fn list(
    urls: &[ListingTableUrl],
    extension: &str,
    state: &SessionState,
) -> Result<Option<(Arc<dyn ObjectStore>, Vec<(String, ObjectMeta)>)>> {
    let Some(first) = urls.first() else {
        return Ok(None);
    };
    let store = state.runtime_env().object_store(first)?;
    let root = first.object_store();
    let mut files = Vec::new();
    for url in urls {
        let listed = url.list_all_files(state, store.as_ref(), extension).await?;
        let listed: Vec<_> = listed.try_collect().await?;
        files.extend(listed.into_iter().map(|meta| {
            let name = file_name(root.as_str(), meta.location.as_ref());
            (name, meta)
        }));
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Some((store, files)))
}
