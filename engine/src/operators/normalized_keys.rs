//! Sorting by several numbers, dates or booleans as one normalized key.
//!
//! DataFusion sorts and merges rows by one number several times as fast as by two: one number has loops over plain
//! values, while several need a closure call per comparison and column, and are merged by rows of bytes. So keys of
//! fixed width are packed into one 128-bit number that preserves their order, NULLs included. DataFusion's operator
//! sorts the rows by it, and the number is removed again. A row takes 16 bytes more meanwhile, and twice that in the
//! sort's reservation.
//!
//! Not here: keys that, with one bit each for NULL, exceed 126 bits in total, such as two of 64 bits; decimals and
//! keys of variable width; top-k sorts; rows with views of text or bytes, because with one key DataFusion sorts
//! several batches as one run, and reserves the memory of all its views for each batch that it emits.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Decimal128Array, PrimitiveArray,
};
use datafusion::arrow::compute::{SortOptions, cast};
use datafusion::arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, Schema, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use crate::runtime::context_with;
use crate::{delegate_to, display_as};

/// Maximum width of a normalized key, in bits, so that it fits 38 decimal digits.
const BITS: u32 = 126;

/// Size of a sorted run before runs are merged, as the sort reserves it: twice the rows' bytes. With DataFusion's
/// default of 1 MiB, the Rossmann features take 4 to 7 % more CPU time.
const RUN_BYTES: usize = 4 << 20;

/// Makes a sort by several keys of fixed width sort by a normalized key. Other operators stay unchanged.
///
/// # Errors
/// When the sort's input does not have its keys.
pub(crate) fn normalize_keys(node: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(sort) = node.downcast_ref::<SortExec>() else {
        return Ok(node);
    };
    if sort.fetch().is_some() || sort.expr().len() < 2 {
        return Ok(node);
    }
    let schema = sort.input().schema();
    let is_view = |field: &FieldRef| has_views(field.data_type());
    if schema.fields().iter().any(is_view) {
        return Ok(node);
    }
    let Some(key) = NormalizedKey::of(sort.expr(), &schema)? else {
        return Ok(node);
    };
    let columns = schema.fields().iter().enumerate();
    let column = |(at, field): (usize, &FieldRef)| {
        let column = Arc::new(Column::new(field.name(), at)) as Arc<dyn PhysicalExpr>;
        (column, field.name().clone())
    };
    let name = "normalized_key";
    let with_key = columns
        .map(column)
        .chain([(Arc::new(key) as _, name.to_owned())]);
    let with_key = ProjectionExec::try_new(with_key, Arc::clone(sort.input()))?;
    let key = Column::new(name, schema.fields().len());
    let ascending = SortOptions::default();
    let by_key = LexOrdering::from([PhysicalSortExpr::new(Arc::new(key), ascending)]);
    let by_key = SortExec::new(by_key, Arc::new(with_key))
        .with_preserve_partitioning(sort.preserve_partitioning());
    Ok(Arc::new(NormalizedSort { plan: node, by_key }))
}

/// Checks for types whose values point into shared memory.
fn has_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View
        | DataType::BinaryView
        | DataType::ListView(_)
        | DataType::LargeListView(_) => true,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_views(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        DataType::Dictionary(_, values) => has_views(values),
        _ => false,
    }
}

/// Replacement of a [`SortExec`].
#[derive(Debug)]
struct NormalizedSort {
    plan: Arc<dyn ExecutionPlan>,
    /// Sort of the same rows, with the normalized key as a last column.
    by_key: SortExec,
}

display_as!(NormalizedSort, plan);

impl ExecutionPlan for NormalizedSort {
    delegate_to!(plan, |_, plan| normalize_keys(plan));

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let mut config = context.session_config().clone();
        let run = &mut config.options_mut().execution.sort_in_place_threshold_bytes;
        *run = RUN_BYTES.max(*run);
        let runtime = context.runtime_env();
        let sorted = (self.by_key).execute(partition, context_with(&context, config, runtime))?;
        let schema = self.plan.schema();
        let columns: Vec<_> = (0..schema.fields().len()).collect();
        let rows = sorted.map(move |batch| Ok(batch?.project(&columns)?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.by_key.metrics()
    }
}

/// Several keys as one number, with the order of comparing them one after the other.
#[derive(Debug, PartialEq, Eq, Hash)]
struct NormalizedKey {
    /// Keys, the most significant one first.
    keys: Vec<Key>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    sort: PhysicalSortExpr,
    /// Type that the values are packed as.
    packed: Packed,
}

/// Types of packed numbers, each with its own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Packed {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

impl Packed {
    /// Returns the packed type for values of a data type, if they have a fixed width and an order.
    fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean | DataType::UInt8 => Self::U8,
            DataType::Int8 => Self::I8,
            DataType::Int16 => Self::I16,
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Self::I32,
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_) => Self::I64,
            DataType::UInt16 => Self::U16,
            DataType::UInt32 => Self::U32,
            DataType::UInt64 => Self::U64,
            DataType::Float32 => Self::F32,
            DataType::Float64 => Self::F64,
            _ => return None,
        })
    }

    fn data_type(self) -> DataType {
        match self {
            Self::I8 => DataType::Int8,
            Self::I16 => DataType::Int16,
            Self::I32 => DataType::Int32,
            Self::I64 => DataType::Int64,
            Self::U8 => DataType::UInt8,
            Self::U16 => DataType::UInt16,
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
            Self::F32 => DataType::Float32,
            Self::F64 => DataType::Float64,
        }
    }

    /// Returns the width of a value, in bits.
    fn bits(self) -> u32 {
        match self {
            Self::I8 | Self::U8 => 8,
            Self::I16 | Self::U16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::I64 | Self::U64 | Self::F64 => 64,
        }
    }
}

impl NormalizedKey {
    /// Returns the key for this order, if each of its keys has a fixed width and together they fit.
    fn of(order: &LexOrdering, schema: &Schema) -> Result<Option<Self>> {
        let mut keys = Vec::with_capacity(order.len());
        for key in order {
            let Some(packed) = Packed::of(&key.expr.data_type(schema)?) else {
                return Ok(None);
            };
            let sort = key.clone();
            keys.push(Key { sort, packed });
        }
        let bits: u32 = keys.iter().map(|key| key.packed.bits() + 1).sum();
        Ok((bits <= BITS).then_some(Self { keys }))
    }
}

impl Key {
    /// Appends the bits of this key's values to each row's number: the NULL bit, then the value.
    fn append(&self, rows: &mut [i128], batch: &RecordBatch) -> Result<()> {
        let values = self
            .sort
            .expr
            .evaluate(batch)?
            .into_array(batch.num_rows())?;
        let values = cast(&values, &self.packed.data_type())?;
        match self.packed {
            Packed::I8 => self.pack::<Int8Type>(rows, &values, |v| (v ^ i8::MIN) as u8 as u64),
            Packed::I16 => self.pack::<Int16Type>(rows, &values, |v| (v ^ i16::MIN) as u16 as u64),
            Packed::I32 => self.pack::<Int32Type>(rows, &values, |v| (v ^ i32::MIN) as u32 as u64),
            Packed::I64 => self.pack::<Int64Type>(rows, &values, |v| (v ^ i64::MIN) as u64),
            Packed::U8 => self.pack::<UInt8Type>(rows, &values, u64::from),
            Packed::U16 => self.pack::<UInt16Type>(rows, &values, u64::from),
            Packed::U32 => self.pack::<UInt32Type>(rows, &values, u64::from),
            Packed::U64 => self.pack::<UInt64Type>(rows, &values, |v| v),
            // The order of `total_cmp`: among negative numbers, greater remaining bits mean a smaller number.
            Packed::F32 => self.pack::<Float32Type>(rows, &values, |v| {
                let bits = v.to_bits();
                let sign = 1 << 31;
                u64::from(if bits & sign == 0 { bits | sign } else { !bits })
            }),
            Packed::F64 => self.pack::<Float64Type>(rows, &values, |v| {
                let bits = v.to_bits();
                let sign = 1 << 63;
                if bits & sign == 0 { bits | sign } else { !bits }
            }),
        }
        Ok(())
    }

    fn pack<T: ArrowPrimitiveType>(
        &self,
        rows: &mut [i128],
        values: &ArrayRef,
        ascending: impl Fn(T::Native) -> u64,
    ) {
        let values: &PrimitiveArray<T> = values.as_primitive();
        let bits = self.packed.bits();
        let flipped = match self.sort.options.descending {
            true => u64::MAX >> (64 - bits),
            false => 0,
        };
        let (null, valid) = match self.sort.options.nulls_first {
            true => (0, 1),
            false => (1, 0),
        };
        let (null, valid) = (null << bits, valid << bits);
        let value = |value| valid | i128::from(ascending(value) ^ flipped);
        let next = rows.iter_mut().zip(values.values());
        match values.nulls() {
            None => next.for_each(|(row, next)| *row = *row << (bits + 1) | value(*next)),
            Some(nulls) => next.zip(nulls).for_each(|((row, next), is_valid)| {
                let next = if is_valid { value(*next) } else { null };
                *row = *row << (bits + 1) | next;
            }),
        }
    }
}

impl fmt::Display for NormalizedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_sql(f)
    }
}

impl PhysicalExpr for NormalizedKey {
    fn return_field(&self, _: &Schema) -> Result<FieldRef> {
        let data_type = DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0);
        Ok(Arc::new(Field::new("normalized_key", data_type, false)))
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let mut rows = vec![0; batch.num_rows()];
        for key in &self.keys {
            key.append(&mut rows, batch)?;
        }
        let rows =
            Decimal128Array::from(rows).with_precision_and_scale(DECIMAL128_MAX_PRECISION, 0)?;
        Ok(ColumnarValue::Array(Arc::new(rows)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.keys.iter().map(|key| &key.sort.expr).collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        if children.len() != self.keys.len() {
            return internal_err!("{} keys, not {}", self.keys.len(), children.len());
        }
        let keys = self.keys.iter().zip(children).map(|(key, expr)| Key {
            sort: PhysicalSortExpr::new(expr, key.sort.options),
            packed: key.packed,
        });
        let keys = keys.collect();
        Ok(Arc::new(Self { keys }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("normalized_key(")?;
        for (at, key) in self.keys.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{}", key.sort)?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::compute::concat_batches;
    use datafusion::common::tree_node::{Transformed, TreeNode};
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// Columns of every packed type and of one that is not packed, with the width of a value in bits.
    const COLUMNS: [(&str, u32); 16] = [
        ("v % 3 = 0", 8),
        ("arrow_cast(v - 100, 'Int8')", 8),
        ("arrow_cast(v * 300 - 30000, 'Int16')", 16),
        ("arrow_cast(v * 20000000 - 2000000000, 'Int32')", 32),
        ("v * 90000000000000000 - 9000000000000000000", 64),
        ("arrow_cast(v, 'UInt8')", 8),
        ("arrow_cast(v * 300, 'UInt16')", 16),
        ("arrow_cast(v * 20000000, 'UInt32')", 32),
        (
            "arrow_cast(v, 'UInt64') * arrow_cast(90000000000000000, 'UInt64')",
            64,
        ),
        (
            "arrow_cast(CASE v % 7 WHEN 0 THEN 'NaN' WHEN 1 THEN '-inf' WHEN 2 THEN 'inf' WHEN 3 THEN '-0.0' \
             WHEN 4 THEN '0.0' WHEN 5 THEN '-1.5' ELSE '1e-40' END, 'Float32')",
            32,
        ),
        (
            "CASE WHEN v % 5 = 0 THEN arrow_cast('NaN', 'Float64') ELSE sin(v) * 1e300 END",
            64,
        ),
        (
            "arrow_cast(arrow_cast(v * 100 - 4000, 'Int32'), 'Date32')",
            32,
        ),
        (
            "arrow_cast(arrow_cast(v * 1000 - 40000, 'Int32'), 'Time32(Millisecond)')",
            32,
        ),
        (
            "arrow_cast(v * 1000000000 - 40000000000, 'Timestamp(Microsecond, None)')",
            64,
        ),
        ("arrow_cast(v * 1000 - 40000, 'Duration(Millisecond)')", 64),
        ("concat('t', v)", BITS),
    ];

    const ORDERS: [&str; 4] = [
        "ASC NULLS FIRST",
        "ASC NULLS LAST",
        "DESC NULLS FIRST",
        "DESC NULLS LAST",
    ];

    #[tokio::test]
    async fn rows_are_in_the_order_of_all_keys() {
        // The limit is so small that sorts merge runs.
        let mut config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size(16);
        config.options_mut().execution.sort_in_place_threshold_bytes = 1 << 10;
        let session = SessionContext::new_with_config(config);
        let columns = COLUMNS.iter().enumerate();
        let columns: Vec<_> = columns
            .map(|(at, (of, _))| format!("CASE WHEN v % {} > 0 THEN {of} END AS c{at}", at + 2))
            .collect();
        let rows = "SELECT value * 83 % 200 AS v FROM range(200)";
        let table = format!(
            "CREATE TABLE t AS SELECT {}, arrow_cast(v, 'Int16') AS v, arrow_cast(concat('t', v), 'Utf8') AS name, \
             arrow_cast(concat('t', v), 'Utf8View') AS view FROM ({rows})",
            columns.join(", ")
        );
        session.sql(&table).await.unwrap();
        let mut normalized = 0;
        for (first, (_, bits)) in COLUMNS.iter().enumerate() {
            for (second, (_, more)) in COLUMNS.iter().enumerate().filter(|(at, _)| *at != first) {
                let orders = [
                    ORDERS[(first + second) % 4],
                    ORDERS[(first * second + first / 3) % 4],
                ];
                let by = format!("c{first} {}, c{second} {}", orders[0], orders[1]);
                let fits = bits + more + 2 <= BITS;
                normalized += usize::from(fits);
                for (columns, by, fits) in [
                    (format!("c{first}, c{second}"), by.clone(), fits),
                    ("view".to_owned(), by.clone(), false),
                    // With a key that is unique to each row.
                    (
                        format!("name, c{second}, c{first}"),
                        format!("{by}, 1000 - v DESC"),
                        bits + more + 3 + 64 <= BITS,
                    ),
                    (
                        format!("name, c{second}, c{first}"),
                        format!("{by}, v DESC"),
                        bits + more + 3 + 16 <= BITS,
                    ),
                ] {
                    let query = format!("SELECT {columns} FROM t ORDER BY {by}");
                    let plan = session.sql(&query).await.unwrap();
                    let plan = plan.create_physical_plan().await.unwrap();
                    let by_key = |node| Ok(Transformed::yes(normalize_keys(node)?));
                    let by_key = Arc::clone(&plan).transform_up(by_key).unwrap().data;
                    let is_normalized = format!("{by_key:?}").contains("NormalizedSort");
                    assert_eq!(is_normalized, fits, "{query}");
                    let expected = collect(plan, session.task_ctx()).await.unwrap();
                    let batches = collect(by_key, session.task_ctx()).await.unwrap();
                    let schema = expected[0].schema();
                    let expected = concat_batches(&schema, &expected).unwrap();
                    assert_eq!(expected.num_rows(), 200);
                    let rows = concat_batches(&schema, &batches).unwrap();
                    assert_eq!(rows, expected, "{query}");
                }
            }
        }
        assert!(normalized > 150, "{normalized}");
    }
}
