//! Access control: tokens, roles, and proofs of membership between the processes of a cluster.
//!
//! ```text
//!   client ── Bearer token ──► scheduler ── proof of peer ──► executor's task server
//!     │                           │ a secret, new with each scheduler, told to executors that attend
//!     │                           ▼
//!     └── ticket of one job ──► executor's Flight service ◄── proof of peer ── other executors
//! ```
//!
//! A token is 256 random bits, kept as its SHA-256 where it is checked. Tickets and proofs are HMAC-SHA256 under
//! the [`ClusterSecret`]. It decides and speaks no protocol; where requests come in is for the scheduler and the
//! executor.

mod bearer;
mod credential;
mod exposure;
mod local;
mod paths;
mod role;
mod secret;
mod token;

pub use bearer::{Authorized, Bearer, bearer};
pub use credential::{Credential, Holder};
pub use exposure::{ExposureOptions, may_listen};
pub use local::{Held, LocalTokens, TokenFile, started, state_folder};
pub use paths::{AllowedPaths, Denied};
pub use role::{Principal, Role};
pub use secret::{ClusterSecret, PROOF, hmac_sha256, is_same_code, proof_of};
pub use token::{Token, TokenHash};
