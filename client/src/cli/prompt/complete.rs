//! Completion of SQL at the prompt: keywords, functions, tables, columns, models, options and their values, settings, files.
//!
//! It looks at the words before the cursor, not at a syntax tree: the statement is not finished.

use std::collections::BTreeSet;
use std::time::Duration;

use datafusion::execution::FunctionRegistry;
use tokio::time::Instant;
use volley::{Session, train_options};

use super::commands::COMMANDS;
use super::{formats, help, tokens};

/// Words of SQL that are completed and coloured.
const KEYWORDS: &str = "
    ALL ANALYZE AND ANTI ANY ARRAY AS ASC BETWEEN BIGINT BOOLEAN BY CASE CAST COPY CREATE CROSS CSV CURRENT DATE DECIMAL
    DELTA DESC DESCRIBE DISTINCT DOUBLE DROP ELSE END EXCEPT EXCLUDE EXISTS EXPLAIN EXTERNAL EXTRACT FALSE FILTER FIRST
    FOLLOWING FROM FULL FUNCTION GROUP GROUPING GROUPS HAVING IF IGNORE ILIKE IN INNER INSERT INT INTERSECT INTERVAL
    INTO IS JOIN JSON LAST LATERAL LEFT LIKE LIMIT LOCATION ML MODEL MODELS NATURAL NOT NULL NULLS OFFSET ON OPTIONS OR
    ORDER OUTER OVER PARQUET PARTITION PARTITIONED PIVOT PRECEDING QUALIFY RANGE RECURSIVE REPLACE RIGHT ROLLUP ROW ROWS
    SELECT SEMI SET SETS SHOW STORED TABLE TABLES THEN TIMESTAMP TO TRANSFORM TRUE UNBOUNDED UNION UNNEST USING VALUES
    VARCHAR VIEW WHEN WHERE WINDOW WITH WITHIN XOR";
/// Functions on models, after `ML.`.
const ML: &str = "
    CALIBRATION CONFUSION_MATRIX EVALUATE EXPLAIN_PREDICT FEATURE_INFO GLOBAL_EXPLAIN PREDICT ROC_CURVE TRAINING_INFO
    TRANSFORM";
/// Maximum number of tables whose columns are completed.
const TABLES: usize = 1000;
/// Time limit for names that may be far away.
const FAR: Duration = Duration::from_millis(300);

/// Checks whether a word is one of SQL's.
pub(super) fn is_keyword(word: &str) -> bool {
    let mut keywords = KEYWORDS.split_whitespace();
    keywords.any(|keyword| keyword.eq_ignore_ascii_case(word))
}

/// Names that a session knows.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Tables, system tables with their schema, and their columns.
    tables: Vec<(String, Vec<String>)>,
    functions: BTreeSet<String>,
    models: Vec<String>,
    settings: Vec<String>,
}

/// Texts that may stand where the cursor is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Candidates {
    Words {
        /// Bytes before the cursor that a word replaces.
        length: usize,
        words: Vec<String>,
    },
    /// Names of files.
    Files {
        /// Bytes before the cursor that belong to the name.
        length: usize,
    },
}

impl Names {
    /// Collects the names that a session knows now, in place of those before. Names that cannot be had are left out; those
    /// of models far away are asked for once.
    pub(super) async fn of(session: &Session, before: Option<Self>) -> Self {
        let context = session.context();
        let state = context.state();
        let own = &state.config_options().catalog;
        let mut tables = Vec::new();
        let deadline = Instant::now() + FAR;
        for (schema, prefix) in [(own.default_schema.as_str(), ""), ("volley", "volley.")] {
            let catalog = context.catalog(&own.default_catalog);
            let Some(schema) = catalog.and_then(|catalog| catalog.schema(schema)) else {
                continue;
            };
            for name in schema.table_names().into_iter().take(TABLES) {
                let table = tokio::time::timeout_at(deadline, schema.table(&name)).await;
                let table = table.ok().and_then(Result::ok).flatten();
                let columns = table.map(|table| table.schema());
                let columns = columns.iter().flat_map(|columns| columns.fields());
                let columns = columns.map(|column| quoted(column.name())).collect();
                tables.push((format!("{prefix}{}", quoted(&name)), columns));
            }
        }
        let mut functions: BTreeSet<_> = state.udfs().into_iter().collect();
        functions.extend(state.udafs());
        functions.extend(state.udwfs());
        functions.retain(|name| !name.starts_with("volley_"));
        let is_near = session.store().url().scheme() == "file";
        let models = match before {
            Some(before) if !is_near => before.models,
            _ => {
                let models = tokio::time::timeout(FAR, session.store().list()).await;
                let models = models.into_iter().flatten().flatten();
                models.map(|model| quoted(model.name.as_str())).collect()
            }
        };
        let settings = state.config_options().entries().into_iter();
        Self {
            tables,
            functions,
            models,
            settings: settings.map(|setting| setting.key).collect(),
        }
    }
}

/// Returns a name as SQL has it: in quotes where it is not of lower-case letters, digits and `_`.
fn quoted(name: &str) -> String {
    let mut characters = name.chars();
    let is_plain = characters
        .next()
        .is_some_and(|first| first.is_ascii_lowercase() || first == '_')
        && characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !is_keyword(name);
    match is_plain {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Returns what may stand at the end of a text.
pub(super) fn candidates(typed: &str, names: &Names) -> Candidates {
    let line = typed.rsplit('\n').next().unwrap_or_default();
    if line.trim_start().starts_with('\\') && !is_quoted(&typed[..typed.len() - line.len()]) {
        return of_command(line.trim_start(), names);
    }
    // The unfinished statement, without those before it.
    let begin = statement_begin(typed);
    let statement = &typed[begin..];
    if let Some(text) = open_text(statement) {
        let before = &statement[..statement.len() - text.len() - 1];
        return of_text(text, before);
    }
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '"');
    let word = statement.rfind(|c| !is_part(c));
    let word = word.map_or(statement, |at| {
        let next = statement[at..].chars().next().map_or(0, char::len_utf8);
        &statement[at + next..]
    });
    let before = &statement[..statement.len() - word.len()];
    words(word, of_word(word, before, names))
}

/// Completes a command of the prompt.
fn of_command(line: &str, names: &Names) -> Candidates {
    let Some((command, argument)) = line.split_once(char::is_whitespace) else {
        let commands = COMMANDS
            .iter()
            .filter_map(|(usage, _)| usage.split(' ').next());
        return words(line, commands.map(str::to_owned).collect());
    };
    let argument = argument.trim_start();
    match command {
        r"\i" | r"\o" | r"\e" => Candidates::Files {
            length: argument.len(),
        },
        r"\d" => words(
            argument,
            names.tables.iter().map(|(name, _)| name.clone()).collect(),
        ),
        r"\dm" | r"\m" => words(argument, names.models.clone()),
        r"\df" => words(argument, names.functions.iter().cloned().collect()),
        r"\set" => words(argument, names.settings.clone()),
        r"\format" => words(argument, formats()),
        r"\x" | r"\timing" => words(argument, vec!["on".into(), "off".into()]),
        r"\h" => words(argument, help::topics()),
        _ => words(argument, Vec::new()),
    }
}

/// Completes a text in quotes: a value of an option, or a file.
fn of_text(text: &str, before: &str) -> Candidates {
    let before = before.trim_end().trim_end_matches(['[', ',']).trim_end();
    if let Some(before) = before.strip_suffix('=')
        && is_in_options(before)
        && let Some(option) = last_words(before).first()
        && let Some(option) = train_options().find(|known| known.name.eq_ignore_ascii_case(option))
    {
        let values = option.values.split('\'').skip(1).step_by(2);
        return words(text, values.map(|value| format!("{value}'")).collect());
    }
    Candidates::Files { length: text.len() }
}

/// Returns the values that an option takes: its texts in quotes, and `true` and `false`.
fn values_of(option: Option<&&str>) -> Vec<String> {
    let mut options = train_options();
    let named = |name: &&str| options.find(|known| known.name.eq_ignore_ascii_case(name));
    let Some(option) = option.and_then(named) else {
        return Vec::new();
    };
    let texts = option.values.split('\'').skip(1).step_by(2);
    let switches = ["true", "false"].into_iter();
    let switches = switches.filter(|switch| option.values.contains(switch));
    texts
        .map(|text| format!("'{text}'"))
        .chain(switches.map(str::to_owned))
        .collect()
}

fn of_word(word: &str, before: &str, names: &Names) -> Vec<String> {
    let tables = || names.tables.iter().map(|(name, _)| name.clone());
    let last = last_words(before);
    let last: Vec<_> = last.iter().map(|word| word.to_ascii_uppercase()).collect();
    let last: Vec<_> = last.iter().map(String::as_str).collect();
    if is_in_options(before) {
        return match before.trim_end().strip_suffix('=') {
            Some(before) => values_of(last_words(before).first()),
            None => {
                let options = train_options();
                options
                    .map(|option| format!("{} = ", option.name))
                    .collect()
            }
        };
    }
    match last[..] {
        ["MODEL", ..] => return names.models.clone(),
        ["SET" | "RESET", ..] => return names.settings.clone(),
        _ => {}
    }
    if let Some((of, _)) = word.rsplit_once('.') {
        if of.eq_ignore_ascii_case("ml") {
            return ML
                .split_whitespace()
                .map(|name| cased(&format!("ML.{name}("), word))
                .collect();
        }
        let columns = columns_of(of, before, names);
        let columns = columns.map(|column| format!("{of}.{column}"));
        return columns.chain(tables()).collect();
    }
    if let [
        "FROM" | "JOIN" | "INTO" | "TABLE" | "DESCRIBE" | "UPDATE",
        ..,
    ] = last[..]
    {
        let functions = ["ML.", "SELECT"].map(|text| cased(text, word));
        return tables().chain(functions).collect();
    }
    let named = names
        .tables
        .iter()
        .filter(|(name, _)| mentions(before, name));
    let columns = named.flat_map(|(_, columns)| columns.iter().cloned());
    let functions = names.functions.iter().map(|name| format!("{name}("));
    let keywords = KEYWORDS.split_whitespace();
    let keywords = keywords.map(|keyword| cased(keyword, word));
    let mut all: Vec<_> = columns.chain(tables()).collect();
    // Hundreds of names help nobody.
    if !word.is_empty() {
        all.extend(keywords.chain(functions));
    }
    all
}

/// Returns the columns of a table by its name, or by its alias in the statement.
fn columns_of<'a>(of: &str, before: &str, names: &'a Names) -> impl Iterator<Item = &'a String> {
    let all: Vec<_> = before
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')'))
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("as"))
        .collect();
    let of_alias = all.windows(2).find(|pair| pair[1].eq_ignore_ascii_case(of));
    let table = of_alias.map_or(of, |pair| pair[0]);
    let tables = names.tables.iter();
    let found = tables
        .clone()
        .find(|(name, _)| name.eq_ignore_ascii_case(table))
        .or_else(|| {
            tables
                .clone()
                .find(|(name, _)| name.eq_ignore_ascii_case(of))
        });
    found.into_iter().flat_map(|(_, columns)| columns)
}

/// Checks whether a statement names a table.
fn mentions(statement: &str, table: &str) -> bool {
    let mut words =
        statement.split(|c: char| c.is_whitespace() || matches!(c, ',' | '(' | ')' | ';'));
    words.any(|word| word.eq_ignore_ascii_case(table))
}

/// Returns up to three words before a place, the last one first.
fn last_words(before: &str) -> Vec<&str> {
    let words = before
        .trim_end()
        .rsplit(|c: char| !(c.is_alphanumeric() || c == '_'));
    match before
        .trim_end()
        .ends_with(|c: char| c.is_alphanumeric() || c == '_')
    {
        true => words.filter(|word| !word.is_empty()).take(3).collect(),
        false => Vec::new(),
    }
}

/// Checks whether a place is in the list of a `CREATE MODEL … OPTIONS (`.
fn is_in_options(before: &str) -> bool {
    let upper = before.to_ascii_uppercase();
    let Some(at) = upper.rfind("OPTIONS") else {
        return false;
    };
    let after = upper[at + "OPTIONS".len()..].trim_start();
    let depth = |text: &str| text.matches('(').count() as i64 - text.matches(')').count() as i64;
    upper[..at].contains("MODEL") && after.starts_with('(') && depth(after) > 0
}

/// Returns where the last statement of a text begins.
fn statement_begin(typed: &str) -> usize {
    let ends = typed.match_indices(';').map(|(at, _)| at + 1);
    ends.rev()
        .find(|end| tokens::is_complete(&typed[..*end]))
        .unwrap_or(0)
}

/// Returns the text after a quote that is open.
fn open_text(statement: &str) -> Option<&str> {
    let (_, open) = tokens::read(statement)?;
    let begin = open
        .filter(|open| *open == "'")
        .and(statement.rfind('\''))?;
    Some(&statement[begin + 1..])
}

fn is_quoted(text: &str) -> bool {
    tokens::read(text).is_some_and(|(_, open)| open.is_some())
}

/// Returns a keyword as the word is typed: in lower case, or not.
fn cased(keyword: &str, word: &str) -> String {
    match word.starts_with(|c: char| c.is_ascii_lowercase()) {
        true => keyword.to_ascii_lowercase(),
        false => keyword.to_owned(),
    }
}

/// Keeps the words that begin like the typed one.
fn words(typed: &str, all: Vec<String>) -> Candidates {
    let begins = |word: &String| {
        let head = word.get(..typed.len());
        let bare = word.trim_start_matches('"').get(..typed.len());
        [head, bare]
            .into_iter()
            .flatten()
            .any(|head| head.eq_ignore_ascii_case(typed))
    };
    let mut words: Vec<_> = all.into_iter().filter(begins).collect();
    words.sort();
    words.dedup();
    Candidates::Words {
        length: typed.len(),
        words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let table = |name: &str, columns: &[&str]| {
            let columns = columns.iter().map(|column| quoted(column)).collect();
            (name.to_owned(), columns)
        };
        Names {
            tables: vec![
                table("stores", &["store", "city"]),
                table("sales", &["store", "amount", "Date"]),
                table("volley.jobs", &["id"]),
            ],
            functions: ["sum", "substr"].map(str::to_owned).into(),
            models: vec!["forecast".into()],
            settings: vec!["datafusion.execution.target_partitions".into()],
        }
    }

    fn complete(typed: &str) -> Vec<String> {
        match candidates(typed, &names()) {
            Candidates::Words { words, length } => {
                assert!(typed.is_char_boundary(typed.len() - length));
                words
            }
            Candidates::Files { .. } => vec!["FILES".into()],
        }
    }

    #[test]
    fn keywords_are_sorted() {
        assert!(KEYWORDS.split_whitespace().is_sorted());
        assert!(is_keyword("select") && !is_keyword("sales"));
    }

    #[test]
    fn functions_on_models_have_help() {
        for name in ML.split_whitespace() {
            assert!(help::topics().contains(&format!("ML.{name}")), "{name}");
        }
    }

    #[test]
    fn words_are_completed_by_what_stands_before() {
        for (typed, due) in [
            ("SEL", &["SELECT"][..]),
            ("sel", &["select"]),
            ("SELECT * FROM s", &["sales", "select", "stores"]),
            ("SELECT * FROM sales s JOIN st", &["stores"]),
            ("SELECT am", &[]),
            ("SELECT x FROM sales WHERE am", &["amount"]),
            (
                "SELECT x FROM sales AS q WHERE q.",
                &["q.\"Date\"", "q.amount", "q.store"],
            ),
            ("SELECT x FROM sales q WHERE q.da", &[]),
            ("SELECT stores.c", &["stores.city"]),
            ("SELECT su", &["substr(", "sum("]),
            ("SELECT * FROM volley.", &["volley.jobs"]),
            ("SELECT * FROM ml.pr", &["ml.predict("]),
            ("SELECT * FROM ML.PREDICT(MODEL f", &["forecast"]),
            (
                "CREATE MODEL m OPTIONS (input_label",
                &["input_label_cols = "],
            ),
            ("CREATE MODEL m OPTIONS (a = 1, model_t", &["model_type = "]),
            (
                "CREATE MODEL m OPTIONS (model_type = 'linear",
                &["linear_reg'"],
            ),
            ("CREATE MODEL m OPTIONS (wide = ", &["false", "true"]),
            ("CREATE MODEL m OPTIONS (wide = t", &["true"]),
            (
                "CREATE MODEL m OPTIONS (wide = true, batch_n",
                &["batch_norm = "],
            ),
            ("SELECT 1; DROP MODEL fo", &["forecast"]),
            (
                "SET datafusion.execution.ta",
                &["datafusion.execution.target_partitions"],
            ),
            ("SELECT * FROM 'dat", &["FILES"]),
            ("SELECT ';\nSELECT * FROM s", &["FILES"]),
            (r"\d st", &["stores"]),
            (r"\dm ", &["forecast"]),
            (r"\fo", &[r"\format"]),
            (r"\format js", &["json"]),
            (r"\i x", &["FILES"]),
            ("SELECT 1 +\n\\ti", &[r"\timing"]),
            ("SELECT größe FROM sa", &["sales"]),
        ] {
            let words = complete(typed);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            assert_eq!(words, due, "{typed}");
        }
    }
}
