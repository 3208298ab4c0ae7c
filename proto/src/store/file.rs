//! Integrity check of a file by its length and hash, which another file keeps.
//!
//! It detects truncation and accidental damage, not tampering: XXH64 does not prevent another file with the same hash.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// A file as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenFile {
    /// Name of the file.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Hash (XXH64, seed 0), in hexadecimal.
    pub hash: String,
    /// Path under the model's own path; none for a file beside its manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl WrittenFile {
    /// Returns the record of a file with this name and content.
    pub(super) fn of(name: &str, content: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            bytes: content.len() as u64,
            hash: hash(content),
            path: None,
        }
    }

    /// Returns the actual and the expected length or hash, if this is not the file's content.
    pub(super) fn differs(&self, content: &[u8]) -> Option<[String; 2]> {
        let bytes = content.len() as u64;
        if bytes != self.bytes {
            return Some([bytes, self.bytes].map(|bytes| format!("{bytes} bytes")));
        }
        let found = hash(content);
        (found != self.hash).then(|| [&found, &self.hash].map(|hash| format!("hash {hash}")))
    }
}

/// Returns a content's hash, in hexadecimal.
fn hash(content: &[u8]) -> String {
    format!("{:016x}", XxHash64::oneshot(0, content))
}
