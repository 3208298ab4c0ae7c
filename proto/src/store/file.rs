//! Whether a file is what was written: its length and its hash, kept in another file.
//!
//! It tells half a file and a damaged one, by accident and not by intent: XXH64 keeps nobody from making another file
//! of the same hash.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// A file as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenFile {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its hash (XXH64, seed 0), in hexadecimal.
    pub hash: String,
    /// Where it is under the model's own path; none for a file beside its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl WrittenFile {
    /// A file of this name and content.
    pub(super) fn of(name: &str, content: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            bytes: content.len() as u64,
            hash: hash(content),
            path: None,
        }
    }

    /// What a file has and what it should have, where this is not its content.
    pub(super) fn differs(&self, content: &[u8]) -> Option<[String; 2]> {
        let bytes = content.len() as u64;
        if bytes != self.bytes {
            return Some([bytes, self.bytes].map(|bytes| format!("{bytes} bytes")));
        }
        let found = hash(content);
        (found != self.hash).then(|| [&found, &self.hash].map(|hash| format!("hash {hash}")))
    }
}

/// A content's hash, in hexadecimal.
fn hash(content: &[u8]) -> String {
    format!("{:016x}", XxHash64::oneshot(0, content))
}
