//! Arrow columns reduced to the few forms that encoding handles: whole numbers, text, `f64`.
//!
//! All integer types become `i64`, dates days, booleans 0 and 1; the three text types become one. Dictionaries of text
//! are kept if they are small, and other dictionary-encoded arrays become arrays of their values. Nulls stay nulls.

use std::fmt;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, StringViewArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Kind of values in a categorical column; values of one class compare across types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Class {
    /// Any integer type.
    Integer,
    /// Any text type.
    Text,
    /// True and false.
    Boolean,
    /// Days.
    Date,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Integer => "whole numbers",
            Self::Text => "text",
            Self::Boolean => "booleans",
            Self::Date => "dates",
        })
    }
}

impl Class {
    /// Returns the class of a column's type, if it can be categorical.
    pub(crate) fn of(data_type: &DataType) -> Option<Self> {
        match value_type(data_type) {
            t if t.is_integer() => Some(Self::Integer),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(Self::Text),
            DataType::Boolean => Some(Self::Boolean),
            DataType::Date32 => Some(Self::Date),
            _ => None,
        }
    }
}

/// Returns the type of an array's values, also if it is dictionary-encoded.
pub(super) fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => values,
        plain => plain,
    }
}

/// Values of a categorical column.
#[derive(Debug)]
pub(crate) enum Categories {
    /// Integers, booleans and dates.
    Whole(Int64Array),
    /// Text.
    Text(StringViewArray),
    /// Text by an Arrow dictionary, whose values may repeat, be null, or be those of no row.
    Keyed {
        /// Position of each row's value.
        keys: Int64Array,
        values: StringViewArray,
    },
}

impl Categories {
    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(array) => array.len(),
            Self::Text(array) => array.len(),
            Self::Keyed { keys, .. } => keys.len(),
        }
    }

    /// Reads a column of a class; `name` appears in the error. A dictionary of text is kept unless it has more values
    /// than the column has rows, as where a few rows are cut from many.
    ///
    /// # Errors
    /// When the column is not of the class, or holds integers beyond `i64`.
    pub(crate) fn read(array: &ArrayRef, class: Class, name: &str) -> Result<Self> {
        let dictionary = array.as_any_dictionary_opt();
        let dictionary = dictionary.filter(|array| array.values().len() <= array.len());
        let Some(dictionary) = dictionary.filter(|_| class == Class::Text) else {
            return Self::read_values(array, class, name);
        };
        check(array, class, name)?;
        let fail = Error::values(name, "text");
        let values = cast(dictionary.values(), &DataType::Utf8View).map_err(fail)?;
        Ok(Self::Keyed {
            keys: whole(dictionary.keys()).map_err(fail)?,
            values: values.as_string_view().clone(),
        })
    }

    /// Reads the value of every row, also of a dictionary: [`Keyed`](Self::Keyed) is not returned.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub(super) fn read_values(array: &ArrayRef, class: Class, name: &str) -> Result<Self> {
        check(array, class, name)?;
        let fail = Error::values(name, "64-bit integers");
        let plain = cast(array, value_type(array.data_type())).map_err(fail)?;
        Ok(match class {
            Class::Text => {
                let text = cast(&plain, &DataType::Utf8View).map_err(fail)?;
                Self::Text(text.as_string_view().clone())
            }
            Class::Date => {
                let days = cast(&plain, &DataType::Int32).map_err(fail)?;
                Self::Whole(whole(&days).map_err(fail)?)
            }
            Class::Integer | Class::Boolean => Self::Whole(whole(&plain).map_err(fail)?),
        })
    }
}

/// Checks that a column is of a class.
fn check(array: &ArrayRef, class: Class, name: &str) -> Result<()> {
    let (actual, role) = (array.data_type(), "this categorical feature");
    if Class::of(actual) == Some(class) {
        return Ok(());
    }
    let expected = format!("{class:?}").to_lowercase();
    Err(Error::column_type(name, role, actual, &expected))
}

fn whole(array: &dyn Array) -> Result<Int64Array, ArrowError> {
    let strict = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let cast = cast_with_options(array, &DataType::Int64, &strict)?;
    Ok(cast.as_primitive::<Int64Type>().clone())
}

/// Returns dates and times in units of their own, and whole numbers as they are. They are cast through integers of the
/// same width: a direct cast between times would read the zone's clock.
pub(super) fn units(plain: &ArrayRef) -> Result<Int64Array, ArrowError> {
    let days;
    let plain = match plain.data_type() {
        DataType::Date32 => {
            days = cast(plain, &DataType::Int32)?;
            &days
        }
        _ => plain,
    };
    let units = cast(plain, &DataType::Int64)?;
    Ok(units.as_primitive::<Int64Type>().clone())
}

/// Milliseconds in a day.
const DAY: f64 = 86_400e3;

/// Reads a column of numbers, booleans, dates or times as `f64`; nulls stay nulls. Dates and times become days since
/// 1970-01-01, precise to the microsecond in `f64`.
///
/// # Errors
/// When the column has another type.
pub(crate) fn numbers(array: &ArrayRef, name: &str) -> Result<Float64Array> {
    let fail = Error::values(name, "64-bit floats");
    let plain = cast(array, value_type(array.data_type())).map_err(fail)?;
    let day = match plain.data_type() {
        DataType::Date32 => Some(1.0),
        DataType::Date64 => Some(DAY),
        DataType::Timestamp(unit, _) => Some(match unit {
            TimeUnit::Second => DAY / 1e3,
            TimeUnit::Millisecond => DAY,
            TimeUnit::Microsecond => DAY * 1e3,
            TimeUnit::Nanosecond => DAY * 1e6,
        }),
        _ => None,
    };
    if let Some(day) = day {
        let units = units(&plain).map_err(fail)?;
        return Ok(units.unary(|units| units as f64 / day));
    }
    if !(plain.data_type().is_numeric() || *plain.data_type() == DataType::Boolean) {
        let (role, expected) = (
            "a continuous feature",
            "a number, a boolean, a date or a time",
        );
        return Err(Error::column_type(name, role, array.data_type(), expected));
    }
    let cast = cast(&plain, &DataType::Float64).map_err(fail)?;
    Ok(cast.as_primitive::<Float64Type>().clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Date32Array, Decimal128Array, TimestampMicrosecondArray, TimestampSecondArray,
    };

    use super::*;

    #[test]
    fn dates_and_times_are_days() {
        let days = |array: ArrayRef| numbers(&array, "t").unwrap().iter().collect::<Vec<_>>();
        let dates = Arc::new(Date32Array::from(vec![Some(16_000), None]));
        assert_eq!(days(dates), [Some(16_000.0), None]);
        let noon = 16_000 * 86_400 + 43_200;
        let seconds = TimestampSecondArray::from(vec![Some(noon), None, Some(-43_200)]);
        // The result does not depend on the displayed time zone.
        let seconds = seconds.with_timezone("+05:00");
        assert_eq!(days(Arc::new(seconds)), [Some(16_000.5), None, Some(-0.5)]);
        let micros = TimestampMicrosecondArray::from(vec![noon * 1_000_000]);
        assert_eq!(days(Arc::new(micros)), [Some(16_000.5)]);
    }

    #[test]
    fn numbers_keep_their_digits() {
        let read = |array: ArrayRef| numbers(&array, "x").unwrap().values().to_vec();
        let whole = Int64Array::from(vec![1_700_000_001, 1 << 53]);
        assert_eq!(read(Arc::new(whole)), [1_700_000_001.0, 2_f64.powi(53)]);
        let cents = Decimal128Array::from(vec![123_456_789_012_i128]);
        let cents = cents.with_precision_and_scale(20, 2).unwrap();
        assert_eq!(read(Arc::new(cents)), [1_234_567_890.12]);
        let second = 1_700_000_001;
        let time = TimestampSecondArray::from(vec![second]);
        let days = read(Arc::new(time))[0];
        assert!((days * 86_400.0 - second as f64).abs() < 1e-5, "{days}");
    }
}
