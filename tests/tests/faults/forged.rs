//! JSON Web Tokens that the issuer has not made, or not for this cluster, against a scheduler that accepts the
//! issuer's: each is refused by name, and costs no more than an answer.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::{Value, json};
use tempfile::TempDir;
use volley_proto::access::{Role, Token};
use volley_tests::hostile;
use volley_tests::issuer::{Issuer, encode, key_set, message};
use volley_tests::{Cluster, Setup};

use crate::attacks::port_of;
use crate::scene;

const ISSUER: &str = "https://issuer.example";
const AUDIENCE: &str = "volley";

/// Starts a cluster that accepts tokens of an issuer, and administrators and executors by a file.
fn cluster(issuer: &Issuer, dir: &TempDir) -> Cluster {
    let [root, nodes] = [Token::generate(), Token::generate()];
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let lines = format!(
        "root {} {}\nnodes {} {}\n",
        Role::Administer,
        root.hash(),
        Role::Executor,
        nodes.hash()
    );
    let keys = write("keys.json", key_set(&[issuer.jwk()]));
    let tokens = write("tokens", lines);
    let join = write("join", nodes.reveal().to_owned());
    let arguments = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .flat_map(|(option, value)| [(*option).to_owned(), (*value).to_owned()])
            .collect::<Vec<_>>()
    };
    let setup = scene::setup(1);
    let of_scheduler = arguments(&[
        ("--tokens", &tokens),
        ("--jwks", &keys),
        ("--jwt-issuer", ISSUER),
        ("--jwt-audience", AUDIENCE),
    ]);
    let of_executors = arguments(&[("--join-token", &join)]);
    Cluster::start_with(Setup {
        scheduler_args: [setup.scheduler_args, of_scheduler].concat(),
        executor_args: [setup.executor_args, of_executors].concat(),
        token: Some(root),
        ..setup
    })
}

/// Returns valid claims, with some replaced; null removes one.
fn claims(others: Value) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut claims = json!({
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "mallory",
        "exp": now.as_secs() + 600,
        "role": "read",
    });
    for (name, value) in others.as_object().unwrap() {
        claims[name] = value.clone();
    }
    let object = claims.as_object_mut().unwrap();
    object.retain(|_, value| !value.is_null());
    claims
}

pub(crate) fn tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, stranger) = (Issuer::new("one"), Issuer::new("one"));
    let mut cluster = cluster(&issuer, &dir);
    let port = port_of(&cluster);
    let ask = |path: &str, token: &str| {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\n\r\n"
        );
        hostile::request(port, &request)
    };
    let jobs = |token: &str| ask("/api/volley/jobs", token);
    let right = issuer.token(&claims(json!({})));
    assert!(jobs(&right).starts_with("HTTP/1.1 200"), "{}", jobs(&right));
    // The role does not permit this.
    assert!(ask("/api/jobs", &right).starts_with("HTTP/1.1 403"));

    let all = claims(json!({}));
    let header = |algorithm: &str, id: &str| json!({"alg": algorithm, "kid": id});
    let unsigned = |algorithm: &str| message(&header(algorithm, "one"), &all);
    let by_public_key = {
        let message = unsigned("HS256");
        let secret = hmac::Key::new(hmac::HMAC_SHA256, issuer.public_key());
        let tag = hmac::sign(&secret, message.as_bytes());
        format!("{message}.{}", encode(tag.as_ref()))
    };
    let (_, signature) = right.rsplit_once('.').unwrap();
    let raised = message(
        &header("ES256", "one"),
        &claims(json!({"role": "administer"})),
    );
    let of = |others: Value| issuer.token(&claims(others));
    for (attack, token, said) in [
        (
            "none",
            format!("{}.", unsigned("none")),
            "not a JSON Web Token signed with",
        ),
        (
            "none, signed",
            format!("{}.{signature}", unsigned("none")),
            "not a JSON Web Token signed with",
        ),
        (
            "a public key as a secret",
            by_public_key,
            "not a JSON Web Token signed with",
        ),
        ("other claims", format!("{raised}.{signature}"), "signature"),
        ("another key", stranger.token(&all), "signature"),
        (
            "no signature",
            format!("{}.", unsigned("ES256")),
            "signature",
        ),
        (
            "a key that it brings along",
            stranger.token_with(
                &json!({"alg": "ES256", "kid": "one", "jwk": stranger.jwk()}),
                &all,
            ),
            "signature",
        ),
        (
            "an unknown key",
            issuer.token_with(&header("ES256", "two"), &all),
            "(kid)",
        ),
        (
            "a key of another type",
            issuer.token_with(&header("RS256", "one"), &all),
            "no key for its algorithm",
        ),
        ("expired", of(json!({"exp": 1_000_000_000})), "(exp)"),
        ("without an end", of(json!({"exp": null})), "claim exp"),
        (
            "not valid yet",
            of(json!({"nbf": 4_000_000_000_u64})),
            "(nbf)",
        ),
        (
            "for another service",
            of(json!({"aud": "billing"})),
            "(aud)",
        ),
        (
            "of another issuer",
            of(json!({"iss": "https://evil.example"})),
            "(iss)",
        ),
        ("without a role", of(json!({"role": null})), "claim role"),
        ("an unknown role", of(json!({"role": "root"})), "claim role"),
        (
            "an executor's role",
            of(json!({"role": "executor"})),
            "claim role",
        ),
        ("everybody's name", of(json!({"sub": "anybody"})), "(sub)"),
        (
            "a name of two lines",
            of(json!({"sub": "a\nb role=administer"})),
            "(sub)",
        ),
        (
            "three parts",
            "a.b.c".to_owned(),
            "not a JSON Web Token signed with",
        ),
        (
            "a huge one",
            of(json!({"padding": "x".repeat(20_000)})),
            "is not valid for this scheduler",
        ),
    ] {
        let answer = jobs(&token);
        assert!(answer.starts_with("HTTP/1.1 401"), "{attack}: {answer}");
        assert!(answer.contains(said), "{attack}: {answer}");
    }
    // The head exceeds its limit: whatever the answer is, it has no rows of the table.
    let endless = of(json!({"padding": "x".repeat(2_000_000)}));
    hostile::throw(
        port,
        format!("GET /api/volley/jobs HTTP/1.1\r\nAuthorization: Bearer {endless}\r\n\r\n")
            .as_bytes(),
    );
    let log = cluster.scheduler().output();
    assert!(!log.contains(&right) && log.contains("volley::audit"));
    scene::is_well(&cluster, 1);
}
