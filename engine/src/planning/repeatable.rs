//! Queries that the rules of logical plans optimize alike each time, given equal plans and settings.
//!
//! These rules read neither files nor statistics: those are read when the physical plan is made. What else they read is
//! the clock, with which they compute `now()`, and what tables of unknown kinds answer.

use std::sync::Arc;

use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, TableSource, Volatility};

use crate::PredictNode;
use crate::codec::repeated::RepeatedNames;
use crate::codec::tables::{Files, is_without_files};
use crate::rules::logical::any_operator;

/// Checks whether a plan, as it was received, is a query that is optimized alike each time: it only reads, from tables of
/// known kinds, and calls only functions that depend on nothing but their arguments.
///
/// # Errors
/// When a table's source is not a table.
pub fn optimizes_alike(plan: &LogicalPlan) -> Result<bool> {
    let different = any_operator(plan, |node| {
        let mut alike = match node {
            LogicalPlan::TableScan(scan) => is_known(&scan.source)?,
            LogicalPlan::Extension(extension) => {
                let node = extension.node.as_any();
                node.is::<PredictNode>() || node.is::<RepeatedNames>()
            }
            LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Aggregate(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Join(_)
            | LogicalPlan::Repartition(_)
            | LogicalPlan::Union(_)
            | LogicalPlan::EmptyRelation(_)
            | LogicalPlan::Subquery(_)
            | LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Values(_)
            | LogicalPlan::Distinct(_)
            | LogicalPlan::Unnest(_)
            | LogicalPlan::RecursiveQuery(_) => true,
            LogicalPlan::Statement(_)
            | LogicalPlan::Explain(_)
            | LogicalPlan::Analyze(_)
            | LogicalPlan::Dml(_)
            | LogicalPlan::Ddl(_)
            | LogicalPlan::Copy(_)
            | LogicalPlan::DescribeTable(_) => false,
        };
        node.apply_expressions(|expr| {
            alike &= !expr.exists(|part| Ok(may_differ(part)))?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(!alike)
    });
    Ok(!different?)
}

fn is_known(source: &Arc<dyn TableSource>) -> Result<bool> {
    let table = source_as_provider(source)?;
    Ok(table.is::<Files>()
        || table.is::<MemTable>()
        || table.is::<CteWorkTable>()
        || is_without_files(table.as_ref()))
}

/// Checks whether an expression, without its operands, may be another constant each time.
fn may_differ(expr: &Expr) -> bool {
    let volatility = match expr {
        Expr::ScalarFunction(call) => call.func.signature().volatility,
        Expr::HigherOrderFunction(call) => call.func.signature().volatility,
        Expr::ScalarVariable(..) | Expr::Placeholder(_) => Volatility::Volatile,
        _ => Volatility::Immutable,
    };
    volatility != Volatility::Immutable
}

/// Returns the size of a plan's constants, in bytes: rules compute large ones of short expressions.
///
/// # Errors
/// Only those of the visit, which has none.
pub fn constants_size(plan: &LogicalPlan) -> Result<usize> {
    let mut size = 0;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                if let Expr::Literal(value, _) = part {
                    size += value.size();
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::sendable;

    /// Returns a query's plan, not optimized, with the tables that are sent.
    async fn plan(session: &SessionContext, sql: &str) -> LogicalPlan {
        let frame = session.sql(sql).await.unwrap();
        sendable(frame.logical_plan().clone()).await.unwrap()
    }

    #[tokio::test]
    async fn queries_without_a_clock_are_optimized_alike() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t.csv"), "1,2\n").unwrap();
        // Its grammar has lambdas.
        let config = SessionConfig::new().set_str("datafusion.sql_parser.dialect", "duckdb");
        let session = SessionContext::new_with_config(config);
        let table = format!(
            "CREATE EXTERNAL TABLE t (k BIGINT, v BIGINT) STORED AS CSV LOCATION '{}/t.csv'",
            dir.path().display()
        );
        session.sql(&table).await.unwrap();
        let alike = [
            "SELECT 1 + 1, upper('a')",
            "SELECT k, sum(v) FILTER (WHERE v > 1) FROM t GROUP BY k ORDER BY k LIMIT 3",
            "SELECT * FROM t a JOIN t b USING (k) WHERE a.v IN (SELECT v FROM t)",
            "SELECT k, row_number() OVER (ORDER BY v) FROM t",
            "SELECT DISTINCT k FROM t UNION ALL VALUES (1)",
            "SELECT array_transform([k], x -> x + 1) FROM t",
        ];
        let others = [
            "SELECT now()",
            "SELECT current_date",
            "SELECT random()",
            "SELECT k FROM t WHERE v > random()",
            "SELECT k FROM t WHERE k IN (SELECT extract(year FROM now()))",
            "SELECT k FROM t ORDER BY k + extract(year FROM now())",
            "SELECT sum(v) FILTER (WHERE now() > DATE '2024-01-01') FROM t",
            "SELECT k FROM t WHERE v = $1",
            "EXPLAIN SELECT 1",
            "INSERT INTO t VALUES (1, 2)",
        ];
        for (queries, expected) in [(&alike[..], true), (&others[..], false)] {
            for sql in queries {
                let plan = plan(&session, sql).await;
                assert_eq!(optimizes_alike(&plan).unwrap(), expected, "{sql}: {plan}");
            }
        }
        // As other clients send it: nothing is known of the table's paths.
        let listing = session.sql("SELECT * FROM t").await.unwrap();
        assert!(!optimizes_alike(listing.logical_plan()).unwrap());
    }

    #[tokio::test]
    async fn constants_of_short_expressions_count() {
        let session = SessionContext::new();
        for (sql, least, most) in [
            ("SELECT 1", 1, 1000),
            ("SELECT repeat('x', 100000) AS x", 100_000, 200_000),
            (
                "SELECT 1 AS one WHERE 'y' <> repeat('x', 100000) || CAST(random() AS VARCHAR)",
                100_000,
                200_000,
            ),
        ] {
            let plan = session.sql(sql).await.unwrap();
            let plan = plan.into_optimized_plan().unwrap();
            let size = constants_size(&plan).unwrap();
            assert!((least..most).contains(&size), "{sql}: {size}: {plan}");
        }
    }
}
