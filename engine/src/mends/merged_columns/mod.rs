//! Columns that a join merges: `k` of `a LEFT JOIN b USING (k)`, and of `a NATURAL FULL JOIN b`.
//!
//! In SQL the result has such a column once, with the value of the side that has one. DataFusion 55 keeps both. For `*`
//! it takes the column of the alphabetically first table name; for `k` it takes the left one, even if it is NULL
//! because a row has no partner, and joins a third relation by it. So this module turns such a join into a relation of
//! its own, with the merged column in place of the left one. If a query also names a side's own column (`a.k`, `a.*`),
//! both columns stay, and `*` and `k` are refused where they would be wrong.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{Column, DFSchema, JoinType, plan_err};
use datafusion::error::Result;
use datafusion::functions::expr_fn::coalesce;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder, lit};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, Ident, Join, JoinConstraint, JoinOperator, OrderBy, Query, Select, SelectItem,
    SetExpr, TableAlias, TableFactor, TableWithJoins, Visit, Visitor,
};

use crate::mends::clauses::{Clause, Reading, refuse_if};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "merged_columns",
    wrong: "the column that `FULL JOIN … USING (k)` merges is the left side's, NULL for rows of the right",
    upstream: Upstream::Thread("apache/datafusion#22881"),
    query: include_str!("query.sql"),
    acts: &[
        Act::Clause(Clause::Query(query)),
        Act::Relations(|| Arc::new(MergedColumns)),
    ],
};

/// Internal alias of the relations that [`MergedColumns`] plans; a query cannot name them.
const MERGED: &str = "__merged";

/// Turns a query's joins that merge columns into relations.
fn query(query: &mut Query, reading: &Reading<'_>) -> Result<()> {
    selects(&mut query.body, query.order_by.as_ref(), &reading.names)
}

/// Does so in each `SELECT`; of several, none names the columns that the query orders by.
fn selects(body: &mut SetExpr, order: Option<&OrderBy>, names: &IdentNormalizer) -> Result<()> {
    match body {
        SetExpr::Select(part) => select(part, order, names),
        SetExpr::SetOperation { left, right, .. } => {
            selects(left, None, names)?;
            selects(right, None, names)
        }
        _ => Ok(()),
    }
}

fn select(select: &mut Select, order: Option<&OrderBy>, names: &IdentNormalizer) -> Result<()> {
    let mut joins = vec![];
    for relation in &select.from {
        merging(relation, &mut joins);
    }
    if joins.is_empty() {
        return Ok(());
    }
    let all_of_one = |item: &SelectItem| matches!(item, SelectItem::QualifiedWildcard(..));
    let mut named = Named {
        names,
        own: HashSet::new(),
        bare: HashSet::new(),
        has_all_of_one: select.projection.iter().any(all_of_one),
    };
    let _: ControlFlow<()> = select.visit(&mut named);
    if let Some(order) = order {
        let _: ControlFlow<()> = order.visit(&mut named);
    }
    if !joins.iter().any(|join| named.own_of(join)) {
        let from = std::mem::take(&mut select.from);
        select.from = from.into_iter().map(set_apart).collect();
        return Ok(());
    }
    let all = select.projection.iter();
    let has_all = all
        .clone()
        .any(|item| matches!(item, SelectItem::Wildcard(_)));
    for join in joins {
        let kind = join.kind;
        refuse_if(has_all && kind != JoinType::Inner, || {
            format!("* beside a side's own column that {join} merges: name the columns, or join ON")
        })?;
        let may_be_left = matches!(kind, JoinType::Inner | JoinType::Left);
        refuse_if(!may_be_left && named.merged_of(&join), || {
            format!("a column that {join} merges beside a side's own: name the side's, or join ON")
        })?;
    }
    Ok(())
}

/// Collects the joins that merge columns, also within parentheses.
fn merging(relation: &TableWithJoins, found: &mut Vec<Merging>) {
    let factors = relation.joins.iter().map(|join| &join.relation);
    for factor in std::iter::once(&relation.relation).chain(factors) {
        match factor {
            TableFactor::NestedJoin {
                table_with_joins, ..
            } if !is_merged(factor) => merging(table_with_joins, found),
            _ => {}
        }
    }
    found.extend(relation.joins.iter().filter_map(Merging::of));
}

fn is_merged(factor: &TableFactor) -> bool {
    matches!(factor, TableFactor::NestedJoin { alias: Some(alias), .. } if alias.name.value == MERGED)
}

/// Wraps each join that merges columns, with all before it, into a relation.
fn set_apart(relations: TableWithJoins) -> TableWithJoins {
    let TableWithJoins { relation, joins } = relations;
    let mut so_far = TableWithJoins {
        relation: set_apart_within(relation),
        joins: vec![],
    };
    for join in joins {
        let merges = Merging::of(&join).is_some();
        so_far.joins.push(Join {
            relation: set_apart_within(join.relation),
            ..join
        });
        if merges {
            let alias = TableAlias {
                explicit: false,
                name: Ident::new(MERGED),
                columns: vec![],
                at: None,
            };
            let relation = TableFactor::NestedJoin {
                table_with_joins: Box::new(so_far),
                alias: Some(alias),
            };
            so_far = TableWithJoins {
                relation,
                joins: vec![],
            };
        }
    }
    so_far
}

/// Does the same within parentheses.
fn set_apart_within(factor: TableFactor) -> TableFactor {
    let is_merged = is_merged(&factor);
    match factor {
        TableFactor::NestedJoin {
            table_with_joins,
            alias,
        } if !is_merged => TableFactor::NestedJoin {
            table_with_joins: Box::new(set_apart(*table_with_joins)),
            alias,
        },
        factor => factor,
    }
}

/// Join that merges columns.
struct Merging {
    kind: JoinType,
    /// Merged columns; `None` for all columns that both sides have.
    columns: Option<Vec<Ident>>,
    text: String,
}

impl Merging {
    fn of(join: &Join) -> Option<Self> {
        let (kind, constraint) = match &join.join_operator {
            JoinOperator::Join(constraint) | JoinOperator::Inner(constraint) => {
                (JoinType::Inner, constraint)
            }
            JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) => {
                (JoinType::Left, constraint)
            }
            JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => {
                (JoinType::Right, constraint)
            }
            JoinOperator::FullOuter(constraint) => (JoinType::Full, constraint),
            _ => return None,
        };
        let columns = match constraint {
            JoinConstraint::Using(columns) => {
                let columns = columns.iter().map(|column| match column.0.as_slice() {
                    [part] => part.as_ident().cloned(),
                    _ => None,
                });
                // A name of several parts is refused by the planner.
                Some(columns.collect::<Option<_>>()?)
            }
            JoinConstraint::Natural => None,
            JoinConstraint::On(_) | JoinConstraint::None => return None,
        };
        let text = join.to_string().trim().to_owned();
        Some(Self {
            kind,
            columns,
            text,
        })
    }
}

impl std::fmt::Display for Merging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Columns that a query names.
struct Named<'a> {
    names: &'a IdentNormalizer,
    /// Last parts of qualified names, `a.k`.
    own: HashSet<String>,
    /// Unqualified names.
    bare: HashSet<String>,
    /// True if all columns of one relation are selected, `a.*`.
    has_all_of_one: bool,
}

impl Named<'_> {
    /// Checks whether the query may name a side's own column that the join merges.
    fn own_of(&self, join: &Merging) -> bool {
        self.has_all_of_one || self.are_of(&self.own, join)
    }

    /// Checks whether the query may name the merged column.
    fn merged_of(&self, join: &Merging) -> bool {
        self.are_of(&self.bare, join)
    }

    fn are_of(&self, named: &HashSet<String>, join: &Merging) -> bool {
        match &join.columns {
            None => !named.is_empty(),
            Some(columns) => {
                let mut columns = columns.iter();
                columns.any(|column| named.contains(&self.names.normalize(column.clone())))
            }
        }
    }
}

impl Visitor for Named<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &SqlExpr) -> ControlFlow<()> {
        match expr {
            SqlExpr::Identifier(name) => {
                self.bare.insert(self.names.normalize(name.clone()));
            }
            SqlExpr::CompoundIdentifier(parts) => {
                // The first part is the relation; fields of a struct follow the column's name.
                let parts = parts.iter().skip(1).cloned();
                self.own
                    .extend(parts.map(|part| self.names.normalize(part)));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Planner of the joins that merge columns.
#[derive(Debug)]
struct MergedColumns;

impl RelationPlanner for MergedColumns {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        if !is_merged(&relation) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        let TableFactor::NestedJoin {
            table_with_joins: mut relations,
            ..
        } = relation
        else {
            return plan_err!("a join that is none");
        };
        let Some(join) = relations.joins.pop() else {
            return plan_err!("a join without its right side");
        };
        let Some(merging) = Merging::of(&join) else {
            return plan_err!("a join that merges nothing");
        };
        let left = match relations.joins.is_empty() {
            true => relations.relation,
            false => TableFactor::NestedJoin {
                table_with_joins: relations,
                alias: None,
            },
        };
        let left = context.plan(left)?;
        let right = context.plan(join.relation)?;
        let (of_left, of_right) = (left.schema().clone(), right.schema().clone());
        let names: Vec<String> = match merging.columns {
            Some(names) => {
                let names = names.into_iter();
                names.map(|name| context.normalize_ident(name)).collect()
            }
            None => {
                let names = of_left.fields().iter().map(|field| field.name());
                let common = names.filter(|name| of_right.has_column_with_unqualified_name(name));
                common.cloned().collect()
            }
        };
        let keys = names
            .iter()
            .map(|name| Ok((column(&of_left, name)?, column(&of_right, name)?)));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let joined = LogicalPlanBuilder::from(left);
        let joined = match keys.is_empty() {
            true => joined.join_on(right, merging.kind, [lit(true)])?,
            false => {
                let keys: (Vec<_>, Vec<_>) = keys.iter().cloned().unzip();
                joined.join(right, merging.kind, keys, None)?
            }
        };
        let merged = of_left.columns().into_iter().map(|column| {
            let key = keys.iter().find(|(left, _)| *left == column);
            let value = match (key, merging.kind) {
                (Some((_, right)), JoinType::Right) => Expr::Column(right.clone()),
                (Some((left, right)), JoinType::Full) => {
                    let sides = [left, right].map(|side| Expr::Column(side.clone()));
                    coalesce(sides.to_vec())
                }
                _ => return Expr::Column(column),
            };
            value.alias_qualified(column.relation, column.name)
        });
        let rest = of_right.columns().into_iter();
        let rest = rest.filter(|column| keys.iter().all(|(_, right)| right != column));
        let plan = joined.project(merged.chain(rest.map(Expr::Column)))?;
        let planned = PlannedRelation::new(plan.build()?, None);
        Ok(RelationPlanning::Planned(Box::new(planned)))
    }
}

/// Returns one side's column with this name.
fn column(schema: &DFSchema, name: &str) -> Result<Column> {
    let (qualifier, field) = schema.qualified_field_with_unqualified_name(name)?;
    Ok(Column::new(qualifier.cloned(), field.name()))
}
