//! What operators need of their inputs, once all rules have been applied.
//!
//! DataFusion 55 sees to it and goes on to change plans: a join that takes a projection over may lose the column by which
//! its rows are spread, where another column was known to have the same value. Then nothing tells that rows of a group are
//! in one partition, and the plan is refused, as it is by its last rule in one process. Here it is seen to once more.
//! Orders are seen to by the scheduler, stage by stage.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::ExecutionPlan;

use super::plan_rule::PlanRule;

/// What DataFusion says of a plan whose rows are not spread as they must be.
const NOT_SPREAD: &str = "does not satisfy distribution requirements";

/// Applies rules to plans whose rows are not spread as they must be.
#[derive(Debug)]
struct Redistribute(Vec<PlanRule>);

/// The rule that applies these where rows are not spread as they must be.
pub(super) fn redistribute(rules: Vec<PlanRule>) -> PlanRule {
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
                let mut rules = self.0.iter();
                rules.try_fold(plan, |plan, rule| rule.optimize(plan, config))
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
