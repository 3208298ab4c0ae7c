//! The command with defaults of options from a file of the user, and mistakes in its arguments explained.
//!
//! Each key is an option's long name; it is the default of that option in all subcommands. An environment variable wins
//! over it, and what is typed wins over both.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};

use clap::builder::{ArgPredicate, OsStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use toml::{Table, Value};
use volley_proto::did_you_mean;

use super::Args;

/// Returns the command with the user's defaults.
///
/// # Errors
/// When the file cannot be read, or names no option.
pub(crate) fn command() -> Result<Command, clap::Error> {
    let command = Args::command();
    let named = std::env::var_os("VOLLEY_CONFIG").filter(|path| !path.is_empty());
    let path = match &named {
        Some(path) => PathBuf::from(path),
        None => {
            let home = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
            let home = home.filter(|home| home.is_absolute());
            let home = home.or_else(|| Some(std::env::home_dir()?.join(".config")));
            match home {
                Some(home) => home.join("volley/config.toml"),
                None => return Ok(command),
            }
        }
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => with_defaults(command, &text, &path),
        Err(error) if error.kind() == IoErrorKind::NotFound && named.is_none() => Ok(command),
        Err(error) => Err(mistake(&path, error)),
    }
}

/// Returns a mistake in the arguments, or what was probably meant: SQL without `-c`.
pub(crate) fn explained(mistake: clap::Error) -> clap::Error {
    let typed = mistake.get(ContextKind::InvalidSubcommand);
    match (mistake.kind(), typed) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(sql)))
            if sql.trim().contains(char::is_whitespace) =>
        {
            let message = format!("expected -c before SQL: volley -c '{}'", sql.trim());
            Args::command().error(ErrorKind::InvalidSubcommand, message)
        }
        _ => mistake,
    }
}

fn mistake(path: &Path, message: impl Display) -> clap::Error {
    let message = format!("{}: {message}", path.display());
    Args::command().error(ErrorKind::ValueValidation, message)
}

/// Makes the values in a text the defaults of their options.
fn with_defaults(command: Command, text: &str, path: &Path) -> Result<Command, clap::Error> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| mistake(path, error.to_string().trim_end()))?;
    let mut known = BTreeSet::new();
    options(&command, &mut known);
    let mut command = command;
    for (key, value) in &table {
        let option = key.replace('_', "-");
        if !known.contains(&option) {
            let hint = did_you_mean(&option, known.iter().map(String::as_str));
            return Err(mistake(path, format!("there is no option {key}{hint}")));
        }
        let values = match value {
            Value::Array(values) => values.iter().map(text_of).collect(),
            value => text_of(value).map(|text| vec![text]),
        };
        let Some(values) = values else {
            let expected = "a text, a number, true or false, or a list of them";
            return Err(mistake(path, format!("{key}: expected {expected}")));
        };
        command = with_default(command, &option, &values);
    }
    Ok(command)
}

/// Returns a value as one types it.
fn text_of(value: &Value) -> Option<OsStr> {
    Some(match value {
        Value::String(text) => text.into(),
        Value::Integer(number) => number.to_string().into(),
        Value::Float(number) => number.to_string().into(),
        Value::Boolean(is) => is.to_string().into(),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => return None,
    })
}

/// Collects the long names of a command's options, with those of its subcommands.
fn options(command: &Command, known: &mut BTreeSet<String>) {
    known.extend(
        command
            .get_arguments()
            .filter_map(|option| Some(option.get_long()?.to_owned())),
    );
    for subcommand in command.get_subcommands() {
        options(subcommand, known);
    }
}

fn with_default(command: Command, option: &str, values: &[OsStr]) -> Command {
    // Options of an embedded cluster on the command line override a scheduler in the file, and vice versa.
    let others: &[&str] = match option {
        "scheduler" => &["executors", "vcores", "device"],
        "executors" | "vcores" | "device" => &["scheduler"],
        _ => &[],
    };
    let has = |id: &&&str| command.get_arguments().any(|known| known.get_id() == **id);
    let others: Vec<_> = others.iter().filter(has).copied().collect();
    let command = command.mut_args(|argument| match argument.get_long() == Some(option) {
        true => {
            let argument = argument.required(false).default_values(values.to_vec());
            others.iter().fold(argument, |argument, other| {
                argument.default_value_if(other, ArgPredicate::IsPresent, None::<&'static str>)
            })
        }
        false => argument,
    });
    command.mut_subcommands(|subcommand| with_default(subcommand, option, values))
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::super::format::Format;
    use super::*;

    fn args(text: &str, line: &str) -> Result<Args, clap::Error> {
        let command = with_defaults(Args::command(), text, Path::new("config.toml"))?;
        command.clone().debug_assert();
        let matches = command.try_get_matches_from(line.split_whitespace())?;
        Args::from_arg_matches(&matches)
    }

    #[test]
    fn a_default_gives_way_to_what_is_typed() {
        let text = "format = \"box\"\nexecutors = 3\nquiet = true\nset = [\"a=1\", \"b=2\"]\nconnect_timeout = \"9s\"";
        let query = args(text, "volley").unwrap().query;
        assert_eq!((query.format, query.quiet), (Format::Box, true));
        assert_eq!(query.engine.executors, Some(3));
        assert_eq!(query.engine.connect_timeout.as_secs(), 9);
        assert_eq!(query.session.settings.len(), 2);
        let query = args(text, "volley --format csv --executors 1")
            .unwrap()
            .query;
        assert_eq!(
            (query.format, query.engine.executors),
            (Format::Csv, Some(1))
        );
        let both = "executors = 3\nscheduler = \"h:1\"";
        let query = args(both, "volley --executors 1").unwrap().query;
        assert_eq!(
            (query.engine.executors, query.engine.scheduler),
            (Some(1), None)
        );
        let query = args(both, "volley --scheduler g:2").unwrap().query;
        assert_eq!(query.engine.scheduler.as_deref(), Some("g:2"));
        // Of subcommands too.
        assert!(args("timeout = \"1s\"", "volley cluster up").is_ok());
    }

    #[test]
    fn mistakes_name_the_file_and_the_key() {
        for (text, due) in [
            ("formt = \"csv\"", "did you mean \"format\""),
            ("format = ", "config.toml"),
            ("format = { a = 1 }", "format: expected a text"),
            ("format = \"excel\"", "excel"),
        ] {
            let said = args(text, "volley").unwrap_err().to_string();
            assert!(said.contains(due), "{text}: {said}");
        }
    }
}
