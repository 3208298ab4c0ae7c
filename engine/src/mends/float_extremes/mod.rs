//! The least and the greatest float of each group, in the order that rows are sorted by.
//!
//! DataFusion 55 computes them for many groups at once by comparisons that a NaN has no answer to: `min(x)` of a group
//! with a NaN depends on the order of its rows, and so on the cluster; and it starts from the greatest finite number,
//! which is what comes of a group of infinities. Without groups, in windows and in sorts floats have a total order (IEEE
//! 754's, in which a NaN is the greatest), so it is that one here too. Everything else is the engine's own `min` and
//! `max`. To be dropped when a release orders them.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::top_down;
use datafusion::arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::{not, nullif, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{internal_err, plan_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, Aggregate, AggregateUDF, AggregateUDFImpl, EmitTo, Expr, ExprSchemable,
    GroupsAccumulator, LogicalPlan, Signature,
};
use datafusion::optimizer::OptimizerConfig;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "float_extremes",
    wrong: "`min` and `max` of groups depend on the order of rows where there is a NaN, and are finite where all is infinite",
    upstream: Upstream::Thread("apache/datafusion#24432"),
    query: include_str!("query.sql"),
    acts: &[Act::LastLogical(|| top_down("order_floats", order_floats))],
};

/// `min` or `max` of floats.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FloatExtreme {
    name: &'static str,
    /// The engine's own.
    aggregate: Arc<AggregateUDF>,
    least: bool,
}

/// The function of this name, if it is one of these.
pub(crate) fn function(name: &str) -> Option<Arc<AggregateUDF>> {
    let (name, aggregate, least) = match name {
        "volley_float_min" => ("volley_float_min", min_udaf(), true),
        "volley_float_max" => ("volley_float_max", max_udaf(), false),
        _ => return None,
    };
    let function = FloatExtreme {
        name,
        aggregate,
        least,
    };
    Some(Arc::new(AggregateUDF::from(function)))
}

/// Replaces `min` and `max` of floats where rows are grouped.
pub(crate) fn order_floats(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Aggregate(aggregate) = plan else {
        return Ok(Transformed::no(plan));
    };
    if aggregate.group_expr.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let schema = aggregate.input.schema();
    let mut changed = false;
    let exprs = aggregate.aggr_expr.iter().map(|expr| {
        let name = expr.schema_name().to_string();
        let replaced = expr.clone().transform_up(|expr| {
            let Expr::AggregateFunction(AggregateFunction { func, params }) = &expr else {
                return Ok(Transformed::no(expr));
            };
            let replacement = match func.name() {
                "min" => function("volley_float_min"),
                "max" => function("volley_float_max"),
                _ => None,
            };
            let is_float = match params.args.as_slice() {
                [value] => value.get_type(schema)?.is_floating(),
                _ => false,
            };
            Ok(match replacement.filter(|_| is_float) {
                Some(func) => Transformed::yes(Expr::AggregateFunction(AggregateFunction {
                    func,
                    params: params.clone(),
                })),
                None => Transformed::no(expr),
            })
        })?;
        changed |= replaced.transformed;
        Ok(match replaced.transformed {
            true => replaced.data.alias(name),
            false => replaced.data,
        })
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if !changed {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let Aggregate {
        input,
        group_expr,
        schema,
        ..
    } = aggregate;
    let aggregate = Aggregate::try_new_with_schema(input, group_expr, exprs, schema)?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(aggregate)))
}

impl AggregateUDFImpl for FloatExtreme {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        self.aggregate.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.aggregate.return_type(arguments)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        match arguments {
            [value] => Ok(vec![value.clone()]),
            _ => plan_err!("{} takes one argument", self.name),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.aggregate.accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        args.return_field.data_type().is_floating()
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let least = self.least;
        Ok(match args.return_field.data_type() {
            DataType::Float16 => Box::new(Extremes::<Float16Type>::new(least)),
            DataType::Float32 => Box::new(Extremes::<Float32Type>::new(least)),
            DataType::Float64 => Box::new(Extremes::<Float64Type>::new(least)),
            other => return internal_err!("{} of {other}", self.name),
        })
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        self.aggregate.create_sliding_accumulator(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// The least or the greatest number of each group.
#[derive(Debug)]
struct Extremes<T: ArrowPrimitiveType> {
    least: bool,
    values: Vec<T::Native>,
    /// Whether a group has a number.
    known: Vec<bool>,
}

impl<T: ArrowPrimitiveType> Extremes<T> {
    fn new(least: bool) -> Self {
        Self {
            least,
            values: vec![],
            known: vec![],
        }
    }

    fn add(&mut self, group: usize, new: T::Native) {
        let value = &mut self.values[group];
        let better = match self.least {
            true => new.is_lt(*value),
            false => new.is_gt(*value),
        };
        if better || !self.known[group] {
            *value = new;
            self.known[group] = true;
        }
    }
}

impl<T: ArrowPrimitiveType> GroupsAccumulator for Extremes<T> {
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
            return internal_err!("a least or greatest value of {} columns", values.len());
        };
        let values = values.as_primitive::<T>();
        let counts = |row: usize| {
            values.is_valid(row)
                && filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
        };
        if filter.is_none() && values.null_count() == 0 {
            for (group, value) in groups.iter().zip(values.values()) {
                self.add(*group, *value);
            }
        } else {
            for (row, group) in groups.iter().enumerate() {
                if counts(row) {
                    self.add(*group, values.value(row));
                }
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(values, groups, None, total)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let values = emit_to.take_needed(&mut self.values);
        let known: BooleanBuffer = emit_to.take_needed(&mut self.known).into_iter().collect();
        let values = PrimitiveArray::<T>::new(values.into(), Some(NullBuffer::new(known)));
        Ok(Arc::new(values))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(filter) = filter else {
            return Ok(values.to_vec());
        };
        // It takes filters with nulls only.
        let out = match filter.null_count() {
            0 => not(filter)?,
            _ => not(&prep_null_mask_filter(filter))?,
        };
        let states = values.iter().map(|values| Ok(nullif(values, &out)?));
        states.collect()
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<T::Native>() + self.known.capacity()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Float64Array;

    use super::*;

    const NAN: f64 = f64::NAN;

    fn extremes(
        least: bool,
        batches: &[&[Option<f64>]],
        filter: Option<&BooleanArray>,
    ) -> ArrayRef {
        let mut parts = Extremes::<Float64Type>::new(least);
        for batch in batches {
            let values: ArrayRef = Arc::new(Float64Array::from(batch.to_vec()));
            let groups: Vec<_> = (0..batch.len()).map(|row| row % 2).collect();
            parts.update_batch(&[values], &groups, filter, 3).unwrap();
        }
        let state = parts.state(EmitTo::All).unwrap();
        let mut merged = Extremes::<Float64Type>::new(least);
        merged.merge_batch(&state, &[0, 1, 2], 3).unwrap();
        merged.evaluate(EmitTo::All).unwrap()
    }

    fn assert_are(actual: &ArrayRef, due: [Option<f64>; 3]) {
        let actual = actual.as_primitive::<Float64Type>();
        let bits = |x: Option<f64>| x.map(f64::to_bits);
        let same = actual.iter().zip(due).all(|(a, d)| bits(a) == bits(d));
        assert!(same, "{actual:?} instead of {due:?}");
    }

    #[test]
    fn a_nan_is_the_greatest_in_any_order_and_infinities_are_numbers() {
        let infinity = f64::INFINITY;
        for rows in [
            [Some(NAN), Some(infinity), Some(-0.75), Some(infinity)],
            [Some(-0.75), Some(infinity), Some(NAN), Some(infinity)],
        ] {
            assert_are(
                &extremes(true, &[&rows], None),
                [Some(-0.75), Some(infinity), None],
            );
            assert_are(
                &extremes(false, &[&rows[..2], &rows[2..]], None),
                [Some(NAN), Some(infinity), None],
            );
        }
        let all = [Some(NAN), None, Some(NAN), Some(-infinity)];
        assert_are(
            &extremes(true, &[&all], None),
            [Some(NAN), Some(-infinity), None],
        );
        assert_are(
            &extremes(false, &[&all], None),
            [Some(NAN), Some(-infinity), None],
        );
    }

    #[test]
    fn rows_that_a_filter_leaves_out_do_not_count() {
        let filter = BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]);
        let rows = [Some(2.0), Some(-1.0), Some(1.0), Some(3.0)];
        assert_are(
            &extremes(true, &[&rows], Some(&filter)),
            [Some(2.0), Some(3.0), None],
        );
        let values: ArrayRef = Arc::new(Float64Array::from(rows.to_vec()));
        let states = Extremes::<Float64Type>::new(true);
        let states = states.convert_to_state(&[values], Some(&filter)).unwrap();
        let due = Float64Array::from(vec![Some(2.0), None, None, Some(3.0)]);
        assert_eq!(states[0].as_primitive::<Float64Type>(), &due);
    }

    #[test]
    fn a_filter_without_nulls_leaves_rows_out_too() {
        let filter = BooleanArray::from(vec![true, false]);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![2.0, -1.0]));
        let states = Extremes::<Float64Type>::new(true);
        let states = states.convert_to_state(&[values], Some(&filter)).unwrap();
        let due = Float64Array::from(vec![Some(2.0), None]);
        assert_eq!(states[0].as_primitive::<Float64Type>(), &due);
    }
}
