//! One number of each group, which each of its rows is folded into: a sum, a least or a greatest value.
//!
//! The number that is kept is the aggregate's state and its value. Aggregates with other states are DataFusion's.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::{not, nullif, prep_null_mask_filter};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

/// Puts a number to the one that is kept.
pub(crate) trait Fold<T: ArrowPrimitiveType>: fmt::Debug + Send + Sync + 'static {
    /// Folds a number into the one that is kept.
    ///
    /// # Errors
    /// When there is no result.
    fn fold(&self, kept: &mut T::Native, number: T::Native) -> Result<()>;

    /// Checks a number that is handed out.
    ///
    /// # Errors
    /// When it cannot be.
    fn check(&self, _number: T::Native) -> Result<()> {
        Ok(())
    }
}

/// The number of each group.
#[derive(Debug)]
pub(crate) struct Folded<T: ArrowPrimitiveType, F> {
    fold: F,
    data_type: DataType,
    values: Vec<T::Native>,
    /// Marks groups that have a number.
    known: Vec<bool>,
}

impl<T: ArrowPrimitiveType, F: Fold<T>> Folded<T, F> {
    /// Begins without groups, for numbers of this type.
    pub(crate) fn new(fold: F, data_type: DataType) -> Self {
        Self {
            fold,
            data_type,
            values: vec![],
            known: vec![],
        }
    }

    fn add(&mut self, group: usize, number: T::Native) -> Result<()> {
        if self.known[group] {
            return self.fold.fold(&mut self.values[group], number);
        }
        self.values[group] = number;
        self.known[group] = true;
        Ok(())
    }
}

impl<T: ArrowPrimitiveType, F: Fold<T>> GroupsAccumulator for Folded<T, F> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        self.values.resize(total, T::Native::default());
        self.known.resize(total, false);
        let [values] = values else {
            return internal_err!("one number of {} columns", values.len());
        };
        let values = values.as_primitive::<T>();
        if filter.is_none() && values.null_count() == 0 {
            let mut rows = groups.iter().zip(values.values());
            return rows.try_for_each(|(group, number)| self.add(*group, *number));
        }
        let counts = |row: usize| {
            values.is_valid(row)
                && filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
        };
        let mut rows = groups.iter().enumerate().filter(|(row, _)| counts(*row));
        rows.try_for_each(|(row, group)| self.add(*group, values.value(row)))
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(values, groups, None, total)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let values = emit_to.take_needed(&mut self.values);
        let known = emit_to.take_needed(&mut self.known);
        let mut of_known = values.iter().zip(&known).filter(|(_, known)| **known);
        of_known.try_for_each(|(number, _)| self.fold.check(*number))?;
        let known: BooleanBuffer = known.into_iter().collect();
        let values = PrimitiveArray::<T>::new(values.into(), Some(NullBuffer::new(known)));
        Ok(Arc::new(values.with_data_type(self.data_type.clone())))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let [values] = values else {
            return internal_err!("one number of {} columns", values.len());
        };
        // States may be of more digits than values.
        let values = values.as_primitive::<T>().clone();
        let values: ArrayRef = Arc::new(values.with_data_type(self.data_type.clone()));
        let Some(filter) = filter else {
            return Ok(vec![values]);
        };
        // It takes filters with nulls only.
        let out = match filter.null_count() {
            0 => not(filter)?,
            _ => not(&prep_null_mask_filter(filter))?,
        };
        Ok(vec![nullif(&values, &out)?])
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<T::Native>() + self.known.capacity()
    }
}
