//! Clauses that DataFusion's planner ignores: mends rewrite them as equivalent ones, or refuse them by name, before a
//! statement is planned.
//!
//! One pass over the statement applies them all. They destructure the parser's types with all fields, so that a field
//! added by a new version fails to compile.
//!
//! Not here: the mends, and clauses that the planner itself refuses.

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::sql::parser::{CopyToSource, Statement as DfStatement};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{
    ColumnDef, Expr, Query, Select, Statement, TableFactor, VisitMut, VisitorMut,
};

use crate::error::Error;

/// Part of a statement, and the function that rewrites or refuses its clauses.
pub(super) enum Clause {
    Statement(fn(&Statement) -> Result<()>),
    /// Columns of an external table.
    Columns(fn(&[ColumnDef]) -> Result<()>),
    /// Names in `PARTITIONED BY` of a `COPY` or an external table.
    Partitions(fn(&mut [String]) -> Result<()>),
    /// Query with its `ORDER BY`, before the `SELECT`s that it consists of.
    Query(fn(&mut Query, &Reading<'_>) -> Result<()>),
    Select(fn(&mut Select, &Reading<'_>) -> Result<()>),
    /// Relation in `FROM`.
    Relation(fn(&mut TableFactor) -> Result<()>),
    Expr(fn(&mut Expr, &Reading<'_>) -> Result<()>),
}

/// Session that a statement is read in.
pub(super) struct Reading<'a> {
    state: &'a SessionState,
    /// Normalizer of names.
    pub(super) names: IdentNormalizer,
}

impl Reading<'_> {
    /// Checks for a scalar function, which computes each row by itself.
    pub(super) fn is_scalar(&self, name: &str) -> bool {
        self.state.scalar_functions().contains_key(name)
            || self.state.higher_order_functions().contains_key(name)
    }
}

/// Applies mends to the clauses of a statement.
///
/// # Errors
/// [`Error`] for a clause without an equivalent.
pub(super) fn normalize(
    statement: &mut DfStatement,
    clauses: Vec<&'static Clause>,
    state: &SessionState,
) -> Result<()> {
    let parser = &state.config().options().sql_parser;
    let names = IdentNormalizer::new(parser.enable_ident_normalization);
    let reading = Reading { state, names };
    match (Clauses { clauses, reading }).statement(statement) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Visitor that normalizes a statement.
struct Clauses<'a> {
    clauses: Vec<&'static Clause>,
    reading: Reading<'a>,
}

impl Clauses<'_> {
    fn statement(&mut self, statement: &mut DfStatement) -> ControlFlow<DataFusionError> {
        match statement {
            DfStatement::Statement(statement) => statement.visit(self),
            DfStatement::Explain(explain) => self.statement(&mut explain.statement),
            DfStatement::CopyTo(copy) => {
                self.each(|clause, _| match clause {
                    Clause::Partitions(act) => act(&mut copy.partitioned_by),
                    _ => Ok(()),
                })?;
                match &mut copy.source {
                    CopyToSource::Query(query) => query.visit(self),
                    CopyToSource::Relation(_) => ControlFlow::Continue(()),
                }
            }
            DfStatement::CreateExternalTable(table) => self.each(|clause, _| match clause {
                Clause::Columns(act) => act(&table.columns),
                Clause::Partitions(act) => act(&mut table.table_partition_cols),
                _ => Ok(()),
            }),
            DfStatement::Reset(_) => ControlFlow::Continue(()),
        }
    }

    fn each(
        &self,
        mut act: impl FnMut(&Clause, &Reading<'_>) -> Result<()>,
    ) -> ControlFlow<DataFusionError> {
        let mut clauses = self.clauses.iter();
        or_break(clauses.try_for_each(|clause| act(clause, &self.reading)))
    }
}

impl VisitorMut for Clauses<'_> {
    type Break = DataFusionError;

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<DataFusionError> {
        self.each(|clause, _| match clause {
            Clause::Statement(act) => act(statement),
            _ => Ok(()),
        })
    }

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        self.each(|clause, reading| match clause {
            Clause::Query(act) => act(query, reading),
            _ => Ok(()),
        })
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        self.each(|clause, reading| match clause {
            Clause::Select(act) => act(select, reading),
            _ => Ok(()),
        })
    }

    fn pre_visit_table_factor(
        &mut self,
        relation: &mut TableFactor,
    ) -> ControlFlow<DataFusionError> {
        self.each(|clause, _| match clause {
            Clause::Relation(act) => act(relation),
            _ => Ok(()),
        })
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        self.each(|clause, reading| match clause {
            Clause::Expr(act) => act(expr, reading),
            _ => Ok(()),
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
