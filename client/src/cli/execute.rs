//! Execution of one statement, with progress, and its rows printed as they come.
//!
//! On a terminal the first rows are shown, within its width and in a pager where they are too many, and all are counted.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use futures::TryStreamExt;
use terminal_size::{Height, Width, terminal_size};
use tokio::io::AsyncWriteExt;
use volley::Statement;
use volley_proto::limits::grouped;

use super::config::Output as Show;
use super::engine::Engine;
use super::format::{Format, Formatter, TABLE_ROWS};
use super::progress::{Progress, Style};
use super::report::Stdout;

/// Number of lines below a table on a terminal: its footer, an empty line and the next prompt.
const FOOTER: usize = 3;

/// Destination of results.
#[derive(Debug)]
pub(super) struct Sink {
    /// File, instead of standard output.
    file: Option<tokio::fs::File>,
    /// True if it has rows of a statement.
    has_rows: bool,
}

/// Runs a statement and prints its result. Dropping the future cancels the statement.
///
/// # Errors
/// When the statement fails, or its result cannot be written.
pub(super) async fn execute(
    engine: &Engine,
    statement: Statement,
    show: &Show,
    sink: &mut Sink,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let ran = run(engine, statement, show.progress).await?;
    let ran = match show.format.is_for_people() {
        true => ran.with_typed_headings(),
        false => ran,
    };
    if !ran.schema.fields().is_empty()
        && std::mem::replace(&mut sink.has_rows, true)
        && show.format.is_binary()
    {
        let format = show.format.name();
        bail!(
            "format {format}: a file has the rows of one statement, and these would be a second one's"
        );
    }
    let progress = Progress::of_query(&engine.scheduler, ran.job(), show.progress);
    let terminal = show.terminal.as_ref();
    let terminal = terminal.filter(|_| sink.is_stdout() && show.format.is_for_people());
    let screen = terminal.and_then(|terminal| Some((terminal, terminal_size()?)));
    let mut formatter = Formatter::new(show.format).told(ran.message.is_some());
    let mut text = Vec::new();
    let mut count = Count::default();
    if let Some((terminal, (Width(width), Height(height)))) = screen {
        formatter = formatter.within(Some(width.into()));
        let rows = first_rows(ran.schema, ran.rows, &mut formatter);
        (text, count) = progress.beside(rows).await?;
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        if lines + FOOTER > height.into() && terminal.page(&text)? {
            text.clear();
        }
    } else {
        count.rows = all_rows(ran.schema, ran.rows, &mut formatter, progress, sink).await?;
    }
    count.left_out = formatter.left_out();
    if formatter.is_text() {
        count.rows = None;
    }
    let elapsed = show.timing.then(|| started.elapsed());
    if !show.quiet && show.format.is_for_people() {
        if let Some(message) = ran.message {
            text.extend(format!("{message}\n").bytes());
        }
        text.extend(footer(&count, elapsed).bytes());
        if count.rows.is_some() {
            text.push(b'\n');
        }
    } else if !show.quiet && show.timing {
        eprint!("{}", footer(&count, elapsed));
    }
    sink.write(&text).await
}

/// Writes all rows as they come, and returns their number, unless the statement has none.
async fn all_rows(
    schema: SchemaRef,
    mut rows: SendableRecordBatchStream,
    formatter: &mut Formatter,
    progress: Progress,
    sink: &mut Sink,
) -> anyhow::Result<Option<usize>> {
    let mut count = None;
    // Progress is cleared before the first rows are printed.
    let mut next = progress.beside(rows.try_next()).await;
    while let Some(batch) = next.map_err(volley::Error::from)? {
        *count.get_or_insert(0) += batch.num_rows();
        let text = formatter.push(&batch).context("cannot format the rows")?;
        sink.write(&text).await?;
        next = rows.try_next().await;
    }
    if count.is_none() && !schema.fields().is_empty() {
        count = Some(0);
        let text = formatter.push(&RecordBatch::new_empty(schema))?;
        sink.write(&text).await?;
    }
    let text = formatter.finish().context("cannot format the rows")?;
    sink.write(&text).await?;
    Ok(count)
}

/// Formats the first rows, as many as are aligned together, and counts all.
async fn first_rows(
    schema: SchemaRef,
    mut rows: SendableRecordBatchStream,
    formatter: &mut Formatter,
) -> anyhow::Result<(Vec<u8>, Count)> {
    let mut text = Vec::new();
    let mut count = Count::default();
    while let Some(batch) = rows.try_next().await.map_err(volley::Error::from)? {
        let before = count.rows.unwrap_or(0);
        let shown = (TABLE_ROWS - count.shown).min(batch.num_rows());
        let batch_shown = batch.slice(0, shown);
        text.extend(
            formatter
                .push(&batch_shown)
                .context("cannot format the rows")?,
        );
        count.shown += shown;
        count.rows = Some(before + batch.num_rows());
    }
    if count.rows.is_none() && !schema.fields().is_empty() {
        count.rows = Some(0);
        text.extend(formatter.push(&RecordBatch::new_empty(schema))?);
    }
    text.extend(formatter.finish().context("cannot format the rows")?);
    Ok((text, count))
}

/// Size of a result.
#[derive(Debug, Default)]
struct Count {
    /// Number of rows, unless the statement has none.
    rows: Option<usize>,
    /// Number of rows that are shown, unless all are.
    shown: usize,
    /// Number of columns that are not shown.
    left_out: usize,
}

/// Runs a statement with its progress, and returns its rows instead of printing them.
///
/// # Errors
/// When the statement fails.
pub(super) async fn collect(
    engine: &Engine,
    statement: Statement,
    progress: Style,
) -> volley::Result<Vec<RecordBatch>> {
    let output = run(engine, statement, progress).await?;
    let watched = Progress::of_query(&engine.scheduler, output.job(), progress);
    watched.beside(output.collect()).await
}

/// Runs a statement. Shows the progress of a training; a query runs only while its rows are read.
async fn run(
    engine: &Engine,
    statement: Statement,
    progress: Style,
) -> volley::Result<volley::Output> {
    match statement.train_id() {
        Some(id) => {
            let watched = Progress::of_training(&engine.scheduler, id, progress);
            watched.beside(engine.session.run(statement)).await
        }
        None => engine.session.run(statement).await,
    }
}

/// Returns the footer, such as `(3 rows in 0.123 s)` with a newline; empty without a count and a time.
fn footer(count: &Count, elapsed: Option<Duration>) -> String {
    let mut parts = Vec::new();
    if let Some(rows) = count.rows {
        let number = |rows: usize| grouped(rows as u64);
        let mut part = number(rows) + if rows == 1 { " row" } else { " rows" };
        if (1..rows).contains(&count.shown) {
            part = format!("first {} of {part}", number(count.shown));
        }
        parts.push(part);
    }
    if count.left_out > 0 {
        let left_out = count.left_out;
        parts.push(format!(
            "with {left_out} columns left out (\\x or --format line shows them)"
        ));
    }
    if let Some(elapsed) = elapsed {
        parts.push(format!("in {:.3} s", elapsed.as_secs_f64()));
    }
    match parts.is_empty() {
        true => String::new(),
        false => format!("({})\n", parts.join(" ")),
    }
}

impl Sink {
    pub(super) fn stdout() -> Self {
        Self {
            file: None,
            has_rows: false,
        }
    }

    pub(super) fn is_stdout(&self) -> bool {
        self.file.is_none()
    }

    /// Opens a file, which is made anew.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) async fn file(path: &Path) -> anyhow::Result<Self> {
        let file = tokio::fs::File::create(path).await;
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            file: Some(file),
            has_rows: false,
        })
    }

    async fn write(&mut self, text: &[u8]) -> anyhow::Result<()> {
        match &mut self.file {
            None => Ok(write(text).await?),
            Some(file) => {
                file.write_all(text).await.context("cannot write results")?;
                file.flush().await.context("cannot write results")
            }
        }
    }
}

/// Prints rows that are all there.
///
/// # Errors
/// When the rows have no such format, or standard output cannot be written to.
pub(super) async fn print_batch(format: Format, rows: &RecordBatch) -> anyhow::Result<()> {
    let mut formatter = Formatter::new(format).on_stdout();
    write(&formatter.push(rows)?).await?;
    write(&formatter.finish()?).await?;
    Ok(())
}

/// Writes to standard output without blocking the thread, so that a signal still stops a command whose output nobody
/// reads.
pub(super) async fn write(text: &[u8]) -> Result<(), Stdout> {
    if text.is_empty() {
        return Ok(());
    }
    let write = async {
        let mut stdout = tokio::io::stdout();
        stdout.write_all(text).await?;
        stdout.flush().await
    };
    write.await.map_err(|error: io::Error| Stdout(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn footers_say_what_there_is() {
        let time = Some(Duration::from_millis(1230));
        let count = |rows, shown, left_out| Count {
            rows,
            shown,
            left_out,
        };
        assert_eq!(footer(&count(Some(3), 3, 0), time), "(3 rows in 1.230 s)\n");
        assert_eq!(footer(&count(Some(1), 0, 0), None), "(1 row)\n");
        assert_eq!(footer(&count(None, 0, 0), time), "(in 1.230 s)\n");
        assert_eq!(footer(&count(None, 0, 0), None), "");
        let much = footer(&count(Some(2500), 1000, 13), time);
        assert!(
            much.starts_with("(first 1,000 of 2,500 rows with 13 columns left out"),
            "{much}"
        );
    }
}
