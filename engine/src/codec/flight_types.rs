//! Types of results: Arrow Flight changes some types, and a query's rows must have their planned types.
//!
//! Fetching results is not part of this module.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::{can_cast_types, cast_with_options};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::common::format::DEFAULT_CAST_OPTIONS;
use datafusion::error::Result;

/// Casts rows to the query's types: Arrow Flight sends some as others.
///
/// # Errors
/// When a value does not fit its type.
pub fn as_planned(batch: RecordBatch, planned: &Schema) -> Result<RecordBatch> {
    let came = batch.schema();
    let was_another = |(came, planned): (&FieldRef, &FieldRef)| {
        let (came, planned) = (came.data_type(), planned.data_type());
        is_sent_otherwise(planned)
            && !came.equals_datatype(planned)
            && as_sent(came).equals_datatype(&as_sent(planned))
            && can_cast_types(came, planned)
    };
    let fields = || came.fields().iter().zip(planned.fields());
    if came.fields().len() != planned.fields().len() || !fields().any(was_another) {
        return Ok(batch);
    }
    let typed = fields().map(|(came, planned)| match was_another((came, planned)) {
        true => {
            let came = came.as_ref().clone();
            Arc::new(came.with_data_type(planned.data_type().clone()))
        }
        false => Arc::clone(came),
    });
    let typed: Fields = typed.collect();
    let columns = batch.columns().iter().zip(&typed);
    let columns = columns
        .map(|(column, field)| cast_with_options(column, field.data_type(), &DEFAULT_CAST_OPTIONS));
    let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
    Ok(RecordBatch::try_new(Arc::new(Schema::new(typed)), columns)?)
}

/// Checks whether Arrow Flight changes a type.
fn is_sent_otherwise(planned: &DataType) -> bool {
    let of = |field: &FieldRef| is_sent_otherwise(field.data_type());
    match planned {
        DataType::Dictionary(..) | DataType::LargeList(_) => true,
        DataType::List(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => of(field),
        DataType::Struct(fields) => fields.iter().any(of),
        _ => false,
    }
}

/// Returns the type that Arrow Flight sends: the values of a dictionary, a list for a large list; all nested fields are
/// nullable.
fn as_sent(planned: &DataType) -> DataType {
    let of =
        |field: &FieldRef| Arc::new(Field::new(field.name(), as_sent(field.data_type()), true));
    match planned {
        DataType::Dictionary(_, values) => as_sent(values),
        DataType::List(item) | DataType::LargeList(item) => DataType::List(of(item)),
        DataType::ListView(item) => DataType::ListView(of(item)),
        DataType::LargeListView(item) => DataType::LargeListView(of(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(of(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(of(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(of).collect()),
        other => other.clone(),
    }
}
