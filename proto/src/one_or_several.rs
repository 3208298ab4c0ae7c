//! Serialization of a list that once was a single value: a list of one is stored as the value alone, so that older
//! versions can read it, and their files can be read.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Stored<T> {
    One(T),
    Several(Vec<T>),
}

pub(crate) fn serialize<T: Serialize, S: Serializer>(
    values: &[T],
    to: S,
) -> Result<S::Ok, S::Error> {
    match values {
        [one] => one.serialize(to),
        several => several.serialize(to),
    }
}

pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    Ok(match Stored::deserialize(from)? {
        Stored::One(one) => vec![one],
        Stored::Several(several) => several,
    })
}
