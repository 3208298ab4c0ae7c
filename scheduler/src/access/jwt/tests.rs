//! Tests with tokens of an issuer, and with forged ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use jsonwebtoken::get_current_timestamp;
use parking_lot::Mutex;
use ring::hmac;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use url::Url;
use volley_proto::access::{Principal, Role};
use volley_proto::damage::damaged;

use super::issuer::{Issuer, encode, key_set, message};
use super::source::{FetchedKeys, Pace};
use super::*;

const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "volley";

fn config(keys: KeySetLocation) -> JwtConfig {
    JwtConfig {
        keys,
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        role_claim: "role".to_owned(),
    }
}

/// Returns valid claims, with some replaced; null removes one.
fn claims(others: Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": get_current_timestamp() + 600,
        "role": "run",
    });
    for (name, value) in others.as_object().expect("claims are an object") {
        claims[name] = value.clone();
    }
    let object = claims.as_object_mut().expect("claims are an object");
    object.retain(|_, value| !value.is_null());
    claims
}

/// Verifies a token with a key set, as a verifier that has read the set does.
fn verify(token: &str, keys: &KeySet) -> Result<Verified, Refused> {
    signatures::install();
    let rules = ClaimRules::new(&config(KeySetLocation::File("none".into())));
    rules.verify(token, &header(token)?, keys)
}

fn keys_of(issuer: &Issuer) -> KeySet {
    KeySet::parse(&key_set(&[issuer.jwk()])).unwrap()
}

#[test]
fn a_token_of_the_issuer_gives_a_name_and_a_role() {
    let issuer = Issuer::new("one");
    let keys = keys_of(&issuer);
    for others in [
        json!({}),
        json!({"aud": ["other", AUDIENCE]}),
        json!({"nbf": get_current_timestamp() - 5}),
        json!({"role": ["read", "run"]}),
        // Within the leeway.
        json!({"exp": get_current_timestamp() - 30}),
        json!({"nbf": get_current_timestamp() + 30}),
    ] {
        let verified = verify(&issuer.token(&claims(others.clone())), &keys);
        let principal = verified.unwrap().principal;
        let found = (principal.name.as_str(), principal.role);
        assert_eq!(found, ("alice", Role::Run), "{others}");
    }
    let without_id = issuer.token_with(&json!({"alg": "ES256"}), &claims(json!({})));
    assert!(verify(&without_id, &keys).is_ok(), "there is one key only");
}

#[test]
fn claims_are_checked() {
    let issuer = Issuer::new("one");
    let keys = keys_of(&issuer);
    let missing = |claim: &str| Refused::Missing(claim.to_owned());
    let now = get_current_timestamp();
    for (others, due) in [
        (json!({"exp": now - 120}), Refused::Expired),
        (json!({"exp": null}), missing("exp")),
        (json!({"exp": "tomorrow"}), missing("exp")),
        (json!({"nbf": now + 120}), Refused::NotYet),
        (json!({"nbf": "yesterday"}), missing("nbf")),
        (json!({"iss": "https://other.example"}), Refused::Issuer),
        (json!({"iss": null}), missing("iss")),
        (json!({"aud": "other"}), Refused::Audience),
        (json!({"aud": ["other"]}), Refused::Audience),
        (json!({"aud": []}), Refused::Audience),
        (json!({"aud": null}), missing("aud")),
        (json!({"sub": null}), missing("sub")),
        (json!({"sub": "anybody"}), Refused::Subject),
        (json!({"role": null}), missing("role")),
        (json!({"role": "root"}), Refused::Role("role".to_owned())),
        (
            json!({"role": "executor"}),
            Refused::Role("role".to_owned()),
        ),
    ] {
        let token = issuer.token(&claims(others.clone()));
        assert_eq!(verify(&token, &keys), Err(due), "{others}");
    }
}

#[test]
fn signatures_of_others_are_refused() {
    let (issuer, stranger) = (Issuer::new("one"), Issuer::new("one"));
    let keys = keys_of(&issuer);
    let all = claims(json!({}));
    let token = issuer.token(&all);
    assert!(verify(&token, &keys).is_ok());
    assert_eq!(
        verify(&stranger.token(&all), &keys),
        Err(Refused::Signature)
    );
    let unknown = Issuer::new("two").token(&all);
    assert_eq!(verify(&unknown, &keys), Err(Refused::UnknownKey));

    // Other claims under the signature, or an empty signature.
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let header = json!({"alg": "ES256", "kid": "one"});
    let raised = message(&header, &claims(json!({"role": "administer"})));
    for forged in [format!("{raised}.{signature}"), format!("{signed}.")] {
        assert_eq!(verify(&forged, &keys), Err(Refused::Signature), "{forged}");
    }

    // No signature, and an HMAC keyed with the public key.
    for none in ["none", "None", "NONE", ""] {
        let unsigned = message(&json!({"alg": none, "kid": "one"}), &all);
        for token in [format!("{unsigned}."), format!("{unsigned}.{signature}")] {
            assert_eq!(verify(&token, &keys), Err(Refused::Malformed), "{token}");
        }
    }
    let by_public_key = message(&json!({"alg": "HS256", "kid": "one"}), &all);
    let secret = hmac::Key::new(hmac::HMAC_SHA256, issuer.public_key());
    let tag = hmac::sign(&secret, by_public_key.as_bytes());
    let by_public_key = format!("{by_public_key}.{}", encode(tag.as_ref()));
    assert_eq!(verify(&by_public_key, &keys), Err(Refused::Malformed));

    // The key's type does not match the algorithm, and a key in the token's header is ignored.
    for (algorithm, due) in [
        ("RS256", Refused::KeyOfAnotherAlgorithm),
        ("ES384", Refused::KeyOfAnotherAlgorithm),
        ("EdDSA", Refused::KeyOfAnotherAlgorithm),
        ("ES512", Refused::Malformed),
    ] {
        let token = issuer.token_with(&json!({"alg": algorithm, "kid": "one"}), &all);
        assert_eq!(verify(&token, &keys), Err(due), "{algorithm}");
    }
    let brings = json!({"alg": "ES256", "kid": "one", "jwk": stranger.jwk()});
    let token = stranger.token_with(&brings, &all);
    assert_eq!(verify(&token, &keys), Err(Refused::Signature));
    let extended = json!({"alg": "ES256", "kid": "one", "crit": ["exp"]});
    let token = issuer.token_with(&extended, &all);
    assert_eq!(verify(&token, &keys), Err(Refused::Extensions));

    for garbage in ["..", "a.b.c", "a.b", "", "....", "e30.e30.e30"] {
        assert_eq!(verify(garbage, &keys), Err(Refused::Malformed), "{garbage}");
    }
}

/// RSA modulus, and tokens that OpenSSL signed with its key; they are valid until the year 2100.
const MODULUS: &str = "7XinXY8VLses9gmMgg4X15GnXPXpcPA1g6E_6zf3cF2uokE4IX3YQJi50HxhhIDtkFa7EiB5XiFeo3VWRBXvloo5aaPcK6-MF8SGa_baKn2OALHHf8eU40DaxrpAYCOttGFxed0bNWuVcTGDS_ylUHgToObAvZ58VpMvHJoo9scSdGeUuX3AXvt0d68cG1dKVhSCe_K0dOoG7tVW_uO0DeHiNxJT9Q1FnCGTzrZB1VTaE2BfGQT0f3R_1SgP34BP_dN3yxhvcC-r7fCRhbzKqxyPtlQs42kUUAF_4eKW0L70dvUNCzlT2KoF-vk6olCwEv6YoByOgZVUV9bAfpQeTw";
const RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjoidm9sbGV5Iiwic3ViIjoiYWxpY2UiLCJleHAiOjQxMDI0NDQ4MDAsInJvbGUiOiJydW4ifQ.ho7LqhCVtzNkpTAKJ08y2zL3baCuOexEDzBSGl95VUbSEt92vv1eEtPIdO5enLnPyCRE-nCzlMrCMKGze4kZ-H3fqL7_YJYdON_NO3G16-opFljc4A4Ft4VTN7vVMZRgKPm4ocNqPFt0CuS-PKna-qHl5DjbAxcwpGHHWDxH1d4z5wD66doFv-QbHw0pmmXjnni2SwzlsY1TgKYPV2AGNaIk34fu3vcSfPXTi-PbJZfGzqk_ytUyvQsQUEFzrPWmBSbWMWjmgNOpu6g-kZVCOnZ2OabQxv4Dnap9FFX-cK_3urEje9oBJYp8OeeDXrjM6VMt_opPhaLrv892faK8Zw";
const PS384: &str = "eyJhbGciOiJQUzM4NCIsImtpZCI6InJzYSJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwiYXVkIjoidm9sbGV5Iiwic3ViIjoiYWxpY2UiLCJleHAiOjQxMDI0NDQ4MDAsInJvbGUiOiJydW4ifQ.iBEvE0IAlFWr1dmQxa89w4jCmQ-2J7rglND2Al3s8-xhPB3DOJ-4AHSheNDh52KK0T7SobBtwrn1sPahtTFOf4IR-uOlGs8f7U65QGpOBOuB20HJ8kk7mBYFBzAldQl0KjXnlUWwiU9eNgprmjaUj4w9iAYP1jxEnb46hW5KdWQsUL8402eAfJaV_jXPcjzwwcxY_FZzGfbYGd1QQ2mq94Aibw1v7r-ph6DKC1gpIKBarXGWF6mt0YW96RPIygH64glQH0MHkiBcU4Aru0cV-_QKNDxLkryC2jGzH0NxGMJycgcY9UbHAa401b9jhpfeU5h2ZE9rfmequlUdshK50g";

#[test]
fn rsa_and_edwards_curves_are_verified_too() {
    let rsa = json!({"kty": "RSA", "kid": "rsa", "n": MODULUS, "e": "AQAB"});
    let keys = KeySet::parse(&key_set(std::slice::from_ref(&rsa))).unwrap();
    for token in [RS256, PS384] {
        assert_eq!(verify(token, &keys).unwrap().principal.name, "alice");
        let (signed, _) = token.rsplit_once('.').unwrap();
        let (_, of_other) = [RS256, PS384][usize::from(token == RS256)]
            .rsplit_once('.')
            .unwrap();
        let forged = format!("{signed}.{of_other}");
        assert_eq!(verify(&forged, &keys), Err(Refused::Signature));
    }
    let mut only = rsa;
    only["alg"] = json!("RS256");
    let keys = KeySet::parse(&key_set(&[only])).unwrap();
    assert!(verify(RS256, &keys).is_ok());
    let refused = Err(Refused::KeyOfAnotherAlgorithm);
    assert_eq!(verify(PS384, &keys), refused);

    let random = ring::rand::SystemRandom::new();
    let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let public = encode(pair.public_key().as_ref());
    let jwk = json!({"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": public});
    let keys = KeySet::parse(&key_set(&[jwk])).unwrap();
    let signed = message(&json!({"alg": "EdDSA", "kid": "ed"}), &claims(json!({})));
    let signature = encode(pair.sign(signed.as_bytes()).as_ref());
    assert!(verify(&format!("{signed}.{signature}"), &keys).is_ok());
}

/// Checks that a damaged token that still verifies has the same content.
#[test]
fn fuzz_of_tokens_and_key_sets() {
    let issuer = Issuer::new("one");
    let (keys, token) = (keys_of(&issuer), issuer.token(&claims(json!({}))));
    let set = key_set(&[issuer.jwk()]);
    for seed in 0..5_000 {
        let copy = damaged(token.as_bytes(), seed);
        if let Ok(verified) = verify(&String::from_utf8_lossy(&copy), &keys) {
            let Principal { name, role } = verified.principal;
            assert_eq!((name.as_str(), role), ("alice", Role::Run));
        }
        let copy = damaged(set.as_bytes(), seed);
        let _ = KeySet::parse(&String::from_utf8_lossy(&copy));
    }
    bolero::check!(name = "jwt")
        .with_iterations(20_000)
        .with_max_len(300)
        .for_each(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            assert!(verify(&text, &keys).is_err());
            let _ = KeySet::parse(&text);
        });
}

#[test]
fn a_token_is_meant_as_one_by_its_form() {
    assert!(JwtVerifier::is_meant(RS256));
    for other in ["volley_0123", "a.b", "a.b.c.d", ""] {
        assert!(!JwtVerifier::is_meant(other), "{other}");
    }
}

#[tokio::test]
async fn a_key_set_in_a_file_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let file = || config(KeySetLocation::File(path.clone()));
    assert!(JwtVerifier::open(&file()).await.is_err(), "there is none");
    std::fs::write(&path, "{}").unwrap();
    assert!(JwtVerifier::open(&file()).await.is_err(), "it is wrong");
    let issuer = Issuer::new("one");
    std::fs::write(&path, key_set(&[issuer.jwk()])).unwrap();
    let verifier = JwtVerifier::open(&file()).await.unwrap();
    let token = issuer.token(&claims(json!({})));
    assert!(verifier.verify(&token).await.is_ok());
}

/// An issuer's key set at a URL of this host, and the number of requests for it.
struct Served {
    url: Url,
    body: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Served {
    async fn start(body: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let body = Arc::new(Mutex::new(body));
        let asked = Arc::new(AtomicUsize::new(0));
        let (answer, count) = (Arc::clone(&body), Arc::clone(&asked));
        let route = get(move || {
            count.fetch_add(1, Ordering::Relaxed);
            let answer = answer.lock().clone();
            async move { answer }
        });
        let router = Router::new().route("/keys", route);
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url: url.parse().unwrap(),
            body,
            asked,
            _serving: serving,
        }
    }

    fn location(&self) -> KeySetLocation {
        KeySetLocation::Url(self.url.clone())
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_key_set_is_not_fetched_at_the_pace_of_unknown_keys() {
    let [known, unknown] = ["known", "unknown"].map(Issuer::new);
    let served = Served::start(key_set(&[known.jwk()])).await;
    let verifier = JwtVerifier::open(&config(served.location())).await.unwrap();
    let [known, unknown] = [&known, &unknown].map(|issuer| issuer.token(&claims(json!({}))));
    for _ in 0..3 {
        assert!(verifier.verify(&known).await.is_ok());
        let refused = verifier.verify(&unknown).await;
        assert_eq!(refused, Err(Refused::UnknownKey));
    }
    assert_eq!(served.asked(), 1);
}

#[tokio::test]
async fn a_key_set_is_fetched_for_a_new_key_and_one_that_is_wrong_is_not_taken() {
    let [old, new] = ["old", "new"].map(|id| key_set(&[Issuer::new(id).jwk()]));
    let served = Served::start(old).await;
    let pace = Pace {
        every: Duration::from_secs(3600),
        pause: Duration::ZERO,
    };
    let fetched = FetchedKeys::open(&served.url, pace).await.unwrap();
    let keys = fetched.keys(Some("old")).await;
    assert!(keys.has("old") && served.asked() == 1);
    *served.body.lock() = "{}".to_owned();
    let keys = fetched.keys(Some("new")).await;
    assert!(keys.has("old") && served.asked() == 2);
    *served.body.lock() = new;
    let keys = fetched.keys(Some("new")).await;
    assert!(keys.has("new") && !keys.has("old") && served.asked() == 3);
}

#[tokio::test]
async fn a_key_set_is_fetched_by_the_clock() {
    let [old, new] = ["old", "new"].map(|id| key_set(&[Issuer::new(id).jwk()]));
    let served = Served::start(old).await;
    let pace = Pace {
        every: Duration::from_millis(1),
        pause: Duration::from_secs(3600),
    };
    let fetched = FetchedKeys::open(&served.url, pace).await.unwrap();
    *served.body.lock() = new;
    let replaced = async {
        while !fetched.keys(None).await.has("new") {
            tokio::task::yield_now().await;
        }
    };
    let replaced = tokio::time::timeout(Duration::from_secs(60), replaced);
    replaced.await.unwrap();
}

#[tokio::test]
async fn a_key_set_is_bounded_and_not_looked_for_elsewhere() {
    let issuer = Issuer::new("one");
    let large = key_set(&[issuer.jwk()]) + &" ".repeat(2 << 20);
    let served = Served::start(large).await;
    let refused = JwtVerifier::open(&config(served.location())).await;
    assert!(refused.is_err(), "too large");
    let other = KeySetLocation::Url(served.url.join("/none").unwrap());
    assert!(JwtVerifier::open(&config(other)).await.is_err(), "404");
}
