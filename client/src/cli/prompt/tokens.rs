//! Tokens of unfinished SQL: the end of a statement, open quotes and comments.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

/// Texts that close what a statement may leave open.
const CLOSE: [&str; 5] = ["'", "\"", "`", "*/", "$$"];

/// Returns the tokens with their places, and the text that closes an open quote or comment; none if it cannot be read.
pub(super) fn read(input: &str) -> Option<(Vec<TokenWithSpan>, Option<&'static str>)> {
    let read = |text: &str| {
        let mut tokenizer = Tokenizer::new(&GenericDialect {}, text);
        tokenizer.tokenize_with_location().ok()
    };
    if let Some(tokens) = read(input) {
        return Some((tokens, None));
    }
    CLOSE
        .iter()
        .find_map(|close| Some((read(&format!("{input}{close}"))?, Some(*close))))
}

/// Returns whether there is nothing but space and comments.
pub(super) fn is_empty(input: &str) -> bool {
    let is_space = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    read(input).is_some_and(|(tokens, open)| open.is_none() && tokens.iter().all(is_space))
}

/// Returns whether Enter runs the input: it is empty, or SQL up to a `;` that is not inside quotes or a comment. The parser
/// reports the error of what cannot be read.
pub(super) fn is_complete(input: &str) -> bool {
    match read(input) {
        Some((_, Some(_))) => false,
        Some((tokens, None)) => {
            let mut tokens = tokens.iter().rev().map(|token| &token.token);
            let last = tokens.find(|token| !matches!(token, Token::Whitespace(_)));
            last.is_none_or(|last| *last == Token::SemiColon)
        }
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_ends_with_a_semicolon() {
        for complete in [
            "",
            "  ",
            "SELECT 1;",
            "SELECT 1; ",
            "a; -- done",
            "-- note",
            "a; b;",
        ] {
            assert!(is_complete(complete), "{complete:?}");
        }
        for open in [
            "SELECT 1",
            "SELECT ';",
            "SELECT 'it''s;",
            "SELECT \";",
            "a -- ;",
            "/* ; ",
            "a; b",
            "SELECT $$ ;",
        ] {
            assert!(!is_complete(open), "{open:?}");
        }
    }

    #[test]
    fn comments_are_nothing() {
        assert!(is_empty(" -- note\n /* and */ "));
        assert!(!is_empty("/* open") && !is_empty(";"));
    }
}
