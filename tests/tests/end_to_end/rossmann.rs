//! The main job's SQL files, on generated tables of a few stores: from seven tables to a submission.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use volley_tests::{Cluster, generate_example};

/// Cluster with the tables.
struct Rossmann {
    cluster: Cluster,
    data: PathBuf,
    out: PathBuf,
}

impl Rossmann {
    fn of_six_stores() -> Self {
        let cluster = Cluster::start(2);
        let [data, out] = ["data", "out"].map(|name| cluster.dir().join(name));
        fs::create_dir(&out).unwrap();
        generate_example(6, &data);
        Self { cluster, data, out }
    }

    /// Runs files in one session, and returns the rows that they print.
    fn run(&self, files: &[&str], defines: &[(&str, &str)]) -> Vec<Value> {
        let folders = [&self.data, &self.out].map(|folder| folder.to_str().unwrap());
        let folders = [("data", folders[0]), ("out", folders[1])];
        let mut command = self.cluster.example(files, &[&folders, defines].concat());
        let output = command.output().unwrap();
        let (stdout, stderr) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(output.status.success(), "{files:?}\n{stderr}");
        stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Reads a submission, and checks that it has each row of the test table once, in order.
    fn submission(&self, file: &str) -> BTreeMap<u64, f64> {
        let submission = fs::read_to_string(self.out.join(file)).unwrap();
        let mut lines = submission.lines();
        assert_eq!(lines.next(), Some("Id,Sales"));
        let rows = lines.map(|line| {
            let (id, sales) = line.split_once(',').unwrap();
            (id.parse().unwrap(), sales.parse().unwrap())
        });
        let rows: Vec<(u64, f64)> = rows.collect();
        let tests = fs::read_to_string(self.data.join("test.csv")).unwrap();
        let tests = tests.lines().count() as u64 - 1;
        let ids = rows.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ids, (1..=tests).collect::<Vec<_>>());
        rows.into_iter().collect()
    }
}

#[test]
fn from_seven_tables_to_a_submission() {
    let job = Rossmann::of_six_stores();
    let options = &[
        ("epochs", "1"),
        ("ranks", "2"),
        ("batch_size", "64"),
        ("seed", "7"),
    ];
    let checks = job.run(&["tables.sql", "features.sql", "checks.sql"], &[]);
    assert!(!checks.is_empty());

    let ranks = job.run(&["tables.sql", "features.sql", "train.sql"], options);
    assert_eq!(ranks.len(), 2, "one row a rank: {ranks:?}");
    assert_eq!(
        (ranks[0]["rank"].as_u64(), ranks[1]["rank"].as_u64()),
        (Some(0), Some(1))
    );
    assert_ne!(
        ranks[0]["executor"], ranks[1]["executor"],
        "one rank an executor"
    );
    let rows = |column: &str| {
        ranks
            .iter()
            .map(|rank| rank[column].as_u64().unwrap())
            .sum::<u64>()
    };

    job.run(&["tables.sql", "features.sql", "predict.sql"], &[]);
    let submission = job.submission("submission.csv");
    assert!(submission.values().all(|sales| *sales > 0.0));

    // Every row was trained or evaluated exactly once per epoch.
    let manifest = job.cluster.store().join("models/rossmann/1/manifest.json");
    let manifest: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(manifest).unwrap()).unwrap();
    assert_eq!(manifest["train_rows"].as_u64(), Some(rows("train_rows")));
    assert_eq!(
        manifest["history"][0]["rows"].as_u64(),
        Some(rows("train_rows"))
    );
    let sold = fs::read_to_string(job.data.join("train.csv")).unwrap();
    let sold = sold
        .lines()
        .skip(1)
        .filter(|line| line.split(',').nth(3) != Some("0"))
        .count();
    assert_eq!(rows("train_rows") + rows("eval_rows"), sold as u64);
}

/// The tutorial's first model is far better than the mean of sales, and tells why.
#[test]
fn the_first_model_explains_its_sales() {
    let job = Rossmann::of_six_stores();
    let tables = ["tables.sql", "features.sql"];
    let options = [("epochs", "5"), ("ranks", "2"), ("seed", "1")];
    job.run(&[&tables[..], &["first.sql"]].concat(), &options);
    let judged = job.run(&[&tables[..], &["first-judge.sql"]].concat(), &[]);
    let r2 = judged[0]["r2_score"].as_f64().unwrap();
    assert!(r2 > 0.6, "{judged:?}");
    // Sales depend on the store most of all.
    assert_eq!(judged[1]["feature"], "Store", "{judged:?}");
    assert!(judged[1]["attribution"].as_f64() > Some(0.2), "{judged:?}");
}

#[test]
fn the_recipe_s_networks_are_scored_together() {
    let job = Rossmann::of_six_stores();
    let features = ["tables.sql", "features.sql", "recipe-features.sql"];
    let files = |last| [&features[..], &[last]].concat();
    let seeds = ["1", "2", "3"];
    let told = seeds.map(|seed| {
        let options = [("epochs", "2"), ("ranks", "2"), ("seed", seed)];
        let ranks = job.run(&files("recipe-train.sql"), &options);
        ranks[0]["eval_rmspe"].as_f64().unwrap()
    });
    let scores = job.run(&files("recipe-score.sql"), &[]);
    // Errors relative to like days equal errors relative to sales.
    for (seed, told) in seeds.iter().zip(told) {
        let score = scores[0][format!("rmspe_{seed}")].as_f64().unwrap();
        assert!((score / told - 1.0).abs() < 1e-3, "{score}, {told}");
    }
    let together = scores[0]["rmspe"].as_f64().unwrap();
    let worst = told.into_iter().fold(0.0, f64::max);
    assert!(together > 0.0 && together < worst, "{scores:?}, {told:?}");
    let submission = job.submission("recipe-submission.csv");
    assert!(submission.values().all(|sales| *sales > 0.0));
}
