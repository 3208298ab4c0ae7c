//! One statement of a script.

use std::fmt;
use std::ops::ControlFlow;

use datafusion::config::SqlParserOptions;
use datafusion::sql::parser::{CopyToSource, Statement as DfStatement};
use datafusion::sql::sqlparser::ast::{Query, Visit, Visitor};
use volley_proto::object_stores::redacted;
use volley_proto::{ModelName, PreparedId, TrainId};

use super::{Clause, Excerpt, TrainOptions};

/// One statement, with its text.
#[derive(Debug)]
pub struct Statement {
    pub(crate) text: String,
    pub(crate) line: u64,
    pub(crate) column: u64,
    pub(crate) kind: Kind,
    /// Options it was parsed with: a `SET` before it may have changed them.
    pub(crate) read_as: SqlParserOptions,
}

/// Kind of a statement.
#[derive(Debug)]
pub(crate) enum Kind {
    CreateModel(Box<CreateModel>),
    ExplainCreateModel {
        create: Box<CreateModel>,
        /// True to show the plan of its rows, too.
        verbose: bool,
    },
    ShowModels,
    DescribeModel {
        name: ModelName,
        /// Version to describe, if not the current one.
        version: Option<u32>,
    },
    DropModel {
        name: ModelName,
        /// Version to drop, if not all.
        version: Option<u32>,
        if_exists: bool,
    },
    DropPrepared {
        /// Prepared rows to drop; all without one.
        id: Option<PreparedId>,
    },
    /// DataFusion's own statement.
    Sql(Box<DfStatement>),
}

/// `CREATE [OR REPLACE] MODEL [IF NOT EXISTS] name TRANSFORM (…) OPTIONS (…) AS query`.
#[derive(Debug)]
pub(crate) struct CreateModel {
    pub(crate) train_id: TrainId,
    pub(crate) name: ModelName,
    pub(crate) or_replace: bool,
    pub(crate) if_not_exists: bool,
    /// `TRANSFORM` clause over the query's rows, as typed.
    pub(crate) transform: Option<Clause>,
    pub(crate) options: TrainOptions,
    pub(crate) query: Box<Query>,
}

/// Visits the queries and expressions of a statement.
pub(crate) fn visit<V: Visitor>(statement: &DfStatement, visitor: &mut V) -> ControlFlow<V::Break> {
    match statement {
        DfStatement::Statement(statement) => statement.visit(visitor),
        DfStatement::CopyTo(copy) => match &copy.source {
            CopyToSource::Query(query) => query.visit(visitor),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        DfStatement::Explain(explain) => visit(&explain.statement, visitor),
        DfStatement::CreateExternalTable(_) | DfStatement::Reset(_) => ControlFlow::Continue(()),
    }
}

impl Statement {
    /// Returns the statement as written, without its `;`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the line of the script where it starts, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the text with its place in the script.
    pub fn excerpt(&self) -> Excerpt {
        Excerpt {
            text: self.text.clone(),
            line: self.line,
            column: self.column,
        }
    }

    /// Returns the ID of the training run that `CREATE MODEL` will start, for watching its progress.
    ///
    /// The ID is generated when the statement is parsed; a statement runs once.
    pub fn train_id(&self) -> Option<TrainId> {
        match &self.kind {
            Kind::CreateModel(create) => Some(create.train_id),
            _ => None,
        }
    }
}

/// Prints the statement as written, without credentials.
impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.text))
    }
}
