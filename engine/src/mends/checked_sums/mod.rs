//! Sums of whole numbers and decimals that overflow are errors.
//!
//! DataFusion 55 adds them up modulo 2^64 or 2^128, and a sum of two great positive numbers is negative, without a word. The
//! digits of a decimal's type are not looked at either. Here each addition is checked, and a decimal's digits where a sum is
//! handed out. Numbers that overflow on the way to a sum which would not are an error as well, as in Spark's ANSI mode. Sums
//! of floats, durations and intervals are the engine's own.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray};
use datafusion::arrow::datatypes::{
    ArrowNativeType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    FieldRef, Int64Type, UInt64Type,
};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue, exec_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, Aggregate, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, GroupsAccumulator,
    LogicalPlan, ReversedUDAF, SetMonotonicity, Signature, Volatility, WindowFunctionDefinition,
};
use datafusion::optimizer::OptimizerConfig;

use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::folded::{Fold, Folded};
use crate::operators::window_exprs;
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "checked_sums",
    wrong: "sums of whole numbers and decimals wrap around where they overflow",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::LastLogical(|| top_down("check_sums", check_sums))],
};

/// The name of the function.
pub(crate) const NAME: &str = "volley_sum";

/// The sum of whole numbers or decimals.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CheckedSum {
    /// The engine's own.
    aggregate: Arc<AggregateUDF>,
    signature: Signature,
}

/// The function of this name, if it is this one.
pub(crate) fn function(name: &str) -> Option<Arc<AggregateUDF>> {
    (name == NAME).then(|| {
        Arc::new(AggregateUDF::from(CheckedSum {
            aggregate: sum_udaf(),
            signature: Signature::variadic_any(Volatility::Immutable),
        }))
    })
}

/// Replaces `sum` of whole numbers and decimals.
fn check_sums(plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Aggregate(aggregate) => of_groups(aggregate),
        plan => window_exprs::replaced(plan, of_window),
    }
}

fn of_window(window: &WindowFunction, input: &DFSchema) -> Result<Option<Expr>> {
    let WindowFunctionDefinition::AggregateUDF(aggregate) = &window.fun else {
        return Ok(None);
    };
    let checked = checked(aggregate, &window.params.args, input)?;
    Ok(checked.map(|checked| {
        Expr::WindowFunction(Box::new(WindowFunction {
            fun: WindowFunctionDefinition::AggregateUDF(checked),
            params: window.params.clone(),
        }))
    }))
}

fn of_groups(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let schema = aggregate.input.schema();
    let mut changed = false;
    let exprs = aggregate.aggr_expr.iter().map(|expr| {
        let name = expr.schema_name().to_string();
        let replaced = expr.clone().transform_up(|expr| {
            let Expr::AggregateFunction(AggregateFunction { func, params }) = &expr else {
                return Ok(Transformed::no(expr));
            };
            Ok(match checked(func, &params.args, schema)? {
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

/// The checked function in the place of this one, if it is a sum of whole numbers or decimals.
fn checked(
    aggregate: &AggregateUDF,
    args: &[Expr],
    input: &DFSchema,
) -> Result<Option<Arc<AggregateUDF>>> {
    let ("sum", [value]) = (aggregate.name(), args) else {
        return Ok(None);
    };
    let data_type = value.get_type(input)?;
    let is_exact =
        matches!(data_type, DataType::Int64 | DataType::UInt64) || data_type.is_decimal();
    Ok(function(NAME).filter(|_| is_exact))
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.aggregate.return_type(arguments)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let distinct = match args.is_distinct {
            true => Some(self.aggregate.accumulator(args.clone())?),
            false => None,
        };
        accumulator(args.return_field.data_type(), distinct)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.aggregate.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        fn of<T: ArrowPrimitiveType>(sum: Sum<T>) -> Box<dyn GroupsAccumulator> {
            let data_type = sum.data_type.clone();
            Box::new(Folded::<T, _>::new(sum, data_type))
        }
        let data_type = args.return_field.data_type();
        Ok(match data_type {
            DataType::Int64 => of(Sum::<Int64Type>::of(data_type)),
            DataType::UInt64 => of(Sum::<UInt64Type>::of(data_type)),
            DataType::Decimal32(..) => of(Sum::<Decimal32Type>::of(data_type)),
            DataType::Decimal64(..) => of(Sum::<Decimal64Type>::of(data_type)),
            DataType::Decimal128(..) => of(Sum::<Decimal128Type>::of(data_type)),
            DataType::Decimal256(..) => of(Sum::<Decimal256Type>::of(data_type)),
            other => return internal_err!("{NAME} of {other}"),
        })
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        let distinct = match args.is_distinct {
            true => Some(self.aggregate.create_sliding_accumulator(args.clone())?),
            false => None,
        };
        accumulator(args.return_field.data_type(), distinct)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.aggregate.inner().set_monotonicity(data_type)
    }
}

fn accumulator(
    data_type: &DataType,
    distinct: Option<Box<dyn Accumulator>>,
) -> Result<Box<dyn Accumulator>> {
    fn of<T: ArrowPrimitiveType + fmt::Debug>(
        sum: Sum<T>,
        distinct: Option<Box<dyn Accumulator>>,
    ) -> Box<dyn Accumulator> {
        match distinct {
            Some(values) => Box::new(OfDistinct { sum, values }),
            None => Box::new(Total {
                sum,
                total: T::Native::default(),
                values: 0,
            }),
        }
    }
    Ok(match data_type {
        DataType::Int64 => of(Sum::<Int64Type>::of(data_type), distinct),
        DataType::UInt64 => of(Sum::<UInt64Type>::of(data_type), distinct),
        DataType::Decimal32(..) => of(Sum::<Decimal32Type>::of(data_type), distinct),
        DataType::Decimal64(..) => of(Sum::<Decimal64Type>::of(data_type), distinct),
        DataType::Decimal128(..) => of(Sum::<Decimal128Type>::of(data_type), distinct),
        DataType::Decimal256(..) => of(Sum::<Decimal256Type>::of(data_type), distinct),
        other => return internal_err!("{NAME} of {other}"),
    })
}

/// Checked addition of numbers of a type.
#[derive(Clone)]
struct Sum<T: ArrowPrimitiveType> {
    data_type: DataType,
    /// What a decimal's digits stay below.
    bound: Option<T::Native>,
}

impl<T: ArrowPrimitiveType> fmt::Debug for Sum<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sum").field(&self.data_type).finish()
    }
}

impl<T: ArrowPrimitiveType> Sum<T> {
    fn of(data_type: &DataType) -> Self {
        let digits = match data_type {
            DataType::Decimal32(digits, _)
            | DataType::Decimal64(digits, _)
            | DataType::Decimal128(digits, _)
            | DataType::Decimal256(digits, _) => Some(*digits),
            _ => None,
        };
        let power = |digits| T::Native::usize_as(10).pow_checked(u32::from(digits)).ok();
        Self {
            data_type: data_type.clone(),
            bound: digits.and_then(power),
        }
    }

    fn overflow(&self) -> DataFusionError {
        let remedy = match self.bound {
            Some(_) => "cast its argument to DOUBLE",
            None => "cast its argument to DECIMAL(38, 0), which has 38 digits",
        };
        exec_datafusion_err!("sum overflows {}: {remedy}", self.data_type)
    }

    /// Adds all values of an array that are not NULL. Returns how many.
    fn add_all(&self, total: &mut T::Native, values: &dyn Array) -> Result<u64> {
        let values = values.as_primitive::<T>();
        let mut numbers = values.iter().flatten();
        numbers.try_for_each(|number| self.fold(total, number))?;
        Ok((values.len() - values.null_count()) as u64)
    }

    fn value(&self, total: T::Native, is_null: bool) -> Result<ScalarValue> {
        if !is_null {
            self.check(total)?;
        }
        ScalarValue::new_primitive::<T>((!is_null).then_some(total), &self.data_type)
    }
}

impl<T: ArrowPrimitiveType> Fold<T> for Sum<T> {
    fn fold(&self, kept: &mut T::Native, number: T::Native) -> Result<()> {
        *kept = kept.add_checked(number).map_err(|_| self.overflow())?;
        Ok(())
    }

    fn check(&self, number: T::Native) -> Result<()> {
        let Some(bound) = self.bound else {
            return Ok(());
        };
        let fits = number.is_lt(bound) && number.is_gt(bound.neg_wrapping());
        fits.then_some(()).ok_or_else(|| self.overflow())
    }
}

/// The sum of all values, of which some may leave again.
#[derive(Debug)]
struct Total<T: ArrowPrimitiveType> {
    sum: Sum<T>,
    total: T::Native,
    /// How many there are.
    values: u64,
}

impl<T: ArrowPrimitiveType + fmt::Debug> Accumulator for Total<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values += self.sum.add_all(&mut self.total, &values[0])?;
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        for number in values.iter().flatten() {
            let left = self.total.sub_checked(number);
            self.total = left.map_err(|_| self.sum.overflow())?;
            self.values -= 1;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.sum.value(self.total, self.values == 0)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of distinct values, which DataFusion's accumulator finds.
#[derive(Debug)]
struct OfDistinct<T: ArrowPrimitiveType> {
    sum: Sum<T>,
    values: Box<dyn Accumulator>,
}

impl<T: ArrowPrimitiveType + fmt::Debug> Accumulator for OfDistinct<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.values.supports_retract_batch()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let states = self.values.state()?;
        let [ScalarValue::List(values)] = states.as_slice() else {
            return internal_err!("distinct values are not a list");
        };
        let mut total = T::Native::default();
        let count = self.sum.add_all(&mut total, values.values())?;
        self.sum.value(total, count == 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }
}
