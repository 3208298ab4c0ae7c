//! Root cause in the text of an error.
//!
//! An error that starts on an executor reaches the client as text, wrapped by every layer it passed. This module
//! removes the layers that add nothing, and only those. It does not handle Volley's own errors, which are values: see
//! [`Error`](crate::Error).

use volley_proto::failure::{DataLost, TaskFailure};

/// Returns the part of an engine error's text that is worth showing.
pub(crate) fn plain(text: &str) -> String {
    let cause = said_by_executor(text).unwrap_or_else(|| root_cause(text));
    let cause = outside_groups(&cause).unwrap_or(cause);
    let hint = hint(&cause);
    cause + &hint
}

/// Rewrites DataFusion's text about an expression that is neither grouped by nor aggregated.
fn outside_groups(cause: &str) -> Option<String> {
    let (clause, rest) = cause
        .strip_prefix("Column in ")?
        .split_once(" must be in GROUP BY or an aggregate function: ")?;
    let (_, rest) = rest.split_once("column \"")?;
    let (expression, _) = rest.split_once("\" must appear in the GROUP BY clause")?;
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    // A file's name may be a column's qualifier.
    let shown = match expression.rsplit_once('.') {
        Some((_, column)) if expression.chars().all(is_name) => column,
        _ => expression,
    };
    let clause = match clause {
        "SELECT" => String::new(),
        clause => format!(" where {clause} names it"),
    };
    Some(format!(
        "\"{shown}\" must be in GROUP BY or inside an aggregate function{clause}"
    ))
}

/// Returns what a beginner may have meant, or nothing.
fn hint(cause: &str) -> String {
    let quoted = |before: &str, (open, close): (char, char)| {
        let name = cause.strip_prefix(before)?.strip_prefix(open)?;
        Some(name.split_once(close)?.0)
    };
    let is_suggested = cause.contains("Did you mean");
    if let Some(name) = quoted("No field named ", ('"', '"'))
        && !is_suggested
    {
        return format!(
            "\nText is written in single quotes, '{name}'; double quotes are for names."
        );
    }
    match quoted("Invalid function ", ('\'', '\'')) {
        Some("predict" | "evaluate" | "ml_predict" | "ai_predict") => {
            "\nModels predict in FROM: SELECT * FROM ML.PREDICT(MODEL name, (SELECT …)).".to_owned()
        }
        _ => String::new(),
    }
}

/// Returns the error that an executor marked in the text, if there is one.
fn said_by_executor(text: &str) -> Option<String> {
    if let Some(DataLost { executor, reason }) = DataLost::find(text) {
        return Some(format!("data on executor {executor} was lost: {reason}"));
    }
    TaskFailure::find(text).map(root_cause)
}

/// Returns an error's text without the layers that add nothing.
///
/// Layers are prefixes such as `Execution error: ` and `Job x failed: `, and values printed by `Debug` such as
/// `DataFusionError(Execution("…"))`. Text that is not a known layer stays.
fn root_cause(text: &str) -> String {
    let mut cause = text.trim().to_owned();
    while let Some(inner) = without_prefix(&cause).or_else(|| without_debug(&cause)) {
        if inner.is_empty() {
            break;
        }
        cause = inner;
    }
    cause
}

/// Returns the text after one prefix, if the text starts with one.
fn without_prefix(text: &str) -> Option<String> {
    const PREFIXES: &[&str] = &[
        "Execution error: ",
        "External error: ",
        "Error during planning: ",
        "Schema error: ",
        "Cast error: ",
        "Arrow error: ",
        "DataFusion error: ",
        "General error: ",
        "Internal Ballista error: ",
        "Task failed due to runtime execution error: ",
        "Task failed due to IO error: ",
        "Fail to execute query due to ",
    ];
    /// Prefixes that contain a word: the text before it, and the text after it.
    const AROUND: &[(&str, &str)] = &[
        ("Job ", " failed: "),
        ("Job failed due to stage ", " failed: "),
        ("Error planning job ", ": "),
    ];
    if let Some(feature) = text.strip_prefix("This feature is not implemented: ") {
        return Some(not_supported(feature));
    }
    let plain = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
    let around = || {
        AROUND.iter().find_map(|(before, after)| {
            let (word, rest) = text.strip_prefix(before)?.split_once(after)?;
            (!word.contains(char::is_whitespace)).then_some(rest)
        })
    };
    plain.or_else(around).map(|rest| rest.trim().to_owned())
}

/// Returns the value inside one layer of `Debug`, if the text is one.
fn without_debug(text: &str) -> Option<String> {
    const LAYERS: &[&str] = &[
        "DataFusionError(",
        "ArrowError(",
        "Execution(",
        "Plan(",
        "External(",
        "Shared(",
        "General(",
        "Internal(",
        "GrpcActionError(",
        "GrpcConnectionError(",
        "ExternalError(",
    ];
    if text.starts_with("Status {") {
        let (_, message) = text.split_once("message: ")?;
        return string_literal(message).map(|(message, _)| message);
    }
    if let Some(rest) = text.strip_prefix("NotImplemented(") {
        let (feature, _) = string_literal(rest)?;
        return Some(not_supported(&feature));
    }
    // Name of an optimizer rule, and its error.
    if let Some(rest) = text.strip_prefix("Context(") {
        let (_, rest) = string_literal(rest)?;
        let inner = rest.strip_prefix(", ")?.strip_suffix(')')?;
        return Some(inner.to_owned());
    }
    let inner = LAYERS.iter().find_map(|layer| text.strip_prefix(layer))?;
    if let Some((message, rest)) = string_literal(inner) {
        return rest.ends_with(')').then_some(message);
    }
    // Some layers have a second field, an empty backtrace.
    let inner = inner.strip_suffix(')')?;
    let shorter = inner
        .strip_suffix(", None")
        .or_else(|| inner.strip_suffix(", Some(\"\")"));
    Some(shorter.unwrap_or(inner).to_owned())
}

/// Rewrites DataFusion's text about a missing feature in the words of [`Error::NotSupported`].
fn not_supported(feature: &str) -> String {
    let what = feature.trim().trim_start_matches("not supported: ");
    let what = instead(what).unwrap_or_else(|| what.to_owned());
    format!("not supported: {what}")
}

/// Returns what to write instead of a missing feature, where DataFusion's text has a syntax tree or less.
fn instead(feature: &str) -> Option<String> {
    if feature == "Operator DIV is not yet supported"
        || feature == "Operator // is not yet supported"
    {
        return Some(
            "a // b and a DIV b: a / b of whole numbers is a whole number already, as 7 / 2 is 3"
                .to_owned(),
        );
    }
    if feature.starts_with("Unsupported interval argument. Expected string literal or number, got")
    {
        return Some(
            "INTERVAL of a column or an expression: CAST(n || ' days' AS INTERVAL) is one of n days"
                .to_owned(),
        );
    }
    let field = feature.strip_prefix("Dot access not supported for non-string expr: ")?;
    let (_, name) = field.split_once("value: \"")?;
    let (name, _) = name.split_once('"')?;
    Some(format!(
        ".{name} after […]: a field of an element is written x[1]['{name}']"
    ))
}

/// Splits off a string literal as `Debug` prints it. Returns its value and the rest of the text.
fn string_literal(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?.char_indices();
    let body = &text[1..];
    let mut value = String::new();
    while let Some((at, c)) = rest.next() {
        match c {
            '"' => return Some((value, &body[at + 1..])),
            '\\' => match rest.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                'u' => {
                    let digits = rest.as_str().strip_prefix('{')?.split_once('}')?.0;
                    value.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
                    rest.nth(digits.len() + 1);
                }
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use datafusion::error::DataFusionError;

    use super::*;
    use crate::Error;

    #[test]
    fn beginners_are_told_what_they_may_have_meant() {
        for (text, due) in [
            (
                "Schema error: No field named \"A\".\nValid fields are t.city.",
                "single quotes, 'A'",
            ),
            (
                "Error during planning: Invalid function 'predict'.\nDid you mean 'repeat'?",
                "ML.PREDICT",
            ),
        ] {
            assert!(plain(text).contains(due), "{text}");
        }
        for text in [
            "No field named cty. Did you mean 'city'?",
            "No field named \"City\". Did you mean 'city'?",
            "Invalid function 'sun'.\nDid you mean 'sum'?",
        ] {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn takes_off_layers_that_say_nothing() {
        for (text, expected) in [
            ("Execution error: boom", "boom"),
            (
                "Execution error: Job 7EnTdU failed: Job failed due to stage 2 failed: Task failed \
                 due to runtime execution error: DataFusionError(Execution(\"rank 1: cannot load \\\"m\\\"\"))\n",
                "rank 1: cannot load \"m\"",
            ),
            (
                "Execution error: Job x failed: Job failed due to stage 1 failed: Task failed due \
                 to runtime execution error: DataFusionError(ArrowError(DivideByZero, Some(\"\")))\n",
                "DivideByZero",
            ),
            (
                "Task failed due to runtime execution error: \
                 DataFusionError(Shared(External(Execution(\"a\\nb\\u{1b}\"))))",
                "a\nb\u{1b}",
            ),
            (
                "Execution error: Status { code: Internal, message: \"no\", x: 1 }",
                "no",
            ),
            (
                "Execution error: Job x failed: Error planning job x: DataFusionError(Plan(\"3 ranks\"))",
                "3 ranks",
            ),
            (
                "Job x failed: Error planning job x: DataFusionError(Context(\"a_rule\", NotImplemented(\"two orders\")))",
                "not supported: two orders",
            ),
            (
                "Error during planning: This feature is not implemented: not supported: two orders",
                "not supported: two orders",
            ),
            (
                "Error during planning: table 't' not found",
                "table 't' not found",
            ),
        ] {
            assert_eq!(root_cause(text), expected, "{text}");
        }
    }

    #[test]
    fn syntax_trees_are_not_shown() {
        for (text, due) in [
            (
                "This feature is not implemented: Dot access not supported for non-string expr: Identifier(Ident { value: \"prob\", quote_style: None, span: Span(Location(1,13)..Location(1,17)) })",
                "not supported: .prob after […]: a field of an element is written x[1]['prob']",
            ),
            (
                "This feature is not implemented: Unsupported interval argument. Expected string literal or number, got: Identifier(Ident { value: \"k\" })",
                "not supported: INTERVAL of a column or an expression: CAST(n || ' days' AS INTERVAL) is one of n days",
            ),
            (
                "This feature is not implemented: Operator DIV is not yet supported",
                "not supported: a // b and a DIV b: a / b of whole numbers is a whole number already, as 7 / 2 is 3",
            ),
            (
                "Error during planning: Column in SELECT must be in GROUP BY or an aggregate function: While expanding wildcard, column \"train.csv.Date\" must appear in the GROUP BY clause or must be part of an aggregate function, currently only \"a\" appears in the SELECT clause satisfies this requirement",
                "\"Date\" must be in GROUP BY or inside an aggregate function",
            ),
            (
                "Error during planning: Column in HAVING must be in GROUP BY or an aggregate function: While expanding wildcard, column \"t.a + t.b\" must appear in the GROUP BY clause or must be part of an aggregate function",
                "\"t.a + t.b\" must be in GROUP BY or inside an aggregate function where HAVING names it",
            ),
        ] {
            assert_eq!(plain(text), due);
        }
    }

    #[test]
    fn leaves_what_it_does_not_know() {
        for text in [
            "Resources exhausted: no memory",
            "Execution(\"open",
            "Io(Custom { kind: Other })",
            "Job a b failed: c",
            "",
        ] {
            assert_eq!(root_cause(text), text);
        }
    }

    #[test]
    fn finds_what_an_executor_marked() {
        let marked =
            "Job x failed: DataFusionError(External([[volley 21: label \"Sales\" is null]]))";
        for (text, expected) in [
            (marked, "label \"Sales\" is null"),
            (
                "Job x failed: External([[volley 34: This feature is not implemented: x]])",
                "not supported: x",
            ),
            (
                "Job x failed: External([[volley 50: stage 2: [[volley-lost 21: e-1: no route to host]]]])",
                "data on executor e-1 was lost: no route to host",
            ),
        ] {
            let error = Error::from(DataFusionError::Execution(text.into()));
            assert_eq!(error.to_string(), expected);
        }
    }
}
