//! The locations that plans may read and write (`--allow-path`): local folders, links in them, and the endpoints in a
//! store's options.

use std::fs;
use std::os::unix::fs::symlink;

use volley_tests::{Cluster, S3Server, Setup};

#[test]
fn plans_stay_below_the_paths_that_are_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for folder in ["data", "secret", "data-other"] {
        fs::create_dir(root.join(folder)).unwrap();
        fs::write(root.join(folder).join("x.csv"), "a\n1\n").unwrap();
    }
    symlink(root.join("secret"), root.join("data/link")).unwrap();
    symlink(root.join("secret/x.csv"), root.join("data/y.csv")).unwrap();
    let allow = [
        "--allow-path".to_owned(),
        root.join("data").display().to_string(),
    ];
    let at = |path: &str| root.join(path).display().to_string();
    let outside = [
        format!("SELECT * FROM '{}'", at("secret/x.csv")),
        format!("SELECT * FROM '{}'", at("data-other/x.csv")),
        format!("SELECT * FROM '{}/../secret/x.csv'", at("data")),
        format!("SELECT * FROM '{}'", at("data/link/x.csv")),
        format!("SELECT * FROM '{}'", at("data/y.csv")),
        format!(
            "SELECT 1 WHERE 1 IN (SELECT a FROM '{}')",
            at("secret/x.csv")
        ),
        format!("COPY (SELECT 1 AS a) TO '{}'", at("secret/out.csv")),
        format!("COPY (SELECT 1 AS a) TO '{}'", at("data/link/out.csv")),
        format!(
            "COPY (SELECT 1 AS a) TO '{}/' STORED AS PARQUET",
            at("data/link/folder")
        ),
    ];
    let inside = format!("SELECT a FROM '{}'", at("data/x.csv"));
    let into = format!(
        "COPY (SELECT 1 AS a) TO '{}/' STORED AS PARQUET",
        at("data/new")
    );
    for setup in [
        // Limits on the scheduler alone; limits on executors alone, as if an attacker had the scheduler.
        Setup {
            executors: 1,
            scheduler_args: allow.to_vec(),
            ..Setup::default()
        },
        Setup {
            executors: 1,
            executor_args: allow.to_vec(),
            ..Setup::default()
        },
    ] {
        let cluster = Cluster::start_with(setup);
        assert_eq!(cluster.query(&inside)[0]["a"], 1);
        cluster.query(&into);
        for sql in &outside {
            let said = cluster.fail(sql);
            assert!(said.contains("--allow-path"), "{sql}: {said}");
        }
        // The model store is refused, too: it is beside the test, not below the path.
        let table = format!(
            "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS CSV LOCATION '{}' OPTIONS ('format.has_header' 'true');",
            at("data/x.csv")
        );
        let model = "CREATE MODEL m OPTIONS (model_type = 'dnn_regressor', input_label_cols = ['a'], device = 'cpu', \
                     epochs = 1) AS SELECT a, a AS b FROM t";
        let said = cluster.fail(&format!("{table} {model}"));
        assert!(said.contains("--allow-path"), "{said}");
        fs::remove_dir_all(root.join("data/new")).unwrap();
    }
    assert!(!root.join("secret/out.csv").exists() && !root.join("secret/folder").exists());
}

/// A bucket has the same name on every server, so the server counts as a location, too.
#[test]
fn options_of_a_store_lead_nowhere_else() {
    let server = S3Server::start();
    fs::create_dir(server.bucket_dir().join("in")).unwrap();
    fs::write(server.bucket_dir().join("in/x.csv"), "a\n1\n").unwrap();
    let options = S3Server::options(&server.endpoint()).into_iter();
    let options: Vec<_> = options
        .map(|(option, value)| format!("'{option}' '{value}'"))
        .collect();
    let sql = format!(
        "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS CSV LOCATION 's3://{}/in/' \
         OPTIONS ('format.has_header' 'true', {}); SELECT a FROM t",
        S3Server::BUCKET,
        options.join(", ")
    );
    let bucket = format!("s3://{}/in", S3Server::BUCKET);
    let allow = |place: &str| ["--allow-path".to_owned(), place.to_owned()];
    let only = allow(&bucket).to_vec();
    let with_server = [only.clone(), allow(&server.endpoint()).to_vec()].concat();
    for (arguments, is_allowed) in [(only, false), (with_server, true)] {
        let [of_scheduler, of_executors] = [(); 2].map(|()| arguments.clone());
        for setup in [
            Setup {
                executors: 1,
                scheduler_args: of_scheduler,
                ..Setup::default()
            },
            Setup {
                executors: 1,
                executor_args: of_executors,
                ..Setup::default()
            },
        ] {
            let cluster = Cluster::start_with(setup);
            if is_allowed {
                assert_eq!(cluster.query(&sql)[0]["a"], 1);
                continue;
            }
            let said = cluster.fail(&sql);
            assert!(
                said.contains("aws.endpoint") && said.contains("--allow-path"),
                "{said}"
            );
            assert!(!said.contains(&server.address()), "{said}");
        }
    }
}
