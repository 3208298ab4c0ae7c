//! Distribution requirements, enforced once more after all rules have been applied.
//!
//! DataFusion 55 enforces them and goes on to change plans: a projection that is pushed into a join may lose the column that
//! its rows are hashed by, where another column was known to have the same value. Then nothing tells that rows of a group
//! are in one partition, and the sanity check refuses the plan. Here requirements are enforced again where it would.
//! The plan keeps its output order meanwhile. Order requirements of operators are enforced by the scheduler, stage by stage.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_expr::{Distribution, OrderingRequirements};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::output_requirements::{
    OutputRequirementExec, OutputRequirements,
};
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::names::{ENSURE_REQUIREMENTS, SANITY_CHECK};
use crate::rules::physical::PlanRule;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "requirements",
    wrong: "groups of rows that are spread by another column are refused",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Again(SANITY_CHECK, ENSURE_REQUIREMENTS, redistribute)],
};

/// Words of the sanity check's error about a distribution requirement that does not hold.
const NOT_SPREAD: &str = "does not satisfy distribution requirements";

/// Applies rules to plans whose distribution requirements do not hold.
#[derive(Debug)]
struct Redistribute(Vec<PlanRule>);

/// The rule that applies these where distribution requirements do not hold.
pub(crate) fn redistribute(rules: Vec<PlanRule>) -> PlanRule {
    Arc::new(Redistribute(rules))
}

impl PhysicalOptimizerRule for Redistribute {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match SanityCheckPlan::new().optimize(Arc::clone(&plan), config) {
            Err(error) if error.to_string().contains(NOT_SPREAD) => {
                // The output order is a requirement, too: without it, enforcement removes the operators that provide it.
                let required = required(plan);
                let mut rules = self.0.iter();
                let enforced =
                    rules.try_fold(required, |plan, rule| rule.optimize(plan, config))?;
                OutputRequirements::new_remove_mode().optimize(enforced, config)
            }
            _ => Ok(plan),
        }
    }

    fn name(&self) -> &'static str {
        "redistribute"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan below a requirement of its own output order, and of one partition where it has one.
fn required(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let order = plan.output_ordering().cloned();
    let distribution = match plan.output_partitioning().partition_count() {
        1 => Distribution::SinglePartition,
        _ => Distribution::UnspecifiedDistribution,
    };
    let order = order.map(OrderingRequirements::from);
    Arc::new(OutputRequirementExec::new(plan, order, distribution, None))
}
