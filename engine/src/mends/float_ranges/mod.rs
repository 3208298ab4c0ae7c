//! Ranges of floats, which Parquet's statistics record without NaN.
//!
//! A column's minimum and maximum do not tell whether it also has NaN, which sorts above all numbers here, and equals
//! itself. DataFusion 55 relies on them all the same: to find a column constant, to answer a minimum or maximum without
//! reading, to find files consecutive, to skip row groups. So planning knows no ranges of floats, and scans do not
//! prune by conditions on floats, which stay filters. Remove when files record whether there is a NaN, and a release
//! checks that.

use std::sync::Arc;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::physical::{Rewrite, rule};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;

/// Name of the rule that forgets ranges of floats.
pub(crate) const FORGET_FLOAT_RANGES: &str = "forget_float_ranges";

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "float_ranges",
    wrong: "rows are missing where a Parquet file has NaN beside its greatest number",
    upstream: Upstream::Thread("apache/datafusion#15812"),
    query: include_str!("query.sql"),
    acts: &[
        Act::First(|| rule(FORGET_FLOAT_RANGES, Rewrite::Each(forget_ranges))),
        Act::LastPlanned(|| rule("prune_without_floats", Rewrite::Each(prune_by_others))),
    ],
};

type Plan = Arc<dyn ExecutionPlan>;

/// Removes the ranges of floats from a scan's statistics, before any rule reads them.
pub(crate) fn forget_ranges(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    Ok(change(node, |scan, _| {
        let schema = scan.file_schema();
        let fields = schema.fields().iter().enumerate();
        let floats = fields.filter(|(_, field)| has_floats(field.data_type()));
        let floats: Vec<_> = floats.map(|(at, _)| at).collect();
        if floats.is_empty() {
            return None;
        }
        let mut statistics = scan.statistics();
        forget(&mut statistics, &floats);
        let groups = scan.file_groups.iter().map(|group| {
            let mut of_group = group.clone();
            let of_group = of_group.statistics_mut().map(|statistics| {
                forget(statistics, &floats);
                statistics.clone()
            });
            let files = group.iter().cloned().map(|mut file| {
                if let Some(statistics) = &mut file.statistics {
                    forget(Arc::make_mut(statistics), &floats);
                }
                file
            });
            let group = FileGroup::new(files.collect());
            match of_group {
                Some(statistics) => group.with_statistics(Arc::new(statistics)),
                None => group,
            }
        });
        let groups = groups.collect();
        let builder = FileScanConfigBuilder::from(scan.clone());
        Some(builder.with_file_groups(groups).with_statistics(statistics))
    }))
}

/// Stops a scan from pruning by conditions on floats, after filters have been pushed down.
pub(crate) fn prune_by_others(node: &Plan, _: &ConfigOptions) -> Result<Option<Plan>> {
    Ok(change(node, |scan, source| {
        let predicate = source.filter()?;
        let conditions = split_conjunction(&predicate).into_iter();
        let (of_floats, others): (Vec<_>, Vec<_>) =
            conditions.partition(|condition| reads_floats(condition, scan.file_schema()));
        if of_floats.is_empty() {
            return None;
        }
        let source = match source.table_parquet_options().global.pushdown_filters {
            // No filter above would check the condition again, so only pruning is turned off.
            true => {
                let mut options = source.table_parquet_options().clone();
                options.global.pruning = false;
                options.global.enable_page_index = false;
                source.clone().with_table_parquet_options(options)
            }
            false => source.with_predicate(conjunction(others.into_iter().cloned())),
        };
        let builder = FileScanConfigBuilder::from(scan.clone());
        Some(builder.with_source(Arc::new(source)))
    }))
}

/// Changes a scan of Parquet files; `None` if the node is another, or stays.
fn change(
    node: &Plan,
    change: impl FnOnce(&FileScanConfig, &ParquetSource) -> Option<FileScanConfigBuilder>,
) -> Option<Plan> {
    let exec = node.downcast_ref::<DataSourceExec>()?;
    let scan = exec.data_source().downcast_ref::<FileScanConfig>()?;
    let source = scan.file_source().downcast_ref::<ParquetSource>()?;
    let changed = change(scan, source)?.build();
    Some(Arc::new(exec.clone().with_data_source(Arc::new(changed))))
}

fn forget(statistics: &mut Statistics, columns: &[usize]) {
    for column in columns {
        if let Some(column) = statistics.column_statistics.get_mut(*column) {
            column.min_value = Precision::Absent;
            column.max_value = Precision::Absent;
        }
    }
}

fn reads_floats(condition: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    collect_columns(condition).iter().any(|column| {
        let field = schema.field_with_name(column.name());
        field.is_ok_and(|field| has_floats(field.data_type()))
    })
}

fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => has_floats(values),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_floats(item.data_type()),
        other => other.is_floating(),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::{VolleyQueryPlanner, with_rules};

    /// Returns the rows of a query as text, without the frame.
    async fn rows(session: &SessionContext, query: &str) -> Vec<String> {
        let frame = session.sql(query).await.unwrap();
        let batches = frame.collect().await.unwrap();
        let table = pretty_format_batches(&batches).unwrap().to_string();
        let lines = table.lines().filter(|line| line.starts_with("| "));
        let cells = |line: &str| line.replace(['|', ' '], "");
        lines.skip(1).map(cells).collect()
    }

    async fn session(pushdown_filters: bool, dir: &std::path::Path) -> SessionContext {
        let config = SessionConfig::new().with_target_partitions(2).set_bool(
            "datafusion.execution.parquet.pushdown_filters",
            pushdown_filters,
        );
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let session = SessionContext::new_with_state(with_rules(state).build());
        // `constant` has one number beside NaN, `range` has two.
        for (name, other) in [("constant", "0.5"), ("range", "0.25")] {
            let path = dir.join(format!("{name}-{pushdown_filters}.parquet"));
            let path = path.display();
            let copy = format!(
                "COPY (SELECT column1 AS k, column2 AS x FROM (VALUES (1, 0.5), (2, CAST('NaN' AS DOUBLE)), \
                 (3, {other}))) TO '{path}' STORED AS PARQUET"
            );
            session.sql(&copy).await.unwrap().collect().await.unwrap();
            let create =
                format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{path}'");
            session.sql(&create).await.unwrap();
        }
        session
    }

    #[tokio::test]
    async fn rows_with_nan_are_there_however_statistics_read() {
        let dir = tempfile::tempdir().unwrap();
        for pushdown_filters in [false, true] {
            let session = session(pushdown_filters, dir.path()).await;
            for (query, due) in [
                (
                    "SELECT x FROM constant ORDER BY k",
                    &["0.5", "NaN", "0.5"][..],
                ),
                ("SELECT k FROM constant WHERE x <> 0.5", &["2"]),
                (
                    "SELECT k FROM constant WHERE x = 0.5 ORDER BY k",
                    &["1", "3"],
                ),
                (
                    "SELECT min(x) = 0.25, max(x) = 0.5 FROM range",
                    &["truefalse"],
                ),
                ("SELECT k FROM range WHERE x > 1", &["2"]),
                ("SELECT k FROM range WHERE NOT x <= 1 AND k < 9", &["2"]),
                (
                    "SELECT k FROM range WHERE x = CAST('NaN' AS DOUBLE)",
                    &["2"],
                ),
                (
                    "SELECT count(*) FROM (SELECT k FROM range WHERE x < 1 LIMIT 2)",
                    &["2"],
                ),
            ] {
                assert_eq!(rows(&session, query).await, due, "{query}");
            }
        }
    }

    #[tokio::test]
    async fn other_conditions_prune() {
        let dir = tempfile::tempdir().unwrap();
        let session = session(false, dir.path()).await;
        let explained = rows(
            &session,
            "EXPLAIN SELECT k FROM range WHERE x > 1 AND k > 2",
        )
        .await;
        let scan = explained
            .iter()
            .find(|line| line.contains("DataSourceExec"));
        let scan = scan.unwrap();
        assert!(
            scan.contains("predicate=k@0>2") && !scan.contains("x_max"),
            "{scan}"
        );
    }
}
