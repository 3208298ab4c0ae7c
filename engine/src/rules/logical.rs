//! Rules of logical plans built from one function each, and functions around DataFusion's rules.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Rule as sessions hold it.
pub type LogicalRule = Arc<dyn OptimizerRule + Send + Sync>;

type Rewrite = fn(LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;
/// Function that runs in place of a rule, which it receives.
pub(crate) type Around =
    fn(&dyn OptimizerRule, LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;

/// Creates a rule that applies a function to each operator, before its inputs.
pub(crate) fn top_down(name: &'static str, rewrite: Rewrite) -> LogicalRule {
    let whole = false;
    Arc::new(Function {
        name,
        whole,
        rewrite,
    })
}

/// Creates a rule that applies a function to a whole plan.
pub(crate) fn whole_plan(name: &'static str, rewrite: Rewrite) -> LogicalRule {
    let whole = true;
    Arc::new(Function {
        name,
        whole,
        rewrite,
    })
}

/// Wraps a rule in a function; the result keeps the rule's name and order.
pub fn around(rule: LogicalRule, rewrite: Around) -> LogicalRule {
    Arc::new(Wrapped { rule, rewrite })
}

/// Checks whether any operator of a plan, those of subqueries included, is such.
pub(crate) fn any_operator(
    plan: &LogicalPlan,
    is_such: impl Fn(&LogicalPlan) -> Result<bool>,
) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found = found || is_such(node)?;
        Ok(match found {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(found)
}

/// Changes the expressions of an operator; the columns that they make keep their names.
pub(crate) fn map_named(
    plan: LogicalPlan,
    mut change: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(change(expr)?.update_data(|expr| name.restore(expr)))
    })
}

struct Function {
    name: &'static str,
    whole: bool,
    rewrite: Rewrite,
}

struct Wrapped {
    rule: LogicalRule,
    rewrite: Around,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule.name())
    }
}

impl OptimizerRule for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        (!self.whole).then_some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        (self.rewrite)(plan, config)
    }
}

impl OptimizerRule for Wrapped {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        (self.rewrite)(self.rule.as_ref(), plan, config)
    }
}
