//! Rules of physical plans built from one function each, and functions around DataFusion's rules.
//!
//! Not here: rules of logical plans (`logical`), and the rules of a session (`session`).

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// Rule as sessions hold it.
pub(crate) type PlanRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

type Plan = Arc<dyn ExecutionPlan>;
/// Function that runs in place of a rule, which it receives.
pub(crate) type Around = fn(&dyn PhysicalOptimizerRule, Plan, &ConfigOptions) -> Result<Plan>;

/// Rewrite of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rewrite {
    /// Rewrites each operator separately, inputs first; `None` keeps the operator.
    Each(fn(&Plan, &ConfigOptions) -> Result<Option<Plan>>),
    /// Rewrites the whole plan at once.
    Whole(fn(Plan, &ConfigOptions) -> Result<Plan>),
}

/// Creates a rule that applies a function.
pub(crate) fn rule(name: &'static str, rewrite: Rewrite) -> PlanRule {
    Arc::new(Function { name, rewrite })
}

/// Wraps a rule in a function; the result keeps the rule's name.
pub(crate) fn around(rule: PlanRule, rewrite: Around) -> PlanRule {
    Arc::new(Wrapped { rule, rewrite })
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    rewrite: Rewrite,
}

struct Wrapped {
    rule: PlanRule,
    rewrite: Around,
}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())
    }
}

impl PhysicalOptimizerRule for Function {
    fn optimize(&self, plan: Plan, config: &ConfigOptions) -> Result<Plan> {
        let each = match self.rewrite {
            Rewrite::Each(rewrite) => rewrite,
            Rewrite::Whole(rewrite) => return rewrite(plan, config),
        };
        plan.transform_up(|node| {
            Ok(match each(&node, config)? {
                Some(rewritten) => Transformed::yes(rewritten),
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl PhysicalOptimizerRule for Wrapped {
    fn optimize(&self, plan: Plan, config: &ConfigOptions) -> Result<Plan> {
        (self.rewrite)(self.rule.as_ref(), plan, config)
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}
