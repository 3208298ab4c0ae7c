//! The plan rules of a session: Volley's among DataFusion's.
//!
//! Not here: what a rule does. Each is beside what it is about; those against DataFusion's bugs are [mends](crate::mends).

use datafusion::catalog::Session;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::Optimizer;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;

use crate::codec::endless_limits::drop_endless_limits;
use crate::codec::laterals::lift_lateral_conditions;
use crate::codec::repeated::{receive_repeated_names, send_repeated_names};
use crate::codec::subqueries::join_scalar_subqueries;
use crate::codec::unions::flatten_unions;
use crate::mends::Mended;
use crate::operators::expand::group_before_sets;
use crate::operators::grace_aggregate::gather_values;
use crate::planning::distinct_sets::distinct_by_sets;
use crate::planning::estimates::{ESTIMATE_FILTERS, ESTIMATE_SCANS, estimate_scan};
use crate::planning::join_order::order_joins;
use crate::planning::joins::choose_join;
use crate::planning::large_constants::hold_large_constants;
use crate::planning::predicted_columns::narrow_predictions;
use crate::planning::selectivity::estimate_filter;
use crate::planning::without_columns::gather_without_columns;
use crate::rules::logical::{LogicalRule, top_down, whole_plan};
use crate::rules::names::{JOIN_SELECTION, SANITY_CHECK};
use crate::rules::physical::{Rewrite, rule};
use crate::write::{choose_dictionaries, write_folder};

/// DataFusion's rule that pushes down dynamic filters, and no others.
const DYNAMIC_FILTERS: &str = "FilterPushdown(Post)";

/// DataFusion's rules that take subqueries out of expressions, and one that they build upon.
const SENT: [&str; 5] = [
    "rewrite_set_comparison",
    "simplify_expressions",
    "decorrelate_predicate_subquery",
    "scalar_subquery_to_join",
    "decorrelate_lateral_join",
];

/// Adds Volley's rules to a session.
pub fn with_rules(state: SessionState) -> SessionStateBuilder {
    let each = |name, rewrite| rule(name, Rewrite::Each(rewrite));
    let whole = |name, rewrite| rule(name, Rewrite::Whole(rewrite));
    let mut rules = Mended::ALL.first();
    rules.extend([
        each(ESTIMATE_SCANS, estimate_scan),
        each(ESTIMATE_FILTERS, estimate_filter),
        whole("order_joins", order_joins),
        each("gather_values", gather_values),
    ]);
    // Stages are checked when they are made, and again when they run: a plan that a sort can still fix is not an error.
    // Dynamic filters are pushed down in tasks.
    let dropped = [SANITY_CHECK, DYNAMIC_FILTERS];
    let defaults = Mended::ALL.physical(state.physical_optimizers());
    let defaults = defaults.into_iter();
    for default in defaults.filter(|rule| !dropped.contains(&rule.name())) {
        let chooses_joins = default.name() == JOIN_SELECTION;
        rules.push(default);
        if chooses_joins {
            rules.extend([
                each("choose_joins", choose_join),
                each("group_before_sets", group_before_sets),
            ]);
        }
    }
    rules.extend([
        each("choose_dictionaries", choose_dictionaries),
        each("write_folders", write_folder),
        whole("gather_without_columns", gather_without_columns),
    ]);
    rules.extend(Mended::ALL.last_planned());
    let mut logical: Vec<LogicalRule> = vec![
        top_down("receive_repeated_names", receive_repeated_names),
        top_down("drop_endless_limits", drop_endless_limits),
        top_down("distinct_by_sets", distinct_by_sets),
        top_down("hold_large_constants", hold_large_constants),
    ];
    logical.extend(Mended::ALL.first_planned());
    logical.extend(Mended::ALL.logical(state.optimizers()));
    SessionStateBuilder::new_from_existing(state)
        .with_optimizer_rules(logical)
        .with_physical_optimizer_rules(rules)
}

/// Returns the rules of plans that are sent.
///
/// A plan is sent as it was written except for subqueries, which have no wire form and become joins, and for columns that
/// no prediction reads, because the features of a model are known here alone. All other optimization is the scheduler's: the engine's messages omit parts of its optimizer's results, such as the columns of
/// relations that are known to be empty.
pub fn sent_rules() -> Vec<LogicalRule> {
    let mut defaults = Optimizer::new().rules;
    defaults.retain(|rule| SENT.contains(&rule.name()));
    let mut rules = vec![
        top_down("flatten_unions", flatten_unions),
        top_down("hold_large_constants", hold_large_constants),
    ];
    rules.extend(Mended::ALL.sent(&defaults));
    rules.extend([
        whole_plan("lift_lateral_conditions", lift_lateral_conditions),
        whole_plan("join_scalar_subqueries", join_scalar_subqueries),
        whole_plan("narrow_predictions", narrow_predictions),
        top_down("send_repeated_names", send_repeated_names),
    ]);
    rules
}

/// Adds Volley's mends of DataFusion's analyzer to a session.
pub fn with_mended_analysis(mut state: SessionStateBuilder) -> SessionStateBuilder {
    Mended::ALL.mend_analyzer(state.analyzer().get_or_insert_default());
    state
}

/// Plans a statement of SQL with Volley's mends of DataFusion's planner.
///
/// # Errors
/// When the statement cannot be planned.
pub async fn statement_to_plan(
    context: &SessionContext,
    state: &SessionState,
    statement: Statement,
) -> Result<LogicalPlan> {
    Mended::ALL
        .statement_to_plan(context, state, statement)
        .await
}

/// Adds Volley's mends of DataFusion's SQL relation planner to a session.
///
/// # Errors
/// When the context accepts no relation planners.
pub fn mend_relations(context: &SessionContext) -> Result<()> {
    let mut planners = Mended::ALL.relations().into_iter();
    planners.try_for_each(|planner| context.register_relation_planner(planner))
}

/// Optimizes a plan by all rules, to run it in this process or to inspect it.
///
/// # Errors
/// When a rule fails.
pub fn optimized(plan: &LogicalPlan, session: &dyn Session) -> Result<LogicalPlan> {
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return Ok(plan.clone());
    };
    let mut rules = vec![
        top_down("receive_repeated_names", receive_repeated_names),
        top_down("hold_large_constants", hold_large_constants),
    ];
    rules.extend(Mended::ALL.logical(&Optimizer::new().rules));
    let all = SessionStateBuilder::new_from_existing(state.clone())
        .with_optimizer_rules(rules)
        .build();
    all.optimize(plan)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_has_every_rule_of_plans_that_are_sent() {
        assert_eq!(sent_rules().len(), SENT.len() + 11);
    }
}
