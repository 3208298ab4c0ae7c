//! Model that training starts from, as typed; the session finds the version.

use std::fmt;
use std::str::FromStr;

use volley_proto::ModelName;

use super::refused;
use crate::Error;

/// Model whose weights training starts from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarmStart {
    /// Newest version of the model that is trained.
    SameModel,
    /// Version of a model, or its newest one.
    Model {
        /// Name of the model.
        name: ModelName,
        /// Version, from 1; default: the newest.
        version: Option<u32>,
    },
}

/// Parses `name` or `name@version`.
impl FromStr for WarmStart {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |expected: &str| refused("warm_start", format!("'{text}'"), expected);
        let (name, version) = match text.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let name = name
            .parse()
            .map_err(|_| refuse("expected true, 'model' or 'model@version'"))?;
        let version = version.map(|version| match version.parse() {
            Ok(version) if version > 0 => Ok(version),
            _ => Err(refuse("expected a version from 1 after the '@'")),
        });
        Ok(Self::Model {
            name,
            version: version.transpose()?,
        })
    }
}

impl fmt::Display for WarmStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameModel => f.write_str("true"),
            Self::Model {
                name,
                version: None,
            } => write!(f, "'{name}'"),
            Self::Model {
                name,
                version: Some(version),
            } => write!(f, "'{name}@{version}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_model_and_maybe_a_version() {
        for text in ["m", "m@3"] {
            let parsed: WarmStart = text.parse().unwrap();
            assert_eq!(parsed.to_string(), format!("'{text}'"));
        }
        for bad in ["", "@1", "m@", "m@0", "m@-1", "m@newest", "a b", "m@1@2"] {
            let error = bad.parse::<WarmStart>().unwrap_err();
            assert!(error.to_string().contains("expected"), "{bad}: {error}");
        }
    }
}
