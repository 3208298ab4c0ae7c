//! Authentication of peers at an executor's ports; peers are processes of the same cluster.

use tonic::{Request, Status};
use volley_proto::access::{ClusterSecret, proof_of};
use volley_proto::tls::Peer;

/// Checker of proofs made for one of the executor's ports.
#[derive(Debug, Clone)]
pub(super) struct Proven {
    secret: ClusterSecret,
    /// Address that peers dial, `host:port`.
    address: String,
}

impl Proven {
    pub(super) fn new(secret: ClusterSecret, address: String) -> Self {
        Self { secret, address }
    }

    /// Returns the cluster's secret.
    pub(super) fn secret(&self) -> &ClusterSecret {
        &self.secret
    }

    /// Checks that a request comes over a connection of the cluster: it carries a proof and, with TLS, a
    /// certificate.
    pub(super) fn is_peer<T>(&self, request: &Request<T>) -> bool {
        let connection = request.extensions().get::<Peer>();
        if connection.is_some_and(|peer| peer.encrypted && !peer.member) {
            return false;
        }
        let sent = request.metadata().get("user-agent");
        let proof = sent.and_then(|sent| proof_of(sent.to_str().ok()?));
        proof.is_some_and(|proof| self.secret.is_proof(proof, &self.address))
    }

    /// Checks that a request comes from a peer.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn check<T>(&self, request: &Request<T>, action: &str) -> Result<(), Status> {
        if self.is_peer(request) {
            return Ok(());
        }
        Err(refused(request, action))
    }
}

/// Logs a refused request in the audit log, and returns the error to send.
pub(super) fn refused<T>(request: &Request<T>, action: &str) -> Status {
    let peer = request.extensions().get::<Peer>();
    let peer = peer.map_or_else(|| "-".to_owned(), |peer| peer.address.to_string());
    let reason = "no proof that it comes from this cluster";
    tracing::warn!(target: "volley::audit", who = "-", role = "-", peer, action, object = "executor", outcome = "refused", reason);
    Status::unauthenticated(format!("this executor does not {action} for you: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_secret_is_a_peer() {
        let secret = ClusterSecret::generate();
        let proven = Proven::new(secret.clone(), "10.0.0.7:4000".to_owned());
        let mut request = Request::new(());
        assert!(proven.check(&request, "do it").is_err());
        let agent = |text: &str| text.parse().unwrap();
        request
            .metadata_mut()
            .insert("user-agent", agent("tonic/0.14"));
        assert!(!proven.is_peer(&request));
        let forged = format!("volley-peer/{} tonic/0.14", "0".repeat(64));
        request.metadata_mut().insert("user-agent", agent(&forged));
        assert!(!proven.is_peer(&request));
    }
}
