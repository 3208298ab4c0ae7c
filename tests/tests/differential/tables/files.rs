//! Writing of a table's files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array,
    ListArray, RecordBatch, StringArray, StructArray, TimestampNanosecondArray,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema};
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::parquet::arrow::ArrowWriter;
use futures::{StreamExt, TryStreamExt, stream};

use super::{Column, Format, Table, Type, Value};

type Row = Vec<Value>;

impl Table {
    /// Writes the files into a folder with the table's name.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        if self.in_memory {
            return Ok(());
        }
        let dir = dir.join(&self.name);
        fs::create_dir_all(&dir)?;
        for (number, rows) in self.files.iter().enumerate() {
            let name = format!("f{number}.{}", self.format.ending());
            if !self.by_folder {
                self.write_file(&dir.join(&name), rows)?;
                continue;
            }
            let mut folders: BTreeMap<String, Vec<Row>> = BTreeMap::new();
            for row in rows {
                let (folder, rest) = row.split_last().context("a table has columns")?;
                // Characters that a path cannot hold are not tested here.
                let folder = folder.csv().replace([',', '"', '%', '\'', ' '], "_");
                folders.entry(folder).or_default().push(rest.to_vec());
            }
            for (value, rows) in folders {
                let last = self.columns.last().context("a table has columns")?;
                let folder = dir.join(format!("{}={value}", last.name));
                fs::create_dir_all(&folder)?;
                self.write_file(&folder.join(&name), &rows)?;
            }
        }
        Ok(())
    }

    fn write_file(&self, path: &Path, rows: &[Row]) -> Result<()> {
        let columns = &self.columns[..self.columns.len() - usize::from(self.by_folder)];
        match self.format {
            Format::Csv => fs::write(path, csv(columns, rows))?,
            Format::Gzip => fs::write(
                path,
                compress(FileCompressionType::GZIP, csv(columns, rows))?,
            )?,
            Format::Zstd => fs::write(
                path,
                compress(FileCompressionType::ZSTD, csv(columns, rows))?,
            )?,
            Format::Json => fs::write(path, json(columns, rows))?,
            Format::Parquet => {
                let batch = batch(columns, rows)?;
                let mut writer = ArrowWriter::try_new(File::create(path)?, batch.schema(), None)?;
                writer.write(&batch)?;
                writer.close()?;
            }
            Format::Arrow => {
                let batch = batch(columns, rows)?;
                let mut writer = FileWriter::try_new(File::create(path)?, &batch.schema())?;
                writer.write(&batch)?;
                writer.finish()?;
            }
        }
        Ok(())
    }
}

fn csv(columns: &[Column], rows: &[Row]) -> String {
    let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
    let mut text = names.join(",") + "\n";
    for row in rows {
        let cells: Vec<_> = row.iter().map(Value::csv).collect();
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

fn json(columns: &[Column], rows: &[Row]) -> String {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = columns.iter().zip(row);
        // A missing key is NULL too.
        let there = cells.filter(|(_, value)| number % 2 == 0 || **value != Value::Null);
        let cells: Vec<_> = there
            .map(|(column, value)| format!("\"{}\":{}", column.name, value.json()))
            .collect();
        text += &format!("{{{}}}\n", cells.join(","));
    }
    text
}

fn compress(by: FileCompressionType, text: String) -> Result<Vec<u8>> {
    let whole = stream::iter([Ok(text.into_bytes().into())]).boxed();
    let compressed = by.convert_to_compress_stream(whole)?;
    let parts: Vec<_> = futures::executor::block_on(compressed.try_collect())?;
    Ok(parts.concat())
}

fn batch(columns: &[Column], rows: &[Row]) -> Result<RecordBatch> {
    let stored = |(at, column): (usize, &Column)| {
        let usual = array(column.data_type, rows.iter().map(|row| &row[at]));
        match &column.stored {
            Some(stored) => cast(&usual, stored),
            None => Ok(usual),
        }
    };
    let arrays: Vec<_> = columns
        .iter()
        .enumerate()
        .map(stored)
        .collect::<Result<_, _>>()?;
    let fields: Vec<_> = columns
        .iter()
        .zip(&arrays)
        .map(|(column, array)| Field::new(&column.name, array.data_type().clone(), true))
        .collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

/// Collects values of one kind, with NULL for all others.
macro_rules! those {
    ($values:expr, $kind:path) => {
        $values.map(|value| match value {
            $kind(value) => Some(value.to_owned()),
            _ => None,
        })
    };
}

fn array<'a>(of: Type, values: impl Iterator<Item = &'a Value> + Clone) -> ArrayRef {
    match of {
        Type::Bool => Arc::new(those!(values, Value::Bool).collect::<BooleanArray>()),
        Type::Int => Arc::new(those!(values, Value::Int).collect::<Int64Array>()),
        Type::Small => {
            let small = those!(values, Value::Int).map(|value| value.map(|value| value as i32));
            Arc::new(small.collect::<Int32Array>())
        }
        Type::Double => Arc::new(those!(values, Value::Double).collect::<Float64Array>()),
        Type::Decimal => {
            let cents = those!(values, Value::Decimal).map(|cents| cents.map(i128::from));
            let cents = cents.collect::<Decimal128Array>();
            let cents = cents.with_precision_and_scale(12, 2);
            Arc::new(cents.expect("cents fit into twelve digits"))
        }
        Type::Text => Arc::new(those!(values, Value::Text).collect::<StringArray>()),
        Type::Date => Arc::new(those!(values, Value::Date).collect::<Date32Array>()),
        Type::Timestamp => {
            let nanos = those!(values, Value::Timestamp)
                .map(|seconds| seconds.map(|seconds| seconds * 1_000_000_000));
            Arc::new(nanos.collect::<TimestampNanosecondArray>())
        }
        Type::List => Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(those!(
            values,
            Value::List
        ))),
        Type::Struct => structs(values),
    }
}

fn structs<'a>(values: impl Iterator<Item = &'a Value> + Clone) -> ArrayRef {
    let parts = values.clone().map(|value| match value {
        Value::Struct(a, b) => (*a, b.clone()),
        _ => (None, None),
    });
    let (a, b): (Vec<_>, Vec<_>) = parts.unzip();
    let there: Vec<_> = values.map(|value| *value != Value::Null).collect();
    let fields = Fields::from(vec![
        Field::new("a", DataType::Int64, true),
        Field::new("b", DataType::Utf8, true),
    ]);
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(a)),
        Arc::new(StringArray::from(b)),
    ];
    Arc::new(StructArray::new(
        fields,
        arrays,
        Some(NullBuffer::from(there)),
    ))
}
