//! Queries so small that one task answers them: in one partition, without exchanges.
//!
//! Another stage has tasks to start, files to write and a wait for both; below some MiB per stage, that takes longer
//! than reading and computing everything in one task. Not here: the number of partitions of larger plans
//! (`partitions`).

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{CsvSource, FileScanConfig, JsonSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::work_table::WorkTableExec;

use crate::planning::estimates::text_bytes;
use crate::planning::reread::{REREAD_BYTES, scanned_bytes};
use crate::planning::size::{HASH_BYTES, row_bytes};
use crate::rules::logical::any_operator;
use crate::settings::JobSettings;
use crate::{PredictNode, TrainNode};

/// Cost of reading a byte of text, in bytes of Parquet: 6 ns against 1.5 ns (a CSV file of numbers, dates and short
/// text, and columns of `lineitem`, each with a core of Zen 4).
pub(crate) const TEXT: u64 = 4;

/// Returns the assumed cost of an exchange, in bytes that are read, when one task could answer instead; 0 without job
/// settings.
pub(crate) fn limit(config: &ConfigOptions) -> u64 {
    let settings = config.extensions.get::<JobSettings>();
    settings.map_or(0, |settings| settings.single_task_bytes)
}

/// Checks that all of a query's work is in its rows: it neither trains, predicts nor writes.
///
/// # Errors
/// Only those of the visit, which has none.
pub(crate) fn may_be(plan: &LogicalPlan) -> Result<bool> {
    let other_work = any_operator(plan, |node| {
        Ok(match node {
            LogicalPlan::Extension(extension) => {
                let node = extension.node.as_any();
                node.is::<TrainNode>() || node.is::<PredictNode>()
            }
            LogicalPlan::Copy(_) | LogicalPlan::Dml(_) | LogicalPlan::Ddl(_) => true,
            _ => false,
        })
    });
    Ok(!other_work?)
}

/// Checks whether one task answers a query no later than the tasks of its stages, before it is optimized: sharing the
/// work would save less than the exchanges cost.
pub(crate) fn fits(plan: &Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> bool {
    let Some(work) = Estimate::default().of(plan) else {
        return false;
    };
    let tasks = u64::try_from(config.execution.target_partitions).unwrap_or(u64::MAX);
    let taken = work.bytes.saturating_add(work.parsed);
    let shared = taken - taken / tasks.max(1);
    shared <= limit(config).saturating_mul(work.exchanges.max(1))
}

/// Work of a query.
#[derive(Debug, Clone, Copy)]
struct Work {
    /// Bytes that are read, and the cost of hashing, sorting and comparing rows, in bytes that are read in the same
    /// time.
    bytes: u64,
    /// Cost of parsing text, in the same unit.
    parsed: u64,
    /// Number of exchanges between its stages.
    exchanges: u64,
}

/// Estimator of a plan's work.
#[derive(Default)]
struct Estimate {
    statistics: StatisticsContext,
}

impl Estimate {
    /// Estimates the work of a plan, if it is known.
    fn of(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Work> {
        let inputs = plan.children();
        if inputs.is_empty() {
            return Some(Work {
                bytes: read(plan)?,
                parsed: parsed(plan),
                exchanges: 0,
            });
        }
        // The number of rounds is unknown.
        if plan.is::<RecursiveQueryExec>() {
            return None;
        }
        let mut work = self.of_operator(plan)?;
        let mut least = u64::MAX;
        for input in &inputs {
            let input = self.of(input)?;
            least = least.min(input.bytes);
            work.bytes = work.bytes.saturating_add(input.bytes);
            work.parsed = work.parsed.saturating_add(input.parsed);
            work.exchanges += input.exchanges;
        }
        // The smaller side of a join is exchanged, unless each task reads it for itself.
        work.exchanges += u64::from(is_join(plan) && least > REREAD_BYTES);
        Some(work)
    }

    /// Estimates the work of an operator without its inputs.
    fn of_operator(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<Work> {
        let inputs = plan.children();
        if plan.is::<NestedLoopJoinExec>() || plan.is::<CrossJoinExec>() {
            let mut rows = inputs.iter().map(|input| self.rows(input));
            let pairs = rows.try_fold(1_u64, |pairs, rows| Some(pairs.saturating_mul(rows?)))?;
            let of_row = u64::try_from(row_bytes(&plan.schema())).unwrap_or(u64::MAX);
            return Some(Work {
                bytes: pairs.saturating_mul(of_row),
                parsed: 0,
                exchanges: 0,
            });
        }
        let aggregate = plan.downcast_ref::<AggregateExec>();
        let merges = aggregate.is_some_and(|aggregate| {
            matches!(
                aggregate.mode(),
                AggregateMode::Final | AggregateMode::FinalPartitioned
            )
        });
        let windows = partitioned_by(plan);
        let sorts = plan.is::<SortExec>() || windows.is_some();
        let hashes = (aggregate.is_some() && !merges) || is_join(plan) || sorts;
        let rows = inputs.iter().filter_map(|input| self.rows(input));
        let rows = if hashes { rows.sum() } else { 0_u64 };
        // Windows over windows with the same partitions need no exchange of their own.
        let exchanged = windows.is_some() && windows == below_projections(inputs[0]);
        Some(Work {
            bytes: rows.saturating_mul(HASH_BYTES),
            parsed: 0,
            exchanges: u64::from(merges || sorts && !exchanged),
        })
    }

    /// Estimates the rows of a plan, as far as anything is known.
    fn rows(&self, plan: &Arc<dyn ExecutionPlan>) -> Option<u64> {
        let statistics = self
            .statistics
            .compute(plan.as_ref(), &StatisticsArgs::new());
        let known = statistics.ok()?.num_rows.get_value().copied();
        match known {
            Some(rows) => u64::try_from(rows).ok(),
            None => {
                let rows = plan.children().into_iter();
                rows.filter_map(|input| self.rows(input)).max()
            }
        }
    }
}

/// Returns the names of the columns that window functions are partitioned by, if the operator is a window operator.
fn partitioned_by(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<String>> {
    let windows = plan.downcast_ref::<WindowAggExec>();
    let windows = windows.map(WindowAggExec::window_expr);
    let streamed = plan.downcast_ref::<BoundedWindowAggExec>();
    let streamed = streamed.map(BoundedWindowAggExec::window_expr);
    let first = windows.or(streamed)?.first()?;
    // A column keeps its name when a projection moves it.
    let name = |key: &Arc<dyn PhysicalExpr>| match key.downcast_ref::<Column>() {
        Some(column) => column.name().to_owned(),
        None => key.to_string(),
    };
    Some(first.partition_by().iter().map(name).collect())
}

/// Returns the same for the first operator below projections.
fn below_projections(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<String>> {
    match plan.downcast_ref::<ProjectionExec>() {
        Some(projection) => below_projections(projection.input()),
        None => partitioned_by(plan),
    }
}

fn is_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<HashJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
}

/// Estimates the bytes that a leaf of a plan reads, if they are known.
fn read(leaf: &Arc<dyn ExecutionPlan>) -> Option<u64> {
    let Some(scan) = leaf.downcast_ref::<DataSourceExec>() else {
        let reads_nothing =
            leaf.is::<EmptyExec>() || leaf.is::<PlaceholderRowExec>() || leaf.is::<WorkTableExec>();
        return reads_nothing.then_some(0);
    };
    if let Some(rows) = scan.data_source().downcast_ref::<MemorySourceConfig>() {
        let batches = rows.partitions().iter().flatten();
        let size = batches.map(|batch| batch.get_array_memory_size() as u64);
        return Some(size.sum());
    }
    scanned_bytes(leaf, scan)
}

/// Estimates the cost of parsing a leaf's text, in bytes that are read.
fn parsed(leaf: &Arc<dyn ExecutionPlan>) -> u64 {
    let scan = leaf.downcast_ref::<DataSourceExec>();
    let files = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
    let text = files.filter(|files| is_text(files)).map(text_bytes);
    text.unwrap_or(0).saturating_mul(TEXT - 1)
}

/// Checks whether files are of text, which is parsed.
pub(crate) fn is_text(files: &FileScanConfig) -> bool {
    files.file_source().is::<CsvSource>() || files.file_source().is::<JsonSource>()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_optimizer::PhysicalOptimizerRule;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::{VolleyQueryPlanner, with_rules};

    /// Rule that counts optimizations of plans.
    #[derive(Debug, Default)]
    struct Counter(AtomicUsize);

    impl PhysicalOptimizerRule for Counter {
        fn optimize(
            &self,
            plan: Arc<dyn ExecutionPlan>,
            _: &ConfigOptions,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(plan)
        }

        fn name(&self) -> &'static str {
            "counter"
        }

        fn schema_check(&self) -> bool {
            true
        }
    }

    /// Returns a query's plan for two slots, over a small table and one of 64 MiB, of two files each.
    async fn plan(query: &str, single_task_bytes: u64) -> String {
        let (plan, _) = plan_counting(query, single_task_bytes).await;
        plan
    }

    /// Returns the plan, and the number of plans that were optimized for it.
    async fn plan_counting(query: &str, single_task_bytes: u64) -> (String, usize) {
        let mut config = SessionConfig::new().with_target_partitions(2);
        config.options_mut().extensions.insert(JobSettings {
            single_task_bytes,
            ..JobSettings::default()
        });
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let counter = Arc::new(Counter::default());
        let state = with_rules(state)
            .with_physical_optimizer_rule(Arc::clone(&counter) as Arc<_>)
            .build();
        let session = SessionContext::new_with_state(state);
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("small", 4 << 10), ("large", 32 << 20)] {
            let table = dir.path().join(name);
            fs::create_dir(&table).unwrap();
            for file in 0..2 {
                // The files are planned, not read: they have a size and no contents.
                let file = File::create(table.join(format!("{file}.csv"))).unwrap();
                file.set_len(bytes).unwrap();
            }
            let create = format!(
                "CREATE EXTERNAL TABLE {name} (a INT, b INT) STORED AS CSV LOCATION '{}/'",
                table.display()
            );
            session.sql(&create).await.unwrap();
        }
        let query = session.sql(query).await.unwrap();
        let plan = query.create_physical_plan().await.unwrap();
        let plan = displayable(plan.as_ref()).indent(false).to_string();
        (plan, counter.0.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_plan_is_optimized_once() {
        for (table, exchanges) in [("small", false), ("large", true)] {
            let query = format!("SELECT a, sum(b) FROM {table} GROUP BY a");
            let (plan, times) = plan_counting(&query, 8 << 20).await;
            assert_eq!((has_exchanges(&plan), times), (exchanges, 1), "{plan}");
        }
    }

    fn has_exchanges(plan: &str) -> bool {
        plan.contains("RepartitionExec") || plan.contains("CoalescePartitionsExec")
    }

    #[tokio::test]
    async fn what_reads_little_has_one_partition() {
        let grouped = |table: &str| format!("SELECT a, sum(b) FROM {table} GROUP BY a");
        let windows = |by: &str| {
            format!(
                "SELECT max(b) OVER (PARTITION BY a ORDER BY b ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING), \
                 min(b) OVER (PARTITION BY {by}) FROM large"
            )
        };
        for (query, single_task_bytes, exchanges) in [
            (grouped("small"), 8 << 20, false),
            (grouped("small"), 0, true),
            (grouped("small"), 1000, true),
            (grouped("large"), 8 << 20, true),
            (grouped("large"), 1 << 30, false),
            (grouped("large"), 200 << 20, true),
            // It takes no longer, but has another exchange.
            (
                format!("{} UNION ALL {}", grouped("small"), grouped("large")),
                200 << 20,
                false,
            ),
            // A union itself exchanges nothing.
            (
                format!("{} UNION ALL {}", grouped("large"), grouped("large")),
                200 << 20,
                true,
            ),
            // Windows over windows with the same partitions have one exchange, and with others two.
            (windows("a"), 200 << 20, true),
            (windows("b"), 200 << 20, false),
            // A side that each task reads for itself is not exchanged.
            (
                "SELECT a, sum(x.b) FROM large x JOIN small y USING (a) GROUP BY a".into(),
                200 << 20,
                true,
            ),
            (
                "SELECT count(*) FROM small x JOIN small y USING (a)".into(),
                8 << 20,
                false,
            ),
            (
                "SELECT count(*) FROM small WHERE a IN (SELECT b FROM large)".into(),
                8 << 20,
                true,
            ),
        ] {
            let plan = plan(&query, single_task_bytes).await;
            assert_eq!(has_exchanges(&plan), exchanges, "{query}: {plan}");
        }
    }

    #[tokio::test]
    async fn pairs_of_rows_count() {
        let pairs = "SELECT count(*) FROM small x JOIN small y ON x.a < y.b";
        assert!(!has_exchanges(&plan(pairs, 64 << 20).await));
        assert!(has_exchanges(&plan(pairs, 1 << 20).await));
    }

    #[tokio::test]
    async fn explanations_show_what_would_run() {
        let query = "EXPLAIN SELECT a, sum(b) FROM small GROUP BY a";
        let explained = plan(query, 8 << 20).await;
        assert!(explained.contains("ExplainExec"), "{explained}");
    }
}
