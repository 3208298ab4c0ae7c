//! Verification of the signatures of JSON Web Tokens by ring, the cryptography that rustls uses here anyway, behind
//! the interface of `jsonwebtoken`. It signs nothing, and has no shared-secret algorithm.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

/// Signature algorithms accepted in tokens: asymmetric ones only.
pub(super) const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

static RING: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` verify with ring, once for the whole process.
pub(super) fn install() {
    // An earlier call has made the same choice.
    RING.install_default().ok();
}

fn signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    let scheme = Scheme::of(*algorithm);
    let scheme = scheme.ok_or_else(|| new_error(ErrorKind::UnsupportedAlgorithm))?;
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        scheme,
        key: key.clone(),
    }))
}

/// Verification method of an algorithm in ring.
#[derive(Debug, Clone, Copy)]
enum Scheme {
    /// Modulus and exponent.
    Rsa(&'static RsaParameters),
    /// Point of a curve.
    Curve(&'static dyn VerificationAlgorithm),
}

impl Scheme {
    fn of(algorithm: Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::RS256 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Self::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Self::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Self::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Self::Curve(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Self::Curve(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Self::Curve(&ED25519),
            _ => return None,
        })
    }
}

/// Verifier of one algorithm with one key.
#[derive(Debug)]
struct RingVerifier {
    algorithm: Algorithm,
    scheme: Scheme,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (self.scheme, self.key.kind()) {
            (Scheme::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Scheme::Curve(algorithm), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(algorithm, point).verify(message, signature)
            }
            _ => return Err(Error::new()),
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_secrets_verify_nothing() {
        let secret = DecodingKey::from_secret(b"a public key, say");
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            assert!(!ALGORITHMS.contains(&algorithm));
            assert!(verifier(&algorithm, &secret).is_err());
        }
        for algorithm in ALGORITHMS {
            assert!(verifier(&algorithm, &secret).is_err(), "{algorithm:?}");
            assert!(Scheme::of(algorithm).is_some(), "{algorithm:?}");
        }
    }
}
