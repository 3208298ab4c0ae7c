//! Sequential split: the last rows of a sequence are evaluated.
//!
//! Values become whole numbers in the same order, null the greatest. All ranks find the cut together, by bisection: as
//! many rows come after it as are to be evaluated, or somewhat fewer where equal rows would be separated.

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};

use super::categories::{units, value_type};
use super::load::LoadedShards;
use super::shard::Part;
use crate::{Error, Result};

const SIGN: u64 = 1 << 63;

/// Appends the position of every value.
pub(super) fn extend(sequence: &mut Vec<u64>, values: &ArrayRef, name: &str) -> Result<()> {
    let fail = Error::values(name, "numbers, dates or times");
    let plain = cast(values, value_type(values.data_type())).map_err(fail)?;
    // Dates and times are whole numbers of days or smaller units.
    let whole = plain.data_type().is_integer() && *plain.data_type() != DataType::UInt64
        || plain.data_type().is_temporal();
    if whole {
        let numbers = units(&plain).map_err(fail)?;
        sequence.extend(
            numbers
                .iter()
                .map(|x| x.map_or(u64::MAX, |x| x.cast_unsigned() ^ SIGN)),
        );
    } else {
        let numbers = cast(&plain, &DataType::Float64).map_err(fail)?;
        let numbers = numbers.as_primitive::<Float64Type>().iter();
        sequence.extend(numbers.map(|x| x.map_or(u64::MAX, place)));
    }
    Ok(())
}

/// Returns a number's position among all `f64`: the bits of negative ones are in the opposite order.
fn place(x: f64) -> u64 {
    match x.to_bits() {
        bits if bits & SIGN == 0 => bits | SIGN,
        bits => !bits,
    }
}

impl LoadedShards {
    /// Counts the rows after a position in the sequence.
    pub(crate) fn rows_after(&self, place: u64) -> u64 {
        let all = self.shards.iter().flat_map(|shard| &shard.sequence);
        all.filter(|at| **at > place).count() as u64
    }

    /// Marks the rows after a position in the sequence for evaluation.
    pub(crate) fn cut(&mut self, place: u64) {
        for shard in &mut self.shards {
            for (part, at) in shard.parts.iter_mut().zip(&shard.sequence) {
                if *at > place {
                    *part = Part::Eval;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, Float64Array, Int8Array, UInt64Array};

    use super::*;

    #[test]
    fn places_are_in_the_order_of_values() {
        let ordered: [ArrayRef; 4] = [
            Arc::new(Int8Array::from(vec![
                Some(-128),
                Some(-1),
                Some(0),
                Some(127),
                None,
            ])),
            Arc::new(Date32Array::from(vec![
                Some(-3),
                Some(0),
                Some(19_000),
                None,
            ])),
            Arc::new(UInt64Array::from(vec![
                Some(0),
                Some(7),
                Some(u64::MAX),
                None,
            ])),
            Arc::new(Float64Array::from(vec![
                Some(f64::NEG_INFINITY),
                Some(-2.5),
                Some(0.0),
                Some(1e-9),
                Some(1e300),
                None,
            ])),
        ];
        for values in ordered {
            let mut places = vec![];
            extend(&mut places, &values, "x").unwrap();
            assert!(
                places.windows(2).all(|pair| pair[0] < pair[1]),
                "{values:?}"
            );
        }
    }
}
