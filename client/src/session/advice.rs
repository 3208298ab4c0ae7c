//! Advice in errors of planning about names that the engine does not know: functions, table functions and columns.
//!
//! Not here: names of tables and places, and what only the text of an error tells (`root_cause`).

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::{Expr, Visitor};
use strsim::jaro_winkler;
use volley_proto::nearest;

use crate::Error;
use crate::sql::visit;

/// Similarity above which a name is suggested for another.
const NEAR: f64 = 0.84;

/// Functions of other engines, and how Volley writes them.
const ELSEWHERE: &[(&str, &str)] = &[
    ("typeof pg_typeof", "arrow_typeof(x)"),
    ("list collect_list", "array_agg(x)"),
    ("group_concat listagg", "string_agg(x, ',')"),
    (
        "strftime format_date format_timestamp",
        "to_char(t, '%Y-%m-%d')",
    ),
    (
        "strptime parse_timestamp try_strptime",
        "to_timestamp(text, '%Y-%m-%d %H:%M')",
    ),
    ("parse_date str_to_date", "to_date(text, '%Y-%m-%d')"),
    ("if iff iif", "CASE WHEN condition THEN a ELSE b END"),
    ("date_sub datesub", "date - INTERVAL '1 day'"),
    ("date_add dateadd", "date + INTERVAL '1 day'"),
    (
        "date_diff datediff",
        "a - b, which is the number of days of two dates",
    ),
    (
        "year month day hour minute second week quarter dayofweek",
        "extract(year FROM t), and the same of month, day, hour, week, dow and doy",
    ),
    ("len", "length(text)"),
    ("ucase", "upper(text)"),
    ("lcase", "lower(text)"),
    ("isnull", "x IS NULL"),
    ("safe_cast", "TRY_CAST(x AS type)"),
    ("safe_divide", "a / nullif(b, 0)"),
    ("countif count_if", "count(*) FILTER (WHERE condition)"),
    ("sumif sum_if", "sum(x) FILTER (WHERE condition)"),
    ("approx_count_distinct", "approx_distinct(x)"),
    ("quantile percentile", "quantile_cont(x, 0.5)"),
    ("struct_pack", "named_struct('name', x)"),
    (
        "regexp_matches regexp_contains",
        "regexp_like(text, pattern)",
    ),
    ("generate_array", "range(1, 11)"),
    ("arg_max max_by", "last_value(x ORDER BY y)"),
    ("arg_min min_by", "first_value(x ORDER BY y)"),
];

/// Functions of other engines that read files, by the start of their names, and the extension of these files.
const READERS: &[(&str, &str)] = &[
    ("read_csv", "csv"),
    ("read_parquet", "parquet"),
    ("parquet_scan", "parquet"),
    ("read_json", "json"),
    ("read_ndjson", "ndjson"),
];

/// Names of a statement that are in double quotes.
#[derive(Debug, Default)]
pub(super) struct QuotedNames(HashSet<String>);

impl QuotedNames {
    pub(super) fn of(statement: &DfStatement) -> Self {
        let mut names = Self::default();
        let _ = visit(statement, &mut names);
        names
    }
}

impl Visitor for QuotedNames {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expr
            && name.quote_style == Some('"')
        {
            self.0.insert(name.value.clone());
        }
        ControlFlow::Continue(())
    }
}

/// Returns an error of planning with advice about the name that it is about; the error itself if there is no better.
pub(super) fn advised(error: DataFusionError, state: &SessionState, quoted: &QuotedNames) -> Error {
    let root = error.find_root();
    let cause = match root {
        DataFusionError::SchemaError(schema_error, _) => match schema_error.as_ref() {
            SchemaError::FieldNotFound { field, .. } => {
                Some(column(field.name(), &root.strip_backtrace(), quoted))
            }
            _ => None,
        },
        DataFusionError::Plan(text) => {
            function(text, state).or_else(|| table_function(text, state))
        }
        _ => None,
    };
    match cause {
        Some(cause) => Error::Engine {
            cause,
            original: Box::new(error),
        },
        None => error.into(),
    }
}

/// Rewrites the error about an unknown column: only a similar one is suggested, and what is in double quotes may be meant
/// as text.
fn column(name: &str, said: &str, quoted: &QuotedNames) -> String {
    let mut said = said
        .strip_prefix("Schema error: ")
        .unwrap_or(said)
        .to_owned();
    let mut is_suggested = false;
    if let Some((before, rest)) = said.split_once(" Did you mean '")
        && let Some((suggested, rest)) = rest.split_once("'?")
    {
        let bare = suggested.rsplit('.').next().unwrap_or(suggested);
        is_suggested = is_near(name, bare.trim_matches('"'));
        if !is_suggested {
            said = format!("{before}{rest}");
        }
    }
    if !is_suggested && quoted.0.contains(name) {
        said.push_str(&format!(
            "\nText is written in single quotes, '{name}'; double quotes are for names."
        ));
    }
    said
}

fn is_near(name: &str, other: &str) -> bool {
    jaro_winkler(&name.to_lowercase(), &other.to_lowercase()) > NEAR
}

/// Rewrites the error about an unknown function.
fn function(said: &str, state: &SessionState) -> Option<String> {
    let name = said.strip_prefix("Invalid function '")?.split_once('\'')?.0;
    let lower = name.to_lowercase();
    let elsewhere = ELSEWHERE
        .iter()
        .find(|(names, _)| names.split(' ').any(|known| known == lower));
    let said = format!("Invalid function '{name}'.");
    Some(match elsewhere {
        Some((_, here)) => format!("{said}\nWrite {here}."),
        None if MODEL_CALLS.contains(&lower.as_str()) => format!(
            "{said}\nModels predict in FROM: SELECT * FROM ML.PREDICT(MODEL name, (SELECT …))."
        ),
        None => {
            let scalar = state.scalar_functions().keys();
            let of_lists = state.higher_order_functions().keys();
            let aggregate = state.aggregate_functions().keys();
            let window = state.window_functions().keys();
            let all = scalar.chain(of_lists).chain(aggregate).chain(window);
            said + &suggestion(name, all.map(String::as_str))
        }
    })
}

/// Functions that models are asked by in other engines.
const MODEL_CALLS: [&str; 4] = ["predict", "evaluate", "ml_predict", "ai_predict"];

/// Rewrites the error about an unknown table function.
fn table_function(said: &str, state: &SessionState) -> Option<String> {
    let name = said.strip_prefix("table function '")?;
    let name = name.strip_suffix("' not found")?;
    let lower = name.to_lowercase();
    if let Some((_, extension)) = READERS.iter().find(|(start, _)| lower.starts_with(start)) {
        return Some(format!(
            "{said}\nWrite the file in quotes: FROM 'x.{extension}', or FROM 'folder/*.{extension}'."
        ));
    }
    let names = state.table_functions().keys().map(String::as_str);
    Some(said.to_owned() + &suggestion(name, names))
}

/// Returns the nearest name, of several that are equally near the first by letters, or nothing.
fn suggestion<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    // Maps of names have no order.
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    match nearest(name, names).first() {
        Some(near) if is_near(name, near) => format!("\nDid you mean '{near}'?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn unknown_names_come_with_advice_or_none() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            for (select, due) in [
                ("avrage(\"Id\") FROM sales", Some("Did you mean 'avg'?")),
                (
                    "avrage(\"Id\") OVER () FROM sales",
                    Some("Did you mean 'avg'?"),
                ),
                ("sqrrt(\"Id\") FROM sales", Some("Did you mean 'sqrt'?")),
                ("typeof(\"Id\") FROM sales", Some("Write arrow_typeof(x).")),
                ("LIST(\"Id\") FROM sales", Some("Write array_agg(x).")),
                ("if(\"Id\" > 1, 1, 2) FROM sales", Some("Write CASE WHEN ")),
                ("predict(\"Id\") FROM sales", Some("ML.PREDICT")),
                ("qqqqq(\"Id\") FROM sales", None),
                ("1 FROM rnage(3)", Some("Did you mean 'range'?")),
                ("1 FROM read_csv_auto('x.csv')", Some("FROM 'x.csv'")),
                ("1 FROM qqqqq(3)", None),
                ("\"Idd\" FROM sales", Some("Did you mean 'sales.\"Id\"'?")),
                ("nope FROM (SELECT 1 AS open)", None),
                ("1 FROM sales WHERE 'b' = \"b\"", Some("'b'; double quotes")),
                ("1 FROM sales WHERE 'b' = \"B\"", Some("'B'; double quotes")),
                ("1 FROM sales WHERE 'b' = bb", None),
            ] {
                let sql = format!("SELECT {select}");
                let error = session.sql(&sql).await.unwrap_err().to_string();
                match due {
                    Some(due) => assert!(error.contains(due), "{sql}: {error}"),
                    None => {
                        let advice = ["Did you mean", "Write ", "double quotes"];
                        let has = advice.iter().any(|advice| error.contains(advice));
                        assert!(!has, "{sql}: {error}");
                    }
                }
            }
        });
    }
}
