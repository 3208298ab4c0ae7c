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
use clap::{Arg, Command, CommandFactory};
use toml::{Table, Value};
use volley_proto::did_you_mean;

use super::Args;

/// Returns the command with the user's defaults.
///
/// # Errors
/// When the file cannot be read, or names no option.
pub(crate) fn command() -> Result<Command, clap::Error> {
    let command = Args::command();
    let Some((path, is_named)) = config_file() else {
        return Ok(command);
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => with_defaults(command, &text, &path),
        Err(error) if error.kind() == IoErrorKind::NotFound && !is_named => Ok(command),
        Err(error) => Err(mistake(&path, error)),
    }
}

/// Returns the path of the user's file, and whether the environment names it.
fn config_file() -> Option<(PathBuf, bool)> {
    let named = std::env::var_os("VOLLEY_CONFIG").filter(|path| !path.is_empty());
    if let Some(path) = named {
        return Some((path.into(), true));
    }
    let home = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = home.filter(|home| home.is_absolute());
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".config")))?;
    Some((home.join("volley/config.toml"), false))
}

/// Returns a mistake in the arguments with what was probably meant, such as SQL without `-c`. A wrong value that was not
/// typed is preceded by its source, an environment variable or the user's file.
pub(crate) fn explained(mistake: clap::Error) -> clap::Error {
    let typed = std::env::args_os().skip(1);
    let typed: Vec<_> = typed
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let file = config_file().map(|(path, _)| path);
    match meant(&mistake, &typed).or_else(|| sourced(&mistake, &typed, is_set, file.as_deref())) {
        // Without the usage: the message says what to type.
        Some(message) => clap::Error::raw(mistake.kind(), format!("{message}\n")),
        None => mistake,
    }
}

/// Returns a context of a mistake that is one text.
fn context(mistake: &clap::Error, kind: ContextKind) -> Option<&str> {
    match mistake.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// Returns what was probably meant by a word or option that does not exist.
fn meant(mistake: &clap::Error, typed: &[String]) -> Option<String> {
    match mistake.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = context(mistake, ContextKind::InvalidSubcommand)?.trim();
            let is_script = word.to_lowercase().ends_with(".sql");
            if word.contains(char::is_whitespace) {
                Some(format!("expected -c before SQL: volley -c '{word}'"))
            } else if is_script {
                Some(format!("expected -f before a file: volley -f {word}"))
            } else if Path::new(word).is_file() {
                Some(format!(
                    "expected SQL to read a file: volley -c \"SELECT * FROM '{word}'\""
                ))
            } else if mistake.get(ContextKind::SuggestedSubcommand).is_none() {
                let expected = subcommands(typed).join(", ");
                Some(format!(
                    "unknown command {word:?}: expected one of {expected}"
                ))
            } else {
                None
            }
        }
        ErrorKind::UnknownArgument if context(mistake, ContextKind::InvalidArg)? == "-v" => {
            let mut words = typed.iter().skip_while(|word| !word.starts_with("-v"));
            let attached = words.next().and_then(|word| word.strip_prefix("-v"));
            let pair = attached.filter(|pair| !pair.is_empty());
            let pair = pair.or_else(|| words.next().map(String::as_str));
            Some(match pair.filter(|pair| pair.contains('=')) {
                Some(pair) => format!("there is no option -v; did you mean -D {pair}?"),
                None => "there is no option -v; did you mean -V, which prints the version?".into(),
            })
        }
        _ => None,
    }
}

/// Returns the names of the commands below the one that the words name.
fn subcommands(typed: &[String]) -> Vec<String> {
    let mut command = &Args::command();
    for word in typed {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let below = command.get_subcommands();
    below.map(|below| below.get_name().to_owned()).collect()
}

/// Returns a mistake about a value that was not typed, after the value's source.
fn sourced(
    mistake: &clap::Error,
    typed: &[String],
    is_set: impl Fn(&str) -> bool,
    file: Option<&Path>,
) -> Option<String> {
    let (ErrorKind::InvalidValue | ErrorKind::ValueValidation) = mistake.kind() else {
        return None;
    };
    // As in `--format <FORMAT>`.
    let shown = context(mistake, ContextKind::InvalidArg)?;
    let long = shown.strip_prefix("--")?.split(' ').next()?;
    let command = Args::command();
    let option = find_option(&command, long)?;
    let is_typed = typed.iter().any(|word| match word.strip_prefix("--") {
        Some(word) => word.split('=').next() == Some(long),
        None => {
            let short = option.get_short();
            word.starts_with('-') && short.is_some_and(|short| word.contains(short))
        }
    });
    if is_typed {
        return None;
    }
    let variable = option.get_env().and_then(|name| name.to_str());
    let source = match variable.filter(|name| is_set(name)) {
        Some(variable) => variable.to_owned(),
        None => format!("{}: {long}", file?.display()),
    };
    let text = mistake.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let text = text.split("\n\nFor more information").next()?;
    let text = text.replacen(&format!(" for '{shown}'"), "", 1);
    Some(format!("{source}: {text}"))
}

/// Finds an option by its long name, in a command or its subcommands.
fn find_option<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    let own = command
        .get_arguments()
        .find(|option| option.get_long() == Some(long));
    own.or_else(|| {
        let mut subcommands = command.get_subcommands();
        subcommands.find_map(|subcommand| find_option(subcommand, long))
    })
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

    #[test]
    fn a_wrong_value_names_the_source_that_it_is_from() {
        let said = |text: &str, line: &str, variables: &[&str]| {
            let mistake = args(text, line).unwrap_err();
            let typed: Vec<_> = line.split(' ').skip(1).map(str::to_owned).collect();
            let is_set = |name: &str| variables.contains(&name);
            sourced(&mistake, &typed, is_set, Some(Path::new("/c.toml")))
        };
        let bad = "format = \"bxo\"";
        let of_file = said(bad, "volley", &[]).unwrap();
        assert!(
            of_file.starts_with("/c.toml: format: invalid value 'bxo'\n"),
            "{of_file}"
        );
        let of_variable = said(bad, "volley", &["VOLLEY_FORMAT"]).unwrap();
        assert!(
            of_variable.starts_with("VOLLEY_FORMAT: invalid value 'bxo'\n"),
            "{of_variable}"
        );
        let time = said("connect-timeout = \"x\"", "volley jobs", &[]).unwrap();
        assert!(
            time.starts_with("/c.toml: connect-timeout: invalid value 'x': expected a time"),
            "{time}"
        );
        assert_eq!(said("", "volley --format bxo", &[]), None);
        assert_eq!(said("", "volley --format=bxo", &["VOLLEY_FORMAT"]), None);
    }

    #[test]
    fn what_was_probably_meant_is_said() {
        let said = |words: &[&str]| {
            let typed = ["volley"].iter().chain(words).copied();
            let mistake = Args::command().try_get_matches_from(typed).unwrap_err();
            let typed: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            meant(&mistake, &typed)
        };
        for (words, due) in [
            (&["SELECT 1"][..], "volley -c 'SELECT 1'"),
            (&["s.sql"], "volley -f s.sql"),
            (&["Cargo.toml"], "SELECT * FROM 'Cargo.toml'"),
            (&["-v", "n=1"], "did you mean -D n=1?"),
            (&["-vn=1"], "did you mean -D n=1?"),
            (&["-v"], "-V"),
            (
                &["zzz"],
                "unknown command \"zzz\": expected one of generate, ",
            ),
            (
                &["store", "--store", "s", "fsck"],
                "expected one of check, gc, backup, restore",
            ),
        ] {
            let said = said(words).unwrap_or_default();
            assert!(said.contains(due), "{words:?}: {said}");
        }
        assert_eq!(said(&["jbos"]), None);
        assert_eq!(said(&["--nope"]), None);
    }
}
