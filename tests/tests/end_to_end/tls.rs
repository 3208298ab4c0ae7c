//! Clusters whose processes speak TLS, and clients that are refused.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use volley_tests::{Cluster, Numbers, Setup, binary, certificates, eventually};

use crate::access::{Guarded, said};
use crate::{create_model, fails, write_table};

/// Deadline for changes that processes check for every two seconds, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Creates certificates for `127.0.0.1` with an authority of their own.
fn certs(dir: &Path, name: &str) -> PathBuf {
    certificates(&["127.0.0.1".to_owned()], &dir.join(name))
}

fn start(certs: &Path, executors: usize) -> Cluster {
    Cluster::start_with(Setup {
        executors,
        certs: Some(certs.to_owned()),
        long_names: true,
        ..Setup::default()
    })
}

/// Runs a query that sends rows between the executors.
fn shuffles(cluster: &Cluster, numbers: &Numbers) {
    let counted = cluster.query(&format!(
        "{} SELECT count(*) AS n FROM (SELECT DISTINCT id FROM facts)",
        numbers.tables()
    ));
    assert_eq!(counted[0]["n"], numbers.facts());
}

#[test]
fn queries_and_training_go_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = start(&certs(dir.path(), "certs"), 2);
    let numbers = Numbers::write(cluster.dir(), 20_000);
    shuffles(&cluster, &numbers);

    let table = write_table(cluster.dir(), 300);
    let model = create_model("m", ", epochs = 2, ranks = 2");
    let ranks = cluster.query(&format!("{table} {model}"));
    assert_eq!(ranks.len(), 2, "one row a rank: {ranks:?}");
    assert_ne!(ranks[0]["executor"], ranks[1]["executor"]);
    let connected: Vec<_> = cluster
        .executors()
        .iter()
        .map(|executor| executor.output())
        .collect();
    let over_tls = |said: &&String| {
        said.contains("connected with 1 ranks, 0 of them on this host, 1 over TLS")
    };
    assert_eq!(connected.iter().filter(over_tls).count(), 2);

    let predicted = cluster.query(&format!(
        "{table} SELECT count(predicted_y) AS n FROM ML.PREDICT(MODEL m, (SELECT k, x FROM t))"
    ));
    assert_eq!(predicted[0]["n"], 300);
    let jobs = cluster.manage_jobs(&["list", "--format", "json"]);
    assert!(jobs.rows().len() >= 3, "{}", jobs.stderr);
}

#[test]
fn who_does_not_speak_tls_or_has_the_wrong_files_is_refused_and_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (certs(dir.path(), "own"), certs(dir.path(), "other"));
    let cluster = start(&own, 1);
    let address = cluster.address();
    let client = |options: &[(&str, PathBuf)]| {
        let mut command = Command::new(binary("volley"));
        command
            .args(["--scheduler", address, "-c", "SELECT 1"])
            .current_dir(dir.path());
        for (option, path) in options {
            command.arg(option).arg(path);
        }
        command
    };
    let said = fails(&mut client(&[]));
    assert!(said.contains("it speaks TLS: give --tls-ca"), "{said}");
    let said = fails(&mut client(&[("--tls-ca", other.join("ca.pem"))]));
    assert!(said.contains("not signed by the authority in"), "{said}");
    let said = fails(&mut client(&[("--tls-ca", other.join("ca.key"))]));
    assert!(said.contains("no certificate in it"), "{said}");
    let mutual = [
        ("--tls-ca", own.join("ca.pem")),
        ("--tls-cert", own.join("client.pem")),
        ("--tls-key", own.join("client.key")),
    ];
    assert!(client(&mutual).output().unwrap().status.success());

    // A browser without TLS.
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");

    let said = cluster.refuses_a_client_as_executor().unwrap();
    assert!(said.contains("for processes of the cluster"), "{said}");

    let both = dir.path().join("both.pem");
    let mut pem = fs::read(own.join("ca.pem")).unwrap();
    pem.extend(fs::read(other.join("ca.pem")).unwrap());
    fs::write(&both, pem).unwrap();
    let executor = |options: &[(&str, PathBuf)]| {
        let mut command = Command::new(binary("volley-executor"));
        command.args([
            "--scheduler",
            address,
            "--vcores",
            "1",
            "--connect-timeout",
            "3s",
        ]);
        for (option, path) in options {
            command.arg(option).arg(path);
        }
        command
    };
    let files = |ca: &Path, cert: &Path, name: &str| {
        [
            ("--tls-ca", ca.to_owned()),
            ("--tls-cert", cert.join(format!("{name}.pem"))),
            ("--tls-key", cert.join(format!("{name}.key"))),
        ]
    };
    for (options, expected) in [
        (vec![], "it speaks TLS"),
        // Forged: the client trusts the cluster, which does not trust the client's authority.
        (
            files(&both, &other, "127.0.0.1").to_vec(),
            "rejects this process's certificate",
        ),
        (
            files(&own.join("ca.pem"), &own, "client").to_vec(),
            "serverAuth",
        ),
        (
            files(&own.join("ca.pem"), &own, "127.0.0.1")[..1].to_vec(),
            "expected --tls-cert and --tls-key too",
        ),
    ] {
        let said = fails(&mut executor(&options));
        assert!(said.contains(expected), "{options:?}: {said}");
    }
    assert_eq!(cluster.registered().unwrap().len(), 1);
    assert_eq!(cluster.query("SELECT 1 AS one")[0]["one"], 1);
}

#[test]
fn renewed_certificates_are_taken_while_the_cluster_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (used, new) = (certs(dir.path(), "used"), certs(dir.path(), "new"));
    let mut cluster = start(&used, 2);
    let numbers = Numbers::write(cluster.dir(), 20_000);
    shuffles(&cluster, &numbers);

    // The authority changes: first all trust both, then they get certificates of the new one.
    let mut authorities = fs::read(used.join("ca.pem")).unwrap();
    authorities.extend(fs::read(new.join("ca.pem")).unwrap());
    fs::write(used.join("ca.pem"), authorities).unwrap();
    eventually("all to trust both authorities", SOON, || {
        // Each process answers connections of a new client, which fetches more rows than a small result has.
        cluster.query(&format!("{} SELECT id, k, v FROM facts", numbers.tables()));
        let is_renewed =
            |process: &volley_tests::Process| process.output().contains("TLS files were renewed");
        let executors = cluster.executors().iter().all(is_renewed);
        (executors && is_renewed(cluster.scheduler())).then_some(())
    });
    for file in ["127.0.0.1.pem", "127.0.0.1.key"] {
        fs::copy(new.join(file), used.join(file)).unwrap();
    }
    let address = cluster.address().to_owned();
    eventually("the new certificates", SOON, || {
        let mut client = Command::new(binary("volley"));
        client
            .args(["--scheduler", &address, "-c", "SELECT 1", "--tls-ca"])
            .arg(new.join("ca.pem"))
            .current_dir(dir.path());
        client.output().unwrap().status.success().then_some(())
    });
    shuffles(&cluster, &numbers);
    // New connections present and expect the new certificates.
    cluster.restart_scheduler();
    cluster.await_executors(2);
    shuffles(&cluster, &numbers);
    let table = write_table(cluster.dir(), 100);
    let model = create_model("m", ", epochs = 1, ranks = 2");
    assert_eq!(cluster.query(&format!("{table} {model}")).len(), 2);
}

#[test]
fn a_local_cluster_is_started_with_development_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let certs = certs(dir.path(), "certs");
    let volley = |arguments: &[&str]| {
        let mut command = Command::new(binary("volley"));
        command.args(arguments).current_dir(dir.path());
        command
    };
    let state = dir.path().join("cluster");
    let mut up = volley(&[
        "cluster",
        "up",
        "--executors",
        "1",
        "--vcores",
        "1",
        "--dir",
    ]);
    up.arg(&state)
        .arg("--tls-ca")
        .arg(certs.join("ca.pem"))
        .arg("--tls-cert")
        .arg(certs.join("127.0.0.1.pem"))
        .arg("--tls-key")
        .arg(certs.join("127.0.0.1.key"));
    let up = up.output().unwrap();
    let said = String::from_utf8_lossy(&up.stdout).into_owned();
    let errors = String::from_utf8_lossy(&up.stderr).into_owned();
    let scheduler = said
        .split_once("VOLLEY_SCHEDULER=")
        .and_then(|(_, rest)| rest.lines().next())
        .map(str::to_owned);
    let query = scheduler.as_ref().map(|scheduler| {
        let mut query = volley(&[
            "--scheduler",
            scheduler,
            "--format",
            "csv",
            "-q",
            "-c",
            "SELECT 1 AS one",
        ]);
        query
            .arg("--tls-ca")
            .arg(certs.join("ca.pem"))
            .output()
            .unwrap()
    });
    let doctor = scheduler.as_ref().map(|scheduler| {
        let mut doctor = volley(&["doctor", "--scheduler", scheduler]);
        doctor
            .arg("--tls-ca")
            .arg(certs.join("ca.pem"))
            .output()
            .unwrap()
    });
    let mut found = volley(&["--format", "csv", "-q", "-c", "SELECT 1 AS one"]);
    let found = found.env("VOLLEY_CLUSTER_DIR", &state).output().unwrap();
    let mut down = volley(&["cluster", "down", "--dir"]);
    let down = down.arg(&state).output().unwrap();
    assert!(up.status.success(), "{said}{errors}");
    assert!(said.contains("export VOLLEY_TLS_CA="), "{said}");
    let query = query.unwrap();
    let errors = String::from_utf8_lossy(&query.stderr);
    assert_eq!(
        String::from_utf8_lossy(&query.stdout),
        "one\n1\n",
        "{errors}"
    );
    let errors = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.stdout, b"one\n1\n", "{errors}");
    let doctor = doctor.unwrap();
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.status.success() && found.contains("over TLS"),
        "{found}"
    );
    assert!(
        down.status.success(),
        "{}",
        String::from_utf8_lossy(&down.stderr)
    );
}

#[test]
fn with_tokens_over_tls_executors_listen_beyond_loopback() {
    let dir = tempfile::tempdir().unwrap();
    let everywhere = ["--bind", "0.0.0.0", "--advertise-host", "127.0.0.1"];
    let guarded = Guarded::start_with(Setup {
        executors: 2,
        executor_args: everywhere.map(str::to_owned).to_vec(),
        certs: Some(certs(dir.path(), "certs")),
        ..Setup::default()
    });
    let table = write_table(guarded.cluster.dir(), 50);
    let grouped = format!("{table} SELECT count(*) AS n FROM (SELECT DISTINCT k, x, y FROM t)");
    assert_eq!(guarded.run("rita", &grouped).code, Some(0));
    let model = format!("{table} {}", create_model("m", ", epochs = 1, ranks = 2"));
    said(&guarded.run("rita", &model), &["CREATE MODEL", "role run"]);
    assert_eq!(guarded.run("alice", &model).code, Some(0));
    let doctor = guarded.cluster.examine();
    assert_eq!(doctor.code, Some(0), "{}", doctor.stdout);
}
