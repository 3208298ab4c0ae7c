//! An issuer of JSON Web Tokens that also makes tokens that no issuer would make: a test sets headers and claims
//! freely. It signs with ES256, by ring, and is no example of keeping a key safe.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};

/// An issuer with one key.
#[derive(Debug)]
pub struct Issuer {
    id: String,
    key: EcdsaKeyPair,
}

impl Issuer {
    /// Creates an issuer with a new key with this id.
    ///
    /// # Panics
    /// When there is no randomness.
    pub fn new(id: &str) -> Self {
        let random = SystemRandom::new();
        let scheme = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(scheme, &random).expect("randomness");
        let key = EcdsaKeyPair::from_pkcs8(scheme, document.as_ref(), &random);
        Self {
            id: id.to_owned(),
            key: key.expect("a key that was made just now"),
        }
    }

    /// Returns the public key as a JSON Web Key.
    pub fn jwk(&self) -> Value {
        let (x, y) = self.public_key()[1..].split_at(32);
        json!({
            "kty": "EC", "crv": "P-256", "kid": self.id, "use": "sig", "alg": "ES256",
            "x": encode(x), "y": encode(y),
        })
    }

    /// Returns the public key as an uncompressed point.
    pub fn public_key(&self) -> &[u8] {
        self.key.public_key().as_ref()
    }

    /// Signs a token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": "ES256", "kid": self.id}), claims)
    }

    /// Signs a token with this header, which need not match the signature.
    ///
    /// # Panics
    /// When there is no randomness.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes());
        format!(
            "{message}.{}",
            encode(signature.expect("randomness").as_ref())
        )
    }
}

/// Builds a key set of these keys.
pub fn key_set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// Returns the text that a signature covers.
pub fn message(header: &Value, claims: &Value) -> String {
    let [header, claims] = [header, claims].map(|part| encode(part.to_string().as_bytes()));
    format!("{header}.{claims}")
}

/// Encodes bytes in the Base64 variant of tokens.
pub fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
