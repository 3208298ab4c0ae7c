//! One schema of many files: the columns of all of them, or which two do not go together.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion::common::plan_err;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{DEFAULT_SCHEMA_INFER_MAX_RECORD, FileFormat};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion_datasource_parquet::metadata::DFParquetMetadata;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use volley_engine::error::reason;
use volley_engine::{CsvDialect, decompressed, whole_records};

use crate::{Error, Result};

/// Number of files whose columns are inferred at once.
pub(super) const AT_ONCE: usize = 16;

/// Matching of columns between files of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columns {
    /// By their names; a file may lack some (Parquet, JSON, Arrow).
    ByName,
    /// By their places; types of text may differ (CSV).
    ByPlace,
    /// All files have the same (Avro).
    Same,
}

impl Columns {
    pub(super) fn of(format: &dyn FileFormat) -> Self {
        match format.get_ext().trim_start_matches('.') {
            "csv" => Self::ByPlace,
            "parquet" | "json" | "arrow" => Self::ByName,
            _ => Self::Same,
        }
    }
}

/// Returns the schema of all files, given with their names; files without bytes have none.
///
/// # Errors
/// When a file cannot be read, or two have incompatible columns; the error names them.
pub(super) async fn of_all(
    files: Vec<(String, ObjectMeta)>,
    format: &Arc<dyn FileFormat>,
    store: &Arc<dyn ObjectStore>,
    state: &SessionState,
) -> Result<SchemaRef> {
    let columns = Columns::of(format.as_ref());
    let files = files.into_iter().filter(|(_, meta)| meta.size > 0);
    let schemas = files.map(|(file, meta)| async move {
        match schema_of(format, store, state, meta).await {
            Ok(schema) => Ok((file, as_read(&schema, format.as_ref()))),
            Err(source) => Err(Error::from(volley_proto::Error::Unreadable {
                file,
                source: reason(&source).into(),
            })),
        }
    });
    let schemas: Vec<_> = futures::stream::iter(schemas)
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    merge(&schemas, columns)
}

/// Reads the schema of a file.
async fn schema_of(
    format: &Arc<dyn FileFormat>,
    store: &Arc<dyn ObjectStore>,
    state: &SessionState,
    file: ObjectMeta,
) -> datafusion::error::Result<SchemaRef> {
    let Some(csv) = format.downcast_ref::<CsvFormat>() else {
        let files = [file];
        let schema = format.infer_schema(state, store, &files).await?;
        if format.is::<ParquetFormat>() {
            let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
            let own = DFParquetMetadata::new(store.as_ref(), &files[0]);
            let own = own.with_file_metadata_cache(Some(cache));
            refuse_repeated(own.fetch_schema().await?.fields())?;
        }
        return Ok(schema);
    };
    // In pieces that end with records: those of `infer_schema` end within quoted values too.
    let options = csv.options();
    let bytes = store.get(&file.location).await?.into_stream();
    let bytes = bytes.map_err(DataFusionError::from).boxed();
    let bytes = decompressed(bytes, FileCompressionType::from(options.compression));
    let records = whole_records(bytes, CsvDialect::from(options));
    let at_most = options
        .schema_infer_max_rec
        .unwrap_or(DEFAULT_SCHEMA_INFER_MAX_RECORD);
    let (schema, _) = csv
        .infer_schema_from_stream(state, at_most, records)
        .await?;
    Ok(Arc::new(schema))
}

/// Refuses two columns of one name, also in structs: DataFusion makes one of them, of the first one's values.
fn refuse_repeated(fields: &Fields) -> datafusion::error::Result<()> {
    let mut names = HashSet::new();
    for field in fields {
        if !names.insert(field.name()) {
            return plan_err!(
                "two of its columns are called {:?}: write it again with a name for each",
                field.name()
            );
        }
        if let DataType::Struct(fields) = field.data_type() {
            refuse_repeated(fields)?;
        }
    }
    Ok(())
}

/// Returns the schema with which a file of this schema is read: dictionaries become their values, so pandas' categories
/// become text. Dictionaries only encode a file. Batches of several files, or from the wire, each have their own, and
/// where Arrow merges them, it repeats values, until keys of 8 bits overflow
/// ([arrow-rs#10925](https://github.com/apache/arrow-rs/issues/10925)) or there are more values than rows.
///
/// Parquet files have one layout of text and of bytes: Polars writes another layout than pyarrow, functions of two texts
/// need the same one, and texts of two layouts have two hashes. It is that of views, unless they are turned off, and the
/// plain one within lists and structs, where the reader makes no views. A batch of an Arrow file, which may have all of
/// its rows, is not copied into another layout.
fn as_read(schema: &Schema, format: &dyn FileFormat) -> SchemaRef {
    let parquet = format.downcast_ref::<ParquetFormat>();
    let has_views = parquet.is_some_and(ParquetFormat::force_view_types);
    let fields = schema.fields().iter().map(|field| {
        let data_type = match type_as_read(field.data_type(), parquet.is_some()) {
            DataType::Utf8 if has_views => DataType::Utf8View,
            DataType::Binary if has_views => DataType::BinaryView,
            other => other,
        };
        field.as_ref().clone().with_data_type(data_type)
    });
    let fields: Fields = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn type_as_read(of: &DataType, one_layout: bool) -> DataType {
    let field = |field: &FieldRef| {
        let data_type = type_as_read(field.data_type(), one_layout);
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match of {
        DataType::Dictionary(_, values) => type_as_read(values, one_layout),
        DataType::LargeUtf8 | DataType::Utf8View if one_layout => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView if one_layout => DataType::Binary,
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

/// Removes the columns of files that are partition columns too: the value in the folder's name counts.
///
/// # Errors
/// When there are any, and columns are not matched by name. `file` is the name of a file.
pub(super) fn without_partition_columns(
    schema: &SchemaRef,
    partition_columns: &[String],
    columns: Columns,
    file: impl FnOnce() -> String,
) -> Result<SchemaRef> {
    let is_repeated = |field: &&FieldRef| partition_columns.contains(field.name());
    match schema.fields().iter().find(is_repeated) {
        None => Ok(Arc::clone(schema)),
        Some(field) if columns != Columns::ByName => Err(Error::FilesDiffer {
            one: file(),
            other: "the folder that it is in".to_owned(),
            how: format!(
                "column {:?} is in the file and in the folder's name",
                field.name()
            ),
        }),
        Some(_) => {
            let fields = schema.fields().iter().filter(|field| !is_repeated(field));
            let fields: Vec<_> = fields.cloned().collect();
            let metadata = schema.metadata().clone();
            Ok(Arc::new(Schema::new_with_metadata(fields, metadata)))
        }
    }
}

/// Merges the schemas of files into one.
fn merge(schemas: &[(String, SchemaRef)], columns: Columns) -> Result<SchemaRef> {
    let mut merged: Vec<(&String, Field)> = Vec::new();
    let mut metadata = None;
    for (file, schema) in schemas {
        metadata.get_or_insert_with(|| schema.metadata().clone());
        if merged.is_empty() {
            let fields = schema.fields().iter();
            merged = fields.map(|field| (file, field.as_ref().clone())).collect();
            continue;
        }
        let known =
            |merged: &[(&String, Field)]| merged.first().map_or(file, |(file, _)| *file).clone();
        if columns != Columns::ByName {
            let names = |fields: &mut dyn Iterator<Item = &String>| {
                let names: Vec<_> = fields.map(String::as_str).collect();
                names.join(", ")
            };
            let before = names(&mut merged.iter().map(|(_, field)| field.name()));
            let now = names(&mut schema.fields().iter().map(|field| field.name()));
            if before != now {
                return Err(Error::FilesDiffer {
                    one: known(&merged),
                    other: file.clone(),
                    how: format!("the first has the columns {before}, the second {now}"),
                });
            }
        }
        for field in schema.fields() {
            match merged
                .iter_mut()
                .find(|(_, known)| known.name() == field.name())
            {
                Some((first, known)) => join(first, known, file, field, columns)?,
                // The files before lack it.
                None => merged.push((file, field.as_ref().clone().with_nullable(true))),
            }
        }
        if columns == Columns::ByName {
            for (_, field) in &mut merged {
                if schema.field_with_name(field.name()).is_err() {
                    field.set_nullable(true);
                }
            }
        }
    }
    let fields = merged
        .into_iter()
        .map(|(_, field)| match field.data_type() {
            // No file has a value of it.
            DataType::Null => field.with_data_type(DataType::Utf8),
            _ => field,
        });
    Ok(Arc::new(Schema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        metadata.unwrap_or_default(),
    )))
}

/// Gives a column the type that another file needs too.
fn join(
    first: &mut &String,
    known: &mut Field,
    file: &str,
    field: &FieldRef,
    columns: Columns,
) -> Result<()> {
    known.set_nullable(known.is_nullable() || field.is_nullable());
    let common = common(known.data_type(), field.data_type(), columns);
    let Some(common) = common else {
        return Err(Error::FilesDiffer {
            one: first.to_string(),
            other: file.to_owned(),
            how: format!(
                "column {:?} is {} in the first and {} in the second; CREATE EXTERNAL TABLE t (column type, \
                 …) declares its type",
                field.name(),
                known.data_type(),
                field.data_type()
            ),
        });
    };
    known.set_data_type(common);
    Ok(())
}

/// Returns the type that can hold the values of both.
fn common(a: &DataType, b: &DataType, columns: Columns) -> Option<DataType> {
    use DataType::{Float32, Float64, Null};
    let width = |data_type: &DataType| match data_type {
        DataType::Int8 => Some(1),
        DataType::Int16 => Some(2),
        DataType::Int32 => Some(3),
        DataType::Int64 => Some(4),
        _ => None,
    };
    match (a, b) {
        (a, b) if a == b => Some(a.clone()),
        _ if columns == Columns::Same => None,
        // Polars writes another layout than pyarrow.
        (a, b) if a.is_string() && b.is_string() => Some(DataType::Utf8),
        (a, b) if a.is_binary() && b.is_binary() => Some(DataType::Binary),
        (Null, other) | (other, Null) => Some(other.clone()),
        (Float32, Float64) | (Float64, Float32) => Some(Float64),
        (Float64, number) | (number, Float64) if width(number).is_some() => Some(Float64),
        (DataType::Struct(a), DataType::Struct(b)) => {
            common_fields(a, b, columns).map(DataType::Struct)
        }
        (DataType::List(a), DataType::List(b)) => common_item(a, b, columns).map(DataType::List),
        (DataType::LargeList(a), DataType::LargeList(b)) => {
            common_item(a, b, columns).map(DataType::LargeList)
        }
        (a, b) => {
            let (wide, other) = (width(a)?, width(b)?);
            Some(if wide >= other { a.clone() } else { b.clone() })
        }
    }
}

/// Returns the fields of a struct that has the fields of both.
fn common_fields(a: &Fields, b: &Fields, columns: Columns) -> Option<Fields> {
    let named = |fields: &Fields, name: &str| fields.find(name).map(|(_, field)| Arc::clone(field));
    let of_a = a.iter().map(|field| match named(b, field.name()) {
        Some(other) => common_item(field, &other, columns),
        None => Some(Arc::new(field.as_ref().clone().with_nullable(true))),
    });
    let of_b = b.iter().filter(|field| named(a, field.name()).is_none());
    let of_b = of_b.map(|field| Some(Arc::new(field.as_ref().clone().with_nullable(true))));
    of_a.chain(of_b).collect()
}

/// Returns the field that can hold the values of both.
fn common_item(a: &FieldRef, b: &FieldRef, columns: Columns) -> Option<FieldRef> {
    let common = common(a.data_type(), b.data_type(), columns)?;
    let nullable = a.is_nullable() || b.is_nullable();
    let field = a.as_ref().clone().with_data_type(common);
    Some(Arc::new(field.with_nullable(nullable)))
}

/// Pairs files that were found with their names, for messages.
pub(super) fn named(files: &[PathBuf], metas: Vec<ObjectMeta>) -> Vec<(String, ObjectMeta)> {
    let names = files.iter().map(|file| file.display().to_string());
    names.zip(metas).collect()
}

#[cfg(test)]
mod tests {
    use datafusion::datasource::file_format::arrow::ArrowFormat;

    use super::*;

    fn schema(file: &str, columns: &[(&str, DataType)]) -> (String, SchemaRef) {
        let field =
            |(name, data_type): &(&str, DataType)| Field::new(*name, data_type.clone(), true);
        let fields: Vec<_> = columns.iter().map(field).collect();
        (file.to_owned(), Arc::new(Schema::new(fields)))
    }

    fn types(schema: &Schema) -> Vec<(&str, &DataType)> {
        let fields = schema.fields().iter();
        fields
            .map(|field| (field.name().as_str(), field.data_type()))
            .collect()
    }

    #[test]
    fn columns_of_all_files_are_there() {
        use DataType::{Float64, Int32, Int64, Null, Utf8};
        let a = schema("a", &[("x", Int64), ("y", Null)]);
        let b = schema("b", &[("x", Float64), ("y", Utf8)]);
        let c = schema("c", &[("z", Int32), ("x", Int64)]);
        let merged = merge(&[a.clone(), b.clone()], Columns::ByPlace).unwrap();
        assert_eq!(types(&merged), [("x", &Float64), ("y", &Utf8)]);
        let merged = merge(&[a.clone(), b, c.clone()], Columns::ByName).unwrap();
        assert_eq!(
            types(&merged),
            [("x", &Float64), ("y", &Utf8), ("z", &Int32)]
        );
        let error = merge(&[a, c], Columns::ByPlace).unwrap_err().to_string();
        assert!(error.contains("x, y") && error.contains("z, x"), "{error}");
    }

    #[test]
    fn text_is_text_in_any_layout() {
        use DataType::{Binary, BinaryView, Int64, LargeBinary, LargeUtf8, Utf8, Utf8View};
        for (a, b, due) in [
            (Utf8, LargeUtf8, Some(&Utf8)),
            (LargeUtf8, Utf8View, Some(&Utf8)),
            (BinaryView, LargeBinary, Some(&Binary)),
            (Utf8, Binary, None),
            (Int64, Utf8, None),
        ] {
            let files = [schema("a", &[("x", a)]), schema("b", &[("x", b)])];
            let merged = merge(&files, Columns::ByName).ok();
            assert_eq!(
                merged.as_ref().map(|merged| merged.field(0).data_type()),
                due
            );
        }
    }

    #[test]
    fn fields_of_all_files_structs_are_there() {
        use DataType::{Float64, Int64, LargeList, List, Struct, Utf8};
        let fields = |fields: &[(&str, DataType, bool)]| {
            let fields = fields.iter();
            Struct(
                fields
                    .map(|(name, of, nullable)| Field::new(*name, of.clone(), *nullable))
                    .collect(),
            )
        };
        let a = fields(&[("x", Int64, false), ("y", Utf8, false)]);
        let b = fields(&[("z", Utf8, false), ("x", Float64, false)]);
        let both = fields(&[("x", Float64, false), ("y", Utf8, true), ("z", Utf8, true)]);
        let item = |of: &DataType| Arc::new(Field::new_list_field(of.clone(), true));
        let cases: [fn(FieldRef) -> DataType; 3] =
            [|field| field.data_type().clone(), List, LargeList];
        for case in cases {
            let [a, b, both] = [&a, &b, &both].map(|of| case(item(of)));
            let files = [schema("a", &[("s", a)]), schema("b", &[("s", b)])];
            let merged = merge(&files, Columns::ByName).unwrap();
            assert_eq!(types(&merged), [("s", &both)]);
            assert!(merge(&files, Columns::Same).is_err());
        }
    }

    #[test]
    fn layouts_of_files_are_their_own() {
        use DataType::{
            Binary, BinaryView, Int8, Int64, LargeUtf8, List, Struct, UInt32, Utf8, Utf8View,
        };
        let of = |keys, values| DataType::Dictionary(Box::new(keys), Box::new(values));
        let item = |of| Arc::new(Field::new_list_field(of, true));
        let one_field = |of| Struct(vec![Field::new("x", of, false)].into());
        let (_, stored) = schema(
            "a",
            &[
                ("x", of(Int8, Utf8)),
                ("l", List(item(one_field(of(UInt32, Int64))))),
                ("s", one_field(of(Int8, List(item(LargeUtf8))))),
                ("b", BinaryView),
            ],
        );
        for (has_views, text, bytes) in [(false, Utf8, Binary), (true, Utf8View, BinaryView)] {
            let (_, read) = schema(
                "a",
                &[
                    ("x", text),
                    ("l", List(item(one_field(Int64)))),
                    ("s", one_field(List(item(Utf8)))),
                    ("b", bytes),
                ],
            );
            let parquet = ParquetFormat::default().with_force_view_types(has_views);
            assert_eq!(as_read(&stored, &parquet), read);
        }
        let (_, stored) = schema("a", &[("x", LargeUtf8), ("d", of(Int8, LargeUtf8))]);
        let (_, read) = schema("a", &[("x", LargeUtf8), ("d", LargeUtf8)]);
        assert_eq!(as_read(&stored, &ArrowFormat), read);
    }

    #[test]
    fn files_that_do_not_go_together_are_both_named() {
        let a = schema("a.csv", &[("x", DataType::Int64)]);
        let b = schema("b.csv", &[("x", DataType::Utf8)]);
        for columns in [Columns::ByName, Columns::ByPlace, Columns::Same] {
            let error = merge(&[a.clone(), b.clone()], columns)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("a.csv") && error.contains("b.csv"),
                "{error}"
            );
            assert!(
                error.contains("\"x\"") && error.contains("Int64"),
                "{error}"
            );
        }
    }
}
