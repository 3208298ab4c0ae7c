//! The mends, and where among DataFusion's rules each acts.
//!
//! Not here: which sessions have them, which [`session`](crate::session) says.

use std::fmt;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::planner::RelationPlanner;
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use futures::future::BoxFuture;

use super::clauses::Clause;
use super::inserted_values::View;
use crate::rules::logical::{self, LogicalRule};
use crate::rules::physical::{self, PlanRule};

/// All mends. Of several that act in one place, the first acts first.
pub const MENDS: &[&Mend] = &[
    &super::query_clauses::MEND,
    &super::named_windows::MEND,
    &super::group_modifiers::MEND,
    &super::merged_columns::MEND,
    &super::relation_clauses::MEND,
    &super::distinct_from::MEND,
    &super::function_clauses::MEND,
    &super::similar_to::MEND,
    &super::definitions::MEND,
    &super::quoted_partitions::MEND,
    &super::inserted_values::MEND,
    &super::row_copies::MEND,
    &super::dates_and_numbers::MEND,
    &super::quantified::MEND,
    &super::correlated_names::MEND,
    &super::in_subqueries::MEND,
    &super::aggregate_orders::MEND,
    &super::null_safe_joins::MEND,
    &super::single_distinct::MEND,
    &super::leaf_projections::MEND,
    &super::empty_grouping_sets::MEND,
    &super::float_extremes::MEND,
    &super::sliding::MEND,
    &super::checked_sums::MEND,
    &super::far_dates::MEND,
    &super::negative_zeros::MEND,
    &super::unnested_keys::MEND,
    &super::checked_arithmetic::MEND,
    &super::text_layouts::MEND,
    &super::float_ranges::MEND,
    &super::merge_joins::MEND,
    &super::topk_partitions::MEND,
    &super::lookahead::MEND,
    &super::distinct_counts::MEND,
    &super::filters::MEND,
    &super::own_equalities::MEND,
    &super::padded_constants::MEND,
    &super::keys_of_groups::MEND,
    &super::monotonic_windows::MEND,
    &super::sort_limits::MEND,
    &super::merged_sorts::MEND,
    &super::requirements::MEND,
    &super::reversed_aggregates::MEND,
    &super::unspilled_joins::MEND,
];

/// A bug of DataFusion's, and where it is mended.
pub struct Mend {
    /// The name of its folder.
    pub name: &'static str,
    /// The symptom without the mend, for the page on correctness.
    pub wrong: &'static str,
    /// The state of the bug upstream.
    pub upstream: Upstream,
    /// Statements, of which the last is a query, and its right rows below it as comments, or `error: ` and a part of the
    /// error. `DIR` is a folder for files.
    pub query: &'static str,
    /// The places where it acts.
    pub(super) acts: &'static [Act],
}

impl fmt::Debug for Mend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mend")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The state of a bug in the upstream project.
#[derive(Debug, Clone, Copy)]
pub enum Upstream {
    /// An issue or a pull request, as `organization/repository#number`.
    Thread(&'static str),
    /// The text of a report that is ready to be filed: no thread about the bug was found.
    Report(&'static str),
}

/// Function that changes a statement, and may make a view for as long as it is planned.
pub(super) type Rewrite = for<'a> fn(
    &'a SessionContext,
    &'a SessionState,
    &'a mut Statement,
) -> BoxFuture<'a, Result<Option<View>>>;

/// A place among DataFusion's rules, which are meant by their names, and what is done there.
pub(super) enum Act {
    /// On a clause, before a statement of SQL is planned.
    Clause(Clause),
    /// Before a statement of SQL is planned, after all clauses.
    Statement(Rewrite),
    /// A planner of relations in SQL.
    Relations(fn() -> Arc<dyn RelationPlanner>),
    /// On a plan before it is analyzed, which may be refused.
    Check(fn(&LogicalPlan) -> Result<()>),
    /// After all rules of the analyzer.
    Analyzer(fn() -> Arc<dyn AnalyzerRule + Send + Sync>),
    /// Before all rules of plans that are sent, and of no others: plans are received without subqueries, and with copies
    /// numbered.
    FirstSent(fn() -> LogicalRule),
    /// Before a rule of plans that are sent, likewise.
    BeforeSent(&'static str, fn() -> LogicalRule),
    /// Before all rules of logical plans, where physical ones are made of them.
    FirstPlanned(fn() -> LogicalRule),
    /// Before all rules of logical plans.
    FirstLogical(fn() -> LogicalRule),
    /// In the place of a rule of logical plans, which it may apply.
    AroundLogical(&'static str, logical::Around),
    /// After all rules of logical plans.
    LastLogical(fn() -> LogicalRule),
    /// Before all rules of physical plans, where they are made.
    First(fn() -> PlanRule),
    /// In the place of rules of physical plans, which it may apply.
    Around(&'static [&'static str], physical::Around),
    /// Before a rule of physical plans.
    Before(&'static str, fn() -> PlanRule),
    /// After a rule of physical plans.
    After(&'static str, fn() -> PlanRule),
    /// Before the first rule of physical plans: made of the second, and of what mends have before and after that.
    Again(&'static str, &'static str, fn(Vec<PlanRule>) -> PlanRule),
    /// After all rules of physical plans.
    Last(fn() -> PlanRule),
    /// After all rules of physical plans, where they are made.
    LastPlanned(fn() -> PlanRule),
    /// In each task, on the plan as it arrives.
    Task(fn() -> PlanRule),
}
