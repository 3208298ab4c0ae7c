//! Tokens, and the hashes kept where they are checked.
//!
//! Tokens are random and long, so that one round of SHA-256 is enough, and looking up a hash reveals nothing about
//! other tokens.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{Error, Result};

/// Prefix of tokens, for programs that scan texts for secrets.
const PREFIX: &str = "volley_";

/// Maximum length in bytes. A JSON Web Token with a list of roles takes one or two thousand; HTTP/2's headers end at 16
/// KiB.
const LONGEST: usize = 8192;

/// Bearer token: one that is drawn here, or a JSON Web Token of an issuer. Its debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Draws a new token from the operating system's randomness.
    pub fn generate() -> Self {
        Self(format!("{PREFIX}{}", hex(&random())))
    }

    /// Returns the secret itself: for the wire, and for the one file or terminal that it is meant for.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns its hash, which is kept where it is checked.
    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Parses text that can go into a header, without the white space around it.
impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let is_token = |c: char| c.is_ascii_graphic();
        match !text.is_empty() && text.len() <= LONGEST && text.chars().all(is_token) {
            true => Ok(Self(text.to_owned())),
            false => {
                let expected = format!(
                    "expected letters, digits and signs on one line, at most {LONGEST}, as volley cluster token prints \
                     them, or a JSON Web Token"
                );
                Err(Error::option("token", "…", expected))
            }
        }
    }
}

/// SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex(&self.0))
    }
}

impl FromStr for TokenHash {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        unhex(digits)
            .map(Self)
            .ok_or_else(|| "expected sha256: and 64 hexadecimal digits".to_owned())
    }
}

/// Draws 256 random bits from three random UUIDs of 122 bits each.
pub(super) fn random() -> [u8; 32] {
    let mut drawn = Sha256::new();
    for _ in 0..3 {
        drawn.update(Uuid::new_v4().as_bytes());
    }
    drawn.finalize().into()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    let digits = |byte: &u8| [digit(byte >> 4), digit(byte & 15)];
    bytes.iter().flat_map(digits).collect()
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    // `from_str_radix` would accept a sign.
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_new_each_time_and_print_as_dots() {
        let (one, other) = (Token::generate(), Token::generate());
        assert_ne!(one, other);
        assert!(!format!("{one:?}").contains(&one.reveal()[PREFIX.len()..]));
        assert_eq!(one.reveal().parse::<Token>().unwrap(), one);
        assert_eq!(
            format!(" {}\n", one.reveal()).parse::<Token>().unwrap(),
            one
        );
        for wrong in ["", " ", "two words", "line\nbreak", "ä"] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong:?}");
        }
        assert!("x".repeat(LONGEST).parse::<Token>().is_ok());
        assert!("x".repeat(LONGEST + 1).parse::<Token>().is_err());
    }

    #[test]
    fn hashes_are_those_of_sha256() {
        let token: Token = "abc".parse().unwrap();
        let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(token.hash().to_string(), expected);
        assert_eq!(expected.parse(), Ok(token.hash()));
        for wrong in ["", "sha256:", "sha256:00", &expected[..70], "md5:00"] {
            assert!(wrong.parse::<TokenHash>().is_err(), "{wrong:?}");
        }
        let signed = format!("sha256:+1{}", &expected[9..]);
        assert!(signed.len() == expected.len() && signed.parse::<TokenHash>().is_err());
    }
}
