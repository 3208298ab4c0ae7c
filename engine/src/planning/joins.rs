//! The execution of joins: which side is hashed, and whether tasks get all of it or a part.
//!
//! It is decided here, once, after DataFusion has chosen and before exchanges and orderings are enforced, from the best
//! available estimates. Nothing changes it later.
//!
//! | left side           | right side          | the join emits rows of | tasks                |
//! |---------------------|---------------------|------------------------|----------------------|
//! | small: all of it    | a part              | the right, or pairs    | as many as right     |
//! | a part, by its keys | a part, by its keys | either                 | as many as exchanged |
//! | all of it           | all of it           | either                 | one                  |
//! | small               | large               | the left               | semi-join reduction  |
//!
//! A task with all of the left side and a part of the right cannot tell which left rows are unmatched: another task may
//! match them. So only the first form broadcasts a side, if that takes fewer bytes than reading both sides once. Joins
//! without equal keys, and `NOT IN`, cannot be partitioned by keys; they take the first form, or run in one task.

use std::sync::Arc;

use ballista_core::config::BallistaConfig;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, PartitionMode, SortMergeJoinExec,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};

use crate::nodes::one_task::OneTaskExec;
use crate::operators::grace_join::is_of_the_right;
use crate::planning::reread::{is_repeatable, is_reread};
use crate::planning::size::{Size, size};
use crate::settings::{JobSettings, STAGE_BYTES_DEFAULT};

/// Maximum size of a semi-join's right side where the number of its matches is unknown, in multiples of the broadcast
/// limit.
const UNBOUNDED_LIMITS: u64 = 4;

type Plan = Arc<dyn ExecutionPlan>;

/// Chooses the execution of a join, as soon as DataFusion has chosen its own.
pub(crate) fn choose_join(node: &Plan, config: &ConfigOptions) -> Result<Option<Plan>> {
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        return hash_join(join, config).map(Some);
    }
    if let Some(join) = node.downcast_ref::<SortMergeJoinExec>() {
        return match can_merge(join) {
            true => Ok(None),
            false => hash_join(&hashed(join)?, config).map(Some),
        };
    }
    match node.downcast_ref::<NestedLoopJoinExec>() {
        Some(join) => nested_loop_join(node, join, config),
        None => Ok(None),
    }
}

/// Checks whether DataFusion 55 can merge by keys of these types: it panics at a float that is NaN, and does not know
/// all types.
fn can_merge(join: &SortMergeJoinExec) -> bool {
    let schema = join.left().schema();
    let is_merged = |key: &PhysicalExprRef| {
        let known = key.data_type(&schema);
        known.is_ok_and(|known| match known {
            DataType::Float16 | DataType::Float32 | DataType::Float64 | DataType::Null => false,
            DataType::Boolean
            | DataType::Binary
            | DataType::BinaryView
            | DataType::LargeBinary
            | DataType::FixedSizeBinary(_)
            | DataType::Utf8
            | DataType::Utf8View
            | DataType::LargeUtf8
            | DataType::Decimal128(..)
            | DataType::Timestamp(_, None)
            | DataType::Date32
            | DataType::Date64 => true,
            other => other.is_integer(),
        })
    };
    join.on().iter().all(|(key, _)| is_merged(key))
}

/// Converts a merge join to a hash join.
fn hashed(join: &SortMergeJoinExec) -> Result<HashJoinExec> {
    HashJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        join.on().to_vec(),
        join.filter().clone(),
        &join.join_type(),
        None,
        PartitionMode::Partitioned,
        join.null_equality(),
        false,
    )
}

fn hash_join(join: &HashJoinExec, config: &ConfigOptions) -> Result<Plan> {
    let kind = *join.join_type();
    if join.null_aware {
        return in_one_task(join);
    }
    let (limit, stage) = (broadcast_limit(config), stage_bytes(config));
    // Each exchanged side is another stage.
    let exchange = stage.saturating_mul(2);
    let (left, right) = (
        Side::new(join.left(), config)?,
        Side::new(join.right(), config)?,
    );
    let exchanges = config.optimizer.repartition_joins;
    if exchanges && let Some(reduced) = reduction(join, left, right, config)? {
        return Ok(reduced);
    }
    let tasks = u64::try_from(config.execution.target_partitions).unwrap_or(u64::MAX);
    // Every task reads and hashes all rows of a broadcast side; in an exchange, each row of both sides goes to one
    // task.
    let small = |side: Option<Side>, other: Option<Side>| {
        let pays = |side: Size| {
            let all = tasks.saturating_mul(side.cost());
            let exchanged = |other: Side| other.size.cost().saturating_add(exchange);
            other.is_none_or(|other| all <= exchanged(other).saturating_add(side.cost()))
        };
        side.filter(|side| side.size.bytes < limit && (!exchanges || pays(side.size)))
    };
    let as_left = small(left, right).filter(|_| is_of_the_right(kind));
    let swaps = kind.supports_swap();
    let as_right = small(right, left).filter(|_| swaps && is_of_the_right(kind.swap()));
    let collect = PartitionMode::CollectLeft;
    match (as_left, as_right) {
        (Some(left), Some(right)) if right.cost_whole(stage) < left.cost_whole(stage) => {
            join.swap_inputs(collect)
        }
        (Some(_), _) => join.builder().with_partition_mode(collect).build_exec(),
        (None, Some(_)) => join.swap_inputs(collect),
        (None, None) if exchanges => {
            let partitioned = PartitionMode::Partitioned;
            match (left, right) {
                (Some(left), Some(right)) if swaps && right.size.cost() < left.size.cost() => {
                    join.swap_inputs(partitioned)
                }
                _ => join.builder().with_partition_mode(partitioned).build_exec(),
            }
        }
        (None, None) => in_one_task(join),
    }
}

/// [Reduces](reduced) the many rows of one side first, where the join only checks whether the few rows of the other
/// have a match among them. DataFusion may have swapped the inputs, by its own estimates.
fn reduction(
    join: &HashJoinExec,
    left: Option<Side>,
    right: Option<Side>,
    config: &ConfigOptions,
) -> Result<Option<Plan>> {
    let swapped = match join.join_type() {
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            Some(join.swap_inputs(PartitionMode::Partitioned)?)
        }
        _ => None,
    };
    let swapped = swapped.as_ref().and_then(|join| join.downcast_ref());
    let (join, few, many) = match swapped {
        Some(swapped) => (swapped, right, left),
        None => (join, left, right),
    };
    match reduces(join, few, many, config)? {
        true => reduced(join, few).map(Some),
        false => Ok(None),
    }
}

/// Checks whether to [reduce](reduced) the right side first: the left is small, and the join emits its rows.
fn reduces(
    join: &HashJoinExec,
    left: Option<Side>,
    right: Option<Side>,
    config: &ConfigOptions,
) -> Result<bool> {
    let asks_whether = matches!(
        join.join_type(),
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark
    );
    let Some((left, right)) = left.zip(right).filter(|_| asks_whether) else {
        return Ok(false);
    };
    let limit = broadcast_limit(config);
    let (left, right) = (left.size, right.size);
    let pays = pays_to_send(left, right, config);
    // A right side of keys alone has no more distinct matches than the left has keys.
    let schema = join.right().schema();
    let has_keys_only = join.filter().is_none()
        && are_exact(&schema)
        && (0..schema.fields().len()).all(|at| {
            let mut keys = join
                .on()
                .iter()
                .map(|(_, key)| key.downcast_ref::<Column>());
            keys.any(|key| key.is_some_and(|key| key.index() == at))
        });
    let bounded = has_keys_only || right.bytes < UNBOUNDED_LIMITS.saturating_mul(limit);
    // A right side that is computed, rather than only read, may be the output of another stage.
    Ok(pays && bounded && is_read(join.right()) && is_repeatable(join.left())?)
}

/// Checks whether a plan only reads rows, and computes them with nothing but filters and expressions.
pub(crate) fn is_read(plan: &Plan) -> bool {
    let passes = plan.is::<FilterExec>() || plan.is::<ProjectionExec>();
    plan.is::<DataSourceExec>() || (passes && plan.children().into_iter().all(is_read))
}

/// Builds a semi-join reduction (Bernstein & Chiu 1981): the left side goes to every task, each of which keeps the
/// matching rows of its part of the right, without duplicates. These few go to every task of the join itself.
///
/// ```text
/// HashJoinExec: LeftSemi            HashJoinExec: RightSemi
///   ├ left                    →       ├ AggregateExec: Partial, by all columns
///   └ right                           │   └ HashJoinExec: RightSemi
///                                     │       ├ left
///                                     │       └ right
///                                     └ left
/// ```
fn reduced(join: &HashJoinExec, left: Option<Side>) -> Result<Plan> {
    let matched = HashJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        join.on().to_vec(),
        join.filter().cloned(),
        &JoinType::RightSemi,
        None,
        PartitionMode::CollectLeft,
        join.null_equality(),
        false,
    )?;
    let matched = distinct(Arc::new(matched))?;
    // If the left side takes a stage, it is the stage that the tasks have read before.
    let left = match left.is_some_and(|left| left.is_reread) {
        true => Arc::clone(join.left()),
        false => one_task(join.left()),
    };
    let join = join
        .builder()
        .with_partition_mode(PartitionMode::CollectLeft);
    let join = join.with_new_children(vec![left, matched])?.build()?;
    join.swap_inputs(PartitionMode::CollectLeft)
}

/// Removes duplicates of rows within each partition, if they can be grouped exactly.
fn distinct(plan: Plan) -> Result<Plan> {
    let schema = plan.schema();
    if !are_exact(&schema) {
        return Ok(plan);
    }
    let column = |(at, field): (usize, &Arc<Field>)| {
        let column: PhysicalExprRef = Arc::new(Column::new(field.name(), at));
        (column, field.name().clone())
    };
    let columns = schema.fields().iter().enumerate().map(column).collect();
    Ok(Arc::new(AggregateExec::try_new(
        AggregateMode::Partial,
        PhysicalGroupBy::new_single(columns),
        vec![],
        vec![],
        plan,
        Arc::clone(&schema),
    )?))
}

/// Checks that a schema has columns, and that equal values of each are identical, which floats are not.
pub(crate) fn are_exact(schema: &Schema) -> bool {
    let is_exact = |of: &DataType| {
        of.is_integer()
            || matches!(of, DataType::Boolean | DataType::Date32 | DataType::Date64)
            || matches!(
                of,
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
            )
    };
    let fields = schema.fields();
    !fields.is_empty() && fields.iter().all(|field| is_exact(field.data_type()))
}

/// Runs the join in one task, which has all of both sides.
fn in_one_task(join: &HashJoinExec) -> Result<Plan> {
    let inputs = vec![Arc::clone(join.left()), one_task(join.right())];
    let join = join
        .builder()
        .with_partition_mode(PartitionMode::CollectLeft);
    join.with_new_children(inputs)?.build_exec()
}

fn nested_loop_join(
    node: &Plan,
    join: &NestedLoopJoinExec,
    config: &ConfigOptions,
) -> Result<Option<Plan>> {
    let kind = *join.join_type();
    if is_of_the_right(kind) {
        return Ok(None);
    }
    let sizes = size(join.left()).zip(size(join.right()));
    let right_is_smaller = sizes.is_some_and(|(left, right)| {
        right.bytes < left.bytes || right.bytes < broadcast_limit(config)
    });
    if kind.supports_swap() && is_of_the_right(kind.swap()) && right_is_smaller {
        return join.swap_inputs().map(Some);
    }
    let inputs = vec![Arc::clone(join.left()), one_task(join.right())];
    replace_children_if_necessary(Arc::clone(node), inputs).map(Some)
}

fn one_task(input: &Plan) -> Plan {
    match input.is::<OneTaskExec>() {
        true => Arc::clone(input),
        false => Arc::new(OneTaskExec::new(Arc::clone(input))),
    }
}

/// Returns the size in bytes below which a side is broadcast.
pub(crate) fn broadcast_limit(config: &ConfigOptions) -> u64 {
    let ballista = config.extensions.get::<BallistaConfig>();
    let limit = match ballista {
        Some(ballista) => ballista.broadcast_join_threshold_bytes(),
        None => BallistaConfig::default().broadcast_join_threshold_bytes(),
    };
    u64::try_from(limit).unwrap_or(u64::MAX)
}

/// Returns the cost of another stage, in bytes that are read and hashed in the same time.
fn stage_bytes(config: &ConfigOptions) -> u64 {
    let settings = config.extensions.get::<JobSettings>();
    settings.map_or(STAGE_BYTES_DEFAULT, |settings| settings.stage_bytes)
}

/// Side of a join.
#[derive(Debug, Clone, Copy)]
struct Side {
    size: Size,
    /// Set if each task reads the rows for itself, without waiting for another stage.
    is_reread: bool,
}

impl Side {
    fn new(plan: &Plan, config: &ConfigOptions) -> Result<Option<Self>> {
        let is_reread = is_reread(plan, config)?;
        Ok(size(plan).map(|size| Self { size, is_reread }))
    }

    /// Returns the cost of this side as a build side that every task has in full.
    fn cost_whole(self, stage: u64) -> u64 {
        let stage = if self.is_reread { 0 } else { stage };
        self.size.cost().saturating_add(stage)
    }
}

/// Checks whether broadcasting the few rows costs no more than the many rows that it saves.
pub(crate) fn pays_to_send(few: Size, many: Size, config: &ConfigOptions) -> bool {
    let tasks = u64::try_from(config.execution.target_partitions).unwrap_or(u64::MAX);
    let sent = tasks.saturating_mul(few.cost());
    let cost = sent.saturating_add(stage_bytes(config));
    few.bytes < broadcast_limit(config) && cost <= many.cost()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{CsvReadOptions, SessionConfig, SessionContext};

    use super::*;
    use crate::{VolleyQueryPlanner, with_rules};

    /// Plans a query over `few`, of ten rows, `none`, and `many`, of a hundred thousand, in two files each, with a
    /// broadcast limit in bytes.
    async fn plan(query: &str, limit: usize) -> String {
        plan_with(query, limit, JobSettings::default()).await
    }

    async fn plan_with(query: &str, limit: usize, settings: JobSettings) -> String {
        let dir = tempfile::tempdir().unwrap();
        let ballista = BallistaConfig::default();
        let mut config = SessionConfig::new().with_target_partitions(2);
        config.options_mut().extensions.insert(ballista);
        config.options_mut().extensions.insert(JobSettings {
            single_task_bytes: 0,
            ..settings
        });
        let key = "ballista.optimizer.broadcast_join_threshold_bytes";
        let config = config.set_usize(key, limit);
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        for (name, rows) in [("none", 0), ("few", 10), ("many", 100_000)] {
            let table = dir.path().join(name);
            fs::create_dir(&table).unwrap();
            let lines: String = (0..rows / 2).map(|row| format!("{row}\n")).collect();
            for file in 0..2 {
                fs::write(table.join(format!("{file}.csv")), format!("id\n{lines}")).unwrap();
            }
            let schema = Schema::new(vec![datafusion::arrow::datatypes::Field::new(
                "id",
                DataType::Int64,
                true,
            )]);
            let options = CsvReadOptions::new().schema(&schema);
            let table = table.to_str().unwrap();
            session.register_csv(name, table, options).await.unwrap();
        }
        let frame = session.sql(query).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        displayable(plan.as_ref()).indent(false).to_string()
    }

    #[tokio::test]
    async fn a_small_side_goes_to_every_task_where_its_rows_are_not_the_answer() {
        let limit = 10_000;
        for (query, expected) in [
            (
                "few JOIN many USING (id)",
                "mode=CollectLeft, join_type=Inner",
            ),
            (
                "many JOIN few USING (id)",
                "mode=CollectLeft, join_type=Inner",
            ),
            (
                "many JOIN none USING (id)",
                "mode=CollectLeft, join_type=Inner",
            ),
            (
                "many LEFT JOIN few USING (id)",
                "mode=CollectLeft, join_type=Right",
            ),
            (
                "few LEFT JOIN many USING (id)",
                "mode=Partitioned, join_type=Left",
            ),
            (
                "few FULL JOIN many USING (id)",
                "mode=Partitioned, join_type=Full",
            ),
            (
                "many JOIN many m USING (id)",
                "mode=Partitioned, join_type=Inner",
            ),
        ] {
            let plan = plan(&format!("SELECT * FROM {query}"), limit).await;
            assert!(plan.contains(expected), "{query}: {plan}");
        }
        // The side that is not emitted is below the broadcast limit, but larger than the parts of both sides.
        let large = 100_000_000;
        let stages_are_free = || JobSettings {
            stage_bytes: 0,
            ..JobSettings::default()
        };
        for (kind, of_left) in [("SEMI", "RightSemi"), ("ANTI", "RightAnti")] {
            let query = format!("SELECT * FROM few LEFT {kind} JOIN many USING (id)");
            let semi = plan_with(&query, large, stages_are_free()).await;
            let reduced = semi
                .matches("mode=CollectLeft, join_type=RightSemi")
                .count();
            let asked = format!("mode=CollectLeft, join_type={of_left}");
            assert!(semi.contains(&asked) && reduced > 0, "{semi}");
            assert!(!semi.contains("Partitioned,"), "{semi}");
            // A side that differs each time is not computed twice, and a computed side is not reduced.
            let joined = "(SELECT a.id FROM many a, many b WHERE a.id < b.id LIMIT 4000000)";
            for (left, right) in [
                ("(SELECT * FROM few LIMIT 5) f", "many"),
                ("few", &*format!("{joined} m")),
            ] {
                let query = format!("SELECT * FROM {left} LEFT {kind} JOIN {right} USING (id)");
                let whole = plan_with(&query, large, stages_are_free()).await;
                let asked = format!("mode=Partitioned, join_type=Left{}", &of_left[5..]);
                assert!(whole.contains(&asked), "{whole}");
            }
        }
        let none = plan("SELECT * FROM few JOIN many USING (id)", 0).await;
        assert!(none.contains("mode=Partitioned"), "{none}");
    }

    #[tokio::test]
    async fn many_rows_are_reduced_rather_than_sent_to_every_task() {
        // Broadcasting the many rows would cost less than two exchanges, but more than one stage.
        let settings = || JobSettings {
            stage_bytes: 3_000_000,
            ..JobSettings::default()
        };
        let count = |plan: &str, kind: &str| {
            let join = format!("mode=CollectLeft, join_type={kind}");
            plan.matches(&join).count()
        };
        let query = "SELECT * FROM few LEFT ANTI JOIN many USING (id)";
        let once = plan_with(query, 100_000_000, settings()).await;
        assert_eq!(count(&once, "RightSemi"), 1, "{once}");
        assert_eq!(count(&once, "RightAnti"), 1, "{once}");
        // The first join leaves as few rows, whether each task reads them or another stage makes them.
        for few in ["few", "(SELECT DISTINCT id FROM few) few"] {
            let query = format!(
                "SELECT * FROM {few} LEFT SEMI JOIN many USING (id) LEFT ANTI JOIN many m USING (id)"
            );
            let twice = plan_with(&query, 100_000_000, settings()).await;
            assert!(count(&twice, "RightSemi") >= 3, "{twice}");
            assert_eq!(count(&twice, "RightAnti"), 1, "{twice}");
        }
    }

    #[tokio::test]
    async fn one_task_has_both_sides_where_it_alone_can_tell() {
        for (query, gathered) in [
            ("SELECT * FROM few LEFT JOIN many ON few.id < many.id", true),
            ("SELECT * FROM few FULL JOIN many ON few.id < many.id", true),
            (
                "SELECT * FROM many LEFT JOIN few ON few.id < many.id",
                false,
            ),
            ("SELECT * FROM few JOIN many ON few.id < many.id", false),
            (
                "SELECT * FROM few WHERE id NOT IN (SELECT nullif(id, 3) FROM many)",
                true,
            ),
        ] {
            let plan = plan(query, 10_000).await;
            assert_eq!(plan.contains("OneTaskExec"), gathered, "{query}: {plan}");
        }
    }
}
