//! Rules of physical plans that are one function each, and functions around rules of the engine's.
//!
//! Not here: those of logical plans (`logical`), and which rules a session has (`session`).

use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// A rule as sessions have it.
pub(crate) type PlanRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

type Plan = Arc<dyn ExecutionPlan>;
/// A function that runs in the place of a rule, which it is given.
pub(crate) type Around = fn(&dyn PhysicalOptimizerRule, Plan, &ConfigOptions) -> Result<Plan>;

/// What a plan becomes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rewrite {
    /// Each operator by itself, its inputs first: what it becomes, if anything else.
    Each(fn(&Plan, &ConfigOptions) -> Result<Option<Plan>>),
    /// All of it at once.
    Whole(fn(Plan, &ConfigOptions) -> Result<Plan>),
}

/// The rule that a function applies.
pub(crate) fn rule(name: &'static str, rewrite: Rewrite) -> PlanRule {
    Arc::new(Function { name, rewrite })
}

/// A rule that a function applies: it has the rule's name.
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
