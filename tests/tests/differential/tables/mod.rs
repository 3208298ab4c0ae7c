//! Random tables: what is in them, which files they lie in, and the statements that make them known.
//!
//! Each table has a column `id` whose values are unique and never NULL: what makes the order of a
//! window or of a `LIMIT` total.

mod draw;
mod files;
mod value;

use std::path::Path;

use datafusion::arrow::datatypes::DataType;

pub(crate) use draw::draw;
pub(crate) use value::{Type, Value};

/// A table, its rows and the files that hold them.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// The rows of each file; a table may have no file, and a file no row.
    pub(crate) files: Vec<Vec<Vec<Value>>>,
    pub(crate) format: Format,
    /// There are no files: each file's rows are inserted by a statement.
    pub(crate) in_memory: bool,
    /// The column that is declared to be a key, whatever its values are.
    pub(crate) key: Option<(usize, &'static str)>,
    /// The last column is a folder's name, `p=1`, and not in the files.
    pub(crate) by_folder: bool,
    /// The order that is declared, and that each file has.
    pub(crate) order: Vec<SortKey>,
    /// Whether the statement leaves the columns to be read from the files.
    pub(crate) inferred: bool,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) data_type: Type,
    /// What files that tell their types hold it as, where that is not the usual type.
    pub(crate) stored: Option<DataType>,
}

/// What files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Csv,
    Gzip,
    Zstd,
    Json,
    Parquet,
    Arrow,
}

/// A column that rows are sorted by.
#[derive(Debug, Clone)]
pub(crate) struct SortKey {
    pub(crate) column: usize,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

impl Format {
    /// What it is called in a statement.
    pub(crate) fn stored_as(self) -> &'static str {
        match self {
            Self::Csv | Self::Gzip | Self::Zstd => "CSV",
            Self::Json => "JSON",
            Self::Parquet => "PARQUET",
            Self::Arrow => "ARROW",
        }
    }

    /// The ending of its files.
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

    /// Whether its files tell the types of their columns.
    fn has_schema(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }

    /// The clause with the options that its files are read and written with, and more of them.
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
    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.files.iter().map(Vec::len).sum()
    }

    /// Puts the rows of each file into the order that is declared.
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

    /// The statements that make the table known: its files lie in a folder of its name.
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

    /// The columns as a statement declares them.
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

    /// The statements, and the rows of each file as CSV.
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

/// Rows of a file that a report shows.
const SHOWN: usize = 40;
