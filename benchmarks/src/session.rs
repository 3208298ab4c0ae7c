//! Statements run by one `volley` command, one after the other in one session, with the time of each.
//!
//! Times are measured inside the session: they exclude the command's start and end, and the parsing of the script,
//! which `volley` does before the first statement.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

/// Time limit of a session, after which it is killed.
const DEADLINE: Duration = Duration::from_secs(900);

/// Output of a session.
pub(crate) struct Session {
    /// Rows as JSON, with the time when each could be read.
    pub(crate) lines: Vec<(Instant, String)>,
    /// Standard error of the session.
    pub(crate) said: String,
    status: ExitStatus,
}

/// Statement that was run.
#[derive(Debug, PartialEq)]
pub(crate) struct Statement {
    /// Time as `volley --timing` prints it, with a resolution of 1 ms.
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<Value>,
}

impl Session {
    /// Runs a script in `volley`; the command already names the engine to use.
    pub(crate) fn run(mut volley: Command, script: &str, dir: &Path) -> anyhow::Result<Self> {
        let (file, log) = (dir.join("script.sql"), dir.join("session.log"));
        fs::write(&file, script)?;
        let mut process = volley
            .args(["--timing", "--file"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start volley")?;
        let stdout = process.stdout.take().context("it has no standard output")?;
        let read = std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map(|line| (Instant::now(), line)).collect::<Vec<_>>()
        });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = process.try_wait()? {
                break status;
            }
            if started.elapsed() > DEADLINE {
                process.kill()?;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let lines = read.join();
        Ok(Self {
            lines: lines.ok().context("the reader of volley's rows panicked")?,
            said: fs::read_to_string(log)?,
            status,
        })
    }

    /// Fails if a statement has failed.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.status.success(),
            "volley ended with {}: {}",
            self.status,
            self.said
        );
        Ok(())
    }

    /// Returns the reason why the session ended before its last statement, if it did.
    pub(crate) fn error(&self) -> Option<String> {
        let reasons = self.said.lines().filter(|line| timing(line).is_none());
        (!self.status.success()).then(|| {
            let reasons: Vec<_> = reasons.collect();
            format!("{}: {}", self.status, reasons.join(" "))
        })
    }

    /// Returns the completed statements, in order.
    pub(crate) fn statements(&self) -> anyhow::Result<Vec<Statement>> {
        let lines = self.lines.iter().map(|(_, line)| line.as_str());
        statements(&self.said, lines)
    }
}

/// Splits the output into statements: their times and their rows, which follow one another.
fn statements<'a>(
    said: &str,
    mut lines: impl Iterator<Item = &'a str>,
) -> anyhow::Result<Vec<Statement>> {
    let statement = |(rows, seconds)| {
        let rows: Vec<Value> = lines
            .by_ref()
            .take(rows)
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        Ok(Statement { seconds, rows })
    };
    said.lines().filter_map(timing).map(statement).collect()
}

/// Parses the rows and the seconds of `(1,234 rows in 0.123 s)`, or of `(in 0.123 s)`.
fn timing(line: &str) -> Option<(usize, f64)> {
    let inside = line.strip_prefix('(')?.strip_suffix(" s)")?;
    let (rows, seconds) = inside.split_once("in ")?;
    let rows = match rows.split_whitespace().next() {
        Some(rows) => rows.replace(',', "").parse().ok()?,
        None => 0,
    };
    Some((rows, seconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_belong_to_the_statement_whose_timing_counts_them() {
        assert_eq!(timing("(1,234 rows in 0.500 s)"), Some((1234, 0.5)));
        let said = "(in 0.010 s)\nsomething else\n(2 rows in 1.500 s)\n(1 row in 0.002 s)\n";
        let statement = |seconds, rows| Statement { seconds, rows };
        let found = statements(said, ["{\"a\":1}", "{\"a\":2}", "{\"b\":3}"].into_iter());
        let expected = [
            statement(0.01, vec![]),
            statement(1.5, vec![json!({"a": 1}), json!({"a": 2})]),
            statement(0.002, vec![json!({"b": 3})]),
        ];
        assert_eq!(found.unwrap(), expected);
    }
}
