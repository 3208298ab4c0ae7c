//! Lines at the prompt: commands of the prompt, and SQL.

use std::path::PathBuf;

use clap::ValueEnum;
use volley_proto::did_you_mean;

use super::super::format::Format;
use super::{formats, tokens};

/// Commands of the prompt, as `\?` lists them.
pub(super) const COMMANDS: [(&str, &str); 19] = [
    (r"\?", "this list, as help does"),
    (r"\h [TOPIC]", "the syntax of a statement, or an option"),
    (r"\q", "quit, as quit, exit and Ctrl-D do"),
    (r"\d [TABLE]", "list the user's tables, or describe one"),
    (r"\dS", "list the system tables"),
    (r"\dm [MODEL]", "list models, or describe one"),
    (r"\df [NAME]", "list functions whose names contain a text"),
    (r"\l", "list catalogs and schemas"),
    (r"\jobs", "list the jobs of the cluster"),
    (r"\x [on|off]", "print a line for each value"),
    (r"\format [FORMAT]", "show or set the format of rows"),
    (r"\timing [on|off]", "print how long statements take"),
    (
        r"\set [KEY VALUE]",
        "show the settings, or change one, as SET does",
    ),
    (r"\i FILE", "run the statements of a file"),
    (
        r"\o [FILE]",
        "write rows to a file, or to the terminal again",
    ),
    (r"\e [FILE]", "edit the statement, or a file, in $EDITOR"),
    (r"\p", "print the unfinished statement, or the last one"),
    (r"\g", "run it"),
    (r"\r", "clear it, as Ctrl-C does"),
];

/// Commands of psql, and of the shells of SQLite and DuckDB, with the prompt's own ones.
const ELSEWHERE: [(&str, &str); 11] = [
    (r"\dt \d+ \dt+ \dv .tables .schema", r"\d"),
    (r"\dn \l+ .databases", r"\l"),
    (r"\df+", r"\df"),
    (r"\pset \a .mode", r"\format"),
    (r"\ir .read", r"\i"),
    (r"\help .help", r"\?"),
    (".timer", r"\timing"),
    (".output .once", r"\o"),
    (".show", r"\set"),
    (".edit", r"\e"),
    (".quit .exit", r"\q"),
];

/// Returns the prompt's command, with its backslash, for one of another shell.
fn from_elsewhere(name: &str) -> Option<&'static str> {
    let mut known = ELSEWHERE.iter();
    let known = known.find(|(others, _)| others.split(' ').any(|other| other == name));
    known.map(|(_, own)| *own)
}

/// Line at the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Nothing,
    Command(Command),
    /// Part of a statement.
    Sql,
    /// Message about a line that is probably not meant as SQL.
    Hint(String),
    /// Message about a command that does not exist or is used wrongly.
    Unknown(String),
}

/// Command of the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Quit,
    Help,
    /// Syntax of the statements that begin with a text.
    Syntax(String),
    /// SQL to run.
    Sql(String),
    Lines(Option<bool>),
    Format(Option<Format>),
    Timing(Option<bool>),
    Include(PathBuf),
    Output(Option<PathBuf>),
    Edit(Option<PathBuf>),
    Print,
    Go,
    Clear,
}

/// Query of the tables in all schemas but these, or of these.
fn tables(system: bool) -> String {
    let not = if system { "" } else { "NOT " };
    format!(
        "SELECT table_catalog AS catalog, table_schema AS schema, table_name AS table, table_type AS type \
         FROM information_schema.tables WHERE table_schema {not}IN ('information_schema', 'volley') ORDER BY 1, 2, 3"
    )
}

impl Line {
    /// Reads a line below those of a statement.
    pub(super) fn read(line: &str, statement: &str) -> Self {
        let is_open = tokens::read(statement).is_some_and(|(_, open)| open.is_some());
        let typed = line.trim();
        if is_open {
            return Self::Sql;
        }
        if let Some(command) = typed.strip_prefix('\\') {
            return match Command::read(command) {
                Ok(command) => Self::Command(command),
                Err(message) => Self::Unknown(message),
            };
        }
        if statement.is_empty() && is_dot_command(typed) {
            let name = typed.split([' ', '\t', ';']).next().unwrap_or_default();
            let hint = from_elsewhere(name).map(|own| format!("; did you mean {own}?"));
            let hint = hint.unwrap_or_default();
            return Self::Unknown(format!(
                r"unknown command {name}{hint}; \? lists the commands"
            ));
        }
        let word = typed.trim_end_matches(';').trim_end().to_ascii_lowercase();
        match (word.as_str(), statement.is_empty()) {
            ("", true) if typed.is_empty() => Self::Nothing,
            ("", false) if typed.is_empty() => Self::Hint(
                r"a statement ends with ; (\g runs it as it is, \r or Ctrl-C clears it)".into(),
            ),
            ("help", true) => Self::Command(Command::Help),
            ("quit" | "exit", true) => Self::Command(Command::Quit),
            ("help", false) => Self::Hint(
                r"\? is help; the statement above continues until its ; (\r or Ctrl-C clears it)"
                    .into(),
            ),
            ("quit" | "exit", false) => Self::Hint(
                r"\q quits; the statement above continues until its ; (\r or Ctrl-C clears it)"
                    .into(),
            ),
            _ => Self::Sql,
        }
    }
}

/// Returns whether a line begins as a command of SQLite's or DuckDB's shell does.
fn is_dot_command(line: &str) -> bool {
    let name = line.strip_prefix('.');
    name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Returns why a line of a script, one that begins a statement, is not SQL, if it is a command of a prompt: with what to
/// write instead.
pub(in super::super) fn outside_prompt(line: &str) -> Option<String> {
    let line = line.trim().trim_end_matches(';').trim_end();
    let said = match line.strip_prefix('\\') {
        Some(_) => r"commands with \ work at the prompt only",
        None if is_dot_command(line) => "there are no commands with a dot",
        None => return None,
    };
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = from_elsewhere(name).unwrap_or(name);
    let instead = match (name, argument.trim()) {
        (r"\d" | r"\dS", "") => Some("SHOW TABLES".to_owned()),
        (r"\jobs", _) => Some("SELECT * FROM volley.jobs".to_owned()),
        (r"\df" | r"\l", _) => None,
        (name, argument) => match Command::read(&format!("{} {argument}", &name[1..])) {
            Ok(Command::Sql(sql)) => Some(sql),
            Ok(Command::Lines(_)) => Some("--format line".to_owned()),
            Ok(Command::Format(_)) => Some("--format FORMAT".to_owned()),
            Ok(Command::Timing(_)) => Some("--timing".to_owned()),
            Ok(Command::Include(path)) => Some(format!("-f {}", path.display())),
            Ok(Command::Syntax(topic)) => Some(format!("volley help {topic}")),
            _ => None,
        },
    };
    Some(match instead {
        Some(instead) => format!("{said}: {}", instead.trim_end()),
        None => said.to_owned(),
    })
}

impl Command {
    /// Reads a command, without its backslash.
    fn read(typed: &str) -> Result<Self, String> {
        let typed = typed.trim_end_matches(';').trim_end();
        let (name, argument) = typed.split_once(char::is_whitespace).unwrap_or((typed, ""));
        let argument = argument.trim();
        let given = (!argument.is_empty()).then_some(argument);
        let path = |text: &str| PathBuf::from(text.trim_matches('\''));
        Ok(match name {
            "q" => Self::Quit,
            "?" => Self::Help,
            "h" => Self::Syntax(argument.to_owned()),
            "d" if given.is_none() => Self::Sql(tables(false)),
            "d" => Self::Sql(format!("DESCRIBE {argument}")),
            "dS" => Self::Sql(tables(true)),
            "dm" | "m" if given.is_none() => Self::Sql("SHOW MODELS".into()),
            "dm" | "m" => Self::Sql(format!("DESCRIBE MODEL {argument}")),
            "df" => {
                let pattern = argument.replace('\'', "''").to_lowercase();
                Self::Sql(format!(
                    "SELECT DISTINCT routine_name AS function, function_type AS type, description FROM \
                     information_schema.routines WHERE contains(routine_name, '{pattern}') ORDER BY 1"
                ))
            }
            "l" => Self::Sql(
                "SELECT catalog_name AS catalog, schema_name AS schema FROM information_schema.schemata ORDER BY 1, 2".into(),
            ),
            "jobs" => Self::Sql("SELECT * FROM volley.jobs ORDER BY submitted DESC".into()),
            "x" => Self::Lines(switch(name, given)?),
            "timing" => Self::Timing(switch(name, given)?),
            "format" => Self::Format(given.map(format).transpose()?),
            "set" => match argument.split_once(|c: char| c.is_whitespace() || c == '=') {
                None if argument.is_empty() => Self::Sql("SHOW ALL".into()),
                None => Self::Sql(format!("SHOW {argument}")),
                Some((key, value)) => {
                    let value = value.trim().trim_start_matches('=').trim();
                    let value = value.trim_matches('\'').replace('\'', "''");
                    Self::Sql(format!("SET {key} = '{value}'"))
                }
            },
            "i" => Self::Include(path(given.ok_or(r"\i: expected a file, as in \i tables.sql")?)),
            "o" => Self::Output(given.map(path)),
            "e" => Self::Edit(given.map(path)),
            "p" => Self::Print,
            "g" => Self::Go,
            "r" => Self::Clear,
            unknown => {
                let known = COMMANDS.iter().filter_map(|(usage, _)| usage.split(' ').next());
                let hint = match (from_elsewhere(&format!(r"\{unknown}")), unknown) {
                    (Some(own), _) => format!("; did you mean {own}?"),
                    (None, "copy") => "; did you mean COPY … TO 'file', or INSERT INTO … SELECT * FROM 'file'?".into(),
                    (None, _) => did_you_mean(unknown, known.map(|name| &name[1..])),
                };
                return Err(format!(
                    r"unknown command \{unknown}{hint}; \? lists the commands"
                ));
            }
        })
    }
}

fn switch(name: &str, given: Option<&str>) -> Result<Option<bool>, String> {
    match given {
        None => Ok(None),
        Some("on") => Ok(Some(true)),
        Some("off") => Ok(Some(false)),
        Some(other) => Err(format!(r"\{name} {other}: expected on or off")),
    }
}

fn format(typed: &str) -> Result<Format, String> {
    Format::from_str(typed, true)
        .map_err(|_| format!(r"\format {typed}: expected one of {}", formats().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        match Line::read(line, "") {
            Line::Command(command) => command,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn sql(line: &str) -> String {
        match command(line) {
            Command::Sql(sql) => sql,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn every_command_that_is_listed_is_known() {
        for (usage, _) in COMMANDS {
            let name = usage.split(' ').next().unwrap();
            let line = match name {
                r"\i" => r"\i a.sql",
                name => name,
            };
            assert!(matches!(Line::read(line, ""), Line::Command(_)), "{line}");
            assert!(
                matches!(Line::read(line, "SELECT 1"), Line::Command(_)),
                "{line}"
            );
            assert_eq!(Line::read(line, "SELECT '"), Line::Sql);
        }
    }

    #[test]
    fn words_that_are_no_sql_are_answered() {
        assert_eq!(Line::read(" ", ""), Line::Nothing);
        for (line, due) in [
            ("help", Command::Help),
            ("HELP;", Command::Help),
            ("quit", Command::Quit),
            ("exit ;", Command::Quit),
            (r"\q", Command::Quit),
        ] {
            assert_eq!(command(line), due, "{line}");
        }
        for line in ["", "help", "quit", "exit"] {
            let read = Line::read(line, "SELECT 1");
            assert!(matches!(read, Line::Hint(_)), "{line}: {read:?}");
        }
        assert_eq!(Line::read("helpful", ""), Line::Sql);
        assert_eq!(Line::read(";", ""), Line::Sql);
        assert_eq!(Line::read("", "SELECT '"), Line::Sql);
    }

    #[test]
    fn arguments_are_read() {
        assert_eq!(sql(r"\d train;"), "DESCRIBE train");
        assert_eq!(sql(r"\dm sales"), "DESCRIBE MODEL sales");
        assert_eq!(sql(r"\set a.b 3"), "SET a.b = '3'");
        assert_eq!(sql(r"\set a.b = 'x y'"), "SET a.b = 'x y'");
        assert_eq!(sql(r"\set a.b"), "SHOW a.b");
        assert_eq!(command(r"\x on"), Command::Lines(Some(true)));
        assert_eq!(command(r"\format CSV"), Command::Format(Some(Format::Csv)));
        assert_eq!(
            command(r"\o 'a b.csv'"),
            Command::Output(Some("a b.csv".into()))
        );
        for (line, due) in [
            (r"\x maybe", "expected on or off"),
            (r"\format excel", "box, markdown, line"),
            (r"\i", "expected a file"),
            (r"\formt", "did you mean \"format\""),
            (r"\dt", r"did you mean \d?"),
            (r"\d+ train", r"did you mean \d?"),
            (r"\copy t to 'x'", "COPY"),
            (".tables", r"did you mean \d?"),
            (".once", r"did you mean \o?"),
            (".nope", r"\? lists the commands"),
        ] {
            let Line::Unknown(said) = Line::read(line, "") else {
                panic!("{line}")
            };
            assert!(said.contains(due), "{line}: {said}");
        }
    }

    #[test]
    fn commands_in_scripts_have_sql_instead() {
        for (line, due) in [
            (r"\d train;", ": DESCRIBE train"),
            (r"\d", ": SHOW TABLES"),
            (r"\dt", ": SHOW TABLES"),
            (r"\d+ train", ": DESCRIBE train"),
            (r"\dm", ": SHOW MODELS"),
            (r"\x", ": --format line"),
            (r"\i a.sql", ": -f a.sql"),
            (".tables", ": SHOW TABLES"),
            (".schema train", ": DESCRIBE train"),
            (r"\q", "at the prompt only"),
            (r"\nope", "at the prompt only"),
            (".nope", "with a dot"),
        ] {
            let said = outside_prompt(line).unwrap_or_default();
            assert!(said.ends_with(due), "{line}: {said}");
        }
        assert_eq!(outside_prompt("SELECT 1"), None);
        assert_eq!(outside_prompt(".5"), None);
        // Each command of another shell has one here.
        for (_, own) in ELSEWHERE {
            let names = COMMANDS.map(|(usage, _)| usage.split(' ').next().unwrap());
            assert!(names.contains(&own), "{own}");
        }
    }
}
