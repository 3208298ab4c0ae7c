//! Classes of a classifier, and the columns that a prediction adds.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Date32Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Fields};
use arrow::util::display::array_value_to_string;
use serde::{Deserialize, Serialize};

/// Classes in the order of the network's outputs, which is the order of their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Classes {
    /// Whole numbers.
    Integer(Vec<i64>),
    /// Text.
    Text(Vec<String>),
    /// False, true.
    Boolean(Vec<bool>),
    /// Days since 1970-01-01.
    Date(Vec<i32>),
}

/// Type of the values of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassType {
    /// Whole numbers, predicted as `Int64`.
    Integer,
    /// Text, predicted as `Utf8`.
    Text,
    /// Booleans.
    Boolean,
    /// Dates, predicted as `Date32`.
    Date,
}

/// Columns that a prediction adds to its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PredictedColumns {
    /// Name of the first label's column: `predicted_<label>`, as in BigQuery ML.
    pub name: String,
    /// Names of the columns of further labels, which are numbers.
    #[serde(default)]
    pub further: Vec<String>,
    /// Type of the classes; `None` for a number.
    pub class: Option<ClassType>,
    /// True if a number has several quantiles.
    #[serde(default)]
    pub has_quantiles: bool,
    /// Number of features that explain each prediction, if it is explained.
    #[serde(default)]
    pub explained_by: Option<usize>,
}

impl Classes {
    /// Returns the number of classes.
    #[allow(clippy::len_without_is_empty)] // a model has two at least
    pub fn len(&self) -> usize {
        match self {
            Self::Integer(values) => values.len(),
            Self::Text(values) => values.len(),
            Self::Boolean(values) => values.len(),
            Self::Date(values) => values.len(),
        }
    }

    /// Returns the type of the classes.
    pub fn class_type(&self) -> ClassType {
        match self {
            Self::Integer(_) => ClassType::Integer,
            Self::Text(_) => ClassType::Text,
            Self::Boolean(_) => ClassType::Boolean,
            Self::Date(_) => ClassType::Date,
        }
    }

    /// Returns the values in order, as text.
    pub fn texts(&self) -> Vec<String> {
        let array = self.array();
        let text = |at| array_value_to_string(&array, at).unwrap_or_default();
        (0..self.len()).map(text).collect()
    }

    /// Returns the values in order.
    pub fn array(&self) -> ArrayRef {
        match self {
            Self::Integer(values) => Arc::new(Int64Array::from(values.clone())),
            Self::Text(values) => Arc::new(StringArray::from(values.clone())),
            Self::Boolean(values) => Arc::new(BooleanArray::from(values.clone())),
            Self::Date(values) => Arc::new(Date32Array::from(values.clone())),
        }
    }
}

impl ClassType {
    /// Returns the type of a column of such classes.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Integer => DataType::Int64,
            Self::Text => DataType::Utf8,
            Self::Boolean => DataType::Boolean,
            Self::Date => DataType::Date32,
        }
    }

    /// Returns the fields of a class' probability: the class, and its share of 1.
    pub fn probability(self) -> Fields {
        Fields::from(vec![
            Field::new("label", self.data_type(), false),
            Field::new("prob", DataType::Float32, false),
        ])
    }
}

impl PredictedColumns {
    /// Returns the names of the labels' predictions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name]
            .into_iter()
            .chain(&self.further)
            .map(String::as_str)
    }

    /// Returns the name of the column of all classes' probabilities.
    pub fn probabilities(&self) -> String {
        format!("{}_probs", self.name)
    }

    /// Returns the name of the column of all quantiles.
    pub fn quantiles(&self) -> String {
        format!("{}_quantiles", self.name)
    }

    /// Returns the fields of a quantile: the share of labels below it, and the number.
    pub fn quantile() -> Fields {
        Fields::from(vec![
            Field::new("quantile", DataType::Float64, false),
            Field::new("value", DataType::Float64, false),
        ])
    }

    /// Name of the column of an explanation's attributions.
    pub const ATTRIBUTIONS: &'static str = "top_feature_attributions";

    /// Returns the columns: for a number, an `f64` for each label, and all quantiles if there are several; for a class,
    /// the likeliest class and the probabilities of all; for an explanation, the attributions, the explained numbers,
    /// and the approximation error.
    pub fn fields(&self) -> Vec<Field> {
        let mut fields = match self.class {
            None => vec![Field::new(&self.name, DataType::Float64, false)],
            Some(class) => {
                let item = Field::new_struct("item", class.probability(), false);
                vec![
                    Field::new(&self.name, class.data_type(), false),
                    Field::new_list(self.probabilities(), item, false),
                ]
            }
        };
        let further = self.further.iter();
        fields.extend(further.map(|name| Field::new(name, DataType::Float64, false)));
        if self.has_quantiles {
            let item = Field::new_struct("item", Self::quantile(), false);
            fields.push(Field::new_list(self.quantiles(), item, false));
        }
        if self.explained_by.is_some() {
            let item = Self::attribution_item();
            fields.push(Field::new_list(Self::ATTRIBUTIONS, item, false));
            let numbers = [
                "baseline_prediction_value",
                "prediction_value",
                "approximation_error",
            ];
            fields.extend(numbers.map(|name| Field::new(name, DataType::Float64, false)));
        }
        fields
    }

    /// Returns the fields of a feature's attribution: the feature, and its share in the prediction's difference from
    /// the baseline's.
    pub fn attribution() -> Fields {
        Fields::from(vec![
            Field::new("feature", DataType::Utf8, false),
            Field::new("attribution", DataType::Float64, false),
        ])
    }

    /// Returns the field of an item of a list of attributions.
    pub fn attribution_item() -> Field {
        Field::new_struct("item", Self::attribution(), false)
    }
}
