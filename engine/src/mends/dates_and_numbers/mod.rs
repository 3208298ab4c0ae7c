//! Comparisons of dates, timestamps, times and intervals with numbers.
//!
//! DataFusion 55 compares a number with a date as days since 1970: `day = 20150731` is true of no row, without a word.
//! Joins, `IN`, `BETWEEN` and `CASE x WHEN` compare the same way. SQL has no such comparison, so each is refused, by the
//! names and types of both sides.
//!
//! Not here: arithmetic of dates and numbers, which DataFusion refuses.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{InList, InSubquery, SetComparison};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Between, BinaryExpr, Case, Expr, ExprSchemable, LogicalPlan, Operator,
};

use crate::error::shown;
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "dates_and_numbers",
    wrong: "a number is compared with a date as days since 1970: `day = 20150731` matches no row",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Check(check)],
};

/// Refuses a plan that compares a date, a timestamp, a time or an interval with a number.
fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Join(join) = node {
            for (left, right) in &join.on {
                let left = Side::of(left, join.left.schema());
                let right = Side::of(right, join.right.schema());
                comparable(left.as_ref(), right.as_ref())?;
            }
        }
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| expr.apply(|part| check_comparison(part, &schema)))
    })?;
    Ok(())
}

fn check_comparison(expr: &Expr, schema: &DFSchema) -> Result<TreeNodeRecursion> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
            comparable(
                Side::of(left, schema).as_ref(),
                Side::of(right, schema).as_ref(),
            )?;
        }
        Expr::Between(Between {
            expr, low, high, ..
        }) => {
            let value = Side::of(expr, schema);
            comparable(value.as_ref(), Side::of(low, schema).as_ref())?;
            comparable(value.as_ref(), Side::of(high, schema).as_ref())?;
        }
        Expr::InList(InList { expr, list, .. }) => {
            let value = Side::of(expr, schema);
            for item in list {
                comparable(value.as_ref(), Side::of(item, schema).as_ref())?;
            }
        }
        Expr::Case(Case {
            expr: Some(expr),
            when_then_expr,
            ..
        }) => {
            let value = Side::of(expr, schema);
            for (when, _) in when_then_expr {
                comparable(value.as_ref(), Side::of(when, schema).as_ref())?;
            }
        }
        Expr::InSubquery(InSubquery { expr, subquery, .. })
        | Expr::SetComparison(SetComparison { expr, subquery, .. }) => {
            let of_subquery = subquery.subquery.schema();
            if let [column] = &of_subquery.columns()[..] {
                let column = Expr::Column(column.clone());
                let values = Side::of(&column, of_subquery);
                comparable(Side::of(expr, schema).as_ref(), values.as_ref())?;
            }
        }
        _ => {}
    }
    Ok(TreeNodeRecursion::Continue)
}

fn is_comparison(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq
            | Operator::NotEq
            | Operator::Lt
            | Operator::LtEq
            | Operator::Gt
            | Operator::GtEq
            | Operator::IsDistinctFrom
            | Operator::IsNotDistinctFrom
    )
}

/// Side of a comparison, with its type.
struct Side<'a> {
    expr: &'a Expr,
    of: DataType,
}

impl<'a> Side<'a> {
    /// Returns the side; `None` if its type is not known yet, as that of a parameter.
    fn of(expr: &'a Expr, schema: &DFSchema) -> Option<Self> {
        let of = expr.get_type(schema).ok()?;
        Some(Self {
            expr,
            of: value_type(of),
        })
    }

    /// Returns the expression as SQL, and its type.
    fn shown(&self) -> String {
        format!("{} ({})", shown(self.expr), self.of)
    }
}

/// Returns the type of the values of a dictionary or of runs, and any other type as it is.
fn value_type(of: DataType) -> DataType {
    match of {
        DataType::Dictionary(_, values) => value_type(*values),
        DataType::RunEndEncoded(_, values) => value_type(values.data_type().clone()),
        of => of,
    }
}

fn comparable(left: Option<&Side<'_>>, right: Option<&Side<'_>>) -> Result<()> {
    let (Some(left), Some(right)) = (left, right) else {
        return Ok(());
    };
    let temporal = match (left.of.is_temporal(), right.of.is_temporal()) {
        (true, false) if right.of.is_numeric() => &left.of,
        (false, true) if left.of.is_numeric() => &right.of,
        _ => return Ok(()),
    };
    let write = match temporal {
        DataType::Date32 | DataType::Date64 => "write a date as DATE '2015-07-31', or cast",
        DataType::Timestamp(..) => "write a timestamp as TIMESTAMP '2015-07-31 12:00:00', or cast",
        DataType::Interval(_) | DataType::Duration(_) => {
            "write an interval as INTERVAL '7 days', or cast"
        }
        _ => "cast",
    };
    plan_err!(
        "cannot compare {} with {}: {write} one side",
        left.shown(),
        right.shown()
    )
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionContext, col, lit};

    use crate::{statement_to_plan, with_mended_analysis};

    fn session() -> SessionContext {
        let state = SessionStateBuilder::new_with_default_features();
        SessionContext::new_with_state(with_mended_analysis(state).build())
    }

    const TABLES: &str =
        "(VALUES (1, DATE '2015-07-31', TIMESTAMP '2015-07-31 12:00:00', 1.5)) t(n, \"D\", ts, x)";

    async fn planned(sql: &str) -> datafusion::error::Result<()> {
        let session = session();
        let state = session.state();
        let statement = state.sql_to_statement(sql, &datafusion::config::Dialect::Generic)?;
        statement_to_plan(&session, &state, statement).await?;
        Ok(())
    }

    #[tokio::test]
    async fn dates_and_numbers_are_not_compared() {
        for (condition, sides) in [
            ("\"D\" = 20150731", "t.\"D\" (Date32) with 20150731 (Int64)"),
            (
                "20150731 <= \"D\"",
                "20150731 (Int64) with t.\"D\" (Date32)",
            ),
            ("\"D\" <> n", "t.\"D\" (Date32) with t.n (Int64)"),
            ("\"D\" IS DISTINCT FROM x", "t.x ("),
            ("\"D\" IN (DATE '2015-07-31', 5)", "5 (Int64)"),
            ("n IN (\"D\")", "t.\"D\" (Date32)"),
            (
                "\"D\" BETWEEN DATE '2015-01-01' AND 20150731",
                "20150731 (Int64)",
            ),
            (
                "CASE \"D\" WHEN 20150731 THEN true ELSE false END",
                "20150731 (Int64)",
            ),
            ("ts > 1438344000", "TIMESTAMP '"),
            ("ts - ts > 7", "INTERVAL '"),
            ("n IN (SELECT \"D\" FROM t)", "(Date32)"),
            ("EXISTS (SELECT 1 FROM t u WHERE u.n = t.\"D\")", "(Date32)"),
            ("NOT (n = 1 AND (\"D\" < 5 OR n = 2))", "5 (Int64)"),
        ] {
            for statement in ["", "EXPLAIN ", "CREATE VIEW v AS "] {
                let sql = format!(
                    "{statement}WITH t AS (SELECT * FROM {TABLES}) SELECT n FROM t WHERE {condition}"
                );
                let error = planned(&sql).await.unwrap_err().to_string();
                assert!(error.contains("cannot compare "), "{sql}: {error}");
                assert!(error.contains(sides), "{sql}: {error}");
            }
        }
        for from in [
            "JOIN t u ON t.n = u.\"D\"",
            "JOIN (SELECT \"D\" AS n FROM t) u USING (n)",
            "NATURAL JOIN (SELECT \"D\" AS n FROM t) u",
            "LEFT JOIN t u ON t.n < u.ts AND t.x = u.x",
        ] {
            let sql = format!("WITH t AS (SELECT * FROM {TABLES}) SELECT 1 FROM t {from}");
            let error = planned(&sql).await.unwrap_err().to_string();
            assert!(error.contains("cannot compare "), "{sql}: {error}");
        }
        for condition in [
            "\"D\" = '2015-07-31'",
            "\"D\" = ts",
            "\"D\" = NULL",
            "n = NULL",
            "CAST(\"D\" AS INT) = 16647",
            "n = x",
            "extract(year FROM \"D\") = 2015",
            "\"D\" - DATE '2015-07-01' > 1",
        ] {
            let sql =
                format!("WITH t AS (SELECT * FROM {TABLES}) SELECT n FROM t WHERE {condition}");
            planned(&sql).await.unwrap();
        }
    }

    #[tokio::test]
    async fn data_frames_are_checked_too() {
        let frame = session()
            .sql(&format!("SELECT * FROM {TABLES}"))
            .await
            .unwrap();
        let compared = frame.filter(col("ts").gt(lit(5_i64))).unwrap();
        let error = compared.collect().await.unwrap_err().to_string();
        assert!(error.contains("cannot compare "), "{error}");
    }
}
