//! Sums of whole numbers and decimals that overflow are errors.
//!
//! DataFusion 55 adds them up modulo 2^64 or 2^128, and a sum of two great positive numbers is negative, without a word. The
//! digits of a decimal's type are not looked at either. Here each addition is checked, and a decimal's digits where a sum is
//! handed out. Numbers that overflow on the way to a sum which would not are an error as well, as in Spark's ANSI mode. Sums
//! of floats, durations and intervals are the engine's own. To be dropped when a release checks them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray};
use datafusion::arrow::datatypes::{
    ArrowNativeType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    FieldRef, Int64Type, UInt64Type, i256,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ScalarValue, exec_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, GroupsAccumulator,
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

/// Returns the function of this name, if it is this one.
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
        LogicalPlan::Aggregate(aggregate) => window_exprs::replaced_aggregates(aggregate, checked),
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

/// Returns the checked function that replaces this one, if it is a sum of whole numbers or decimals.
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
        let kind = match args.is_distinct {
            true => Kind::Distinct(self.aggregate.accumulator(args.clone())?),
            false => Kind::All,
        };
        accumulator(args.return_field.data_type(), kind)
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
        let kind = match args.is_distinct {
            true => Kind::DistinctOfFrame,
            false => Kind::All,
        };
        accumulator(args.return_field.data_type(), kind)
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

/// The values of which a sum is.
enum Kind {
    All,
    /// Each once, as DataFusion's accumulator finds them.
    Distinct(Box<dyn Accumulator>),
    /// Each once, of a frame that slides.
    DistinctOfFrame,
}

fn accumulator(data_type: &DataType, kind: Kind) -> Result<Box<dyn Accumulator>> {
    fn of<T: Number>(sum: Sum<T>, kind: Kind) -> Box<dyn Accumulator> {
        match kind {
            Kind::All => Box::new(Total {
                sum,
                total: i256::ZERO,
                values: 0,
            }),
            Kind::Distinct(values) => Box::new(OfDistinct { sum, values }),
            Kind::DistinctOfFrame => Box::new(OfFrame {
                sum,
                total: i256::ZERO,
                values: HashMap::new(),
            }),
        }
    }
    Ok(match data_type {
        DataType::Int64 => of(Sum::<Int64Type>::of(data_type), kind),
        DataType::UInt64 => of(Sum::<UInt64Type>::of(data_type), kind),
        DataType::Decimal32(..) => of(Sum::<Decimal32Type>::of(data_type), kind),
        DataType::Decimal64(..) => of(Sum::<Decimal64Type>::of(data_type), kind),
        DataType::Decimal128(..) => of(Sum::<Decimal128Type>::of(data_type), kind),
        DataType::Decimal256(..) => of(Sum::<Decimal256Type>::of(data_type), kind),
        other => return internal_err!("{NAME} of {other}"),
    })
}

/// A type of whole numbers or decimals, and their sums in 256 bits: a frame takes rows in before others leave it, so that
/// both together may be more than the type has.
trait Number: ArrowPrimitiveType + fmt::Debug {
    /// Returns a number in 256 bits.
    fn wide(number: Self::Native) -> i256;

    /// Returns a sum in the type, if it has it.
    fn narrow(sum: i256) -> Option<Self::Native>;

    /// Adds up numbers, if 256 bits have the sum.
    fn add_up(numbers: impl Iterator<Item = Self::Native>) -> Option<i256>;
}

/// Numbers of which a batch's sum fits into 128 bits.
macro_rules! number {
    ($($kind:ty),*) => {
        $(impl Number for $kind {
            fn wide(number: Self::Native) -> i256 {
                i256::from_i128(i128::from(number))
            }

            fn narrow(sum: i256) -> Option<Self::Native> {
                sum.to_i128()?.try_into().ok()
            }

            fn add_up(numbers: impl Iterator<Item = Self::Native>) -> Option<i256> {
                Some(i256::from_i128(numbers.map(i128::from).sum()))
            }
        })*
    };
}

number!(Int64Type, UInt64Type, Decimal32Type, Decimal64Type);

impl Number for Decimal128Type {
    fn wide(number: i128) -> i256 {
        i256::from_i128(number)
    }

    fn narrow(sum: i256) -> Option<i128> {
        sum.to_i128()
    }

    fn add_up(mut numbers: impl Iterator<Item = i128>) -> Option<i256> {
        numbers.try_fold(i256::ZERO, |sum, number| {
            sum.checked_add(Self::wide(number))
        })
    }
}

impl Number for Decimal256Type {
    fn wide(number: i256) -> i256 {
        number
    }

    fn narrow(sum: i256) -> Option<i256> {
        Some(sum)
    }

    fn add_up(mut numbers: impl Iterator<Item = i256>) -> Option<i256> {
        numbers.try_fold(i256::ZERO, i256::checked_add)
    }
}

/// Checked addition of numbers of a type.
#[derive(Clone)]
struct Sum<T: ArrowPrimitiveType> {
    data_type: DataType,
    /// Bound of a decimal's digits, which no number reaches.
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
}

impl<T: Number> Sum<T> {
    /// Adds up the values of an array that are not NULL.
    fn of_values(&self, values: &dyn Array) -> Result<i256> {
        let values = values.as_primitive::<T>();
        let sum = match values.null_count() {
            0 => T::add_up(values.values().iter().copied()),
            _ => T::add_up(values.iter().flatten()),
        };
        sum.ok_or_else(|| self.overflow())
    }

    fn value(&self, total: i256, is_null: bool) -> Result<ScalarValue> {
        let total = T::narrow(total).ok_or_else(|| self.overflow())?;
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
struct Total<T: Number> {
    sum: Sum<T>,
    total: i256,
    /// The number of values that are not NULL.
    values: usize,
}

impl<T: Number> Accumulator for Total<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let sum = self.sum.of_values(&values[0])?;
        let total = self.total.checked_add(sum);
        self.total = total.ok_or_else(|| self.sum.overflow())?;
        self.values += values[0].len() - values[0].null_count();
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let sum = self.sum.of_values(&values[0])?;
        let total = self.total.checked_sub(sum);
        self.total = total.ok_or_else(|| self.sum.overflow())?;
        self.values -= values[0].len() - values[0].null_count();
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
struct OfDistinct<T: Number> {
    sum: Sum<T>,
    values: Box<dyn Accumulator>,
}

impl<T: Number> Accumulator for OfDistinct<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let states = self.values.state()?;
        let [ScalarValue::List(values)] = states.as_slice() else {
            return internal_err!("distinct values are not a list");
        };
        let total = self.sum.of_values(values.values())?;
        self.sum.value(total, values.values().is_empty())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }
}

/// The sum of the distinct values of a frame that slides.
#[derive(Debug)]
struct OfFrame<T: Number> {
    sum: Sum<T>,
    total: i256,
    /// Number of rows of each value.
    values: HashMap<i256, usize>,
}

impl<T: Number> Accumulator for OfFrame<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for number in values[0].as_primitive::<T>().iter().flatten().map(T::wide) {
            let rows = self.values.entry(number).or_default();
            *rows += 1;
            if *rows == 1 {
                let total = self.total.checked_add(number);
                self.total = total.ok_or_else(|| self.sum.overflow())?;
            }
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for number in values[0].as_primitive::<T>().iter().flatten().map(T::wide) {
            let Entry::Occupied(mut rows) = self.values.entry(number) else {
                return internal_err!("a value leaves a frame that it is not in");
            };
            *rows.get_mut() -= 1;
            if *rows.get() == 0 {
                rows.remove();
                let total = self.total.checked_sub(number);
                self.total = total.ok_or_else(|| self.sum.overflow())?;
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame's sum is not merged")
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame's sum has no state")
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.sum.value(self.total, self.values.is_empty())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<(i256, usize)>()
    }
}
