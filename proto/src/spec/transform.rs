//! Columns that `TRANSFORM (…)` computes from a query's rows before a model sees them: the same in training and
//! prediction.
//!
//! Expressions are kept as SQL, with the numbers fitted in training written out. They name columns in double quotes and
//! use DataFusion's generic dialect, so that they mean the same in a session with another dialect.

use serde::{Deserialize, Serialize};

/// Columns that a model computes from its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// Input columns that expressions read.
    pub inputs: Vec<TransformInput>,
    /// Computed columns, in the order in which they were typed: features, and the label if it is among them.
    pub columns: Vec<Computed>,
}

/// Column that expressions read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformInput {
    /// Name of the column.
    pub column: String,
    /// Arrow type in training, as text; for a dictionary, the type of its values.
    pub data_type: String,
}

/// Computed column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Computed {
    /// Name of the column.
    pub column: String,
    /// Expression as typed.
    pub typed: String,
    /// Expression with the fitted numbers.
    pub sql: String,
}

impl Transform {
    /// Returns the name of a feature's column in rows for prediction, beside the columns that it is computed from.
    pub fn feature_column(column: &str) -> String {
        format!("__volley_transformed_{column}")
    }
}
