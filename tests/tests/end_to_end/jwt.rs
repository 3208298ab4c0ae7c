//! JSON Web Tokens beside the tokens of a file: queries, ownership, the page, and replaced keys.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use volley_proto::access::Token;
use volley_tests::issuer::{Issuer, key_set};
use volley_tests::{Setup, binary, eventually};

use crate::access::{Guarded, said};
use crate::{fails, write_table};

const SOON: Duration = Duration::from_secs(60);

/// Returns a token with a name and a role that expires after this many seconds.
fn token(issuer: &Issuer, name: &str, role: &str, seconds: u64) -> Token {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let token = issuer.token(&json!({
        "iss": "https://issuer.example",
        "aud": ["volley"],
        "sub": name,
        "exp": now.as_secs() + seconds,
        "groups": ["staff", role],
    }));
    token.parse().unwrap()
}

#[test]
fn an_issuer_says_who_one_is_and_what_one_may() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.json");
    let [old, new] = ["old", "new"].map(Issuer::new);
    fs::write(&keys, key_set(&[old.jwk()])).unwrap();
    let keys_path = keys.display().to_string();
    let scheduler_args = [
        ("--jwks", keys_path.as_str()),
        ("--jwt-issuer", "https://issuer.example"),
        ("--jwt-audience", "volley"),
        ("--jwt-role-claim", "groups"),
    ];
    let scheduler_args = scheduler_args.into_iter();
    let guarded = Guarded::start_with(Setup {
        executors: 1,
        scheduler_args: scheduler_args
            .flat_map(|(option, value)| [option.to_owned(), value.to_owned()])
            .collect(),
        ..Setup::default()
    });
    let table = write_table(guarded.cluster.dir(), 50);
    let out = guarded.cluster.dir().join("out.csv");
    let query = format!("{table} SELECT count(*) AS n FROM t");
    let copy = format!("{table} COPY (SELECT k FROM t) TO '{}'", out.display());
    let run = |sql: &str, token: &Token| {
        let mut command = guarded.cluster.command();
        let command = command.args(["--format", "json", "-q", "-c", sql]);
        guarded.command(command, Some(token))
    };
    let reader = token(&old, "rosa", "read", 600);
    let runner = token(&old, "otto", "run", 600);
    assert_eq!(run(&query, &reader).rows()[0]["n"], 50);
    said(
        &run(&copy, &reader),
        &["role run", "rosa has the role read"],
    );
    assert_eq!(run(&copy, &runner).code, Some(0));
    let owners = run("SELECT DISTINCT owner FROM volley.jobs", &runner).rows();
    assert_eq!(owners, [json!({"owner": "otto"})]);
    // Tokens of the file are valid beside it.
    assert_eq!(guarded.run("rita", &query).rows()[0]["n"], 50);
    said(
        &run(&query, &token(&new, "otto", "run", 600)),
        &["is refused", "(kid)"],
    );

    // The page: a login ends with its token.
    let browser = guarded.intruder(None);
    let host = format!("Host: {}", guarded.cluster.address());
    let kind = "Content-Type: application/x-www-form-urlencoded";
    let login = |token: &Token| {
        let entered = browser.http(
            "POST /login",
            &[&host, kind],
            &format!("token={}", token.reveal()),
        );
        assert!(entered.starts_with("HTTP/1.1 303"), "{entered}");
        let set = entered
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        format!("Cookie: {}", set.unwrap().split(';').next().unwrap())
    };
    let jobs = |cookie: &str| browser.http("GET /api/volley/jobs", &[&host, cookie], "");
    let lasting = login(&reader);
    let short = login(&token(&old, "rosa", "read", 3));
    assert!(jobs(&lasting).starts_with("HTTP/1.1 200"));
    eventually("the token of a login to expire", SOON, || {
        jobs(&short).starts_with("HTTP/1.1 401").then_some(())
    });
    assert!(jobs(&lasting).starts_with("HTTP/1.1 200"));

    // The issuer has another key.
    fs::write(&keys, key_set(&[new.jwk()])).unwrap();
    let replaced = token(&new, "otto", "run", 600);
    eventually("the new key to be read", SOON, || {
        (run(&query, &replaced).code == Some(0)).then_some(())
    });
    said(&run(&query, &runner), &["is refused", "(kid)"]);
}

#[test]
fn a_key_set_alone_is_not_enough() {
    for (arguments, part) in [
        (&["--jwks", "keys.json"][..], "--jwt-issuer"),
        (
            &["--jwks", "keys.json", "--jwt-issuer", "i"],
            "--jwt-audience",
        ),
        (&["--jwt-audience", "a"], "--jwks"),
        (
            &[
                "--jwks",
                "http://issuer.example/keys",
                "--jwt-issuer",
                "i",
                "--jwt-audience",
                "a",
            ],
            "https",
        ),
        (
            &[
                "--jwks",
                "/none/keys.json",
                "--jwt-issuer",
                "i",
                "--jwt-audience",
                "a",
            ],
            "cannot use the key set /none/keys.json",
        ),
        (
            &[
                "--insecure",
                "--jwks",
                "keys.json",
                "--jwt-issuer",
                "i",
                "--jwt-audience",
                "a",
            ],
            "--tokens",
        ),
    ] {
        let mut scheduler = Command::new(binary("volley-scheduler"));
        scheduler.args(["--bind", "127.0.0.1:0"]).args(arguments);
        let said = fails(&mut scheduler);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
