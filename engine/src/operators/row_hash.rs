//! A hash of a row's values, which assigns the row to a part of the training data.
//!
//! `volley_row_hash('a', a, 'b', b)` depends only on the names and values of its columns: not on their order, the
//! location or order of rows, the size of the cluster, or other data that is read. Equal rows have equal hashes, and
//! stay together. Integers of all widths hash alike, and so do all text types.
//!
//! `volley_split_draw(hash, seed)` is the number that the hash draws for a row; a row whose number is below the
//! evaluation share is evaluated.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type, UInt64Type};
use datafusion::common::{ScalarValue, exec_err, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use twox_hash::XxHash64;

use volley_proto::spec::split::Draw;

const NAME: &str = "volley_row_hash";
const DRAW: &str = "volley_split_draw";

#[derive(Debug, PartialEq, Eq, Hash)]
struct SplitDraw {
    signature: Signature,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RowHash {
    signature: Signature,
}

/// Builds the hash of these columns, by their names.
pub fn row_hash(columns: impl IntoIterator<Item = (String, Expr)>) -> Expr {
    let named = columns
        .into_iter()
        .flat_map(|(name, column)| [lit(name), column]);
    function_of().call(named.collect())
}

/// Builds the number that the hash of a row draws in a random split.
pub fn split_draw(hash: Expr, seed: u64) -> Expr {
    draw_of().call(vec![hash, lit(seed)])
}

/// Returns the function of this name, if it is one of these.
pub(crate) fn function(name: &str) -> Option<Arc<ScalarUDF>> {
    match name {
        NAME => Some(Arc::new(function_of())),
        DRAW => Some(Arc::new(draw_of())),
        _ => None,
    }
}

fn draw_of() -> ScalarUDF {
    let types = vec![DataType::UInt64, DataType::UInt64];
    ScalarUDF::from(SplitDraw {
        signature: Signature::exact(types, Volatility::Immutable),
    })
}

fn function_of() -> ScalarUDF {
    ScalarUDF::from(RowHash {
        signature: Signature::variadic_any(Volatility::Immutable),
    })
}

impl ScalarUDFImpl for RowHash {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let mut hashes = vec![0_u64; args.number_rows];
        for pair in args.args.chunks_exact(2) {
            let ColumnarValue::Scalar(ScalarValue::Utf8(Some(name))) = &pair[0] else {
                return internal_err!("{NAME} has a name before each column");
            };
            let column = pair[1].to_array(args.number_rows)?;
            let seed = XxHash64::oneshot(0, name.as_bytes());
            add(&mut hashes, &column, seed)?;
        }
        Ok(ColumnarValue::Array(Arc::new(UInt64Array::from(hashes))))
    }
}

impl ScalarUDFImpl for SplitDraw {
    fn name(&self) -> &str {
        DRAW
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [
            hashes,
            ColumnarValue::Scalar(ScalarValue::UInt64(Some(seed))),
        ] = &args.args[..]
        else {
            return internal_err!("{DRAW} has a hash and a seed");
        };
        let (hashes, draw) = (hashes.to_array(args.number_rows)?, Draw::of(*seed));
        let drawn = hashes.as_primitive::<UInt64Type>();
        let drawn = drawn.unary::<_, Float64Type>(|hash| draw.number(hash));
        Ok(ColumnarValue::Array(Arc::new(drawn)))
    }
}

/// Adds the hash of each of a column's values; a NULL adds nothing.
fn add(hashes: &mut [u64], column: &ArrayRef, seed: u64) -> Result<()> {
    let mut add = |row: usize, bytes: &[u8]| {
        hashes[row] = hashes[row].wrapping_add(XxHash64::oneshot(seed, bytes));
    };
    let plain = match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values)?,
        _ => Arc::clone(column),
    };
    match plain.data_type() {
        DataType::Null => {}
        DataType::Boolean => {
            for (row, value) in plain.as_boolean().iter().enumerate() {
                if let Some(value) = value {
                    add(row, &[u8::from(value)]);
                }
            }
        }
        // Unsigned values beyond the signed range hash as the same bits in two's complement.
        of if of.is_integer() || matches!(of, DataType::Date32 | DataType::Date64) => {
            let whole = match of {
                DataType::Date32 => cast(&cast(&plain, &DataType::Int32)?, &DataType::Int64)?,
                DataType::UInt64 => {
                    let values = plain.as_primitive::<UInt64Type>();
                    Arc::new(values.unary::<_, Int64Type>(u64::cast_signed)) as ArrayRef
                }
                _ => cast(&plain, &DataType::Int64)?,
            };
            for (row, value) in whole.as_primitive::<Int64Type>().iter().enumerate() {
                if let Some(value) = value {
                    add(row, &value.to_le_bytes());
                }
            }
        }
        of if of.is_floating() => {
            let numbers = cast(&plain, &DataType::Float64)?;
            for (row, value) in numbers.as_primitive::<Float64Type>().iter().enumerate() {
                if let Some(value) = value {
                    // All zeros hash alike, and so do all NaNs.
                    let value = if value.is_nan() {
                        f64::NAN
                    } else {
                        value + 0.0
                    };
                    add(row, &value.to_bits().to_le_bytes());
                }
            }
        }
        of => {
            let Ok(text) = cast(&plain, &DataType::Utf8View) else {
                return exec_err!("a row's hash of values of type {of}; name others in split_key");
            };
            for (row, value) in text.as_string_view().iter().enumerate() {
                if let Some(value) = value {
                    add(row, value.as_bytes());
                }
            }
        }
    }
    Ok(())
}
