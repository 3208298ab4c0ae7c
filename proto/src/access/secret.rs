//! Secret that the processes of a cluster share, and the codes made with it.
//!
//! A scheduler draws one when it starts and sends it to attending executors; it is not stored. It makes
//!
//! - tickets: the right to read the rows of one job, which a client shows to executors. A ticket takes the place of the
//!   job's id in Ballista's client, which passes it on unchanged;
//! - proofs: that a connection belongs to the cluster, bound to the address that it is opened to, so that a process
//!   that has taken an executor's port cannot replay it elsewhere. They go in the one header that an endpoint can set
//!   for Ballista's clients.

use std::fmt;

use sha2::{Digest, Sha256};
use tonic::transport::{Endpoint, Error as TransportError};

use super::token::{hex, random, unhex};

/// Prefix of a proof in the header `user-agent`.
pub const PROOF: &str = "volley-peer/";

/// Secret of a cluster's processes. Its debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSecret([u8; 32]);

impl ClusterSecret {
    /// Draws a new secret.
    pub fn generate() -> Self {
        Self(random())
    }

    /// Reads a secret from the wire; returns `None` if its length is wrong.
    pub fn from_wire(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns its bytes, for executors that have shown their token.
    pub fn to_wire(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Returns the right to read a job's rows: its id and an HMAC over it.
    pub fn ticket(&self, job: &str) -> String {
        format!("{job}.{}", self.code("rows of a job", job))
    }

    /// Returns the job of a ticket; `None` if it was not made with this secret.
    pub fn job_of<'a>(&self, ticket: &'a str) -> Option<&'a str> {
        let (job, code) = ticket.rsplit_once('.')?;
        self.is_code(code, "rows of a job", job).then_some(job)
    }

    /// Adds a proof to an endpoint's requests that they belong to the cluster.
    ///
    /// # Errors
    /// Never: a code is valid header text.
    pub fn prove(&self, endpoint: Endpoint) -> Result<Endpoint, TransportError> {
        let audience = endpoint.uri().authority();
        let audience = audience.map(|address| address.as_str().to_owned());
        let code = self.code("peer", &audience.unwrap_or_default());
        endpoint.user_agent(format!("{PROOF}{code}"))
    }

    /// Checks whether a proof is bound to `address`, a `host:port`.
    pub fn is_proof(&self, proof: &str, address: &str) -> bool {
        self.is_code(proof, "peer", address)
    }

    fn code(&self, purpose: &str, text: &str) -> String {
        hex(&self.mac(purpose, text))
    }

    fn is_code(&self, code: &str, purpose: &str, text: &str) -> bool {
        unhex(code).is_some_and(|code| is_same_code(&code, &self.mac(purpose, text)))
    }

    fn mac(&self, purpose: &str, text: &str) -> [u8; 32] {
        hmac_sha256(&self.0, &[purpose.as_bytes(), &[0], text.as_bytes()])
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

/// Returns the proof in a `user-agent`, to which the client's library has appended its own name.
pub fn proof_of(user_agent: &str) -> Option<&str> {
    user_agent.split(' ').next()?.strip_prefix(PROOF)
}

/// Computes the HMAC-SHA256 (RFC 2104) of a message in parts.
pub fn hmac_sha256(key: &[u8], message: &[&[u8]]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut block = [0; BLOCK];
    match block.get_mut(..key.len()) {
        Some(start) => start.copy_from_slice(key),
        None => {
            let digest: [u8; 32] = Sha256::digest(key).into();
            block[..32].copy_from_slice(&digest);
        }
    }
    let mut inner = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x36));
    for part in message {
        inner.update(part);
    }
    let mut outer = Sha256::new_with_prefix(block.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// Compares two codes in constant time.
pub fn is_same_code(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let pairs = one.iter().zip(other);
    let differing = pairs.fold(0_u8, |differing, (a, b)| {
        std::hint::black_box(differing | (a ^ b))
    });
    differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a test's secret, all of whose bytes are `byte`.
    fn secret(byte: u8) -> ClusterSecret {
        ClusterSecret([byte; 32])
    }

    #[test]
    fn codes_are_those_of_hmac_sha256() {
        // RFC 4231's test case 3 has a key of 20 bytes; zero padding does not change the result.
        let mut key = [0; 32];
        key[..20].fill(0xaa);
        let code = hex(&hmac_sha256(&key, &[&[0xdd; 50]]));
        let expected = "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe";
        assert_eq!(code, expected);
    }

    #[test]
    fn a_ticket_is_of_one_job_and_one_cluster() {
        let (own, other) = (secret(1), secret(2));
        let ticket = own.ticket("job.1");
        assert_eq!(own.job_of(&ticket), Some("job.1"));
        assert_eq!(other.job_of(&ticket), None);
        let code = ticket.rsplit_once('.').unwrap().1;
        for forged in [
            "job.1".to_owned(),
            "job.1.".to_owned(),
            format!("job.2.{code}"),
            format!("../job.1.{code}"),
            format!("job.1.{}", &code[1..]),
            format!("job.1.{}", own.code("peer", "job.1")),
        ] {
            assert_eq!(own.job_of(&forged), None, "{forged}");
        }
    }

    #[test]
    fn a_proof_is_for_who_it_is_shown_to() {
        let own = secret(1);
        let endpoint = Endpoint::from_static("http://10.0.0.7:4000");
        own.prove(endpoint).unwrap();
        let code = own.code("peer", "10.0.0.7:4000");
        let sent = format!("{PROOF}{code} tonic/0.14");
        let proof = proof_of(&sent).unwrap();
        assert!(own.is_proof(proof, "10.0.0.7:4000"));
        assert!(
            !own.is_proof(proof, "10.0.0.7:4001") && !secret(2).is_proof(proof, "10.0.0.7:4000")
        );
        assert_eq!(proof_of("tonic/0.14"), None);
        assert_eq!(ClusterSecret::from_wire(&own.to_wire()), Some(own.clone()));
        assert_eq!(ClusterSecret::from_wire(&[]), None);
        assert_eq!(format!("{own:?}"), "ClusterSecret(…)");
    }
}
