//! Aggregates over sliding frames, without retraction.
//!
//! DataFusion 55 adds the rows that enter a frame and retracts those that leave it. Subtraction does not remove a float
//! exactly: after one NaN or infinity all later sums are NaN, after 1e16 they have lost their digits, the standard
//! deviation of equal values is the root of a negative number, and `corr` and `regr_slope` divide by the remainder of
//! what should be 0. `bit_xor` of no rows is 0. And `bit_and` and `bool_or`, which have no retraction, are refused.
//!
//! Here a frame is two stacks (the two-stacks algorithm of sliding-window aggregation): rows enter the back stack,
//! which keeps one aggregate, and leave the front stack, which keeps for each row the aggregate from that row on. When
//! the front is empty, the back becomes the front: each row is added twice.
//!
//! ```text
//! rows of a frame    a  b  c │ d  e        front: abc, bc, c     back: de
//! a leaves, f enters    b  c │ d  e  f     front: bc, c          back: def     its value: bc and def
//! ```
//!
//! Frames that start at the first row are left to DataFusion, and so are integers, decimals and counts, whose
//! retraction is exact. Remove when a release computes sliding frames this way.

mod numbers;
mod states;

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, LogicalPlan, Signature,
    Volatility, WindowFunctionDefinition,
};
use datafusion::optimizer::OptimizerConfig;

use self::numbers::{Moments, Stacks, Total};
use self::states::Frame;
use crate::mends::list::{Act, Mend, Upstream};
use crate::operators::window_exprs;
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "sliding",
    wrong: "one NaN, infinity or great number spoils all sums over sliding frames that follow",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::LastLogical(|| {
        top_down("without_retraction", without_retraction)
    })],
};

/// Prefix of these functions' names, before the aggregate's own name.
const PREFIX: &str = "volley_sliding_";

/// Order-insensitive aggregates that are replaced for all input types.
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

/// Aggregates that are replaced for floats alone.
const OF_FLOATS: [&str; 2] = ["sum", "avg"];

/// An aggregate over sliding frames.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sliding {
    name: String,
    aggregate: Arc<AggregateUDF>,
    signature: Signature,
}

/// Returns the function of this name if it is one of these.
pub(crate) fn function(name: &str) -> Option<Arc<AggregateUDF>> {
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

/// Replaces aggregates over sliding frames.
pub(crate) fn without_retraction(
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
        if *args.return_field.data_type() == DataType::Float64 {
            // These are the most frequent, and accumulator states cost more than these need.
            match self.aggregate.name() {
                "sum" => return Ok(Box::new(Stacks::new(Total::sum))),
                "avg" => return Ok(Box::new(Stacks::new(Total::mean))),
                "var" => return Ok(Box::new(Stacks::new(Moments::sample))),
                "var_pop" => return Ok(Box::new(Stacks::new(Moments::population))),
                "stddev" => return Ok(Box::new(Stacks::new(Moments::sample_deviation))),
                "stddev_pop" => return Ok(Box::new(Stacks::new(Moments::population_deviation))),
                _ => {}
            }
        }
        Ok(Box::new(Frame::of(&self.aggregate, &args)?))
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

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::with_rules;

    /// Numbers with NULLs, runs of equal values, a NaN, an infinity, and a number that absorbs the digits of others.
    const TABLE: &str = "CREATE TABLE t AS SELECT n AS id, n % 2 AS k, \
        CASE WHEN n % 7 = 3 THEN NULL ELSE (n * 37) % 11 END AS i, \
        CASE WHEN n = 20 THEN CAST('NaN' AS DOUBLE) WHEN n = 40 THEN CAST('-inf' AS DOUBLE) WHEN n = 60 THEN 1e16 \
        WHEN n % 5 = 1 THEN NULL WHEN n BETWEEN 80 AND 120 THEN 0.1 ELSE (n * 13) % 29 / 8.0 END AS x, \
        CASE WHEN n BETWEEN 90 AND 110 THEN 0.3 ELSE (n * 17) % 31 / 4.0 END AS y \
        FROM (SELECT value AS n FROM generate_series(1, 200))";

    /// Frames, each with the condition that row `b` is in the frame of row `a`.
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
                        // A group's `corr` is NaN where a frame's is NULL.
                        "corr" => &format!("{same} OR (s.v IS NULL AND isnan(a.v))"),
                        // With an infinity, the result is infinite or NaN, depending on the order of rows.
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
