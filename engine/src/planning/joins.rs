//! How joins are done: which side is hashed, and whether tasks get all of it or a part.
//!
//! Decided here, once, after DataFusion has chosen and before exchanges and orders are enforced, from the
//! best estimates there are. Nothing changes it later.
//!
//! | left side           | right side          | the join's rows are of | tasks                |
//! |---------------------|---------------------|------------------------|----------------------|
//! | small: all of it    | a part              | the right, or pairs    | as many as right     |
//! | a part, by its keys | a part, by its keys | either                 | as many as exchanged |
//! | all of it           | all of it           | either                 | one                  |
//! | small               | large               | the left               | semi-join reduction  |
//!
//! A task that has all of the left side and a part of the right cannot say which rows of the left found
//! no partner: another task may have it. So only the first form sends a side to every task, where that is
//! fewer bytes to read than both sides are. Joins
//! without equal keys, and `NOT IN`, cannot be partitioned by keys; they have the last form.

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

use crate::OneTaskExec;
use crate::planning::reread::{is_repeatable, is_reread};
use crate::planning::size::{Size, size};
use crate::settings::{JobSettings, STAGE_BYTES_DEFAULT};

/// The right side of a semi-join may be so many times what is sent to every task where nobody knows how much of it finds
/// a partner.
const UNBOUNDED_LIMITS: u64 = 4;

type Plan = Arc<dyn ExecutionPlan>;

/// A join as it is to be done; to be made as soon as DataFusion has chosen.
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

/// Whether the keys are of types that DataFusion 55 can merge by: it panics at a float that is not a number, and does
/// not know all types.
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

/// The same join by hashes.
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
    // Each side that is exchanged is another stage.
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
    // Every task reads and hashes all of a side that is sent to it; exchanged, each row of both is once in one.
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

/// The join with the many rows of one side [reduced](reduced) first, where it only asks whether the few of the other have a
/// partner among them. DataFusion may have swapped its inputs, by estimates of its own.
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

/// Whether the right side is [reduced](reduced) first: the left is small, and its rows are the answer.
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
    // Of keys alone, there are no more different ones than on the left.
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
    // What is more than read may be what another stage has computed already.
    Ok(pays && bounded && is_read(join.right()) && is_repeatable(join.left())?)
}

/// Whether rows are read, and computed by nothing but filters and expressions.
pub(crate) fn is_read(plan: &Plan) -> bool {
    let passes = plan.is::<FilterExec>() || plan.is::<ProjectionExec>();
    plan.is::<DataSourceExec>() || (passes && plan.children().into_iter().all(is_read))
}

/// A semi-join reduction (Bernstein & Chiu 1981): the left side goes to every task, each of which keeps the rows of its
/// part of the right that find a partner, without duplicates. These few go to every task of the join itself.
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
    // Where it takes a stage, it is the one that tasks have read before.
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

/// Rows of which equal ones have become fewer, if they may be grouped.
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

/// Whether there are columns, and values of each are equal only if they are the same: of floats there are others.
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

/// The join by one task, which has all of both sides.
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

/// Bytes below which a side is sent to every task.
pub(crate) fn broadcast_limit(config: &ConfigOptions) -> u64 {
    let ballista = config.extensions.get::<BallistaConfig>();
    let limit = match ballista {
        Some(ballista) => ballista.broadcast_join_threshold_bytes(),
        None => BallistaConfig::default().broadcast_join_threshold_bytes(),
    };
    u64::try_from(limit).unwrap_or(u64::MAX)
}

/// Another stage takes about as long as reading and hashing so many bytes.
fn stage_bytes(config: &ConfigOptions) -> u64 {
    let settings = config.extensions.get::<JobSettings>();
    settings.map_or(STAGE_BYTES_DEFAULT, |settings| settings.stage_bytes)
}

/// A side of a join.
#[derive(Debug, Clone, Copy)]
struct Side {
    size: Size,
    /// Whether a task reads its rows for itself, and waits for no other stage.
    is_reread: bool,
}

impl Side {
    fn new(plan: &Plan, config: &ConfigOptions) -> Result<Option<Self>> {
        let is_reread = is_reread(plan, config)?;
        Ok(size(plan).map(|size| Self { size, is_reread }))
    }

    /// What it costs as the build side that every task has whole.
    fn cost_whole(self, stage: u64) -> u64 {
        let stage = if self.is_reread { 0 } else { stage };
        self.size.cost().saturating_add(stage)
    }
}

/// Whether to send few rows to every task costs less than many rows do that are then left out.
pub(crate) fn pays_to_send(few: Size, many: Size, config: &ConfigOptions) -> bool {
    let tasks = u64::try_from(config.execution.target_partitions).unwrap_or(u64::MAX);
    let sent = tasks.saturating_mul(few.cost());
    let cost = sent.saturating_add(stage_bytes(config));
    few.bytes < broadcast_limit(config) && cost <= many.cost()
}

/// Whether every row that comes out is of a row of the right side, or of a pair: tasks that each have
/// all of the left side and a part of the right can tell alone.
#[must_use]
pub fn is_of_the_right(join: JoinType) -> bool {
    matches!(
        join,
        JoinType::Inner
            | JoinType::Right
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{CsvReadOptions, SessionConfig, SessionContext};

    use super::*;
    use crate::{VolleyQueryPlanner, with_rules};

    /// The plan of a query over `few`, of ten rows, `none`, and `many`, of a hundred thousand, in two files
    /// each, where sides of less than so many bytes are small.
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
        // The side whose rows are not the answer is small enough, but larger than both sides' parts.
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
            // What is not the same each time is not computed twice, and what is computed is no more than read.
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
        // Sent to every task the many rows would cost less than two exchanges, but more than one stage.
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
        // What the first join leaves is as few, be it read by each task or made by another stage.
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
