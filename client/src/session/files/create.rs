//! `CREATE EXTERNAL TABLE`: DataFusion's, with what files say of themselves.
//!
//! - A compression is found in the names of files where no option says it.
//! - Columns that are not given are those of all files, and have types that all of them fit into; DataFusion looks at a
//!   thousand rows in all, and takes no two files of different types.
//! - Two files that do not go together, or one that cannot be read, are named.

use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::{Constraints, DFSchema, plan_datafusion_err, plan_err};
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::listing_table_factory::ListingTableFactory;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::CreateExternalTable;
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore};
use volley_engine::object_stores::shown;
use volley_engine::{Files, file_name};
use volley_proto::object_stores::{is_remote, redacted};

use super::delta::LOG;
use super::kind::Kind;
use super::located;
use super::place::{Found, Place};
use super::schema::{self, Columns};
use super::table::FilesTable;
use crate::Error;
use crate::session::copy::take_store_options;

/// `STORED AS` format of Delta tables.
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
        // Files are not checked for them, and nothing is concluded.
        statement.constraints = Constraints::default();
        find_places(&mut statement, state)?;
        if statement.file_type.eq_ignore_ascii_case(DELTA) {
            return delta(&statement, state).await;
        }
        refuse_delta(&statement, state).await?;
        find_compression(&mut statement, state).await;
        if statement.schema.fields().is_empty() {
            let table = inferred(&statement, state).await?;
            return Ok(Arc::new(Files::try_new(table, None)?));
        }
        // It would look at the files, as if no folder was that of NULL.
        let mut state = state.clone();
        state
            .config_mut()
            .options_mut()
            .execution
            .collect_statistics = false;
        let table = self.inner.create(&state, &statement).await?;
        match table.downcast_ref::<ListingTable>() {
            Some(listing) => Ok(Arc::new(Files::try_new(listing.clone(), None)?)),
            None => Ok(table),
        }
    }
}

/// Creates the table of a Delta log.
async fn delta(
    statement: &CreateExternalTable,
    state: &SessionState,
) -> Result<Arc<dyn TableProvider>> {
    let refuse = |what: &str| {
        let what = format!("STORED AS DELTA {what}");
        DataFusionError::from(Error::NotSupported { what })
    };
    let says = |what: &str| refuse(&format!("with {what}, which the table's log defines"));
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
        return Err(refuse(&format!("at {place}: it has no folder {LOG}")));
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
            return Err(Error::not_supported(format!(
                "STORED AS {} at {}: it is a Delta table, whose log lists its current files: use STORED \
                 AS DELTA",
                statement.file_type,
                shown(location)
            ))
            .into());
        }
    }
    Ok(())
}

/// Checks whether a format's column types are inferred from rows.
fn is_text(statement: &CreateExternalTable) -> bool {
    let format = statement.file_type.to_ascii_uppercase();
    matches!(format.as_str(), "CSV" | "JSON" | "NDJSON")
}

/// Takes the options of a store out of the statement, and puts a name for them into its places.
fn find_places(statement: &mut CreateExternalTable, state: &SessionState) -> Result<()> {
    let of_store = take_store_options(&mut statement.options)?;
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

/// Creates the table with the columns of all its files, and its partition columns.
async fn inferred(statement: &CreateExternalTable, state: &SessionState) -> Result<ListingTable> {
    let Some(factory) = state.get_file_format_factory(&statement.file_type) else {
        let what = format!("STORED AS {}", statement.file_type);
        return Err(Error::NotSupported { what }.into());
    };
    let format = factory.create(state, &statement.options)?;
    let compression = format.compression_type();
    let ending = compression.and_then(|kind| format.get_ext_with_compression(&kind).ok());
    let ending = ending.unwrap_or_else(|| statement.file_type.to_lowercase());
    let urls = urls(statement)?;
    let Some(first) = urls.first() else {
        return plan_err!("CREATE EXTERNAL TABLE without a LOCATION");
    };
    let store = state.runtime_env().object_store(first)?;
    // Beside a table's files are those of other programs, such as Spark's `_SUCCESS`.
    let with_ending = urls.iter().map(|url| match url.get_glob() {
        None if url.is_collection() => url.clone().with_glob(&format!("*.{ending}")),
        _ => Ok(url.clone()),
    });
    let mut places: Vec<_> = with_ending.collect::<Result<_>>()?;
    let mut files = list(&places, &store, state).await?;
    // Objects of a store have any names.
    if files.is_empty() && is_remote(first.get_url()) {
        places.clone_from(&urls);
        files = list(&places, &store, state).await?;
    }
    if files.is_empty() {
        let places = statement
            .locations
            .iter()
            .map(|location| Place::of_table(location));
        let absent = places.flatten().find_map(|place| place.absence());
        return Err(match absent {
            Some(absent) => absent.into(),
            None => none_found(&urls, &ending, &store, state).await,
        });
    }
    let mut options = ListingOptions::new(Arc::clone(&format)).with_file_extension("");
    let mut partition_columns = statement.table_partition_cols.clone();
    let execution = &state.config_options().execution;
    if partition_columns.is_empty() && execution.listing_table_factory_infer_partitions {
        partition_columns = options.infer_partitions(state, &places[0]).await?;
    }
    let schema = schema::of_all(files.clone(), &format, &store, state).await?;
    let columns = Columns::of(format.as_ref());
    let schema = schema::without_partition_columns(&schema, &partition_columns, columns, || {
        files[0].0.clone()
    })?;
    check_order(statement, &schema)?;
    let partition_columns = partition_columns
        .into_iter()
        .map(|column| (column, DataType::Utf8));
    options = options
        .with_table_partition_cols(partition_columns.collect())
        .with_file_sort_order(statement.order_exprs.clone());
    for place in &places {
        options.validate_partitions(state, place).await?;
    }
    let config = ListingTableConfig::new_with_multi_paths(places)
        .with_listing_options(options)
        .with_schema(schema);
    Ok(ListingTable::try_new(config)?
        .with_definition(statement.definition.clone())
        .with_column_defaults(statement.column_defaults.clone()))
}

/// Returns the locations of a table, which are in one object store.
fn urls(statement: &CreateExternalTable) -> Result<Vec<ListingTableUrl>> {
    let parse = |location: &String| {
        let url = ListingTableUrl::parse(location)?;
        Ok(url.with_table_ref(statement.name.clone()))
    };
    let urls: Vec<_> = statement
        .locations
        .iter()
        .map(parse)
        .collect::<Result<_>>()?;
    for (at, url) in urls.iter().enumerate() {
        if urls[..at].contains(url) {
            return plan_err!("LOCATION has {} twice", shown(url.as_str()));
        }
        if url.object_store() != urls[0].object_store() {
            return plan_err!(
                "the files of a table must be in one object store, and LOCATION names {} and {}",
                shown(urls[0].as_str()),
                shown(url.as_str())
            );
        }
    }
    Ok(urls)
}

/// # Errors
/// When the columns that rows are declared to be ordered by are none.
fn check_order(statement: &CreateExternalTable, schema: &SchemaRef) -> Result<()> {
    let schema = DFSchema::try_from(Arc::clone(schema))?;
    let keys = statement.order_exprs.iter().flatten();
    for column in keys.flat_map(|key| key.expr.column_refs()) {
        if !schema.has_column(column) {
            return plan_err!("Column {column} is not in schema");
        }
    }
    Ok(())
}

/// Returns the error of a table whose columns should be inferred where there is no file of its format.
async fn none_found(
    urls: &[ListingTableUrl],
    ending: &str,
    store: &Arc<dyn ObjectStore>,
    state: &SessionState,
) -> DataFusionError {
    let places: Vec<_> = urls.iter().map(|url| shown(url.as_str())).collect();
    let places = places.join(", ");
    // A folder of files with other endings is looked at as if it was empty.
    match list(urls, store, state).await {
        Ok(others) if !others.is_empty() => plan_datafusion_err!(
            "no file at {places} ends in .{ending}, as needed to infer columns; there is {}: declare the \
             columns, or name the files by a pattern",
            others[0].0
        ),
        Ok(_) => plan_datafusion_err!(
            "No files found at {places}. Cannot infer schema from an empty location; either add data files \
             or declare an explicit schema for the table."
        ),
        Err(error) => error,
    }
}

/// Lists the files at the locations, with their names.
async fn list(
    urls: &[ListingTableUrl],
    store: &Arc<dyn ObjectStore>,
    state: &SessionState,
) -> Result<Vec<(String, ObjectMeta)>> {
    let mut files = Vec::new();
    for url in urls {
        let listed = url.list_all_files(state, store.as_ref(), "").await?;
        let listed: Vec<_> = listed.try_collect().await?;
        let root = url.object_store();
        files.extend(listed.into_iter().map(|meta| {
            let name = file_name(root.as_str(), meta.location.as_ref());
            (name, meta)
        }));
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}
