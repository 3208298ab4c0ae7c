//! Rows as text: tables for people, CSV, JSON, Parquet and Arrow for programs.
//!
//! Formatting is pure (batches in, bytes out); [`execute`](super::execute) writes the bytes. A large table that is not for a
//! terminal is printed in parts below one header, so that memory stays bounded; columns widen where a part needs it.

mod plan;
mod table;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::csv::WriterBuilder;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use arrow::json::writer::LineDelimited;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;
use datafusion::parquet::arrow::ArrowWriter;
use humantime::format_duration;
use terminal_size::{Width, terminal_size_of};
use volley_engine::{EmptyTextMark, train_schema};

pub(super) use self::plan::cut;
use self::table::{Borders, Printed};

/// Number of rows of a table that are aligned together.
pub(super) const TABLE_ROWS: usize = 1000;

/// Format of printed rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// An aligned table
    #[default]
    Table,
    /// A table with lines of box-drawing characters
    Box,
    /// A table in Markdown
    Markdown,
    /// A line for each value
    Line,
    /// Comma-separated values with a header; NULL is empty, and an empty text is ""
    Csv,
    /// Tab-separated values with a header
    Tsv,
    /// One JSON object a line
    Json,
    /// A Parquet file
    Parquet,
    /// An Arrow IPC stream
    Arrow,
}

impl Format {
    /// Returns whether people read it, beside messages and counts of rows.
    pub(super) fn is_for_people(self) -> bool {
        match self {
            Self::Table | Self::Box | Self::Markdown | Self::Line => true,
            Self::Csv | Self::Tsv | Self::Json | Self::Parquet | Self::Arrow => false,
        }
    }

    /// Returns whether it cannot be shown on a terminal.
    pub(super) fn is_binary(self) -> bool {
        matches!(self, Self::Parquet | Self::Arrow)
    }

    /// Returns its name on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Formatter of the batches of one result, in order.
pub(super) struct Formatter {
    format: Format,
    /// Width of the terminal that a table must fit into.
    width: Option<usize>,
    /// Rows of a table that wait until there are enough to align them together.
    waiting: Vec<RecordBatch>,
    waiting_rows: usize,
    /// Number of rows that are formatted.
    rows: usize,
    begun: bool,
    /// Widths of the columns of a table so far.
    widths: Option<Vec<usize>>,
    /// Line below the last row of a table.
    end: String,
    /// True for a result of `EXPLAIN`.
    is_plan: bool,
    /// True if a message tells what came of the statement.
    is_told: bool,
    /// True for a result of `CREATE MODEL` that a message tells in a line instead.
    is_training: bool,
    left_out: usize,
    file: Option<File>,
}

/// Writer of a file with its rows so far.
enum File {
    Parquet(Box<ArrowWriter<Vec<u8>>>),
    Arrow(Box<StreamWriter<Vec<u8>>>),
}

impl Formatter {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            width: None,
            waiting: Vec::new(),
            waiting_rows: 0,
            rows: 0,
            begun: false,
            widths: None,
            end: String::new(),
            is_plan: false,
            is_told: false,
            is_training: false,
            left_out: 0,
            file: None,
        }
    }

    /// Keeps tables for people within the width of standard output, if that is a terminal.
    pub(super) fn on_stdout(self) -> Self {
        let width = terminal_size_of(std::io::stdout()).map(|(Width(width), _)| width.into());
        let width = width.filter(|_| self.format.is_for_people());
        self.within(width)
    }

    /// Keeps tables within the width of a terminal.
    pub(super) fn within(mut self, width: Option<usize>) -> Self {
        self.width = width;
        self
    }

    /// Says whether a message tells what came of the statement: then the columns of each of a training's ranks are left
    /// out of a table.
    pub(super) fn told(mut self, is_told: bool) -> Self {
        self.is_told = is_told;
        self
    }

    /// Checks whether the rows so far are nothing that is counted: plans, or a training's ranks.
    pub(super) fn is_text(&self) -> bool {
        self.is_plan || self.is_training
    }

    /// Returns the number of columns that were left out so far.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Adds a batch. Returns the text that can be printed now, which may be empty.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let mut text = Vec::new();
        match self.format {
            Format::Table | Format::Box if plan::is_plan(&batch.schema()) => {
                self.is_plan = true;
                text = plan::print(batch, self.width).into_bytes();
            }
            Format::Table | Format::Box if self.is_told && *batch.schema() == *train_schema() => {
                self.is_training = true;
            }
            Format::Table | Format::Box | Format::Markdown | Format::Line => {
                let mut from = 0;
                while from < batch.num_rows() {
                    let rows = (TABLE_ROWS - self.waiting_rows).min(batch.num_rows() - from);
                    self.waiting.push(batch.slice(from, rows));
                    self.waiting_rows += rows;
                    from += rows;
                    if self.waiting_rows == TABLE_ROWS {
                        text.append(&mut self.table()?);
                    }
                }
                if !self.begun && self.waiting.is_empty() {
                    self.waiting.push(batch.clone());
                }
            }
            Format::Csv | Format::Tsv => {
                let mark = EmptyTextMark::new();
                let columns = batch.columns().iter().map(|column| mark.put(column));
                let marked = RecordBatch::try_new(batch.schema(), columns.collect())?;
                let mut encoded = Vec::new();
                let mut writer = WriterBuilder::new()
                    .with_header(!self.begun)
                    .with_delimiter(if self.format == Format::Csv {
                        b','
                    } else {
                        b'\t'
                    })
                    .build(&mut encoded);
                writer.write(&flat(&marked)?)?;
                drop(writer);
                let encoded = String::from_utf8_lossy(&encoded);
                text = encoded.replace(mark.as_str(), "\"\"").into_bytes();
                self.begun = true;
            }
            Format::Json => {
                let builder = arrow::json::WriterBuilder::new().with_explicit_nulls(true);
                let mut writer = builder.build::<_, LineDelimited>(&mut text);
                writer.write(batch)?;
                writer.finish()?;
            }
            Format::Parquet | Format::Arrow => {
                let file = match &mut self.file {
                    Some(file) => file,
                    none => none.insert(File::new(self.format, batch.schema())?),
                };
                text = file.write(batch)?;
            }
        }
        Ok(text)
    }

    /// Returns the rest of the text after the last batch.
    pub(super) fn finish(&mut self) -> Result<Vec<u8>, ArrowError> {
        if let Some(file) = self.file.take() {
            return file.finish();
        }
        let mut text = match self.waiting.is_empty() {
            true => Vec::new(),
            false => self.table()?,
        };
        text.extend(std::mem::take(&mut self.end).into_bytes());
        Ok(text)
    }

    fn table(&mut self) -> Result<Vec<u8>, ArrowError> {
        let batches = std::mem::take(&mut self.waiting);
        let before = self.rows;
        self.rows += self.waiting_rows;
        self.waiting_rows = 0;
        self.begun = true;
        let borders = match self.format {
            Format::Line => return Ok(table::lines(&batches, before)?.into_bytes()),
            Format::Markdown => Borders::Markdown,
            Format::Box => Borders::Box,
            _ => Borders::Ascii,
        };
        let printed = table::print(&batches, borders, self.width, self.widths.as_deref())?;
        let Printed {
            text,
            end,
            widths,
            left_out,
        } = printed;
        (self.end, self.widths) = (end, Some(widths));
        self.left_out = left_out;
        Ok(text.into_bytes())
    }
}

impl File {
    fn new(format: Format, schema: SchemaRef) -> Result<Self, ArrowError> {
        let to = Vec::new();
        Ok(match format {
            Format::Parquet => Self::Parquet(Box::new(ArrowWriter::try_new(to, schema, None)?)),
            _ => Self::Arrow(Box::new(StreamWriter::try_new(to, &schema)?)),
        })
    }

    /// Adds rows, and takes the bytes that are complete.
    fn write(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        Ok(match self {
            Self::Parquet(writer) => {
                writer.write(batch)?;
                std::mem::take(writer.inner_mut())
            }
            Self::Arrow(writer) => {
                writer.write(batch)?;
                std::mem::take(writer.get_mut())
            }
        })
    }

    fn finish(self) -> Result<Vec<u8>, ArrowError> {
        Ok(match self {
            Self::Parquet(writer) => writer.into_inner()?,
            Self::Arrow(writer) => writer.into_inner()?,
        })
    }
}

/// Formats an age by its largest unit.
pub(super) fn age(since: SystemTime, now: SystemTime) -> String {
    let seconds = now.duration_since(since).unwrap_or_default().as_secs();
    let unit = [86_400, 3_600, 60, 1]
        .into_iter()
        .find(|unit| seconds >= *unit);
    let rounded = unit.map_or(0, |unit| seconds / unit * unit);
    format_duration(Duration::from_secs(rounded)).to_string()
}

/// Returns a column with a text of each item, or NULL.
pub(super) fn texts<T, O: Into<Option<String>>>(items: &[T], of: impl Fn(&T) -> O) -> ArrayRef {
    let texts = items
        .iter()
        .map(|item| -> Option<String> { of(item).into() });
    Arc::new(texts.collect::<StringArray>())
}

/// Returns a column with a time of each item, in UTC.
pub(super) fn times<T>(items: &[T], of: impl Fn(&T) -> SystemTime) -> ArrayRef {
    let millis = items.iter().map(|item| {
        let since = of(item).duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(since.as_millis()).ok()
    });
    let times: TimestampMillisecondArray = millis.collect();
    Arc::new(times.with_timezone("+00:00"))
}

/// Converts lists, structs and maps to their text in a table, so that a CSV cell can hold them.
fn flat(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let options = FormatOptions::default();
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| {
        if !column.data_type().is_nested() {
            return Ok((Arc::clone(field), Arc::clone(column)));
        }
        let values = ArrayFormatter::try_new(column, &options)?;
        let text = (0..column.len()).map(|row| {
            let value = column
                .is_valid(row)
                .then(|| values.value(row).try_to_string());
            value.transpose()
        });
        let text: ArrayRef = Arc::new(text.collect::<Result<StringArray, _>>()?);
        let field = Field::new(field.name(), DataType::Utf8, true);
        Ok((Arc::new(field), text))
    });
    let columns: Result<Vec<_>, ArrowError> = columns.collect();
    let (fields, columns): (Vec<_>, Vec<_>) = columns?.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, ListArray};
    use arrow::datatypes::Int32Type;
    use arrow::ipc::reader::StreamReader;
    use bytes::Bytes;
    use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReader;

    use super::*;

    fn batch(ids: &[i32]) -> RecordBatch {
        let names = ids
            .iter()
            .map(|id| (*id % 2 == 0).then(|| format!("n,{id}")));
        RecordBatch::try_from_iter_with_nullable([
            ("id", Arc::new(Int32Array::from(ids.to_vec())) as _, false),
            ("name", Arc::new(names.collect::<StringArray>()) as _, true),
        ])
        .unwrap()
    }

    fn int(numbers: &[i32]) -> ArrayRef {
        Arc::new(Int32Array::from(numbers.to_vec()))
    }

    fn print(format: Format, batches: &[RecordBatch]) -> String {
        String::from_utf8(bytes(format, batches)).unwrap()
    }

    fn bytes(format: Format, batches: &[RecordBatch]) -> Vec<u8> {
        let mut formatter = Formatter::new(format);
        let mut text: Vec<u8> = Vec::new();
        for batch in batches {
            text.extend(formatter.push(batch).unwrap());
        }
        text.extend(formatter.finish().unwrap());
        text
    }

    #[test]
    fn tables_align_rows_of_several_batches() {
        let expected = "\
+-----+-------+
|  id | name  |
+-----+-------+
|   1 | NULL  |
| 100 | n,100 |
+-----+-------+
";
        assert_eq!(
            print(Format::Table, &[batch(&[1]), batch(&[100])]),
            expected
        );
        assert!(print(Format::Table, &[batch(&[])]).contains("| id | name |"));
    }

    #[test]
    fn large_tables_come_in_parts_below_one_header() {
        let ids: Vec<_> = (100_000..102_500).collect();
        let batches = [batch(&ids[..700]), batch(&ids[700..])];
        let text = print(Format::Table, &batches);
        assert_eq!(text.matches(" id |").count(), 1);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2500 + 4);
        assert!(
            lines.iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
        assert_eq!(lines[lines.len() - 1], lines[0]);
        let exact = print(Format::Table, &[batch(&ids[..1000]), batch(&[])]);
        assert_eq!(exact.lines().count(), 1000 + 4);
        let markdown = print(Format::Markdown, &batches);
        assert_eq!(markdown.lines().count(), 2500 + 2);
        // A part with a longer value is wider, and none is narrower than the one before.
        let ids: Vec<_> = (0..900).chain(10_000..10_100).chain(0..500).collect();
        let wider = print(Format::Box, &[batch(&[7; 1000]), batch(&ids)]);
        let lines: Vec<_> = wider.lines().collect();
        assert_eq!(lines.len(), 2500 + 4);
        let [first, second, third] = [10, 1500, 2400].map(|at: usize| lines[at].chars().count());
        assert!(first < second && second == third, "{wider}");
    }

    #[test]
    fn csv_has_one_header_and_quotes() {
        let text = print(Format::Csv, &[batch(&[1]), batch(&[2])]);
        assert_eq!(text, "id,name\n1,\n2,\"n,2\"\n");
        assert_eq!(print(Format::Csv, &[batch(&[])]), "id,name\n");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = print(Format::Json, &[batch(&[1, 2])]);
        assert_eq!(
            text,
            "{\"id\":1,\"name\":null}\n{\"id\":2,\"name\":\"n,2\"}\n"
        );
        assert_eq!(print(Format::Json, &[batch(&[])]), "");
    }

    #[test]
    fn null_and_a_text_without_characters_differ_in_csv() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(""), None, Some("a\tb")]));
        let batch = RecordBatch::try_from_iter([("s", texts), ("n", int(&[1, 2, 3]))]).unwrap();
        let csv = print(Format::Csv, std::slice::from_ref(&batch));
        assert_eq!(csv, "s,n\n\"\",1\n,2\na\tb,3\n");
        assert_eq!(
            print(Format::Tsv, &[batch]),
            "s\tn\n\"\"\t1\n\t2\n\"a\tb\"\t3\n"
        );
    }

    #[test]
    fn tables_have_other_lines_in_markdown_and_boxes() {
        let text = print(Format::Markdown, &[batch(&[1])]);
        assert_eq!(text, "| id | name |\n|----|------|\n|  1 | NULL |\n");
        let text = print(Format::Box, &[batch(&[1])]);
        assert!(text.starts_with("┌────┬──────┐\n│ id ┆ name │\n"), "{text}");
        let ids: Vec<_> = (0..1001).collect();
        let text = print(Format::Line, &[batch(&ids[..10]), batch(&ids[10..])]);
        assert!(
            text.ends_with("-[ row 1001 ]-\nid   | 1000\nname | n,1000\n"),
            "{text}"
        );
    }

    #[test]
    fn files_have_all_rows() {
        let batches = [batch(&[1, 2]), batch(&[3])];
        let stream = bytes(Format::Arrow, &batches);
        let rows = StreamReader::try_new(stream.as_slice(), None).unwrap();
        assert_eq!(rows.collect::<Result<Vec<_>, _>>().unwrap(), batches);
        let file = Bytes::from(bytes(Format::Parquet, &batches));
        let rows = ParquetRecordBatchReader::try_new(file, 10).unwrap();
        let rows = rows.collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(rows, [batch(&[1, 2, 3])]);
        assert!(!bytes(Format::Parquet, &[batch(&[])]).is_empty());
    }

    #[test]
    fn ages_have_one_unit() {
        let now = SystemTime::now();
        let at = |seconds| age(now - Duration::from_secs(seconds), now);
        assert_eq!([at(0), at(59), at(61)], ["0s", "59s", "1m"]);
        assert_eq!([at(7_300), at(200_000)], ["2h", "2days"]);
        assert_eq!(age(now + Duration::from_secs(9), now), "0s");
    }

    #[test]
    fn lists_are_text_in_csv() {
        let lists = [Some(vec![Some(1), None]), None, Some(vec![])];
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let batch = RecordBatch::try_from_iter([("l", Arc::new(lists) as ArrayRef)]).unwrap();
        assert_eq!(print(Format::Csv, &[batch]), "l\n\"[1, ]\"\n\"\"\n[]\n");
    }
}
