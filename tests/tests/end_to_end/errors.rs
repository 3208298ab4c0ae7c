//! Wrong inputs, and what Volley says to each: the table in `docs/errors.md`, which this test writes
//! when `VOLLEY_UPDATE_DOCS` is set and compares with otherwise.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Output};

use volley_tests::{Cluster, Setup, binary};

use crate::write_table;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/errors.md");

const HEAD: &str = "\
# Errors

Each error names what was typed and, where it can, what would be right. This table is written and checked
by a test (`tests/tests/end_to_end/errors.rs`), on a cluster of two executors with a table `t` of columns
`id`, `k`, `x`, `flag`, `text`, `y`, `empty` and `split`, and a model `known` of `y`. Exit codes: 1 for an
error, 2 for a mistake in the arguments.
";

/// Scripts, run with `-c`.
const SQL: &[&str] = &[
    "SELECT * FROM t PIVOT (sum(x) FOR k IN ('a', 'b'))",
    "SELECT * FROM t UNPIVOT (value FOR name IN (x, y))",
    "SELECT * FROM t ASOF JOIN t b MATCH_CONDITION (t.x >= b.x)",
    "SELECT * FROM t LIMIT 10 PERCENT",
    "SELECT 9223372036854775807 + 1 AS s",
    "SELEC 1",
    "SELECT k FORM t",
    "SELECT k FROM t WHRE x = 1",
    "SHOW MODEL",
    "\\d t",
    "COPY t FROM 'x.csv'",
    "SELECT 1 FROM",
    "SELECT * FROM tt",
    "SELECT xx FROM t",
    "SELECT b.k, t.xx FROM t JOIN t b ON t.k = b.k",
    "SELECT k FROM t ORDER BY kk",
    "SELECT sqrrt(x) FROM t",
    "SELECT avrage(x) FROM t",
    "SELECT typeof(x) FROM t",
    "SELECT * FROM t WHERE text = \"A\"",
    "SELECT * FROM t WHERE text = \"a\"",
    "SELECT DATE '2015-07-31' > 20150101",
    "SELECT a.k FROM t a JOIN (VALUES (DATE '2015-07-31')) b (\"D\") ON a.id = b.\"D\"",
    "SELECT * FROM t WHERE id = 'S1'",
    "SELECT k, x FROM t GROUP BY k",
    "SELECT 7 // 2",
    "SELECT DATE '2015-07-31' + INTERVAL k DAY FROM t",
    "SELECT s[1].k FROM (SELECT make_array(named_struct('k', k)) AS s FROM t)",
    "SELECT predict(known) FROM t",
    "SELECT * FROM h.csv",
    "SELECT text + 1 FROM t",
    "SELECT * FROM volley.job",
    "CREATE VIEW v AS SELECT * FROM nowhere",
    "CREATE EXTERNAL TABLE u STORED AS CSV LOCATION '/nowhere/u.csv'",
    "SELECT * FROM '/nowhere/*.parquet'",
    "SELECT * FROM 'hdfs://host/t.parquet'",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TABLE large AS SELECT value FROM range(100000000)",
    "CREATE TABLE z AS SELECT 1 AS a; DELETE FROM z",
    "CREATE FUNCTION f() RETURNS BIGINT RETURN 1",
    "SELECT * FROM rnage(10)",
    "SELECT * FROM read_csv('x.csv')",
    "COPY t TO 't.avro'",
    "COPY t TO 'https://host/t.parquet'",
    "COPY (SELECT x, make_array(k) AS ks FROM t) TO 'ks/' STORED AS CSV PARTITIONED BY (ks)",
    "SET volley.on_client_loss = 'die'",
    "SET volley.on_clint_loss = 'keep'",
    "SET datafusion.execution.batch_size = 'x'",
    "SET ballista.planner.adaptive.enabled = true",
    "DROP MODEL knwon",
    "DESCRIBE MODEL knwon",
    "SELECT * FROM ML.PREDCT(MODEL known, TABLE t)",
    "SELECT * FROM ML.PREDICT(MODEL knwon, TABLE t)",
    "SELECT * FROM ML.PREDICT(TABLE t)",
    "SELECT * FROM ML.PREDICT(MODEL known)",
    "SELECT * FROM ML.PREDICT(known, TABLE t)",
    "SELECT * FROM ML.EVALUATE(MODEL known, t)",
    "SELECT * FROM ML.EVALUATE(MODEL known)",
    "SELECT * FROM ML.PREDICT(MODEL known, 9, TABLE t)",
    "SELECT * FROM ML.PREDICT(MODEL known, (SELECT x FROM t))",
    "SELECT * FROM ML.PREDICT(MODEL known, (SELECT k AS kk, text FROM t))",
    "SELECT * FROM ML.PREDICT(MODEL known, (SELECT text AS k, x FROM t))",
    "SELECT * FROM ML.EVALUATE(MODEL known, (SELECT k, x FROM t))",
    "SELECT * FROM ML.TRAINING_INFO(MODEL known, TABLE t)",
    "SELECT * FROM ML.ROC_CURVE(MODEL known, TABLE t)",
    "CREATE MODEL known OPTIONS (input_label_cols = ['y']) AS SELECT k, y FROM t",
    "CREATE OR REPLACE MODEL IF NOT EXISTS m AS SELECT k, y FROM t",
    "CREATE MODEL m TRANSFORM (k + 1, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (kk AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (*, ln(x) AS x) OPTIONS (input_label_cols = ['y']) AS SELECT x, y FROM t",
    "CREATE MODEL m TRANSFORM (avg(x) AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (ML.STANDARD_SCALR(x) OVER () AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (ML.STANDARD_SCALER(x) AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (ML.STANDARD_SCALER(text) OVER () AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (ML.IMPUTER(x, 'mode') OVER () AS a, y) OPTIONS (input_label_cols = ['y']) AS SELECT * FROM t",
    "CREATE MODEL m TRANSFORM (x, y) OPTIONS (input_label_cols = ['y'], categorical = ['k']) AS SELECT * FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['x', 'y'], loss_weights = [1]) AS SELECT k, x, y FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['k', 'y'], model_type = 'dnn_classifier') AS SELECT * FROM t",
    "CREATE MODEL m AS SELECT k, y FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['y'])",
];

/// Options of `CREATE MODEL m OPTIONS (input_label_cols = ['y'], …) AS SELECT * FROM t`.
const OPTIONS: &[&str] = &[
    "epoch = 3",
    "learning_rate = 0.1",
    "nonsense = 1",
    "label = 'y'",
    "class_weights = [STRUCT('a', 2)]",
    "epochs = 0",
    "epochs = 'many'",
    "epochs = 2, epochs = 3",
    "input_label_cols = ['k']",
    "model_type = 'boosted_tree_regressor'",
    "batch_size = -1",
    "dropout = 1.5",
    "learn_rate = 0",
    "adam_beta_1 = 1",
    "loss = 'mea'",
    "loss = 'log_loss'",
    "loss = 'gamma', label_transform = 'ln'",
    "quantile = 0.9",
    "loss = 'quantile', quantile = 1",
    "loss = 'quantile', quantile = [0.9]",
    "loss = 'quantile', quantile = [0.9, 0.1]",
    "loss_weights = [2]",
    "class_weights = [['a', 2]]",
    "sample_weight_col = 'text'",
    "model_type = 'dnn_classifier', loss = 'mae'",
    "model_type = 'dnn_classifier', label_transform = 'ln'",
    "dropout = [0.1]",
    "optimizer = 'lamb'",
    "optimizer = 'sgd', weight_decay = 0.1",
    "momentum = 0.9",
    "learn_rate_schedule = 'cos'",
    "decay_epochs = 3",
    "early_stop = false, patience = 3",
    "refit = true, data_split_method = 'no_split'",
    "clip_norm = 0",
    "batch_size = 16, global_batch_size = 16",
    "data_split_method = 'no_split', split_key = ['k']",
    "model_type = 'linear_reg', hidden_units = [8]",
    "model_type = 'linear_reg', learn_rate = 0.1",
    "model_type = 'linear_reg', optimizer = 'lbfgs', loss = 'mae'",
    "model_type = 'linear_reg', optimizer = 'lbfgs', global_batch_size = 64",
    "model_type = 'linear_reg', optimizer = 'lbfgs', l1_reg = 0.1",
    "model_type = 'linear_reg', keep = 'best'",
    "optimizer = 'lbfgs'",
    "hash_buckets = 8, min_frequency = 2",
    "max_vocabulary = 0",
    "learn_rate_scaling = 'linear'",
    "hidden_units = [0]",
    "hidden_units = [1000000, 1000000]",
    "hidden_units = 16",
    "embedding_dim = 0",
    "embedding_dim = [['kk', 8]]",
    "activation_fn = 'rleu'",
    "numeric_embedding = 'fourier'",
    "numeric_embedding = 'piecewise_linear', batch_norm = true",
    "factors = 0",
    "model_type = 'linear_reg', factors = 4",
    "network = [dense(8), relu], hidden_units = [8]",
    "network = [dense(8), rleu]",
    "network = [dense(8), dropout(1)]",
    "network = [residual(dense(0))]",
    "network = 'dense(8)'",
    "activation_output = 'relu'",
    "label_transform = 'log'",
    "data_split_method = 'custom'",
    "data_split_col = 'spilt'",
    "data_split_eval_fraction = 2",
    "categorical = ['kk']",
    "continuous = ['text']",
    "categorical = ['k'], continuous = ['k']",
    "categorical = ['y']",
    "ranks = 0",
    "ranks = 9",
    "ranks = 2, min_ranks = 3",
    "ranks = 2, shards = 1",
    "device = 'gpu'",
    "device = 'cuda:7'",
    "precision = 'fp8'",
    "regroup_timeout = 'soon'",
    "on_too_few_ranks = 'panic'",
    "resume = true, warm_start = true",
    "warm_start = 'knwon'",
    "warm_start = 'known@9'",
    "shard_by = ['idd']",
];

/// Values that rows have and cannot be used: labels, and names of folders.
const ROWS: &[&str] = &[
    "COPY (SELECT k, '__HIVE_DEFAULT_PARTITION__' AS p FROM t) TO 'p/' STORED AS CSV PARTITIONED BY (p)",
    "SELECT sum(9223372036854775807) AS s FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['empty']) AS SELECT k, empty FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['k'], label_transform = 'ln') AS SELECT k, x FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['text']) AS SELECT k, text FROM t",
    "CREATE MODEL m OPTIONS (model_type = 'dnn_classifier', input_label_cols = ['x']) AS SELECT k, x FROM t",
    "CREATE MODEL m OPTIONS (model_type = 'dnn_classifier', input_label_cols = ['k']) AS SELECT 1 AS k, x FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['y'], data_split_col = 'text') \
     AS SELECT k, y, text FROM t",
    "CREATE MODEL m OPTIONS (input_label_cols = ['y']) AS SELECT k, y FROM t WHERE k > 99",
];

/// Arguments.
const ARGUMENTS: &[&[&str]] = &[
    &["--schedular", "h:1"],
    &["--scheduler", "nowhere", "-c", "SELECT 1"],
    &[
        "--scheduler",
        "127.0.0.1:1",
        "--connect-timeout",
        "200ms",
        "-c",
        "SELECT 1",
    ],
    &["--connect-timeout", "soon"],
    &["-f", "missing.sql"],
    &["-f", "/nowhere/a/missing.sql"],
    &["SELECT 1"],
    &["train.sql"],
    &["-v", "n=1"],
    &["-c", "\\dt"],
    &["help", "hiden_units"],
    &["-D", "x", "-c", "SELECT 1"],
    &["-D", "x=1", "-D", "x=2", "-c", "SELECT 1"],
    &["-c", "SELECT ${nope}"],
    &["--format", "yaml", "-c", "SELECT 1"],
    &["--executors", "0"],
    &["--executors", "2", "--scheduler", "h:1"],
    &["--set", "nonsense=1", "-c", "SELECT 1"],
    &["--store", "ftp://host/models", "-c", "SELECT 1"],
    &["--device", "gpu", "-c", "SELECT 1"],
    &["--detach", "-c", "SELECT 1"],
    &["jobs"],
    &["jobs", "cancel", "J1"],
    &["jobs", "cancle", "J1"],
    &["generate", "rossmann"],
    &["demo", "rossmann", "--data", "/nowhere"],
    &["demo", "rosmann"],
    &["cluster", "up", "--executors", "none"],
    &["completions", "tcsh"],
];

/// Environment variables, with `-c 'SELECT 1'`.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("VOLLEY_SCHEDULER", "nowhere"),
    ("VOLLEY_CONNECT_TIMEOUT", "soon"),
    ("VOLLEY_FORMAT", "xml"),
    ("VOLLEY_OTLP_ENDPOINT", "collector:4317"),
    ("VOLLEY_STORE", "ftp://host/models"),
];

/// A wrong input, as typed, and the command that has it.
struct Case {
    typed: String,
    command: Command,
}

#[test]
fn wrong_inputs_are_told_what_is_wrong() {
    let cluster = Cluster::start_with(Setup {
        executors: 2,
        // Not of this host, which the table would be of.
        executor_args: ["--rank-memory", "1GiB"].map(str::to_owned).into(),
        ..Setup::default()
    });
    let table = write_table(cluster.dir(), 60);
    let model = "CREATE MODEL known OPTIONS (input_label_cols = ['y'], categorical = ['k'], \
                 continuous = ['x'], hidden_units = [4], epochs = 1) AS SELECT k, x, y FROM t;";
    cluster.query(&format!("{table}{model}"));

    let sql = |text: &str| {
        let mut command = cluster.command();
        command.args(["--quiet", "--format", "csv", "-c", &table, "-c", text]);
        Case {
            typed: text.to_owned(),
            command,
        }
    };
    let plain = |args: &[&str], typed: String| {
        let mut command = Command::new(binary("volley"));
        command.args(args).current_dir(cluster.dir());
        Case { typed, command }
    };
    let options = OPTIONS.iter().map(|options| {
        let text = format!(
            "CREATE MODEL m OPTIONS (input_label_cols = ['y'], {options}) AS SELECT * FROM t"
        );
        let typed = (*options).to_owned();
        Case {
            typed,
            ..sql(&text)
        }
    });
    let arguments = ARGUMENTS.iter().map(|args| {
        let quoted = args.iter().map(|arg| {
            let plain = !arg.contains([' ', '$']);
            if plain {
                (*arg).to_owned()
            } else {
                format!("'{arg}'")
            }
        });
        plain(
            args,
            format!("volley {}", quoted.collect::<Vec<_>>().join(" ")),
        )
    });
    let environment = ENVIRONMENT.iter().map(|(name, value)| {
        let mut case = plain(&["-c", "SELECT 1"], format!("{name}={value}"));
        case.command.env(name, value);
        case
    });
    let groups: [(&str, Vec<Case>); 5] = [
        ("SQL", SQL.iter().map(|text| sql(text)).collect()),
        (
            "Options of CREATE MODEL m OPTIONS (input_label_cols = ['y'], …) AS SELECT * FROM t",
            options.collect(),
        ),
        ("Rows", ROWS.iter().map(|text| sql(text)).collect()),
        ("Arguments", arguments.collect()),
        ("Environment", environment.collect()),
    ];

    let mut text = HEAD.to_owned();
    let mut accepted = Vec::new();
    for (title, cases) in groups {
        write!(
            text,
            "\n## {title}\n\n| typed | code | said |\n|---|---|---|\n"
        )
        .unwrap();
        for Case { typed, mut command } in cases {
            let output = command.output().unwrap();
            let code = output.status.code();
            if !matches!(code, Some(1 | 2)) {
                accepted.push(typed);
                continue;
            }
            let said = said(&output, &cluster);
            writeln!(
                text,
                "| `{}` | {} | {} |",
                cell(&typed),
                code.unwrap(),
                cell(&said)
            )
            .unwrap();
        }
    }
    assert_eq!(accepted, [""; 0], "inputs that are wrong");
    if std::env::var_os("VOLLEY_UPDATE_DOCS").is_some() {
        fs::write(DOCS, text).unwrap();
        return;
    }
    let expected = fs::read_to_string(DOCS).unwrap();
    for (expected, found) in expected.lines().zip(text.lines()) {
        assert_eq!(
            expected, found,
            "VOLLEY_UPDATE_DOCS=1 writes docs/errors.md anew"
        );
    }
    assert_eq!(expected.lines().count(), text.lines().count());
}

/// Returns a command's standard error, without the parts that differ between runs.
fn said(output: &Output, cluster: &Cluster) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text
        .replace(cluster.address(), "HOST:PORT")
        .replace(&cluster.dir().display().to_string(), "DIR");
    // Which rank finds it first is chance.
    let text = ["0", "1"].iter().fold(text, |text, rank| {
        text.replace(&format!("rank {rank} of"), "rank N of")
            .replace(&format!("executor-{rank}"), "executor-N")
    });
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ⏎ ")
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
