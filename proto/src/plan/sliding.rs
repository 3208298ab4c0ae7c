//! Aggregates over sliding frames, without retraction.
//!
//! DataFusion 55 adds the rows that enter a frame and retracts those that leave it. A float is not gone when it is
//! subtracted: after one NaN or infinity all sums that follow are NaN, after 1e16 they have lost their digits, the standard
//! deviation of equal values is the root of a negative number, and `corr` and `regr_slope` divide by a remainder of what
//! should be 0. `bit_xor` of no row is 0. And `bit_and` and `bool_or`, which have no retraction, are refused.
//!
//! Here a frame is two stacks (the two-stacks algorithm of sliding-window aggregation): rows enter the back stack, whose
//! aggregate is kept, and leave the front stack, of each of whose rows the aggregate from there on is kept. When the front
//! is empty, the back becomes the front: each row is added twice.
//!
//! ```text
//! rows of a frame    a  b  c │ d  e        front: abc, bc, c     back: de
//! a leaves, f enters    b  c │ d  e  f     front: bc, c          back: def     its value: bc and def
//! ```
//!
//! Frames from the first row on are DataFusion's, and so are integers, decimals and counts, whose retraction is exact. To be
//! dropped when a release computes sliding frames so.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Float64Type, Schema};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, LogicalPlan, Signature,
    Volatility, WindowFunctionDefinition,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

use super::window_exprs;

/// What the names of these functions start with, before the aggregate's own.
const PREFIX: &str = "volley_sliding_";

/// Aggregates of whatever they are of, to which the order of rows is nothing.
const ALWAYS: [&str; 20] = [
    "var",
    "var_pop",
    "stddev",
    "stddev_pop",
    "covar_samp",
    "covar_pop",
    "corr",
    "regr_slope",
    "regr_intercept",
    "regr_r2",
    "regr_avgx",
    "regr_avgy",
    "regr_sxx",
    "regr_syy",
    "regr_sxy",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
];

/// Such of floats alone.
const OF_FLOATS: [&str; 2] = ["sum", "avg"];

/// States of this many rows are one batch of arrays.
const CHUNK: usize = 1024;

/// An aggregate over sliding frames.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sliding {
    name: String,
    aggregate: Arc<AggregateUDF>,
    signature: Signature,
}

/// The function of this name, if it is one of these.
pub(super) fn function(name: &str) -> Option<Arc<AggregateUDF>> {
    let own = name.strip_prefix(PREFIX)?;
    if !ALWAYS.contains(&own) && !OF_FLOATS.contains(&own) {
        return None;
    }
    let mut all = all_default_aggregate_functions().into_iter();
    let aggregate = all.find(|function| function.name() == own)?;
    Some(Arc::new(AggregateUDF::from(Sliding {
        name: name.to_owned(),
        aggregate,
        signature: Signature::variadic_any(Volatility::Immutable),
    })))
}

/// Replaces the aggregates over sliding frames.
pub(super) fn without_retraction(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    window_exprs::replaced(plan, replacement)
}

fn replacement(window: &WindowFunction, input: &DFSchema) -> Result<Option<Expr>> {
    let WindowFunctionDefinition::AggregateUDF(aggregate) = &window.fun else {
        return Ok(None);
    };
    let params = &window.params;
    let (name, [value, ..]) = (aggregate.name(), params.args.as_slice()) else {
        return Ok(None);
    };
    if params.distinct || params.window_frame.start_bound.is_unbounded() {
        return Ok(None);
    }
    let is_of_floats = OF_FLOATS.contains(&name) && value.get_type(input)?.is_floating();
    if !is_of_floats && !ALWAYS.contains(&name) {
        return Ok(None);
    }
    let Some(sliding) = function(&format!("{PREFIX}{name}")) else {
        return Ok(None);
    };
    Ok(Some(Expr::WindowFunction(Box::new(WindowFunction {
        fun: WindowFunctionDefinition::AggregateUDF(sliding),
        params: params.clone(),
    }))))
}

impl AggregateUDFImpl for Sliding {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.aggregate.return_type(arguments)
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        self.aggregate.return_field(arguments)
    }

    fn is_nullable(&self) -> bool {
        self.aggregate.is_nullable()
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.aggregate.accumulator(args)
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn Accumulator>> {
        // These are asked for most, and states of an accumulator cost more than they are worth.
        let is_float = *args.return_field.data_type() == DataType::Float64;
        match self.aggregate.name() {
            "sum" if is_float => return Ok(Box::new(Totals::of(Asked::Sum))),
            "avg" if is_float => return Ok(Box::new(Totals::of(Asked::Mean))),
            _ => {}
        }
        let aggregate = Aggregate::of(&self.aggregate, &args);
        Ok(Box::new(Frame {
            of_back: aggregate.accumulator()?,
            aggregate,
            back: vec![],
            front: vec![],
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.aggregate.state_fields(args)
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.aggregate.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.aggregate.supports_null_handling_clause()
    }
}

/// An aggregate with all that its accumulators are made of.
#[derive(Debug)]
struct Aggregate {
    function: Arc<AggregateUDF>,
    name: String,
    schema: Schema,
    return_field: FieldRef,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
    order_bys: Vec<PhysicalSortExpr>,
    ignore_nulls: bool,
    is_distinct: bool,
    is_reversed: bool,
}

impl Aggregate {
    fn of(function: &Arc<AggregateUDF>, args: &AccumulatorArgs<'_>) -> Self {
        Self {
            function: Arc::clone(function),
            name: args.name.to_owned(),
            schema: args.schema.clone(),
            return_field: Arc::clone(&args.return_field),
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
            order_bys: args.order_bys.to_vec(),
            ignore_nulls: args.ignore_nulls,
            is_distinct: args.is_distinct,
            is_reversed: args.is_reversed,
        }
    }

    fn accumulator(&self) -> Result<Box<dyn Accumulator>> {
        self.function.accumulator(AccumulatorArgs {
            return_field: Arc::clone(&self.return_field),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        })
    }
}

/// Columns of the same length.
type Columns = Vec<ArrayRef>;

/// The rows of a frame, and what they come to.
#[derive(Debug)]
struct Frame {
    aggregate: Aggregate,
    /// The back's rows, oldest first.
    back: Vec<Columns>,
    of_back: Box<dyn Accumulator>,
    /// States of the front, from each of its rows on; the last is the oldest row's.
    front: Vec<Columns>,
}

fn rows(columns: &Columns) -> usize {
    columns.first().map_or(0, |column| column.len())
}

fn slice(columns: &Columns, from: usize, rows: usize) -> Columns {
    let slice = |column: &ArrayRef| column.slice(from, rows);
    columns.iter().map(slice).collect()
}

/// States of rows as columns.
fn columns(states: Vec<Vec<ScalarValue>>) -> Result<Columns> {
    let width = states.first().map_or(0, Vec::len);
    let mut by_column = vec![Vec::with_capacity(states.len()); width];
    for state in states {
        for (column, value) in by_column.iter_mut().zip(state) {
            column.push(value);
        }
    }
    by_column
        .into_iter()
        .map(ScalarValue::iter_to_array)
        .collect()
}

impl Frame {
    /// Makes the back the front, but for its oldest rows, which leave.
    fn flip(&mut self, mut leaving: usize) -> Result<()> {
        let mut accumulator = self.aggregate.accumulator()?;
        let mut kept = std::mem::take(&mut self.back);
        self.of_back = self.aggregate.accumulator()?;
        let gone = kept.iter().take_while(|batch| {
            let all = leaving >= rows(batch);
            leaving -= if all { rows(batch) } else { 0 };
            all
        });
        let gone = gone.count();
        kept.drain(..gone);
        let mut states = Vec::new();
        for (number, batch) in kept.iter().enumerate().rev() {
            let first = if number == 0 { leaving } else { 0 };
            for row in (first..rows(batch)).rev() {
                accumulator.update_batch(&slice(batch, row, 1))?;
                states.push(accumulator.state()?);
                if states.len() == CHUNK {
                    self.front.push(columns(std::mem::take(&mut states))?);
                }
            }
        }
        if !states.is_empty() {
            self.front.push(columns(states)?);
        }
        Ok(())
    }
}

impl Accumulator for Frame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values.to_vec();
        if rows(&values) > 0 {
            self.of_back.update_batch(&values)?;
            self.back.push(values);
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut leaving = values.first().map_or(0, |column| column.len());
        while leaving > 0 {
            let Some(oldest) = self.front.pop() else {
                return self.flip(leaving);
            };
            let there = rows(&oldest);
            if there > leaving {
                self.front.push(slice(&oldest, 0, there - leaving));
            }
            leaving -= there.min(leaving);
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Some(oldest) = self.front.last() else {
            return self.of_back.evaluate();
        };
        let mut all = self.aggregate.accumulator()?;
        all.merge_batch(&slice(oldest, rows(oldest) - 1, 1))?;
        if !self.back.is_empty() {
            all.merge_batch(&columns(vec![self.of_back.state()?])?)?;
        }
        all.evaluate()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame is computed in one step")
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame is computed in one step")
    }

    fn size(&self) -> usize {
        let parts = self.back.iter().chain(&self.front).flatten();
        let parts: usize = parts.map(|column| column.get_array_memory_size()).sum();
        size_of::<Self>() + self.of_back.size() + parts
    }
}

/// What is asked of totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Sum,
    Mean,
}

/// The sum of some rows, and how many of them have a value.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    sum: f64,
    count: u64,
}

impl Total {
    fn and(self, other: Self) -> Self {
        Self {
            sum: self.sum + other.sum,
            count: self.count + other.count,
        }
    }
}

/// The same for sums of floats.
#[derive(Debug)]
struct Totals {
    asked: Asked,
    back: Vec<Total>,
    of_back: Total,
    /// From each row on; the last is the oldest row's.
    front: Vec<Total>,
}

impl Totals {
    fn of(asked: Asked) -> Self {
        Self {
            asked,
            back: vec![],
            of_back: Total::default(),
            front: vec![],
        }
    }
}

impl Accumulator for Totals {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else {
            return internal_err!("a sum of nothing");
        };
        let values = cast(values, &DataType::Float64)?;
        for value in values.as_primitive::<Float64Type>() {
            let row = value.map_or_else(Total::default, |sum| Total { sum, count: 1 });
            self.of_back = self.of_back.and(row);
            self.back.push(row);
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let leaving = values.first().map_or(0, |column| column.len());
        for _ in 0..leaving {
            if self.front.is_empty() {
                let mut from_there = Total::default();
                for row in self.back.drain(..).rev() {
                    from_there = row.and(from_there);
                    self.front.push(from_there);
                }
                self.of_back = Total::default();
            }
            self.front.pop();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let front = self.front.last().copied().unwrap_or_default();
        let Total { sum, count } = front.and(self.of_back);
        let value = match self.asked {
            Asked::Sum => sum,
            Asked::Mean => sum / count as f64,
        };
        Ok(ScalarValue::Float64((count > 0).then_some(value)))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame is computed in one step")
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame is computed in one step")
    }

    fn size(&self) -> usize {
        size_of::<Self>() + (self.back.capacity() + self.front.capacity()) * size_of::<Total>()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    use super::super::with_rules;
    use super::*;

    /// Numbers with NULLs, equal ones in a row, a NaN, an infinity and one that takes the others' digits.
    const TABLE: &str = "CREATE TABLE t AS SELECT n AS id, n % 2 AS k, \
        CASE WHEN n % 7 = 3 THEN NULL ELSE (n * 37) % 11 END AS i, \
        CASE WHEN n = 20 THEN CAST('NaN' AS DOUBLE) WHEN n = 40 THEN CAST('-inf' AS DOUBLE) WHEN n = 60 THEN 1e16 \
        WHEN n % 5 = 1 THEN NULL WHEN n BETWEEN 80 AND 120 THEN 0.1 ELSE (n * 13) % 29 / 8.0 END AS x, \
        CASE WHEN n BETWEEN 90 AND 110 THEN 0.3 ELSE (n * 17) % 31 / 4.0 END AS y \
        FROM (SELECT value AS n FROM generate_series(1, 200))";

    /// Frames, and which rows `b` are in that of a row `a`.
    const FRAMES: [(&str, &str); 6] = [
        (
            "ROWS BETWEEN 3 PRECEDING AND CURRENT ROW",
            "b.id BETWEEN a.id - 3 AND a.id",
        ),
        (
            "ROWS BETWEEN 5 PRECEDING AND 2 PRECEDING",
            "b.id BETWEEN a.id - 5 AND a.id - 2",
        ),
        (
            "ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
            "b.id BETWEEN a.id + 1 AND a.id + 2",
        ),
        (
            "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            "b.id >= a.id",
        ),
        (
            "RANGE BETWEEN 70 PRECEDING AND 4 FOLLOWING",
            "b.id BETWEEN a.id - 70 AND a.id + 4",
        ),
        (
            "GROUPS BETWEEN 1 PRECEDING AND 1 PRECEDING",
            "b.id = a.id - 1",
        ),
    ];

    #[tokio::test]
    async fn a_frame_is_of_its_rows_alone() {
        let state = SessionStateBuilder::new_with_default_features().build();
        let context = SessionContext::new_with_state(with_rules(state).build());
        context.sql(TABLE).await.unwrap();
        let two = ["covar_samp", "covar_pop", "corr"];
        let calls = ALWAYS.iter().chain(&OF_FLOATS).map(|name| match *name {
            name if two.contains(&name) || name.starts_with("regr") => format!("{name}(y, x)"),
            name if name.starts_with("bit") => format!("{name}(i)"),
            name if name.starts_with("bool") => format!("{name}(i > 3)"),
            name => format!("{name}(x)"),
        });
        for call in calls {
            for (frame, joined) in FRAMES {
                for filter in ["", " FILTER (WHERE y > 2)"] {
                    let sliding =
                        format!("SELECT id, {call}{filter} OVER (ORDER BY id {frame}) AS v FROM t");
                    let of_b = call
                        .replace("(y, x", "(b.y, b.x")
                        .replace("(x", "(b.x")
                        .replace("(i", "(b.i");
                    let filter = filter.replace("y >", "b.y >");
                    let alone = format!(
                        "SELECT a.id, {of_b}{filter} AS v FROM t a LEFT JOIN t b ON {joined} GROUP BY a.id"
                    );
                    let same = "(s.v IS NOT DISTINCT FROM a.v) OR (abs(s.v - a.v) <= 1e-9 * (1 + abs(a.v)))";
                    let same = match &call[..4] {
                        "bool" => "s.v IS NOT DISTINCT FROM a.v",
                        // Groups have NaN where there is none.
                        "corr" => &format!("{same} OR (s.v IS NULL AND isnan(a.v))"),
                        // An infinity is one or is not a number, by the order of rows.
                        "regr" => &format!("{same} OR (isnan(s.v - s.v) AND isnan(a.v - a.v))"),
                        _ => same,
                    };
                    let sql = format!(
                        "SELECT s.id, s.v AS got, a.v AS due FROM ({sliding}) s JOIN ({alone}) a USING (id) \
                         WHERE ({same}) IS NOT TRUE ORDER BY s.id LIMIT 5"
                    );
                    let differ = context.sql(&sql).await.unwrap().collect().await;
                    let differ = differ.unwrap_or_else(|error| panic!("{sliding}: {error}"));
                    let count: usize = differ.iter().map(|batch| batch.num_rows()).sum();
                    assert_eq!(
                        count,
                        0,
                        "{sliding}\n{}",
                        pretty_format_batches(&differ).unwrap()
                    );
                }
            }
        }
    }
}
