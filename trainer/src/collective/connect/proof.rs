//! Mutual proof on a new connection that both ends belong to the generation: a MAC, under the generation's
//! secret, over all bytes exchanged so far.
//!
//! ```text
//!   dialler                                      acceptor
//!     Hello {who, whom, generation, nonce d} ──►
//!     ◄── Reply {welcome, nonce a, HMAC(secret, "acceptor" ‖ Hello ‖ welcome, a)}
//!     Answer {HMAC(secret, "dialler" ‖ Hello ‖ Reply)} ──►      only now is it a link
//! ```
//!
//! Both nonces are fresh and covered by both MACs: a recorded message proves nothing on another connection,
//! and one side's proof is not valid for the other. The proofs keep nothing secret and do not protect later
//! messages: TLS does.

use crate::collective::wire::{HELLO_BYTES, REPLY_BYTES, REPLY_HEAD_BYTES};
use volley_proto::Secret;
use volley_proto::access::hmac_sha256;
pub(super) use volley_proto::access::is_same_code as is_same;

pub(in crate::collective) const NONCE_BYTES: usize = 32;
pub(in crate::collective) const PROOF_BYTES: usize = 32;

/// Computes the acceptor's proof, which ends its reply.
pub(super) fn of_acceptor(
    secret: &Secret,
    hello: &[u8; HELLO_BYTES],
    reply_head: &[u8; REPLY_HEAD_BYTES],
) -> [u8; PROOF_BYTES] {
    hmac_sha256(
        secret.bytes(),
        &[b"volley rank, acceptor", hello, reply_head],
    )
}

/// Computes the dialler's proof, sent after the reply.
pub(super) fn of_dialler(
    secret: &Secret,
    hello: &[u8; HELLO_BYTES],
    reply: &[u8; REPLY_BYTES],
) -> [u8; PROOF_BYTES] {
    hmac_sha256(secret.bytes(), &[b"volley rank, dialler", hello, reply])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Test cases of RFC 4231, sections 4.2, 4.3, 4.4, 4.5, 4.7 and 4.8.
    #[test]
    fn the_mac_is_that_of_the_standard() {
        let counting: Vec<u8> = (1..=25).collect();
        let cases: [(&[u8], &[u8], &str); 6] = [
            (
                &[0x0b; 20],
                b"Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 20],
                &[0xdd; 50],
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
            ),
            (
                &counting,
                &[0xcd; 50],
                "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
            (
                &[0xaa; 131],
                b"This is a test using a larger than block-size key and a larger than block-size data. \
                  The key needs to be hashed before being used by the HMAC algorithm.",
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
            ),
        ];
        for (key, message, expected) in cases {
            assert_eq!(hex(&hmac_sha256(key, &[message])), expected);
            let (front, back) = message.split_at(message.len() / 2);
            assert_eq!(hex(&hmac_sha256(key, &[front, back])), expected);
        }
    }

    #[test]
    fn proofs_differ_by_the_secret_the_side_and_what_was_said() {
        let (one, other) = (Secret::random(), Secret::random());
        let (hello, reply) = ([1; HELLO_BYTES], [2; REPLY_BYTES]);
        let proof = of_dialler(&one, &hello, &reply);
        assert!(is_same(&proof, &of_dialler(&one, &hello, &reply)));
        let head = [2; REPLY_HEAD_BYTES];
        for another in [
            of_dialler(&other, &hello, &reply),
            of_dialler(&one, &[0; HELLO_BYTES], &reply),
            of_dialler(&one, &hello, &[0; REPLY_BYTES]),
            of_acceptor(&one, &hello, &head),
        ] {
            assert!(!is_same(&proof, &another));
        }
        let mut last = proof;
        last[PROOF_BYTES - 1] ^= 1;
        assert!(!is_same(&proof, &last));
    }
}
