//! JSON Web Tokens (RFC 7519) as bearer tokens: an issuer authenticates principals and gives them roles.
//!
//! ```text
//!   token ─► header: algorithm, key id ─► key of the key set ─► signature ─► exp, nbf, iss, aud ─► sub, role ─► Principal
//!              │ none, HS*                 │ no such key, or one of another type
//!              └──────────── refused ──────┴─────────────────────┴────────────────┴────────────────┘
//! ```
//!
//! The key decides which algorithms verify a token, never the token alone. Keys come from the key set only:
//! references to keys in the header (`jku`, `jwk`, `x5u`, `x5c`) are ignored. The module makes no tokens, keeps none,
//! and asks no issuer about revocation: a token is valid until it expires.

mod claims;
mod config;
/// An issuer, shared with the tests over processes.
#[cfg(test)]
#[path = "../../../../tests/src/issuer.rs"]
#[allow(dead_code, unreachable_pub)]
mod issuer;
mod keys;
mod signatures;
mod source;
#[cfg(test)]
mod tests;

use jsonwebtoken::errors::{Error as JwtError, ErrorKind};
use jsonwebtoken::{Header, Validation, decode, decode_header};

use self::claims::Claims;
pub(super) use self::claims::Verified;
pub use self::config::{JwtConfig, KeySetLocation};
use self::keys::KeySet;
use self::signatures::ALGORITHMS;
use self::source::KeySource;
use crate::Result;

/// Tolerated difference between the clocks of issuer and scheduler, in seconds.
const LEEWAY: u64 = 60;

/// Reason for refusing a JSON Web Token; its text contains nothing of the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error(
        "it is not a JSON Web Token signed with RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA"
    )]
    Malformed,
    #[error("its header has extensions (crit), which are not known here")]
    Extensions,
    #[error("the key set has no key of the id that it names (kid)")]
    UnknownKey,
    #[error("it names no key (kid), and the key set has several for its algorithm")]
    NoKeyId,
    #[error("the key set has no key for its algorithm that it could be signed with")]
    KeyOfAnotherAlgorithm,
    #[error("its signature is not one of the key that it names")]
    Signature,
    #[error("it has expired (exp)")]
    Expired,
    #[error("it is not valid yet (nbf)")]
    NotYet,
    #[error("its issuer (iss) is not the one of --jwt-issuer")]
    Issuer,
    #[error("its audience (aud) is not the one of --jwt-audience")]
    Audience,
    #[error("its claim {0} is missing, or malformed")]
    Missing(String),
    #[error("its claim {0} has no role: expected read, run or administer")]
    Role(String),
    #[error(
        "its subject (sub) is not a name: expected letters, digits and signs without spaces, at most 255, and none of \
         the scheduler's own names"
    )]
    Subject,
}

/// Verifier of one issuer's tokens.
#[derive(Debug)]
pub(super) struct JwtVerifier {
    claims: ClaimRules,
    keys: KeySource,
}

/// Requirements for the claims of a token.
#[derive(Debug)]
struct ClaimRules {
    /// Validation without algorithms, which depend on the token.
    validation: Validation,
    role_claim: String,
}

impl JwtVerifier {
    /// # Errors
    /// When the key set cannot be read.
    pub(super) async fn open(config: &JwtConfig) -> Result<Self> {
        signatures::install();
        Ok(Self {
            claims: ClaimRules::new(config),
            keys: KeySource::open(&config.keys).await?,
        })
    }

    /// Checks whether a bearer token is meant as a JSON Web Token.
    pub(super) fn is_meant(token: &str) -> bool {
        token.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// # Errors
    /// When a token is refused, with the reason.
    pub(super) async fn verify(&self, token: &str) -> Result<Verified, Refused> {
        // Decoded before a key is looked for, perhaps far away.
        let header = header(token)?;
        let keys = self.keys.keys(header.kid.as_deref()).await;
        self.claims.verify(token, &header, &keys)
    }
}

/// Decodes the header of a token; nothing in it is proven yet.
fn header(token: &str) -> Result<Header, Refused> {
    // Algorithms without a name here, `none` among them, do not decode.
    let header = decode_header(token).map_err(|_| Refused::Malformed)?;
    if !ALGORITHMS.contains(&header.alg) {
        return Err(Refused::Malformed);
    }
    match header.crit {
        Some(_) => Err(Refused::Extensions),
        None => Ok(header),
    }
}

impl ClaimRules {
    fn new(config: &JwtConfig) -> Self {
        let mut validation = Validation::new(ALGORITHMS[0]);
        validation.algorithms.clear();
        validation.leeway = LEEWAY;
        validation.validate_exp = true;
        validation.validate_nbf = true;
        validation.set_issuer(&[&config.issuer]);
        validation.set_audience(&[&config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        Self {
            validation,
            role_claim: config.role_claim.clone(),
        }
    }

    /// # Errors
    /// When a token is refused, with the reason.
    fn verify(&self, token: &str, header: &Header, keys: &KeySet) -> Result<Verified, Refused> {
        let key = keys.key(header.kid.as_deref(), header.alg)?;
        let validation = Validation {
            algorithms: vec![header.alg],
            ..self.validation.clone()
        };
        let token = decode::<Claims>(token, key, &validation).map_err(refusal)?;
        Verified::of(&token.claims, &self.role_claim)
    }
}

fn refusal(error: JwtError) -> Refused {
    match error.into_kind() {
        ErrorKind::InvalidSignature => Refused::Signature,
        ErrorKind::ExpiredSignature => Refused::Expired,
        ErrorKind::ImmatureSignature => Refused::NotYet,
        ErrorKind::InvalidIssuer => Refused::Issuer,
        ErrorKind::InvalidAudience => Refused::Audience,
        ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
            Refused::Missing(claim)
        }
        _ => Refused::Malformed,
    }
}
