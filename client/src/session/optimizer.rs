//! Which part of optimizing a query is done here, and which by the scheduler.
//!
//! A plan is sent as it was written but for subqueries, which the wire has no form for and which become
//! joins here. Everything else is the scheduler's: the engine's messages leave out parts of what its
//! optimizer makes, such as the columns of relations that are known to be empty.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{Optimizer, OptimizerRule};

use volley_proto::plan::Repeated;

use super::correlated::UniqueCorrelatedColumns;
use super::in_subqueries::InSubqueryToExists;
use super::subqueries::JoinScalarSubqueries;
use super::unions::FlattenUnions;

/// The engine's rules that take subqueries out of expressions, and one that they build upon.
const HERE: [&str; 5] = [
    "rewrite_set_comparison",
    "simplify_expressions",
    DECORRELATION,
    "scalar_subquery_to_join",
    "decorrelate_lateral_join",
];

/// The engine's rule that turns conditions on subqueries into joins.
const DECORRELATION: &str = "decorrelate_predicate_subquery";

/// The rules for plans that are sent.
pub(super) fn rules_here() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    rules.retain(|rule| HERE.contains(&rule.name()));
    rules.insert(0, Arc::new(FlattenUnions));
    let before = rules.iter().position(|rule| rule.name() == DECORRELATION);
    let before = before.unwrap_or(0);
    rules.insert(before, Arc::new(InSubqueryToExists));
    rules.insert(before, Arc::new(UniqueCorrelatedColumns));
    rules.push(Arc::new(JoinScalarSubqueries));
    rules.push(Arc::new(Repeated::Sent));
    rules
}

/// A plan by all rules, for what runs in this process or is looked at here.
///
/// # Errors
/// When a rule fails.
pub(crate) fn optimized(plan: &LogicalPlan, session: &dyn Session) -> Result<LogicalPlan> {
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return Ok(plan.clone());
    };
    let mut rules: Vec<Arc<dyn OptimizerRule + Send + Sync>> = vec![Arc::new(Repeated::Received)];
    rules.extend(Optimizer::new().rules);
    let all = SessionStateBuilder::new_from_existing(state.clone())
        .with_optimizer_rules(rules)
        .build();
    all.optimize(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_has_every_rule_that_is_applied_here() {
        assert_eq!(rules_here().len(), HERE.len() + 5);
    }
}
