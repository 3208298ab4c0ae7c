//! Scripts: parsed as a whole, then run up to the first error.

use std::cell::Cell;
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::time::timeout;
use unicode_width::UnicodeWidthStr;
use volley::{Error, Excerpt, Scope, Session, Statement, SystemTables};
use volley_proto::TrainId;
use volley_proto::disk::missing;
use volley_proto::object_stores::redacted;
use volley_proto::tables::Job;

use super::Ended;
use super::config::{Defines, Query, Source};
use super::define::Script;
use super::engine::Engine;
use super::execute::{Sink, execute, write};
use super::prompt::outside_prompt;
use super::report::cancelled;
use super::signals::Interrupts;

/// Time limit for finding the job of a training that was cancelled.
const NAMING: Duration = Duration::from_secs(2);

/// Script with its name in messages.
#[derive(Debug)]
pub(super) struct Named {
    name: String,
    script: Script,
}

/// Place of a statement in a script.
#[derive(Debug)]
pub(super) struct Place<'a> {
    script: &'a Named,
    excerpt: Excerpt,
    /// The statement without credentials.
    shown: String,
}

/// Reads the scripts and replaces their variables.
///
/// # Errors
/// When a file cannot be read or a variable is not defined.
pub(super) fn load(sources: &[Source], defines: &Defines) -> anyhow::Result<Vec<Named>> {
    sources
        .iter()
        .map(|source| Named::new(source.name(), &source.read()?, defines))
        .collect()
}

/// Runs the scripts in order on one session. All are parsed before the first statement runs.
///
/// # Errors
/// Returns the first error, with the file, line and statement where it happened.
pub(super) async fn run(query: &Query, scripts: &[Named]) -> anyhow::Result<Ended> {
    let mut interrupts = Interrupts::listen()?;
    if let Some(note) = query.connection.note().filter(|_| !query.output.quiet) {
        eprintln!("{note}");
    }
    let engine = match interrupts.stop(Engine::open(&query.connection)).await {
        ControlFlow::Continue(engine) => engine?,
        ControlFlow::Break(code) if query.output.quiet => return Ok(Ended::Interrupted(code)),
        ControlFlow::Break(code) => return Ok(cancelled(code)),
    };
    let trained = Cell::new(None);
    let ended = interrupts.stop(async {
        let mut statements = Vec::new();
        for script in scripts {
            statements.append(&mut script.parse(&engine.session)?);
        }
        let left = query
            .detach
            .then(|| take_last(&mut statements))
            .transpose()?;
        let mut sink = Sink::stdout();
        for (place, statement) in statements {
            trained.set(statement.train_id());
            let ran = execute(&engine, statement, &query.output, &mut sink).await;
            ran.map_err(|error| place.of(error))?;
        }
        if let Some((place, statement)) = left {
            let submitted = submit(&engine, statement).await;
            submitted.map_err(|error| place.of(error))?;
        }
        anyhow::Ok(())
    });
    let ended = match ended.await {
        ControlFlow::Continue(done) => done.map(|()| Ended::Done),
        ControlFlow::Break(code) if query.output.quiet => Ok(Ended::Interrupted(code)),
        ControlFlow::Break(code) => match trained.get() {
            Some(run) => {
                say_cancelled(&engine, run, code).await;
                Ok(Ended::Interrupted(code))
            }
            None => Ok(cancelled(code)),
        },
    };
    engine.close().await;
    ended
}

/// Says that a training is cancelled because of a signal, and what leaves it running.
async fn say_cancelled(engine: &Engine, run: TrainId, code: u8) {
    let tables = SystemTables::of(&engine.scheduler);
    let jobs = tables.rows::<Job>(Scope::Training(run));
    let jobs = timeout(NAMING, jobs).await.ok().and_then(Result::ok);
    let job = match jobs.unwrap_or_default().first() {
        Some(job) => format!("job {}", job.job_id),
        None => "the training".to_owned(),
    };
    let detach = match engine.is_embedded() {
        true => "",
        false => "; --detach leaves a training running",
    };
    eprintln!(
        "cancelled {job}, because {} came: resume = true continues from its last checkpoint, if it has one{detach}",
        signal_of(code)
    );
}

/// Returns the name of the signal of an exit code.
fn signal_of(code: u8) -> &'static str {
    match code {
        130 => "SIGINT (Ctrl-C)",
        _ => "SIGTERM",
    }
}

/// Takes off the last statement, the `CREATE MODEL` to leave to the cluster.
fn take_last<'a>(
    statements: &mut Vec<(Place<'a>, Statement)>,
) -> anyhow::Result<(Place<'a>, Statement)> {
    let trains = |(_, statement): &(Place<'_>, Statement)| statement.train_id().is_some();
    match statements.pop_if(|last| trains(last)) {
        Some(last) if !statements.iter().any(trains) => Ok(last),
        _ => bail!("--detach: expected one CREATE MODEL, as the last statement"),
    }
}

/// Submits a `CREATE MODEL`, leaves it to the cluster, and prints its job id.
async fn submit(engine: &Engine, statement: Statement) -> anyhow::Result<()> {
    match engine.session.submit(statement).await? {
        Some(job) => write(format!("{job}\n").as_bytes()).await?,
        None => eprintln!("the model exists already: nothing to do"),
    }
    Ok(())
}

impl Named {
    /// Replaces the variables of a script.
    ///
    /// # Errors
    /// When a variable is not defined.
    pub(super) fn new(name: String, text: &str, defines: &Defines) -> anyhow::Result<Self> {
        match Script::read(text, defines) {
            Ok(script) => Ok(Self { name, script }),
            Err(error) => Err(anyhow!("{name}:{error}")),
        }
    }

    /// Parses the statements. Returns each with its position in the script.
    ///
    /// # Errors
    /// When the script has a syntax error; the error names the position.
    pub(super) fn parse(&self, session: &Session) -> anyhow::Result<Vec<(Place<'_>, Statement)>> {
        let Self { name, script } = self;
        let statements = session.parse(&script.text).map_err(|error| match error {
            Error::Syntax {
                line,
                column,
                message,
            } => {
                let pointed = pointed(&script.text, line, column);
                let command = beginning(&script.text, line, column).and_then(outside_prompt);
                let message = command.unwrap_or(message);
                anyhow!(
                    "{name}:{}:{column}: {message}{pointed}",
                    script.origin(line)
                )
            }
            other => match session.first_refused(&script.text) {
                Some(excerpt) => {
                    let shown = redacted(excerpt.text());
                    let script = self;
                    Place {
                        script,
                        excerpt,
                        shown,
                    }
                    .of(other.into())
                }
                None => anyhow::Error::from(other).context(name.clone()),
            },
        })?;
        let place = |statement: &Statement| Place {
            script: self,
            excerpt: statement.excerpt(),
            shown: statement.to_string(),
        };
        Ok(statements
            .into_iter()
            .map(|statement| (place(&statement), statement))
            .collect())
    }
}

impl Place<'_> {
    /// Says with an error of the statement where it stands: at the name that the error is about, or at the statement.
    pub(super) fn of(&self, error: anyhow::Error) -> anyhow::Error {
        let Named { name, script } = self.script;
        match self.pointed(&error) {
            Some((line, column, pointed)) => {
                let line = script.origin(self.excerpt.line() + line - 1);
                anyhow!("{name}:{line}:{column}: {error}{pointed}")
            }
            None => {
                let line = script.origin(self.excerpt.line());
                let statement = shorten(&self.shown);
                error.context(format!("{name}:{line}: {statement}"))
            }
        }
    }

    /// Points at the name that an error is about, if there is one; for a script that was just typed.
    pub(super) fn point(&self, error: anyhow::Error) -> anyhow::Error {
        match self.pointed(&error) {
            Some((.., pointed)) => anyhow!("{error}{pointed}"),
            None => error,
        }
    }

    /// Returns the line in the statement of the name that an error is about, the column in the script's line, and the line
    /// with a caret below it.
    fn pointed(&self, error: &anyhow::Error) -> Option<(u64, u64, String)> {
        let Self { excerpt, shown, .. } = self;
        let (line, column) = excerpt.position(error.downcast_ref::<Error>()?)?;
        // Credentials are not shown.
        let pointed = (excerpt.text() == shown).then(|| pointed(shown, line, column));
        let before = if line == 1 { excerpt.column() - 1 } else { 0 };
        Some((line, before + column, pointed.unwrap_or_default()))
    }
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::Command(_) => "-c".into(),
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "stdin".into(),
        }
    }

    /// Reads the text.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn read(&self) -> anyhow::Result<String> {
        let mut text = match self {
            Self::Command(text) => text.clone(),
            Self::File(path) => match fs::read_to_string(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    bail!("cannot read {}: {}", path.display(), missing(path))
                }
                read => read.with_context(|| format!("cannot read {}", path.display()))?,
            },
            Self::Stdin => io::read_to_string(io::stdin()).context("cannot read standard input")?,
        };
        // Editors on Windows write a byte-order mark.
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        Ok(text)
    }
}

/// Returns a line of a script with a caret below a column, each on a line of its own; nothing if there is no such place.
fn pointed(text: &str, line: u64, column: u64) -> String {
    /// Characters that are shown before the column and after it.
    const AROUND: usize = 60;
    let number = usize::try_from(line).unwrap_or(0).wrapping_sub(1);
    let before = usize::try_from(column).unwrap_or(0).wrapping_sub(1);
    let Some(line) = text
        .lines()
        .nth(number)
        .filter(|line| before <= line.chars().count())
    else {
        return String::new();
    };
    let first = before.saturating_sub(AROUND);
    let shown: String = line.chars().skip(first).take(2 * AROUND).collect();
    let shown = shown.replace('\t', " ");
    let skipped: String = shown.chars().take(before - first).collect();
    format!("\n  {}\n  {:2$}^", shown.trim_end(), "", skipped.width())
}

/// Returns the rest of a line from a column on, if a statement begins there.
fn beginning(text: &str, line: u64, column: u64) -> Option<&str> {
    let line = text
        .lines()
        .nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let before = usize::try_from(column).ok()?.checked_sub(1)?;
    let (start, _) = line.char_indices().nth(before)?;
    let (before, rest) = line.split_at(start);
    let before = before.trim_end();
    (before.is_empty() || before.ends_with(';')).then_some(rest)
}

/// Returns a statement on one line, shortened to 60 characters.
pub(super) fn shorten(statement: &str) -> String {
    const WIDTH: usize = 60;
    let line = statement.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_shortened_to_a_line() {
        assert_eq!(shorten("SELECT\n  1"), "SELECT 1");
        let long = shorten(&"ü ".repeat(100));
        assert_eq!(long.chars().count(), 61);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn a_caret_points_at_the_column() {
        assert_eq!(pointed("a\n\tb é x", 2, 6), "\n   b é x\n       ^");
        assert_eq!(pointed("SELECT", 1, 7), "\n  SELECT\n        ^");
        assert_eq!(pointed("SELECT", 1, 9), "");
        assert_eq!(pointed("SELECT", 0, 0), "");
        let long = format!("{}x{}", "a".repeat(500), "b".repeat(500));
        let shown = pointed(&long, 1, 501);
        let caret = shown.lines().nth(2).unwrap().chars().count();
        assert_eq!(
            shown.lines().nth(1).unwrap().chars().nth(caret - 1),
            Some('x')
        );
    }

    #[test]
    fn statements_begin_in_a_line_or_after_a_semicolon() {
        let text = "SELECT 1; \\dt\n  \\d t";
        assert_eq!(beginning(text, 1, 11), Some("\\dt"));
        assert_eq!(beginning(text, 2, 3), Some("\\d t"));
        assert_eq!(beginning(text, 1, 8), None);
        assert_eq!(beginning(text, 0, 0), None);
        assert_eq!(beginning(text, 9, 1), None);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_script() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sql");
        fs::write(&path, "\u{feff}SELECT 1").unwrap();
        assert_eq!(Source::File(path).read().unwrap(), "SELECT 1");
    }

    #[test]
    fn missing_files_and_variables_are_named() {
        let file = |path: &str| Source::File(path.into());
        let error = load(&[file("/nowhere/a.sql")], &Defines::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read /nowhere/a.sql: there is no folder /nowhere"
        );
        let command = Source::Command("SELECT 1;\nSELECT ${x}".into());
        let error = load(&[command], &Defines::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("-c:2: ${x} is not defined"),
            "{error}"
        );
    }
}
