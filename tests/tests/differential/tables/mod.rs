//! Random tables: what is in them, which files they lie in, and the statements that make them known.
//!
//! Each table has a column `id` whose values are unique and never NULL: what makes the order of a
//! window or of a `LIMIT` total.

mod draw;
mod files;
mod value;

use std::path::Path;

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
    /// Written with a dictionary, where the format knows such.
    pub(crate) dictionary: bool,
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

    pub(crate) fn options(self) -> &'static str {
        match self {
            Self::Csv => " OPTIONS ('format.has_header' 'true')",
            Self::Gzip => " OPTIONS ('format.has_header' 'true', 'format.compression' 'gzip')",
            Self::Zstd => " OPTIONS ('format.has_header' 'true', 'format.compression' 'zstd')",
            Self::Json | Self::Parquet | Self::Arrow => "",
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

    /// The statement that makes the table known, whose files lie in a folder of its name.
    pub(crate) fn statement(&self, dir: &Path) -> String {
        let columns = match self.inferred {
            true => String::new(),
            false => {
                let column =
                    |column: &Column| format!("{} {}", column.name, column.data_type.sql());
                let columns: Vec<_> = self.columns.iter().map(column).collect();
                format!(" ({})", columns.join(", "))
            }
        };
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
            self.format.options(),
        )
    }

    /// The statement, and the rows of each file as CSV.
    pub(crate) fn describe(&self) -> String {
        let mut said = format!("{};\n", self.statement(Path::new("DIR")));
        let names: Vec<_> = self
            .columns
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        let dictionaries: Vec<_> = self
            .columns
            .iter()
            .filter(|column| column.dictionary)
            .collect();
        if !dictionaries.is_empty() && self.format.has_schema() {
            let names: Vec<_> = dictionaries
                .iter()
                .map(|column| column.name.as_str())
                .collect();
            said += &format!("-- dictionaries in the files: {}\n", names.join(", "));
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
