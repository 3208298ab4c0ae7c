//! The life of a model in SQL: it is created, described, used, evaluated and dropped.

use std::fs::{self, File};
use std::time::Duration;

use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use volley_tests::{Cluster, eventually};

use crate::{create_model, write_table};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_model_lives_in_sql() {
    let cluster = Cluster::start(2);
    let table = write_table(cluster.dir(), 700);
    let query = |sql: &str| cluster.query(&format!("{table} {sql}"));

    let ranks = query(&create_model(
        "m",
        ", epochs = 12, ranks = 2, learn_rate = 0.02, seed = 3",
    ));
    assert_eq!(ranks.len(), 2);
    let info = query("SELECT * FROM ML.TRAINING_INFO(MODEL m) ORDER BY iteration");
    assert_eq!(info.len(), 12);
    let loss = |row: &serde_json::Value| row["eval_loss"].as_f64().unwrap();
    assert!(
        loss(&info[11]) < loss(&info[0]) / 2.0,
        "it learns: {info:?}"
    );

    let predicted =
        query("SELECT id, y, predicted_y FROM ML.PREDICT(MODEL m, (SELECT * FROM t)) ORDER BY id");
    assert_eq!(predicted.len(), 700);
    let evaluated = query("SELECT * FROM ML.EVALUATE(MODEL m, (SELECT * FROM t))");
    let trained = "SELECT avg(x) AS mean, stddev_pop(x) AS stddev, min(x) AS min, max(x) AS max FROM t WHERE split = 'TRAIN'";
    let due = &query(trained)[0];
    let info = query("SELECT * FROM ML.FEATURE_INFO(MODEL m) ORDER BY input");
    assert_eq!(
        (&info[0]["input"], &info[0]["category_count"]),
        (&"k".into(), &7.into())
    );
    let drifted =
        "SELECT k, CASE WHEN id > 0 THEN x + 2 END AS x FROM t WHERE split = 'TRAIN' OR id = 0";
    let drifted = query(&format!(
        "SELECT * FROM ML.FEATURE_INFO(MODEL m, ({drifted})) ORDER BY input"
    ));
    let number = |row: &serde_json::Value, name: &str| row[name].as_f64().unwrap();
    for (name, moved) in [("mean", 2.0), ("stddev", 0.0), ("min", 2.0), ("max", 2.0)] {
        let [told, due, then] = [&info[1], due, &drifted[1]].map(|row| number(row, name));
        assert!((told - due).abs() < 1e-5, "{name}: {told}, {due}");
        assert!((then - due - moved).abs() < 1e-5, "{name}: {then}, {due}");
    }
    assert_eq!(
        (&info[1]["null_count"], &drifted[1]["null_count"]),
        (&0.into(), &1.into())
    );
    let due = 2.0 / number(&info[1], "stddev");
    assert!(
        (number(&drifted[1], "drift") - due).abs() < 1e-5,
        "{drifted:?}"
    );
    assert_eq!(drifted[0]["category_count"], 7);
    let grouped = query("SELECT * FROM ML.EVALUATE(MODEL m, TABLE t, BY k, BY id) ORDER BY id");
    assert_eq!(grouped.len(), 700);
    for (group, row) in grouped.iter().zip(&predicted) {
        let difference = row["y"].as_f64().unwrap() - row["predicted_y"].as_f64().unwrap();
        let told = group["mean_absolute_error"].as_f64().unwrap();
        assert!((told - difference.abs()).abs() < 1e-4, "{group} {row}");
    }
    let error: f64 = predicted
        .iter()
        .map(|row| (row["y"].as_f64().unwrap() - row["predicted_y"].as_f64().unwrap()).abs())
        .sum::<f64>()
        / 700.0;
    let told = evaluated[0]["mean_absolute_error"].as_f64().unwrap();
    assert!(
        (error - told).abs() < 1e-4 * error.max(1.0),
        "{error} {told}"
    );

    let traced = create_model("traced", ", epochs = 1, ranks = 2");
    let traced = cluster.run(&["--trace", "-c", &table, "-c", &traced]);
    let trace = cluster.store().join("models/traced/1/trace.json");
    let said = traced.stdout.contains(trace.to_str().unwrap());
    assert!(said, "{}\n{}", traced.stdout, traced.stderr);
    let trace: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(trace).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    query("DROP MODEL traced");

    query(&create_model(
        "binned",
        ", epochs = 12, ranks = 2, learn_rate = 0.02, seed = 3, numeric_transform = 'quantile', \
         numeric_embedding = 'piecewise_linear'",
    ));
    let evaluated = query("SELECT * FROM ML.EVALUATE(MODEL binned, (SELECT * FROM t))");
    let of_mean = query(
        "SELECT avg(abs(y - mean)) AS error FROM t, (SELECT avg(y) AS mean FROM t) AS of_all",
    );
    let [told, due] = [
        number(&evaluated[0], "mean_absolute_error"),
        number(&of_mean[0], "error"),
    ];
    assert!(told < due / 2.0, "{told} {due}");
    query("DROP MODEL binned");

    assert_eq!(query("SHOW MODELS").len(), 1);
    assert!(!query("DESCRIBE MODEL m").is_empty());
    assert!(
        cluster
            .fail(&format!("{table} {}", create_model("m", "")))
            .contains("exists")
    );
    let again = create_model("m", ", epochs = 100000").replacen("MODEL", "OR REPLACE MODEL", 1);
    let job = cluster
        .run(&["--detach", "-c", &table, "-c", &again])
        .stdout;
    eventually("training to begin", SOON, || {
        let runs = query("SELECT 1 FROM volley.training_runs WHERE state = 'training'");
        (!runs.is_empty()).then_some(())
    });
    let dropped = cluster.run(&["-c", "DROP MODEL m"]);
    let said = dropped.stdout + &dropped.stderr;
    assert!(said.contains("of a model m is under way"), "{said}");
    cluster.manage_jobs(&["cancel", job.trim()]);
    let models = query("SHOW MODELS");
    assert!(
        models.iter().all(|model| model["current"].is_null()),
        "{models:?}"
    );
    let said = cluster.fail(&format!(
        "{table} SELECT * FROM ML.PREDICT(MODEL m, (SELECT * FROM t))"
    ));
    assert!(said.contains("\"m\""), "{said}");
}

#[test]
fn a_store_is_checked_cleaned_and_copied() {
    let cluster = Cluster::start(1);
    let table = write_table(cluster.dir(), 300);
    for _ in 0..3 {
        let create =
            create_model("m", ", epochs = 1").replace("CREATE MODEL", "CREATE OR REPLACE MODEL");
        cluster.query(&format!("{table} {create}"));
    }
    let holds = |args: &[&str]| -> Vec<String> {
        let rows = cluster.manage_store(args).rows();
        let text = |row: &serde_json::Value| row["holds"].as_str().unwrap().to_owned();
        rows.iter().map(text).collect()
    };
    let all = ["version 1", "version 2", "version 3, current"];
    assert_eq!(holds(&["check"]), all);
    let backup = cluster.dir().join("backup");
    let backup = backup.to_str().unwrap();
    let copied = cluster.manage_store(&["backup", backup]);
    assert!(copied.stdout.starts_with("3 versions copied"), "{copied:?}");
    let copied = cluster.manage_store(&["backup", backup]);
    assert!(
        copied.stdout.contains("3 versions there already"),
        "{copied:?}"
    );

    assert!(holds(&["gc"]).is_empty());
    let surplus = ["gc", "--keep-versions", "2"];
    assert_eq!(
        holds(&[&surplus[..], &["--dry-run"]].concat()),
        ["version 1"]
    );
    assert_eq!(holds(&["check"]), all);
    assert_eq!(holds(&surplus), ["version 1"]);
    assert_eq!(holds(&["check"]), all[1..]);
    cluster.query("DROP MODEL m VERSION 2");
    let said = cluster.fail("DROP MODEL m VERSION 3");
    assert!(said.contains("is the current version of model"), "{said}");
    let said = cluster.fail("DROP MODEL m VERSION 2");
    assert!(said.contains("no version 2: it has 3"), "{said}");

    // Half of a run that was interrupted: it counts as left behind when it is old.
    let half = cluster
        .store()
        .join("models/m/unpublished/x-1/weights.safetensors");
    fs::create_dir_all(half.parent().unwrap()).unwrap();
    fs::write(&half, "half").unwrap();
    assert!(holds(&["gc"]).is_empty());
    let gone = holds(&["gc", "--older-than", "0s"]);
    assert_eq!(gone, ["files that were not published"]);
    assert!(!half.exists());

    let weights = cluster.store().join("models/m/3/weights.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let damaged = cluster.manage_store(&["check"]);
    assert_eq!(damaged.code, Some(1));
    assert!(
        damaged.stderr.contains("one of them is damaged"),
        "{damaged:?}"
    );
    assert!(
        damaged.stdout.contains("weights.safetensors"),
        "{damaged:?}"
    );
    // The backup's files are whole, so they replace the damaged one.
    let restored = cluster.manage_store(&["restore", backup, "--model", "m"]);
    assert!(
        restored.stdout.contains("1 version repaired"),
        "{restored:?}"
    );
    assert_eq!(cluster.manage_store(&["check"]).code, Some(0));
    for args in [
        &["restore", backup, "--model", "nope"][..],
        &["restore", "nowhere"],
        &["backup", backup, "--model", "nope"],
        &["check", "--model", "nope"],
        &["gc", "--model", "nope"],
    ] {
        let refused = cluster.manage_store(args);
        assert_eq!(refused.code, Some(1), "{args:?}: {refused:?}");
        let said = ["unknown model \"nope\"", "nowhere/ does not exist"];
        let is_said = said.iter().any(|said| refused.stderr.contains(said));
        assert!(is_said, "{args:?}: {refused:?}");
    }
    cluster.query("DROP MODEL m");
    let restored = cluster.manage_store(&["restore", backup, "--model", "m"]);
    assert!(
        restored.stdout.starts_with("3 versions copied"),
        "{restored:?}"
    );
    assert_eq!(holds(&["check"]), all);
    let said = cluster.query(&format!(
        "{table} SELECT count(*) AS n FROM ML.PREDICT(MODEL m, TABLE t)"
    ));
    assert_eq!(said[0]["n"], 300);
}

#[test]
fn checkpoints_of_cancelled_runs_are_removed_at_once() {
    let cluster = Cluster::start(1);
    let table = write_table(cluster.dir(), 300);
    let holds = |args: &[&str]| -> Vec<String> {
        let rows = cluster.manage_store(args).rows();
        let text = |row: &serde_json::Value| row["holds"].as_str().unwrap().to_owned();
        rows.iter().map(text).collect()
    };
    let train = create_model("m", ", epochs = 100000");
    cluster.run(&["--detach", "-c", &table, "-c", &train]);
    let checkpoints = eventually("a checkpoint", SOON, || {
        let held = holds(&["check"]);
        (!held.is_empty()).then_some(held)
    });
    assert!(checkpoints[0].ends_with("unfinished"), "{checkpoints:?}");
    let asking = ["gc", "--scheduler", cluster.address()];
    // It runs, however old its checkpoints are.
    let old = [&asking[..], &["--older-than", "0s"]].concat();
    assert!(holds(&old).is_empty());
    let [job] = &cluster.jobs().unwrap()[..] else {
        panic!("there is one job")
    };
    let cancelled = cluster.manage_jobs(&["cancel", &job.id]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.stderr);
    eventually("the job to be cancelled", SOON, || {
        let job = cluster.job(&job.id)?;
        (job.state == volley_tests::JobState::Cancelled).then_some(())
    });
    assert!(
        holds(&["gc"]).is_empty(),
        "it is young, and nobody says that it was cancelled"
    );
    assert_eq!(holds(&asking), checkpoints);
    assert!(holds(&["check"]).is_empty());
}

#[test]
fn files_with_and_without_dictionaries_train_and_predict_the_same_bits() {
    let cluster = Cluster::start(1);
    // Short and long text, many names, and null.
    let rows = "SELECT value AS id, CASE WHEN value % 11 > 0 THEN concat('kind ', CAST(value % 7 AS VARCHAR), \
                repeat(' and more', value % 3)) END AS kind, concat('name ', CAST(value % 400 AS VARCHAR)) AS name, \
                CAST(value % 97 AS DOUBLE) AS x, CAST(value % 7 + value % 97 AS DOUBLE) AS y FROM range(600)";
    let dictionaries = format!(
        "SELECT id, arrow_cast(kind, 'Dictionary(Int32, Utf8)') AS kind, \
         arrow_cast(name, 'Dictionary(Int32, Utf8)') AS name, x, y FROM ({rows}) AS r"
    );
    let mut found = Vec::new();
    // As Volley writes text, without dictionaries, and as pandas writes categories.
    for (model, rows, enabled) in [
        ("pages", rows, true),
        ("plain", rows, false),
        ("categories", dictionaries.as_str(), true),
    ] {
        let file = cluster.dir().join(format!("{model}.parquet"));
        let place = file.display();
        cluster.query(&format!(
            "COPY ({rows}) TO '{place}' OPTIONS ('format.dictionary_enabled' '{enabled}')"
        ));
        let read = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
        let of_kinds = read.metadata().row_group(0).column(1);
        let has_dictionary = of_kinds.dictionary_page_offset().is_some();
        assert_eq!(has_dictionary, enabled, "{model}");
        cluster.query(&format!(
            "CREATE MODEL {model} OPTIONS (model_type = 'dnn_regressor', input_label_cols = ['y'],
               categorical = ['kind', 'name'], continuous = ['x'], hidden_units = [16], epochs = 3, seed = 3,
               data_split_method = 'no_split', device = 'cpu') AS SELECT kind, name, x, y FROM '{place}'"
        ));
        let weights = format!("models/{model}/1/weights.safetensors");
        let weights = fs::read(cluster.store().join(weights)).unwrap();
        // Every fifth row has a kind, and every seventh a name, that is not in the vocabulary.
        let asked = |kind: &str, name: &str| {
            cluster.query(&format!(
                "SELECT id, predicted_y FROM ML.PREDICT(MODEL pages, (
                   SELECT id, {kind} AS kind, {name} AS name, x FROM (
                     SELECT id, x, CASE WHEN id % 5 = 0 THEN 'unseen ' || kind ELSE kind END AS kind,
                       CASE WHEN id % 7 = 0 THEN 'unseen' ELSE name END AS name FROM '{place}') AS r
                 )) ORDER BY id"
            ))
        };
        let as_read = cluster.query(&format!(
            "SELECT id, predicted_y FROM ML.PREDICT(MODEL {model}, (SELECT * FROM '{place}')) ORDER BY id"
        ));
        let partly_unseen = asked("kind", "name");
        let by_keys = asked(
            "arrow_cast(kind, 'Dictionary(Int32, Utf8)')",
            "arrow_cast(name, 'Dictionary(Int16, Utf8)')",
        );
        assert_eq!(by_keys, partly_unseen, "{model}");
        assert_ne!(as_read, partly_unseen, "{model}");
        assert_eq!(as_read.len(), 600);
        found.push((weights, as_read, partly_unseen));
    }
    assert!(found[0] == found[1], "text without dictionaries");
    assert!(found[0] == found[2], "categories");
}
