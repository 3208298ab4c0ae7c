//! Stages of a job that is run again: which ones compute the same as before, and whether a task that runs again writes the
//! same rows.
//!
//! Where some of a stage's tasks ran in one attempt of a job and others in the next, each row must still be in one place.
//! Repeatable tasks guarantee it: over the same input, they have the same rows, in any order (see [`repeats`]). Sums of
//! floating-point numbers are not repeatable, because they depend on the order of the input; limits are not either.
//!
//! Not here: which tasks have run, and where their rows are, which the scheduler knows.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ballista_core::execution_plans::sort_shuffle::SortShuffleWriterExec;
use ballista_core::execution_plans::{ShuffleReaderExec, ShuffleWriterExec, UnresolvedShuffleExec};
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::udaf::AggregateFunctionExpr;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use twox_hash::XxHash64;

use super::reuse::hashed_by;
use super::stage::{StageExec, StageInput};
use crate::mends::checked_sums;
use crate::operators::expand::ExpandExec;
use crate::operators::fence::FenceExec;
use crate::planning::reread::is_volatile_operator;

/// Identity of a stage's computation, without its attempt and its executors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageIdentity {
    /// Encoded plan, without the exchanges that it reads.
    message: Arc<[u8]>,
    /// The columns that its rows are hashed by, and the number of partitions; `None` where rows stay in their partitions.
    hashed_by: Option<(Vec<usize>, usize)>,
    /// Stages that it reads, in the order of its plan.
    pub reads: Vec<usize>,
    /// True if a task has the same rows each time that it reads the same rows.
    pub repeats: bool,
}

impl StageIdentity {
    /// Returns the identity of a stage, given the plan of its writer; `None` if its rows of one attempt can take no place in
    /// another, as where it writes files or trains.
    pub fn of(writer: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let [plan] = writer.children()[..] else {
            return None;
        };
        let stage = plan.downcast_ref::<StageExec>()?;
        let effects = stage
            .plan()
            .exists(|node| Ok(!only_computes(node.as_ref())));
        if effects.unwrap_or(true) {
            return None;
        }
        let hashed_by = match writer.downcast_ref::<SortShuffleWriterExec>() {
            Some(writer) => hashed_by(writer.shuffle_output_partitioning())?,
            None if writer.is::<ShuffleWriterExec>() => None,
            None => return None,
        };
        let reads = stage.inputs().iter().map(stage_read);
        Some(Self {
            message: Arc::clone(stage.message()),
            hashed_by,
            reads: reads.collect::<Option<_>>()?,
            repeats: repeats(stage.plan()).unwrap_or(false),
        })
    }

    /// Returns a number that stands for the computation, given those of the rows of the stages that it reads.
    pub fn over(&self, inputs: &[u64]) -> u64 {
        let mut hasher = XxHash64::with_seed(0);
        self.message.hash(&mut hasher);
        self.hashed_by.hash(&mut hasher);
        inputs.hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns the stage whose exchange this is.
fn stage_read(exchange: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let exchange = match exchange.downcast_ref::<CoalescePartitionsExec>() {
        Some(gathered) => gathered.input(),
        None => exchange,
    };
    if let Some(reader) = exchange.downcast_ref::<ShuffleReaderExec>() {
        return Some(reader.stage_id);
    }
    let unresolved = exchange.downcast_ref::<UnresolvedShuffleExec>()?;
    Some(unresolved.stage_id)
}

/// Checks whether a plan returns the same rows each time that it reads the same rows, in any order.
///
/// # Errors
/// When an operator cannot show its expressions.
fn repeats(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let different = plan.exists(|node| {
        let repeats = match node.downcast_ref::<AggregateExec>() {
            Some(aggregate) => aggregate_repeats(aggregate),
            None => operator_repeats(node.as_ref()),
        };
        // The first rows of several may differ each time.
        Ok(!repeats || node.fetch().is_some() || is_volatile_operator(node.as_ref())?)
    })?;
    Ok(!different)
}

/// Checks whether an operator has no effect but its rows.
fn only_computes(node: &dyn ExecutionPlan) -> bool {
    operator_repeats(node)
        || node.is::<AggregateExec>()
        || node.is::<BoundedWindowAggExec>()
        || node.is::<GlobalLimitExec>()
        || node.is::<LocalLimitExec>()
        || node.is::<WindowAggExec>()
}

fn operator_repeats(node: &dyn ExecutionPlan) -> bool {
    node.is::<CoalescePartitionsExec>()
        || node.is::<CrossJoinExec>()
        || node.is::<DataSourceExec>()
        || node.is::<EmptyExec>()
        || node.is::<ExpandExec>()
        || node.is::<FenceExec>()
        || node.is::<FilterExec>()
        || node.is::<HashJoinExec>()
        || node.is::<InterleaveExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<PlaceholderRowExec>()
        || node.is::<ProjectionExec>()
        || node.is::<SortExec>()
        || node.is::<SortMergeJoinExec>()
        || node.is::<SortPreservingMergeExec>()
        || node.is::<StageInput>()
        || node.is::<UnionExec>()
        || node.is::<UnnestExec>()
}

fn aggregate_repeats(aggregate: &AggregateExec) -> bool {
    if aggregate.limit_options().is_some() {
        return false;
    }
    match aggregate.mode() {
        // Only the final aggregation reads these states, and its groups are where their keys are.
        AggregateMode::Partial => true,
        _ => aggregate.aggr_expr().iter().all(|expr| is_exact(expr)),
    }
}

/// Checks whether a function of several rows has the same value in any order of these.
fn is_exact(function: &AggregateFunctionExpr) -> bool {
    match function.fun().name() {
        "bool_and" | "bool_or" | "bit_and" | "bit_or" | "bit_xor" | "count"
        | "volley_float_max" | "volley_float_min" => true,
        // Of floats, those of groups are Volley's own, above.
        "max" | "min" => {
            let kind = function.field();
            !(kind.data_type().is_floating() || kind.data_type().is_nested())
        }
        // Sums of integers and decimals.
        checked_sums::NAME => true,
        // The average of integers is one of floating-point numbers.
        "sum" | "avg" => {
            let kind = function.field();
            kind.data_type().is_integer() || kind.data_type().is_decimal()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ballista_core::JobId;
    use ballista_scheduler::planner::{DefaultDistributedPlanner, DistributedPlanner};

    use super::super::tests::{plan, session};
    use super::*;
    use crate::planning::stages::{reuse_exchanges, stages};

    /// Returns the identities of a query's stages but the last, in the order of their ids.
    async fn identities(query: &str) -> Vec<StageIdentity> {
        let (session, _dir) = session(&[]).await;
        identities_in(&session, query).await
    }

    async fn identities_in(
        session: &datafusion::prelude::SessionContext,
        query: &str,
    ) -> Vec<StageIdentity> {
        let plan = plan(session, query).await;
        let plan = reuse_exchanges(stages(plan, None, &session.task_ctx()).unwrap()).unwrap();
        let config = session.copied_config();
        let mut stages = DefaultDistributedPlanner::new()
            .plan_query_stages(&JobId::new("job"), plan, config.options())
            .unwrap();
        stages.pop();
        let stages = stages.into_iter().map(|stage| {
            let stage: Arc<dyn ExecutionPlan> = stage;
            StageIdentity::of(&stage).unwrap()
        });
        stages.collect()
    }

    async fn last_repeats(query: &str) -> bool {
        let all = identities(query).await;
        all.last()
            .unwrap_or_else(|| panic!("{query} has an exchange"))
            .repeats
    }

    #[tokio::test]
    async fn rows_repeat_where_they_do_not_depend_on_an_order() {
        let grouped = |columns: &str| {
            format!(
                "SELECT s, count(*) FROM (SELECT v, {columns} AS s FROM a GROUP BY v) GROUP BY s"
            )
        };
        for (query, repeats) in [
            ("SELECT v, count(*) FROM a GROUP BY v".to_owned(), true),
            // The states of sums of floats, which only their final aggregation reads.
            ("SELECT v, sum(k * 0.1e0) FROM a GROUP BY v".to_owned(), true),
            (grouped("count(*)"), true),
            (grouped("sum(k)"), true),
            (grouped("avg(arrow_cast(k, 'Decimal128(9, 2)'))"), true),
            (grouped("max(k * 0.1e0)"), true),
            (grouped("sum(k * 0.1e0)"), false),
            (grouped("avg(k)"), false),
            (grouped("first_value(k)"), false),
            ("SELECT v, count(*) FROM a WHERE random() < 0.5 GROUP BY v".to_owned(), false),
            (
                "SELECT v, count(*) FROM (SELECT v FROM a ORDER BY w LIMIT 5) GROUP BY v".to_owned(),
                false,
            ),
            (
                "SELECT n, count(*) FROM (SELECT row_number() OVER (PARTITION BY v ORDER BY w) AS n FROM a) GROUP BY n"
                    .to_owned(),
                false,
            ),
        ] {
            assert_eq!(last_repeats(&query).await, repeats, "{query}");
        }
    }

    #[tokio::test]
    async fn a_plan_made_again_has_the_same_stages() {
        let query = "SELECT a.v, count(*) FROM a JOIN b ON a.k = b.k GROUP BY a.v";
        let (session, _dir) = session(&[]).await;
        let [first, again] = [
            identities_in(&session, query).await,
            identities_in(&session, query).await,
        ];
        assert!(!first.is_empty());
        assert_eq!(first, again);
        let numbers =
            |all: &[StageIdentity]| all.iter().map(|one| one.over(&[7])).collect::<Vec<_>>();
        assert_eq!(numbers(&first), numbers(&again));
        assert_ne!(first[0].over(&[7]), first[0].over(&[8]));
        let other = identities_in(&session, &query.replace("count(*)", "count(a.w)")).await;
        assert_ne!(first, other);
    }
}
