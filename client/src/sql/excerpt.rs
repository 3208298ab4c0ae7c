//! Text of a statement and its place in a script, to point at the name that an error is about.
//!
//! DataFusion says where the names of tables and functions stand. Of other names, it says which: the tokens of the statement
//! are searched for the name, and it is pointed at if it stands there once.

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::Error;

/// Text of a statement, and where it stands in its script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    pub(crate) text: String,
    pub(crate) line: u64,
    pub(crate) column: u64,
}

impl Excerpt {
    /// Returns the text, without the statement's `;`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the line of the script where it starts, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the column of that line where it starts, from 1, in characters.
    pub fn column(&self) -> u64 {
        self.column
    }

    /// Returns the line and the column in the text, from 1, of the name that an error about the statement names; `None` if
    /// it names none, or it does not stand in the text, or more than once.
    pub fn position(&self, error: &Error) -> Option<(u64, u64)> {
        let name = name_in(error)?;
        let told = match error {
            Error::Engine { original, .. } => self.told(original),
            _ => None,
        };
        let places = self.places_of(&name);
        match (told, &places[..]) {
            // The text of a model's TRANSFORM is parsed apart, and has places of its own.
            (Some(told), _) if places.contains(&told) => Some(told),
            (_, [place]) => Some(*place),
            _ => None,
        }
    }

    /// Returns the place that DataFusion tells with its error, in the text.
    fn told(&self, error: &DataFusionError) -> Option<(u64, u64)> {
        let start = error.diagnostic()?.span?.start;
        let line = start.line.checked_sub(self.line)? + 1;
        let before = if line == 1 { self.column - 1 } else { 0 };
        Some((line, start.column.checked_sub(before)?))
    }

    /// Returns the places of the tokens that are a name.
    fn places_of(&self, name: &str) -> Vec<(u64, u64)> {
        let tokens = Tokenizer::new(&GenericDialect {}, &self.text).tokenize_with_location();
        let is_name = |token: &Token| match token {
            Token::Word(word) if word.quote_style.is_none() => {
                word.value.eq_ignore_ascii_case(name)
            }
            Token::Word(word) => word.value == name,
            Token::SingleQuotedString(text) => text == name,
            _ => false,
        };
        let tokens = tokens.unwrap_or_default().into_iter();
        let named = tokens.filter(|token| is_name(&token.token));
        named
            .map(|token| (token.span.start.line, token.span.start.column))
            .collect()
    }
}

/// Returns the name that an error is about: of a column, a table or a function, without its qualifiers.
fn name_in(error: &Error) -> Option<String> {
    let own = match error {
        Error::Engine { cause, original } => return name_in_plan(original.find_root(), cause),
        Error::UnknownTable { table, .. } | Error::TableExists { table } => table,
        Error::Proto(volley_proto::Error::UnknownColumn { column, .. }) => column,
        Error::UnknownOption { option, .. }
        | Error::Proto(volley_proto::Error::Option { option, .. }) => option,
        Error::MlFunction { function, .. } => function,
        Error::NoFiles { place, .. } => return Some(place.clone()),
        _ => return None,
    };
    Some(last_part(own))
}

fn name_in_plan(error: &DataFusionError, cause: &str) -> Option<String> {
    if let DataFusionError::SchemaError(schema_error, _) = error
        && let SchemaError::FieldNotFound { field, .. } | SchemaError::AmbiguousReference { field } =
            schema_error.as_ref()
    {
        return Some(field.name.clone());
    }
    let named = ["Invalid function '", "table function '", "table '"];
    let rest = named.iter().find_map(|before| cause.strip_prefix(before))?;
    Some(last_part(rest.split_once('\'')?.0))
}

/// Returns a name without its qualifiers.
fn last_part(name: &str) -> String {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use crate::testing::{on_a_deep_stack, session};

    #[test]
    fn errors_point_at_their_names() {
        on_a_deep_stack(async {
            let (session, _dir) = session().await;
            let script = "SELECT 1;\n  SELECT \"Store\",\n    ";
            for (rest, place) in [
                ("nope FROM sales", Some((2, 5))),
                ("s.nope FROM sales s", Some((2, 7))),
                ("1 FROM slaes", Some((2, 12))),
                ("nosuch(1) FROM sales", Some((2, 5))),
                ("1 FROM nosuch(1)", Some((2, 12))),
                // A column that is named twice could be either.
                ("nope + nope FROM sales", None),
                ("1 + FROM (SELECT 1)", None),
            ] {
                let Ok(statements) = session.parse(&format!("{script}{rest}")) else {
                    assert_eq!(place, None);
                    continue;
                };
                let statement = statements.into_iter().nth(1).unwrap();
                let excerpt = statement.excerpt();
                assert_eq!((excerpt.line(), excerpt.column()), (2, 3));
                let ran = match session.run(statement).await {
                    Ok(output) => output.collect().await.map(drop),
                    Err(error) => Err(error),
                };
                let error = ran.unwrap_err();
                assert_eq!(excerpt.position(&error), place, "{rest}: {error}");
            }
        });
    }
}
