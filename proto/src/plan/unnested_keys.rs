//! Keys do not survive `UNNEST`: rows of one key become several.
//!
//! DataFusion 55 says of the rows that a list becomes whatever was known of the row that it was in. Of
//! `SELECT k, unnest(l) AS u FROM (SELECT k, array_agg(x) AS l FROM t GROUP BY k)`, and of a table with a primary key,
//! `k` counts as unique, and as determining `u`: `DISTINCT k` gives it several times, `GROUP BY k, u` groups by `k`
//! alone, `ORDER BY k, u` sorts by it alone, and a join by `k` becomes a semi join.
//!
//! It says so again whenever a rule has the operator's columns found out anew. So the operator gets another above it, which
//! passes rows on and says nothing of their keys; no plan that runs has it. To be dropped when a release mends `Unnest`.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DFSchemaRef, FunctionalDependencies};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::optimizer::OptimizerConfig;

use super::train::only;

/// Passes rows on without what is known of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WithoutKeys {
    input: LogicalPlan,
    schema: DFSchemaRef,
}

impl WithoutKeys {
    fn of(input: LogicalPlan) -> Result<Self> {
        let schema = DFSchema::clone(input.schema());
        let none = FunctionalDependencies::empty();
        let schema = Arc::new(schema.with_functional_dependencies(none)?);
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

    /// Conditions and limits go through it.
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

/// Has what reads unnested rows know nothing of their keys.
pub(super) fn forget_unnested_keys(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let mut has_any = false;
    plan.apply_with_subqueries(|node| {
        has_any = matches!(node, LogicalPlan::Unnest(_));
        Ok(match has_any {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    if !has_any {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| {
        let is_known =
            matches!(&node, LogicalPlan::Extension(own) if own.node.as_any().is::<WithoutKeys>());
        if is_known {
            return Ok(Transformed::no(node));
        }
        let node = node.map_children(|input| match input {
            LogicalPlan::Unnest(_) => {
                let node = Arc::new(WithoutKeys::of(input)?);
                Ok(Transformed::yes(LogicalPlan::Extension(Extension { node })))
            }
            input => Ok(Transformed::no(input)),
        })?;
        // Of an input that was changed below, more or less is known.
        node.map_data(LogicalPlan::recompute_schema)
    })
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;
    use datafusion::{assert_batches_eq, assert_batches_sorted_eq};

    use super::super::{VolleyQueryPlanner, with_rules};
    use super::*;

    #[tokio::test]
    async fn keys_do_not_survive() {
        let state = SessionStateBuilder::new_with_default_features().build();
        let state = with_rules(state)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let context = SessionContext::new_with_state(state);
        for sql in [
            "CREATE TABLE keyed (k INT PRIMARY KEY, l INT[]) AS VALUES (1, [2, 1]), (2, [3])",
            "CREATE VIEW grouped AS SELECT k, unnest(l) AS u FROM (SELECT k, array_agg(x) AS l \
             FROM (VALUES (1, 2), (1, 1), (2, 3)) v(k, x) GROUP BY k)",
            "CREATE VIEW unnested AS SELECT k, unnest(l) AS u FROM keyed",
        ] {
            context.sql(sql).await.unwrap().collect().await.unwrap();
        }
        for table in ["grouped", "unnested"] {
            let ask = async |sql: &str| {
                let sql = sql.replace("TABLE", table);
                context.sql(&sql).await.unwrap().collect().await.unwrap()
            };
            let keys = ["+---+", "| k |", "+---+", "| 1 |", "| 2 |", "+---+"];
            assert_batches_sorted_eq!(keys, &ask("SELECT DISTINCT k FROM TABLE").await);
            let count = ["+---+", "| n |", "+---+", "| 3 |", "+---+"];
            let sql = "SELECT count(*) AS n FROM (SELECT k, u FROM TABLE GROUP BY k, u)";
            assert_batches_sorted_eq!(count, &ask(sql).await);
            let sql = "SELECT count(*) AS n FROM keyed a JOIN TABLE b ON a.k = b.k";
            assert_batches_sorted_eq!(count, &ask(sql).await);
            let sorted = [
                "+---+", "| u |", "+---+", "| 1 |", "| 2 |", "| 3 |", "+---+",
            ];
            assert_batches_eq!(sorted, &ask("SELECT u FROM TABLE ORDER BY k, u").await);
        }
    }
}
