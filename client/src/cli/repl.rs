//! Prompt: statements typed one by one, with history.
//!
//! Ctrl-C clears the line, or cancels the running statement; Ctrl-D quits. An error in a statement does not end the
//! session.

use std::fs;
use std::path::Path;

use anyhow::Context;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use volley_proto::object_stores::redacted;

use super::Ended;
use super::config::{EngineConfig, Query};
use super::engine::Engine;
use super::execute::execute;
use super::input::{COMMANDS, Typed, is_complete};
use super::report::{is_broken_pipe, report};
use super::script::Named;

/// Reads and runs statements until the user quits.
///
/// # Errors
/// When the session cannot be opened, or the terminal cannot be read.
pub(super) async fn run(query: &Query, history: Option<&Path>) -> anyhow::Result<Ended> {
    let engine = Engine::open(&query.connection).await?;
    if !query.output.quiet {
        let cluster = match &query.connection.engine {
            EngineConfig::Embedded(e) => format!("{} executors in this process", e.executors),
            EngineConfig::Scheduler(address) => format!("the cluster at {address}"),
        };
        let version = env!("CARGO_PKG_VERSION");
        println!(r"Volley {version} on {cluster}. \? for help, \q to quit.");
    }
    let ended = Prompt::open(history)?.serve(query, &engine).await;
    engine.close().await;
    ended.map(|()| Ended::Done)
}

struct Prompt<'a> {
    editor: Editor<Multiline, DefaultHistory>,
    history: Option<&'a Path>,
}

impl<'a> Prompt<'a> {
    fn open(history: Option<&'a Path>) -> anyhow::Result<Self> {
        let mut editor = Editor::new().context("cannot use the terminal")?;
        editor.set_helper(Some(Multiline));
        if let Some(path) = history.filter(|path| path.exists()) {
            let loaded = editor.load_history(path);
            loaded.with_context(|| format!("cannot read the history {}", path.display()))?;
        }
        Ok(Self { editor, history })
    }

    async fn serve(&mut self, query: &Query, engine: &Engine) -> anyhow::Result<()> {
        loop {
            let input = match tokio::task::block_in_place(|| self.editor.readline("volley> ")) {
                Ok(input) => input,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            self.remember(&input);
            match Typed::read(&input) {
                Typed::Nothing => {}
                Typed::Quit => return Ok(()),
                Typed::Help => print!("{}", help()),
                Typed::Unknown(message) => eprintln!("error: {message}"),
                Typed::Sql(sql) => {
                    let ran = tokio::select! {
                        ran = run_all(query, engine, &sql) => ran,
                        _ = tokio::signal::ctrl_c() => {
                            eprintln!("cancelled");
                            Ok(())
                        }
                    };
                    match ran {
                        Err(error) if is_broken_pipe(&error) => return Err(error),
                        ran => ran.unwrap_or_else(|error| report(&error)),
                    }
                }
            }
        }
    }

    /// Keeps the input, without credentials, in the history of this session and the next. A failure to keep it is not
    /// an error.
    fn remember(&mut self, input: &str) {
        let input = redacted(input.trim_end());
        let added = self.editor.add_history_entry(input);
        let Some(path) = self.history.filter(|_| added.is_ok_and(|added| added)) else {
            return;
        };
        let kept = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .map_err(ReadlineError::from);
        if let Err(error) = kept.and_then(|()| self.editor.append_history(path)) {
            tracing::warn!("cannot keep the history in {}: {error}", path.display());
            self.history = None;
        }
    }
}

async fn run_all(query: &Query, engine: &Engine, sql: &str) -> anyhow::Result<()> {
    let script = Named::new("input".into(), sql, &query.defines)?;
    for (_, statement) in script.parse(&engine.session)? {
        execute(engine, statement, query.output).await?;
    }
    Ok(())
}

fn help() -> String {
    let mut help = String::from("SQL ends with a semicolon and may span lines.\n\n");
    for (usage, about) in COMMANDS {
        help.push_str(&format!("  {usage:<12} {about}\n"));
    }
    help.push_str(
        "\nCtrl-C clears the line or cancels the statement that runs.\n\
         Models: CREATE MODEL name OPTIONS (…) AS SELECT …; SHOW MODELS; DESCRIBE MODEL name;\n\
         SELECT * FROM ML.PREDICT(MODEL name, (SELECT …)); ML.EVALUATE; ML.TRAINING_INFO\n",
    );
    help
}

/// Input helper: Enter starts a new line until the input is complete.
struct Multiline;

impl Validator for Multiline {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

impl Helper for Multiline {}
impl Highlighter for Multiline {}
impl Hinter for Multiline {
    type Hint = String;
}
impl Completer for Multiline {
    type Candidate = String;
}
