//! A file of tokens: principals by the hashes of their tokens.
//!
//! ```text
//!   # name  role        hash, as volley cluster token prints it
//!   alice   run         sha256:9f86d081…
//!   nodes   executor    sha256:60303ae2…
//! ```
//!
//! The file is read again when it changes. If it is invalid, the table before it stays, and the log says why.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use volley_proto::access::{Principal, TokenHash};

use super::reloaded::ReloadedFile;
use crate::{Error, Result};

/// Principals by the hashes of their tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    holders: HashMap<TokenHash, Principal>,
}

impl Table {
    pub(super) fn of(holders: impl IntoIterator<Item = (TokenHash, Principal)>) -> Self {
        let holders = holders.into_iter().collect();
        Self { holders }
    }

    /// Returns the holder of a token. The hash is looked up, not compared, so the time taken says nothing about the
    /// token.
    pub(super) fn holder(&self, token: &TokenHash) -> Option<Principal> {
        self.holders.get(token).cloned()
    }

    /// # Errors
    /// When a line is invalid; names the first, and the reason.
    fn parse(text: &str) -> Result<Self, String> {
        let mut holders = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            let wrong = |reason: String| format!("line {}: {reason}", number + 1);
            let [name, role, hash] = words[..] else {
                let found = words.len();
                let reason = format!("expected a name, a role and a hash, found {found} words");
                return Err(wrong(reason));
            };
            Principal::check_name(name).map_err(wrong)?;
            let principal = Principal {
                name: name.to_owned(),
                role: role.parse().map_err(wrong)?,
            };
            let hash: TokenHash = hash.parse().map_err(wrong)?;
            if holders.insert(hash, principal).is_some() {
                return Err(wrong("the same token is on a line before".to_owned()));
            }
        }
        match holders.is_empty() {
            true => {
                Err("there is no token in it: volley cluster token prints lines for it".to_owned())
            }
            false => Ok(Self { holders }),
        }
    }
}

/// File of tokens; its newest valid table counts.
#[derive(Debug)]
pub(super) struct TokensFile(ReloadedFile<Table>);

impl TokensFile {
    /// # Errors
    /// When the file cannot be read, or is invalid.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = ReloadedFile::open(path, "tokens", Table::parse);
        file.map(Self).map_err(|source| Error::Tokens {
            path: path.to_owned(),
            source,
        })
    }

    /// Returns the newest valid table.
    pub(super) fn table(&self) -> Arc<Table> {
        self.0.current()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use volley_proto::access::{Role, Token};

    use super::*;

    #[test]
    fn a_line_is_a_name_a_role_and_a_hash() {
        let (alice, nodes) = (Token::generate(), Token::generate());
        let text = format!(
            "# who may what\n\nalice run {} # since May\n  nodes executor {}\n",
            alice.hash(),
            nodes.hash()
        );
        let table = Table::parse(&text).unwrap();
        let holder = table.holder(&alice.hash()).unwrap();
        assert_eq!((holder.name.as_str(), holder.role), ("alice", Role::Run));
        assert_eq!(table.holder(&nodes.hash()).unwrap().role, Role::Executor);
        assert_eq!(table.holder(&Token::generate().hash()), None);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let hash = Token::generate().hash();
        for (text, said) in [
            (String::new(), "no token"),
            (
                format!("alice run {hash}\nbob {hash}"),
                "line 2: expected a name, a role and a hash",
            ),
            (
                format!("alice root {hash}"),
                "line 1: \"root\" is not a role",
            ),
            ("alice run secret".to_owned(), "line 1: expected sha256:"),
            (
                format!("local run {hash}"),
                "line 1: the name local is taken",
            ),
            (format!("a/b run {hash}"), "line 1: \"a/b\" is not a name"),
            (
                format!("a run {hash}\nb run {hash}"),
                "line 2: the same token",
            ),
        ] {
            let found = Table::parse(&text).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }

    #[test]
    fn a_changed_file_is_read_and_a_wrong_one_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let tokens: Vec<_> = (0..3).map(|_| Token::generate()).collect();
        let line = |number: usize| format!("user-{number} run {}\n", tokens[number].hash());
        fs::write(&path, line(0)).unwrap();
        let file = TokensFile::open(&path).unwrap();
        let start = Instant::now();
        let knows = |second: u64, number: usize| {
            let table = file.0.current_at(start + Duration::from_secs(second));
            table.holder(&tokens[number].hash()).is_some()
        };
        assert!(knows(0, 0) && !knows(0, 1));
        fs::write(&path, line(0) + &line(1)).unwrap();
        assert!(!knows(0, 1), "it was looked at just now");
        assert!(knows(5, 0) && knows(5, 1));
        fs::write(&path, line(2) + "nonsense").unwrap();
        assert!(knows(10, 1) && !knows(10, 2));
        fs::remove_file(&path).unwrap();
        assert!(knows(15, 1));
        fs::write(&path, line(2)).unwrap();
        assert!(knows(20, 2) && !knows(20, 0));
    }

    #[test]
    fn a_scheduler_does_not_start_with_a_wrong_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(TokensFile::open(&dir.path().join("none")).is_err());
        let path = dir.path().join("tokens");
        fs::write(&path, "x").unwrap();
        let error = TokensFile::open(&path).unwrap_err();
        assert!(matches!(error, Error::Tokens { .. }));
    }
}
