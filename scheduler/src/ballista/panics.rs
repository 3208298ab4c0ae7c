//! Panics during planning, turned into errors of the query.
//!
//! Ballista plans in a task of its own: a panic ends that task silently, and the query would run for ever. Ballista
//! reports panics of an executor's tasks itself.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};
use futures::FutureExt;

/// Analyzer rule whose panics become errors.
#[derive(Debug)]
pub(super) struct Caught(pub(super) Arc<dyn AnalyzerRule + Send + Sync>);

impl AnalyzerRule for Caught {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        catch_unwind(AssertUnwindSafe(|| self.0.analyze(plan, config)))
            .unwrap_or_else(|panic| Err(error(panic.as_ref())))
    }
}

/// Applies a rule and turns its panics into errors.
///
/// # Errors
/// When the rule fails or panics.
pub(super) fn caught_rule(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    catch_unwind(AssertUnwindSafe(|| rule.rewrite(plan, config)))
        .unwrap_or_else(|panic| Err(error(panic.as_ref())))
}

/// Plans a query and turns panics into errors.
///
/// # Errors
/// When planning fails or panics.
pub(super) async fn caught<T>(planning: impl Future<Output = Result<T>>) -> Result<T> {
    let planned = AssertUnwindSafe(planning).catch_unwind().await;
    planned.unwrap_or_else(|panic| Err(error(panic.as_ref())))
}

fn error(panic: &(dyn Any + Send)) -> DataFusionError {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    DataFusionError::Execution(format!(
        "planning panicked, which is a defect: {} (the scheduler's log says where)",
        text.unwrap_or("it gives no reason")
    ))
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::logical_expr::LogicalPlanBuilder;
    use volley_engine::{LogicalRule, around};

    use super::*;

    #[derive(Debug)]
    struct Panics;

    impl OptimizerRule for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }

        fn rewrite(
            &self,
            plan: LogicalPlan,
            _: &dyn OptimizerConfig,
        ) -> Result<Transformed<LogicalPlan>> {
            panic!("no rule for {}", plan.display())
        }
    }

    impl AnalyzerRule for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }

        fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
            panic!("nothing to see in {}", plan.display())
        }
    }

    #[tokio::test]
    async fn a_panic_is_the_query_s_error() {
        let plan = LogicalPlanBuilder::empty(true).build().unwrap();
        let rule: Arc<dyn AnalyzerRule + Send + Sync> = Arc::new(Panics);
        let state = SessionStateBuilder::new()
            .with_analyzer_rules(vec![Arc::new(Caught(rule))])
            .build();
        let analyzed = state.optimize(&plan).unwrap_err().to_string();
        assert!(analyzed.contains("nothing to see in"), "{analyzed}");
        let rule: LogicalRule = Arc::new(Panics);
        let state = SessionStateBuilder::new()
            .with_optimizer_rules(vec![around(rule, caught_rule)])
            .build();
        let ruled = state.optimize(&plan).unwrap_err().to_string();
        assert!(ruled.contains("panicked"), "{ruled}");
        assert!(ruled.contains("no rule for EmptyRelation"), "{ruled}");
        let planned = caught(async { state.optimize(&plan).map(|_| panic!("later")) });
        assert!(planned.await.is_err());
        let planned: Result<()> = caught(async { panic!("at once") }).await;
        let said = planned.unwrap_err().to_string();
        assert!(said.contains("at once"), "{said}");
    }
}
