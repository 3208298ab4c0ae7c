//! Wrong inputs and addresses: the error names the mistake, and the cluster lives on.

use std::fs;
use std::process::Command;

use volley_tests::{Cluster, binary};

use crate::{create_model, fails, write_table};

#[test]
fn bad_input_is_named_and_the_cluster_lives_on() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 100);
    let dir = cluster.dir().display();
    fs::write(cluster.dir().join("ragged.csv"), "a,b\n1,2\n3\n").unwrap();
    let ragged = format!(
        "CREATE EXTERNAL TABLE r (a BIGINT, b BIGINT) STORED AS CSV LOCATION '{dir}/ragged.csv' \
         OPTIONS ('format.has_header' 'true');"
    );
    let model = |options: &str| create_model("bad", options);
    let select =
        |select: &str| model(", epochs = 1").replace("SELECT k, x, y, split, id FROM t", select);
    cluster.query(&format!(
        "{table} {}",
        create_model("good", ", epochs = 1, ranks = 1")
    ));

    // The input, and the words that the message must contain.
    let mistakes: &[(String, &[&str])] = &[
        (format!("{table} SELECT nope FROM t"), &["nope"]),
        (
            format!(
                "CREATE EXTERNAL TABLE m STORED AS CSV LOCATION '{dir}/no.csv'; SELECT * FROM m"
            ),
            &["no.csv"],
        ),
        (format!("{ragged} SELECT sum(a + b) FROM r"), &["line"]),
        (
            format!("{table} {}", model(", epocs = 1")),
            &["epocs", "epochs"],
        ),
        (
            format!("{table} {}", model(", epochs = 0")),
            &["epochs", "0"],
        ),
        (
            format!("{table} {}", model(", epochs = 'many'")),
            &["epochs", "many"],
        ),
        (format!("{table} {}", model(", ranks = 0")), &["ranks", "0"]),
        (
            format!("{table} {}", model(", loss = 'made_up'")),
            &["loss", "made_up"],
        ),
        (
            format!("{table} {}", select("SELECT k, y, split FROM t")),
            &["\"x\""],
        ),
        (
            format!(
                "{table} {}",
                select("SELECT k, x, empty AS y, split FROM t")
            ),
            &["\"y\"", "NULL"],
        ),
        (
            format!(
                "{table} {}",
                select("SELECT k, x, y - 100 AS y, split FROM t")
                    .replace("epochs = 1", "epochs = 1, label_transform = 'ln'")
            ),
            &["\"y\""],
        ),
        (
            format!(
                "{table} {}",
                select("SELECT k, x, y, 'MAYBE' AS split FROM t")
            ),
            &["MAYBE"],
        ),
        (
            format!("{table} SELECT * FROM ML.PREDICT(MODEL goood, (SELECT * FROM t))"),
            &["goood", "good"],
        ),
        (
            format!("{table} SELECT * FROM ML.PREDICT(MODEL good, (SELECT k FROM t))"),
            &["\"x\""],
        ),
        (
            format!("{table} SELECT * FROM ML.PREDICT(MODEL good, (SELECT 'a' AS k, x FROM t))"),
            &["\"k\"", "Utf8"],
        ),
        ("DROP MODEL nothing".into(), &["nothing"]),
        ("SELEC 1".into(), &["SELEC"]),
    ];
    for (sql, names) in mistakes {
        let said = cluster.fail(sql);
        for name in *names {
            assert!(said.contains(name), "{sql}\n{said}\nshould name {name}");
        }
    }

    let file = cluster.dir().join("file");
    fs::write(&file, "").unwrap();
    let sql = format!("{table} {}", create_model("s", ", epochs = 1"));
    let output = Command::new(binary("volley"))
        .args(["--scheduler", cluster.address(), "--store"])
        .arg(file.join("store"))
        .args(["-c", &sql])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("store"));
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["cluster", "token", "--name", "a", "--role", "run"][..],
        &["cluster", "certs", "--hosts", "localhost", "--out", "certs"],
        &["generate", "rossmann", "--stores", "1", "--out", "tables"],
        &["help", "SELECT"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let output = Command::new(binary("volley"))
            .args(args)
            .current_dir(dir.path())
            .stdout(full.unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot write to standard output"), "{said}");
    }
}

#[test]
fn a_scheduler_that_is_not_there_and_a_port_in_use_are_named() {
    let cluster = Cluster::start(0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = Command::new(binary("volley"))
        .args([
            "--scheduler",
            &closed,
            "--connect-timeout",
            "1s",
            "-c",
            "SELECT 1",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&closed));

    let mut second = Command::new(binary("volley-scheduler"));
    let said = fails(second.args(["--bind", cluster.address()]));
    assert!(said.contains(cluster.address()), "{said}");
}
