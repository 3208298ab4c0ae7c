//! The rules of a session's plans: Volley's among DataFusion's.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{Expr, Limit, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;

use crate::codec::repeated::receive_repeated_names;
use crate::mends::aggregate_orders::drop_redundant_sort_keys;
use crate::mends::distinct_counts::{AGGREGATE_STATISTICS, keep_distinct_counts};
use crate::mends::empty_grouping_sets::{PUSH_DOWN_FILTER, keep_above_empty_grouping_sets};
use crate::mends::fence::{forget_constants, forget_keys, forget_monotonicity};
use crate::mends::filters::{FILTER_PUSHDOWN, keep_filters};
use crate::mends::float_extremes::order_floats;
use crate::mends::float_ranges::{forget_ranges, prune_by_others};
use crate::mends::leaf_projections::{PUSH_DOWN_LEAF_PROJECTIONS, push_where_it_can};
use crate::mends::merge_joins::{PROJECTION_PUSHDOWN, keep_merge_joins};
use crate::mends::null_safe_joins::{ELIMINATE_CROSS_JOIN, keep_null_safe_joins};
use crate::mends::own_equalities::hide_own_equalities;
use crate::mends::requirements::redistribute;
use crate::mends::reversed_aggregates::reverse_as_partial;
use crate::mends::single_distinct::{SINGLE_DISTINCT, keep_sums_of_decimals};
use crate::mends::sliding::without_retraction;
use crate::mends::sorts::{
    ENSURE_REQUIREMENTS, limit_apart, limit_within, sort_as_merged, sort_output,
};
use crate::mends::unnested_keys::{forget_unnested_keys, remember_unnested_keys};
use crate::mends::window_limits::{
    LIMIT_PAST_WINDOWS, TOP_K_REPARTITION, keep_lookahead, keep_partitions,
};
use crate::operators::expand::group_before_sets;
use crate::planning::estimates::estimate_scan;
use crate::planning::join_order::order_joins;
use crate::planning::joins::choose_join;
use crate::planning::selectivity::estimate_filter;
use crate::planning::without_columns::gather_without_columns;
use crate::rules::logical::{self, LogicalRule, top_down, whole_plan};
use crate::rules::physical::{PlanRule, Rewrite, around, rule};
use crate::write::{choose_dictionaries, write_folder};

/// DataFusion's rule that chooses how joins are done.
const JOIN_SELECTION: &str = "join_selection";
/// DataFusion's rule that refuses plans whose orders do not hold.
const SANITY_CHECK: &str = "SanityCheckPlan";
/// DataFusion's rule that pushes down dynamic filters, and no others.
const DYNAMIC_FILTERS: &str = "FilterPushdown(Post)";

/// Rules that say how many rows there are, and leave everything else as it is; the first ones of a session.
const ESTIMATES: [&str; 3] = [FORGET_FLOAT_RANGES, ESTIMATE_SCANS, ESTIMATE_FILTERS];
const FORGET_FLOAT_RANGES: &str = "forget_float_ranges";
const ESTIMATE_SCANS: &str = "estimate_scans";
const ESTIMATE_FILTERS: &str = "estimate_filters";

/// Whether a rule of this name only says how many rows there are.
pub(crate) fn estimates(rule: &str) -> bool {
    ESTIMATES.contains(&rule)
}

/// A session with Volley's rules.
pub fn with_rules(state: SessionState) -> SessionStateBuilder {
    let mut rules = vec![
        rule(FORGET_FLOAT_RANGES, Rewrite::Each(forget_ranges)),
        rule(ESTIMATE_SCANS, Rewrite::Each(estimate_scan)),
        rule(ESTIMATE_FILTERS, Rewrite::Each(estimate_filter)),
        rule("order_joins", Rewrite::Whole(order_joins)),
    ];
    // Stages are checked when they are made, and again when they run: what a sort can mend is no error. Dynamic filters
    // are pushed down in tasks.
    let dropped = [SANITY_CHECK, DYNAMIC_FILTERS];
    let defaults = mended_rules(state.physical_optimizers()).into_iter();
    for default in defaults.filter(|rule| !dropped.contains(&rule.name())) {
        let chooses_joins = default.name() == JOIN_SELECTION;
        rules.push(default);
        if chooses_joins {
            rules.push(rule("choose_joins", Rewrite::Each(choose_join)));
            rules.push(rule("group_before_sets", Rewrite::Each(group_before_sets)));
        }
    }
    rules.push(rule(
        "choose_dictionaries",
        Rewrite::Each(choose_dictionaries),
    ));
    rules.push(rule("write_folders", Rewrite::Each(write_folder)));
    rules.push(rule(
        "gather_without_columns",
        Rewrite::Whole(gather_without_columns),
    ));
    rules.push(rule("prune_without_floats", Rewrite::Each(prune_by_others)));
    let mut logical: Vec<LogicalRule> = vec![
        top_down("receive_repeated_names", receive_repeated_names),
        top_down("drop_endless_limits", drop_endless_limits),
        top_down("drop_redundant_sort_keys", drop_redundant_sort_keys),
    ];
    logical.extend(mended_logical_rules(state.optimizers()));
    SessionStateBuilder::new_from_existing(state)
        .with_optimizer_rules(logical)
        .with_physical_optimizer_rules(rules)
}

/// DataFusion's rules of logical plans with what keeps each from spoiling them; those of a process alone as well.
pub fn mended_logical_rules(rules: &[LogicalRule]) -> Vec<LogicalRule> {
    let mended = rules.iter().map(|rule| match rule.name() {
        ELIMINATE_CROSS_JOIN => logical::around(Arc::clone(rule), keep_null_safe_joins),
        SINGLE_DISTINCT => logical::around(Arc::clone(rule), keep_sums_of_decimals),
        PUSH_DOWN_LEAF_PROJECTIONS => logical::around(Arc::clone(rule), push_where_it_can),
        PUSH_DOWN_FILTER => logical::around(Arc::clone(rule), keep_above_empty_grouping_sets),
        _ => Arc::clone(rule),
    });
    let first = whole_plan("forget_unnested_keys", forget_unnested_keys);
    std::iter::once(first)
        .chain(mended)
        .chain([
            top_down("order_floats", order_floats),
            top_down("without_retraction", without_retraction),
            whole_plan("remember_unnested_keys", remember_unnested_keys),
        ])
        .collect()
}

/// DataFusion's rules of plans with what keeps each from spoiling them; those of a process alone as well.
pub fn mended_rules(rules: &[PlanRule]) -> Vec<PlanRule> {
    let each = |name, rewrite| rule(name, Rewrite::Each(rewrite));
    let mut mended = vec![];
    // What gives operators what they need.
    let mut ensuring = vec![];
    for own in rules.iter().cloned() {
        match own.name() {
            PROJECTION_PUSHDOWN => mended.push(around(own, keep_merge_joins)),
            TOP_K_REPARTITION => mended.push(around(own, keep_partitions)),
            LIMIT_PAST_WINDOWS => mended.push(around(own, keep_lookahead)),
            AGGREGATE_STATISTICS => mended.push(around(own, keep_distinct_counts)),
            name if FILTER_PUSHDOWN.contains(&name) => mended.push(around(own, keep_filters)),
            JOIN_SELECTION => mended.extend([
                own,
                each("hide_own_equalities", hide_own_equalities),
                // Once the kind of each join is settled.
                each("forget_constants", forget_constants),
                rule("forget_keys", Rewrite::Whole(forget_keys)),
                rule("forget_monotonicity", Rewrite::Whole(forget_monotonicity)),
            ]),
            ENSURE_REQUIREMENTS => {
                ensuring = vec![
                    each("limits_apart", limit_apart),
                    own,
                    each("limits_within", limit_within),
                    each("sort_as_merged", sort_as_merged),
                    each("sort_output", sort_output),
                ];
                mended.extend(ensuring.iter().cloned());
            }
            SANITY_CHECK => mended.extend([redistribute(std::mem::take(&mut ensuring)), own]),
            _ => mended.push(own),
        }
    }
    mended.push(each("reverse_as_partial", reverse_as_partial));
    mended
}

/// Takes limits away that no number of rows reaches: an offset without a limit arrives with such a one,
/// which operators would make room for.
fn drop_endless_limits(
    plan: LogicalPlan,
    _: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    Ok(match plan {
        LogicalPlan::Limit(limit)
            if matches!(
                limit.fetch.as_deref(),
                Some(Expr::Literal(ScalarValue::Int64(Some(i64::MAX)), _))
            ) =>
        {
            Transformed::yes(LogicalPlan::Limit(Limit {
                fetch: None,
                ..limit
            }))
        }
        other => Transformed::no(other),
    })
}
