//! Keys, which do not survive `UNNEST`: a row with a key becomes several.
//!
//! DataFusion 55 gives the rows of an unnested list the functional dependencies of the row that held the list. In
//! `SELECT k, unnest(l) AS u FROM (SELECT k, array_agg(x) AS l FROM t GROUP BY k)`, `k` counts as unique, and as
//! determining `u`: `DISTINCT k` returns it several times, `GROUP BY k, u` groups by `k` alone, `ORDER BY k, u` sorts
//! by `k` alone, a join by `k` becomes a semi join, and `OVER (ORDER BY k)` counts rows instead of peers.
//!
//! The dependencies are derived in several phases, so each phase forgets them again:
//!
//! ```text
//! statements  UnnestedRelations  the planner adds to GROUP BY what a key determines, and looks for peers of an order
//! analyzed    UnnestedKeys       a scalar subquery is checked to have one row, by a key
//! optimized   WithoutKeys        rules derive keys anew: an operator hides them as long as rules run
//! ```
//!
//! Remove when a release fixes `Unnest`. Rows of the DataFrame API's `unnest_columns` are still grouped by the columns
//! that were added when it was called.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, DFSchemaRef, FunctionalDependencies};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, Unnest, UserDefinedLogicalNodeCore};
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig};
use datafusion::sql::sqlparser::ast::{Ident, TableAlias, TableFactor};

use crate::mends::list::{Act, Mend, Upstream};
use crate::nodes::train::only;
use crate::rules::logical::{any_operator, whole_plan};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "unnested_keys",
    wrong: "rows that a list becomes count as unique by the key of the row that it was in",
    upstream: Upstream::Thread("apache/datafusion#24787"),
    query: include_str!("query.sql"),
    acts: &[
        Act::Analyzer(|| Arc::new(UnnestedKeys)),
        Act::Relations(|| Arc::new(UnnestedRelations)),
        Act::FirstLogical(|| whole_plan("forget_unnested_keys", forget_unnested_keys)),
        Act::LastLogical(|| whole_plan("remember_unnested_keys", remember_unnested_keys)),
    ],
};

/// Alias of relations that [`UnnestedRelations`] has planned; no query can use it.
const PLANNED: &str = "\0planned";

/// Plans subqueries and named queries unchanged, and forgets the keys of unnested rows.
#[derive(Debug)]
pub(super) struct UnnestedRelations;

impl RelationPlanner for UnnestedRelations {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let (TableFactor::Derived { alias, .. }
        | TableFactor::Table {
            alias, args: None, ..
        }) = &mut relation
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let name = alias.take();
        if name.as_ref().is_some_and(|name| name.name.value == PLANNED) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        *alias = Some(TableAlias {
            explicit: false,
            name: Ident::new(PLANNED),
            columns: vec![],
            at: None,
        });
        let plan = forget_keys(context.plan(relation)?)?;
        let planned = PlannedRelation::new(plan, name);
        Ok(RelationPlanning::Planned(Box::new(planned)))
    }
}

/// Forgets the keys of unnested rows again when plans are analyzed: the analyzer has recomputed the schemas of all
/// operators, and checks next whether scalar subqueries have one row. For clients, after the engine's rules.
#[derive(Debug)]
pub(super) struct UnnestedKeys;

impl AnalyzerRule for UnnestedKeys {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        forget_keys(plan)
    }

    fn name(&self) -> &'static str {
        "unnested_keys"
    }
}

/// Removes the keys of unnested rows from a plan's schemas, until a rule recomputes them.
///
/// # Errors
/// When an operator does not fit its inputs.
pub fn forget_keys(plan: LogicalPlan) -> Result<LogicalPlan> {
    if !has_unnested(&plan)? {
        return Ok(plan);
    }
    let plan = plan.transform_up_with_subqueries(|node| {
        Ok(Transformed::yes(match node {
            LogicalPlan::Unnest(unnest) => LogicalPlan::Unnest(Unnest {
                schema: without_keys(&unnest.schema)?,
                ..unnest
            }),
            node => node.recompute_schema()?,
        }))
    })?;
    Ok(plan.data)
}

fn has_unnested(plan: &LogicalPlan) -> Result<bool> {
    any_operator(plan, |node| Ok(matches!(node, LogicalPlan::Unnest(_))))
}

fn without_keys(schema: &DFSchema) -> Result<DFSchemaRef> {
    let none = FunctionalDependencies::empty();
    Ok(Arc::new(schema.clone().with_functional_dependencies(none)?))
}

/// Operator that passes rows on without known keys; it occurs in no plan that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WithoutKeys {
    input: LogicalPlan,
    schema: DFSchemaRef,
}

impl WithoutKeys {
    fn of(input: LogicalPlan) -> Result<Self> {
        let schema = without_keys(input.schema())?;
        Ok(Self { input, schema })
    }
}

impl Hash for WithoutKeys {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.input.hash(state);
    }
}

impl PartialOrd for WithoutKeys {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}

impl UserDefinedLogicalNodeCore for WithoutKeys {
    fn name(&self) -> &'static str {
        "WithoutKeys"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    /// Lets conditions and limits pass.
    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::new()
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }

    fn necessary_children_exprs(&self, columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![columns.to_vec()])
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WithoutKeys")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        Self::of(only(inputs)?)
    }
}

/// Hides the keys of unnested rows from their readers, until [`remember_unnested_keys`].
pub(crate) fn forget_unnested_keys(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    if !has_unnested(&plan)? {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| {
        let node = node.map_children(|input| match input {
            LogicalPlan::Unnest(_) => {
                let node = Arc::new(WithoutKeys::of(input)?);
                Ok(Transformed::yes(LogicalPlan::Extension(Extension { node })))
            }
            input => Ok(Transformed::no(input)),
        })?;
        // An input that changed below has other known keys.
        node.map_data(LogicalPlan::recompute_schema)
    })
}

/// Removes the operators of [`forget_unnested_keys`]: the last rule of a round, before the first runs again.
pub(crate) fn remember_unnested_keys(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    if !has_unnested(&plan)? {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Extension(own) => match own.node.as_any().downcast_ref::<WithoutKeys>() {
            Some(passing) => Ok(Transformed::yes(passing.input.clone())),
            None => Ok(Transformed::no(LogicalPlan::Extension(own))),
        },
        node => Ok(Transformed::no(node)),
    })
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;
    use datafusion::{assert_batches_eq, assert_batches_sorted_eq};

    use super::*;
    use crate::mends::Mended;

    #[tokio::test]
    async fn keys_do_not_survive() {
        let state = SessionStateBuilder::new_with_default_features().build();
        let rules = Mended::ALL.logical(state.optimizers());
        let state = SessionStateBuilder::new_from_existing(state)
            .with_optimizer_rules(rules)
            .build();
        let context = SessionContext::new_with_state(state);
        context
            .register_relation_planner(Arc::new(UnnestedRelations))
            .unwrap();
        let unnested = "SELECT k, unnest(l) AS u FROM (SELECT k, array_agg(x) AS l \
                        FROM (VALUES (1, 2), (1, 1), (2, 3)) v(k, x) GROUP BY k)";
        let ask = async |sql: &str| {
            let derived = sql.replace("ROWS", &format!("({unnested})"));
            let named = format!("WITH w AS ({unnested}) {}", sql.replace("ROWS", "w"));
            let collect = async |sql: String| {
                let frame = context.sql(&sql).await.unwrap();
                frame.collect().await.unwrap()
            };
            [collect(derived).await, collect(named).await]
        };
        let keys = ["+---+", "| k |", "+---+", "| 1 |", "| 2 |", "+---+"];
        for rows in ask("SELECT DISTINCT k FROM ROWS r").await {
            assert_batches_sorted_eq!(keys, &rows);
        }
        let counts = [
            "+---+---+",
            "| k | n |",
            "+---+---+",
            "| 1 | 2 |",
            "| 2 | 1 |",
            "+---+---+",
        ];
        for rows in ask("SELECT k, count(*) AS n FROM ROWS r GROUP BY k").await {
            assert_batches_sorted_eq!(counts, &rows);
        }
        let count = ["+---+", "| n |", "+---+", "| 3 |", "+---+"];
        let groups = "SELECT count(*) AS n FROM (SELECT k, u FROM ROWS r GROUP BY k, u)";
        let joined = "SELECT count(*) AS n FROM (VALUES (1), (2)) a(k) JOIN ROWS b ON a.k = b.k";
        for sql in [groups, joined] {
            for rows in ask(sql).await {
                assert_batches_sorted_eq!(count, &rows);
            }
        }
        let sorted = [
            "+---+", "| u |", "+---+", "| 1 |", "| 2 |", "| 3 |", "+---+",
        ];
        for rows in ask("SELECT u FROM ROWS r ORDER BY k, u").await {
            assert_batches_eq!(sorted, &rows);
        }
        let peers = [
            "+---+", "| s |", "+---+", "| 3 |", "| 3 |", "| 6 |", "+---+",
        ];
        for rows in ask("SELECT sum(u) OVER (ORDER BY k) AS s FROM ROWS r").await {
            assert_batches_sorted_eq!(peers, &rows);
        }
    }
}
