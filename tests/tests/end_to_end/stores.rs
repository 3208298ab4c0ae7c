//! Tables on an object store: read by URL and by name, written as folders and files, with credentials from the
//! environment or a statement, which are shown nowhere.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use volley_tests::{Cluster, Fault, FaultPlan, FaultyProxy, RemoteStore, S3Server, Setup};

/// Starts a cluster whose processes have the credentials of a bucket in their environment.
fn cluster(executors: usize, server: &S3Server, endpoint: &str) -> Cluster {
    Cluster::start_with(Setup {
        executors,
        remote_store: Some(RemoteStore {
            url: format!("s3://{}/models", S3Server::BUCKET),
            dir: server.bucket_dir().join("models"),
            environment: S3Server::environment(endpoint),
        }),
        ..Setup::default()
    })
}

/// Replaces `{b}` in a statement by the bucket's URL.
fn about(sql: &str) -> String {
    sql.replace("{b}", &format!("s3://{}", S3Server::BUCKET))
}

/// Puts files into the bucket, by their keys.
fn put(server: &S3Server, files: &[(&str, &str)]) {
    for (key, text) in files {
        let file = server.bucket_dir().join(key);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
}

/// Returns the files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[test]
fn files_of_a_bucket_are_tables() {
    let server = S3Server::start();
    let cluster = cluster(2, &server, &server.endpoint());
    put(
        &server,
        &[
            ("in/p1.csv", "k,v\n1,a\n2,b\n"),
            ("in/p2.csv", "k,v\n3,c\n"),
            ("in/p3.csv", "k,v\n4,d\n5,e\n6,f\n"),
            ("in/notes.txt", "no table"),
            ("hive/y=2023/m=01/a.csv", "n\n1\n2\n"),
            ("hive/y=2024/m=01/a.csv", "n\n3\n"),
            ("hive/y=2024/m=02/a b.csv", "n\n4\n"),
        ],
    );
    let count = |from: &str| {
        let sql = format!("SELECT count(*) AS n, sum(k) AS s FROM {from}");
        let row = cluster.query(&about(&sql)).remove(0);
        (row["n"].as_u64().unwrap(), row["s"].as_u64().unwrap())
    };
    assert_eq!(count("'{b}/in/p1.csv'"), (2, 3));
    assert_eq!(count("'{b}/in/p[12].csv'"), (3, 6));
    assert_eq!(count("'{b}/in/*.csv'"), (6, 21));
    assert_eq!(count("'{b}/in/'"), (6, 21));
    assert_eq!(
        count("'{b}/in/p[12].csv' a JOIN '{b}/in/*.csv' b USING (k)"),
        (3, 6)
    );
    let years =
        "SELECT y, m, sum(n) AS s FROM '{b}/hive/' WHERE y >= 2023 GROUP BY y, m ORDER BY y, m";
    let years = cluster.query(&about(years));
    let expected = [
        json!({"y": 2023, "m": "01", "s": 3}),
        json!({"y": 2024, "m": "01", "s": 3}),
        json!({"y": 2024, "m": "02", "s": 4}),
    ];
    assert_eq!(years, expected);
    let table = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{b}/in/p1.csv' \
                 OPTIONS ('format.has_header' 'true'); SELECT sum(k) AS s FROM t";
    assert_eq!(cluster.query(&about(table)), [json!({"s": 3})]);

    for (sql, said) in [
        ("SELECT * FROM '{b}/nothing/*.csv'", "{b}/nothing/*.csv"),
        ("SELECT * FROM 'hdfs://host/x.csv'", "hdfs://host/x.csv"),
        ("SELECT * FROM 's3://user:hunter2@bucket/x.csv'", "password"),
        (
            "COPY (SELECT 1 AS a) TO 'http://127.0.0.1:1/x.csv'",
            "http://127.0.0.1:1/x.csv",
        ),
        (
            "CREATE EXTERNAL TABLE d STORED AS DELTA LOCATION '{b}/delta/'",
            "DELTA",
        ),
        (
            "CREATE EXTERNAL TABLE d STORED AS CSV LOCATION '{b}/in/' OPTIONS ('aws.acces_key_id' 'x')",
            "aws.access_key_id",
        ),
        (
            "COPY (SELECT 1 AS a) TO '/tmp/x.csv' OPTIONS ('aws.region' 'x')",
            "/tmp/x.csv",
        ),
    ] {
        let error = cluster.fail(&about(sql));
        assert!(error.contains(&about(said)), "{sql}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn what_is_written_to_a_bucket_is_read_back() {
    let server = S3Server::start();
    let cluster = cluster(2, &server, &server.endpoint());
    let rows = "SELECT value AS id, value % 3 AS part, 'text ' || value AS t FROM range(1000)";
    let check = |from: &str| {
        let sql = format!(
            "SELECT count(*) AS n, count(DISTINCT id) AS ids, sum(id) AS s, count(DISTINCT part) AS parts, \
             count(DISTINCT t) AS ts FROM {from}"
        );
        let expected = json!({"n": 1000, "ids": 1000, "s": 499_500, "parts": 3, "ts": 1000});
        assert_eq!(cluster.query(&about(&sql)), [expected], "{from}");
    };
    for (format, extension) in [("PARQUET", "parquet"), ("CSV", "csv"), ("JSON", "json")] {
        let header = match format {
            "CSV" => "OPTIONS ('format.has_header' 'true')",
            _ => "",
        };
        let folder = format!("{{b}}/{extension}/folder/");
        cluster.query(&about(&format!(
            "COPY ({rows}) TO '{folder}' STORED AS {format} {header}"
        )));
        check(&format!("'{folder}'"));
        check(&format!("'{folder}*.{extension}'"));
        let file = format!("{{b}}/{extension}/one.{extension}");
        cluster.query(&about(&format!("COPY ({rows}) TO '{file}' {header}")));
        check(&format!("'{file}'"));
        let parts = format!("{{b}}/{extension}/parts/");
        cluster.query(&about(&format!(
            "COPY ({rows}) TO '{parts}' STORED AS {format} PARTITIONED BY (part) {header}"
        )));
        check(&format!("'{parts}'"));
        assert_eq!(
            cluster.query(&about(&format!(
                "SELECT count(*) AS n FROM '{parts}' WHERE part = 2"
            ))),
            [json!({"n": 333})]
        );
    }
    let table = "CREATE EXTERNAL TABLE kept (id BIGINT, part BIGINT, t VARCHAR) STORED AS PARQUET \
                 LOCATION '{b}/kept/';";
    let ordered = "SELECT * FROM (SELECT value AS id, value % 3 AS part, 'text ' || value AS t FROM \
                   range(500, 1000)) ORDER BY id";
    cluster.query(&about(&format!(
        "{table} INSERT INTO kept {rows} WHERE value < 500; INSERT INTO kept {ordered}; SELECT 1"
    )));
    check("'{b}/kept/'");
    let left = files(&server.bucket_dir());
    let left: Vec<_> = left
        .iter()
        .filter(|file| file.to_string_lossy().contains(".volley-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(server.open_uploads(), 0);
}

/// Returns the response of a page or an interface of the scheduler.
fn fetch(cluster: &Cluster, path: &str) -> String {
    let mut stream = TcpStream::connect(cluster.address()).unwrap();
    let host = cluster.address();
    let token = cluster.token().unwrap();
    let token = token.reveal();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn credentials_of_a_statement_reach_tasks_and_are_shown_nowhere() {
    let server = S3Server::start();
    // No process has credentials in its environment.
    let cluster = Cluster::start(2);
    put(
        &server,
        &[("in/a.csv", "k\n1\n2\n"), ("in/b.csv", "k\n3\n")],
    );
    let options = format!(
        "'aws.access_key_id' '{}', 'aws.secret_access_key' '{}', 'aws.endpoint' '{}', \
         'aws.allow_http' 'true', 'aws.region' 'us-east-1'",
        S3Server::ACCESS_KEY,
        S3Server::SECRET_KEY,
        server.endpoint()
    );
    let table = about(&format!(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{{b}}/in/' \
         OPTIONS ('format.has_header' 'true', {options});"
    ));
    let mut shown = String::new();
    let mut run = |sql: &str, code: i32| {
        let sql = format!("{table} {}", about(sql));
        let run = cluster.run(&["--format", "json", "-c", &sql]);
        assert_eq!(run.code, Some(code), "{sql}\n{}", run.stderr);
        shown.push_str(&run.stderr);
        shown.push_str(&run.stdout);
        run
    };
    let sum = run("SELECT sum(a.k) AS s FROM t a JOIN t b USING (k)", 0).rows();
    assert_eq!(sum, [json!({"s": 6})]);
    let copy = format!("COPY (SELECT k FROM t) TO '{{b}}/out/' STORED AS CSV OPTIONS ({options})");
    run(&copy, 0);
    run(&copy.replace("out/", "one.csv"), 0);
    let insert = "INSERT INTO t SELECT k + 10 FROM t; SELECT count(*) AS n FROM t";
    assert_eq!(run(insert, 0).rows().last(), Some(&json!({"n": 6})));
    for explained in [
        "EXPLAIN SELECT * FROM t",
        "EXPLAIN VERBOSE SELECT * FROM t",
        "EXPLAIN ANALYZE SELECT sum(k) FROM t",
        "SHOW ALL",
        "SELECT * FROM information_schema.df_settings",
        "SELECT * FROM information_schema.views",
        "SELECT * FROM volley.jobs",
        "SELECT * FROM volley.stages",
        "SELECT * FROM volley.log",
    ] {
        run(explained, 0);
    }
    run(&format!("EXPLAIN {copy}"), 0);
    // The error of an unreachable store does not show them.
    let nowhere = format!(
        "COPY (SELECT 1 AS a) TO '{{b}}/x/' STORED AS CSV OPTIONS ({})",
        options.replace(S3Server::ACCESS_KEY, "another-key")
    );
    run(&nowhere, 1);
    let mut places = vec![("what the client says".to_owned(), shown)];
    for path in ["/api/jobs", "/api/state", "/"] {
        places.push((path.to_owned(), fetch(&cluster, path)));
    }
    for job in cluster.jobs().unwrap() {
        for of in ["", "/stages", "/config", "/dot"] {
            let path = format!("/api/job/{}{of}", job.attempt());
            places.push((path.clone(), fetch(&cluster, &path)));
        }
    }
    let logs = cluster.run(&["-c", "SELECT 1"]).stderr;
    places.push(("a later client".to_owned(), logs));
    // A restarted scheduler needs the submissions of queries: only its user may look there.
    let record = fs::metadata(cluster.record()).unwrap().permissions();
    assert_eq!(record.mode() & 0o777, 0o700);
    let elsewhere = files(cluster.dir()).into_iter();
    for file in elsewhere.filter(|file| !file.starts_with(cluster.record())) {
        let text = fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        places.push((file.display().to_string(), text));
    }
    for (place, text) in places {
        assert!(
            !text.contains(S3Server::SECRET_KEY),
            "{place} has the secret:\n{text}"
        );
    }
}

#[test]
fn truncated_listings_and_upload_ids_are_retried() {
    let server = S3Server::start();
    let proxy = FaultyProxy::to(&server.address(), FaultPlan::even(0, 0.0));
    let cluster = cluster(1, &server, &proxy.endpoint());
    put(&server, &[("in/a.csv", "n\n1\n"), ("in/b.csv", "n\n2\n")]);
    for _ in 0..3 {
        proxy.plant("GET", "list-type=2", Fault::Truncate);
    }
    let sum = "SELECT sum(n) AS s FROM '{b}/in/'";
    assert_eq!(cluster.query(&about(sum)), [json!({"s": 3})]);
    assert_eq!(proxy.planted(), 0, "all of them were met");
    for _ in 0..3 {
        proxy.plant("POST", "uploads", Fault::Truncate);
    }
    let copy = about("COPY (SELECT 7 AS n) TO '{b}/out/' STORED AS CSV");
    cluster.query(&copy);
    assert_eq!(proxy.planted(), 0, "all of them were met");
    let sum = about("SELECT sum(n) AS s FROM '{b}/out/'");
    assert_eq!(cluster.query(&sum), [json!({"s": 7})]);
}

#[test]
fn requests_that_fail_change_no_row() {
    let server = S3Server::start();
    let proxy = FaultyProxy::to(&server.address(), FaultPlan::even(20_261_125, 0.2));
    let cluster = cluster(2, &server, &proxy.endpoint());
    let rows = "SELECT value AS id FROM range(3000)";
    let (mut whole, mut refused) = (0, 0);
    for round in 0..6 {
        let folder = format!("{{b}}/faulty/{round}/");
        let copy = about(&format!("COPY ({rows}) TO '{folder}' STORED AS PARQUET"));
        let run = cluster.run(&["--quiet", "-c", &copy]);
        let is_written = run.code == Some(0);
        assert!(is_written || run.stderr.contains("error"), "{}", run.stderr);
        let read = about(&format!(
            "SELECT count(*) AS n, count(DISTINCT id) AS ids, sum(id) AS s FROM '{folder}'"
        ));
        let read = cluster.run(&["--format", "json", "--quiet", "-c", &read]);
        match (is_written, read.code) {
            (true, Some(0)) => {
                let expected = json!({"n": 3000, "ids": 3000, "s": 4_498_500});
                assert_eq!(read.rows(), [expected]);
                whole += 1;
            }
            _ => refused += 1,
        }
    }
    assert!(proxy.requests() > 50, "{} requests", proxy.requests());
    assert!(whole > 0, "{refused} of 6 were refused");
}
