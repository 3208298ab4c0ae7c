//! A tree of inner joins put together in another order.
//!
//! A condition is checked at the first join that has all its columns. Columns that nothing above reads are dropped at
//! once. The smaller side of a join becomes its left side, which is hashed unless a later rule decides otherwise.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::{JoinSide, JoinType, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::physical_expr::conjunction;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExecBuilder, NestedLoopJoinExec};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};

use super::flatten::{JoinTree, numbered};
use super::graph::{Set, Tree, only};
use super::sizes::Sizes;

type Plan = Arc<dyn ExecutionPlan>;
type Expr = Arc<dyn PhysicalExpr>;

/// Rebuilds the tree in another order, with the same output columns under the same names.
pub(super) fn rebuild(
    tree: &JoinTree,
    sizes: &mut Sizes<'_>,
    order: &Tree,
    names: &Schema,
) -> Result<Plan> {
    let built = Rebuild { tree, sizes }.build(order)?;
    let output = tree.output.iter().zip(names.fields());
    let output = output.map(|(column, field)| {
        let expr = built.column(*column)?;
        let alias = field.name().clone();
        Ok(ProjectionExpr { expr, alias })
    });
    let output = output.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(output, built.plan)?))
}

/// Part of the new plan, with the numbers of its columns.
struct Built {
    plan: Plan,
    columns: Vec<usize>,
    set: Set,
}

impl Built {
    fn index(&self, column: usize) -> Option<usize> {
        self.columns.iter().position(|own| *own == column)
    }

    fn column(&self, column: usize) -> Result<Expr> {
        let at = self.index(column);
        let at = at.ok_or_else(|| internal_datafusion_err!("column {column} was dropped"))?;
        let schema = self.plan.schema();
        Ok(Arc::new(Column::new(schema.field(at).name(), at)))
    }
}

struct Rebuild<'t, 's, 'g> {
    tree: &'t JoinTree,
    sizes: &'s mut Sizes<'g>,
}

impl Rebuild<'_, '_, '_> {
    fn build(&mut self, order: &Tree) -> Result<Built> {
        match order {
            Tree::Relation(relation) => self.relation(*relation),
            Tree::Join(left, right) => {
                let (left, right) = (self.build(left)?, self.build(right)?);
                let sizes = &mut self.sizes;
                match sizes.rows(left.set) <= sizes.rows(right.set) {
                    true => self.join(&left, &right),
                    false => self.join(&right, &left),
                }
            }
        }
    }

    fn relation(&self, relation: usize) -> Result<Built> {
        let set = only(relation);
        let columns = self.tree.columns_of(relation);
        let conditions = self.tree.filters.iter();
        let conditions = conditions.filter(|(relations, _)| *relations == set);
        let own = |(_, condition): &(Set, Expr)| {
            numbered(condition, |column| column.checked_sub(columns.start))
        };
        let conditions = conditions.map(own).collect::<Result<Vec<_>>>()?;
        let plan = Arc::clone(&self.tree.relations[relation]);
        let plan = match conditions.is_empty() {
            true => plan,
            false => Arc::new(FilterExec::try_new(conjunction(conditions), plan)?),
        };
        let columns = columns.collect();
        Ok(Built { plan, columns, set })
    }

    fn join(&self, left: &Built, right: &Built) -> Result<Built> {
        let set = left.set | right.set;
        let mut on = Vec::new();
        for class in &self.tree.classes {
            if let (Some(a), Some(b)) =
                (self.member(class, left.set), self.member(class, right.set))
            {
                on.push((left.column(a)?, right.column(b)?));
            }
        }
        let filter = self.filter(left, right)?;
        let columns: Vec<_> = left.columns.iter().chain(&right.columns).copied().collect();
        let needed = self.needed(set);
        let mut kept: Vec<_> = (0..columns.len())
            .filter(|at| needed.contains(&columns[*at]))
            .collect();
        if kept.is_empty() && !columns.is_empty() {
            // Rows are counted by a column, if there is one.
            kept.push(0);
        }
        let columns = kept.iter().map(|at| columns[*at]).collect();
        let sides = (Arc::clone(&left.plan), Arc::clone(&right.plan));
        let plan: Plan = if !on.is_empty() {
            HashJoinExecBuilder::new(sides.0, sides.1, on, JoinType::Inner)
                .with_partition_mode(self.tree.mode)
                .with_filter(filter)
                .with_projection(Some(kept))
                .build_exec()?
        } else if filter.is_some() {
            let inner = JoinType::Inner;
            Arc::new(NestedLoopJoinExec::try_new(
                sides.0,
                sides.1,
                filter,
                &inner,
                Some(kept),
            )?)
        } else {
            let product: Plan = Arc::new(CrossJoinExec::new(sides.0, sides.1));
            let schema = product.schema();
            let column = |at: usize| ProjectionExpr {
                expr: Arc::new(Column::new(schema.field(at).name(), at)),
                alias: schema.field(at).name().clone(),
            };
            let kept: Vec<_> = kept.into_iter().map(column).collect();
            Arc::new(ProjectionExec::try_new(kept, product)?)
        };
        Ok(Built { plan, columns, set })
    }

    /// Builds the filter of the conditions that read both sides.
    fn filter(&self, left: &Built, right: &Built) -> Result<Option<JoinFilter>> {
        let joins = |relations: Set| {
            let within = |set: Set| relations & !set == 0;
            within(left.set | right.set) && !within(left.set) && !within(right.set)
        };
        let conditions = self.tree.filters.iter();
        let conditions = conditions.filter(|(relations, _)| joins(*relations));
        let conditions: Vec<_> = conditions.map(|(_, condition)| condition).collect();
        if conditions.is_empty() {
            return Ok(None);
        }
        let read = conditions.iter().copied().flat_map(collect_columns);
        let read: BTreeSet<_> = read.map(|column| column.index()).collect();
        let read: Vec<_> = read.into_iter().collect();
        let place = |column: &usize| {
            let sides = [(left, JoinSide::Left), (right, JoinSide::Right)];
            let mut sides = sides.into_iter();
            let found = sides.find_map(|(built, side)| {
                let index = built.index(*column)?;
                Some(ColumnIndex { index, side })
            });
            found.ok_or_else(|| internal_datafusion_err!("column {column} was dropped"))
        };
        let places = read.iter().map(place).collect::<Result<Vec<_>>>()?;
        let fields = read
            .iter()
            .map(|column| Arc::clone(&self.tree.columns[*column]));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let conditions = conditions.into_iter();
        let conditions = conditions
            .map(|condition| numbered(condition, |column| read.binary_search(&column).ok()));
        let condition = conjunction(conditions.collect::<Result<Vec<_>>>()?);
        Ok(Some(JoinFilter::new(condition, places, Arc::new(schema))))
    }

    /// Returns the member of a class that represents all its members in a set of relations.
    fn member(&self, class: &[usize], set: Set) -> Option<usize> {
        let mut class = class.iter().copied();
        class.find(|column| only(self.tree.relation(*column)) & set != 0)
    }

    /// Returns the columns of a set of relations that are read above their join.
    fn needed(&self, set: Set) -> BTreeSet<usize> {
        let within = |column: &usize| only(self.tree.relation(*column)) & set != 0;
        let mut needed: BTreeSet<_> = self.tree.output.iter().copied().filter(within).collect();
        for class in &self.tree.classes {
            if !class.iter().all(within) {
                needed.extend(self.member(class, set));
            }
        }
        for (relations, condition) in &self.tree.filters {
            if relations & !set != 0 {
                let read = collect_columns(condition).into_iter();
                needed.extend(read.map(|column| column.index()).filter(within));
            }
        }
        needed
    }
}
