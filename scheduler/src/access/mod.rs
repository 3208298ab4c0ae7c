//! Authentication and authorization at the scheduler's port.
//!
//! ```text
//!   request ─► check_host ─► admit: token or cookie ─► Principal ─► role for the path ─► service: owner, plan
//!                              │ none, or unknown: 401        │ too little: 403           │ another's: 403
//!                              └──────────────────────────────┴──── audit: one line each ─┘
//! ```
//!
//! Everything behind the port goes through [`admit`]; where TLS is spoken, what executors ask takes the certificate of a
//! process of the cluster besides, while clients and browsers need none. A path that [`rules`] does not know needs an administrator. What a
//! service does then, such as whose job it is, it asks its [`Caller`].

mod audit;
mod counts;
mod gate;
mod jwt;
mod limits;
mod login;
mod reloaded;
mod rules;
mod tokens;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use volley_proto::access::{
    AllowedPaths, ClusterSecret, ExposureOptions, Held, LocalTokens, Principal, Role, Token,
    TokenFile, TokenHash, may_listen,
};

pub(crate) use self::audit::{Outcome, audit};
pub(crate) use self::counts::AccessCounts;
pub(crate) use self::gate::{Caller, OnRefusal, admit, is_grpc};
pub use self::jwt::{JwtConfig, KeySetLocation};
use self::jwt::{JwtVerifier, Refused, Verified};
pub use self::limits::{GpuHours, Limits, RoleLimits};
use self::login::Logins;
pub(crate) use self::login::routes;
#[cfg(test)]
pub(crate) use self::rules::PAGE;
use self::tokens::{Table, TokensFile};
use crate::{Error, Result, SchedulerConfig};

/// Options of the scheduler's address and of its tokens.
const OPTIONS: ExposureOptions = ExposureOptions {
    bind: "--bind",
    tokens: "--tokens FILE",
};

/// Whose requests a scheduler answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tokens {
    /// Requests of the user who started it and of this user's executors: it generates tokens, which they find on disk.
    /// Only on loopback.
    #[default]
    Local,
    /// As [`Local`](Self::Local), or of this process alone where the tokens cannot be written to disk.
    Embedded,
    /// Requests with a token whose hash is in a file.
    File(PathBuf),
    /// All requests, for everything: no token is required.
    Anybody,
}

impl Tokens {
    /// Returns a word about who may send requests, for the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Embedded => "embedded",
            Self::File(_) => "file",
            Self::Anybody => "anybody",
        }
    }
}

/// The known principals.
#[derive(Debug)]
enum Known {
    Anybody,
    Local {
        table: Table,
        _held: Held,
        _published: Option<TokenFile>,
    },
    File(TokensFile),
}

/// Credential that a principal presented. A login keeps it in place of the token itself.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Credential {
    /// Hash of a token, which is looked up with each request.
    Token(TokenHash),
    /// A verified JSON Web Token: its claims hold until it expires.
    Jwt(Verified),
}

/// Reason why a request has no principal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unidentified {
    #[error("is missing")]
    NoToken,
    #[error("is unknown")]
    Unknown,
    #[error("is refused: {0}")]
    Jwt(Refused),
}

/// Authorization of requests.
#[derive(Debug)]
pub(crate) struct Access {
    known: Known,
    jwt: Option<JwtVerifier>,
    limits: Limits,
    secret: ClusterSecret,
    logins: Logins,
    counts: Arc<AccessCounts>,
    paths: AllowedPaths,
}

impl Access {
    /// Opens the access control of a scheduler that listens at this address.
    ///
    /// # Errors
    /// When it must not listen there, tokens can be neither read nor made, or the key set of JSON Web Tokens cannot be
    /// read.
    pub(crate) async fn open(config: &SchedulerConfig, bound: SocketAddr) -> Result<Self> {
        let tokens = config.tokens != Tokens::Anybody;
        let (tls, options) = (config.tls.is_some(), OPTIONS);
        may_listen(bound.ip(), tokens, tls, config.insecure, options).map_err(Error::Exposed)?;
        let jwt = match &config.jwt {
            Some(_) if !tokens => return Err(Error::JwtWithoutTokens),
            Some(jwt) => Some(JwtVerifier::open(jwt).await?),
            None => None,
        };
        let known = match &config.tokens {
            Tokens::Anybody => {
                tracing::warn!(
                    "no token is required: any client that reaches {bound} may do everything"
                );
                Known::Anybody
            }
            Tokens::File(path) => Known::File(TokensFile::open(path)?),
            Tokens::Local | Tokens::Embedded if !bound.ip().is_loopback() => {
                return Err(Error::NoTokens);
            }
            Tokens::Local | Tokens::Embedded => {
                let tokens = LocalTokens::generate();
                let published = match tokens.publish(bound) {
                    Ok(published) => {
                        let file = published.path().display();
                        tracing::info!(%file, "made tokens for this user's clients and executors");
                        Some(published)
                    }
                    Err(error) if config.tokens == Tokens::Embedded => {
                        tracing::info!(%error, "made tokens for this process alone");
                        None
                    }
                    Err(error) => return Err(Error::LocalTokens(error)),
                };
                let whom = |name: &str, role| Principal {
                    name: name.to_owned(),
                    role,
                };
                let table = Table::of([
                    (tokens.client.hash(), whom("local", Role::Administer)),
                    (
                        tokens.executor.hash(),
                        whom("local-executors", Role::Executor),
                    ),
                ]);
                Known::Local {
                    table,
                    _held: tokens.hold(bound),
                    _published: published,
                }
            }
        };
        Ok(Self {
            known,
            jwt,
            limits: config.limits.clone(),
            secret: ClusterSecret::generate(),
            logins: Logins::at(bound.port(), config.tls.is_some()),
            counts: Arc::default(),
            paths: config.allowed_paths.clone(),
        })
    }

    /// Returns the secret that the cluster's processes share.
    pub(crate) fn secret(&self) -> &ClusterSecret {
        &self.secret
    }

    /// Returns the numbers of logins and refusals.
    pub(crate) fn counts(&self) -> &Arc<AccessCounts> {
        &self.counts
    }

    /// Returns the paths that plans may read and write.
    pub(crate) fn paths(&self) -> &AllowedPaths {
        &self.paths
    }

    /// Returns the limits of a role.
    fn limits(&self, role: Role) -> RoleLimits {
        self.limits.of(role)
    }

    /// Returns the credential and the principal of a bearer token: a known token, or a valid JSON Web Token.
    ///
    /// # Errors
    /// When it is neither.
    async fn recognize(&self, token: &str) -> Result<(Credential, Principal), Unidentified> {
        let parsed = token.parse::<Token>();
        let parsed = parsed.map_err(|_| Unidentified::Unknown)?;
        let known = Credential::Token(parsed.hash());
        if let Some(principal) = self.principal(&known) {
            return Ok((known, principal));
        }
        match &self.jwt {
            Some(jwt) if JwtVerifier::is_meant(token) => {
                let verified = jwt.verify(token).await.map_err(Unidentified::Jwt)?;
                let principal = verified.principal.clone();
                Ok((Credential::Jwt(verified), principal))
            }
            _ => Err(Unidentified::Unknown),
        }
    }

    /// Returns the principal of a credential, if it is still valid.
    fn principal(&self, credential: &Credential) -> Option<Principal> {
        match (credential, &self.known) {
            (_, Known::Anybody) => Some(Principal::anybody()),
            (Credential::Token(token), Known::Local { table, .. }) => table.holder(token),
            (Credential::Token(token), Known::File(file)) => file.table().holder(token),
            (Credential::Jwt(verified), _) => verified
                .holds(SystemTime::now())
                .then(|| verified.principal.clone()),
        }
    }

    fn asks_nobody(&self) -> bool {
        matches!(self.known, Known::Anybody)
    }
}
