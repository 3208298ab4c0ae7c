//! Label columns, and their transformation for prediction.

use arrow::datatypes::{DataType, Schema};
use serde::{Deserialize, Serialize};

use super::{Task, check_column, is_category};
use crate::{Error, Result, one_or_several};

/// Label columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// Names: one, or several of a regressor, each with an output of its own. One name is stored as text.
    #[serde(rename = "column", with = "one_or_several")]
    pub columns: Vec<String>,
    /// Weights of the labels' losses in the trained sum; 1 each if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loss_weights: Vec<f64>,
    /// Transformation that the network predicts.
    pub transform: LabelTransform,
    /// True if each transformed label is standardized by its mean and standard deviation.
    pub standardize: bool,
}

/// Transformation of the label that the network predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelTransform {
    /// The label itself.
    Identity,
    /// The label's natural logarithm; the prediction is exponentiated.
    Ln,
}

impl Label {
    /// Returns the first column: the only one, except of a regressor.
    pub fn column(&self) -> &str {
        self.columns.first().map_or("", String::as_str)
    }

    /// Returns the columns if there are several, else none.
    pub fn several(&self) -> &[String] {
        match &self.columns[..] {
            [_] => &[],
            several => several,
        }
    }

    /// Checks whether a column is one of the labels.
    pub fn is(&self, column: &str) -> bool {
        self.columns.iter().any(|label| label == column)
    }

    /// Checks the columns against the input's, and that weights, if given, match the columns.
    pub(super) fn check(&self, task: Task, input: &Schema) -> Result<()> {
        if self.columns.is_empty() {
            return Err(Error::option("input_label_cols", "[]", "expected a column"));
        }
        for (at, column) in self.columns.iter().enumerate() {
            if self.columns[..at].contains(column) {
                let expected = "expected each column once";
                return Err(Error::option("input_label_cols", column, expected));
            }
            match task {
                Task::Regression => check_column(
                    column,
                    "the label",
                    input,
                    "a number; to predict which of its values it is, use model_type = 'dnn_classifier'",
                    DataType::is_numeric,
                )?,
                Task::Classification => check_column(
                    column,
                    "the label",
                    input,
                    "a whole number, text, a boolean or a date; to predict a number, use model_type = 'dnn_regressor'",
                    is_category,
                )?,
            }
        }
        self.check_weights()
    }

    fn check_weights(&self) -> Result<()> {
        let weights = &self.loss_weights;
        if weights.is_empty() {
            return Ok(());
        }
        let expected = if self.columns.len() == 1 {
            "only with several input_label_cols".to_owned()
        } else if weights.len() != self.columns.len() {
            format!(
                "expected one for each of the {} input_label_cols",
                self.columns.len()
            )
        } else if !weights
            .iter()
            .all(|weight| *weight >= 0.0 && weight.is_finite())
        {
            "expected weights ≥ 0".to_owned()
        } else if weights.iter().all(|weight| *weight == 0.0) {
            "expected one > 0 at least".to_owned()
        } else {
            return Ok(());
        };
        let weights: Vec<_> = weights.iter().map(f64::to_string).collect();
        let weights = format!("[{}]", weights.join(", "));
        Err(Error::option("loss_weights", weights, expected))
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    fn label(columns: &[&str], loss_weights: &[f64]) -> Label {
        Label {
            columns: columns.iter().map(ToString::to_string).collect(),
            loss_weights: loss_weights.to_vec(),
            transform: LabelTransform::Identity,
            standardize: true,
        }
    }

    #[test]
    fn one_label_is_stored_as_it_was() {
        let old = r#"{"column":"y","transform":"identity","standardize":true}"#;
        let one = label(&["y"], &[]);
        assert_eq!(serde_json::to_string(&one).unwrap(), old);
        assert_eq!(serde_json::from_str::<Label>(old).unwrap(), one);
        let several = label(&["a", "b"], &[1.0, 0.5]);
        let stored = serde_json::to_string(&several).unwrap();
        assert_eq!(serde_json::from_str::<Label>(&stored).unwrap(), several);
        assert_eq!((one.several().len(), several.several().len()), (0, 2));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let number = |name: &str| Field::new(name, DataType::Float64, true);
        let input = Schema::new(vec![number("a"), number("b")]);
        for (columns, weights, named) in [
            (&[][..], &[][..], "[]"),
            (&["a", "a"], &[], "each column once"),
            (&["a", "c"], &[], "\"c\""),
            (&["a"], &[2.0], "several input_label_cols"),
            (&["a", "b"], &[2.0], "each of the 2"),
            (&["a", "b"], &[2.0, -1.0], "[2, -1]"),
            (&["a", "b"], &[0.0, 0.0], "[0, 0]"),
        ] {
            let checked = label(columns, weights).check(Task::Regression, &input);
            let error = checked.unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let both = label(&["a", "b"], &[0.0, 2.0]);
        both.check(Task::Regression, &input).unwrap();
    }
}
