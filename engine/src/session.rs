//! The rules of a session's plans: Volley's among DataFusion's.

use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionContext;

use crate::codec::endless_limits::drop_endless_limits;
use crate::codec::repeated::receive_repeated_names;
use crate::mends::Mended;
use crate::mends::float_ranges::FORGET_FLOAT_RANGES;
use crate::operators::expand::group_before_sets;
use crate::planning::estimates::estimate_scan;
use crate::planning::join_order::order_joins;
use crate::planning::joins::choose_join;
use crate::planning::selectivity::estimate_filter;
use crate::planning::without_columns::gather_without_columns;
use crate::rules::logical::{LogicalRule, top_down};
use crate::rules::names::{JOIN_SELECTION, SANITY_CHECK};
use crate::rules::physical::{PlanRule, Rewrite, rule};
use crate::write::{choose_dictionaries, write_folder};

/// DataFusion's rule that pushes down dynamic filters, and no others.
const DYNAMIC_FILTERS: &str = "FilterPushdown(Post)";

/// Rules that say how many rows there are, and leave everything else as it is; the first ones of a session.
const ESTIMATES: [&str; 3] = [FORGET_FLOAT_RANGES, ESTIMATE_SCANS, ESTIMATE_FILTERS];
const ESTIMATE_SCANS: &str = "estimate_scans";
const ESTIMATE_FILTERS: &str = "estimate_filters";

/// Whether a rule of this name only says how many rows there are.
pub(crate) fn estimates(rule: &str) -> bool {
    ESTIMATES.contains(&rule)
}

/// A session with Volley's rules.
pub fn with_rules(state: SessionState) -> SessionStateBuilder {
    let each = |name, rewrite| rule(name, Rewrite::Each(rewrite));
    let whole = |name, rewrite| rule(name, Rewrite::Whole(rewrite));
    let mut rules = Mended::ALL.first();
    rules.extend([
        each(ESTIMATE_SCANS, estimate_scan),
        each(ESTIMATE_FILTERS, estimate_filter),
        whole("order_joins", order_joins),
    ]);
    // Stages are checked when they are made, and again when they run: what a sort can mend is no error. Dynamic filters
    // are pushed down in tasks.
    let dropped = [SANITY_CHECK, DYNAMIC_FILTERS];
    let defaults = mended_rules(state.physical_optimizers()).into_iter();
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
    ];
    logical.extend(Mended::ALL.first_planned());
    logical.extend(mended_logical_rules(state.optimizers()));
    SessionStateBuilder::new_from_existing(state)
        .with_optimizer_rules(logical)
        .with_physical_optimizer_rules(rules)
}

/// A session that mends what DataFusion's analyzer gets wrong, or would have to know.
pub fn with_mended_analysis(state: SessionStateBuilder) -> SessionStateBuilder {
    let analyzers = Mended::ALL.analyzers().into_iter();
    analyzers.fold(state, SessionStateBuilder::with_analyzer_rule)
}

/// Mends what DataFusion's planner of SQL gets wrong about relations.
///
/// # Errors
/// When the context takes no planners of relations.
pub fn mend_relations(context: &SessionContext) -> Result<()> {
    let mut planners = Mended::ALL.relations().into_iter();
    planners.try_for_each(|planner| context.register_relation_planner(planner))
}

/// DataFusion's rules of logical plans with what keeps each from spoiling them; those of a process alone as well.
pub fn mended_logical_rules(rules: &[LogicalRule]) -> Vec<LogicalRule> {
    Mended::ALL.logical(rules)
}

/// DataFusion's rules of plans with what keeps each from spoiling them; those of a process alone as well.
pub fn mended_rules(rules: &[PlanRule]) -> Vec<PlanRule> {
    Mended::ALL.physical(rules)
}
