//! Executors that listen on one address and are dialled at another; a scheduler that answers to its own names.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use volley_tests::{Cluster, Setup, binary};

use crate::{create_model, fails, write_table};

/// Trains with executors that have these arguments, so that they exchange rows and gradients.
fn trains(arguments: &[&str]) {
    let cluster = Cluster::start_with(Setup {
        executors: 2,
        executor_args: arguments.iter().map(|&text| text.to_owned()).collect(),
        ..Setup::default()
    });
    let table = write_table(cluster.dir(), 100);
    let model = create_model("m", ", epochs = 1, ranks = 2");
    let ranks = cluster.query(&format!("{table} {model}"));
    assert_eq!(ranks.len(), 2, "one row a rank: {ranks:?}");
    assert_ne!(ranks[0]["executor"], ranks[1]["executor"]);
    let predicted = cluster.query(&format!(
        "{table} SELECT count(predicted_y) AS n FROM ML.PREDICT(MODEL m, (SELECT k, x FROM t))"
    ));
    assert_eq!(predicted[0]["n"], 100);
}

#[test]
fn ranks_are_dialled_by_what_is_advertised() {
    trains(&[
        "--bind",
        "0.0.0.0",
        "--advertise-host",
        "localhost",
        "--insecure",
    ]);
    match TcpListener::bind("[::1]:0") {
        Ok(_) => trains(&["--bind", "::1"]),
        Err(error) => eprintln!("NOT RUN: training over IPv6, which this machine has not: {error}"),
    }
}

#[test]
fn what_others_cannot_dial_is_refused_at_the_start() {
    for (program, arguments, said) in [
        (
            "volley-executor",
            &["--scheduler", "localhost:1", "--bind", "0.0.0.0"][..],
            "--bind = 0.0.0.0: this listens on every interface: also pass --advertise-host",
        ),
        (
            "volley-executor",
            &["--scheduler", "localhost:1", "--advertise-host", "b:7000"],
            "--advertise-host = b:7000: expected a host name or an address, without a port",
        ),
        (
            "volley-executor",
            &[
                "--scheduler",
                "localhost:1",
                "--vcores",
                "2",
                "--ports",
                "7000-7002",
            ],
            "--ports 7000-7002: expected 4 ports at least",
        ),
        (
            "volley-executor",
            &["--scheduler", "localhost:1", "--ports", "7002-7000"],
            "not a range of ports: expected FIRST-LAST",
        ),
        (
            "volley-scheduler",
            &["--bind", "0.0.0.0:0"],
            "--bind = 0.0.0.0: this listens on every interface: also pass --advertise-host",
        ),
    ] {
        let stderr = fails(Command::new(binary(program)).args(arguments));
        assert!(stderr.contains(said), "{program} {arguments:?}: {stderr}");
    }
}

#[test]
fn browsers_are_answered_under_the_scheduler_s_own_names_only() {
    let cluster = Cluster::start(1);
    let own = cluster.address();
    let token = cluster.token().unwrap();
    let ask = |path: &str, headers: &str| {
        let headers = format!("{headers}Authorization: Bearer {}\r\n", token.reveal());
        let mut stream = TcpStream::connect(own).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for path in ["/", "/api/state", "/api/volley/jobs"] {
        let fine = ask(path, &format!("Host: {own}\r\nOrigin: http://{own}\r\n"));
        assert!(fine.starts_with("HTTP/1.1 200"), "{path}: {fine}");
        let renamed = ask(path, "Host: evil.example\r\n");
        assert!(renamed.starts_with("HTTP/1.1 421"), "{path}: {renamed}");
        for site in ["https://nightlies.apache.org", "http://localhost:8080"] {
            let foreign = ask(path, &format!("Host: {own}\r\nOrigin: {site}\r\n"));
            assert!(foreign.starts_with("HTTP/1.1 403"), "{path}: {foreign}");
            assert!(
                !foreign.contains(&format!("allow-origin: {site}")),
                "{foreign}"
            );
        }
    }
}
