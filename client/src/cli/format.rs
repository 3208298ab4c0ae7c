//! Rows as text: a table for people, CSV and JSON lines for programs.
//!
//! Formatting is pure (batches in, bytes out); [`execute`](super::execute) writes the bytes. A large table is printed
//! in parts, each with its own header and widths, so that memory stays bounded.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::csv::WriterBuilder;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::json::writer::LineDelimited;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_options;
use clap::ValueEnum;

/// Number of rows of a table that are aligned together.
const TABLE_ROWS: usize = 1000;

/// How rows are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// An aligned table
    #[default]
    Table,
    /// Comma-separated values with a header
    Csv,
    /// One JSON object a line
    Json,
}

/// Formatter of the batches of one result, in order.
#[derive(Debug)]
pub(super) struct Formatter {
    format: Format,
    /// Rows of a table that wait until there are enough to align them together.
    waiting: Vec<RecordBatch>,
    waiting_rows: usize,
    begun: bool,
}

impl Formatter {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            waiting: Vec::new(),
            waiting_rows: 0,
            begun: false,
        }
    }

    /// Adds a batch. Returns the text that can be printed now, which may be empty.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        let mut text = Vec::new();
        match self.format {
            Format::Table => {
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
            Format::Csv => {
                let mut writer = WriterBuilder::new()
                    .with_header(!self.begun)
                    .build(&mut text);
                writer.write(&flat(batch)?)?;
                drop(writer);
                self.begun = true;
            }
            Format::Json => {
                let builder = arrow::json::WriterBuilder::new().with_explicit_nulls(true);
                let mut writer = builder.build::<_, LineDelimited>(&mut text);
                writer.write(batch)?;
                writer.finish()?;
            }
        }
        Ok(text)
    }

    /// Returns the rest of the text after the last batch.
    pub(super) fn finish(mut self) -> Result<Vec<u8>, ArrowError> {
        if self.waiting.is_empty() {
            Ok(Vec::new())
        } else {
            self.table()
        }
    }

    fn table(&mut self) -> Result<Vec<u8>, ArrowError> {
        let options = FormatOptions::default()
            .with_null("NULL")
            .with_display_error(true);
        let batches = std::mem::take(&mut self.waiting);
        self.waiting_rows = 0;
        self.begun = true;
        Ok(format!(
            "{}\n",
            pretty_format_batches_with_options(&batches, &options)?
        )
        .into_bytes())
    }
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

    fn print(format: Format, batches: &[RecordBatch]) -> String {
        let mut formatter = Formatter::new(format);
        let mut text: Vec<u8> = Vec::new();
        for batch in batches {
            text.extend(formatter.push(batch).unwrap());
        }
        text.extend(formatter.finish().unwrap());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn tables_align_rows_of_several_batches() {
        let expected = "\
+-----+-------+
| id  | name  |
+-----+-------+
| 1   | NULL  |
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
    fn large_tables_come_in_parts() {
        let ids: Vec<_> = (0..2500).collect();
        let text = print(Format::Table, &[batch(&ids[..700]), batch(&ids[700..])]);
        assert_eq!(text.matches("| id ").count(), 3);
        assert_eq!(text.lines().count(), 2500 + 3 * 4);
        let exact = print(Format::Table, &[batch(&ids[..1000]), batch(&[])]);
        assert_eq!(exact.matches("| id ").count(), 1);
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
    fn lists_are_text_in_csv() {
        let lists = [Some(vec![Some(1), None]), None, Some(vec![])];
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let batch = RecordBatch::try_from_iter([("l", Arc::new(lists) as ArrayRef)]).unwrap();
        assert_eq!(print(Format::Csv, &[batch]), "l\n\"[1, ]\"\n\"\"\n[]\n");
    }
}
