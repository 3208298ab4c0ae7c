//! One statement of a script.

use std::fmt;

use datafusion::config::SqlParserOptions;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Query;
use volley_proto::object_stores::redacted;
use volley_proto::{ModelName, TrainId};

use super::{Clause, TrainOptions};

/// One statement, with the text it was written in.
#[derive(Debug)]
pub struct Statement {
    pub(crate) text: String,
    pub(crate) line: u64,
    pub(crate) kind: Kind,
    /// How it was read: a `SET` in between may want it otherwise.
    pub(crate) read_as: SqlParserOptions,
}

/// What a statement asks for.
#[derive(Debug)]
pub(crate) enum Kind {
    CreateModel(Box<CreateModel>),
    ExplainCreateModel(Box<CreateModel>),
    ShowModels,
    DescribeModel {
        name: ModelName,
    },
    DropModel {
        name: ModelName,
        if_exists: bool,
    },
    /// DataFusion's own.
    Sql(Box<DfStatement>),
}

/// `CREATE [OR REPLACE] MODEL [IF NOT EXISTS] name TRANSFORM (…) OPTIONS (…) AS query`.
#[derive(Debug)]
pub(crate) struct CreateModel {
    pub(crate) train_id: TrainId,
    pub(crate) name: ModelName,
    pub(crate) or_replace: bool,
    pub(crate) if_not_exists: bool,
    /// What is computed of the query's rows, as typed.
    pub(crate) transform: Option<Clause>,
    pub(crate) options: TrainOptions,
    pub(crate) query: Box<Query>,
}

impl Statement {
    /// The statement as written, without its `;`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line of the script it starts on, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The training run that `CREATE MODEL` will start, by which its progress can be watched.
    ///
    /// It is decided when the statement is parsed; a statement runs once.
    pub fn train_id(&self) -> Option<TrainId> {
        match &self.kind {
            Kind::CreateModel(create) => Some(create.train_id),
            _ => None,
        }
    }
}

/// As written, without credentials.
impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.text))
    }
}
