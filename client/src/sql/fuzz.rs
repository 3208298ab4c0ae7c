//! Fuzz targets: scripts, with the options of their models.

use datafusion::config::SqlParserOptions;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use volley_proto::damage::damaged;
use volley_proto::limits::STACK;

use super::{Dialect, parse, parse_transform};

const SCRIPTS: [&str; 4] = [
    "CREATE MODEL IF NOT EXISTS m TRANSFORM (ML.STANDARD_SCALER(x) OVER () AS x, y) \
     OPTIONS (model_type = 'dnn_regressor', input_label_cols = ['y'], hidden_units = [64, 32], dropout = 0.5, \
     network = [dense(8), 'relu', residual(dense(4), 'layer_norm'), custom('rbf', 3, 1.5)], \
     learn_rate_schedule = 'one_cycle', seed = 17, l2_reg = 1e-3) AS SELECT x, y FROM t WHERE x > 1;",
    "-- a comment\nSELECT ML.PREDICT(MODEL m, 'x', 1.0), $$text$$, U&'\\00e4' FROM t; DROP MODEL m; SHOW MODELS",
    "EXPLAIN ANALYZE SELECT * FROM ML.EVALUATE(MODEL `m`, (SELECT * FROM 'd/*.csv'), STRUCT(0.5 AS threshold))",
    "CREATE EXTERNAL TABLE t (x BIGINT) STORED AS CSV LOCATION 'x.csv' OPTIONS ('format.delimiter' '|'); \
     COPY (SELECT a OR b OR c FROM t) TO 'out/' STORED AS PARQUET PARTITIONED BY (a); SET a.b = 'c'",
];

fn read(bytes: &[u8]) {
    let dialect = Dialect {
        grammar: Box::new(GenericDialect {}),
        options: SqlParserOptions::default(),
    };
    let text = String::from_utf8_lossy(bytes);
    for statement in parse(&text, &dialect).into_iter().flatten() {
        let _ = format!("{:?}", statement.kind);
    }
    let _ = parse_transform(&text, &dialect);
}

/// Runs a test on a thread with the stack size that statements are parsed with.
fn with_room(test: fn()) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(test);
    thread.unwrap().join().unwrap();
}

#[test]
fn scripts() {
    with_room(|| {
        let damage = |script: &'static str| (0..3_000).map(move |seed| (script, seed));
        for (script, seed) in SCRIPTS.into_iter().flat_map(damage) {
            read(&damaged(script.as_bytes(), seed));
        }
        SCRIPTS.iter().for_each(|script| read(script.as_bytes()));
        bolero::check!(name = "script")
            .with_iterations(5_000)
            .with_max_len(500)
            .for_each(read);
    });
}
