//! What `TRANSFORM (…)` computes of a query's rows before a model sees them: the same in training and in prediction.
//!
//! Expressions are kept as SQL, with the numbers that were fitted in training written out. They name columns in double
//! quotes and are in DataFusion's generic dialect, so that they mean the same in a session that reads SQL otherwise.

use serde::{Deserialize, Serialize};

/// The columns that a model computes of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transform {
    /// The columns of the rows that expressions read.
    pub inputs: Vec<TransformInput>,
    /// What is computed, in the order in which it was typed: features, and the label where it is among them.
    pub columns: Vec<Computed>,
}

/// A column that expressions read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformInput {
    /// The column.
    pub column: String,
    /// Its Arrow type in training, as text; a dictionary's is that of its values.
    pub data_type: String,
}

/// A column that is computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Computed {
    /// Its name.
    pub column: String,
    /// The expression as typed.
    pub typed: String,
    /// The expression with what was fitted.
    pub sql: String,
}

impl Transform {
    /// What the column of a feature is called in rows that are predicted, beside those that it is computed of.
    pub fn feature_column(column: &str) -> String {
        format!("__volley_transformed_{column}")
    }
}
