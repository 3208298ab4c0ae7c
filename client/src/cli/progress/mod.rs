//! Progress of a running statement on standard error: bars on a terminal, a line every few seconds elsewhere, JSON for
//! programs.
//!
//! It comes from the scheduler. Progress is optional: when it is not available, the statement goes on without it.

mod clock;
mod events;
mod show;

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};
use volley::{QueryJob, SchedulerAddress, Scope, SystemTables};
use volley_proto::TrainId;
use volley_proto::notes::is_rerun;
use volley_proto::tables::{Job, Line, Rank, Run, Stage};

use self::events::Events;
use self::show::Show;
pub(super) use self::show::Style;

/// Interval of requests for progress.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time limit for the last events after the statement has ended; the scheduler holds its answer back while there are
/// none.
const LAST: Duration = Duration::from_millis(200);

/// Progress of one job.
pub(super) struct Progress {
    system_tables: SystemTables,
    subject: Subject,
    events: Option<Events>,
    show: Mutex<Show>,
}

/// Job that is followed.
enum Subject {
    Query(QueryJob),
    Training(TrainId),
}

/// Progress of a job at one moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) stages: Vec<Stage>,
    /// Reason why the job waits, if it does.
    pub(super) waits: Option<String>,
    /// Notes about the times that a query has been run again.
    pub(super) again: Vec<String>,
    pub(super) run: Option<Run>,
    pub(super) ranks: Vec<Rank>,
}

/// Formats a loss or metric with six digits, and five decimals at most.
fn short(number: f64) -> String {
    let whole = match number.abs() {
        number if number >= 10.0 => number.log10().floor(),
        _ => 0.0,
    };
    let decimals = (5.0 - whole).clamp(0.0, 5.0) as usize;
    format!("{number:.decimals$}")
}

impl Progress {
    /// Follows a training run, by the id in its statement.
    pub(super) fn of_training(scheduler: &SchedulerAddress, id: TrainId, style: Style) -> Self {
        Self {
            system_tables: SystemTables::of(scheduler),
            subject: Subject::Training(id),
            events: Some(Events::of(scheduler, id, style == Style::Json)),
            show: Mutex::new(Show::new(style)),
        }
    }

    /// Follows a query, as soon as its job is known.
    pub(super) fn of_query(scheduler: &SchedulerAddress, job: QueryJob, style: Style) -> Self {
        Self {
            system_tables: SystemTables::of(scheduler),
            subject: Subject::Query(job),
            events: None,
            show: Mutex::new(Show::new(style)),
        }
    }

    /// Does the work and shows its progress meanwhile. On a terminal, only the events stay.
    pub(super) async fn beside<T>(mut self, work: impl Future<Output = T>) -> T {
        if !self.show.get_mut().is_on() {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        let done = tokio::select! {
            biased;
            done = &mut work => done,
            // Following ends only when it is dropped.
            () = self.follow() => work.await,
        };
        if let Some(events) = &mut self.events {
            let rest = async {
                loop {
                    let lines = events.next().await;
                    self.show.get_mut().events(&lines);
                }
            };
            // The timeout is the usual end: the scheduler waits for events that do not come.
            let _ = timeout(LAST, rest).await;
            if let Some(line) = events.rest() {
                self.show.get_mut().events(&[line]);
            }
        }
        self.show.get_mut().finish();
        done
    }

    /// Shows events and progress, as long as it is polled.
    async fn follow(&mut self) {
        let Self {
            system_tables,
            subject,
            events,
            show,
        } = self;
        let happens = async {
            if let Some(events) = events {
                loop {
                    let lines = events.next().await;
                    show.lock().events(&lines);
                }
            }
        };
        let advances = async {
            let mut tick = interval(INTERVAL);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // Work that is done at once needs no request.
            tick.tick().await;
            let mut told = 0;
            loop {
                tick.tick().await;
                if let Some(snapshot) = snapshot(system_tables, subject, told).await {
                    let mut show = show.lock();
                    told += snapshot.again.len();
                    show.events(&snapshot.again);
                    show.snapshot(&snapshot);
                }
            }
        };
        tokio::join!(happens, advances);
    }
}

/// Reads the progress of a job, if the scheduler answers; `told` is the number of reruns that were shown.
async fn snapshot(
    system_tables: &SystemTables,
    subject: &Subject,
    told: usize,
) -> Option<Snapshot> {
    let job;
    let of = match subject {
        Subject::Training(id) => Scope::Training(*id),
        Subject::Query(query) => {
            job = query.id()?;
            Scope::Job(&job)
        }
    };
    let read = async {
        let stages: Vec<Stage> = system_tables.rows(of).await?;
        let idle = stages.iter().all(|stage| stage.running == 0);
        let (mut waits, mut again) = (None, Vec::new());
        if let Subject::Query(_) = subject {
            let jobs: Vec<Job> = system_tables.rows(of).await?;
            let job = jobs.into_iter().next();
            let reruns = job.as_ref().map_or(0, |job| job.attempts.saturating_sub(1));
            if reruns > told as u64 {
                let lines: Vec<Line> = system_tables.rows(of).await?;
                again = reruns_told(lines, told);
            }
            waits = job.and_then(|job| job.waits).filter(|_| idle);
        }
        let (run, ranks) = match subject {
            Subject::Query(_) => (None, Vec::new()),
            Subject::Training(_) => {
                let runs: Vec<Run> = system_tables.rows(of).await?;
                (runs.into_iter().next(), system_tables.rows(of).await?)
            }
        };
        Ok::<_, volley::Error>(Snapshot {
            stages,
            waits,
            again,
            run,
            ranks,
        })
    };
    read.await
        .inspect_err(|error| tracing::debug!("no progress: {error}"))
        .ok()
}

/// Returns the lines of a log about reruns, after the first `told`.
fn reruns_told(lines: Vec<Line>, told: usize) -> Vec<String> {
    let texts = lines.into_iter().map(|line| line.text);
    let reruns = texts.filter(|text| is_rerun(text));
    reruns.skip(told).collect()
}

#[cfg(test)]
mod tests {
    use volley_proto::notes::runs_again;

    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        for (number, due) in [
            (0.0, "0.00000"),
            (0.25, "0.25000"),
            (9.999999, "10.00000"),
            (-12.345678, "-12.3457"),
            (7_926_326.596_5, "7926327"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(short(number), due);
        }
    }

    #[test]
    fn each_rerun_is_told_once() {
        let line = |text: &str| Line {
            at: 0,
            job_id: None,
            train_id: None,
            executor_id: None,
            rank: None,
            failure: false,
            text: text.to_owned(),
        };
        let again = |number: usize| format!("executor e was lost: {}", runs_again(number, " of 5"));
        let lines = || {
            let texts = [again(2), "attempt 2 has the id x".to_owned(), again(3)];
            texts.iter().map(|text| line(text)).collect::<Vec<_>>()
        };
        assert_eq!(reruns_told(lines(), 0), [again(2), again(3)]);
        assert_eq!(reruns_told(lines(), 1), [again(3)]);
        assert!(reruns_told(lines(), 2).is_empty());
    }
}
