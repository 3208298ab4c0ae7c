//! The two stacks for any aggregate, with the states of its accumulators: one for each row of the front, and one for
//! the back.

use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{FieldRef, Schema};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};

/// Number of row states in one batch of arrays.
const CHUNK: usize = 1024;

/// Aggregate with all arguments that its accumulators need.
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

/// Rows of a frame with their aggregate states.
#[derive(Debug)]
pub(super) struct Frame {
    aggregate: Aggregate,
    /// Rows of the back, oldest first.
    back: Vec<Columns>,
    of_back: Box<dyn Accumulator>,
    /// States from each row of the front on; the last is the oldest row's.
    front: Vec<Columns>,
}

fn rows(columns: &Columns) -> usize {
    columns.first().map_or(0, |column| column.len())
}

fn slice(columns: &Columns, from: usize, rows: usize) -> Columns {
    let slice = |column: &ArrayRef| column.slice(from, rows);
    columns.iter().map(slice).collect()
}

/// Converts the states of rows to columns.
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
    /// Creates an empty frame.
    pub(super) fn of(function: &Arc<AggregateUDF>, args: &AccumulatorArgs<'_>) -> Result<Self> {
        let aggregate = Aggregate::of(function, args);
        Ok(Self {
            of_back: aggregate.accumulator()?,
            aggregate,
            back: vec![],
            front: vec![],
        })
    }

    /// Makes the back the front, without its oldest rows, which leave.
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
