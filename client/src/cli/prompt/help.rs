//! Help at the prompt: its commands, the syntax of statements, the options of `CREATE MODEL`.

use anyhow::bail;
use volley::{TrainOption, train_options};
use volley_proto::did_you_mean;

use super::super::format::cut;
use super::commands::COMMANDS;

/// Syntax of the statements, in the order in which one meets them.
const STATEMENTS: [(&str, &str); 36] = [
    (
        "SELECT",
        "SELECT [DISTINCT] expressions FROM tables or 'files' [JOIN …] [WHERE …] [GROUP BY …] [HAVING …]\n  [QUALIFY …] [ORDER BY …] [LIMIT n];",
    ),
    (
        "CREATE EXTERNAL TABLE",
        "CREATE EXTERNAL TABLE name [(column TYPE, …)] STORED AS CSV | PARQUET | JSON | AVRO | ARROW | DELTA\n  [PARTITIONED BY (column, …)] LOCATION 'path' [OPTIONS ('format.key' 'value', …)];",
    ),
    (
        "CREATE TABLE",
        "CREATE [OR REPLACE] TABLE name AS SELECT …;",
    ),
    ("CREATE VIEW", "CREATE [OR REPLACE] VIEW name AS SELECT …;"),
    (
        "COPY",
        "COPY table | (SELECT …) TO 'path' [STORED AS PARQUET | CSV | JSON | ARROW] [PARTITIONED BY (column, …)]\n  [OPTIONS ('format.key' 'value', …)];\n\n  CSV:     format.has_header, format.delimiter, format.quote, format.null_value, format.compression,\n           format.date_format, format.timestamp_format\n  Parquet: format.compression, format.max_row_group_size\n  JSON:    format.compression",
    ),
    ("INSERT", "INSERT INTO table SELECT … | VALUES (…), …;"),
    ("DROP TABLE", "DROP TABLE [IF EXISTS] name;"),
    ("DROP VIEW", "DROP VIEW [IF EXISTS] name;"),
    ("DESCRIBE", "DESCRIBE table;"),
    ("SHOW TABLES", "SHOW TABLES;"),
    ("SET", "SET key = value;"),
    ("EXPLAIN", "EXPLAIN [VERBOSE] SELECT …;"),
    ("EXPLAIN ANALYZE", "EXPLAIN ANALYZE SELECT …;"),
    (
        "CREATE MODEL",
        "CREATE [OR REPLACE] MODEL [IF NOT EXISTS] name [TRANSFORM (expression AS column, …)]\n  OPTIONS (option = value, …) AS SELECT …;\n\n  \\h OPTIONS lists the options, and \\h OPTION shows one, such as \\h input_label_cols.",
    ),
    (
        "EXPLAIN CREATE MODEL",
        "EXPLAIN [VERBOSE] CREATE MODEL name OPTIONS (…) AS SELECT …;",
    ),
    ("SHOW MODELS", "SHOW MODELS;"),
    ("DESCRIBE MODEL", "DESCRIBE MODEL name [VERSION n];"),
    ("DROP MODEL", "DROP MODEL [IF EXISTS] name [VERSION n];"),
    ("DROP PREPARED", "DROP PREPARED ALL | 'id';"),
    (
        "ML.PREDICT",
        "SELECT * FROM ML.PREDICT(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.EXPLAIN_PREDICT",
        "SELECT * FROM ML.EXPLAIN_PREDICT(MODEL name [, version], (SELECT …) | TABLE t [, top_k_features => n]);",
    ),
    (
        "ML.EVALUATE",
        "SELECT * FROM ML.EVALUATE(MODEL name [, version], (SELECT …) | TABLE t [, BY column] …);",
    ),
    (
        "ML.CONFUSION_MATRIX",
        "SELECT * FROM ML.CONFUSION_MATRIX(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.ROC_CURVE",
        "SELECT * FROM ML.ROC_CURVE(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.CALIBRATION",
        "SELECT * FROM ML.CALIBRATION(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.GLOBAL_EXPLAIN",
        "SELECT * FROM ML.GLOBAL_EXPLAIN(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.FEATURE_INFO",
        "SELECT * FROM ML.FEATURE_INFO(MODEL name [, version] [, (SELECT …) | TABLE t]);",
    ),
    (
        "ML.TRAINING_INFO",
        "SELECT * FROM ML.TRAINING_INFO(MODEL name [, version]);",
    ),
    (
        "ML.TRANSFORM",
        "SELECT * FROM ML.TRANSFORM(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.STANDARD_SCALER",
        "ML.STANDARD_SCALER(x) OVER ()   in TRANSFORM (…) of CREATE MODEL",
    ),
    (
        "ML.MIN_MAX_SCALER",
        "ML.MIN_MAX_SCALER(x) OVER ()   in TRANSFORM (…) of CREATE MODEL",
    ),
    (
        "ML.MAX_ABS_SCALER",
        "ML.MAX_ABS_SCALER(x) OVER ()   in TRANSFORM (…) of CREATE MODEL",
    ),
    (
        "ML.ROBUST_SCALER",
        "ML.ROBUST_SCALER(x [, [25, 75]] [, with_median] [, with_quantile_range]) OVER ()\n  in TRANSFORM (…) of CREATE MODEL",
    ),
    (
        "ML.QUANTILE_BUCKETIZE",
        "ML.QUANTILE_BUCKETIZE(x, buckets [, format]) OVER ()   in TRANSFORM (…) of CREATE MODEL",
    ),
    (
        "ML.IMPUTER",
        "ML.IMPUTER(x, 'mean' | 'median' | 'most_frequent') OVER ()   in TRANSFORM (…) of CREATE MODEL",
    ),
    (
        "ML.BUCKETIZE",
        "ML.BUCKETIZE(x, [point, …] [, exclude_boundaries] [, format])   in TRANSFORM (…) of CREATE MODEL",
    ),
];

/// Returns the commands of the prompt and the first things to type.
pub(super) fn help() -> String {
    let mut help =
        String::from("SQL ends with a semicolon and may span lines. Tab completes names.\n\n");
    for (usage, about) in COMMANDS {
        help.push_str(&format!("  {usage:<18} {about}\n"));
    }
    help.push_str(
        "\nCtrl-C clears the unfinished statement, or cancels the running one; Ctrl-R searches the history.\n\
         Files:  SELECT * FROM 'sales.csv' LIMIT 10;\n\
         Models: CREATE MODEL sales OPTIONS (input_label_cols = ['amount']) AS SELECT …;\n",
    );
    help
}

/// Topic of the list of options.
const OPTIONS: &str = "OPTIONS";
/// Width of that list, in characters.
const WIDTH: usize = 100;

/// Returns the names of statements, functions and options that have an entry.
pub(super) fn topics() -> Vec<String> {
    let statements = STATEMENTS.iter().map(|(name, _)| (*name).to_owned());
    let options = train_options().map(|option| option.name.to_owned());
    statements
        .chain([OPTIONS.to_owned()])
        .chain(options)
        .collect()
}

/// Returns the syntax of the statements or functions whose names begin with a text, the entry of an option, or the list of
/// options.
///
/// # Errors
/// When there is no such topic.
pub(in super::super) fn syntax(typed: &str) -> anyhow::Result<String> {
    let typed = typed.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = typed.to_uppercase();
    if name.is_empty() {
        let names: Vec<_> = STATEMENTS
            .iter()
            .map(|(name, _)| format!("  {name}\n"))
            .collect();
        return Ok(format!(
            "\\h STATEMENT shows the syntax of:\n{}and \\h OPTIONS lists the options of CREATE MODEL\n",
            names.concat()
        ));
    }
    if name == OPTIONS {
        return Ok(train_options().map(listed).collect());
    }
    // EXPLAIN is a statement, and the first word of others.
    let named = |exact: bool| {
        let mut text = String::new();
        for (statement, syntax) in STATEMENTS {
            let rest = statement.strip_prefix(&name);
            if rest.is_some_and(|rest| !exact || rest.is_empty() || rest.starts_with(' ')) {
                text.push_str(syntax);
                text.push('\n');
            }
        }
        text
    };
    let text = match named(true) {
        text if text.is_empty() => named(false),
        text => text,
    };
    if !text.is_empty() {
        return Ok(text);
    }
    if let Some(option) = train_options().find(|option| option.name.eq_ignore_ascii_case(&typed)) {
        let TrainOption {
            name,
            values,
            default,
            about,
            ..
        } = option;
        return Ok(format!(
            "{name}, an option of CREATE MODEL\n  values:  {values}\n  default: {default}\n  {about}\n"
        ));
    }
    let topics = topics();
    let hint = did_you_mean(&typed, topics.iter().map(String::as_str));
    let there_is = if hint.is_empty() { "; there" } else { " There" };
    bail!(
        "no help on {typed}{hint}{there_is} is help on statements, ML functions and options of CREATE MODEL"
    )
}

/// Returns an option as a line of the list: its name and the beginning of its description.
fn listed(option: &TrainOption) -> String {
    let line = format!("  {:<24} {}", option.name, option.about);
    format!("{}\n", cut(&line, WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_and_options_have_entries() {
        for (name, _) in STATEMENTS {
            let first = name.split(' ').next().unwrap();
            assert!(
                syntax(&name.to_lowercase()).unwrap().contains(first),
                "{name}"
            );
            assert!(syntax("").unwrap().contains(name));
        }
        assert_eq!(syntax("explain").unwrap().lines().count(), 3);
        let copy = syntax("copy").unwrap();
        assert!(copy.contains("format.has_header") && copy.contains("format.compression"));
        assert_eq!(syntax("create").unwrap().matches("CREATE").count(), 4);
        for option in train_options() {
            assert!(syntax(option.name).unwrap().contains(option.about));
        }
        let listed = syntax("options").unwrap();
        assert_eq!(listed.lines().count(), train_options().count());
        assert!(listed.lines().all(|line| line.chars().count() <= WIDTH));
        let error = syntax("SELCT").unwrap_err().to_string();
        assert!(error.contains("did you mean \"SELECT\""), "{error}");
    }
}
