//! Input at the prompt: a command of the prompt, SQL, or SQL that is not finished yet.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use volley_proto::did_you_mean;

/// Commands of the prompt, as `\?` lists them.
pub(super) const COMMANDS: [(&str, &str); 4] = [
    (r"\?", "this list"),
    (r"\d [TABLE]", "list tables, or describe one"),
    (r"\m [MODEL]", "list models, or describe one"),
    (r"\q", "quit, as Ctrl-D does"),
];

/// Input of one or several lines at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    Nothing,
    Quit,
    Help,
    /// SQL to run unchanged.
    Sql(String),
    /// Message about an unknown command.
    Unknown(String),
}

impl Typed {
    pub(super) fn read(input: &str) -> Self {
        let input = input.trim();
        if input.is_empty() {
            return Self::Nothing;
        }
        if !input.starts_with('\\') {
            return Self::Sql(input.to_owned());
        }
        let (command, argument) = input.split_once(char::is_whitespace).unwrap_or((input, ""));
        let argument = argument.trim().trim_end_matches(';');
        match command.trim_end_matches(';') {
            r"\q" => Self::Quit,
            r"\?" => Self::Help,
            r"\d" if argument.is_empty() => Self::Sql("SHOW TABLES".into()),
            r"\d" => Self::Sql(format!("DESCRIBE {argument}")),
            r"\m" if argument.is_empty() => Self::Sql("SHOW MODELS".into()),
            r"\m" => Self::Sql(format!("DESCRIBE MODEL {argument}")),
            unknown => {
                let known = COMMANDS.iter().map(|(usage, _)| &usage[..2]);
                let hint = did_you_mean(unknown, known);
                Self::Unknown(format!(
                    r"unknown command {unknown}{hint}; \? lists the commands"
                ))
            }
        }
    }
}

/// Returns whether Enter runs the input: it is empty, a command of the prompt, or SQL up to a `;` that is not inside
/// quotes or a comment.
pub(super) fn is_complete(input: &str) -> bool {
    if input.trim().is_empty() || input.trim_start().starts_with('\\') {
        return true;
    }
    match tokens(input) {
        Some(tokens) => match tokens
            .iter()
            .rfind(|token| !matches!(token, Token::Whitespace(_)))
        {
            Some(last) => *last == Token::SemiColon,
            None => true,
        },
        // The input is not finished if closing an open quote or comment makes it readable; else the parser reports the
        // error.
        None => !["'", "\"", "`", "*/", "$$"]
            .iter()
            .any(|close| tokens(&format!("{input}{close}")).is_some()),
    }
}

fn tokens(input: &str) -> Option<Vec<Token>> {
    Tokenizer::new(&GenericDialect {}, input).tokenize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_ends_with_a_semicolon() {
        for complete in [
            "",
            "  ",
            "\\q",
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
    fn backslash_commands() {
        let sql = |text: &str| Typed::Sql(text.into());
        assert_eq!(Typed::read(" "), Typed::Nothing);
        assert_eq!(Typed::read("\\q"), Typed::Quit);
        assert_eq!(Typed::read("\\?;"), Typed::Help);
        assert_eq!(Typed::read("\\d"), sql("SHOW TABLES"));
        assert_eq!(Typed::read("\\d train;"), sql("DESCRIBE train"));
        assert_eq!(Typed::read("\\m"), sql("SHOW MODELS"));
        assert_eq!(Typed::read("SELECT 1;"), sql("SELECT 1;"));
        assert!(matches!(Typed::read("\\x"), Typed::Unknown(_)));
    }
}
