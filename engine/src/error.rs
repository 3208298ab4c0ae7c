//! Errors of statements, and errors of Volley's where DataFusion's are returned: whole, as the external source of one.

use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Expr;

/// Error of a statement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A clause that is wrong by itself.
    #[error("{clause}: {reason}")]
    Clause {
        /// The clause.
        clause: String,
        /// The mistake, and what would be right.
        reason: String,
    },
    /// A clause that is not supported.
    #[error("not supported: {what}")]
    NotSupported {
        /// The clause, and an alternative.
        what: String,
    },
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}

/// Wraps an error of Volley's in one of DataFusion's.
pub fn external(error: volley_proto::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Returns the text of an error's root, without DataFusion's prefix for errors of planning or execution.
pub fn reason(error: &DataFusionError) -> String {
    match error.find_root() {
        DataFusionError::Execution(reason) | DataFusionError::Plan(reason) => reason.clone(),
        root => root.to_string(),
    }
}

/// Results of Volley's where DataFusion's are returned.
pub trait External<T> {
    /// Converts the result's error to one of DataFusion's.
    ///
    /// # Errors
    /// Returns the error of the result.
    fn external(self) -> Result<T>;
}

impl<T> External<T> for volley_proto::Result<T> {
    fn external(self) -> Result<T> {
        self.map_err(external)
    }
}

/// Results of coding that are returned as DataFusion's.
pub(crate) trait Malformed<T> {
    /// Converts the result's error to that of a malformed value, such as a plan.
    fn malformed(self, what: &'static str) -> Result<T>;
}

impl<T, E: Into<Box<dyn std::error::Error + Send + Sync>>> Malformed<T> for Result<T, E> {
    fn malformed(self, what: &'static str) -> Result<T> {
        self.map_err(|error| external(volley_proto::Error::malformed(what, error)))
    }
}

/// Returns an expression as SQL for a message, a long one cut.
pub fn shown(expr: &Expr) -> String {
    /// Characters of an expression that are shown.
    const SHOWN: usize = 60;
    let text = match expr {
        Expr::Column(column) | Expr::OuterReferenceColumn(_, column) => column.quoted_flat_name(),
        Expr::Literal(value, _) => match value.try_as_str() {
            Some(Some(text)) => format!("'{}'", text.replace('\'', "''")),
            _ => value.to_string(),
        },
        expr => expr.human_display().to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
