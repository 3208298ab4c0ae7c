//! Rewrite of the arguments `MODEL m`, `TABLE t` and `BY c` of `ML.…(…)` into standard SQL.
//!
//! ```text
//! ML.EVALUATE(MODEL m, TABLE t, BY c)  ->  ML.EVALUATE(MODEL => m, (SELECT * FROM t), BY => c)
//! ```
//!
//! Named arguments need no dialect of their own, so DataFusion's parser and the session's dialect stay unchanged. The
//! rewrite is idempotent.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};

/// Checks whether a table name is a file: `TABLE 'rows.csv'`.
fn is_file(keyword: &TokenWithSpan, name: &TokenWithSpan) -> bool {
    is_word(&keyword.token, "table") && matches!(name.token, Token::SingleQuotedString(_))
}

/// Rewrites the arguments of every `ML.…(…)`.
pub(super) fn spell_out(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let mut spelled = Vec::with_capacity(tokens.len());
    let mut calls = Calls::default();
    let mut rest = tokens.into_iter().peekable();
    while let Some(token) = rest.next() {
        if matches!(token.token, Token::Whitespace(_)) {
            spelled.push(token);
            continue;
        }
        let starts_argument = calls.advance(&token.token);
        let is_named = is_word(&token.token, "model") || is_word(&token.token, "by");
        if !(starts_argument && (is_named || is_word(&token.token, "table"))) {
            spelled.push(token);
            continue;
        }
        let mut blank = Vec::new();
        while let Some(space) = rest.next_if(|t| matches!(t.token, Token::Whitespace(_))) {
            blank.push(space);
        }
        let names_one = rest
            .peek()
            .is_some_and(|next| matches!(next.token, Token::Word(_)) || is_file(&token, next));
        let here = |token: Token| TokenWithSpan {
            token,
            span: blank[0].span,
        };
        if !names_one || blank.is_empty() {
            spelled.push(token);
            spelled.extend(blank);
        } else if is_named {
            let arrow = here(Token::RArrow);
            spelled.push(token);
            spelled.push(arrow);
            spelled.extend(blank);
        } else {
            let keyword = |text: &str, keyword| {
                Token::Word(Word {
                    value: text.to_owned(),
                    quote_style: None,
                    keyword,
                })
            };
            let select = [
                Token::LParen,
                keyword("SELECT", Keyword::SELECT),
                Token::Mul,
                keyword("FROM", Keyword::FROM),
            ];
            spelled.extend(select.map(here));
            let close = here(Token::RParen);
            let is_name = |t: &TokenWithSpan| {
                let part = matches!(t.token, Token::Word(_) | Token::Period);
                part || matches!(t.token, Token::SingleQuotedString(_))
            };
            while let Some(part) = rest.next_if(is_name) {
                calls.advance(&part.token);
                spelled.push(part);
            }
            spelled.push(close);
        }
    }
    spelled
}

/// Scanner that tracks the `ML.…(` calls around a token.
#[derive(Default)]
struct Calls {
    /// Number of open parentheses.
    depth: usize,
    /// Depths of parentheses that enclose the arguments of a call.
    open: Vec<usize>,
    /// Number of tokens of `ml . name` just read.
    matched: usize,
    /// True if the previous token was the call's `(` or one of its `,`.
    before_argument: bool,
}

impl Calls {
    /// Takes a token into account. Returns whether it starts an argument of a call.
    fn advance(&mut self, token: &Token) -> bool {
        let starts = std::mem::take(&mut self.before_argument);
        let matched = std::mem::take(&mut self.matched);
        match token {
            Token::LParen => {
                self.depth += 1;
                if matched == 3 {
                    self.open.push(self.depth);
                    self.before_argument = true;
                }
            }
            Token::RParen => {
                self.open.pop_if(|depth| *depth == self.depth);
                self.depth = self.depth.saturating_sub(1);
            }
            Token::Comma => self.before_argument = self.open.last() == Some(&self.depth),
            Token::Period if matched == 1 => self.matched = 2,
            Token::Word(_) if matched == 2 => self.matched = 3,
            token if is_word(token, "ml") => self.matched = 1,
            _ => {}
        }
        starts
    }
}

/// Checks whether a token is this unquoted word, ignoring case.
pub(super) fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(Word { value, quote_style: None, .. }) if value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::tokenizer::Tokenizer;

    fn spelled(sql: &str) -> String {
        let tokens = Tokenizer::new(&GenericDialect {}, sql)
            .tokenize_with_location()
            .unwrap();
        let texts: Vec<_> = spell_out(tokens)
            .into_iter()
            .filter(|token| !matches!(token.token, Token::Whitespace(_)))
            .map(|token| token.token.to_string())
            .collect();
        texts.join(" ")
    }

    #[test]
    fn spells_out_arguments_of_ml_only() {
        for (typed, expected) in [
            ("ML.PREDICT(MODEL m, x)", "ML . PREDICT ( MODEL => m , x )"),
            ("ml.predict(model \"M\")", "ml . predict ( model => \"M\" )"),
            ("ml.f(MODEL => m)", "ml . f ( MODEL => m )"),
            (
                "ml.f(1, TABLE a.b)",
                "ml . f ( 1 , ( SELECT * FROM a . b ) )",
            ),
            (
                "ml.f(TABLE 'a.csv')",
                "ml . f ( ( SELECT * FROM 'a.csv' ) )",
            ),
            ("ml.f(g(MODEL m))", "ml . f ( g ( MODEL m ) )"),
            (
                "ml.f((SELECT model, y FROM t))",
                "ml . f ( ( SELECT model , y FROM t ) )",
            ),
            (
                "ml.f(MODEL m, (SELECT a FROM ml.g(MODEL n, TABLE t)))",
                "ml . f ( MODEL => m , ( SELECT a FROM ml . g ( MODEL => n , ( SELECT * FROM t ) ) ) )",
            ),
            ("SELECT model m FROM t", "SELECT model m FROM t"),
            ("f(MODEL m)", "f ( MODEL m )"),
            ("\"ml\".f(MODEL m)", "\"ml\" . f ( MODEL m )"),
            ("ml.f(MODEL)", "ml . f ( MODEL )"),
        ] {
            assert_eq!(spelled(typed), expected, "{typed}");
        }
    }
}
