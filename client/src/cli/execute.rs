//! Execution of one statement, with progress, and its rows printed as they come.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use arrow::array::RecordBatch;
use futures::TryStreamExt;
use tokio::io::AsyncWriteExt;
use volley::Statement;

use super::config::Output as Show;
use super::engine::Engine;
use super::format::{Format, Formatter};
use super::progress::{Progress, Style};
use super::report::Stdout;

/// Runs a statement and prints its result. Dropping the future cancels the statement.
///
/// # Errors
/// When the statement fails, or standard output cannot be written to.
pub(super) async fn execute(
    engine: &Engine,
    statement: Statement,
    output: Show,
) -> anyhow::Result<()> {
    print(engine, statement, output).await
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

async fn print(engine: &Engine, statement: Statement, output: Show) -> anyhow::Result<()> {
    let started = Instant::now();
    let ran = run(engine, statement, output.progress).await?;
    let job = ran.job();
    let volley::Output {
        schema,
        mut rows,
        message,
        ..
    } = ran;
    let mut formatter = Formatter::new(output.format);
    let mut count = None;
    // Progress is cleared before the first rows are printed.
    let progress = Progress::of_query(&engine.scheduler, job, output.progress);
    let mut next = progress.beside(rows.try_next()).await;
    while let Some(batch) = next.map_err(volley::Error::from)? {
        *count.get_or_insert(0) += batch.num_rows();
        write(&formatter.push(&batch).context("cannot format the rows")?).await?;
        next = rows.try_next().await;
    }
    if count.is_none() && !schema.fields().is_empty() {
        count = Some(0);
        write(&formatter.push(&RecordBatch::new_empty(schema))?).await?;
    }
    write(&formatter.finish().context("cannot format the rows")?).await?;
    let footer = footer(count, output.timing.then(|| started.elapsed()));
    match output.format {
        _ if output.quiet => {}
        Format::Table => {
            let message = message.map(|message| message + "\n");
            let gap = if count.is_some() { "\n" } else { "" };
            write(format!("{}{footer}{gap}", message.unwrap_or_default()).as_bytes()).await?;
        }
        Format::Csv | Format::Json if output.timing => eprint!("{footer}"),
        Format::Csv | Format::Json => {}
    }
    Ok(())
}

/// Returns the footer, such as `(3 rows in 0.123 s)` with a newline; empty without a count and a time.
fn footer(rows: Option<usize>, elapsed: Option<Duration>) -> String {
    let rows = rows.map(|rows| format!("{rows} {}", if rows == 1 { "row" } else { "rows" }));
    let elapsed = elapsed.map(|elapsed| format!("in {:.3} s", elapsed.as_secs_f64()));
    let parts: Vec<_> = rows.into_iter().chain(elapsed).collect();
    if parts.is_empty() {
        String::new()
    } else {
        format!("({})\n", parts.join(" "))
    }
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
        assert_eq!(footer(Some(3), time), "(3 rows in 1.230 s)\n");
        assert_eq!(footer(Some(1), None), "(1 row)\n");
        assert_eq!(footer(None, time), "(in 1.230 s)\n");
        assert_eq!(footer(None, None), "");
    }
}
