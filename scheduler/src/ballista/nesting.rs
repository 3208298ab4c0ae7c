//! The limit on the nesting of a query's plan, checked before anything walks the plan.
//!
//! Clients refuse such queries before sending them; this check is for clients that do not. Planning takes stack for
//! each level.

use datafusion::common::config::ConfigOptions;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;
use volley_proto::limits::{NESTED_OPERATORS, UNION_BRANCHES};

/// Analyzer rule that refuses plans with more nested operators than clients send. It must be the first rule.
#[derive(Debug)]
pub(super) struct BoundNesting;

impl AnalyzerRule for BoundNesting {
    fn name(&self) -> &str {
        "bound_nesting"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        // Plans grow a little on arrival: a cast becomes a projection of its own.
        const MOST: usize = 2 * NESTED_OPERATORS;
        if is_deeper(&plan, MOST) {
            return plan_err!("a query of more than {NESTED_OPERATORS} nested operators");
        }
        Ok(plan)
    }
}

/// Checks whether a plan has more than `most` nested operators, or more nested unions than allowed.
pub(super) fn is_deeper(plan: &LogicalPlan, most: usize) -> bool {
    let mut operators = vec![(plan, 1, 1)];
    while let Some((plan, depth, unions)) = operators.pop() {
        if depth > most || unions > UNION_BRANCHES {
            return true;
        }
        // A union is sent as one operator, and its branches nest on arrival.
        let (depth, unions) = match plan {
            LogicalPlan::Union(_) => (depth, unions + 1),
            _ => (depth + 1, unions),
        };
        let inputs = plan.inputs().into_iter();
        operators.extend(inputs.map(|input| (input, depth, unions)));
    }
    false
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};

    use super::*;

    #[test]
    fn deeper_plans_than_clients_send_are_refused() {
        let analyzed = |operators: usize| {
            let mut plan = LogicalPlanBuilder::empty(true);
            for _ in 1..operators {
                plan = plan.project([lit(1).alias("a")]).unwrap();
            }
            BoundNesting.analyze(plan.build().unwrap(), &ConfigOptions::default())
        };
        assert!(analyzed(NESTED_OPERATORS).is_ok());
        let error = analyzed(2 * NESTED_OPERATORS + 1).unwrap_err();
        assert!(error.to_string().contains("nested operators"), "{error}");
    }
}
