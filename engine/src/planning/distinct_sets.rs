//! Aggregates over the distinct values of several expressions, by grouping sets.
//!
//! DataFusion holds the distinct values of each group in memory, and those of all groups meet in one task where there is
//! no `GROUP BY`. Here they are groups, which are exchanged by their keys and spilled:
//!
//! ```text
//! Aggregate: by g, count(DISTINCT a), sum(DISTINCT b), avg(c)
//!   └ input                  →
//! Aggregate: by g, count(a) where the set is (g, a), sum(b) where it is (g, b), max(average) where it is (g)
//!   └ Aggregate: by the grouping sets (g), (g, a), (g, b), avg(c) AS average
//!       └ input
//! ```
//!
//! The greatest of one value is that value. Not here: distinct values of one expression beside what DataFusion's own rule
//! can split, or in groups; aggregates of other functions, or with an order.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::functions_aggregate::min_max::max_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Aggregate, AggregateUDF, Expr, ExprSchemable, GroupingSet, LogicalPlan, LogicalPlanBuilder,
    lit, when,
};
use datafusion::optimizer::OptimizerConfig;
use datafusion::prelude::{coalesce, col, ident};
use datafusion::scalar::ScalarValue;

/// Functions whose distinct values are counted or added up.
const DISTINCT: [&str; 3] = ["count", "sum", "avg"];
/// Functions that have no value without rows, and one that counts them.
const OTHERS: [&str; 11] = [
    COUNT,
    "sum",
    "avg",
    "min",
    "max",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "var",
    "var_pop",
    "var_samp",
];
const COUNT: &str = "count";
/// Maximum number of columns of grouping sets.
const COLUMNS: usize = 64;

/// Replaces an aggregate over the distinct values of several expressions.
pub(crate) fn distinct_by_sets(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Aggregate(aggregate) = &plan else {
        return Ok(Transformed::no(plan));
    };
    Ok(match Calls::of(aggregate)? {
        Some(calls) => Transformed::yes(calls.by_sets(aggregate)?),
        None => Transformed::no(plan),
    })
}

/// The calls of an aggregate.
#[derive(Default)]
struct Calls<'a> {
    /// Expressions of the groups, each once.
    groups: Vec<Expr>,
    /// Arguments of the `DISTINCT` calls, each once.
    keys: Vec<Expr>,
    /// Calls in the aggregate's order.
    calls: Vec<Call<'a>>,
    /// Calls without `DISTINCT`.
    others: Vec<Expr>,
}

enum Call<'a> {
    /// Call over the distinct values of the key with this index.
    Distinct(&'a AggregateFunction, usize),
    /// Call over all values, with its index among the others.
    Other(&'a AggregateFunction, usize),
}

impl<'a> Calls<'a> {
    /// Returns the calls of an aggregate that is to be replaced.
    fn of(aggregate: &'a Aggregate) -> Result<Option<Self>> {
        let mut calls = Self::default();
        // Whether DataFusion's rule for one distinct expression can be applied.
        let mut is_splittable = true;
        for expr in &aggregate.aggr_expr {
            let Expr::AggregateFunction(call) = expr else {
                return Ok(None);
            };
            let (name, params) = (call.func.name(), &call.params);
            if !params.order_by.is_empty() || params.null_treatment.is_some() {
                return Ok(None);
            }
            is_splittable &= params.filter.is_none();
            // The least and the greatest distinct value are those of all values.
            let is_distinct = params.distinct && !["min", "max"].contains(&name);
            if is_distinct {
                let ([argument], true) = (&params.args[..], DISTINCT.contains(&name)) else {
                    return Ok(None);
                };
                if argument.get_type(aggregate.input.schema())?.is_nested() {
                    return Ok(None);
                }
                let key = match &params.filter {
                    Some(filter) => when(filter.as_ref().clone(), argument.clone()).end()?,
                    None => argument.clone(),
                };
                let known = calls.keys.iter().position(|known| *known == key);
                let at = known.unwrap_or_else(|| {
                    calls.keys.push(key);
                    calls.keys.len() - 1
                });
                calls.calls.push(Call::Distinct(call, at));
                continue;
            }
            let is_nested = expr.get_type(aggregate.input.schema())?.is_nested();
            if !OTHERS.contains(&name) || is_nested {
                return Ok(None);
            }
            is_splittable &= ["sum", "min", "max"].contains(&name);
            calls.calls.push(Call::Other(call, calls.others.len()));
            let mut other = call.clone();
            other.params.distinct = false;
            calls.others.push(Expr::AggregateFunction(other));
        }
        for group in &aggregate.group_expr {
            if !calls.groups.contains(group) {
                calls.groups.push(group.clone());
            }
        }
        let groups = &calls.groups;
        let is_due = match calls.keys.len() {
            0 => false,
            1 => groups.is_empty() && !is_splittable,
            _ => true,
        };
        let is_set = matches!(groups[..], [Expr::GroupingSet(_)]);
        let has_columns = groups.len() + calls.calls.len() == aggregate.schema.fields().len();
        let fits = has_columns && groups.len() + calls.keys.len() <= COLUMNS;
        Ok((is_due && !is_set && fits).then_some(calls))
    }

    fn by_sets(self, aggregate: &Aggregate) -> Result<LogicalPlan> {
        let (groups, keys) = (self.groups.len(), self.keys.len());
        let group = |at: usize| format!("__group_{at}");
        let key = |at: usize| format!("__distinct_{at}");
        let value = |at: usize| format!("__value_{at}");
        // Keys and groups become columns beside those of the input, which other calls need.
        let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input));
        let columns = input.schema().columns().into_iter().map(Expr::Column);
        let named = self.groups.iter().enumerate();
        let named = named.map(|(at, expr)| expr.clone().alias(group(at)));
        let distinct = self.keys.iter().enumerate();
        let distinct = distinct.map(|(at, expr)| expr.clone().alias(key(at)));
        let columns: Vec<_> = columns.chain(named).chain(distinct).collect();
        let input = input.project(columns)?;
        // A set for each key, and one without.
        let by: Vec<_> = (0..groups).map(|at| ident(group(at))).collect();
        let mut sets = vec![];
        if !self.others.is_empty() {
            sets.push(by.clone());
        }
        for at in 0..keys {
            sets.push(by.iter().cloned().chain([ident(key(at))]).collect());
        }
        let others = self.others.into_iter().enumerate();
        let others = others.map(|(at, call)| call.alias(value(at)));
        let sets = Expr::GroupingSet(GroupingSet::GroupingSets(sets));
        // The builder of plans would add groups that others determine.
        let aggregate_of = |input, by, calls| -> Result<_> {
            let aggregate = Aggregate::try_new(Arc::new(input), by, calls)?;
            Ok(LogicalPlan::Aggregate(aggregate))
        };
        let inner = aggregate_of(input.build()?, vec![sets], others.collect())?;
        // The id of a set has a bit for each column that is not in it, the first column's the highest.
        let id_type = Aggregate::grouping_id_type(groups + keys, 0);
        let id = |mask: u64| ScalarValue::from(mask).cast_to(&id_type);
        let none: u64 = (0..keys).map(|at| 1 << at).sum();
        let is_set = |mask: u64| -> Result<Expr> {
            Ok(col(Aggregate::INTERNAL_GROUPING_ID).eq(lit(id(mask)?)))
        };
        let outer = self.calls.iter().enumerate().map(|(call_at, call)| {
            let call = match call {
                Call::Distinct(call, at) => {
                    let filter = is_set(none - (1 << (keys - 1 - at)))?;
                    of_set(Arc::clone(&call.func), key(*at), filter)
                }
                Call::Other(_, at) => of_set(max_udaf(), value(*at), is_set(none)?),
            };
            // Two calls may ask for the same.
            Ok(call.alias(format!("__call_{call_at}")))
        });
        let outer = outer.collect::<Result<Vec<_>>>()?;
        let plan = LogicalPlanBuilder::from(aggregate_of(inner, by, outer)?);
        // The columns of the replaced aggregate.
        let names: Vec<_> = aggregate.schema.iter().collect();
        let columns = plan.schema().columns().into_iter().zip(names).enumerate();
        let columns = columns.map(|(at, (column, (qualifier, field)))| {
            let call = at.checked_sub(groups).map(|at| &self.calls[at]);
            let counted = matches!(call, Some(Call::Other(call, _)) if call.func.name() == COUNT);
            let column = match counted {
                true => coalesce(vec![Expr::Column(column), lit(0_i64)]),
                false => Expr::Column(column),
            };
            column.alias_qualified(qualifier.cloned(), field.name())
        });
        let columns: Vec<_> = columns.collect();
        plan.project(columns)?.build()
    }
}

/// Returns the call of a function with the rows of one grouping set.
fn of_set(func: Arc<AggregateUDF>, column: String, filter: Expr) -> Expr {
    let (args, filter) = (vec![ident(column)], Some(Box::new(filter)));
    let call = AggregateFunction::new_udf(func, args, false, filter, vec![], None);
    Expr::AggregateFunction(call)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::rules::logical::top_down;

    const TABLE: &str = "CREATE TABLE t AS SELECT value AS id, value % 3 AS g, \
        CASE WHEN value % 7 = 0 THEN NULL ELSE value % 11 END AS a, concat('b', value % 5) AS b, \
        CAST(value % 13 AS DECIMAL(6, 2)) AS d, value / 8.0 AS f FROM range(200)";

    /// Returns a query's plan and its sorted rows, with the rule and without.
    async fn answer(query: &str, by_sets: bool) -> (String, Vec<String>) {
        let config = SessionConfig::new().with_target_partitions(2);
        let state = SessionStateBuilder::new_with_default_features().with_config(config);
        let mut state = state.build();
        let mut rules = vec![];
        if by_sets {
            rules.push(top_down("distinct_by_sets", distinct_by_sets));
        }
        rules.extend(crate::mends::Mended::ALL.logical(state.optimizers()));
        state = SessionStateBuilder::new_from_existing(state)
            .with_optimizer_rules(rules)
            .build();
        let session = SessionContext::new_with_state(state);
        session.sql(TABLE).await.unwrap();
        let frame = session.sql(query).await.unwrap();
        let plan = frame.clone().into_optimized_plan().unwrap().to_string();
        let rows = frame.collect().await.unwrap();
        let rows = pretty_format_batches(&rows).unwrap().to_string();
        let mut rows: Vec<_> = rows.lines().map(str::to_owned).collect();
        rows.sort();
        (plan, rows)
    }

    #[tokio::test]
    async fn rows_are_those_of_the_aggregate() {
        let calls = [
            ("count(DISTINCT a), count(DISTINCT b)", true),
            (
                "count(DISTINCT a), count(DISTINCT b), count(*), avg(f), sum(d), max(b), stddev(f)",
                true,
            ),
            (
                "count(DISTINCT a) FILTER (WHERE id > 50), count(DISTINCT a), min(DISTINCT b)",
                true,
            ),
            (
                "sum(DISTINCT a), avg(DISTINCT a), count(DISTINCT f), sum(DISTINCT d), count(a) FILTER (WHERE b = 'b1')",
                true,
            ),
            (
                "count(DISTINCT a), count(DISTINCT g), count(DISTINCT a + g)",
                true,
            ),
            (
                "count(DISTINCT b), count(DISTINCT a) FILTER (WHERE g = 1), count(DISTINCT CASE WHEN g = 1 THEN a END)",
                true,
            ),
            ("count(DISTINCT a), sum(id)", false),
            ("count(DISTINCT a), count(DISTINCT b), array_agg(id)", false),
            (
                "count(DISTINCT a), count(DISTINCT b), first_value(id ORDER BY id)",
                false,
            ),
        ];
        let of = [
            "t",
            "t WHERE id < 0",
            "t GROUP BY g",
            "t WHERE id < 0 GROUP BY g",
            "t GROUP BY g % 2, b HAVING count(DISTINCT a) > 1",
        ];
        for (calls, replaced) in calls {
            for of in of {
                let query = format!("SELECT {calls} FROM {of}");
                let (plan, rows) = answer(&query, true).await;
                let (_, due) = answer(&query, false).await;
                assert_eq!(plan.contains("GROUPING SETS"), replaced, "{query}: {plan}");
                assert_eq!(rows, due, "{query}");
            }
        }
        // One expression is left to DataFusion's rule, or to groups.
        for (query, replaced) in [
            ("SELECT count(DISTINCT a), avg(f) FROM t", true),
            ("SELECT count(DISTINCT a), avg(f) FROM t GROUP BY g", false),
            (
                "SELECT g, count(DISTINCT a), count(DISTINCT b) AS n FROM t GROUP BY ROLLUP (g)",
                false,
            ),
            (
                "SELECT n + 1, g FROM (SELECT g, count(DISTINCT a) AS m, count(DISTINCT b) AS n FROM t GROUP BY g)",
                true,
            ),
            (
                "SELECT sum(n), max(m) FROM (SELECT g, count(DISTINCT a) AS m, count(DISTINCT b) AS n FROM t GROUP BY g)",
                true,
            ),
            (
                "SELECT g, sum(n), max(m) FROM (SELECT g, b, count(DISTINCT a) AS m, count(DISTINCT id) AS n, count(*) AS c \
                 FROM t GROUP BY g, b) WHERE c > 0 GROUP BY g",
                true,
            ),
            (
                "SELECT count(DISTINCT a), sum(DISTINCT 1) FROM t GROUP BY t.b, t.b HAVING sum(DISTINCT 1) <= 2",
                true,
            ),
            (
                "SELECT x.g, x.n, y.c FROM (SELECT g, count(DISTINCT a) AS m, count(DISTINCT b) AS n FROM t GROUP BY g) x \
                 JOIN (SELECT g, count(*) AS c FROM t GROUP BY g) y ON x.g = y.g WHERE x.m < y.c",
                true,
            ),
        ] {
            let (plan, rows) = answer(query, true).await;
            let (_, due) = answer(query, false).await;
            assert_eq!(plan.contains("GROUPING SETS"), replaced, "{query}: {plan}");
            assert_eq!(rows, due, "{query}");
        }
    }
}
