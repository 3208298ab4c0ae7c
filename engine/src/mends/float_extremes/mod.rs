//! The least and the greatest float of each group, in the order that rows are sorted by.
//!
//! DataFusion 55 computes them for many groups at once by comparisons that a NaN has no answer to: `min(x)` of a group
//! with a NaN depends on the order of its rows, and so on the cluster; and it starts from the greatest finite number,
//! which is what comes of a group of infinities. Without groups, in windows and in sorts floats have a total order (IEEE
//! 754's, in which a NaN is the greatest), so it is that one here too. Everything else is the engine's own `min` and
//! `max`. To be dropped when a release orders them.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::folded::{Fold, Folded};
use crate::operators::window_exprs::replaced_aggregates;
use crate::rules::logical::top_down;
use datafusion::arrow::array::{ArrowNativeTypeOp, ArrowPrimitiveType};
use datafusion::arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{internal_err, plan_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ExprSchemable, GroupsAccumulator, LogicalPlan,
    Signature,
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

/// Returns the function of this name, if it is one of these.
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
    replaced_aggregates(aggregate, |aggregate, args, input| {
        let replacement = match aggregate.name() {
            "min" => function("volley_float_min"),
            "max" => function("volley_float_max"),
            _ => None,
        };
        let is_float = match args {
            [value] => value.get_type(input)?.is_floating(),
            _ => false,
        };
        Ok(replacement.filter(|_| is_float))
    })
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
        let extreme = Extreme { least: self.least };
        let data_type = args.return_field.data_type().clone();
        Ok(match data_type {
            DataType::Float16 => Box::new(Folded::<Float16Type, _>::new(extreme, data_type)),
            DataType::Float32 => Box::new(Folded::<Float32Type, _>::new(extreme, data_type)),
            DataType::Float64 => Box::new(Folded::<Float64Type, _>::new(extreme, data_type)),
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

/// The lesser or the greater of two floats, in their total order.
#[derive(Debug, Clone, Copy)]
struct Extreme {
    least: bool,
}

impl<T: ArrowPrimitiveType> Fold<T> for Extreme {
    fn fold(&self, kept: &mut T::Native, number: T::Native) -> Result<()> {
        let better = match self.least {
            true => number.is_lt(*kept),
            false => number.is_gt(*kept),
        };
        if better {
            *kept = number;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, AsArray, BooleanArray, Float64Array};
    use datafusion::logical_expr::EmitTo;

    use super::*;

    const NAN: f64 = f64::NAN;

    fn extreme(least: bool) -> Folded<Float64Type, Extreme> {
        Folded::new(Extreme { least }, DataType::Float64)
    }

    fn extremes(
        least: bool,
        batches: &[&[Option<f64>]],
        filter: Option<&BooleanArray>,
    ) -> ArrayRef {
        let mut parts = extreme(least);
        for batch in batches {
            let values: ArrayRef = Arc::new(Float64Array::from(batch.to_vec()));
            let groups: Vec<_> = (0..batch.len()).map(|row| row % 2).collect();
            parts.update_batch(&[values], &groups, filter, 3).unwrap();
        }
        let state = parts.state(EmitTo::All).unwrap();
        let mut merged = extreme(least);
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
        let states = extreme(true);
        let states = states.convert_to_state(&[values], Some(&filter)).unwrap();
        let due = Float64Array::from(vec![Some(2.0), None, None, Some(3.0)]);
        assert_eq!(states[0].as_primitive::<Float64Type>(), &due);
    }

    #[test]
    fn a_filter_without_nulls_leaves_rows_out_too() {
        let filter = BooleanArray::from(vec![true, false]);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![2.0, -1.0]));
        let states = extreme(true);
        let states = states.convert_to_state(&[values], Some(&filter)).unwrap();
        let due = Float64Array::from(vec![Some(2.0), None]);
        assert_eq!(states[0].as_primitive::<Float64Type>(), &due);
    }
}
