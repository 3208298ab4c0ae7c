//! Prompt: statements typed one by one, with history, completion and colours.
//!
//! ```text
//! line ──> command of the prompt ──> runs at once, also in the middle of a statement
//!     └──> statement so far ──> complete (;) ──> runs
//!                           └──> next line
//! ```
//!
//! Ctrl-C clears the statement, or cancels the one that runs; Ctrl-D quits. An error in a statement does not end the
//! session.

mod commands;
mod complete;
mod edit;
mod help;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{ColorMode, CompletionType, Config, Editor};

use volley_proto::object_stores::redacted;

use super::Ended;
use super::config::{EngineConfig, Output, Query, Source};
use super::engine::Engine;
use super::execute::{Sink, execute};
use super::format::Format;
use super::report::{is_broken_pipe, report};
use super::script::Named;
pub(super) use commands::outside_prompt;
use commands::{Command, Line};
use complete::Names;
use edit::Helper;
pub(super) use help::syntax;

/// Prompt of a statement's first line, and of the others.
const PROMPTS: [&str; 2] = ["volley> ", "   ...> "];

/// Reads and runs statements until the user quits.
///
/// # Errors
/// When the session cannot be opened, or the terminal cannot be read.
pub(super) async fn run(
    query: &Query,
    history: Option<&Path>,
    rc: Option<&Path>,
) -> anyhow::Result<Ended> {
    let engine = Engine::open(&query.connection).await?;
    if !query.output.quiet {
        let cluster = match &query.connection.engine {
            EngineConfig::Embedded(e) => format!("{} executors in this process", e.executors),
            EngineConfig::Scheduler(address) => format!("the cluster at {address}"),
            EngineConfig::Found(address) => format!("the cluster at {address} (volley cluster up)"),
        };
        let version = env!("CARGO_PKG_VERSION");
        println!("Volley {version} on {cluster}. Type help for help, quit to quit.");
    }
    let mut prompt = Prompt::open(query, &engine, history)?;
    let ended = match prompt.begin(rc).await {
        Ok(()) => prompt.serve().await,
        failed => failed,
    };
    engine.close().await;
    ended.map(|()| Ended::Done)
}

struct Prompt<'a> {
    query: &'a Query,
    engine: &'a Engine,
    editor: Editor<Helper, DefaultHistory>,
    history: Option<&'a Path>,
    /// True if lines are added to the history.
    remembers: bool,
    output: Output,
    /// Format of rows while `\x` is off.
    format: Format,
    sink: Sink,
    /// Lines of the unfinished statement.
    statement: String,
    /// Statement that ran last.
    last: String,
    /// Text of the next line before it is edited.
    initial: String,
}

impl<'a> Prompt<'a> {
    fn open(
        query: &'a Query,
        engine: &'a Engine,
        history: Option<&'a Path>,
    ) -> anyhow::Result<Self> {
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .color_mode(match has_colours {
                true => ColorMode::Enabled,
                false => ColorMode::Disabled,
            })
            .build();
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Helper::new(has_colours)));
        if let Some(path) = history.filter(|path| path.exists()) {
            let loaded = editor.load_history(path);
            loaded.with_context(|| format!("cannot read the history {}", path.display()))?;
        }
        Ok(Self {
            output: query.output.clone(),
            format: query.output.format,
            query,
            engine,
            editor,
            history,
            remembers: true,
            sink: Sink::stdout(),
            statement: String::new(),
            last: String::new(),
            initial: String::new(),
        })
    }

    /// Runs the user's file of statements and commands.
    async fn begin(&mut self, rc: Option<&Path>) -> anyhow::Result<()> {
        let Some(path) = rc else {
            return Ok(());
        };
        let text = Source::File(path.to_owned()).read()?;
        self.remembers = false;
        for line in text.lines() {
            if !self.take(line).await? {
                return Ok(());
            }
        }
        self.remembers = true;
        let rest = std::mem::take(&mut self.statement);
        match tokens::is_empty(&rest) {
            true => Ok(()),
            false => bail!("{}: the last statement has no ; at its end", path.display()),
        }
    }

    async fn serve(&mut self) -> anyhow::Result<()> {
        loop {
            let is_first = self.statement.is_empty();
            if let Some(helper) = self.editor.helper_mut() {
                if is_first {
                    let before = helper.names.take();
                    helper.names = Some(Names::of(&self.engine.session, before).await);
                }
                helper.before.clone_from(&self.statement);
            }
            let prompt = PROMPTS[usize::from(!is_first)];
            let initial = std::mem::take(&mut self.initial);
            let line = tokio::task::block_in_place(|| {
                let initial = (initial.as_str(), "");
                self.editor.readline_with_initial(prompt, initial)
            });
            let line = match line {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    self.statement.clear();
                    continue;
                }
                Err(ReadlineError::Eof) if is_first => return Ok(()),
                Err(ReadlineError::Eof) => {
                    self.statement.clear();
                    continue;
                }
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            if !self.take(&line).await? {
                return Ok(());
            }
        }
    }

    /// Takes a line. Returns false if the user quits.
    async fn take(&mut self, line: &str) -> anyhow::Result<bool> {
        match Line::read(line, &self.statement) {
            Line::Nothing => {}
            Line::Hint(text) => eprintln!("{text}"),
            Line::Unknown(message) => eprintln!("error: {message}"),
            Line::Command(Command::Quit) => return Ok(false),
            Line::Command(command) => {
                self.remember(line);
                match self.obey(command).await {
                    Err(error) if is_broken_pipe(&error) => return Err(error),
                    ran => ran.unwrap_or_else(|error| report(&error)),
                }
            }
            Line::Sql => {
                if !self.statement.is_empty() {
                    self.statement.push('\n');
                }
                self.statement.push_str(line);
                if tokens::is_complete(&self.statement) {
                    let statement = std::mem::take(&mut self.statement);
                    self.remember(&statement);
                    if !tokens::is_empty(&statement) {
                        self.last.clone_from(&statement);
                    }
                    self.run(&statement).await?;
                }
            }
        }
        Ok(true)
    }

    /// Runs statements, and prints what fails.
    async fn run(&mut self, sql: &str) -> anyhow::Result<()> {
        let ran = tokio::select! {
            ran = run_all(self.query, self.engine, sql, &self.output, &mut self.sink) => ran,
            _ = tokio::signal::ctrl_c() => {
                eprintln!("cancelled");
                Ok(())
            }
        };
        match ran {
            Err(error) if is_broken_pipe(&error) => Err(error),
            ran => {
                ran.unwrap_or_else(|error| report(&error));
                Ok(())
            }
        }
    }

    /// Carries out a command of the prompt.
    async fn obey(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Quit => {}
            Command::Help => print!("{}", help::help()),
            Command::Syntax(statement) => print!("{}", help::syntax(&statement)?),
            Command::Sql(sql) => self.run(&sql).await?,
            Command::Clear => self.statement.clear(),
            Command::Print => println!("{}", self.current()),
            Command::Go => {
                let statement = match self.statement.is_empty() {
                    true => self.last.clone(),
                    false => std::mem::take(&mut self.statement),
                };
                self.last.clone_from(&statement);
                self.run(&statement).await?;
            }
            Command::Lines(on) => {
                let is_on = self.output.format == Format::Line;
                let on = on.unwrap_or(!is_on);
                self.output.format = match on {
                    true => Format::Line,
                    false if self.format == Format::Line => Format::Table,
                    false => self.format,
                };
                println!("a line for each value: {}", on_off(on));
            }
            Command::Timing(on) => {
                self.output.timing = on.unwrap_or(!self.output.timing);
                println!("timing: {}", on_off(self.output.timing));
            }
            Command::Format(None) => println!("format: {}", self.output.format.name()),
            Command::Format(Some(format)) => {
                if format.is_binary() && self.sink.is_stdout() {
                    bail!(r"a terminal cannot show {}: \o FILE first", format.name());
                }
                self.format = format;
                self.output.format = format;
            }
            Command::Output(path) => {
                if path.is_none() && self.format.is_binary() {
                    self.format = Format::Table;
                    self.output.format = Format::Table;
                }
                self.sink = match &path {
                    Some(path) => Sink::file(path).await?,
                    None => Sink::stdout(),
                };
            }
            Command::Include(path) => {
                let text = Source::File(path.clone()).read()?;
                let name = path.display().to_string();
                let script = Named::new(name, &text, &self.query.defines)?;
                let run = async {
                    for (place, statement) in script.parse(&self.engine.session)? {
                        let (output, sink) = (&self.output, &mut self.sink);
                        let ran = execute(self.engine, statement, output, sink).await;
                        ran.map_err(|error| place.of(error))?;
                    }
                    anyhow::Ok(())
                };
                tokio::select! {
                    ran = run => ran?,
                    _ = tokio::signal::ctrl_c() => eprintln!("cancelled"),
                }
            }
            Command::Edit(path) => self.edit(path)?,
        }
        Ok(())
    }

    /// Returns the unfinished statement, or else the one that ran last.
    fn current(&self) -> &str {
        match self.statement.is_empty() {
            true => &self.last,
            false => &self.statement,
        }
    }

    /// Edits the current statement, or a file, in the user's editor. The text becomes the next line.
    fn edit(&mut self, path: Option<PathBuf>) -> anyhow::Result<()> {
        let draft = tempfile::Builder::new()
            .prefix("volley-")
            .suffix(".sql")
            .tempfile()
            .context("cannot make a file to edit")?;
        let path = match &path {
            Some(path) => path,
            None => {
                fs::write(draft.path(), self.current()).context("cannot write a file to edit")?;
                draft.path()
            }
        };
        let editor = ["VISUAL", "EDITOR"].map(std::env::var);
        let editor = editor.into_iter().flatten().find(|name| !name.is_empty());
        let editor = editor.unwrap_or_else(|| "vi".to_owned());
        let run = format!("{editor} \"$1\"");
        let mut command = std::process::Command::new("sh");
        command.arg("-c").arg(run).arg("sh").arg(path);
        let ended = tokio::task::block_in_place(|| command.status());
        let ended = ended.with_context(|| format!("cannot run {editor:?} (EDITOR)"))?;
        if !ended.success() {
            bail!("{editor} (EDITOR) ended with {ended}: the statement is as it was");
        }
        let edited = fs::read_to_string(path);
        let edited = edited.with_context(|| format!("cannot read {}", path.display()))?;
        self.statement.clear();
        self.initial = edited.trim_end().to_owned();
        Ok(())
    }

    /// Keeps the input, without credentials, in the history of this session and the next. A failure to keep it is not
    /// an error.
    fn remember(&mut self, input: &str) {
        if !self.remembers {
            return;
        }
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

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

async fn run_all(
    query: &Query,
    engine: &Engine,
    sql: &str,
    output: &Output,
    sink: &mut Sink,
) -> anyhow::Result<()> {
    let script = Named::new("input".into(), sql, &query.defines)?;
    for (place, statement) in script.parse(&engine.session)? {
        let ran = execute(engine, statement, output, sink).await;
        ran.map_err(|error| place.point(error))?;
    }
    Ok(())
}

/// Returns the names of all formats.
fn formats() -> Vec<String> {
    let all = Format::value_variants().iter();
    all.map(|format| format.name()).collect()
}
