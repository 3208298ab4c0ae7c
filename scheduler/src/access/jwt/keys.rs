//! An issuer's key set (RFC 7517), as pure code: it selects the key for a token's algorithm. It reads no file and no
//! URL.

use std::sync::Arc;

use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, EllipticCurveKeyParameters, Jwk, KeyAlgorithm,
    KeyOperations, OctetKeyPairParameters, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::Refused;

/// Public keys that tokens are verified with.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    /// The key's id, `kid`.
    id: Option<String>,
    /// Algorithms of the key: the one that it names, else those of its type.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// A key set as it is written. Its keys are read one by one, because some may have unknown types.
#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl KeySet {
    /// # Errors
    /// When the text is not a key set, or has no key that verifies signatures.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document: Document =
            serde_json::from_str(text).map_err(|error| format!("no JSON Web Key Set: {error}"))?;
        let mut keys = Vec::new();
        let mut left_out = Vec::new();
        for (number, jwk) in document.keys.into_iter().enumerate() {
            match Key::read(jwk) {
                Ok(key) => keys.push(key),
                Err(reason) => left_out.push(format!("key {}: {reason}", number + 1)),
            }
        }
        if keys.is_empty() {
            return Err(format!(
                "no key in it verifies signatures [{}]",
                left_out.join("; ")
            ));
        }
        for reason in left_out {
            tracing::debug!("a key of the key set is left out: {reason}");
        }
        Ok(Self { keys })
    }

    /// Checks whether there is a key with this id.
    pub(super) fn has(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// Returns the key with this id for an algorithm or, without an id, the only key for the algorithm.
    ///
    /// # Errors
    /// When there is none, or several without an id.
    pub(super) fn key(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<&DecodingKey, Refused> {
        let mut suitable = self.keys.iter().filter(|key| {
            key.algorithms.contains(&algorithm) && (id.is_none() || key.id.as_deref() == id)
        });
        match (suitable.next(), suitable.next(), id) {
            (Some(key), _, Some(_)) | (Some(key), None, None) => Ok(&key.key),
            (Some(_), Some(_), None) => Err(Refused::NoKeyId),
            (None, _, Some(id)) if !self.has(id) => Err(Refused::UnknownKey),
            (None, ..) => Err(Refused::KeyOfAnotherAlgorithm),
        }
    }
}

impl Key {
    fn read(jwk: Value) -> Result<Self, String> {
        let jwk: Jwk = serde_json::from_value(jwk).map_err(|error| error.to_string())?;
        let common = &jwk.common;
        let is_for_signatures =
            matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
        let operations = common.key_operations.as_ref();
        let verifies = operations.is_none_or(|all| all.contains(&KeyOperations::Verify));
        if !is_for_signatures || !verifies {
            return Err("it is not for verifying signatures".to_owned());
        }
        let of_its_type = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
            AlgorithmParameters::EllipticCurve(EllipticCurveKeyParameters {
                curve: EllipticCurve::P256,
                ..
            }) => vec![Algorithm::ES256],
            AlgorithmParameters::EllipticCurve(EllipticCurveKeyParameters {
                curve: EllipticCurve::P384,
                ..
            }) => vec![Algorithm::ES384],
            AlgorithmParameters::OctetKeyPair(OctetKeyPairParameters {
                curve: EllipticCurve::Ed25519,
                ..
            }) => vec![Algorithm::EdDSA],
            _ => {
                return Err(
                    "expected the type RSA, EC with the curve P-256 or P-384, or OKP with Ed25519"
                        .to_owned(),
                );
            }
        };
        let is_named = |algorithm: &Algorithm| match common.key_algorithm {
            Some(named) => KeyAlgorithm::from(*algorithm) == named,
            None => true,
        };
        let algorithms: Vec<_> = of_its_type.into_iter().filter(is_named).collect();
        if algorithms.is_empty() {
            return Err("its algorithm is not one of its type".to_owned());
        }
        let key = DecodingKey::from_jwk(&jwk).map_err(|error| error.to_string())?;
        Ok(Self {
            id: common.key_id.clone(),
            algorithms,
            key,
        })
    }
}

/// Key set shared by requests.
pub(super) type SharedKeys = Arc<KeySet>;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RSA: &str = "s6L6bGv1kRkkjzV0yHn0lXk0v2oQ2s0x0s1c3k9G8fU";

    fn parsed(keys: Value) -> Result<KeySet, String> {
        KeySet::parse(&json!({ "keys": keys }).to_string())
    }

    #[test]
    fn a_key_is_for_the_algorithms_of_its_type() {
        let keys = parsed(json!([
            {"kty": "RSA", "kid": "any", "n": RSA, "e": "AQAB"},
            {"kty": "RSA", "kid": "one", "alg": "PS256", "use": "sig", "n": RSA, "e": "AQAB"},
            {"kty": "EC", "kid": "point", "crv": "P-256", "x": RSA, "y": RSA},
            {"kty": "OKP", "kid": "edwards", "crv": "Ed25519", "x": RSA},
        ]));
        let keys = keys.unwrap();
        for (id, algorithm, due) in [
            ("any", Algorithm::RS256, Ok(())),
            ("any", Algorithm::PS512, Ok(())),
            ("any", Algorithm::ES256, Err(Refused::KeyOfAnotherAlgorithm)),
            ("one", Algorithm::PS256, Ok(())),
            ("one", Algorithm::RS256, Err(Refused::KeyOfAnotherAlgorithm)),
            ("point", Algorithm::ES256, Ok(())),
            (
                "point",
                Algorithm::ES384,
                Err(Refused::KeyOfAnotherAlgorithm),
            ),
            (
                "point",
                Algorithm::HS256,
                Err(Refused::KeyOfAnotherAlgorithm),
            ),
            ("edwards", Algorithm::EdDSA, Ok(())),
            ("other", Algorithm::RS256, Err(Refused::UnknownKey)),
        ] {
            let found = keys.key(Some(id), algorithm).map(drop);
            assert_eq!(found, due, "{id} {algorithm:?}");
        }
        assert_eq!(keys.key(None, Algorithm::ES256).map(drop), Ok(()));
        let several = keys.key(None, Algorithm::PS256).map(drop);
        assert_eq!(several, Err(Refused::NoKeyId));
        let none = keys.key(None, Algorithm::ES384).map(drop);
        assert_eq!(none, Err(Refused::KeyOfAnotherAlgorithm));
    }

    #[test]
    fn keys_that_verify_nothing_are_left_out() {
        let others = [
            json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0", "alg": "HS256"}),
            json!({"kty": "RSA", "kid": "a", "use": "enc", "n": RSA, "e": "AQAB"}),
            json!({"kty": "RSA", "kid": "a", "alg": "RSA-OAEP", "n": RSA, "e": "AQAB"}),
            json!({"kty": "RSA", "kid": "a", "key_ops": ["encrypt"], "n": RSA, "e": "AQAB"}),
            json!({"kty": "EC", "kid": "a", "crv": "P-521", "x": RSA, "y": RSA}),
            json!({"kty": "EC", "kid": "a", "crv": "secp256k1", "x": RSA, "y": RSA}),
            json!({"kty": "RSA", "kid": "a", "n": "+/+/", "e": "AQAB"}),
            json!({"kty": "new", "kid": "a"}),
            json!(7),
        ];
        for other in &others {
            assert!(parsed(json!([other])).is_err(), "{other}");
        }
        let mut all = others.to_vec();
        all.push(json!({"kty": "OKP", "kid": "b", "crv": "Ed25519", "x": RSA}));
        let keys = parsed(Value::Array(all)).unwrap();
        assert!(keys.has("b") && !keys.has("a"));
        for wrong in ["", "[]", "{}", "{\"keys\": []}", "{\"keys\": 1}"] {
            assert!(KeySet::parse(wrong).is_err(), "{wrong}");
        }
    }
}
