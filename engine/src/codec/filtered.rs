//! Aggregates over windows with a `FILTER`, whose condition the engine's messages leave out.
//!
//! The aggregate becomes one whose last argument is the condition, so that it travels like any other
//! argument: `sum(x) FILTER (WHERE p) OVER w` is `volley_filtered_sum(x, p) OVER w`. Its accumulator
//! is the aggregate's own, and is given the rows where the condition is true. Groups keep their
//! filters, which do travel.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::{filter, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::tree_node::TransformedResult;
use datafusion::common::{ScalarValue, internal_err, not_impl_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, LogicalPlan, Signature, Volatility,
    WindowFunctionDefinition,
};

use super::of_window;
use crate::operators::window_exprs;

/// Prefix of these functions' names, before the aggregate's own name.
const PREFIX: &str = window_exprs::FILTERED;

/// An aggregate with its condition as the last argument.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Filtered {
    name: String,
    aggregate: Arc<AggregateUDF>,
    signature: Signature,
}

impl Filtered {
    fn of(aggregate: Arc<AggregateUDF>) -> AggregateUDF {
        AggregateUDF::from(Self {
            name: format!("{PREFIX}{}", aggregate.name()),
            aggregate,
            signature: Signature::variadic_any(Volatility::Immutable),
        })
    }

    /// Returns the aggregate's own arguments.
    fn own<T>(arguments: &[T]) -> Result<&[T]> {
        match arguments.split_last() {
            Some((_, own)) => Ok(own),
            None => internal_err!("a filtered aggregate without its condition"),
        }
    }

    fn arguments<'a>(args: &AccumulatorArgs<'a>) -> Result<AccumulatorArgs<'a>> {
        Ok(AccumulatorArgs {
            return_field: Arc::clone(&args.return_field),
            exprs: Self::own(args.exprs)?,
            expr_fields: Self::own(args.expr_fields)?,
            ..*args
        })
    }
}

/// Returns the function of this name, if it is one of these.
pub(crate) fn function(name: &str) -> Option<Arc<AggregateUDF>> {
    let name = name.strip_prefix(PREFIX)?;
    Some(Arc::new(Filtered::of(aggregate(name)?)))
}

/// DataFusion's aggregate of this name, or one in its place over windows.
fn aggregate(name: &str) -> Option<Arc<AggregateUDF>> {
    let mut all = all_default_aggregate_functions().into_iter();
    let own = all.find(|function| function.name() == name);
    own.or_else(|| of_window(name))
}

/// Replaces every filtered aggregate over a window in a plan by these functions.
pub(crate) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        window_exprs::replaced(node, |window, _| replacement(window))
    })
    .data()
}

fn replacement(window: &WindowFunction) -> Result<Option<Expr>> {
    let WindowFunctionDefinition::AggregateUDF(function) = &window.fun else {
        return Ok(None);
    };
    let mut params = window.params.clone();
    let Some(condition) = params.filter.take() else {
        return Ok(None);
    };
    if aggregate(function.name()).is_none() {
        return not_impl_err!(
            "FILTER of {}, a function that is not built in, over a window",
            function.name()
        );
    }
    params.args.push(*condition);
    let filtered = Arc::new(Filtered::of(Arc::clone(function)));
    Ok(Some(Expr::WindowFunction(Box::new(WindowFunction {
        fun: WindowFunctionDefinition::AggregateUDF(filtered),
        params,
    }))))
}

impl AggregateUDFImpl for Filtered {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.aggregate.return_type(Self::own(arguments)?)
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        self.aggregate.return_field(Self::own(arguments)?)
    }

    fn is_nullable(&self) -> bool {
        self.aggregate.is_nullable()
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        let own = self.aggregate.accumulator(Self::arguments(&args)?)?;
        Ok(Box::new(FilteredAccumulator { own }))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        let arguments = Self::arguments(&args)?;
        let own = self.aggregate.create_sliding_accumulator(arguments)?;
        Ok(Box::new(FilteredAccumulator { own }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.aggregate.state_fields(StateFieldsArgs {
            input_fields: Self::own(args.input_fields)?,
            ..args
        })
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.aggregate.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.aggregate.supports_null_handling_clause()
    }
}

/// The aggregate's accumulator, given the rows that count.
#[derive(Debug)]
struct FilteredAccumulator {
    own: Box<dyn Accumulator>,
}

/// Returns the values of the rows where the last column is true.
fn counting(values: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    let Some((condition, values)) = values.split_last() else {
        return internal_err!("a filtered aggregate without its condition");
    };
    let condition = as_boolean_array(condition)?;
    let condition = match condition.null_count() {
        0 => condition.clone(),
        _ => prep_null_mask_filter(condition),
    };
    let counting = values.iter().map(|values| filter(values, &condition));
    Ok(counting.collect::<std::result::Result<_, _>>()?)
}

impl Accumulator for FilteredAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.own.update_batch(&counting(values)?)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.own.retract_batch(&counting(values)?)
    }

    fn supports_retract_batch(&self) -> bool {
        self.own.supports_retract_batch()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.own.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.own.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.own.evaluate()
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.own.size()
    }
}
