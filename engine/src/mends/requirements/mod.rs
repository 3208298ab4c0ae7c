//! Distribution requirements, enforced once more after all rules have been applied.
//!
//! DataFusion 55 enforces them and then changes plans further: a projection that is pushed into a join may drop the
//! column that its rows are hashed by, where another column was known to have the same value. Then the plan no longer
//! shows that the rows of a group are in one partition, and the sanity check refuses it. This mend enforces the
//! requirements of such a plan again. The plan keeps its output ordering. The scheduler enforces the ordering
//! requirements of operators, stage by stage.

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

/// Words of the sanity check's error about an unsatisfied distribution requirement.
const NOT_SPREAD: &str = "does not satisfy distribution requirements";

/// Applies rules to plans with unsatisfied distribution requirements.
#[derive(Debug)]
struct Redistribute(Vec<PlanRule>);

/// Returns the rule that applies `rules` to plans with unsatisfied distribution requirements.
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
                // The output ordering is a requirement, too: without it, enforcement removes the operators that provide
                // it.
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

/// Adds a requirement of the plan's own output ordering and, if it has one partition, of a single partition.
fn required(plan: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let order = plan.output_ordering().cloned();
    let distribution = match plan.output_partitioning().partition_count() {
        1 => Distribution::SinglePartition,
        _ => Distribution::UnspecifiedDistribution,
    };
    let order = order.map(OrderingRequirements::from);
    Arc::new(OutputRequirementExec::new(plan, order, distribution, None))
}
