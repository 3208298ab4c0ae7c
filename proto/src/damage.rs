//! Damaged copies of bytes, the same for the same seed, for tests of decoders.
//!
//! Random bytes are hardly ever decoded to their end. A valid encoding with a few bytes changed is, and its numbers are
//! lengths and counts that a decoder may reserve memory by.

use crate::splitmix;

/// Replacements of a number in text.
const NUMBERS: [&str; 8] = [
    "0",
    "-1",
    "4294967295",
    "18446744073709551615",
    "9223372036854775807",
    "1e308",
    "null",
    "[]",
];

/// Number of damaged copies that [`with_damaged_copies`] makes of a sample.
const COPIES: u64 = 2_000;

/// Returns a sample and damaged copies of it.
pub fn with_damaged_copies(sample: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let copies = (0..COPIES).map(|seed| damaged(sample, seed));
    std::iter::once(sample.to_vec()).chain(copies)
}

/// Returns a copy with one to four changes.
pub fn damaged(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    let mut drawn = 0;
    let mut draw = |below: usize| {
        drawn += 1;
        (splitmix::at(seed, drawn) % below.max(1) as u64) as usize
    };
    for _ in 0..=draw(4) {
        if copy.is_empty() {
            return vec![draw(256) as u8];
        }
        let at = draw(copy.len());
        match draw(8) {
            0 => copy[at] ^= 1 << draw(8),
            1 => copy[at] = [0, 1, 0x7f, 0x80, 0xff][draw(5)],
            2 => copy.truncate(at),
            3 => {
                let end = copy.len().min(at + 1 + draw(16));
                copy.drain(at..end);
            }
            4 => {
                let end = copy.len().min(at + 1 + draw(64));
                let again = copy[at..end].to_vec();
                copy.splice(at..at, again);
            }
            5 => {
                let end = copy.len().min(at + [2, 4, 8][draw(3)]);
                copy[at..end].fill([0, 0x7f, 0xff][draw(3)]);
            }
            _ => change_number(&mut copy, at, NUMBERS[draw(NUMBERS.len())]),
        }
    }
    copy
}

/// Replaces the next number in text, from a position on.
fn change_number(text: &mut Vec<u8>, from: usize, by: &str) {
    let Some(start) = text[from..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let start = from + start;
    let digits = text[start..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    let end = start + digits.count();
    text.splice(start..end, by.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_differ_by_their_seed_alone() {
        let text = br#"{"rows": 17, "values": [1, 2, 3]}"#;
        let copies: std::collections::HashSet<_> =
            (0..200).map(|seed| damaged(text, seed)).collect();
        assert!(copies.len() > 100);
        assert_eq!(damaged(text, 7), damaged(text, 7));
        damaged(b"", 1);
        let mut text = text.to_vec();
        change_number(&mut text, 3, "-1");
        assert!(text.starts_with(br#"{"rows": -1,"#));
    }
}
