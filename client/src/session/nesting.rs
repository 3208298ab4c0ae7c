//! Limit on the nesting of a plan, checked before it is sent.
//!
//! The scheduler plans it and executors run it with some stack per level, beside other queries. Statements are checked
//! as they are parsed; this check is for their plans, and for plans of the DataFrame API.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use volley_proto::limits::{NESTED_EXPRESSIONS, NESTED_OPERATORS, UNION_BRANCHES};

use crate::{Error, Result};

/// Refuses a plan that nests too deeply.
///
/// # Errors
/// [`Error::NotSupported`] that gives the limit.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    let mut operators = vec![(plan, 1)];
    while let Some((plan, depth)) = operators.pop() {
        if depth > NESTED_OPERATORS {
            let what = format!(
                "a query of more than {NESTED_OPERATORS} nested operators; write a part of it into a table first \
                 (CREATE TABLE … AS)"
            );
            return Err(Error::NotSupported { what });
        }
        if plan.inputs().len() > UNION_BRANCHES {
            let what = format!(
                "a union of more than {UNION_BRANCHES} queries; write their rows into the files of one table (INSERT, COPY)"
            );
            return Err(Error::NotSupported { what });
        }
        operators.extend(plan.inputs().into_iter().map(|input| (input, depth + 1)));
        let mut is_deep = false;
        plan.apply_expressions(|expr| {
            is_deep |= nests_too_deeply(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        if is_deep {
            let what = format!(
                "an expression of more than {NESTED_EXPRESSIONS} nested operators; compute parts of it in a select \
                 before"
            );
            return Err(Error::NotSupported { what });
        }
    }
    Ok(())
}

fn nests_too_deeply(expr: &Expr) -> datafusion::error::Result<bool> {
    // Casts are inserted between expressions if types differ.
    const MOST: usize = 2 * NESTED_EXPRESSIONS;
    let mut expressions = vec![(expr, 1)];
    while let Some((expr, depth)) = expressions.pop() {
        if depth > MOST {
            return Ok(true);
        }
        expr.apply_children(|child| {
            expressions.push((child, depth + 1));
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};

    use super::*;

    fn filtered(times: usize) -> LogicalPlan {
        let mut plan = LogicalPlanBuilder::empty(true);
        for _ in 0..times {
            plan = plan.project([lit(1).alias("a")]).unwrap();
        }
        plan.build().unwrap()
    }

    #[test]
    fn what_nests_too_deeply_is_refused() {
        let said = |plan: &LogicalPlan| check(plan).map_err(|error| error.to_string());
        assert_eq!(said(&filtered(NESTED_OPERATORS - 1)), Ok(()));
        let error = said(&filtered(NESTED_OPERATORS)).unwrap_err();
        assert!(error.contains("nested operators"), "{error}");
        let sum = |terms| (1..terms).fold(lit(1), |sum, _| sum + lit(1));
        let of = |expr: Expr| {
            let plan = LogicalPlanBuilder::empty(true);
            plan.project([expr.alias("a")]).unwrap().build().unwrap()
        };
        assert_eq!(said(&of(sum(NESTED_EXPRESSIONS))), Ok(()));
        let error = said(&of(sum(2 * NESTED_EXPRESSIONS + 1))).unwrap_err();
        assert!(error.contains("an expression of more than"), "{error}");
    }
}
