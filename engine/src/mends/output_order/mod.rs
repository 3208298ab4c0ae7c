//! The order of a query's rows, looked at once more at last.
//!
//! In DataFusion 55 a sort by more than one below it that keeps only some first rows takes its place: their partitions are
//! sorted by all of it then, and merged by less, as the sort below was.
//! `SELECT n, k FROM (SELECT n, k FROM t ORDER BY n LIMIT 10) ORDER BY n, k` was not in that order.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::names::ENSURE_REQUIREMENTS;
use crate::rules::physical::{Rewrite, rule};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::OrderingRequirements;
use datafusion::physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

/// What is wrong, and where it is mended.
pub(super) const MEND: Mend = Mend {
    name: "output_order",
    wrong: "an order by more than a limited one below it is lost",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::After(ENSURE_REQUIREMENTS, || {
        rule("sort_output", Rewrite::Each(sort_output))
    })],
};

type Plan = Arc<dyn ExecutionPlan>;

/// The rows of a query in the order that is asked for, if they are not.
pub(crate) fn sort_output(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    let Some(output) = node.downcast_ref::<OutputRequirementExec>() else {
        return Ok(None);
    };
    let asked = output
        .required_input_ordering()
        .into_iter()
        .next()
        .flatten();
    let Some(asked) = asked.map(OrderingRequirements::into_single) else {
        return Ok(None);
    };
    let rows = output.input();
    if rows
        .equivalence_properties()
        .ordering_satisfy_requirement(asked.iter().cloned())?
    {
        return Ok(None);
    }
    let sorted = SortExec::new(asked.into(), Arc::clone(&rows));
    replace_children_if_necessary(Arc::clone(node), vec![Arc::new(sorted)]).map(Some)
}
