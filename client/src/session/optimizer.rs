//! Division of query optimization between this process and the scheduler.
//!
//! A plan is sent as it was written except for subqueries, which have no wire form and become joins here. All other
//! optimization is the scheduler's: the engine's messages omit parts of its optimizer's results, such as the columns of
//! relations that are known to be empty.

use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::Optimizer;

use volley_engine::{
    LogicalRule, constants_checked, mended_logical_rules, receive_repeated_names,
    send_repeated_names, top_down, whole_plan,
};

use super::correlated::unique_correlated_columns;
use super::in_subqueries::in_subquery_to_exists;
use super::laterals::lift_lateral_conditions;
use super::multiset::number_copies;
use super::quantified::name_compared;
use super::subqueries::join_scalar_subqueries;
use super::unions::flatten_unions;

/// Engine rules that take subqueries out of expressions, and one that they build upon.
const HERE: [&str; 5] = [
    "rewrite_set_comparison",
    "simplify_expressions",
    DECORRELATION,
    "scalar_subquery_to_join",
    "decorrelate_lateral_join",
];

/// Engine rule that turns conditions on subqueries into joins.
const DECORRELATION: &str = "decorrelate_predicate_subquery";

/// Returns the rules for plans that are sent.
pub(super) fn rules_here() -> Vec<LogicalRule> {
    let mut rules = Optimizer::new().rules;
    rules.retain(|rule| HERE.contains(&rule.name()));
    rules.insert(0, constants_checked());
    rules.insert(0, top_down("name_compared", name_compared));
    rules.insert(0, top_down("number_copies", number_copies));
    rules.insert(0, top_down("flatten_unions", flatten_unions));
    let before = rules.iter().position(|rule| rule.name() == DECORRELATION);
    let before = before.unwrap_or(0);
    rules.insert(
        before,
        top_down("in_subquery_to_exists", in_subquery_to_exists),
    );
    rules.insert(
        before,
        top_down("unique_correlated_columns", unique_correlated_columns),
    );
    rules.push(whole_plan(
        "lift_lateral_conditions",
        lift_lateral_conditions,
    ));
    rules.push(whole_plan("join_scalar_subqueries", join_scalar_subqueries));
    rules.push(top_down("send_repeated_names", send_repeated_names));
    rules
}

/// Optimizes a plan by all rules, to run it in this process or to inspect it.
///
/// # Errors
/// When a rule fails.
pub(crate) fn optimized(plan: &LogicalPlan, session: &dyn Session) -> Result<LogicalPlan> {
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return Ok(plan.clone());
    };
    let mut rules = vec![top_down("receive_repeated_names", receive_repeated_names)];
    rules.extend(mended_logical_rules(&Optimizer::new().rules));
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
        assert_eq!(rules_here().len(), HERE.len() + 9);
    }
}
