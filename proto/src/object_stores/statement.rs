//! Redaction of statements, so that they can be shown without the values of store options.

use std::borrow::Cow;

use super::StoreOptions;

/// Returns the statement with `***` for each value after the name of a store option, `'aws.secret_access_key' '***'`,
/// and for passwords of quoted URLs.
///
/// It does not parse SQL: a value is the quoted text, or the word, after such a name.
pub fn redacted(text: &str) -> String {
    redact(text, comment)
}

/// Redacts a text that has comments.
fn redact(text: &str, comment: fn(&str) -> Option<(&str, &str)>) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut after_name = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((open, body)) = comment(rest) {
            // A quote in a comment ends there, and what was commented out may have values.
            shown.push_str(open);
            shown.push_str(&redact(body, |_| None));
            rest = &rest[open.len() + body.len()..];
            continue;
        }
        let (token, quoted) = match first {
            '\'' | '"' => (quoted(rest, first), true),
            first if is_word(first) => {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                // The star of a comment's beginning is no part of a word.
                let opens_at_end = rest[..end].ends_with('/') && rest[end..].starts_with('*');
                let end = end - usize::from(opens_at_end);
                (&rest[..rest[..end].find("--").unwrap_or(end)], false)
            }
            first => (&rest[..first.len_utf8()], false),
        };
        rest = &rest[token.len()..];
        let is_value = quoted || is_word(first);
        if after_name && is_value {
            shown.push_str(if quoted { "'***'" } else { "***" });
            after_name = false;
            continue;
        }
        if is_value {
            let name = token.trim_matches(first).trim_end_matches(first);
            let name = if quoted { name } else { token };
            after_name = StoreOptions::is_one(name);
        } else if !first.is_whitespace() && first != '=' {
            after_name = false;
        }
        shown.push_str(&without_password(token));
    }
    shown
}

/// Beginnings of comments.
const OPENS: [&str; 2] = ["--", "/*"];

/// Returns the beginning and the rest of the comment at the start of a text: up to the end of the line, or up to `*/`, of
/// which there is one for each `/*` in it.
fn comment(text: &str) -> Option<(&str, &str)> {
    let open = OPENS.into_iter().find(|open| text.starts_with(open))?;
    let body = &text[open.len()..];
    if open == "--" {
        return Some((open, body.split('\n').next().unwrap_or(body)));
    }
    let (mut depth, mut at) = (1, 0);
    while depth > 0 {
        let next = |part: &str| body[at..].find(part).map(|found| at + found);
        match (next("/*"), next("*/")) {
            (Some(opens), Some(ends)) if opens < ends => (depth, at) = (depth + 1, opens + 2),
            (_, Some(ends)) => (depth, at) = (depth - 1, ends + 2),
            (_, None) => return Some((open, body)),
        }
    }
    Some((open, &body[..at]))
}

/// Replaces the password in a URL by `***`.
fn without_password(text: &str) -> Cow<'_, str> {
    let password = || {
        let authority = text.find("://")? + "://".len();
        let end = text[authority..].find('/').map(|at| authority + at);
        let end = authority + text[authority..end.unwrap_or(text.len())].rfind('@')?;
        let start = authority + text[authority..end].find(':')? + 1;
        Some(start..end)
    };
    match password() {
        Some(at) => Cow::Owned(format!("{}***{}", &text[..at.start], &text[at.end..])),
        None => Cow::Borrowed(text),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+' | '/')
}

/// Returns the quoted text at the start of a text, with its quotes; the rest of the text if no quote ends it.
fn quoted(text: &str, quote: char) -> &str {
    let mut places = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = places.next() {
        if c != quote {
            continue;
        }
        match places.peek() {
            // A doubled quote stands for one.
            Some((_, next)) if *next == quote => {
                places.next();
            }
            _ => return &text[..=at],
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_stores_options_are_not_shown() {
        for (text, expected) in [
            ("SELECT 'a' 'b', \"x\"", "SELECT 'a' 'b', \"x\""),
            (
                "OPTIONS ('aws.secret_access_key' 'hun''ter2', 'format.delimiter' ';')",
                "OPTIONS ('aws.secret_access_key' '***', 'format.delimiter' ';')",
            ),
            (
                "OPTIONS (aws.secret_access_key hunter2, AWS.region = 'x')",
                "OPTIONS (aws.secret_access_key ***, AWS.region = '***')",
            ),
            (
                "('azure.account_key'\n\"k\")",
                "('azure.account_key'\n'***')",
            ),
            ("'gcp.x', 'y'", "'gcp.x', 'y'"),
            ("FROM 's3://u:p:q@b/x@y'", "FROM 's3://u:***@b/x@y'"),
            ("FROM 's3://u@b/x:y' 'a:b@c'", "FROM 's3://u@b/x:y' 'a:b@c'"),
            ("'aws.token' 'never ends", "'aws.token' '***'"),
            ("é 'ü' 'aws.token' 'ü'", "é 'ü' 'aws.token' '***'"),
            (
                "-- don't\nOPTIONS ('aws.token' 'k') -- 'aws.token' 'old'",
                "-- don't\nOPTIONS ('aws.token' '***') -- 'aws.token' '***'",
            ),
            (
                "a--it's\n'aws.token' /* 's /* nested */ ' */ 'k' x/*'*/ 'aws.token' 'k'",
                "a--it's\n'aws.token' /* 's /* nested */ ' */ '***' x/*'*/ 'aws.token' '***'",
            ),
            (
                "SELECT 5 - 3 / 4 * 2 /* never ends",
                "SELECT 5 - 3 / 4 * 2 /* never ends",
            ),
        ] {
            assert_eq!(redacted(text), expected);
        }
    }
}
