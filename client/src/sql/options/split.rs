//! Options of the split into training and evaluation rows.
//!
//! This module checks which options contradict each other. It does not assign rows.

use volley_proto::spec::{Split, Start};

use super::{DEFAULT_EVAL_FRACTION, SplitMethod, TrainOptions, unread};
use crate::{Error, Result};

impl TrainOptions {
    /// Returns the split of a training with this start.
    pub(super) fn split(&self, start: &Start) -> Result<Split> {
        let method = match (self.split_method, &self.split_column) {
            (Some(method), _) => method,
            (None, Some(_)) => SplitMethod::Custom,
            (None, None) if self.split_fraction.is_some() => SplitMethod::Random,
            (None, None) => SplitMethod::Auto,
        };
        use SplitMethod::{Auto, Custom, NoSplit, Random, Sequential};
        let column = match (method, self.split_column.clone()) {
            (Auto | NoSplit | Random, Some(column)) => {
                return Err(conflict(
                    "data_split_col",
                    format!("'{column}'"),
                    "custom' or 'seq",
                ));
            }
            (Custom | Sequential, None) => {
                return Err(Error::MissingOption {
                    option: "data_split_col",
                    expected: match method {
                        Custom => {
                            "data_split_method = 'custom' needs the column that splits the rows"
                        }
                        _ => "data_split_method = 'seq' needs the column that orders the rows",
                    },
                });
            }
            (_, column) => column.unwrap_or_default(),
        };
        if let (Auto | NoSplit | Custom, Some(share)) = (method, self.split_fraction) {
            let share = share.to_string();
            return Err(conflict(
                "data_split_eval_fraction",
                share,
                "random' or 'seq",
            ));
        }
        if let (NoSplit | Custom | Sequential, Some(key)) = (method, self.split_key.first()) {
            return Err(conflict(
                "split_key",
                format!("'{key}'"),
                "auto_split' or 'random",
            ));
        }
        let share = self.split_fraction.unwrap_or(DEFAULT_EVAL_FRACTION);
        Ok(match method {
            NoSplit => Split::None,
            // A warm start has been trained on rows of every fold.
            Auto if matches!(start, Start::Warm(_)) => Split::Random(share),
            Auto => Split::CrossValidation(share),
            Random => Split::Random(share),
            Sequential => Split::Sequential { column, share },
            Custom => Split::Column(column),
        })
    }
}

fn conflict(option: &str, value: String, method: &str) -> Error {
    unread(option, value, format!("data_split_method = '{method}'"))
}

#[cfg(test)]
mod tests {
    use volley_proto::ModelRef;

    use super::*;

    #[test]
    fn split_options_must_agree() {
        let split = |method, column: Option<&str>, fraction| {
            let options = TrainOptions {
                split_method: method,
                split_column: column.map(str::to_owned),
                split_fraction: fraction,
                ..TrainOptions::default()
            };
            options.split(&Start::Fresh)
        };
        use SplitMethod::{Custom, NoSplit, Random, Sequential};
        let default = split(None, None, None).unwrap();
        assert_eq!(default, Split::CrossValidation(0.2));
        assert_eq!(split(Some(NoSplit), None, None).unwrap(), Split::None);
        assert_eq!(split(None, None, Some(0.3)).unwrap(), Split::Random(0.3));
        assert_eq!(split(Some(Random), None, None).unwrap(), Split::Random(0.2));
        assert!(matches!(
            split(Some(Custom), None, None),
            Err(Error::MissingOption { .. })
        ));
        let sequential = Split::Sequential {
            column: "split".into(),
            share: 0.3,
        };
        assert_eq!(
            split(Some(Sequential), Some("split"), Some(0.3)).unwrap(),
            sequential
        );
        assert!(matches!(
            split(Some(Sequential), None, None),
            Err(Error::MissingOption { .. })
        ));
        assert!(split(Some(NoSplit), Some("split"), None).is_err());
        assert!(split(Some(Custom), Some("split"), Some(0.2)).is_err());
        assert!(split(None, Some("split"), Some(0.2)).is_err());
        let warm = Start::Warm(ModelRef {
            store: "file:///tmp/models".parse().unwrap(),
            name: "m".parse().unwrap(),
            version: 1,
        });
        let split = TrainOptions::default().split(&warm).unwrap();
        assert_eq!(split, Split::Random(0.2));
    }
}
