//! Rewrite of `IN` with a subquery as `EXISTS`, where NULLs matter.
//!
//! In SQL's three-valued logic `x IN (SELECT y …)` is UNKNOWN (NULL) when no `y` is equal and a comparison is UNKNOWN.
//! DataFusion 55 supports this in one case only: a `NOT IN` that stands alone or beside others by `AND` becomes a
//! null-aware anti join, if it has one key and a *column* that may be NULL. With more keys it fails. If a computed
//! value may be NULL, and inside of `OR`, `CASE` or `IS NULL`, it treats UNKNOWN as false and silently returns wrong
//! rows. In these cases the rewrite tests whether a row's comparison is true, and whether one is UNKNOWN. It leaves
//! alone what DataFusion evaluates correctly: an `IN` for which NULL and false are equivalent, and values and columns
//! without NULLs.

use std::sync::Arc;

use datafusion::arrow::datatypes::Field;
use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ScalarValue, Spans, not_impl_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{BinaryExpr, Exists, InSubquery};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Distinct, Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Subquery,
    lit, not, when,
};
use datafusion::optimizer::OptimizerConfig;

use crate::mends::correlated_names::{on, outer_references};
use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "in_subqueries",
    wrong: "`IN` and `NOT IN` that are UNKNOWN count as false, where the subquery depends on the row, and beside `OR`",
    upstream: Upstream::Thread("apache/datafusion#25347"),
    query: include_str!("query.sql"),
    acts: &[Act::BeforeSent("decorrelate_predicate_subquery", || {
        top_down("in_subquery_to_exists", in_subquery_to_exists)
    })],
};

/// Rewrites `IN` subqueries of a filter as `EXISTS`, where UNKNOWN matters.
fn in_subquery_to_exists(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(Transformed::no(plan));
    };
    let outside = Arc::clone(filter.input.schema());
    let mut rewriting = Rewriting {
        outside: &outside,
        names: config.alias_generator(),
        computed: vec![],
    };
    let predicate = rewriting.condition(filter.predicate.clone(), Place::Conjunct)?;
    if marks(&predicate.data)? > 1 {
        return not_impl_err!(
            "not supported: several of IN and EXISTS inside of OR, NOT or another expression, beside a column of an \
             outer query: {}",
            filter.predicate
        );
    }
    if !predicate.transformed {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    if rewriting.computed.is_empty() {
        let filter = Filter::try_new(predicate.data, filter.input)?;
        return Ok(Transformed::yes(LogicalPlan::Filter(filter)));
    }
    let columns = || outside.columns().into_iter().map(Expr::Column);
    let computed = rewriting.computed.into_iter();
    let computed = computed.map(|(value, name)| value.alias(name));
    let kept = LogicalPlanBuilder::from(filter.input.as_ref().clone())
        .project(columns().chain(computed))?
        .filter(predicate.data)?
        .project(columns())?;
    Ok(Transformed::yes(kept.build()?))
}

/// Position of a condition in a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Alone, or beside others by `AND`: the engine turns it into a semi or an anti join.
    Conjunct,
    /// Inside of `OR`: UNKNOWN is equivalent to false.
    Disjunct,
    /// A position where UNKNOWN differs from false.
    Value,
}

/// Rewriter of one filter's condition.
struct Rewriting<'a> {
    /// Columns of the filtered rows.
    outside: &'a DFSchema,
    names: &'a AliasGenerator,
    /// Values to compute beside these columns, with their names.
    computed: Vec<(Expr, String)>,
}

impl Rewriting<'_> {
    fn condition(&mut self, condition: Expr, place: Place) -> Result<Transformed<Expr>> {
        match condition {
            Expr::BinaryExpr(BinaryExpr { left, op, right })
                if matches!(op, Operator::And | Operator::Or) && place != Place::Value =>
            {
                let place = match op {
                    Operator::And => place,
                    _ => Place::Disjunct,
                };
                let left = self.condition(*left, place)?;
                let right = self.condition(*right, place)?;
                let transformed = left.transformed || right.transformed;
                let (left, right) = (Box::new(left.data), Box::new(right.data));
                let both = Expr::BinaryExpr(BinaryExpr { left, op, right });
                Ok(Transformed::new(both, transformed, TreeNodeRecursion::Jump))
            }
            Expr::InSubquery(within) => self.within(within, place),
            Expr::Not(inner) if matches!(*inner, Expr::InSubquery(_)) => {
                let Expr::InSubquery(within) = *inner else {
                    unreachable!("it is one");
                };
                let negated = !within.negated;
                self.within(InSubquery { negated, ..within }, place)
            }
            // These treat UNKNOWN as false.
            Expr::IsTrue(inner) => {
                let inner = self.condition(*inner, Place::Disjunct)?;
                Ok(inner.update_data(|inner| Expr::IsTrue(Box::new(inner))))
            }
            Expr::IsNotTrue(inner) => {
                let inner = self.condition(*inner, Place::Disjunct)?;
                Ok(inner.update_data(|inner| Expr::IsNotTrue(Box::new(inner))))
            }
            Expr::Case(mut case) if case.expr.is_none() => {
                let mut transformed = false;
                let mut within = |of: &mut Box<Expr>, place| -> Result<()> {
                    let rewritten = self.condition(std::mem::take(of.as_mut()), place)?;
                    transformed |= rewritten.transformed;
                    **of = rewritten.data;
                    Ok(())
                };
                for (when, then) in &mut case.when_then_expr {
                    within(when, Place::Disjunct)?;
                    within(then, Place::Value)?;
                }
                if let Some(otherwise) = &mut case.else_expr {
                    within(otherwise, Place::Value)?;
                }
                let case = Expr::Case(case);
                Ok(Transformed::new(case, transformed, TreeNodeRecursion::Jump))
            }
            other => other.transform_down(|expr| match expr {
                Expr::InSubquery(within) => self.within(within, Place::Value),
                expr => Ok(Transformed::no(expr)),
            }),
        }
    }

    fn within(&mut self, within: InSubquery, place: Place) -> Result<Transformed<Expr>> {
        let as_it_is = |within| {
            let expr = Expr::InSubquery(within);
            Ok(Transformed::new(expr, false, TreeNodeRecursion::Jump))
        };
        let subquery = &within.subquery;
        let rows = subquery.subquery.schema();
        let Some(compared) = rows.columns().into_iter().next().map(Expr::Column) else {
            return as_it_is(within);
        };
        // The column does not tell whether the subquery's value may be NULL if it comes from a nested subquery.
        let parts = Parts::of(subquery);
        let has_null = match &parts {
            Some(parts) => may_be_null(&parts.compared, parts.rows.schema())?,
            None => may_be_null(&compared, rows)?,
        };
        let value_is_null = may_be_null(&within.expr, self.outside)?;
        let depends = !outer_references(&subquery.subquery).is_empty();
        let is_exact = place != Place::Value && !within.negated;
        let is_by_engine = place == Place::Conjunct
            && !depends
            && self.is_key(&within.expr)
            && (compared.nullable(rows)? || self.reads_nullable_columns(&within.expr)?);
        if is_exact || is_by_engine || !has_null && !value_is_null {
            return as_it_is(within);
        }
        let (Some(parts), Some(value)) = (parts, self.value(&within.expr)) else {
            return not_impl_err!(
                "not supported: {}IN a subquery that depends on the row below an aggregate, a limit or another query, or \
                 compared with a value of an outer query: NULLs would count as false; use EXISTS, or IS NOT NULL",
                if within.negated { "NOT " } else { "" }
            );
        };
        let known = Known {
            rows: parts.renamed(self.names)?,
            has_null,
            value,
            value_is_null,
        };
        let expr = match (place, within.negated) {
            (Place::Conjunct, _) => known.all_false()?,
            (Place::Disjunct, _) => {
                let found = known.equal()?;
                let found = known.unknown()?.into_iter().fold(found, Expr::or);
                not(found)
            }
            (Place::Value, negated) => {
                let mut within = when(known.equal()?, lit(true));
                for unknown in known.unknown()? {
                    within = within.when(unknown, lit(ScalarValue::Boolean(None)));
                }
                let within = within.otherwise(lit(false))?;
                if negated { not(within) } else { within }
            }
        };
        Ok(Transformed::new(expr, true, TreeNodeRecursion::Jump))
    }

    /// Checks whether the engine can join by the value. A value that reads no column is a condition on the subquery's
    /// rows alone, for which there is no null-aware join.
    fn is_key(&self, value: &Expr) -> bool {
        !value.column_refs().is_empty()
    }

    /// Checks whether the engine knows that the value may be NULL.
    fn reads_nullable_columns(&self, value: &Expr) -> Result<bool> {
        let mut columns = value.column_refs().into_iter();
        columns.try_fold(false, |found, column| {
            let (_, field) = self.outside.qualified_field_from_column(column)?;
            Ok(found || field.is_nullable())
        })
    }

    /// Returns a value as a subquery reads it, if it can; a scalar subquery's value is computed before.
    fn value(&mut self, value: &Expr) -> Option<Expr> {
        let is_of_others = |expr: &Expr| {
            Ok(matches!(
                expr,
                Expr::InSubquery(_)
                    | Expr::Exists(_)
                    | Expr::SetComparison(_)
                    | Expr::OuterReferenceColumn(..)
            ))
        };
        if value.exists(is_of_others).ok()? {
            return None;
        }
        if value
            .exists(|expr| Ok(matches!(expr, Expr::ScalarSubquery(_))))
            .ok()?
        {
            let name = self.names.next("__value");
            let (_, field) = value.to_field(self.outside).ok()?;
            self.computed.push((value.clone(), name.clone()));
            return Some(outer(
                field.as_ref().clone().with_name(&name),
                Column::new_unqualified(name),
            ));
        }
        let value = value.clone().transform_up(|expr| {
            let Expr::Column(column) = expr else {
                return Ok(Transformed::no(expr));
            };
            let (_, field) = self.outside.qualified_field_from_column(&column)?;
            Ok(Transformed::yes(outer(field.as_ref().clone(), column)))
        });
        value.data().ok()
    }
}

/// Counts subqueries that become mark joins in conditions that depend on an outer query: DataFusion 55 confuses these
/// marks when it pulls the conditions up.
fn marks(predicate: &Expr) -> Result<usize> {
    let mut all = 0;
    for condition in split_conjunction(predicate) {
        let asks = |expr: &Expr| matches!(expr, Expr::InSubquery(_) | Expr::Exists(_));
        let is_join = match condition {
            Expr::Not(inner) => asks(inner),
            condition => asks(condition),
        };
        if is_join
            || !condition.exists(|expr| Ok(matches!(expr, Expr::OuterReferenceColumn(..))))?
        {
            continue;
        }
        condition.apply(|expr| {
            all += usize::from(asks(expr));
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(all)
}

/// Builds a reference to a column of the outer query.
fn outer(field: Field, column: Column) -> Expr {
    Expr::OuterReferenceColumn(Arc::new(field.with_nullable(true)), column)
}

/// Checks whether a value may be NULL. A scalar subquery's may: it may have no row.
fn may_be_null(value: &Expr, rows: &DFSchema) -> Result<bool> {
    let asks = value.exists(|expr| Ok(matches!(expr, Expr::ScalarSubquery(_))))?;
    Ok(asks || value.nullable(rows)?)
}

/// Subquery that depends on the query's row only in its condition and its computed value, so that each of its rows is
/// independent of the others.
struct Parts {
    rows: LogicalPlan,
    condition: Option<Expr>,
    compared: Expr,
}

impl Parts {
    fn of(subquery: &Subquery) -> Option<Self> {
        let whole = |rows: &LogicalPlan| {
            Some(Self {
                rows: rows.clone(),
                condition: None,
                compared: Expr::Column(rows.schema().columns().into_iter().next()?),
            })
        };
        let plan = match subquery.subquery.as_ref() {
            // Duplicate rows change nothing.
            LogicalPlan::Distinct(Distinct::All(rows)) => rows.as_ref(),
            rows => rows,
        };
        // Take the value from the rows below: its alias could not be told from the columns that it depends on.
        let (rows, compared) = match plan {
            LogicalPlan::Projection(projection) => {
                let compared = projection.expr.first()?.clone().unalias();
                (projection.input.as_ref(), compared)
            }
            rows => (rows, whole(rows)?.compared),
        };
        let (rows, condition) = match rows {
            LogicalPlan::Filter(filter) => (filter.input.as_ref(), Some(filter.predicate.clone())),
            rows => (rows, None),
        };
        if outer_references(rows).is_empty() {
            return Some(Self {
                rows: rows.clone(),
                condition,
                compared,
            });
        }
        match outer_references(plan).is_empty() {
            true => whole(plan),
            false => None,
        }
    }

    /// Gives the columns unique names: the engine distinguishes a subquery's columns by their bare names, and does not
    /// distinguish them from the query's at all.
    fn renamed(self, names: &AliasGenerator) -> Result<Self> {
        let schema = Arc::clone(self.rows.schema());
        let new = |_: &_| Column::new_unqualified(names.next("__in"));
        let columns: Vec<_> = schema.fields().iter().map(new).collect();
        let renamed = |expr: Expr| on(expr, &schema, &columns);
        let condition = self.condition.map(renamed).transpose()?;
        let compared = renamed(self.compared)?;
        let named = schema.columns().into_iter().zip(&columns);
        let mut named: Vec<_> = named
            .map(|(column, new)| Expr::Column(column).alias(&new.name))
            .collect();
        if named.is_empty() {
            named.push(lit(true).alias(names.next("__in")));
        }
        Ok(Self {
            rows: LogicalPlanBuilder::from(self.rows)
                .project(named)?
                .build()?,
            condition,
            compared,
        })
    }

    /// Builds a test for a row that meets the condition `holds`.
    fn exists(&self, holds: Option<Expr>) -> Result<Exists> {
        let mut rows = LogicalPlanBuilder::from(self.rows.clone());
        if let Some(condition) = self
            .condition
            .iter()
            .cloned()
            .chain(holds)
            .reduce(Expr::and)
        {
            rows = rows.filter(condition)?;
        }
        let mut rows = rows.build()?;
        let outer_ref_columns = rows.all_out_ref_exprs();
        if outer_references(&rows).is_empty() {
            rows = LogicalPlanBuilder::from(rows).limit(0, Some(1))?.build()?;
        }
        Ok(Exists {
            subquery: Subquery {
                subquery: Arc::new(rows),
                outer_ref_columns,
                spans: Spans::new(),
            },
            negated: false,
        })
    }
}

/// Value, the rows that it is searched in, and the places of NULLs.
struct Known {
    rows: Parts,
    has_null: bool,
    value: Expr,
    value_is_null: bool,
}

impl Known {
    fn equality(&self) -> Expr {
        self.value.clone().eq(self.rows.compared.clone())
    }

    /// Tests that the comparison is false for all rows: one anti join.
    fn all_false(&self) -> Result<Expr> {
        let mut found = self.rows.exists(Some(self.equality().is_not_false()))?;
        found.negated = true;
        Ok(Expr::Exists(found))
    }

    /// Tests for a row that is equal.
    fn equal(&self) -> Result<Expr> {
        let equality = match self.rows.compared.column_refs().is_empty() {
            // The engine treats a value as equal to itself, even if it is NULL.
            true => self.equality().is_true(),
            false => self.equality(),
        };
        Ok(Expr::Exists(self.rows.exists(Some(equality))?))
    }

    /// Tests for a row whose comparison is UNKNOWN, one test per cause, so that each join keeps its keys.
    fn unknown(&self) -> Result<Vec<Expr>> {
        let mut unknown = vec![];
        if self.has_null {
            let is_null = self.rows.compared.clone().is_null();
            unknown.push(Expr::Exists(self.rows.exists(Some(is_null))?));
        }
        if self.value_is_null {
            let any = Expr::Exists(self.rows.exists(None)?);
            unknown.push(here(self.value.clone())?.is_null().and(any));
        }
        Ok(unknown)
    }
}

/// Converts a value from the subquery's view into the query's.
fn here(value: Expr) -> Result<Expr> {
    let value = value.transform_up(|expr| match expr {
        Expr::OuterReferenceColumn(_, column) => Ok(Transformed::yes(Expr::Column(column))),
        expr => Ok(Transformed::no(expr)),
    });
    value.data()
}
