//! Files as data frames: the tables of `CREATE EXTERNAL TABLE`, without a name in the session.

use std::fmt;
use std::path::Path;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProviderFactory;
use datafusion::common::ToDFSchema;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::{CreateExternalTable, Statement as DfStatement};
use datafusion::sql::sqlparser::ast::{Ident, Value};
use volley_proto::object_stores::redacted;
use volley_proto::stack::deeply;

use super::Session;
use super::files::FilesFactory;
use super::settings::JobDescription;
use crate::{Error, Result};

/// Name of a table of files whose place has no name for it.
const UNNAMED: &str = "files";

/// Options of files to read: the clauses of `CREATE EXTERNAL TABLE`.
#[derive(Clone, Default)]
pub struct FileOptions {
    columns: Option<SchemaRef>,
    partition_columns: Vec<String>,
    options: Vec<(String, String)>,
}

impl FileOptions {
    /// Returns the defaults: columns and their types are inferred from all files, a CSV file has a header, file names
    /// tell the compression, and folders `k=v` are columns of text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the columns and their types, those of folders included, instead of inferring them.
    pub fn columns(mut self, schema: impl Into<SchemaRef>) -> Self {
        self.columns = Some(schema.into());
        self
    }

    /// Sets the columns that folders `k=v` are named after, from the outermost folder: `PARTITIONED BY`.
    pub fn partitioned_by<C: Into<String>>(mut self, names: impl IntoIterator<Item = C>) -> Self {
        self.partition_columns = names.into_iter().map(Into::into).collect();
        self
    }

    /// Adds an option of the format or of an object store, as in `OPTIONS (…)`: `format.delimiter`,
    /// `format.has_header`, `format.null_regex`, `format.schema_infer_max_rec`, `aws.region`, `aws.access_key_id`.
    pub fn option(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((key.into(), value.into()));
        self
    }
}

impl fmt::Debug for FileOptions {
    /// Leaves out the options' values, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.iter().map(|(key, _)| key).collect();
        f.debug_struct("FileOptions")
            .field("columns", &self.columns)
            .field("partition_columns", &self.partition_columns)
            .field("options", &options)
            .finish()
    }
}

impl Session {
    /// Reads CSV files: a file, a folder, a pattern with `*`, `?` or `[…]`, or a URL of either; every executor must see
    /// them at the same place.
    ///
    /// The frame's columns are qualified by the name of the file or folder, up to its first dot and in lower case:
    /// those of `data/sales.csv` are `sales.day` and so on.
    ///
    /// # Errors
    /// As `CREATE EXTERNAL TABLE … STORED AS CSV`: when there is no file, two files' columns are incompatible, or an
    /// option is unknown. Errors in rows are reported when they are read.
    pub async fn read_csv(
        &self,
        place: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<DataFrame> {
        deeply(self.read("CSV", place.as_ref(), options)).await
    }

    /// Reads Parquet files, like [`read_csv`](Self::read_csv).
    ///
    /// # Errors
    /// As [`read_csv`](Self::read_csv).
    pub async fn read_parquet(
        &self,
        place: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<DataFrame> {
        deeply(self.read("PARQUET", place.as_ref(), options)).await
    }

    /// Reads JSON files of one object per line, like [`read_csv`](Self::read_csv).
    ///
    /// # Errors
    /// As [`read_csv`](Self::read_csv).
    pub async fn read_json(
        &self,
        place: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<DataFrame> {
        deeply(self.read("JSON", place.as_ref(), options)).await
    }

    /// Reads the newest snapshot of a Delta table, like [`read_csv`](Self::read_csv). Its log determines the columns and
    /// the folders: of the options, only those of an object store are accepted.
    ///
    /// # Errors
    /// As [`read_csv`](Self::read_csv), and for tables with deletion vectors, column mapping or features unknown to
    /// Delta's kernel.
    pub async fn read_delta(
        &self,
        place: impl AsRef<Path>,
        options: FileOptions,
    ) -> Result<DataFrame> {
        deeply(self.read("DELTA", place.as_ref(), options)).await
    }

    async fn read(&self, format: &str, place: &Path, options: FileOptions) -> Result<DataFrame> {
        let place = place.to_str().ok_or_else(|| Error::NotUtf8 {
            file: place.to_owned(),
        })?;
        let name = table_name(place).unwrap_or_else(|| UNNAMED.to_owned());
        let given = options.options.into_iter();
        let given = given.map(|(key, value)| (key, Value::SingleQuotedString(value)));
        let statement = CreateExternalTable {
            name: Ident::with_quote('"', name).into(),
            columns: vec![],
            file_type: format.to_owned(),
            locations: vec![place.to_owned()],
            table_partition_cols: options.partition_columns,
            order_exprs: vec![],
            if_not_exists: false,
            or_replace: false,
            temporary: false,
            unbounded: false,
            options: given.collect(),
            constraints: vec![],
        };
        let plan = self.plan(DfStatement::CreateExternalTable(statement));
        let LogicalPlan::Ddl(DdlStatement::CreateExternalTable(mut create)) = plan.await? else {
            unreachable!("the plan of CREATE EXTERNAL TABLE creates an external table")
        };
        if let Some(columns) = options.columns {
            create.schema = columns.to_dfschema_ref()?;
            create.schema.check_names()?;
        }
        let mut state = self.context.state();
        let table = FilesFactory::default().create(&state, &create).await?;
        let rows = LogicalPlanBuilder::scan(create.name.clone(), provider_as_source(table), None)?;
        JobDescription::of(&redacted(&format!("FROM '{place}'"))).note(state.config_mut());
        Ok(DataFrame::new(state, rows.build()?))
    }
}

/// Returns the name of the files' table: the last name in their place that is neither a pattern nor `k=v`.
fn table_name(place: &str) -> Option<String> {
    let path = place.split_once("://").map_or(place, |(_, path)| path);
    let mut names = path.rsplit('/');
    let name = names.find(|name| !name.is_empty() && !name.contains(['*', '?', '[', '=']))?;
    let stem = name.split('.').find(|part| !part.is_empty())?;
    Some(stem.to_lowercase())
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn a_table_is_named_after_its_files() {
        for (place, name) in [
            ("data/Sales.csv.gz", Some("sales")),
            ("data/sales/", Some("sales")),
            ("sales/year=2024/*.parquet", Some("sales")),
            ("s3://bucket/sales/", Some("sales")),
            ("s3://bucket/", Some("bucket")),
            ("*.csv", None),
        ] {
            assert_eq!(table_name(place).as_deref(), name, "{place}");
        }
    }

    #[test]
    fn files_are_the_tables_of_statements() {
        on_a_deep_stack(async {
            let (session, dir) = session().await;
            let file = dir.path().join("sales.csv");
            let types = |frame: &DataFrame| {
                let fields = frame.schema().fields().iter();
                let types = fields.map(|field| (field.name().clone(), field.data_type().clone()));
                types.collect::<Vec<_>>()
            };
            let create = format!(
                "CREATE EXTERNAL TABLE inferred STORED AS CSV LOCATION '{}'",
                file.display()
            );
            session.sql(&create).await.unwrap();
            let inferred = session.sql("SELECT * FROM inferred").await.unwrap();
            let read = session.read_csv(&file, FileOptions::new()).await.unwrap();
            assert_eq!(types(&read), types(&inferred));
            let column = read.schema().iter().next().map(|(of, _)| of.cloned());
            assert_eq!(column, Some(Some("sales".into())));

            let text = |name: &str| Field::new(name, DataType::Utf8, true);
            let names = ["Id", "Store", "Distance", "Promo", "Sales"];
            let columns = Schema::new(names.map(text).to_vec());
            let options = FileOptions::new().columns(columns.clone());
            let read = session.read_csv(&file, options).await.unwrap();
            assert_eq!(read.schema().as_arrow().fields(), columns.fields());

            let tables = session.sql("SHOW TABLES").await.unwrap();
            let tables = tables.collect().await.unwrap();
            let tables = arrow::util::pretty::pretty_format_batches(&tables).unwrap();
            assert_eq!(tables.to_string().matches("| sales ").count(), 1);
        });
    }

    #[test]
    fn mistakes_are_those_of_the_statement() {
        on_a_deep_stack(async {
            let (session, dir) = session().await;
            let file = dir.path().join("sales.csv");
            let refused = session.read_csv("ftp://host/sales.csv", FileOptions::new());
            let error = refused.await.unwrap_err();
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
            let unknown = FileOptions::new().option("format.delimitr", ";");
            session.read_csv(&file, unknown).await.unwrap_err();
            let missing = dir.path().join("nothing.csv");
            session
                .read_csv(missing, FileOptions::new())
                .await
                .unwrap_err();
            let delta = session.read_delta(dir.path(), FileOptions::new()).await;
            let error = delta.unwrap_err();
            assert!(matches!(error, Error::NotSupported { .. }), "{error}");
        });
    }
}
