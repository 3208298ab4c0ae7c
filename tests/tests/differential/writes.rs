//! Rows that a statement writes and that are read back: `COPY`, `INSERT`, `CREATE TABLE AS`, views.

use std::path::Path;

use crate::dice::Dice;
use crate::query::{self, Query};
use crate::tables::{Format, Table, Type};

/// Query whose rows are written, and the way of writing.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) query: Query,
    /// Columns of the query, with their types.
    columns: Vec<(String, Type)>,
    pub(crate) how: How,
    pub(crate) format: Format,
    /// Options of the files, used for writing and, for CSV, also for reading.
    pub(crate) options: Vec<(&'static str, &'static str)>,
    /// Column that folders are named after.
    pub(crate) by: Option<String>,
}

/// Way of writing rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    CopyToFolder,
    CopyToFile,
    /// Number of inserts.
    Insert(usize),
    TableAs,
    View,
}

/// CSV options needed for both writing and reading.
const OF_CSV: [&[(&str, &str)]; 5] = [
    &[("format.delimiter", ";")],
    &[("format.delimiter", "|"), ("format.quote", "`")],
    &[("format.double_quote", "false"), ("format.escape", "\\")],
    &[("format.newlines_in_values", "true")],
    &[("format.quote_style", "Always")],
];

/// Parquet options that change files, but no rows read from them.
const OF_PARQUET: [&[(&str, &str)]; 6] = [
    &[("format.compression", "zstd(3)")],
    &[("format.max_row_group_size", "3")],
    &[("format.dictionary_enabled", "false")],
    &[("format.writer_version", "2.0")],
    &[("format.statistics_enabled", "none")],
    &[("format.bloom_filter_on_write", "true")],
];

/// Name of the table or view that is read back.
const NAME: &str = "written";

/// Draws a query and its way of writing.
pub(crate) fn draw(dice: &mut Dice, tables: &[Table]) -> Write {
    let how = dice.weighted(&[
        (5, How::CopyToFolder),
        (3, How::CopyToFile),
        (3, How::Insert(1)),
        (2, How::Insert(2)),
        (1, How::TableAs),
        (1, How::View),
    ]);
    let format = dice.weighted(&[
        (5, Format::Csv),
        (5, Format::Parquet),
        (3, Format::Json),
        (3, Format::Arrow),
        (1, Format::Gzip),
        (1, Format::Zstd),
    ]);
    let (query, columns) = query::draw_typed(dice, tables, |of| match format {
        Format::Csv | Format::Gzip | Format::Zstd => !of.is_nested(),
        // JSON has no NaN.
        Format::Json => !of.is_nested() && of != Type::Double,
        Format::Parquet | Format::Arrow => true,
    });
    // DataFusion alone takes `VALUES` within the query for rows of the table: see `docs/correctness.md`.
    let how = match how {
        How::Insert(_) if query.to_string().contains("VALUES") => How::CopyToFolder,
        how => how,
    };
    let folders: Vec<_> = columns
        .iter()
        .filter(|(_, of)| matches!(of, Type::Int | Type::Small | Type::Date | Type::Bool))
        .map(|(name, _)| name.clone())
        .collect();
    let can_have_folders = matches!(how, How::CopyToFolder | How::Insert(_)) && columns.len() > 1;
    // A reader of Arrow files could not know the columns besides the folders' one.
    let can_have_folders =
        can_have_folders && (format != Format::Arrow || how == How::CopyToFolder);
    let by = match can_have_folders && !folders.is_empty() && dice.chance(30) {
        true => Some(dice.pick(&folders)),
        false => None,
    };
    let options = match format {
        _ if !dice.chance(25) => Vec::new(),
        Format::Csv | Format::Gzip | Format::Zstd => dice.pick(&OF_CSV).to_vec(),
        Format::Parquet => dice.pick(&OF_PARQUET).to_vec(),
        Format::Json | Format::Arrow => Vec::new(),
    };
    Write {
        query,
        columns,
        how,
        format,
        options,
        by,
    }
}

impl Write {
    /// Returns statements that write below this folder and read back.
    pub(crate) fn statements(&self, out: &Path) -> Vec<String> {
        let query = self.rows();
        let mut statements = match self.how {
            How::CopyToFolder | How::CopyToFile => {
                let by = self.by.as_ref().map(|by| format!(" PARTITIONED BY ({by})"));
                vec![format!(
                    "COPY ({query}) TO '{}' STORED AS {}{}{}",
                    self.target(out),
                    self.format.stored_as(),
                    by.unwrap_or_default(),
                    self.format.options(&self.options),
                )]
            }
            How::Insert(times) => {
                let columns: Vec<_> = self.ordered().map(|(name, _)| name.clone()).collect();
                let insert = format!(
                    "INSERT INTO {NAME} SELECT {} FROM ({query}) q",
                    columns.join(", ")
                );
                let mut statements = vec![self.table(out, false)];
                statements.extend(vec![insert; times]);
                statements
            }
            How::TableAs => vec![format!("CREATE TABLE {NAME} AS {query}")],
            How::View => vec![format!("CREATE VIEW {NAME} AS {query}")],
        };
        statements.extend(self.reading(out));
        statements
    }

    /// Returns the query to write, without NULL in the folders' column: a folder's name cannot express NULL, and a
    /// cluster refuses to try. In CSV, no text is NULL or has no characters: DataFusion alone reads both as NULL.
    fn rows(&self) -> String {
        let query = self.query.to_string();
        let is_csv = matches!(self.format, Format::Csv | Format::Gzip | Format::Zstd);
        let is_read = !matches!(self.how, How::TableAs | How::View);
        let is_csv = is_csv && is_read;
        if self.by.is_none() && !is_csv {
            return query;
        }
        let column = |(name, of): &(String, Type)| match self.by.as_ref() == Some(name) {
            false if is_csv && *of == Type::Text => {
                format!("coalesce(nullif({name}, ''), '-') AS {name}")
            }
            false => name.clone(),
            true => {
                let instead = match of {
                    Type::Date => "DATE '2000-01-01'",
                    Type::Bool => "false",
                    _ => "0",
                };
                format!(
                    "coalesce({name}, CAST({instead} AS {})) AS {name}",
                    of.sql()
                )
            }
        };
        let columns: Vec<_> = self.ordered().map(column).collect();
        format!("SELECT {} FROM ({query}) filled", columns.join(", "))
    }

    /// Returns statements that let another side read the files below this folder, if the files alone suffice.
    pub(crate) fn reading_elsewhere(&self, out: &Path) -> Option<Vec<String>> {
        match self.how {
            How::CopyToFolder | How::CopyToFile => Some(self.reading(out)),
            How::Insert(_) => {
                let mut statements = vec![self.table(out, true)];
                statements.extend(self.reading(out));
                Some(statements)
            }
            How::TableAs | How::View => None,
        }
    }

    fn reading(&self, out: &Path) -> Vec<String> {
        let mut statements = Vec::new();
        if matches!(self.how, How::CopyToFolder | How::CopyToFile) {
            statements.push(self.table(out, false));
        }
        let names: Vec<_> = self.ordered().map(|(name, _)| name.clone()).collect();
        statements.push(format!("SELECT {} FROM {NAME}", names.join(", ")));
        statements
    }

    fn target(&self, out: &Path) -> String {
        match self.how {
            How::CopyToFile => format!("{}/one.{}", out.display(), self.format.ending()),
            _ => format!("{}/", out.display()),
        }
    }

    /// Returns the table's declaration. `elsewhere` means that the files exist already and have their own types.
    fn table(&self, out: &Path, elsewhere: bool) -> String {
        let columns: Vec<_> = self
            .ordered()
            .map(|(name, of)| format!("{name} {}", of.sql()))
            .collect();
        let by = self.by.as_ref().map(|by| format!(" PARTITIONED BY ({by})"));
        // Arrow files are read with their own columns.
        let columns = match (self.format, self.how) {
            (Format::Arrow, How::CopyToFolder | How::CopyToFile) => String::new(),
            (Format::Arrow, _) if elsewhere => String::new(),
            _ => format!(" ({})", columns.join(", ")),
        };
        format!(
            "CREATE EXTERNAL TABLE {NAME}{columns} STORED AS {}{} LOCATION '{}'{}",
            self.format.stored_as(),
            by.unwrap_or_default(),
            self.target(out),
            self.format.options(match self.format {
                Format::Parquet => &[],
                _ => &self.options,
            }),
        )
    }

    /// Returns the columns that the query still has, the folders' one last.
    fn ordered(&self) -> impl Iterator<Item = &(String, Type)> {
        let names = self.query.body.names();
        let is_folder = |name: &str| self.by.as_deref() == Some(name);
        let mut columns: Vec<_> = self
            .columns
            .iter()
            .filter(|(name, _)| names.contains(name))
            .collect();
        columns.sort_by_key(|(name, _)| is_folder(name));
        columns.into_iter()
    }
}
