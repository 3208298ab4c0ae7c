//! Filters that a task's operators learn while they run, and that its scans skip data by.
//!
//! A join that has all of its left side knows which keys the right side may have, and a sort of the first rows what
//! comes too late: DataFusion's dynamic filters. They are shared memory and cannot be sent, so they are pushed down
//! here, within each task, once its plan has arrived. Not here: filters for scans of other stages.
//!
//! DataFusion 55 is kept from what it does wrong or could wait for without an end:
//!
//! - A join's partitions wait until each has told of the left side, also one whose stream is dropped before it was asked
//!   for rows. Where an operator above may do that to some partitions, the join learns nothing.
//! - A join by parts finds a key's part by the number of parts, of which a task may have but some.
//! - Statistics of files know nothing of floats that are not numbers, nor of what is computed from a column.
//! - A filter below a limit lets rows in that were beyond it.
//! - A sort of all rows makes an operator of a filter that nothing below takes.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, DynamicFilterPhysicalExpr};
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    replace_children_if_necessary,
};
use volley_proto::plan::mended_rules;

type Plan = Arc<dyn ExecutionPlan>;

/// What a task runs below its writer, with filters that are learnt, as far as the settings allow.
///
/// # Errors
/// When an operator does not take its inputs back.
pub(super) fn learn_filters(plan: Plan, config: &ConfigOptions) -> Result<Plan> {
    if !config.optimizer.enable_dynamic_filter_pushdown {
        return Ok(plan);
    }
    // Least and greatest values of all rows are told by statistics or take one pass.
    let mut config = config.clone();
    config.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    let rule = Arc::new(FilterPushdown::new_post_optimization()) as _;
    let mut learning = fence(Arc::clone(&plan), true)?;
    for rule in mended_rules(&[rule]) {
        learning = rule.optimize(learning, &config)?;
    }
    let open = |node: Plan| match node.downcast_ref::<Fence>() {
        Some(Fence(node)) => Ok(Transformed::yes(Arc::clone(node))),
        None => Ok(Transformed::no(node)),
    };
    let learning = learning.transform_up(open).data()?;
    // Tasks of a stage report of the same operators.
    let fits = have_same_operators(&plan, &learning) && prunes_by_columns(&learning)?;
    Ok(match fits {
        true => learning,
        false => plan,
    })
}

/// Whether scans are to skip data by columns only, or by wider integers of them: the least and the greatest value of a
/// column are not those of an expression of it, which DataFusion takes them for below a cast.
fn prunes_by_columns(plan: &Plan) -> Result<bool> {
    let mut by_columns = true;
    plan.apply(|node| {
        if !node.is::<DataSourceExec>() {
            return Ok(TreeNodeRecursion::Continue);
        }
        let schema = file_schema(node);
        node.apply_expressions(&mut |expr| {
            Arc::clone(expr).apply(|expr| {
                let learnt = expr.downcast_ref::<DynamicFilterPhysicalExpr>();
                let mut keys = learnt.into_iter().flat_map(PhysicalExpr::children);
                by_columns &= keys.all(|key| is_column(key, schema.as_ref()));
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(by_columns)
}

/// The schema that a scan's filters are about.
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

/// The plan with fences around what must not learn filters or let them past. Either all of its partitions are asked for
/// rows or none is, or else some may be dropped before.
fn fence(plan: Plan, all_or_none: bool) -> Result<Plan> {
    let of_inputs = asked(&plan, all_or_none);
    let inputs = plan.children().into_iter().zip(of_inputs);
    let inputs = inputs.map(|(input, all_or_none)| fence(Arc::clone(input), all_or_none));
    let inputs = inputs.collect::<Result<_>>()?;
    let is_open = may_learn(&plan, all_or_none);
    let plan = replace_children_if_necessary(plan, inputs)?;
    Ok(match is_open {
        true => plan,
        false => Arc::new(Fence(plan)),
    })
}

/// Of each input, whether either all of its partitions are asked for rows or none is.
fn asked(node: &Plan, all_or_none: bool) -> Vec<bool> {
    if node.is::<CoalescePartitionsExec>() || node.is::<SortPreservingMergeExec>() {
        return vec![true];
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        // The left side is one partition. Tasks' partitions of the right side are asked alike, by what is in it.
        let shares = *join.partition_mode() == PartitionMode::CollectLeft;
        return vec![all_or_none, all_or_none && shares];
    }
    let asks_at_once = node.is::<ProjectionExec>()
        || node.is::<FilterExec>()
        || node.is::<AggregateExec>()
        || node.is::<SortExec>()
        || node.is::<UnionExec>();
    vec![all_or_none && asks_at_once; node.children().len()]
}

/// Whether filters may be learnt by an operator and pass it.
fn may_learn(node: &Plan, all_or_none: bool) -> bool {
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        let schema = sort.input().schema();
        let mut keys = sort.expr().iter();
        // One of all rows would filter them itself by what its input does not take.
        return sort.fetch().is_some() && keys.all(|key| is_known(&key.expr, &schema));
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
        && join.on().iter().all(|(_, key)| is_known(key, &schema))
}

/// Whether files' statistics say all of an expression's values.
fn is_known(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    expr.data_type(schema).is_ok_and(|known| {
        known.is_integer()
            || matches!(
                known,
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

/// An operator that learns no filter and lets none past.
#[derive(Debug)]
struct Fence(Plan);

impl DisplayAs for Fence {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fence")
    }
}

impl ExecutionPlan for Fence {
    fn name(&self) -> &str {
        "Fence"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Plan> {
        self.0.children()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.0.maintains_input_order()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let node = replace_children_if_necessary(Arc::clone(&self.0), children)?;
        Ok(Arc::new(Self(node)))
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let children = self.children();
        Ok(FilterDescription::all_unsupported(
            &parent_filters,
            &children,
        ))
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Plan>> {
        Ok(FilterPushdownPropagation::if_all(result))
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("a fence is no operator")
    }
}

#[cfg(test)]
mod tests {
    use datafusion::dataframe::DataFrameWriteOptions;
    use datafusion::physical_plan::{collect, displayable};
    use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
    use tempfile::TempDir;

    use super::*;

    /// A session whose plans learn nothing by themselves, with `few`, of ten rows, and `many`, of ten thousand in row
    /// groups of a thousand.
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

    /// The plan of a query, with what it learns.
    async fn learnt(session: &SessionContext, query: &str) -> Plan {
        let plan = session.sql(query).await.unwrap();
        let plan = plan.create_physical_plan().await.unwrap();
        assert!(!shown(&plan).contains("DynamicFilter"), "{}", shown(&plan));
        let mut config = ConfigOptions::new();
        config.optimizer.enable_dynamic_filter_pushdown = false;
        let same = learn_filters(Arc::clone(&plan), &config).unwrap();
        assert_eq!(shown(&same), shown(&plan), "as it was asked for");
        let learnt = learn_filters(plan, &ConfigOptions::new()).unwrap();
        assert!(!shown(&learnt).contains("Fence"), "{}", shown(&learnt));
        learnt
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
    async fn a_scan_skips_what_no_key_is_in() {
        for partitions in [1, 3] {
            let (session, _dir) = session(partitions).await;
            let query = "SELECT many.f FROM few JOIN many USING (id)";
            let plan = learnt(&session, query).await;
            assert!(shown(&plan).contains("DynamicFilter"), "{}", shown(&plan));
            // As on an executor, where tasks may not learn by themselves.
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
    async fn what_may_go_wrong_learns_nothing() {
        for query in [
            // Statistics do not tell of NaN.
            "SELECT many.id FROM few JOIN many USING (f)",
            "SELECT id FROM many ORDER BY f LIMIT 3",
            // Nor of what is computed from a column.
            "SELECT id FROM many ORDER BY CAST(id - 5000 AS BOOLEAN), id LIMIT 3",
            "SELECT count(*) FROM (SELECT id = 5001 AS b FROM few) f JOIN many ON f.b = CAST(many.id AS BOOLEAN)",
            // Of the first rows, those without a partner are not to be replaced by others.
            "SELECT m.f FROM few JOIN (SELECT * FROM many LIMIT 50) m USING (id)",
        ] {
            let (session, _dir) = session(1).await;
            let plan = shown(&learnt(&session, query).await);
            assert!(!plan.contains("DynamicFilter"), "{plan}");
        }
    }
}
