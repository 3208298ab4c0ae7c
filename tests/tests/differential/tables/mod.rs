//! Random tables: their rows, their files, and the statements that register them.
//!
//! Each table has a column `id` with unique values that are never NULL: it makes the order of a window or of a
//! `LIMIT` total.

mod draw;
mod files;
mod value;

use std::path::Path;

use datafusion::arrow::datatypes::DataType;

pub(crate) use draw::draw;
pub(crate) use value::{Type, Value};

/// Table with its rows and files.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// Rows of each file; a table may have no file, and a file no row.
    pub(crate) files: Vec<Vec<Vec<Value>>>,
    pub(crate) format: Format,
    /// True if there are no files: each file's rows are inserted by a statement.
    pub(crate) in_memory: bool,
    /// Column declared as a key, whatever its values are.
    pub(crate) key: Option<(usize, &'static str)>,
    /// True if the last column is a folder's name, `p=1`, and not in the files.
    pub(crate) by_folder: bool,
    /// Declared order, which each file has.
    pub(crate) order: Vec<SortKey>,
    /// True if the columns are inferred from the files.
    pub(crate) inferred: bool,
}

/// Column of a table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) data_type: Type,
    /// Type that the column has in files with a schema, if it is not the usual one.
    pub(crate) stored: Option<DataType>,
}

/// Format of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Gzip,
    Zstd,
    Json,
    Parquet,
    Arrow,
}

/// Column that rows are sorted by.
#[derive(Debug, Clone)]
pub(crate) struct SortKey {
    pub(crate) column: usize,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

impl Format {
    /// Returns its name in a statement.
    pub(crate) fn stored_as(self) -> &'static str {
        match self {
            Self::Csv | Self::Gzip | Self::Zstd => "CSV",
            Self::Json => "JSON",
            Self::Parquet => "PARQUET",
            Self::Arrow => "ARROW",
        }
    }

    /// Returns the extension of its files.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Gzip => "csv.gz",
            Self::Zstd => "csv.zst",
            Self::Json => "json",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }

    /// Returns whether its files contain the types of their columns.
    fn has_schema(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }

    /// Returns the clause with the options for reading and writing its files, and additional ones.
    pub(crate) fn options(self, more: &[(&str, &str)]) -> String {
        let own: &[_] = match self {
            Self::Csv => &[("format.has_header", "true")],
            Self::Gzip => &[
                ("format.has_header", "true"),
                ("format.compression", "gzip"),
            ],
            Self::Zstd => &[
                ("format.has_header", "true"),
                ("format.compression", "zstd"),
            ],
            Self::Json | Self::Parquet | Self::Arrow => &[],
        };
        let options = own.iter().chain(more);
        let options: Vec<_> = options
            .map(|(key, value)| format!("'{key}' '{value}'"))
            .collect();
        match options.is_empty() {
            true => String::new(),
            false => format!(" OPTIONS ({})", options.join(", ")),
        }
    }
}

impl Table {
    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.files.iter().map(Vec::len).sum()
    }

    /// Sorts the rows of each file into the declared order.
    pub(crate) fn sort(&mut self) {
        let Self { files, order, .. } = self;
        let by = |a: &Vec<Value>, b: &Vec<Value>| {
            let key = |key: &SortKey| {
                a[key.column].order(&b[key.column], key.descending, key.nulls_first)
            };
            let differ = order.iter().map(key).find(|ordering| ordering.is_ne());
            differ.unwrap_or(std::cmp::Ordering::Equal)
        };
        if !order.is_empty() {
            files.iter_mut().for_each(|rows| rows.sort_by(by));
        }
    }

    /// Returns the statements that register the table, whose files are in a folder of its name.
    pub(crate) fn statements(&self, dir: &Path) -> Vec<String> {
        if !self.in_memory {
            return vec![self.external(dir)];
        }
        let mut statements = vec![format!("CREATE TABLE {}{}", self.name, self.declared())];
        for rows in self.files.iter().filter(|rows| !rows.is_empty()) {
            let row = |row: &Vec<Value>| {
                let cells: Vec<_> = row.iter().map(Value::sql).collect();
                format!("({})", cells.join(", "))
            };
            let rows: Vec<_> = rows.iter().map(row).collect();
            statements.push(format!(
                "INSERT INTO {} VALUES {}",
                self.name,
                rows.join(", ")
            ));
        }
        statements
    }

    /// Returns the column declarations of a statement.
    fn declared(&self) -> String {
        if self.inferred {
            return String::new();
        }
        let column = |(at, column): (usize, &Column)| {
            let Column {
                name, data_type, ..
            } = column;
            match self.key {
                Some((key, said)) if key == at => format!("{name} {} {said}", data_type.sql()),
                _ => format!("{name} {}", data_type.sql()),
            }
        };
        let columns: Vec<_> = self.columns.iter().enumerate().map(column).collect();
        format!(" ({})", columns.join(", "))
    }

    fn external(&self, dir: &Path) -> String {
        let columns = self.declared();
        let folders = match (self.by_folder, self.columns.last()) {
            (true, Some(last)) => format!(" PARTITIONED BY ({})", last.name),
            _ => String::new(),
        };
        let key = |key: &SortKey| {
            let name = &self.columns[key.column].name;
            let direction = if key.descending { "DESC" } else { "ASC" };
            let nulls = if key.nulls_first { "FIRST" } else { "LAST" };
            format!("{name} {direction} NULLS {nulls}")
        };
        let order = match self.order.is_empty() {
            true => String::new(),
            false => {
                let keys: Vec<_> = self.order.iter().map(key).collect();
                format!(" WITH ORDER ({})", keys.join(", "))
            }
        };
        format!(
            "CREATE EXTERNAL TABLE {}{columns} STORED AS {}{folders}{order} LOCATION '{}/'{}",
            self.name,
            self.format.stored_as(),
            dir.join(&self.name).display(),
            self.format.options(&[]),
        )
    }

    /// Describes the table: its statements, and the rows of each file as CSV.
    pub(crate) fn describe(&self) -> String {
        let statements = self.statements(Path::new("DIR"));
        let mut said = statements.join(";\n") + ";\n";
        if self.in_memory {
            return said;
        }
        let names: Vec<_> = self
            .columns
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        for column in &self.columns {
            if let Some(stored) = column.stored.as_ref().filter(|_| self.format.has_schema()) {
                said += &format!("-- in the files, {} is {stored}\n", column.name);
            }
        }
        for (number, rows) in self.files.iter().enumerate() {
            said += &format!("-- file {number}: {}\n", names.join(","));
            for row in rows.iter().take(SHOWN) {
                let cells: Vec<_> = row.iter().map(Value::csv).collect();
                said += &format!("--   {}\n", cells.join(","));
            }
            if rows.len() > SHOWN {
                said += &format!("--   … {} rows\n", rows.len());
            }
        }
        said
    }
}

/// Maximum number of a file's rows in a report.
const SHOWN: usize = 40;
