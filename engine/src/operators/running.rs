//! Running minima and maxima: window functions over everything before a row, everything after it, or its whole
//! partition, computed in one pass over arrays.
//!
//! DataFusion computes them row by row, a scalar at a time. Its window operator stays, and so do the rows: only `min`
//! and `max` over plain values are replaced, in windows that need their whole partition anyway. DataFusion streams
//! windows that only look back, and these are left alone.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, BooleanArray, NullBufferBuilder,
    PrimitiveArray, downcast_primitive_array,
};
use datafusion::arrow::buffer::{BooleanBuffer, NullBuffer};
use datafusion::arrow::compute::partition;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    Expr, ExprSchemable, LimitEffect, LogicalPlan, PartitionEvaluator, Signature, Volatility,
    WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition, WindowUDF,
    WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;

use crate::operators::window_exprs;

/// Minimum or maximum of the rows in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Extreme {
    Min,
    Max,
}

/// Frame of a row within its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reach {
    /// Rows up to this one.
    Past,
    /// Rows from this one on.
    Future,
    /// All rows.
    All,
}

/// Window function. Its arguments are the values, the filter condition if there is one, and the sort keys if peers
/// share a result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Running {
    name: String,
    extreme: Extreme,
    reach: Reach,
    filtered: bool,
    signature: Signature,
}

/// All of these functions.
static FUNCTIONS: LazyLock<Vec<Arc<WindowUDF>>> = LazyLock::new(|| {
    let mut functions = Vec::new();
    for extreme in [Extreme::Min, Extreme::Max] {
        for reach in [Reach::Past, Reach::Future, Reach::All] {
            for filtered in [false, true] {
                functions.push(Arc::new(WindowUDF::from(Running {
                    name: name(extreme, reach, filtered),
                    extreme,
                    reach,
                    filtered,
                    signature: Signature::variadic_any(Volatility::Immutable),
                })));
            }
        }
    }
    functions
});

fn name(extreme: Extreme, reach: Reach, filtered: bool) -> String {
    let which = match extreme {
        Extreme::Min => "min",
        Extreme::Max => "max",
    };
    let of = match reach {
        Reach::Past => "past",
        Reach::Future => "future",
        Reach::All => "all",
    };
    let filtered = if filtered { "_filtered" } else { "" };
    format!("volley_running_{which}_{of}{filtered}")
}

/// Returns the function of this name, if it is one of these.
pub(crate) fn function(name: &str) -> Option<Arc<WindowUDF>> {
    let mut functions = FUNCTIONS.iter();
    functions.find(|function| function.name() == name).cloned()
}

/// Replaces functions by these wherever they compute the same, in window operators with a frame that reaches the end of
/// its partition.
pub(crate) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| match &node {
        LogicalPlan::Window(window) if window.window_expr.iter().any(looks_ahead) => {
            window_exprs::replaced(node, |window, input| Ok(replacement(window, input)))
        }
        _ => Ok(Transformed::no(node)),
    })
    .data()
}

/// Checks whether the frame of a window expression reaches the end of its partition.
fn looks_ahead(expr: &Expr) -> bool {
    match window_exprs::unaliased(expr) {
        Expr::WindowFunction(window) => window.params.window_frame.end_bound.is_unbounded(),
        _ => false,
    }
}

/// Returns the equivalent of a window function among these.
fn replacement(window: &WindowFunction, input: &DFSchema) -> Option<Expr> {
    let WindowFunctionDefinition::AggregateUDF(aggregate) = &window.fun else {
        return None;
    };
    let WindowFunctionParams {
        args,
        order_by,
        window_frame,
        filter,
        null_treatment: None,
        distinct: false,
        ..
    } = &window.params
    else {
        return None;
    };
    let (value, extreme) = match (args.as_slice(), aggregate.name()) {
        ([value], "min") => (value, Extreme::Min),
        ([value], "max") => (value, Extreme::Max),
        _ => return None,
    };
    if !is_plain(&value.get_type(input).ok()?) {
        return None;
    }
    let condition = filter.as_ref().map(|filter| filter.get_type(input));
    if condition.is_some_and(|kind| !matches!(kind, Ok(DataType::Boolean))) {
        return None;
    }
    let reach = reach(window_frame)?;
    let mut params = window.params.clone();
    params
        .args
        .extend(params.filter.take().map(|filter| *filter));
    if window_frame.units != WindowFrameUnits::Rows && reach != Reach::All {
        let order = order_by.iter().map(|sort| sort.expr.clone());
        params.args.extend(order);
    }
    let fun = function(&name(extreme, reach, filter.is_some()))?;
    Some(Expr::WindowFunction(Box::new(WindowFunction {
        fun: WindowFunctionDefinition::WindowUDF(fun),
        params,
    })))
}

/// Checks for types whose values are ordered as integers are, without exceptions such as NaN.
fn is_plain(data_type: &DataType) -> bool {
    data_type.is_integer()
        || matches!(
            data_type,
            DataType::Date32
                | DataType::Date64
                | DataType::Timestamp(..)
                | DataType::Time32(_)
                | DataType::Time64(_)
        )
}

fn reach(frame: &WindowFrame) -> Option<Reach> {
    let now = |bound: &WindowFrameBound| matches!(bound, WindowFrameBound::CurrentRow);
    let (start, end) = (&frame.start_bound, &frame.end_bound);
    match (start.is_unbounded(), end.is_unbounded()) {
        (true, true) => Some(Reach::All),
        (true, false) if now(end) => Some(Reach::Past),
        (false, true) if now(start) => Some(Reach::Future),
        _ => None,
    }
}

impl WindowUDFImpl for Running {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn partition_evaluator(
        &self,
        _: PartitionEvaluatorArgs<'_>,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(self.clone()))
    }

    fn field(&self, args: WindowUDFFieldArgs<'_>) -> Result<FieldRef> {
        let Some(value) = args.get_input_field(0) else {
            return internal_err!("{} takes a value", self.name);
        };
        let data_type = value.data_type().clone();
        Ok(Arc::new(Field::new(args.name(), data_type, true)))
    }

    fn limit_effect(&self, _: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        LimitEffect::Unknown
    }
}

impl PartitionEvaluator for Running {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let (value, condition, order) = match (values, self.filtered) {
            ([value, order @ ..], false) => (value.as_ref(), None, order),
            ([value, condition, order @ ..], true) => (value.as_ref(), Some(condition), order),
            _ => return internal_err!("{} takes more than {}", self.name, values.len()),
        };
        let condition = condition.map(|array| as_boolean_array(array)).transpose()?;
        let peers = match (self.reach, order) {
            (Reach::All, _) => Some(std::iter::once(0..rows).collect()),
            (_, []) => None,
            _ => {
                let groups = partition(order)?;
                (groups.len() < rows).then(|| groups.ranges())
            }
        };
        let peers = peers.as_deref();
        let (extreme, reach) = (self.extreme, self.reach);
        downcast_primitive_array!(
            value => Ok(Arc::new(scan(value, condition, peers, extreme, reach))),
            other => internal_err!("{} of {other}", self.name),
        )
    }
}

/// Computes the extreme after each group of peers, whose rows share it; after each row if there are no peers.
fn scan<T: ArrowPrimitiveType>(
    values: &PrimitiveArray<T>,
    condition: Option<&BooleanArray>,
    peers: Option<&[Range<usize>]>,
    extreme: Extreme,
    reach: Reach,
) -> PrimitiveArray<T> {
    let counted = counted(values, condition);
    let counted = counted.as_ref();
    let (seen, nulls) = match extreme {
        Extreme::Min => see(values.values(), counted, peers, reach, T::Native::is_lt),
        Extreme::Max => see(values.values(), counted, peers, reach, T::Native::is_gt),
    };
    PrimitiveArray::<T>::new(seen.into(), nulls).with_data_type(values.data_type().clone())
}

/// Returns the rows that count, those with a value for which the condition holds; `None` if all do.
fn counted(values: &dyn Array, condition: Option<&BooleanArray>) -> Option<BooleanBuffer> {
    let valid = |nulls: Option<&NullBuffer>| nulls.map(|nulls| nulls.inner().clone());
    let masks = [
        valid(values.nulls()),
        valid(condition.and_then(Array::nulls)),
        condition.map(|condition| condition.values().clone()),
    ];
    masks
        .into_iter()
        .flatten()
        .reduce(|one, other| &one & &other)
}

/// Computes the extreme of each row's frame, and which frames are empty.
fn see<N: ArrowNativeTypeOp>(
    values: &[N],
    counted: Option<&BooleanBuffer>,
    peers: Option<&[Range<usize>]>,
    reach: Reach,
    better: impl Fn(N, N) -> bool,
) -> (Vec<N>, Option<NullBuffer>) {
    let rows = values.len();
    let mut seen = vec![N::default(); rows];
    let (mut best, mut any) = (N::default(), false);
    // Without branches: the rows that count follow no pattern that a processor could predict.
    let mut look_at = |row: usize| {
        let value = values[row];
        let counts = counted.is_none_or(|counted| counted.value(row));
        let taken = counts & (!any | better(value, best));
        best = if taken { value } else { best };
        any |= taken;
        (best, any)
    };
    // Once a frame has a value, all further frames have one.
    let mut blind = 0;
    let see_alone = |row: usize| {
        let (best, any) = look_at(row);
        seen[row] = best;
        blind += usize::from(!any);
    };
    match (peers, reach) {
        (None, Reach::Future) => (0..rows).rev().for_each(see_alone),
        (None, _) => (0..rows).for_each(see_alone),
        (Some(peers), _) => {
            let see = |peers: &Range<usize>| {
                let found = peers.clone().map(&mut look_at).last();
                let (best, any) = found.unwrap_or_default();
                seen[peers.clone()].fill(best);
                blind += if any { 0 } else { peers.len() };
            };
            match reach {
                Reach::Future => peers.iter().rev().for_each(see),
                _ => peers.iter().for_each(see),
            }
        }
    }
    let mut nulls = NullBufferBuilder::new(rows);
    if reach == Reach::Future {
        nulls.append_n_non_nulls(rows - blind);
        nulls.append_n_nulls(blind);
    } else {
        nulls.append_n_nulls(blind);
        nulls.append_n_non_nulls(rows - blind);
    }
    (seen, nulls.finish())
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::VolleyQueryPlanner;

    /// Dates with duplicates and NULLs, in three partitions, one without any value.
    const TABLE: &str = "CREATE TABLE t AS SELECT n % 3 AS k, (n * 7) % 10 AS o, \
        CASE WHEN n % 3 = 2 OR n % 5 = 0 THEN NULL \
        ELSE CAST('2020-01-01' AS DATE) + CAST((n * 37) % 101 AS INT) END AS d, \
        CASE WHEN n % 4 > 0 THEN (n * 13) % 29 END AS i, sin(n) AS f \
        FROM (SELECT value AS n FROM generate_series(1, 100))";

    async fn rows(context: &SessionContext, sql: &str) -> String {
        context.sql(TABLE).await.unwrap();
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        pretty_format_batches(&batches).unwrap().to_string()
    }

    #[tokio::test]
    async fn rows_are_those_of_the_engine() {
        let ours = SessionContext::new_with_state(
            SessionStateBuilder::new()
                .with_default_features()
                .with_query_planner(Arc::new(VolleyQueryPlanner))
                .build(),
        );
        let mut sql = "SELECT k, o, d, i, f".to_owned();
        for units in ["ROWS", "RANGE"] {
            for function in [
                "min(d)",
                "max(d)",
                "min(d) FILTER (WHERE i > 9)",
                "max(d) FILTER (WHERE i > 9)",
                "min(i)",
                "max(i)",
                "max(f)",
                "count(i)",
                "count(i) FILTER (WHERE i > 9)",
            ] {
                for frame in [
                    "UNBOUNDED PRECEDING AND CURRENT ROW",
                    "CURRENT ROW AND UNBOUNDED FOLLOWING",
                    "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
                ] {
                    // With ROWS, the order is total: otherwise peers could swap their results.
                    let order = if units == "ROWS" { "o, d, i, f" } else { "o" };
                    sql.push_str(&format!(
                        ", {function} OVER (PARTITION BY k ORDER BY {order} {units} BETWEEN {frame})"
                    ));
                }
            }
        }
        sql.push_str(
            ", max(d) OVER (PARTITION BY k), min(i) OVER () FROM t ORDER BY k, o, d, i, f",
        );
        let expected = rows(&SessionContext::new(), &sql).await;
        assert_eq!(rows(&ours, &sql).await, expected);
        // A physical plan shows the names of columns, which stay.
        let plan = ours.sql(&sql).await.unwrap().into_optimized_plan().unwrap();
        let rewritten = rewrite(plan).unwrap().to_string();
        for running in FUNCTIONS.iter() {
            assert!(rewritten.contains(running.name()), "{}", running.name());
        }
    }

    #[tokio::test]
    async fn what_only_looks_back_is_streamed() {
        let context = SessionContext::new_with_state(
            SessionStateBuilder::new()
                .with_default_features()
                .with_query_planner(Arc::new(VolleyQueryPlanner))
                .build(),
        );
        context.sql(TABLE).await.unwrap();
        let sql = "SELECT max(d) OVER (PARTITION BY k ORDER BY o) FROM t";
        let plan = context.sql(sql).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        let plan = displayable(plan.as_ref()).indent(true).to_string();
        assert!(plan.contains("BoundedWindowAggExec"), "{plan}");
    }
}
