//! How a list is stored that once was a single value: alone where it has one, so that what is older reads what has no
//! more than that, and is read itself.

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
