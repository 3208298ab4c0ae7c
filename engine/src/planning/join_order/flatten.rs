//! A tree of inner joins taken apart: its relations, join conditions and output columns.
//!
//! Columns are numbered across all relations, in the order in which the relations occur in the plan. That number
//! denotes a column, in expressions too, until the tree is [rebuilt](super::rebuild).

use std::sync::Arc;

use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, NullEquality, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, PhysicalExpr, replace_children_if_necessary,
};

use super::classes::classes;
use super::graph::{Set, Tree, only};

type Plan = Arc<dyn ExecutionPlan>;
type Expr = Arc<dyn PhysicalExpr>;

/// Tree of inner joins, taken apart.
#[derive(Debug)]
pub(super) struct JoinTree {
    pub(super) relations: Vec<Plan>,
    /// Columns of all relations.
    pub(super) columns: Vec<FieldRef>,
    /// Number of the first column of each relation.
    starts: Vec<usize>,
    /// Classes of columns that are equal in every output row.
    pub(super) classes: Vec<Vec<usize>>,
    /// Other conditions, each with the relations whose columns it reads.
    pub(super) filters: Vec<(Set, Expr)>,
    /// Output columns.
    pub(super) output: Vec<usize>,
    /// Order of joins in the plan.
    pub(super) order: Tree,
    /// Partition mode of the plan's joins.
    pub(super) mode: PartitionMode,
}

impl JoinTree {
    /// Returns the relation of a column.
    pub(super) fn relation(&self, column: usize) -> usize {
        self.starts.partition_point(|start| *start <= column) - 1
    }

    /// Returns the columns of a relation.
    pub(super) fn columns_of(&self, relation: usize) -> std::ops::Range<usize> {
        let end = self.starts.get(relation + 1).copied();
        self.starts[relation]..end.unwrap_or(self.columns.len())
    }

    /// Returns the relation of a column, and its index there.
    pub(super) fn place(&self, column: usize) -> (usize, usize) {
        let relation = self.relation(column);
        (relation, column - self.starts[relation])
    }

    /// Returns the index in a relation of a column that equals another in every output row.
    pub(super) fn equal_in(&self, relation: usize, column: usize) -> Option<usize> {
        let mut classes = self.classes.iter();
        let class = classes.find(|class| class.contains(&column));
        let equal = class.map_or(&[][..], Vec::as_slice).iter();
        let mut equal = [column].into_iter().chain(equal.copied());
        let found = equal.find(|column| self.relation(*column) == relation);
        found.map(|column| self.place(column).1)
    }
}

/// Operator within a tree.
enum Part<'a> {
    Hash(&'a HashJoinExec),
    Loop(&'a NestedLoopJoinExec),
    Cross(&'a CrossJoinExec),
    Projection(&'a ProjectionExec),
    Filter(&'a FilterExec),
}

/// Checks whether a plan is a tree of inner joins, or a filter or projection of one.
pub(super) fn is_join(plan: &Plan) -> bool {
    part(plan).is_some()
}

fn part(plan: &Plan) -> Option<Part<'_>> {
    if plan.fetch().is_some() || plan.boundedness().is_unbounded() {
        return None;
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let schemas = (join.left().schema(), join.right().schema());
        let same_type = |(a, b): &(Expr, Expr)| {
            let pair = a.downcast_ref::<Column>().zip(b.downcast_ref::<Column>());
            pair.is_some_and(|(a, b)| {
                let left = schemas.0.field(a.index()).data_type();
                left == schemas.1.field(b.index()).data_type()
            })
        };
        let inner = *join.join_type() == JoinType::Inner
            && join.null_equality() == NullEquality::NullEqualsNothing
            && join.dynamic_expressions_produced().is_empty()
            && join.on().iter().all(same_type)
            && join
                .filter()
                .is_none_or(|filter| movable(filter.expression()));
        inner.then_some(Part::Hash(join))
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        let movable = join
            .filter()
            .is_none_or(|filter| movable(filter.expression()));
        (*join.join_type() == JoinType::Inner && movable).then_some(Part::Loop(join))
    } else if let Some(join) = plan.downcast_ref::<CrossJoinExec>() {
        Some(Part::Cross(join))
    } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut columns = projection.expr().iter();
        let columns = columns.all(|column| column.expr.is::<Column>());
        (columns && is_join(projection.input())).then_some(Part::Projection(projection))
    } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let within = movable(filter.predicate()) && is_join(filter.input());
        within.then_some(Part::Filter(filter))
    } else {
        None
    }
}

/// Checks whether a condition can be evaluated at another join: it reads columns, and is not volatile.
fn movable(condition: &Expr) -> bool {
    let volatile = condition.exists(|node| Ok(node.is_volatile_node()));
    let mut each = split_conjunction(condition).into_iter();
    !volatile.unwrap_or(true) && each.all(|condition| !collect_columns(condition).is_empty())
}

/// Takes apart a plan that [is a join](is_join).
pub(super) fn flatten(plan: &Plan) -> Result<JoinTree> {
    let mut flat = Flat::default();
    let (output, order) = flat.add(plan)?;
    let mut tree = JoinTree {
        relations: flat.relations,
        columns: flat.columns,
        starts: flat.starts,
        classes: Vec::new(),
        filters: Vec::new(),
        output,
        order,
        mode: flat.mode.unwrap_or(PartitionMode::Auto),
    };
    tree.classes = classes(&flat.equal, |column| tree.relation(column));
    for condition in flat.filters {
        let read = collect_columns(&condition);
        let relations = read
            .iter()
            .map(|column| only(tree.relation(column.index())));
        let relations = relations.fold(0, |set, relation| set | relation);
        tree.filters.push((relations, condition));
    }
    Ok(tree)
}

/// Parts that have been taken apart so far.
#[derive(Default)]
struct Flat {
    relations: Vec<Plan>,
    columns: Vec<FieldRef>,
    starts: Vec<usize>,
    equal: Vec<(usize, usize)>,
    filters: Vec<Expr>,
    mode: Option<PartitionMode>,
}

impl Flat {
    /// Adds the relations and conditions of a plan, and returns its output columns and its order of joins.
    fn add(&mut self, plan: &Plan) -> Result<(Vec<usize>, Tree)> {
        Ok(match part(plan) {
            None => {
                let start = self.columns.len();
                self.starts.push(start);
                self.columns.extend(plan.schema().fields().iter().cloned());
                self.relations.push(Arc::clone(plan));
                let relation = Tree::Relation(self.relations.len() - 1);
                ((start..self.columns.len()).collect(), relation)
            }
            Some(Part::Hash(join)) => {
                let (left, right, tree) = self.add_both(join.left(), join.right())?;
                self.mode.get_or_insert(*join.partition_mode());
                for (a, b) in join.on() {
                    self.equal.push((number(a, &left)?, number(b, &right)?));
                }
                self.add_filter(join.filter(), &left, &right)?;
                (project(left, right, join.projection.as_deref()), tree)
            }
            Some(Part::Loop(join)) => {
                let (left, right, tree) = self.add_both(join.left(), join.right())?;
                self.add_filter(join.filter(), &left, &right)?;
                let projection = join.projection().as_ref();
                (project(left, right, projection.map(AsRef::as_ref)), tree)
            }
            Some(Part::Cross(join)) => {
                let (left, right, tree) = self.add_both(join.left(), join.right())?;
                (project(left, right, None), tree)
            }
            Some(Part::Projection(projection)) => {
                let (columns, tree) = self.add(projection.input())?;
                let output = projection.expr().iter();
                let output = output.map(|column| number(&column.expr, &columns));
                (output.collect::<Result<_>>()?, tree)
            }
            Some(Part::Filter(filter)) => {
                let (columns, tree) = self.add(filter.input())?;
                for condition in split_conjunction(filter.predicate()) {
                    self.filters
                        .push(numbered(condition, |at| columns.get(at).copied())?);
                }
                let projection = filter.projection().as_ref();
                let output = project(columns, Vec::new(), projection.map(AsRef::as_ref));
                (output, tree)
            }
        })
    }

    fn add_both(&mut self, left: &Plan, right: &Plan) -> Result<(Vec<usize>, Vec<usize>, Tree)> {
        let (left, left_tree) = self.add(left)?;
        let (right, right_tree) = self.add(right)?;
        Ok((left, right, Tree::join(left_tree, right_tree)))
    }

    fn add_filter(
        &mut self,
        filter: Option<&JoinFilter>,
        left: &[usize],
        right: &[usize],
    ) -> Result<()> {
        let Some(filter) = filter else {
            return Ok(());
        };
        let column = |at: usize| {
            let of = filter.column_indices().get(at)?;
            let side = if of.side == JoinSide::Left {
                left
            } else {
                right
            };
            side.get(of.index).copied()
        };
        for condition in split_conjunction(filter.expression()) {
            self.filters.push(numbered(condition, column)?);
        }
        Ok(())
    }
}

/// Returns the output columns of a join.
fn project(left: Vec<usize>, right: Vec<usize>, projection: Option<&[usize]>) -> Vec<usize> {
    let columns: Vec<_> = left.into_iter().chain(right).collect();
    match projection {
        None => columns,
        Some(projection) => projection.iter().map(|at| columns[*at]).collect(),
    }
}

/// Returns the number of a column, given those of its input.
fn number(column: &Expr, columns: &[usize]) -> Result<usize> {
    let column = column.downcast_ref::<Column>();
    let number = column.and_then(|column| columns.get(column.index()));
    let number = number.ok_or_else(|| internal_datafusion_err!("{column:?} is not in its input"));
    number.copied()
}

/// Replaces the indexes of an expression's columns.
pub(super) fn numbered(expr: &Expr, index: impl Fn(usize) -> Option<usize>) -> Result<Expr> {
    let renumber = |node: Expr| -> Result<_> {
        let Some(column) = node.downcast_ref::<Column>() else {
            return Ok(Transformed::no(node));
        };
        let found = index(column.index());
        let found = found.ok_or_else(|| internal_datafusion_err!("{column} is not in its input"));
        Ok(Transformed::yes(
            Arc::new(Column::new(column.name(), found?)) as Expr,
        ))
    };
    Arc::clone(expr).transform_up(renumber).data()
}

/// Replaces the relations of a tree, in order, by plans with the same columns.
pub(super) fn replace_relations(
    plan: &Plan,
    relations: &mut impl Iterator<Item = Plan>,
) -> Result<Plan> {
    if !is_join(plan) {
        let next = relations.next();
        return next
            .ok_or_else(|| internal_datafusion_err!("a tree has more relations than before"));
    }
    let children = plan.children().into_iter();
    let children = children.map(|child| replace_relations(child, relations));
    let children = children.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(plan), children)
}
