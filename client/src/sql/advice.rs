//! Advice in syntax errors: misspelt keywords, and statements of other programs.

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Word};
use strsim::jaro_winkler;

use super::spell::is_word;
use crate::Error;

/// Words that statements begin with.
const STATEMENTS: &str = "
    SELECT WITH VALUES CREATE DROP INSERT UPDATE DELETE MERGE COPY EXPLAIN ANALYZE DESCRIBE SHOW SET RESET PREPARE
    EXECUTE DEALLOCATE TRUNCATE";

/// Words that clauses of a query begin with.
const CLAUSES: &str =
    "FROM WHERE GROUP HAVING ORDER LIMIT OFFSET JOIN UNION QUALIFY WINDOW EXCEPT INTERSECT";

/// Similarity above which a word is taken for a misspelt keyword.
const NEAR: f64 = 0.84;

/// Adds advice to the syntax error of a statement.
pub(super) fn advised(error: Error, tokens: &[TokenWithSpan]) -> Error {
    let Error::Syntax {
        line,
        column,
        message,
    } = error
    else {
        return error;
    };
    let is_blank = |token: &&TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let words: Vec<_> = tokens.iter().filter(|token| !is_blank(token)).collect();
    let place = |token: &TokenWithSpan| (token.span.start.line, token.span.start.column);
    let found = words
        .iter()
        .position(|token| place(token) == (line, column));
    let message = of_prompt(&words)
        .or_else(|| copied_from(&words, &message))
        .or_else(|| misspelt(&words, found, &message))
        .unwrap_or(message);
    Error::Syntax {
        line,
        column,
        message,
    }
}

/// Explains commands of prompts, such as `\d t` and `.tables`.
fn of_prompt(words: &[&TokenWithSpan]) -> Option<String> {
    let is_command = matches!(words.first()?.token, Token::Backslash | Token::Period);
    if !is_command {
        return None;
    }
    let name = words.get(2).map(|name| name.token.to_string());
    let is_describe = words.get(1).is_some_and(|word| is_word(&word.token, "d"));
    let instead = match name.filter(|_| is_describe) {
        Some(name) => format!("DESCRIBE {name}"),
        None => "SHOW TABLES lists tables, DESCRIBE t the columns of one".to_owned(),
    };
    let typed: String = words
        .iter()
        .take(2)
        .map(|word| word.token.to_string())
        .collect();
    Some(match words[0].token {
        Token::Period => format!("there are no commands with a dot, such as {typed}: {instead}"),
        _ => format!("commands such as {typed} work at the prompt only: {instead}"),
    })
}

/// Explains PostgreSQL's `COPY t FROM 'x.csv'`.
fn copied_from(words: &[&TokenWithSpan], message: &str) -> Option<String> {
    let copies = is_word(&words.first()?.token, "copy") && is_word(&words.get(2)?.token, "from");
    copies.then(|| {
        let table = &words[1].token;
        let file = words.get(3).map(|file| file.token.to_string());
        let file = file.unwrap_or_else(|| "'x.csv'".to_owned());
        format!("{message}; to add the rows of a file: INSERT INTO {table} SELECT * FROM {file}")
    })
}

/// Suggests a keyword for the word of an error, or for the one before, which was read as an alias.
fn misspelt(words: &[&TokenWithSpan], found: Option<usize>, message: &str) -> Option<String> {
    let found = found?;
    if found == 0 {
        let keyword = near(&words[0].token, STATEMENTS)?;
        return Some(format!("{message}; did you mean {keyword}?"));
    }
    if let Some(keyword) = near(&words[found].token, CLAUSES) {
        return Some(format!("{message}; did you mean {keyword}?"));
    }
    let alias = &words[found - 1].token;
    let keyword = near(alias, CLAUSES)?;
    Some(format!(
        "{message}; {alias} was read as an alias: did you mean {keyword}?"
    ))
}

/// Returns the keyword that an unquoted word resembles and is not.
fn near(token: &Token, keywords: &'static str) -> Option<&'static str> {
    let Token::Word(Word {
        value,
        quote_style: None,
        ..
    }) = token
    else {
        return None;
    };
    let typed = value.to_uppercase();
    let keywords = move || keywords.split_whitespace();
    if keywords().any(|keyword| keyword == typed) {
        return None;
    }
    let similar = |keyword: &str| {
        let mut letters: Vec<_> = typed.chars().collect();
        let mut others: Vec<_> = keyword.chars().collect();
        letters.sort_unstable();
        others.sort_unstable();
        // `FORM` has the letters of `FROM`.
        match letters == others {
            true => 1.0,
            false => jaro_winkler(&typed, keyword),
        }
    };
    let scored = keywords().map(|keyword| (similar(keyword), keyword));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score > NEAR)
        .map(|(_, keyword)| keyword)
}
