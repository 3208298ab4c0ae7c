//! Help at the prompt: its commands, the syntax of statements, the options of `CREATE MODEL`.

use anyhow::bail;
use volley::train_options;
use volley_proto::did_you_mean;

use super::commands::COMMANDS;

/// Syntax of the statements, in the order in which one meets them.
const STATEMENTS: [(&str, &str); 22] = [
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
        "COPY table | (SELECT …) TO 'path' [STORED AS PARQUET | CSV | JSON | ARROW] [PARTITIONED BY (column, …)]\n  [OPTIONS (…)];",
    ),
    ("INSERT", "INSERT INTO table SELECT … | VALUES (…), …;"),
    ("DROP TABLE", "DROP TABLE [IF EXISTS] name;"),
    ("DROP VIEW", "DROP VIEW [IF EXISTS] name;"),
    ("DESCRIBE", "DESCRIBE table;"),
    ("SHOW TABLES", "SHOW TABLES;"),
    ("SET", "SET key = value;"),
    ("EXPLAIN", "EXPLAIN SELECT …;"),
    ("EXPLAIN ANALYZE", "EXPLAIN ANALYZE SELECT …;"),
    (
        "CREATE MODEL",
        "CREATE [OR REPLACE] MODEL [IF NOT EXISTS] name [TRANSFORM (expression AS column, …)]\n  OPTIONS (option = value, …) AS SELECT …;\n\n  \\h OPTION shows an option, such as \\h input_label_cols.",
    ),
    (
        "EXPLAIN CREATE MODEL",
        "EXPLAIN CREATE MODEL name OPTIONS (…) AS SELECT …;",
    ),
    ("SHOW MODELS", "SHOW MODELS;"),
    ("DESCRIBE MODEL", "DESCRIBE MODEL name;"),
    ("DROP MODEL", "DROP MODEL [IF EXISTS] name [VERSION n];"),
    ("DROP PREPARED", "DROP PREPARED ALL | 'id';"),
    (
        "ML.PREDICT",
        "SELECT * FROM ML.PREDICT(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.EVALUATE",
        "SELECT * FROM ML.EVALUATE(MODEL name [, version], (SELECT …) | TABLE t);",
    ),
    (
        "ML.TRAINING_INFO",
        "SELECT * FROM ML.TRAINING_INFO(MODEL name [, version]);",
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

/// Returns the names of statements and options that have an entry.
pub(super) fn topics() -> Vec<String> {
    let statements = STATEMENTS.iter().map(|(name, _)| (*name).to_owned());
    let options = train_options().map(|option| option.name.to_owned());
    statements.chain(options).collect()
}

/// Returns the syntax of the statements whose names begin with a text, or the entry of an option.
///
/// # Errors
/// When there is no such statement.
pub(super) fn syntax(typed: &str) -> anyhow::Result<String> {
    let typed = typed.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = typed.to_uppercase();
    if name.is_empty() {
        let names: Vec<_> = STATEMENTS
            .iter()
            .map(|(name, _)| format!("  {name}\n"))
            .collect();
        return Ok(format!(
            "\\h STATEMENT shows the syntax of:\n{}",
            names.concat()
        ));
    }
    let named = |exact: bool| {
        let mut text = String::new();
        for (statement, syntax) in STATEMENTS {
            if statement == name || !exact && statement.starts_with(&name) {
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
        let volley::TrainOption {
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
    let statements = STATEMENTS.iter().map(|(name, _)| *name);
    let hint = did_you_mean(&name, statements);
    bail!(r"no statement or option {typed}{hint}; \h lists the statements")
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
        assert_eq!(syntax("explain").unwrap().lines().count(), 1);
        assert_eq!(syntax("create").unwrap().matches("CREATE").count(), 4);
        for option in train_options() {
            assert!(syntax(option.name).unwrap().contains(option.about));
        }
        let error = syntax("SELCT").unwrap_err().to_string();
        assert!(error.contains("did you mean \"SELECT\""), "{error}");
    }
}
