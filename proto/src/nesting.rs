//! Nesting limits of protobuf messages, checked on their bytes before anything decodes them.
//!
//! A decoder recurses for each level, and the process ends at the end of the stack: prost has no limit of its own here,
//! since plans nest deeply. [`check`] looks at bytes alone, without a schema, so its result is an upper bound: text may
//! look like a message.
//!
//! ```text
//! bytes with a length prefix ─► treated as a message: their contents are one level deeper
//! groups, which nobody sends ─► each is one level deeper in the decoder, wherever it stands
//! ```
//!
//! A decoder also accepts the length of an inner message that is longer than its outer one, and fails only after it. So
//! messages that contain others of their own kind are decoded by [`decode`] first, which watches the stack: messages
//! that it accepts have no such lengths.

use std::cell::Cell;
use std::error::Error;

use bytes::Buf;
use prost::Message;

use crate::limits::{NESTED_GROUPS, NESTED_MESSAGES, STACK};

/// Bytes of a thread's stack that decoding may take.
const DECODING: usize = STACK / 8 * 5;

/// Checks that a decoder can be trusted with these bytes, except for messages that contain others of their own kind.
///
/// # Errors
/// The limit that they exceed.
pub fn check(message: &[u8]) -> Result<(), String> {
    if groups(message) > usize::from(NESTED_GROUPS) {
        return Err(format!(
            "the message has more than {NESTED_GROUPS} groups in each other"
        ));
    }
    match levels(message) <= NESTED_MESSAGES {
        true => Ok(()),
        false => Err(too_deep()),
    }
}

/// Decodes a message, bounded in stack.
///
/// # Errors
/// When it nests too deeply, or is not such a message.
pub fn decode<M: Message + Default>(message: &[u8]) -> Result<M, Box<dyn Error + Send + Sync>> {
    check(message)?;
    let overrun = Cell::new(false);
    let decoded = M::decode(Watched {
        bytes: message,
        floor: stack().saturating_sub(DECODING),
        overrun: &overrun,
    });
    match decoded {
        _ if overrun.get() => Err(too_deep().into()),
        Ok(decoded) => Ok(decoded),
        Err(error) => {
            // The error names every message on the path to the fault.
            let text = error.to_string();
            let short = text.get(..text.floor_char_boundary(200));
            Err(short.unwrap_or_default().into())
        }
    }
}

fn too_deep() -> String {
    format!(
        "the message has more than {NESTED_MESSAGES} levels, expected a query of fewer nested operators and expressions"
    )
}

/// Buffer that ends when the stack is nearly exhausted.
struct Watched<'a> {
    bytes: &'a [u8],
    /// Lowest address that the stack may reach; it grows downwards.
    floor: usize,
    overrun: &'a Cell<bool>,
}

/// Returns the approximate current end of the stack.
#[inline(never)]
fn stack() -> usize {
    let here = 0_u8;
    &raw const here as usize
}

impl Buf for Watched<'_> {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes = self.bytes.get(bytes..).unwrap_or_default();
        if stack() < self.floor {
            self.overrun.set(true);
            self.bytes = &[];
        }
    }
}

/// Field key and the position of its value.
#[derive(Clone, Copy)]
struct Key {
    field: u64,
    wire: u8,
    value: usize,
}

/// Returns the number of levels of the message; some number above the limit if there are more.
fn levels(message: &[u8]) -> usize {
    let mut deepest = 0;
    let mut at = 0;
    let mut ends = vec![message.len()];
    while let Some(&end) = ends.last() {
        deepest = deepest.max(ends.len() - 1);
        if deepest > NESTED_MESSAGES {
            return deepest;
        }
        if at == end {
            ends.pop();
            continue;
        }
        let next = match key(message, at) {
            Some(key) if key.wire == 2 => match within(message, key.value, end) {
                Some((inner, inner_end)) => {
                    at = inner;
                    ends.push(inner_end);
                    continue;
                }
                None => None,
            },
            Some(key) if key.wire == 3 => after_group(message, key, end),
            Some(key) => after_scalar(message, key),
            None => None,
        };
        match next.filter(|next| *next <= end) {
            Some(next) => at = next,
            // It is not a message; the rest of it does not count.
            None => {
                at = end;
                ends.pop();
            }
        }
    }
    deepest
}

/// Returns the start and end of a length-delimited value, if it lies within its message.
fn within(message: &[u8], at: usize, end: usize) -> Option<(usize, usize)> {
    let (length, inner) = varint(message, at)?;
    let inner_end = inner.checked_add(usize::try_from(length).ok()?)?;
    (inner_end <= end).then_some((inner, inner_end))
}

/// Returns the end of a group, if it lies within its message.
fn after_group(message: &[u8], first: Key, end: usize) -> Option<usize> {
    let mut open = vec![first.field];
    let mut at = first.value;
    while let Some(field) = open.last().copied() {
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
        at = next.filter(|next| *next <= end)?;
    }
    Some(at)
}

/// Returns an upper bound on the groups open at once, reading from any byte on.
fn groups(message: &[u8]) -> usize {
    let starts = message.iter().filter(|byte| **byte & 7 == 3).count();
    if starts <= usize::from(NESTED_GROUPS) {
        return starts;
    }
    // For each byte, the most groups that are opened and not closed, on the path that a decoder takes.
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

/// Returns the end of a field's value that is not a group; one with a length is skipped.
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

/// Returns a number of at most ten bytes, and its end.
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
    use super::*;

    /// Message that may contain itself.
    #[derive(Clone, PartialEq, Message)]
    struct Tree {
        #[prost(message, repeated, tag = "1")]
        inner: Vec<Tree>,
        #[prost(bytes = "vec", tag = "2")]
        text: Vec<u8>,
    }

    fn depth(tree: &Tree) -> usize {
        let inner = tree.inner.iter().map(|inner| 1 + depth(inner));
        inner.max().unwrap_or(0)
    }

    /// Returns nested messages of this depth.
    fn nested(levels: usize) -> Vec<u8> {
        // Built from the innermost: each message is the content after the next head.
        let mut reversed: Vec<u8> = Vec::new();
        for _ in 0..levels {
            let mut head = vec![0x0a];
            prost::encoding::encode_varint(reversed.len() as u64, &mut head);
            reversed.extend(head.into_iter().rev());
        }
        reversed.reverse();
        reversed
    }

    fn with_room(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(test);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn levels_are_counted() {
        for depth in [0, 1, 2, 200] {
            assert_eq!(levels(&nested(depth)), depth);
        }
        assert_eq!(check(&nested(NESTED_MESSAGES)), Ok(()));
        let error = check(&nested(NESTED_MESSAGES + 1)).unwrap_err();
        assert!(error.contains("levels"), "{error}");
        // Side by side, they are no deeper.
        let many: Vec<u8> = std::iter::repeat_n(nested(3), 10_000).flatten().collect();
        assert_eq!(levels(&many), 3);
    }

    #[test]
    fn groups_are_counted_wherever_they_stand() {
        let mut message = vec![0x0a, 3, b'a', b'b', b'c', 0x1a, 0x7f];
        message.extend(vec![0x0b; usize::from(NESTED_GROUPS) + 1]);
        assert!(check(&message).unwrap_err().contains("groups"));
        // As many side by side.
        let closed = std::iter::repeat_n([0x0b, 0x0c], 100_000).flatten();
        assert_eq!(check(&closed.collect::<Vec<u8>>()), Ok(()));
    }

    #[test]
    fn text_is_no_message_and_hides_none() {
        let text = "a name, a sentence; numbers 10 000 and the rest of it: zz BB jj";
        for text in [
            text.repeat(20_000),
            "z".repeat(100_000),
            "\n".repeat(100_000),
        ] {
            let mut message = vec![0x12];
            prost::encoding::encode_varint(text.len() as u64, &mut message);
            message.extend(text.as_bytes());
            assert_eq!(check(&message), Ok(()));
            // As rows of a table.
            let rows: Vec<u8> = std::iter::repeat_n(&message[..], 3)
                .flatten()
                .copied()
                .collect();
            assert_eq!(check(&rows), Ok(()));
            message.extend(nested(NESTED_MESSAGES + 1));
            assert!(check(&message).is_err());
        }
        let row = [
            0x0a, 10, 0x0a, 8, b'z', b'z', b'b', b'k', b'"', b'2', b'c', b':',
        ];
        let rows = std::iter::repeat_n(row, 200_000).flatten();
        assert_eq!(check(&rows.collect::<Vec<u8>>()), Ok(()));
    }

    #[test]
    fn groups_that_do_not_end_take_no_time() {
        let message = std::iter::repeat_n([0x0a, 1, 0x0b], 1_000_000).flatten();
        assert_eq!(levels(&message.collect::<Vec<u8>>()), 1);
    }

    #[test]
    fn a_length_beyond_its_message_leads_nowhere() {
        with_room(|| {
            // Each message is longer than its outer one, by its head.
            let message: Vec<u8> = std::iter::repeat_n([0x0a, 100], 1_000_000)
                .flatten()
                .collect();
            assert_eq!(check(&message), Ok(()), "it has two levels");
            assert!(decode::<Tree>(&message).is_err());
            let tree: Tree = decode(&nested(NESTED_MESSAGES)).unwrap();
            assert_eq!(depth(&tree), NESTED_MESSAGES);
            assert!(decode::<Tree>(&nested(NESTED_MESSAGES + 1)).is_err());
        });
    }

    /// Checks that decoding reaches no more levels than were found.
    #[test]
    fn a_decoder_goes_no_deeper() {
        bolero::check!(name = "nesting")
            .with_iterations(20_000)
            .with_max_len(200)
            .for_each(|bytes| {
                let decoded = Tree::decode(bytes);
                assert_eq!(decode::<Tree>(bytes).ok(), decoded.clone().ok());
                if let Ok(tree) = decoded {
                    assert!(depth(&tree) <= levels(bytes));
                }
            });
    }
}
