//! Shared secret of a generation's ranks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Secret that the ranks of one generation prove to each other to know; the rendezvous gives it to them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u8; Self::BYTES]);

impl Secret {
    /// Length in bytes.
    pub const BYTES: usize = 32;

    /// Draws a secret from the operating system's random numbers.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Reads a secret from the wire; returns `None` if its length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the bytes, to send them or to prove that one knows them.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    /// Hides the secret from logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
