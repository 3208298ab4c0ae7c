//! Normalization of syntax trees: clauses that DataFusion's planner ignores are rewritten as equivalent ones, or
//! refused by name.
//!
//! DataFusion 55 parses some clauses and ignores them in planning: in `OVER (w ORDER BY x)` the definition of `w`, in
//! `GROUP BY a WITH ROLLUP` the totals, and `TABLESAMPLE`, which returns all rows. This module visits a statement
//! before it is planned. It destructures the parser's types with all fields, so that a field added by a new version
//! fails to compile. It does not handle clauses that the planner itself refuses.
//!
//! ```text
//! windows   OVER w, OVER (w …), WINDOW w AS (v …)             ─► OVER (the full definition)
//! groups    (a, b), WITH ROLLUP, WITH CUBE, ROLLUP (1, 2)     ─► a, b, ROLLUP (a, b), …
//! queries   FETCH FIRST n ROWS ONLY, FROM t, SEMI JOIN        ─► LIMIT n, SELECT * FROM t, LEFT SEMI JOIN
//! distinct_from x IS DISTINCT FROM (y AND z), implied parentheses ─► (x IS DISTINCT FROM y) AND z
//! patterns  SIMILAR TO 'a%'                                   ─► ~ '^(?s:a.*)$'
//! merged    a LEFT JOIN b USING (k)                           ─► a relation with one column k
//! relations TABLESAMPLE, WITH ORDINALITY, …                   ─► not supported
//! functions abs(DISTINCT x), upper(x) OVER ()                 ─► not supported
//! definitions COLLATE, GENERATED, DROP TABLE … CASCADE, …     ─► not supported
//! ```

mod definitions;
mod distinct_from;
mod functions;
mod groups;
mod merged;
mod patterns;
mod queries;
mod relations;
#[cfg(test)]
mod tests;
mod windows;

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement as DfStatement};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    Expr, Query, Select, SetExpr, Statement, TableFactor, VisitMut, VisitorMut,
};

pub(crate) use merged::MergedColumns;

use crate::{Error, Result};

/// Session settings for the normalization of clauses.
pub(crate) struct Reading<'a> {
    /// Normalizer of names.
    pub(crate) names: IdentNormalizer,
    /// Predicate for scalar functions, which compute each row by itself.
    pub(crate) is_scalar: &'a dyn Fn(&str) -> bool,
}

/// Rewrites a statement's clauses as clauses that the planner supports.
///
/// # Errors
/// [`Error::NotSupported`] and [`Error::Clause`] for clauses without an equivalent.
pub(crate) fn normalize(statement: &mut DfStatement, reading: &Reading<'_>) -> Result<()> {
    let mut clauses = Clauses {
        reading,
        has_order: vec![],
    };
    match clauses.statement(statement) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Visitor that normalizes a statement.
struct Clauses<'a> {
    reading: &'a Reading<'a>,
    /// Enclosing queries: true for a single `SELECT`, whose columns the query's `ORDER BY` names.
    has_order: Vec<bool>,
}

impl Clauses<'_> {
    fn statement(&mut self, statement: &mut DfStatement) -> ControlFlow<Error> {
        match statement {
            DfStatement::Statement(statement) => statement.visit(self),
            DfStatement::Explain(explain) => self.statement(&mut explain.statement),
            DfStatement::CopyTo(copy) => match &mut copy.source {
                CopyToSource::Query(query) => query.visit(self),
                CopyToSource::Relation(_) => ControlFlow::Continue(()),
            },
            DfStatement::CreateExternalTable(table) => or_break(definitions::check(&table.columns)),
            DfStatement::Reset(_) => ControlFlow::Continue(()),
        }
    }
}

impl VisitorMut for Clauses<'_> {
    type Break = Error;

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<Error> {
        or_break(definitions::statement(statement))
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let names = &self.reading.names;
        or_break(queries::query(query).and_then(|()| windows::order(query, names)))?;
        let select = match query.body.as_mut() {
            SetExpr::Select(select) => Some(select),
            _ => None,
        };
        self.has_order.push(select.is_some());
        let order = query.order_by.as_ref();
        or_break(select.map_or(Ok(()), |select| merged::select(select, order, names)))
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.has_order.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let names = &self.reading.names;
        or_break(
            queries::select(select)
                .and_then(|()| windows::select(select, names))
                .and_then(|()| groups::select(select)),
        )?;
        // The `SELECT` of a query itself was handled together with its `ORDER BY`.
        let is_part = self.has_order.last().is_none_or(|has_order| !has_order);
        or_break(match is_part {
            true => merged::select(select, None, names),
            false => Ok(()),
        })
    }

    fn pre_visit_table_factor(&mut self, relation: &mut TableFactor) -> ControlFlow<Error> {
        or_break(relations::check(relation))
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        or_break(distinct_from::expr(expr))?;
        or_break(queries::in_subquery(expr))?;
        or_break(match expr {
            Expr::Function(function) => functions::check(function, self.reading.is_scalar),
            expr => patterns::similar_to(expr),
        })
    }
}

fn or_break(checked: Result<()>) -> ControlFlow<Error> {
    match checked {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

/// Refuses a clause if it is present; `what` names the clause and an alternative.
fn refuse_if(is_there: bool, what: impl FnOnce() -> String) -> Result<()> {
    match is_there {
        true => Err(Error::NotSupported { what: what() }),
        false => Ok(()),
    }
}

/// Returns the error of an invalid clause.
fn wrong<T>(clause: impl Into<String>, reason: impl Into<String>) -> Result<T> {
    Err(Error::Clause {
        clause: clause.into(),
        reason: reason.into(),
    })
}
