//! Scripts: parsed as a whole, then run up to the first error.

use std::fs;
use std::io;
use std::ops::ControlFlow;

use anyhow::{Context, anyhow, bail};
use volley::{Error, Session, Statement};

use super::Ended;
use super::config::{Defines, Query, Source};
use super::define::Script;
use super::engine::Engine;
use super::execute::{Sink, execute, write};
use super::signals::Interrupts;

/// Script with its name in messages.
#[derive(Debug)]
pub(super) struct Named {
    name: String,
    script: Script,
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
        ControlFlow::Break(code) => return Ok(Ended::Interrupted(code)),
    };
    let ended = interrupts.stop(async {
        let mut statements = Vec::new();
        for script in scripts {
            statements.append(&mut script.parse(&engine.session)?);
        }
        let left = query
            .detach
            .then(|| take_last(&mut statements))
            .transpose()?;
        for (place, statement) in statements {
            execute(&engine, statement, &query.output, &mut Sink::Stdout)
                .await
                .context(place)?;
        }
        if let Some((place, statement)) = left {
            submit(&engine, statement).await.context(place)?;
        }
        anyhow::Ok(())
    });
    let ended = match ended.await {
        ControlFlow::Continue(done) => done.map(|()| Ended::Done),
        ControlFlow::Break(code) => Ok(Ended::Interrupted(code)),
    };
    engine.close().await;
    ended
}

/// Takes off the last statement, the `CREATE MODEL` to leave to the cluster.
fn take_last(statements: &mut Vec<(String, Statement)>) -> anyhow::Result<(String, Statement)> {
    let trains = |(_, statement): &(String, Statement)| statement.train_id().is_some();
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
    pub(super) fn parse(&self, session: &Session) -> anyhow::Result<Vec<(String, Statement)>> {
        let Self { name, script } = self;
        let statements = session.parse(&script.text).map_err(|error| match error {
            Error::Syntax {
                line,
                column,
                message,
            } => {
                anyhow!("{name}:{}:{column}: {message}", script.origin(line))
            }
            other => anyhow::Error::from(other).context(name.clone()),
        })?;
        let place = |statement: &Statement| {
            format!(
                "{name}:{}: {}",
                script.origin(statement.line()),
                shorten(&statement.to_string())
            )
        };
        Ok(statements
            .into_iter()
            .map(|statement| (place(&statement), statement))
            .collect())
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
            Self::File(path) => fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
            Self::Stdin => io::read_to_string(io::stdin()).context("cannot read standard input")?,
        };
        // Editors on Windows write a byte-order mark.
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        Ok(text)
    }
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
        assert_eq!(error.to_string(), "cannot read /nowhere/a.sql");
        let command = Source::Command("SELECT 1;\nSELECT ${x}".into());
        let error = load(&[command], &Defines::new()).unwrap_err();
        assert!(
            error.to_string().starts_with("-c:2: ${x} is not defined"),
            "{error}"
        );
    }
}
