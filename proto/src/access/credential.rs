//! Source of a process's token.

use std::path::PathBuf;

use super::{LocalTokens, Token};
use crate::{Error, Result};

/// Source of a process's token. It is looked up repeatedly, as files and schedulers change.
///
/// A scheduler of the same user on this host has made its own tokens, which are found without an option. A token that is
/// given is used instead, and refused if the scheduler does not know it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Credential {
    /// Only the token that the scheduler has made, if any.
    #[default]
    Found,
    /// This token.
    Given(Token),
    /// The token in this file.
    File(PathBuf),
}

/// Holder that a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A client.
    Client,
    /// An executor.
    Executor,
}

impl Credential {
    /// Returns the credential of these options; the token takes precedence over the file.
    pub fn of(token: Option<Token>, file: Option<PathBuf>) -> Self {
        match (token, file) {
            (Some(token), _) => Self::Given(token),
            (None, Some(file)) => Self::File(file),
            (None, None) => Self::Found,
        }
    }

    /// Returns the token for the scheduler at an address, if there is one.
    ///
    /// # Errors
    /// When the file cannot be read, or does not hold a token.
    pub fn token(&self, scheduler: &str, holder: Holder) -> Result<Option<Token>> {
        match self {
            Self::Found => {
                let found = LocalTokens::find(scheduler);
                Ok(found.map(|found| match holder {
                    Holder::Client => found.client,
                    Holder::Executor => found.executor,
                }))
            }
            Self::Given(token) => Ok(Some(token.clone())),
            Self::File(path) => {
                let unreadable =
                    |source: Box<dyn std::error::Error + Send + Sync>| Error::Unreadable {
                        file: path.display().to_string(),
                        source,
                    };
                let text = std::fs::read_to_string(path).map_err(|e| unreadable(e.into()))?;
                let lines = text.trim().lines().count();
                if lines > 1 {
                    let reason = format!("it has {lines} lines; expected the token alone");
                    return Err(unreadable(reason.into()));
                }
                let token = text.parse().map_err(|e: Error| unreadable(e.into()))?;
                Ok(Some(token))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_from_where_it_was_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let token = Token::generate();
        std::fs::write(&file, format!("{}\n", token.reveal())).unwrap();
        let of = |credential: Credential| credential.token("127.0.0.1:1", Holder::Client);
        assert_eq!(
            of(Credential::of(None, Some(file.clone()))).unwrap(),
            Some(token)
        );
        let given = Token::generate();
        let both = Credential::of(Some(given.clone()), Some(file.clone()));
        assert_eq!(of(both).unwrap(), Some(given));
        std::fs::write(&file, "two lines\nof text").unwrap();
        let said = crate::failure::chain(&of(Credential::File(file)).unwrap_err());
        assert!(
            said.ends_with("it has 2 lines; expected the token alone"),
            "{said}"
        );
        assert!(of(Credential::File(dir.path().join("none"))).is_err());
    }
}
