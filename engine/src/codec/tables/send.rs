//! A logical plan made ready for the wire.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, TableReference, not_impl_err, plan_err};
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::{MemTable, provider_as_source, source_as_provider};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, TableSource, cast,
};
use datafusion::scalar::ScalarValue;

use super::files::Files;
use super::rows::{ROWS_LIMIT, Rows};

/// Replaces a plan's tables by ones that can be sent, and gives relations without rows their columns.
///
/// # Errors
/// When the rows of tables in memory are more than [`ROWS_LIMIT`].
pub async fn sendable(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut misread = false;
    let mut in_memory: Vec<(Arc<dyn TableSource>, Arc<dyn TableSource>)> = Vec::new();
    let mut tables = Vec::new();
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::SubqueryAlias(alias) => misread |= is_misread(&alias.alias),
            LogicalPlan::TableScan(scan) => {
                misread |= is_misread(&scan.table_name);
                tables.push((scan.table_name.to_string(), Arc::clone(&scan.source)));
            }
            LogicalPlan::Dml(dml) => {
                tables.push((dml.table_name.to_string(), Arc::clone(&dml.target)));
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut size = 0;
    for (name, source) in tables {
        let Ok(provider) = source_as_provider(&source) else {
            continue;
        };
        let Some(table) = provider.downcast_ref::<MemTable>() else {
            continue;
        };
        let rows = Rows::of(table).await?;
        // A table that is scanned twice is sent twice.
        size += rows.size();
        if size > ROWS_LIMIT {
            let (limit, mib) = (ROWS_LIMIT >> 20, size.div_ceil(1 << 20));
            return plan_err!(
                "the rows of tables in memory are sent with a query, at most {limit} MiB of them, and with \
                 table {name} they are {mib} MiB: write large ones to files, with COPY (SELECT …) \
                 TO 'folder/' STORED AS PARQUET, and query these: SELECT … FROM 'folder/*.parquet'"
            );
        }
        in_memory.push((source, provider_as_source(Arc::new(rows))));
    }
    let sent = |source: &Arc<dyn TableSource>| -> Result<Option<Arc<dyn TableSource>>> {
        if let Some((_, rows)) = in_memory.iter().find(|(own, _)| Arc::ptr_eq(own, source)) {
            return Ok(Some(Arc::clone(rows)));
        }
        let Ok(provider) = source_as_provider(source) else {
            return Ok(None);
        };
        let Some(listing) = provider.downcast_ref::<ListingTable>() else {
            return Ok(None);
        };
        let files: Arc<dyn TableProvider> = Arc::new(Files::of_plan(listing.clone()));
        Ok(Some(provider_as_source(files)))
    };
    let plan = plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::TableScan(mut scan) => Ok(match sent(&scan.source)? {
            Some(source) => {
                scan.source = source;
                Transformed::yes(LogicalPlan::TableScan(scan))
            }
            None => Transformed::no(LogicalPlan::TableScan(scan)),
        }),
        LogicalPlan::Dml(mut dml) => Ok(match sent(&dml.target)? {
            Some(target) => {
                dml.target = target;
                Transformed::yes(LogicalPlan::Dml(dml))
            }
            None => Transformed::no(LogicalPlan::Dml(dml)),
        }),
        LogicalPlan::EmptyRelation(empty) if !empty.schema.fields().is_empty() => {
            without_rows(&empty)
        }
        node => Ok(Transformed::no(node)),
    })?;
    let plan = with_half_precision(plan.data)?;
    match misread {
        true => quoted(plan),
        false => Ok(plan),
    }
}

/// Replaces a plan's literals of half precision by casts, because literals are encoded with single precision.
fn with_half_precision(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_down_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        node.map_expressions(|expression| {
            let name = names.save(&expression);
            let expression = expression.transform_down(|expression| match expression {
                Expr::Literal(ScalarValue::Float16(Some(value)), metadata) => {
                    let single = ScalarValue::Float32(Some(value.to_f32()));
                    let half = cast(Expr::Literal(single, metadata), DataType::Float16);
                    Ok(Transformed::new(half, true, TreeNodeRecursion::Jump))
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(match expression.transformed {
                true => expression.update_data(|expression| name.restore(expression)),
                false => expression,
            })
        })
    })?;
    Ok(plan.data)
}

/// Checks whether the name of a column's table, which is sent as text, would be parsed as another one: `Sales` as
/// `sales`, and the table `sales.csv` as the table `csv` of the schema `sales`.
fn is_misread(table: &TableReference) -> bool {
    TableReference::parse_str(&table.to_string()) != *table
}

/// Quotes the table names of columns that would be parsed as other names.
fn quoted(plan: LogicalPlan) -> Result<LogicalPlan> {
    let quote = |column: &mut Column| match &column.relation {
        Some(table) if is_misread(table) => {
            column.relation = Some(TableReference::bare(table.to_quoted_string()));
            true
        }
        _ => false,
    };
    let plan = plan.transform_down_with_subqueries(|mut node| {
        if let LogicalPlan::Unnest(unnest) = &mut node {
            unnest.exec_columns.iter_mut().for_each(|column| {
                quote(column);
            });
        }
        node.map_expressions(|expression| {
            expression.transform_down(|mut expression| {
                let changed = match &mut expression {
                    Expr::Column(column) | Expr::OuterReferenceColumn(_, column) => quote(column),
                    _ => false,
                };
                Ok(Transformed::new(
                    expression,
                    changed,
                    TreeNodeRecursion::Continue,
                ))
            })
        })
    })?;
    Ok(plan.data)
}

/// Returns a relation without rows whose columns are expressions: DataFusion's encoding omits the columns of an empty
/// one.
fn without_rows(empty: &EmptyRelation) -> Result<Transformed<LogicalPlan>> {
    if empty.produce_one_row {
        return not_impl_err!("a row without values that has columns");
    }
    let columns = empty.schema.iter().map(|(qualifier, field)| {
        let null = ScalarValue::try_from(field.data_type())?;
        let null = Expr::Literal(null, None);
        Ok(null.alias_qualified(qualifier.cloned(), field.name()))
    });
    let plan = LogicalPlanBuilder::empty(false)
        .project(columns.collect::<Result<Vec<_>>>()?)?
        .build()?;
    // What is below was made here.
    Ok(Transformed::new(plan, true, TreeNodeRecursion::Jump))
}
