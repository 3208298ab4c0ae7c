//! Names and ids, whose types guarantee their rules, so that no other code checks them again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::Url;
use uuid::Uuid;

use crate::{Error, Result};

/// Name of a model: letters, digits, `_` and `-`, starting with a letter or `_`.
///
/// Safe as a path segment of any store and as an SQL identifier.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelName(String);

impl ModelName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let head = name
            .chars()
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        let rest = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if head && rest && name.len() <= 128 {
            Ok(Self(name.to_owned()))
        } else {
            Err(Error::ModelName {
                name: name.to_owned(),
            })
        }
    }
}

impl TryFrom<String> for ModelName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        name.parse()
    }
}

impl From<ModelName> for String {
    fn from(name: ModelName) -> Self {
        name.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Version of a model in a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelRef {
    /// The store's URL.
    #[serde(with = "url_text")]
    pub store: Url,
    /// The model.
    pub name: ModelName,
    /// The version, from 1.
    pub version: u32,
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} version {}", self.name, self.version)
    }
}

/// Defines ids: UUIDs ordered by time, as text in serde's formats.
macro_rules! ids {
    ($($(#[$about:meta])* $id:ident, $what:literal;)*) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
            #[serde(try_from = "String", into = "String")]
            pub struct $id(Uuid);

            impl $id {
                /// Generates a new id, ordered by time.
                pub fn generate() -> Self {
                    Self(Uuid::now_v7())
                }
            }

            impl FromStr for $id {
                type Err = Error;

                fn from_str(text: &str) -> Result<Self> {
                    Uuid::parse_str(text)
                        .map(Self)
                        .map_err(|source| Error::malformed($what, source))
                }
            }

            impl TryFrom<String> for $id {
                type Error = Error;

                fn try_from(text: String) -> Result<Self> {
                    text.parse()
                }
            }

            impl From<$id> for String {
                fn from(id: $id) -> Self {
                    id.to_string()
                }
            }

            impl fmt::Display for $id {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }
        )*
    };
}

ids! {
    /// Identifier of a training run across attempts, generations and processes.
    TrainId, "train id";
    /// Identifier of prepared rows: the encoded shards of one training's query, which executors keep for the next
    /// training on the same rows.
    PreparedId, "id of prepared rows";
}

/// URLs as text in serde's formats.
pub(crate) mod url_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use url::Url;

    pub(crate) fn serialize<S: Serializer>(url: &Url, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(url.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Url, D::Error> {
        Url::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// Returns `; did you mean "…"?` for the nearest candidate, or nothing when none is near.
pub fn did_you_mean<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    match nearest(typed, candidates).first() {
        Some(candidate) => format!("; did you mean {candidate:?}?"),
        None => String::new(),
    }
}

/// Returns the candidates that are near, the nearest first.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let lower = typed.to_lowercase();
    let scored = candidates.into_iter().map(|candidate| {
        let score = strsim::jaro_winkler(&lower, &candidate.to_lowercase());
        (score, candidate)
    });
    let mut near: Vec<_> = scored.filter(|(score, _)| *score > 0.8).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.into_iter().map(|(_, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_path_segments() {
        for good in ["m", "_m", "Rossmann_2-b"] {
            assert_eq!(good.parse::<ModelName>().unwrap().as_str(), good);
        }
        for bad in ["", "1m", "a/b", "..", "a b", &"x".repeat(129)] {
            assert!(bad.parse::<ModelName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn suggests_the_nearest() {
        assert_eq!(
            did_you_mean("Slaes", ["Store", "Sales"]),
            "; did you mean \"Sales\"?"
        );
        assert_eq!(did_you_mean("zzz", ["Store", "Sales"]), "");
        assert_eq!(
            nearest("epoch", ["patience", "epochs_done", "epochs"]),
            ["epochs", "epochs_done"]
        );
    }
}
