//! Dynamic filters within a task: joins and sorts tell scans which row groups to skip.
//!
//! A hash join that has collected its build side knows the possible keys of its probe side, and a top-k sort knows
//! which rows come too late. DataFusion's dynamic filters are memory that such an operator shares with a scan, so
//! they cannot be serialized: they are pushed down here, once a task's plan has arrived. Not here: filters across
//! stages.
//!
//! Some filters are left out, because with DataFusion 55 they would lose rows or wait without end:
//!
//! - Each partition of a join waits until all have reported their build sides, even one whose stream is dropped
//!   before it is polled. Where an operator above may drop some partitions so, the join has no dynamic filter.
//! - A partitioned join routes keys by the number of partitions, and a task may have only some of them: it has no
//!   dynamic filter.
//! - Row-group statistics omit NaN, and describe columns, not expressions: keys are columns, and not floats.
//! - Below a limit, a filter would admit rows that were beyond it.
//! - A sort without a limit turns a filter that its input does not accept into a separate operator.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, DynamicFilterPhysicalExpr};
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary,
};

use crate::mends::Mended;
use crate::mends::filters::without_filters;

type Plan = Arc<dyn ExecutionPlan>;

/// Pushes dynamic filters down in the plan below a task's writer, as far as the settings allow.
///
/// # Errors
/// When an operator does not accept its inputs again.
pub fn push_dynamic_filters(plan: Plan, config: &ConfigOptions) -> Result<Plan> {
    // Only scans skip rows.
    let has_scan = plan.exists(|node| Ok(node.is::<DataSourceExec>()))?;
    if !has_scan || !config.optimizer.enable_dynamic_filter_pushdown {
        return Ok(plan);
    }
    // Minimum and maximum over all rows come from statistics or take one pass.
    let mut config = config.clone();
    config.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    let rule = Arc::new(FilterPushdown::new_post_optimization()) as _;
    let mut filtered = exclude(Arc::clone(&plan), true)?;
    for rule in Mended::ALL.physical(&[rule]) {
        filtered = rule.optimize(filtered, &config)?;
    }
    // All tasks of a stage report metrics of the same operators.
    let fits = have_same_operators(&plan, &filtered) && prunes_by_columns(&filtered)?;
    Ok(match fits {
        true => filtered,
        false => plan,
    })
}

/// Checks that scans prune row groups only by columns, or by integers cast to integers. DataFusion casts a column's
/// minimum and maximum like the column, but after a cast to a boolean, say, they are no longer minimum and maximum.
fn prunes_by_columns(plan: &Plan) -> Result<bool> {
    let mut by_columns = true;
    plan.apply(|node| {
        if !node.is::<DataSourceExec>() {
            return Ok(TreeNodeRecursion::Continue);
        }
        let schema = file_schema(node);
        node.apply_expressions(&mut |expr| {
            Arc::clone(expr).apply(|expr| {
                let dynamic = expr.downcast_ref::<DynamicFilterPhysicalExpr>();
                let mut keys = dynamic.into_iter().flat_map(PhysicalExpr::children);
                by_columns &= keys.all(|key| is_column(key, schema.as_ref()));
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(by_columns)
}

/// Returns the schema that a scan's filters refer to.
fn file_schema(node: &Plan) -> Option<SchemaRef> {
    let scan = node.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    Some(Arc::clone(scan.file_source().table_schema().table_schema()))
}

fn is_column(expr: &Arc<dyn PhysicalExpr>, schema: Option<&SchemaRef>) -> bool {
    let Some(cast) = expr.downcast_ref::<CastExpr>() else {
        return expr.is::<Column>();
    };
    let from = schema.and_then(|schema| cast.expr().data_type(schema).ok());
    cast.expr().is::<Column>()
        && cast.cast_type().is_integer()
        && from.is_some_and(|from| from.is_integer())
}

fn have_same_operators(a: &Plan, b: &Plan) -> bool {
    let (inputs, others) = (a.children(), b.children());
    let mut pairs = inputs.iter().zip(&others);
    a.name() == b.name()
        && inputs.len() == others.len()
        && pairs.all(|(a, b)| have_same_operators(a, b))
}

/// Excludes the operators that must neither produce dynamic filters nor let them pass. `all_or_none` is true where
/// either all of the plan's partitions are polled or none, and false where some may be dropped before they are
/// polled.
fn exclude(plan: Plan, all_or_none: bool) -> Result<Plan> {
    let of_inputs = polled(&plan, all_or_none);
    let inputs = plan.children().into_iter().zip(of_inputs);
    let inputs = inputs.map(|(input, all_or_none)| exclude(Arc::clone(input), all_or_none));
    let inputs = inputs.collect::<Result<_>>()?;
    let takes_part = takes_part(&plan, all_or_none);
    let plan = replace_children_if_necessary(plan, inputs)?;
    Ok(match takes_part {
        true => plan,
        false => without_filters(plan),
    })
}

/// Returns for each input whether either all of its partitions are polled or none.
fn polled(node: &Plan, all_or_none: bool) -> Vec<bool> {
    if node.is::<CoalescePartitionsExec>() || node.is::<SortPreservingMergeExec>() {
        return vec![true];
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        // The build side is one partition. Its content decides whether partitions of the probe side are polled.
        let shares = *join.partition_mode() == PartitionMode::CollectLeft;
        return vec![all_or_none, all_or_none && shares];
    }
    let polls_each = node.is::<ProjectionExec>()
        || node.is::<FilterExec>()
        || node.is::<AggregateExec>()
        || node.is::<SortExec>()
        || node.is::<UnionExec>();
    vec![all_or_none && polls_each; node.children().len()]
}

/// Returns whether an operator may produce dynamic filters and let others pass.
fn takes_part(node: &Plan, all_or_none: bool) -> bool {
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        let schema = sort.input().schema();
        let mut keys = sort.expr().iter();
        return sort.fetch().is_some() && keys.all(|key| is_covered(&key.expr, &schema));
    }
    if node.fetch().is_some() {
        return false;
    }
    let Some(join) = node.downcast_ref::<HashJoinExec>() else {
        return true;
    };
    let (schema, partitions) = (join.right().schema(), join.right().output_partitioning());
    *join.partition_mode() == PartitionMode::CollectLeft
        && (all_or_none || partitions.partition_count() == 1)
        && join.on().iter().all(|(_, key)| is_covered(key, &schema))
}

/// Returns whether row-group statistics of a key's type cover all of its values.
fn is_covered(key: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    key.data_type(schema).is_ok_and(|of| {
        of.is_integer()
            || matches!(
                of,
                DataType::Boolean
                    | DataType::Binary
                    | DataType::BinaryView
                    | DataType::LargeBinary
                    | DataType::Utf8
                    | DataType::Utf8View
                    | DataType::LargeUtf8
                    | DataType::Decimal128(..)
                    | DataType::Timestamp(..)
                    | DataType::Date32
                    | DataType::Date64
            )
    })
}

#[cfg(test)]
mod tests {
    use datafusion::dataframe::DataFrameWriteOptions;
    use datafusion::execution::TaskContext;
    use datafusion::physical_plan::{collect, displayable};
    use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
    use tempfile::TempDir;

    use super::*;

    /// Returns a session whose planner makes no dynamic filters, with the tables `few`, of ten rows, and `many`, of
    /// ten thousand rows in row groups of a thousand.
    async fn session(partitions: usize) -> (SessionContext, TempDir) {
        let config = SessionConfig::new()
            .with_target_partitions(partitions)
            .with_repartition_file_min_size(0);
        let session = SessionContext::new_with_config(config);
        let off = "SET datafusion.optimizer.enable_dynamic_filter_pushdown = false";
        session.sql(off).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        for (table, first, last) in [("few", 5001, 5010), ("many", 1, 10_000)] {
            let path = dir.path().join(format!("{table}.parquet"));
            let path = path.to_str().unwrap();
            let rows = session
                .sql(&format!(
                    "SELECT value AS id, value::double AS f FROM generate_series({first}, {last}) ORDER BY value"
                ))
                .await
                .unwrap();
            let mut options = datafusion::common::config::TableParquetOptions::default();
            options.global.max_row_group_size = 1000;
            rows.write_parquet(path, DataFrameWriteOptions::new(), Some(options))
                .await
                .unwrap();
            session
                .register_parquet(table, path, ParquetReadOptions::default())
                .await
                .unwrap();
        }
        (session, dir)
    }

    fn shown(plan: &Plan) -> String {
        displayable(plan.as_ref()).indent(false).to_string()
    }

    /// Returns a query's plan with its dynamic filters.
    async fn filtered(session: &SessionContext, query: &str) -> Plan {
        let plan = session.sql(query).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        assert!(!shown(&plan).contains("DynamicFilter"), "{}", shown(&plan));
        let mut config = ConfigOptions::new();
        config.optimizer.enable_dynamic_filter_pushdown = false;
        let same = push_dynamic_filters(Arc::clone(&plan), &config).unwrap();
        assert_eq!(shown(&same), shown(&plan), "as it was asked for");
        let filtered = push_dynamic_filters(plan, &ConfigOptions::new()).unwrap();
        assert!(!shown(&filtered).contains("Mark"), "{}", shown(&filtered));
        filtered
    }

    fn scanned(plan: &Plan) -> usize {
        let own = match plan.children().is_empty() {
            true => plan
                .metrics()
                .and_then(|metrics| metrics.output_rows())
                .unwrap_or(0),
            false => 0,
        };
        own + plan.children().into_iter().map(scanned).sum::<usize>()
    }

    #[tokio::test]
    async fn a_scan_skips_row_groups_without_a_key() {
        for partitions in [1, 3] {
            let (session, _dir) = session(partitions).await;
            let query = "SELECT many.f FROM few JOIN many USING (id)";
            let plan = filtered(&session, query).await;
            assert!(shown(&plan).contains("DynamicFilter"), "{}", shown(&plan));
            let mut config = session.copied_config();
            config
                .options_mut()
                .optimizer
                .enable_join_dynamic_filter_pushdown = true;
            let context = Arc::new(TaskContext::default().with_session_config(config));
            let rows = collect(Arc::clone(&plan), context).await.unwrap();
            assert_eq!(rows.iter().map(|rows| rows.num_rows()).sum::<usize>(), 10);
            let scanned = scanned(&plan);
            assert!(
                scanned <= 1010,
                "{scanned} of 10,010 rows: {}",
                shown(&plan)
            );
        }
    }

    #[tokio::test]
    async fn no_filter_is_pushed_where_rows_would_be_lost() {
        for query in [
            // Statistics omit NaN.
            "SELECT many.id FROM few JOIN many USING (f)",
            "SELECT id FROM many ORDER BY f LIMIT 3",
            // Statistics do not describe expressions of a column.
            "SELECT id FROM many ORDER BY CAST(id - 5000 AS BOOLEAN), id LIMIT 3",
            "SELECT count(*) FROM (SELECT id = 5001 AS b FROM few) f JOIN many ON f.b = CAST(many.id AS BOOLEAN)",
            // Rows within the limit that have no partner must not be replaced by later ones.
            "SELECT m.f FROM few JOIN (SELECT * FROM many LIMIT 50) m USING (id)",
        ] {
            let (session, _dir) = session(1).await;
            let plan = shown(&filtered(&session, query).await);
            assert!(!plan.contains("DynamicFilter"), "{plan}");
        }
    }
}
