//! Filters that are pushed down, kept from ending at another column of the same name.
//!
//! DataFusion 55's filter pushdown rules look up a filter's columns in an operator's input by name (`FilterRemapper`),
//! and names repeat above joins: a condition on one side's column is applied to the other side's, and rows are lost
//! without an error. So the rules run over a plan whose operators refuse the filters that they would misread; a refused
//! filter stays in place. Remove when a release looks up columns by position.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::internal_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinSide, JoinType};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::{ColumnIndex, build_join_schema};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, replace_children_if_necessary,
};

use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "filters",
    wrong: "a filter is asked of another column of the same name",
    upstream: Upstream::Thread("apache/datafusion#25244"),
    query: include_str!("query.sql"),
    acts: &[Act::Around(&FILTER_PUSHDOWN, keep_filters)],
};

type Plan = Arc<dyn ExecutionPlan>;

/// DataFusion's filter pushdown rules, which run before and after other rules.
pub(crate) const FILTER_PUSHDOWN: [&str; 2] = ["FilterPushdown", "FilterPushdown(Post)"];

/// Applies a rule so that filters reach only the columns that they are about.
pub(crate) fn keep_filters(
    rule: &dyn PhysicalOptimizerRule,
    plan: Plan,
    config: &ConfigOptions,
) -> Result<Plan> {
    let mark = |node: Plan| {
        let misreads = misreads(&node).iter().any(|misread| *misread);
        Ok(match misreads && !node.is::<Mark>() {
            true => Transformed::yes(Mark::misreading(node)),
            false => Transformed::no(node),
        })
    };
    let marked = plan.transform_up(mark).data()?;
    let unmark = |node: Plan| match node.downcast_ref::<Mark>() {
        Some(Mark { node, .. }) => Ok(Transformed::yes(Arc::clone(node))),
        None => Ok(Transformed::no(node)),
    };
    let optimized = rule.optimize(marked, config)?;
    optimized.transform_up(unmark).data()
}

/// Position of an operator's column in one of its inputs.
enum Source {
    At(usize),
    /// The column is computed.
    Nowhere,
    /// No filter on the column is pushed into that input.
    Other,
}

/// Returns for each column of an operator whether its name denotes another column where filters are pushed.
fn misreads(node: &Plan) -> Vec<bool> {
    let schema = node.schema();
    let names = || schema.fields().iter().map(|field| field.name().as_str());
    // A projection looks up names in its own columns, first for the first column of a name, then for the last.
    if node.is::<ProjectionExec>() {
        let mut counts = HashMap::new();
        names().for_each(|name| *counts.entry(name).or_insert(0) += 1);
        return names().map(|name| counts[name] > 1).collect();
    }
    let mut misreads = vec![false; schema.fields().len()];
    for (input, child) in node.children().into_iter().enumerate() {
        let child = child.schema();
        let mut found = HashMap::new();
        for (at, field) in child.fields().iter().enumerate() {
            found.entry(field.name().as_str()).or_insert(at);
        }
        let sources = sources(node, input);
        for ((at, name), misread) in names().enumerate().zip(&mut misreads) {
            *misread |= match (found.get(name), sources(at)) {
                (Some(found), Source::At(due)) => *found != due,
                (Some(_), Source::Nowhere) => true,
                (None, _) | (_, Source::Other) => false,
            };
        }
    }
    misreads
}

/// Returns the positions of an operator's columns in one of its inputs; the operator is not a projection.
fn sources(node: &Plan, input: usize) -> Box<dyn Fn(usize) -> Source + '_> {
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let (left, right) = (join.left().schema(), join.right().schema());
        let (_, columns) = build_join_schema(&left, &right, join.join_type());
        return Box::new(move |column| source_of_join(join, &columns, column, input));
    }
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        let keys = aggregate.group_expr().expr();
        return Box::new(move |column| match keys.get(column) {
            None => Source::Other,
            Some((key, _)) => match key.downcast_ref::<Column>() {
                Some(column) => Source::At(column.index()),
                None => Source::Nowhere,
            },
        });
    }
    let filter = node.downcast_ref::<FilterExec>();
    match filter.and_then(|filter| filter.projection().as_deref()) {
        Some(projection) => Box::new(move |column| {
            let at = projection.get(column);
            at.map_or(Source::Other, |at| Source::At(*at))
        }),
        // Other operators that let filters pass have the columns of their input.
        None => Box::new(Source::At),
    }
}

fn source_of_join(
    join: &HashJoinExec,
    columns: &[ColumnIndex],
    column: usize,
    input: usize,
) -> Source {
    let at = match &join.projection {
        Some(projection) => projection.get(column).copied(),
        None => Some(column),
    };
    let Some(of) = at.and_then(|at| columns.get(at)) else {
        return Source::Other;
    };
    let side = match input {
        0 => JoinSide::Left,
        _ => JoinSide::Right,
    };
    if of.side == side {
        return Source::At(of.index);
    }
    // A filter on a key of a semi join is also applied to the side that only decides which rows stay.
    let reads = |key: &Arc<dyn PhysicalExpr>| {
        let column = key.downcast_ref::<Column>();
        column.is_some_and(|column| column.index() == of.index)
    };
    let mut keys = join.on().iter();
    let other = match (join.join_type(), of.side) {
        (JoinType::LeftSemi, JoinSide::Left) => {
            keys.find(|(key, _)| reads(key)).map(|(_, other)| other)
        }
        (JoinType::RightSemi, JoinSide::Right) => {
            keys.find(|(_, key)| reads(key)).map(|(other, _)| other)
        }
        _ => None,
    };
    match other.map(|key| key.downcast_ref::<Column>()) {
        None => Source::Other,
        Some(None) => Source::Nowhere,
        Some(Some(column)) => Source::At(column.index()),
    }
}

/// Wraps an operator so that it neither produces a filter nor lets one pass, until the next filter pushdown rule has
/// run.
pub(crate) fn without_filters(node: Plan) -> Plan {
    let takes_none = true;
    Arc::new(Mark { node, takes_none })
}

/// Wrapper of an operator that refuses filters on misread columns, or all filters.
#[derive(Debug)]
struct Mark {
    node: Plan,
    takes_none: bool,
}

impl Mark {
    /// Wraps an operator that misreads filters. A filter operator with a projection absorbs what its input refuses, and
    /// looks that up by name as well, so it lets no filter pass.
    fn misreading(node: Plan) -> Plan {
        let filter = node.downcast_ref::<FilterExec>();
        let takes_none = filter.is_some_and(|filter| filter.projection().is_some());
        Arc::new(Self { node, takes_none })
    }
}

impl DisplayAs for Mark {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mark")
    }
}

impl ExecutionPlan for Mark {
    fn name(&self) -> &str {
        "Mark"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.node.properties()
    }

    fn children(&self) -> Vec<&Plan> {
        self.node.children()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.node.maintains_input_order()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.node.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let node = replace_children_if_necessary(Arc::clone(&self.node), children)?;
        let takes_none = self.takes_none;
        Ok(Arc::new(Self { node, takes_none }))
    }

    fn gather_filters_for_pushdown(
        &self,
        phase: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterDescription> {
        if self.takes_none {
            let children = self.children();
            return Ok(FilterDescription::all_unsupported(
                &parent_filters,
                &children,
            ));
        }
        let misreads = misreads(&self.node);
        let filters = parent_filters.into_iter().map(|filter| {
            let columns = collect_columns(&filter);
            let is_misread = |column: &Column| misreads.get(column.index()) == Some(&true);
            match columns.iter().any(is_misread) {
                // A filter on a column that the operator does not have is pushed to no input, and keeps its place in
                // the list.
                true => Arc::new(Column::new("", usize::MAX)) as Arc<dyn PhysicalExpr>,
                false => filter,
            }
        });
        let filters = filters.collect();
        self.node
            .gather_filters_for_pushdown(phase, filters, config)
    }

    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Plan>> {
        match self.takes_none {
            true => Ok(FilterPushdownPropagation::if_all(result)),
            false => self
                .node
                .handle_child_pushdown_result(phase, result, config),
        }
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("a mark is no operator")
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, lit};
    use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
    use datafusion::physical_plan::displayable;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::rules::physical::around;

    /// Returns a filter over a relation.
    fn filtered(input: Plan, column: Column) -> Plan {
        let left = Arc::new(column);
        let over = binary(left, Operator::Gt, lit(5), &input.schema()).unwrap();
        Arc::new(FilterExec::try_new(over, input).unwrap())
    }

    /// Returns two columns of one name; the second is the relation's first.
    fn named_alike() -> Plan {
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int32, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let rows = filtered(
            Arc::new(EmptyExec::new(Arc::clone(&schema))),
            Column::new("b", 1),
        );
        let columns = ["b", "a"].map(|name| (col(name, &schema).unwrap(), "v".to_owned()));
        Arc::new(ProjectionExec::try_new(columns, rows).unwrap())
    }

    fn pushed(rule: &dyn PhysicalOptimizerRule, plan: Plan) -> String {
        let plan = rule.optimize(plan, &ConfigOptions::new()).unwrap();
        displayable(plan.as_ref()).indent(false).to_string()
    }

    #[test]
    fn a_filter_on_one_column_of_a_name_is_not_asked_of_another() {
        let plan = filtered(named_alike(), Column::new("v", 0));
        // While this holds, the mend is needed.
        let spoiled = pushed(&FilterPushdown::new(), Arc::clone(&plan));
        assert!(spoiled.contains("a@0 > 5"), "{spoiled}");
        let kept = pushed(
            around(Arc::new(FilterPushdown::new()), keep_filters).as_ref(),
            plan,
        );
        assert!(
            kept.starts_with("FilterExec: v@0 > 5") && !kept.contains("a@0 > 5"),
            "{kept}"
        );
        assert!(!kept.contains("Mark"), "{kept}");
    }

    #[test]
    fn a_filter_on_a_name_that_is_one_columns_is_pushed_down() {
        let input = filtered(named_alike(), Column::new("v", 1));
        let columns = [(col("v", &input.schema()).unwrap(), "x".to_owned())];
        let only: Plan = Arc::new(ProjectionExec::try_new(columns, input).unwrap());
        let plan = filtered(only, Column::new("x", 0));
        let kept = pushed(
            around(Arc::new(FilterPushdown::new()), keep_filters).as_ref(),
            plan,
        );
        assert!(kept.contains("v@0 > 5"), "{kept}");
    }
}
