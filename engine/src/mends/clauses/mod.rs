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

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use datafusion::error::{DataFusionError, Result};
use datafusion::sql::parser::{CopyToSource, Statement as DfStatement};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    Expr, Query, Select, SetExpr, Statement, TableFactor, VisitMut, VisitorMut,
};

use super::{
    definitions, distinct_from, function_clauses, group_modifiers, merged_columns, named_windows,
    query_clauses, relation_clauses, similar_to,
};
use crate::error::Error;

/// Session settings for the normalization of clauses.
pub struct Reading<'a> {
    /// Normalizer of names.
    pub names: IdentNormalizer,
    /// Predicate for scalar functions, which compute each row by itself.
    pub is_scalar: &'a dyn Fn(&str) -> bool,
}

/// Rewrites a statement's clauses as clauses that the planner supports.
///
/// # Errors
/// [`Error::NotSupported`] and [`Error::Clause`] for clauses without an equivalent.
pub fn normalize(statement: &mut DfStatement, reading: &Reading<'_>) -> Result<()> {
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
    fn statement(&mut self, statement: &mut DfStatement) -> ControlFlow<DataFusionError> {
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
    type Break = DataFusionError;

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<DataFusionError> {
        or_break(definitions::statement(statement))
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        let names = &self.reading.names;
        or_break(query_clauses::query(query).and_then(|()| named_windows::order(query, names)))?;
        let select = match query.body.as_mut() {
            SetExpr::Select(select) => Some(select),
            _ => None,
        };
        self.has_order.push(select.is_some());
        let order = query.order_by.as_ref();
        or_break(select.map_or(Ok(()), |select| {
            merged_columns::select(select, order, names)
        }))
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<DataFusionError> {
        self.has_order.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        let names = &self.reading.names;
        or_break(
            query_clauses::select(select)
                .and_then(|()| named_windows::select(select, names))
                .and_then(|()| group_modifiers::select(select)),
        )?;
        // The `SELECT` of a query itself was handled together with its `ORDER BY`.
        let is_part = self.has_order.last().is_none_or(|has_order| !has_order);
        or_break(match is_part {
            true => merged_columns::select(select, None, names),
            false => Ok(()),
        })
    }

    fn pre_visit_table_factor(
        &mut self,
        relation: &mut TableFactor,
    ) -> ControlFlow<DataFusionError> {
        or_break(relation_clauses::check(relation))
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        or_break(distinct_from::expr(expr))?;
        or_break(query_clauses::in_subquery(expr))?;
        or_break(match expr {
            Expr::Function(function) => function_clauses::check(function, self.reading.is_scalar),
            expr => similar_to::similar_to(expr),
        })
    }
}

pub(super) fn or_break(checked: Result<()>) -> ControlFlow<DataFusionError> {
    match checked {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

/// Refuses a clause if it is present; `what` names the clause and an alternative.
pub(super) fn refuse_if(is_there: bool, what: impl FnOnce() -> String) -> Result<()> {
    match is_there {
        true => Err(Error::NotSupported { what: what() }.into()),
        false => Ok(()),
    }
}

/// Returns the error of an invalid clause.
pub(super) fn wrong<T>(clause: impl Into<String>, reason: impl Into<String>) -> Result<T> {
    Err(Error::Clause {
        clause: clause.into(),
        reason: reason.into(),
    }
    .into())
}
