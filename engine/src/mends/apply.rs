//! DataFusion's rules with the mends.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::planner::RelationPlanner;
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;

use super::clauses;
use super::list::{Act, MENDS, Rewrite};
use crate::rules::logical::{self, LogicalRule};
use crate::rules::physical::{self, PlanRule};

/// Returns what mends make of their acts of one kind, in order.
macro_rules! of_acts {
    ($mended:expr, $act:pat $(if $applies:expr)? => $made:expr) => {
        $mended.acts().filter_map(|act| match act {
            $act $(if $applies)? => Some($made),
            _ => None,
        })
    };
}

/// The mends to apply in a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mended {
    /// Name of the mend that is left out, to test its effect.
    without: Option<&'static str>,
}

impl Mended {
    /// All mends.
    pub(crate) const ALL: Self = Self { without: None };

    /// Leaves one mend out.
    #[cfg(test)]
    pub(super) fn without(name: &'static str) -> Self {
        Self {
            without: Some(name),
        }
    }

    fn acts(self) -> impl Iterator<Item = &'static Act> {
        let mends = MENDS.iter();
        let mends = mends.filter(move |mend| Some(mend.name) != self.without);
        mends.flat_map(|mend| mend.acts)
    }

    /// Plans a statement of SQL.
    pub(crate) async fn statement_to_plan(
        self,
        context: &SessionContext,
        state: &SessionState,
        mut statement: Statement,
    ) -> Result<LogicalPlan> {
        let clauses = of_acts!(self, Act::Clause(clause) => clause);
        clauses::normalize(&mut statement, clauses.collect(), state)?;
        let rewrites = of_acts!(self, Act::Statement(rewrite) => *rewrite);
        let rewrites: Vec<Rewrite> = rewrites.collect();
        let mut views = vec![];
        for rewrite in rewrites {
            views.extend(rewrite(context, state, &mut statement).await?);
        }
        let plan = state.statement_to_plan(statement).await?;
        // A view is analyzed where it is created, and without the session's rules.
        self.check(&plan)?;
        Ok(plan)
    }

    /// Refuses plans that would be analyzed wrongly.
    fn check(self, plan: &LogicalPlan) -> Result<()> {
        self.acts().try_for_each(|act| match act {
            Act::Check(check) => check(plan),
            _ => Ok(()),
        })
    }

    /// Puts the mends among the rules of an analyzer.
    pub(crate) fn mend_analyzer(self, analyzer: &mut Analyzer) {
        analyzer.rules.insert(0, Arc::new(Checks(self)));
        analyzer.rules.extend(self.analyzers());
    }

    /// Returns the SQL relation planners.
    pub(crate) fn relations(self) -> Vec<Arc<dyn RelationPlanner>> {
        of_acts!(self, Act::Relations(make) => make()).collect()
    }

    /// Returns the rules that follow the analyzer's.
    fn analyzers(self) -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
        of_acts!(self, Act::Analyzer(make) => make()).collect()
    }

    /// Returns the mended rules of plans that are sent.
    pub(crate) fn sent(self, rules: &[LogicalRule]) -> Vec<LogicalRule> {
        let first = of_acts!(self, Act::FirstSent(make) => make());
        let rules = rules.iter().flat_map(|rule| {
            let name = rule.name();
            let before = of_acts!(self, Act::BeforeSent(of, make) if *of == name => make());
            let before: Vec<_> = before.collect();
            before.into_iter().chain([Arc::clone(rule)])
        });
        first.chain(rules).collect()
    }

    /// Returns the rules before those of logical plans where physical plans are made of them.
    pub(crate) fn first_planned(self) -> Vec<LogicalRule> {
        of_acts!(self, Act::FirstPlanned(make) => make()).collect()
    }

    /// Returns the mended rules of logical plans.
    pub(crate) fn logical(self, rules: &[LogicalRule]) -> Vec<LogicalRule> {
        let first = of_acts!(self, Act::FirstLogical(make) => make());
        let wrapped = rules.iter().map(|rule| {
            let name = rule.name();
            let around = of_acts!(self, Act::AroundLogical(of, around) if *of == name => *around);
            around.fold(Arc::clone(rule), logical::around)
        });
        let last = of_acts!(self, Act::LastLogical(make) => make());
        first.chain(wrapped).chain(last).collect()
    }

    /// Returns the rules before those of physical plans where they are made.
    pub(crate) fn first(self) -> Vec<PlanRule> {
        of_acts!(self, Act::First(make) => make()).collect()
    }

    /// Returns the mended rules of physical plans.
    pub(crate) fn physical(self, rules: &[PlanRule]) -> Vec<PlanRule> {
        let mut mended = vec![];
        // Each rule with the rules before and after it, for `Act::Again`.
        let mut applied: HashMap<String, Vec<PlanRule>> = HashMap::new();
        for rule in rules {
            let name = rule.name().to_owned();
            let known = |of: &str| applied.get(of).cloned().unwrap_or_default();
            let again =
                of_acts!(self, Act::Again(before, of, make) if *before == name => make(known(of)));
            mended.extend(again);
            let is_around = |names: &[&str]| names.contains(&name.as_str());
            let around = of_acts!(self, Act::Around(names, around) if is_around(names) => *around);
            let wrapped = around.fold(Arc::clone(rule), physical::around);
            let before = of_acts!(self, Act::Before(rule, make) if *rule == name => make());
            let after = of_acts!(self, Act::After(rule, make) if *rule == name => make());
            let all: Vec<_> = before.chain([wrapped]).chain(after).collect();
            mended.extend(all.iter().cloned());
            applied.insert(name, all);
        }
        mended.extend(of_acts!(self, Act::Last(make) => make()));
        mended
    }

    /// Returns the rules after those of physical plans where they are made.
    pub(crate) fn last_planned(self) -> Vec<PlanRule> {
        of_acts!(self, Act::LastPlanned(make) => make()).collect()
    }

    /// Returns the rules of plans in their tasks.
    pub(crate) fn task(self) -> Vec<PlanRule> {
        of_acts!(self, Act::Task(make) => make()).collect()
    }
}

/// Rule that runs the checks before a plan is analyzed, also for plans of data frames.
#[derive(Debug)]
struct Checks(Mended);

impl AnalyzerRule for Checks {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        self.0.check(&plan)?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "check_before_analysis"
    }
}
