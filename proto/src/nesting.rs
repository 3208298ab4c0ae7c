//! How deeply the bytes of a protobuf message nest, before anything decodes them.
//!
//! A decoder calls itself for each level, and ends the process where the stack ends: prost has no limit of its own here,
//! since plans nest deeply. What is looked at are bytes alone, without a schema, so it is an upper bound: text may look
//! like a message.
//!
//! ```text
//! bytes that have a length ──► taken for a message: what is in them is a level deeper
//! groups, which nobody sends ► each is a level deeper in the decoder, wherever it stands
//! ```
//!
//! A decoder believes the length of an inner message that is longer than its outer one, and fails only after it. So do
//! these, apart from the rest.

use crate::limits::{NESTED_GROUPS, NESTED_MESSAGES};

/// Steps for each byte, beyond which bytes are made to be looked at for long. Plans and text take one or two.
const STEPS: usize = 32;

/// Whether a decoder can be trusted with these bytes.
///
/// # Errors
/// Why not.
pub fn check(message: &[u8]) -> Result<(), String> {
    if groups(message) > usize::from(NESTED_GROUPS) {
        return Err(format!(
            "the message has more than {NESTED_GROUPS} groups in each other"
        ));
    }
    match levels(message, NESTED_MESSAGES) {
        Some(levels) if levels <= NESTED_MESSAGES => Ok(()),
        Some(_) => Err(format!(
            "the message has more than {NESTED_MESSAGES} levels, expected a query of fewer nested operators and \
             expressions"
        )),
        None => Err("the message has lengths that no encoder writes".to_owned()),
    }
}

/// Decodes a message that is part of what was sent.
///
/// # Errors
/// When it nests too deeply, or is no such message.
pub fn decode<M: prost::Message + Default>(
    message: &[u8],
) -> Result<M, Box<dyn std::error::Error + Send + Sync>> {
    check(message)?;
    Ok(M::decode(message)?)
}

/// A field's key and where its value begins.
#[derive(Clone, Copy)]
struct Key {
    field: u64,
    wire: u8,
    value: usize,
}

/// Levels of the message, or any number beyond `most`; `None` where it takes too long to tell.
fn levels(message: &[u8], most: usize) -> Option<usize> {
    let mut deepest = 0;
    let mut steps = 1024 + STEPS * message.len();
    // Parts that claim to be longer than what they are in.
    let mut parts = vec![(0, message.len(), 0)];
    let mut ends = Vec::new();
    while let Some((start, end, base)) = parts.pop() {
        let mut at = start;
        ends.clear();
        ends.push(end);
        while let Some(&end) = ends.last() {
            deepest = deepest.max(base + ends.len() - 1);
            if deepest > most {
                return Some(deepest);
            }
            steps = steps.checked_sub(1)?;
            if at == end {
                ends.pop();
                continue;
            }
            let skipped = match key(message, at) {
                Some(key) if key.wire == 2 => match varint(message, key.value) {
                    Some((length, inner)) => {
                        let inner_end = usize::try_from(length)
                            .ok()
                            .and_then(|length| inner.checked_add(length));
                        match inner_end.filter(|inner_end| *inner_end <= message.len()) {
                            Some(inner_end) if inner_end <= end => {
                                at = inner;
                                ends.push(inner_end);
                                continue;
                            }
                            Some(inner_end) => {
                                parts.push((inner, inner_end, base + ends.len()));
                                None
                            }
                            None => None,
                        }
                    }
                    None => None,
                },
                Some(key) if key.wire == 3 => after_group(message, key, &mut steps)?,
                Some(key) => after_scalar(message, key),
                None => None,
            };
            match skipped.filter(|next| *next <= end) {
                Some(next) => at = next,
                // It is no message; nothing in it counts from here on.
                None => {
                    at = end;
                    ends.pop();
                }
            }
        }
    }
    Some(deepest)
}

/// Where a group ends; the inner `None`, where it does not.
#[allow(clippy::option_option)] // the outer one: no steps are left
fn after_group(message: &[u8], first: Key, steps: &mut usize) -> Option<Option<usize>> {
    let mut open = vec![first.field];
    let mut at = first.value;
    while let Some(field) = open.last().copied() {
        *steps = steps.checked_sub(1)?;
        let next = key(message, at).and_then(|key| match key.wire {
            3 => {
                open.push(key.field);
                Some(key.value)
            }
            4 if key.field == field => {
                open.pop();
                Some(key.value)
            }
            _ => after_scalar(message, key),
        });
        match next {
            Some(next) => at = next,
            None => return Some(None),
        }
    }
    Some(Some(at))
}

/// The most groups that are open at once, read from any byte on.
fn groups(message: &[u8]) -> usize {
    let starts = message.iter().filter(|byte| **byte & 7 == 3).count();
    if starts <= usize::from(NESTED_GROUPS) {
        return starts;
    }
    // From each byte, how many more are opened than closed, at most, on the way a decoder takes.
    let mut most: Vec<u16> = vec![0; message.len() + 1];
    for at in (0..message.len()).rev() {
        let Some(key) = key(message, at) else {
            continue;
        };
        most[at] = match key.wire {
            3 => most[key.value].saturating_add(1),
            4 => most[key.value].saturating_sub(1),
            _ => after_scalar(message, key).map_or(0, |next| most[next]),
        };
    }
    most.into_iter().max().map_or(0, usize::from)
}

fn key(message: &[u8], at: usize) -> Option<Key> {
    let (key, value) = varint(message, at)?;
    let key = u32::try_from(key).ok()?;
    let (field, wire) = (u64::from(key >> 3), (key & 7) as u8);
    (field > 0 && wire < 6).then_some(Key { field, wire, value })
}

/// Where the value of a field ends, which is no group; one with a length is skipped.
fn after_scalar(message: &[u8], key: Key) -> Option<usize> {
    let end = match key.wire {
        0 => return varint(message, key.value).map(|(_, end)| end),
        1 => key.value.checked_add(8)?,
        2 => {
            let (length, start) = varint(message, key.value)?;
            start.checked_add(usize::try_from(length).ok()?)?
        }
        5 => key.value.checked_add(4)?,
        _ => return None,
    };
    (end <= message.len()).then_some(end)
}

/// A number of at most ten bytes, and where it ends.
fn varint(message: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    for (place, byte) in message.get(at..)?.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f)
            .checked_shl(7 * place as u32)
            .unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some((number, at + place + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// A message of messages, as deep as it says.
    fn nested(levels: usize) -> Vec<u8> {
        let mut message = Vec::new();
        for _ in 0..levels {
            let mut outer = vec![0x0a];
            prost::encoding::encode_varint(message.len() as u64, &mut outer);
            outer.extend(message);
            message = outer;
        }
        message
    }

    #[test]
    fn levels_are_counted() {
        for depth in [0, 1, 2, 200] {
            assert_eq!(levels(&nested(depth), 1000), Some(depth));
        }
        assert_eq!(check(&nested(NESTED_MESSAGES)), Ok(()));
        let error = check(&nested(NESTED_MESSAGES + 1)).unwrap_err();
        assert!(error.contains("levels"), "{error}");
        // Beside each other, they are no deeper.
        let many: Vec<u8> = std::iter::repeat_n(nested(3), 10_000).flatten().collect();
        assert_eq!(levels(&many, 1000), Some(3));
    }

    #[test]
    fn groups_are_counted_wherever_they_stand() {
        let mut message = vec![0x0a, 3, b'a', b'b', b'c', 0x1a, 0x7f];
        message.extend(vec![0x0b; usize::from(NESTED_GROUPS) + 1]);
        assert!(check(&message).unwrap_err().contains("groups"));
        // As many beside each other.
        let closed: Vec<u8> = std::iter::repeat_n([0x0b, 0x0c], 100_000)
            .flatten()
            .collect();
        assert_eq!(check(&closed), Ok(()));
    }

    #[test]
    fn text_is_no_message_and_hides_none() {
        let text = "a name, a sentence; numbers 10 000 and the rest of it: zz BB jj".repeat(5_000);
        let mut message = vec![0x12];
        prost::encoding::encode_varint(text.len() as u64, &mut message);
        message.extend(text.as_bytes());
        assert_eq!(check(&message), Ok(()));
        message.extend(nested(NESTED_MESSAGES + 1));
        assert!(check(&message).is_err());
    }

    #[test]
    fn a_length_beyond_its_message_hides_nothing() {
        // The outer message is of one byte, and what is in it of all that follows.
        let deep = nested(NESTED_MESSAGES + 1);
        let mut message = vec![0x0a, 4, 0x0a];
        prost::encoding::encode_varint(deep.len() as u64, &mut message);
        message.extend(deep);
        assert!(check(&message).is_err());
    }

    #[test]
    fn what_is_made_to_take_long_is_refused() {
        // Each byte begins a part that goes on to the end.
        let mut message = Vec::new();
        for _ in 0..20_000 {
            message.extend([0x0a, 0xff, 0xff, 0x01]);
        }
        let began = std::time::Instant::now();
        assert!(check(&message).is_err());
        assert!(began.elapsed().as_secs() < 60);
    }

    /// No more levels than are found are ever decoded.
    #[test]
    fn a_decoder_goes_no_deeper() {
        /// A message that may hold itself, and says how deeply it does.
        #[derive(Clone, PartialEq, Message)]
        struct Tree {
            #[prost(message, repeated, tag = "1")]
            inner: Vec<Tree>,
            #[prost(bytes = "vec", tag = "2")]
            text: Vec<u8>,
        }
        fn depth(tree: &Tree) -> usize {
            tree.inner
                .iter()
                .map(|inner| 1 + depth(inner))
                .max()
                .unwrap_or(0)
        }
        bolero::check!()
            .with_iterations(20_000)
            .with_max_len(200)
            .for_each(|bytes| {
                let found = levels(bytes, usize::MAX);
                if let (Ok(tree), Some(found)) = (Tree::decode(bytes), found) {
                    assert!(depth(&tree) <= found);
                }
            });
    }
}
