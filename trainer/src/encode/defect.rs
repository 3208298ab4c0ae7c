//! Defects: values that a row must not have if it is to be trained on, counted, with an example.
//!
//! Counting goes on to the end of the data, over all ranks, so that the user learns at once how many rows need fixing.

use std::fmt;

use serde::{Deserialize, Serialize};
use volley_proto::limits::grouped;

/// Example of a row without a value.
pub(super) const NULL: &str = "NULL";

/// Rows whose value in one column breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defect {
    /// The column.
    pub column: String,
    /// The broken rule.
    pub rule: Rule,
    /// Number of rows that break it.
    pub rows: u64,
    /// Example value of one of them.
    pub example: String,
}

/// Requirement on a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// A text split column's values.
    SplitText,
    /// A boolean split column's values.
    SplitFlag,
    /// A label.
    Label,
    /// A label that is a class.
    Class,
    /// A class of the model whose classes a training that begins early takes.
    KnownClass,
    /// A label of a loss on counts.
    CountLabel,
    /// A label of a loss on amounts.
    AmountLabel,
    /// A row's weight.
    Weight,
    /// A label whose logarithm is taken.
    PositiveLabel,
    /// A continuous feature.
    Continuous,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            column,
            rule,
            rows,
            example,
        } = self;
        let count = grouped(*rows);
        let plural = if *rows == 1 { "row" } else { "rows" };
        let expected = match rule {
            Rule::Label => {
                write!(
                    f,
                    "label {column:?} is NULL or not finite in {count} {plural}"
                )?;
                // NULL is the usual example, and has been named.
                if example != NULL {
                    write!(f, " (for example, {example})")?;
                }
                return write!(f, "; add WHERE {column:?} IS NOT NULL, or filter such rows");
            }
            Rule::SplitText => "'TRAIN', 'EVAL' or 'TEST', to split the rows",
            Rule::SplitFlag => "true or false, to split the rows",
            Rule::Class => "a class in every row that is trained on or evaluated",
            Rule::KnownClass => {
                "a class that the model to start from knows, since training begins before all classes are seen"
            }
            Rule::CountLabel => {
                "a number ≥ 0 in every row that is trained on or evaluated, since the loss is for counts"
            }
            Rule::AmountLabel => {
                "a number > 0 in every row that is trained on or evaluated, since the loss is for amounts"
            }
            Rule::Weight => "a number ≥ 0 in every row that is trained on or evaluated",
            Rule::PositiveLabel => {
                "a number > 0 in every row that is trained on or evaluated, since its logarithm is taken"
            }
            Rule::Continuous => "a finite number or null, as it is a continuous feature",
        };
        let are = if *rows == 1 { "is" } else { "are" };
        write!(
            f,
            "column {column:?} must be {expected}: {count} {plural} {are} not (for example, {example})"
        )
    }
}

impl Defect {
    /// Counts a row; the first one's value becomes the example.
    pub(super) fn count(
        found: &mut Vec<Self>,
        column: &str,
        rule: Rule,
        example: impl FnOnce() -> String,
    ) {
        match found
            .iter_mut()
            .find(|known| known.column == column && known.rule == rule)
        {
            Some(known) => known.rows += 1,
            None => {
                let column = column.to_owned();
                found.push(Self {
                    column,
                    rule,
                    rows: 1,
                    example: example(),
                });
            }
        }
    }
}

/// Adds up equal defects of several shards or ranks; keeps the first one's example.
pub(crate) fn merge(all: impl IntoIterator<Item = Defect>) -> Vec<Defect> {
    let mut merged: Vec<Defect> = Vec::new();
    for defect in all {
        match merged
            .iter_mut()
            .find(|m| m.column == defect.column && m.rule == defect.rule)
        {
            Some(known) => known.rows += defect.rows,
            None => merged.push(defect),
        }
    }
    merged
}
