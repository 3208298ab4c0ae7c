//! The graph of a join tree, from the engine's statistics.
//!
//! Parquet files record their number of rows, and the minimum and maximum of each column: an integer or date column has
//! at most as many values as its range. The rows that pass a relation's own filters are estimated by `selectivity`.
//!
//! The number of values is unknown for text columns, and for all columns of text files. Such a column is assumed to
//! have as many values as a column that it must equal; if that is unknown too, the equality is assumed to drop no rows,
//! and no order is searched for that needs it as a key.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::flatten::JoinTree;
use super::graph::{Class, Filter, Graph, Relation, Values};
use crate::planning::selectivity::{CONDITION, EQUALITY};

type Plan = Arc<dyn ExecutionPlan>;

/// Builds the graph, if the rows of all relations of the tree are known or estimated.
pub(super) fn graph(tree: &JoinTree) -> Result<Option<Graph>> {
    let statistics = StatisticsContext::new();
    let compute = |plan: &Plan| statistics.compute(plan.as_ref(), &StatisticsArgs::new());
    let mut relations = Vec::new();
    let mut known = Vec::new();
    for plan in &tree.relations {
        let all = unfiltered(plan).0;
        let (after, before) = (compute(plan)?, compute(all)?);
        let (Some(rows), Some(unfiltered)) = (rows(&after), rows(&before)) else {
            return Ok(None);
        };
        relations.push(Relation { rows, unfiltered });
        known.push((after, before));
    }
    let before = |column: usize| {
        let (relation, at) = tree.place(column);
        let (after, before) = &known[relation];
        let (_, columns) = unfiltered(&tree.relations[relation]);
        let below = columns.get(&at).map(|at| &before.column_statistics[*at]);
        below.unwrap_or(&after.column_statistics[at])
    };
    let classes = tree.classes.iter().filter_map(|columns| {
        // The count of the member with the most values: it is the key of its relation, and the others refer to it.
        let counts = columns.iter().filter_map(|column| {
            let rows = relations[tree.relation(*column)].unfiltered;
            distinct(before(*column), rows)
        });
        let most = counts.max_by(f64::total_cmp)?;
        let values = |column: usize| {
            let (relation, at) = tree.place(column);
            let of = relations[relation];
            let before = before(column);
            let count = distinct(before, of.unfiltered);
            let unfiltered = count.unwrap_or(most.min(of.unfiltered));
            let after = distinct(&known[relation].0.column_statistics[at], of.rows);
            Values {
                distinct: after.unwrap_or(unfiltered.min(of.rows)),
                unfiltered,
                range: range(before),
            }
        };
        let members = columns.iter();
        let members = members.map(|column| (tree.relation(*column), values(*column)));
        Some(Class {
            members: members.collect(),
        })
    });
    let classes: Vec<_> = classes.collect();
    let filters = tree.filters.iter().map(|(relations, condition)| Filter {
        relations: *relations,
        selectivity: selectivity(condition),
    });
    let graph = Graph {
        relations: relations.clone(),
        filters: filters.collect(),
        classes,
    };
    let complete = graph.classes.len() == tree.classes.len() || graph.is_keyed();
    Ok(complete.then_some(graph))
}

fn rows(statistics: &Statistics) -> Option<f64> {
    let rows = statistics.num_rows.get_value();
    rows.map(|rows| (*rows as f64).max(1.0))
}

/// Returns the plan below a relation's filters and projections, and a map from its columns to the columns there.
pub(super) fn unfiltered(plan: &Plan) -> (&Plan, HashMap<usize, usize>) {
    let (input, columns): (_, Vec<_>) = if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let columns = match filter.projection().as_ref() {
            Some(projection) => projection.iter().copied().map(Some).collect(),
            None => (0..plan.schema().fields().len()).map(Some).collect(),
        };
        (filter.input(), columns)
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let columns = projection.expr().iter();
        let columns = columns.map(|column| column.expr.downcast_ref().map(Column::index));
        (projection.input(), columns.collect())
    } else {
        let columns = 0..plan.schema().fields().len();
        return (plan, columns.map(|column| (column, column)).collect());
    };
    let (input, below) = unfiltered(input);
    let columns = columns.into_iter().enumerate();
    let columns = columns.filter_map(|(at, column)| Some((at, *below.get(&column?)?)));
    (input, columns.collect())
}

/// Returns the number of values of a column, if anything is known about it.
pub(super) fn distinct(column: &ColumnStatistics, rows: f64) -> Option<f64> {
    let counted = column.distinct_count.get_value();
    let counted = counted
        .map(|count| *count as f64)
        .filter(|count| *count > 0.0);
    let between = range(column).map(|(least, greatest)| greatest - least + 1.0);
    let count = match (counted, between) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    count.map(|count| count.min(rows).max(1.0))
}

/// Returns the minimum and maximum of a column of integers or dates.
fn range(column: &ColumnStatistics) -> Option<(f64, f64)> {
    let least = whole(column.min_value.get_value()?)?;
    let greatest = whole(column.max_value.get_value()?)?;
    (least <= greatest).then_some((least, greatest))
}

/// Converts a value of a discrete type, in which a difference counts the values in between.
fn whole(value: &ScalarValue) -> Option<f64> {
    Some(match value {
        ScalarValue::Int8(value) => f64::from((*value)?),
        ScalarValue::Int16(value) => f64::from((*value)?),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => f64::from((*value)?),
        ScalarValue::Int64(value) => (*value)? as f64,
        ScalarValue::UInt8(value) => f64::from((*value)?),
        ScalarValue::UInt16(value) => f64::from((*value)?),
        ScalarValue::UInt32(value) => f64::from((*value)?),
        ScalarValue::UInt64(value) => (*value)? as f64,
        _ => return None,
    })
}

fn selectivity(condition: &Arc<dyn PhysicalExpr>) -> f64 {
    let binary = condition.downcast_ref::<BinaryExpr>();
    match binary.is_some_and(|binary| *binary.op() == Operator::Eq) {
        true => EQUALITY,
        false => CONDITION,
    }
}
