//! The shared secret of a generation's ranks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the ranks of one generation prove to each other that they know: the rendezvous gives it to them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u8; Self::BYTES]);

impl Secret {
    /// Its length.
    pub const BYTES: usize = 32;

    /// One from the operating system's random numbers.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// One that came over the wire; `None` if it is not as long as one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// For the wire, and to prove that one knows it.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    /// Logs do not tell it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
