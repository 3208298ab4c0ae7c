//! `volley jobs`: the jobs on a cluster, of all clients.
//!
//! ```text
//! list    ──> one row a job
//! cancel  ──> asked ──> ended, or still ending
//! logs    ──> notes so far, state, error
//! attach  ──> notes as they come ──> ended ──> rows, or the error
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use arrow::array::{Float64Array, RecordBatch, UInt32Array};
use arrow::error::ArrowError;
use futures::TryStreamExt;
use tokio::time::{Instant, sleep};
use volley::{Error, Job, JobEvent, JobState, Jobs, Scope, SystemTables};
use volley_proto::tables::Line;

use super::Ended;
use super::config::{Jobs as Config, JobsAction};
use super::execute::{print_batch, write};
use super::format::{Format, Formatter, age, texts, times};
use super::progress::{Progress, Style};
use super::script::shorten;
use super::signals::Interrupts;

/// Time that `cancel` waits for the job to end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(10);

/// Time that a scheduler which does not answer is waited for.
const RETURN: Duration = Duration::from_secs(60);
/// Pause between two requests to a scheduler that does not answer.
const REDIAL: Duration = Duration::from_millis(500);

/// Runs the action on the jobs.
///
/// # Errors
/// When the scheduler does not answer, does not know the job, or the attached job has failed.
pub(super) async fn run(config: &Config) -> anyhow::Result<Ended> {
    let mut interrupts = Interrupts::listen()?;
    let work = async {
        let remote = &config.remote;
        let jobs = Jobs::connect(remote.open()?, remote.timeout).await?;
        match &config.action {
            JobsAction::List => list(&jobs, config).await,
            JobsAction::Cancel { id } => cancel(&jobs, id).await,
            JobsAction::Logs { id } => logs(&jobs, id).await,
            JobsAction::Attach { id } => attach(&jobs, id, config).await,
        }
    };
    match interrupts.stop(work).await {
        ControlFlow::Continue(done) => done.map(|()| Ended::Done),
        ControlFlow::Break(code) => {
            if let JobsAction::Attach { id } = &config.action {
                eprintln!(
                    "detached from job {id}, which keeps running: `volley jobs cancel {id}` cancels it"
                );
            }
            Ok(Ended::Interrupted(code))
        }
    }
}

async fn list(jobs: &Jobs, config: &Config) -> anyhow::Result<()> {
    let mut list = jobs.list().await?;
    if config.remote.format.is_for_people() {
        // A very wide table is unreadable; programs get the full name.
        for job in &mut list {
            job.name = shorten(&job.name);
        }
    }
    let now = SystemTime::now();
    let mut rows = table(&list, now)?;
    if config.remote.format.is_for_people() {
        rows = for_people(&list, &rows, now)?;
    }
    print_batch(config.remote.format, &rows).await
}

async fn cancel(jobs: &Jobs, id: &str) -> anyhow::Result<()> {
    let line = match jobs.cancel(id, CANCEL_PATIENCE).await? {
        (JobState::Succeeded, true) => format!("job {id} has already succeeded"),
        (JobState::Failed, true) => format!("job {id} has already failed"),
        (state, true) => format!("job {id} was already {state}"),
        (JobState::Cancelled, false) => format!("job {id} cancelled"),
        (state, false) if state.has_ended() => {
            format!("job {id} {state} before it could be cancelled")
        }
        (_, false) => format!("job {id} is being cancelled"),
    };
    write(format!("{line}\n").as_bytes()).await?;
    Ok(())
}

/// Prints a job's state, with the cause if it failed, and the events of the job and its training.
async fn logs(jobs: &Jobs, id: &str) -> anyhow::Result<()> {
    let job = jobs.find(id).await?;
    let lines: Vec<Line> = SystemTables::of(jobs.scheduler())
        .rows(Scope::Job(&job.id))
        .await?;
    let mut text = String::new();
    if let Some(error) = &job.error {
        let cause = lines
            .iter()
            .find(|line| line.failure && line.rank.is_some());
        let cause = cause.map_or_else(
            || error.clone(),
            |line| format!("{}{}", teller(line), line.text),
        );
        text.push_str(&format!("{}: {cause}\n", job.state));
    } else {
        text.push_str(&format!("{}\n", job.state));
    }
    for line in &lines {
        let at = UNIX_EPOCH + Duration::from_millis(line.at);
        let at = humantime::format_rfc3339_seconds(at);
        text.push_str(&format!("{at} {}{}\n", teller(line), line.text));
    }
    write(text.as_bytes()).await?;
    Ok(())
}

/// Returns the rank that reports a line, as a prefix.
fn teller(line: &Line) -> String {
    line.rank
        .map(|rank| format!("rank {rank}: "))
        .unwrap_or_default()
}

async fn attach(jobs: &Jobs, id: &str, config: &Config) -> anyhow::Result<()> {
    let job = jobs.find(id).await?;
    let followed = follow_to_end(jobs, &job, config.remote.quiet);
    let job = match job.train_id {
        Some(run) => {
            let style = Style::of(config.remote.quiet, config.remote.format == Format::Json);
            let progress = Progress::of_training(jobs.scheduler(), run, style);
            progress.beside(followed).await?
        }
        None => followed.await?,
    };
    match job.state {
        JobState::Succeeded => print_rows(jobs, &job.id, config.remote.format).await,
        JobState::Cancelled => Err(anyhow!("job {id} was cancelled")),
        _ => {
            let error = job.error.unwrap_or_else(|| "for an unknown reason".into());
            Err(anyhow!("job {id} failed: {error}"))
        }
    }
}

/// Prints a job's notes until it has ended.
async fn follow_to_end(jobs: &Jobs, job: &Job, quiet: bool) -> volley::Result<Job> {
    let (mut seen, mut silent_since) = (0, None);
    loop {
        let (now, notes, seen_now) = match jobs.follow(&job.id, seen).await {
            Err(Error::SchedulerLost {
                job: id, source, ..
            }) => {
                let since = *silent_since.get_or_insert_with(|| {
                    let address = jobs.address();
                    tracing::warn!(
                        "the scheduler at {address} does not answer: waiting up to {RETURN:?} for it to come back"
                    );
                    Instant::now()
                });
                if since.elapsed() < RETURN {
                    sleep(REDIAL).await;
                    continue;
                }
                let training = job.train_id.is_some();
                return Err(Error::SchedulerLost {
                    job: id,
                    training,
                    source,
                });
            }
            // The scheduler knew the job at first.
            Err(Error::UnknownJob { .. }) => {
                return Err(Error::SchedulerRestarted {
                    job: job.id.clone(),
                    training: job.train_id.is_some(),
                });
            }
            followed => followed?,
        };
        silent_since = None;
        seen = seen_now;
        if !quiet {
            notes.iter().for_each(|note| eprintln!("{}", line(note)));
        }
        if now.state.has_ended() {
            return Ok(now);
        }
    }
}

async fn print_rows(jobs: &Jobs, id: &str, format: Format) -> anyhow::Result<()> {
    let mut rows = jobs.rows(id).await?;
    let mut formatter = Formatter::new(format).on_stdout();
    while let Some(batch) = rows.try_next().await? {
        write(&formatter.push(&batch).context("cannot format the rows")?).await?;
    }
    write(&formatter.finish().context("cannot format the rows")?).await?;
    Ok(())
}

/// Formats an event as a line.
fn line(event: &JobEvent) -> String {
    let at = humantime::format_rfc3339_seconds(event.at);
    format!("{at} {}", event.text)
}

/// Returns the state of a job: `waiting` instead of `running` without a task that runs.
fn state(job: &Job) -> String {
    match (job.state, &job.waits) {
        (JobState::Running, Some(_)) => "waiting".to_owned(),
        (state, _) => state.to_string(),
    }
}

/// Returns a table with one row per job.
fn table(jobs: &[Job], now: SystemTime) -> Result<RecordBatch, ArrowError> {
    let attempts = jobs
        .iter()
        .map(|job| u32::try_from(job.attempts.len()).ok());
    // Rounded to a tenth: that is precise enough, and readable in a table.
    let seconds = jobs
        .iter()
        .map(|job| Some((job.duration(now).as_secs_f64() * 10.0).round() / 10.0));
    RecordBatch::try_from_iter([
        ("id", texts(jobs, |job| job.id.clone())),
        ("state", texts(jobs, state)),
        ("owner", texts(jobs, |job| job.owner.clone())),
        ("queue", texts(jobs, |job| job.queue.clone())),
        ("attempts", Arc::new(attempts.collect::<UInt32Array>())),
        ("submitted", times(jobs, |job| job.submitted)),
        ("seconds", Arc::new(seconds.collect::<Float64Array>())),
        ("name", texts(jobs, |job| job.name.clone())),
    ])
}

/// Leaves out what is the same for all jobs, and shows their age instead of the time: a table of jobs is as wide as a
/// terminal.
fn for_people(
    jobs: &[Job],
    rows: &RecordBatch,
    now: SystemTime,
) -> Result<RecordBatch, ArrowError> {
    let has_queues = jobs.windows(2).any(|pair| pair[0].queue != pair[1].queue);
    let has_owners = jobs.windows(2).any(|pair| pair[0].owner != pair[1].owner);
    let has_attempts = jobs.iter().any(|job| job.attempts.len() > 1);
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns());
    let columns = columns.filter(|(field, _)| match field.name().as_str() {
        "queue" => has_queues,
        "owner" => has_owners,
        "attempts" => has_attempts,
        _ => true,
    });
    let ages = texts(jobs, |job| age(job.submitted, now));
    let columns = columns.map(|(field, column)| match field.name().as_str() {
        "submitted" => ("age", Arc::clone(&ages)),
        name => (name, Arc::clone(column)),
    });
    RecordBatch::try_from_iter(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_rows() {
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        let note = JobEvent {
            at: at(1_500),
            text: "runs again: executor e-1 was lost".into(),
        };
        assert_eq!(
            line(&note),
            "1970-01-01T00:00:01Z runs again: executor e-1 was lost"
        );
        let rows = table(&[], at(0)).unwrap();
        let names: Vec<_> = rows
            .schema()
            .fields()
            .iter()
            .map(|f| f.name().clone())
            .collect();
        let expected = [
            "id",
            "state",
            "owner",
            "queue",
            "attempts",
            "submitted",
            "seconds",
            "name",
        ];
        assert_eq!(names, expected);
        let shown = for_people(&[], &rows, at(0)).unwrap();
        let names: Vec<_> = shown
            .schema()
            .fields()
            .iter()
            .map(|f| f.name().clone())
            .collect();
        assert_eq!(names, ["id", "state", "age", "seconds", "name"]);
    }
}
