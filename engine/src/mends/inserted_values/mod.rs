//! `VALUES` within a query whose rows go into a table.
//!
//! `INSERT INTO t VALUES (1, 2)` means values of the table's types. DataFusion 55 applies this to every `VALUES` of the
//! statement, by column position: in `INSERT INTO t SELECT b, a FROM (VALUES (9, 2.5)) v (a, b)` it casts 2.5 to the
//! second column's type, and it fails if `VALUES` has other columns than the table. So this module plans a query that
//! contains `VALUES` by itself, and inserts the rows of a view of it. To be dropped when a release tells the two apart.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::datasource::ViewTable;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{Query, SetExpr, Statement, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use uuid::Uuid;

use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "inserted_values",
    wrong: "`VALUES` anywhere within an `INSERT` are cast to the types of the table's columns, or fail",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Statement(|context, state, statement| {
        Box::pin(plan_apart(context, state, statement))
    })],
};

/// Temporary view that a statement reads while it is planned.
pub(super) struct View {
    context: SessionContext,
    name: String,
}

impl Drop for View {
    fn drop(&mut self) {
        // The view has existed until now, in this session alone.
        self.context.deregister_table(self.name.as_str()).ok();
    }
}

/// Replaces the query whose rows go into a table by a view, if it contains `VALUES`; `state` plans it.
///
/// # Errors
/// When the query cannot be planned.
async fn plan_apart(
    context: &SessionContext,
    state: &SessionState,
    statement: &mut DfStatement,
) -> Result<Option<View>> {
    let DfStatement::Statement(statement) = statement else {
        return Ok(None);
    };
    let query = match statement.as_mut() {
        Statement::Insert(insert) => insert.source.as_mut(),
        Statement::CreateTable(create) if !create.columns.is_empty() => create.query.as_mut(),
        _ => None,
    };
    let Some(query) = query.filter(|query| has_values_within(query)) else {
        return Ok(None);
    };
    let name = format!("__volley_rows_{}", Uuid::new_v4().simple());
    let select = format!("SELECT * FROM {name}");
    let select = Parser::new(&GenericDialect {})
        .try_with_sql(&select)
        .and_then(|mut parser| parser.parse_query())?;
    let apart = std::mem::replace(query, select);
    let apart = DfStatement::Statement(Box::new(Statement::Query(apart)));
    let plan = state.statement_to_plan(apart).await?;
    context.register_table(name.as_str(), Arc::new(ViewTable::new(plan, None)))?;
    let context = context.clone();
    Ok(Some(View { context, name }))
}

/// Checks whether a query contains `VALUES` that are not the whole query.
fn has_values_within(query: &Query) -> bool {
    struct Find;
    impl Visitor for Find {
        type Break = ();

        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            match has_values(&query.body) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
    }
    let all = matches!(*query.body, SetExpr::Values(_)) && query.with.is_none();
    !all && query.visit(&mut Find).is_break()
}

fn has_values(body: &SetExpr) -> bool {
    match body {
        SetExpr::Values(_) => true,
        SetExpr::SetOperation { left, right, .. } => has_values(left) || has_values(right),
        _ => false,
    }
}
