//! SQL in the line editor: completion and colours.

use std::borrow::Cow;

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper as EditorHelper};

use datafusion::sql::sqlparser::tokenizer::{Token, Whitespace};

use super::complete::{Candidates, Names, candidates, is_keyword};
use super::tokens;

const RESET: &str = "\x1b[0m";
const KEYWORD: &str = "\x1b[1;34m";
const TEXT: &str = "\x1b[32m";
const NUMBER: &str = "\x1b[36m";
const COMMENT: &str = "\x1b[90m";
const COMMAND: &str = "\x1b[35m";

/// Helper of the line editor.
pub(super) struct Helper {
    /// Lines of the unfinished statement above the current line.
    pub(super) before: String,
    pub(super) names: Option<Names>,
    has_colours: bool,
    files: FilenameCompleter,
}

impl Helper {
    pub(super) fn new(has_colours: bool) -> Self {
        Self {
            before: String::new(),
            names: None,
            has_colours,
            files: FilenameCompleter::new(),
        }
    }

    /// Returns the statement up to a place in the line.
    fn typed(&self, line: &str) -> String {
        match self.before.is_empty() {
            true => line.to_owned(),
            false => format!("{}\n{line}", self.before),
        }
    }
}

impl Completer for Helper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let pair = |text: String| Pair {
            display: text.clone(),
            replacement: text,
        };
        let none = Names::default();
        let names = self.names.as_ref().unwrap_or(&none);
        Ok(match candidates(&self.typed(&line[..at]), names) {
            // A text in quotes may have begun on a line above.
            Candidates::Words { length, .. } | Candidates::Files { length } if length > at => {
                (at, Vec::new())
            }
            Candidates::Words { length, words } => {
                (at - length, words.into_iter().map(pair).collect())
            }
            Candidates::Files { length } => {
                let from = at - length;
                let (begin, files) = self.files.complete_path(&line[from..at], length)?;
                (from + begin, files)
            }
        })
    }
}

impl Highlighter for Helper {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if !self.has_colours {
            return Cow::Borrowed(line);
        }
        let typed = self.typed(line);
        let first = typed.len() - line.len();
        Cow::Owned(coloured(&typed, first))
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        self.has_colours && kind != CmdKind::MoveCursor
    }
}

/// Returns a text from a byte on, with colours.
fn coloured(text: &str, first: usize) -> String {
    let line = &text[first..];
    if line.trim_start().starts_with('\\') {
        let end = line.trim_start().find(char::is_whitespace);
        let end = end.map_or(line.len(), |end| line.len() - line.trim_start().len() + end);
        return format!("{COMMAND}{}{RESET}{}", &line[..end], &line[end..]);
    }
    let Some((tokens, _)) = tokens::read(text) else {
        return line.to_owned();
    };
    // Places of tokens are lines and columns of characters.
    let lines: Vec<usize> = std::iter::once(0)
        .chain(text.match_indices('\n').map(|(at, _)| at + 1))
        .collect();
    let byte = |line: u64, column: u64| {
        let begin = lines.get(line as usize - 1).copied().unwrap_or(text.len());
        let mut columns = text[begin..].char_indices();
        columns
            .nth(column as usize - 1)
            .map_or(text.len(), |(at, _)| begin + at)
    };
    let mut coloured = String::new();
    let mut written = first;
    for token in tokens {
        let colour = match &token.token {
            Token::Word(word) if word.quote_style.is_none() && is_keyword(&word.value) => KEYWORD,
            Token::Number(..) => NUMBER,
            Token::Whitespace(
                Whitespace::SingleLineComment { .. } | Whitespace::MultiLineComment(_),
            ) => COMMENT,
            Token::SingleQuotedString(_)
            | Token::DollarQuotedString(_)
            | Token::EscapedStringLiteral(_)
            | Token::NationalStringLiteral(_) => TEXT,
            _ => continue,
        };
        let span = token.span;
        if span.start.line == 0 {
            continue;
        }
        let begin = byte(span.start.line, span.start.column).max(written);
        let end = byte(span.end.line, span.end.column).min(text.len());
        if end <= begin {
            continue;
        }
        coloured.push_str(&text[written..begin]);
        coloured.push_str(colour);
        coloured.push_str(&text[begin..end]);
        coloured.push_str(RESET);
        written = end;
    }
    coloured.push_str(&text[written..]);
    coloured
}

impl Hinter for Helper {
    type Hint = String;
}
impl Validator for Helper {}
impl EditorHelper for Helper {}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        let colours = [RESET, KEYWORD, TEXT, NUMBER, COMMENT, COMMAND];
        colours
            .iter()
            .fold(text.to_owned(), |text, colour| text.replace(colour, ""))
    }

    #[test]
    fn colours_change_no_character() {
        for text in [
            "SELECT 'ä', 1.5, \"select\" FROM t -- größe",
            "select 'open",
            "/* open",
            "SELECT $$ x $$ é",
            "\\d table",
            "a ? b ` c",
            "",
            "SELECT 1;\nSELECT 'two\nlines' /* and\nmore */ FROM t;",
        ] {
            assert_eq!(plain(&coloured(text, 0)), text);
            for (first, _) in text.char_indices() {
                assert_eq!(plain(&coloured(text, first)), text[first..], "{text}");
            }
        }
    }

    #[test]
    fn words_texts_and_numbers_have_colours() {
        let text = coloured("SELECT name, 'x', 7 FROM t", 0);
        assert!(
            text.contains(&format!("{KEYWORD}SELECT{RESET} name")),
            "{text:?}"
        );
        assert!(text.contains(&format!("{TEXT}'x'{RESET}")), "{text:?}");
        assert!(text.contains(&format!("{NUMBER}7{RESET}")), "{text:?}");
        let open = coloured("SELECT 'x", 7);
        assert_eq!(open, format!("{TEXT}'x{RESET}"));
    }
}
