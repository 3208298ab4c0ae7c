//! Redaction of statements, so that they can be shown without the values of store options.

use std::borrow::Cow;

use super::StoreOptions;

/// Returns the statement with `***` for each value after the name of a store option, `'aws.secret_access_key' '***'`,
/// and for passwords of quoted URLs.
///
/// It does not parse SQL: a value is the quoted text, or the word, after such a name.
pub fn redacted(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut after_name = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (token, quoted) = match first {
            '\'' | '"' => (quoted(rest, first), true),
            first if is_word(first) => {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                (&rest[..end], false)
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
        ] {
            assert_eq!(redacted(text), expected);
        }
    }
}
