//! Leader election among the schedulers on one record: the leader plans jobs and writes the record.
//!
//! ```text
//!   read the log ─► nobody leads, or the leader's process has ended ──► take over: write the next segment
//!       ▲      └──► a leader: watch its pulse until it is still ──┐          │
//!       └─────────────────────────────────────────────────────────┴──────────┘ somebody else was first
//! ```
//!
//! The next segment of the log is the fence: the scheduler that writes it leads, and the superseded leader finds out with
//! its next write, or its next look, and ends. Clocks are not compared: a standby measures how long the pulse is still.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;
use volley_proto::access::started;
use volley_proto::store::{Log, Replay};
use volley_proto::{Error, Result};

use super::Record;
use super::state::{Kept, Segment, State};
use super::writer::Writer;
use crate::control::{Recorded, RecordedUsage};

/// Time without a change of the pulse after which a leader is gone.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// Number of looks at a pulse that find no change, after which the leader is gone.
const LOOKS: u32 = 12;

/// Number of times that a log is read before that is given up.
const READS: u32 = 4;
/// Pause between two of them.
const AGAIN: Duration = Duration::from_millis(500);

/// Scheduler that leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leader {
    /// Id of the process's leadership.
    pub(super) id: String,
    /// Address by which it is dialled.
    pub(crate) address: String,
    host: String,
    pid: u32,
    /// Time when the process began, in the system's clock ticks.
    started: Option<String>,
}

/// Record that this process leads, with what an earlier scheduler left.
#[derive(Debug)]
pub(crate) struct Led {
    pub(crate) record: Record,
    pub(crate) writer: Writer,
    pub(crate) jobs: Vec<Recorded>,
    pub(crate) executors: BTreeSet<String>,
    pub(crate) usage: Option<RecordedUsage>,
    pub(crate) kept: Vec<Kept>,
}

impl Leader {
    /// Describes this process.
    pub(crate) fn here(address: &str) -> Self {
        let pid = std::process::id();
        Self {
            id: Uuid::now_v7().to_string(),
            address: address.to_owned(),
            host: host(),
            pid,
            started: started(pid),
        }
    }

    /// Checks whether it was a process of this host that has ended.
    fn has_ended(&self) -> bool {
        self.host == host() && self.started.is_some() && started(self.pid) != self.started
    }

    /// # Errors
    /// When it cannot be encoded.
    pub(super) fn encoded(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| Error::malformed("record of jobs", error))
    }
}

/// Identifies this host, and the processes that share ids here.
fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link(Path::new("/proc/self/ns/pid")).unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// Takes over a record, once no other scheduler leads, or the one that does has been silent for the lease; `stands_by` is
/// told of one that does.
///
/// # Errors
/// When the record cannot be read or written.
pub(crate) async fn lead(
    (log, lease): (Log, Duration),
    me: Leader,
    stands_by: impl Fn(&Leader),
) -> Result<Led> {
    let mut gone = None;
    loop {
        let replay = read(&log).await?;
        let mut state = State::of(&replay)?;
        if let Some(leader) = &state.leader
            && !leader.has_ended()
            && gone.as_ref() != Some(&leader.id)
        {
            stands_by(leader);
            until_still(&log, lease, &leader.id).await;
            gone = Some(leader.id.clone());
            continue;
        }
        let takes_over = Segment {
            leader: Some(me.encoded()?),
            writer: me.id.clone(),
            ..Segment::new()
        };
        let content = Bytes::from(takes_over.encode_to_vec());
        if !log.append(replay.next, &content).await? {
            continue;
        }
        // Whoever watches takes the pulse of the leader before for that of this one.
        log.beat(&pulse(&me.id, Some(0))).await.ok();
        let id = me.id.clone();
        state.leader = Some(me);
        let (jobs, executors, kept) = state.restored();
        let usage = state.usage();
        let record = Record::of(state);
        let writer = Writer::new(log, replay.next + 1, (id, record.clone()));
        return Ok(Led {
            record,
            writer,
            jobs,
            executors,
            usage,
            kept,
        });
    }
}

/// Reads a log, again if it fails: while it is read, the leader may put a snapshot in the place of segments.
async fn read(log: &Log) -> Result<Replay> {
    for _ in 1..READS {
        match log.read().await {
            Ok(replay) => return Ok(replay),
            Err(error) => tracing::warn!(%error, "the record cannot be read; trying again"),
        }
        sleep(AGAIN).await;
    }
    log.read().await
}

/// Returns the sign of life of a leader by its number, or the sign that it has given up the record.
pub(super) fn pulse(leader: &str, beat: Option<u64>) -> Bytes {
    Bytes::from(match beat {
        Some(number) => format!("{leader} {number}"),
        None => format!("{leader} gone"),
    })
}

/// Waits until a leader has shown no sign of life for the lease, or has given up the record. Looks that were late, as
/// after a pause of this process, do not count.
async fn until_still(log: &Log, lease: Duration, leader: &str) {
    let pause = lease / LOOKS;
    let (mut last, mut still) = (None, 0);
    while still < LOOKS {
        let begins = Instant::now();
        sleep(pause).await;
        let seen = timeout(pause, log.pulse()).await;
        let is_late = begins.elapsed() > 3 * pause;
        match seen {
            Ok(Ok(Some(gone))) if gone == pulse(leader, None) => return,
            Ok(Ok(seen)) if seen == last && !is_late => still += 1,
            Ok(Ok(seen)) => (last, still) = (seen, 0),
            // The leader may be there all the same.
            Ok(Err(error)) => {
                tracing::warn!(%error, "the record cannot be read; trying again");
                still = 0;
            }
            Err(_) => still = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volley_proto::access::Role;
    use volley_proto::tables::JobState;

    use crate::control::{
        Change, GpuDays, GpuQuota, Held, JobEnd, JobLimits, MemoryQuota, Submission, Totals,
        UserUsage,
    };
    use crate::record::Submitted;
    use std::time::SystemTime;
    use tempfile::TempDir;

    fn log(dir: &TempDir) -> Log {
        let url = volley_proto::store::log_url(dir.path().to_str().unwrap()).unwrap();
        Log::open(&url).unwrap()
    }

    fn ended() -> Leader {
        Leader {
            started: Some("long ago".to_owned()),
            ..Leader::here("gone:1")
        }
    }

    async fn led(dir: &TempDir, me: Leader) -> Led {
        lead((log(dir), LEASE), me, |leader| panic!("{leader:?} leads"))
            .await
            .unwrap()
    }

    fn open(record: &Record, submission: &Submission) {
        record.opened(Submitted {
            submission,
            submitted: SystemTime::now(),
            request: Bytes::from_static(b"plan"),
            stores: b"[]".to_vec(),
        });
    }

    #[tokio::test]
    async fn jobs_outlive_the_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let Led {
            record,
            writer,
            jobs,
            ..
        } = led(&dir, ended()).await;
        assert!(jobs.is_empty());
        tokio::spawn(writer.run(std::future::pending()));
        let submission = Submission::query("j");
        open(&record, &submission);
        record.written().await.unwrap();
        let figures = record.figures().unwrap();
        assert_eq!((figures.failures, figures.failing), (0, false));
        assert!(figures.writes > 0 && figures.silence < LEASE, "{figures:?}");
        record.submits("j").await;
        let attempt = |attempt: &str| Change::Attempt {
            job: "j".into(),
            attempt: attempt.into(),
        };
        record.change(attempt("k"));
        record.change(Change::Executors(["a".to_owned()].into()));
        record.written().await.unwrap();
        let led = led(&dir, ended()).await;
        let [job] = &led.jobs[..] else {
            panic!("{:?}", led.jobs)
        };
        assert_eq!(job.attempts, ["j", "k"]);
        assert_eq!((job.futile, &job.end), (2, &None));
        assert_eq!(job.submission.operation, submission.operation);
        assert_eq!(led.executors, ["a".to_owned()].into());
        assert_eq!(led.kept[0].request, Bytes::from_static(b"plan"));
        assert_eq!(led.kept[0].job, "j");
    }

    fn usage(owner: &str, gpu_seconds: f64) -> UserUsage {
        UserUsage {
            owner: owner.to_owned(),
            jobs: Totals {
                submitted: 4,
                reruns: 0,
                succeeded: 3,
                failed: 2,
                cancelled: 1,
            },
            held: Held {
                slot_seconds: 1.5,
                rank_seconds: 2.5,
                gpu_seconds,
                gpu_days: GpuDays::restored([(20_000, gpu_seconds), (20_001, 1.0)]),
            },
        }
    }

    #[tokio::test]
    async fn usage_outlives_the_scheduler_and_a_snapshot() {
        let dir = tempfile::tempdir().unwrap();
        let Led {
            record,
            writer,
            usage: none,
            ..
        } = led(&dir, ended()).await;
        assert_eq!(none, None);
        let since = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let change =
            |users: Vec<UserUsage>| record.change(Change::Usage(RecordedUsage { since, users }));
        change(vec![usage("alice", 1.0), usage("bob", 2.0)]);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(writer.run(async {
            stopped.await.ok();
        }));
        record.written().await.unwrap();
        // The newest counts, also if it is the last that a scheduler writes.
        change(vec![usage("alice", 3.0)]);
        stop.send(()).unwrap();
        assert!(running.await.unwrap());
        let users = vec![usage("alice", 3.0), usage("bob", 2.0)];
        let kept = Some(RecordedUsage { since, users });
        let second = led(&dir, ended()).await;
        assert_eq!(second.usage, kept);
        let state = State::of(&log(&dir).read().await.unwrap()).unwrap();
        let snapshot = state.clone().snapshot().unwrap();
        let replay = Replay {
            snapshot: Some(snapshot.encode_to_vec().into()),
            segments: Vec::new(),
            next: 1,
        };
        assert_eq!(State::of(&replay).unwrap().usage(), kept);
    }

    #[tokio::test]
    async fn limits_of_a_job_outlive_the_scheduler() {
        let dir = tempfile::tempdir().unwrap();
        let Led { record, writer, .. } = led(&dir, ended()).await;
        tokio::spawn(writer.run(std::future::pending()));
        let limits = JobLimits {
            role: Role::Run,
            time: Some(Duration::from_secs(3)),
            rows: Some(4),
            jobs: Some(5),
            memory: MemoryQuota {
                limit: Some(6),
                slot: Some(7),
            },
            gpus: Some(GpuQuota {
                time: Duration::from_secs(8),
                days: 9,
            }),
        };
        for (job, limits) in [("j", limits), ("k", JobLimits::none(Role::Read))] {
            let limits = Some(limits);
            open(
                &record,
                &Submission {
                    limits,
                    ..Submission::query(job)
                },
            );
        }
        record.written().await.unwrap();
        let jobs = led(&dir, ended()).await.jobs;
        let kept: Vec<_> = jobs.iter().map(|job| job.submission.limits).collect();
        assert_eq!(kept, [Some(limits), Some(JobLimits::none(Role::Read))]);
    }

    #[tokio::test]
    async fn a_scheduler_that_another_has_replaced_ends() {
        let dir = tempfile::tempdir().unwrap();
        let first = led(&dir, ended()).await;
        let ends = tokio::spawn(first.writer.run(std::future::pending()));
        let second = led(&dir, Leader::here("new:1")).await;
        open(&first.record, &Submission::query("j"));
        let said = first.record.written().await.unwrap_err();
        assert!(said.contains("another scheduler"), "{said}");
        assert!(!ends.await.unwrap());
        drop(second);
    }

    #[tokio::test]
    async fn another_takes_over_from_one_that_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let first = led(&dir, Leader::here("first:1")).await;
        // Its process has ended, which one on another host cannot know.
        drop(first);
        let lease = Duration::from_millis(600);
        let seen = std::sync::atomic::AtomicUsize::new(0);
        let begins = Instant::now();
        let second = lead((log(&dir), lease), Leader::here("second:1"), |leader| {
            assert_eq!(leader.address, "first:1");
            seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        second.await.unwrap();
        assert_eq!(seen.into_inner(), 1);
        assert!(begins.elapsed() >= lease);
    }

    /// Ends of jobs are written however many jobs have ended since they were submitted.
    #[tokio::test]
    async fn the_end_of_an_old_job_is_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let Led { record, writer, .. } = led(&dir, ended()).await;
        tokio::spawn(writer.run(std::future::pending()));
        let ends = |job: &str| {
            record.change(Change::Ended {
                job: job.into(),
                end: JobEnd {
                    state: JobState::Succeeded,
                    error: None,
                    at: SystemTime::now(),
                    notes: Vec::new(),
                },
            });
        };
        open(&record, &Submission::query("old"));
        record.written().await.unwrap();
        for number in 0..600 {
            let job = format!("j{number}");
            open(&record, &Submission::query(&job));
            ends(&job);
        }
        ends("old");
        record.settled("old").await;
        let led = led(&dir, ended()).await;
        let running = led.jobs.iter().filter(|job| job.end.is_none());
        assert_eq!(running.count(), 0);
        assert!(led.kept.is_empty());
        assert_eq!(led.jobs.len(), 256);
    }

    #[tokio::test]
    async fn what_was_written_and_not_answered_is_no_other_s() {
        let dir = tempfile::tempdir().unwrap();
        let Led { record, writer, .. } = led(&dir, ended()).await;
        let id = writer.id().to_owned();
        let lost = Segment {
            writer: id,
            ..Segment::new()
        };
        let next = log(&dir).read().await.unwrap().next;
        let content = Bytes::from(lost.encode_to_vec());
        assert!(log(&dir).append(next, &content).await.unwrap());
        tokio::spawn(writer.run(std::future::pending()));
        open(&record, &Submission::query("j"));
        record.written().await.unwrap();
        assert_eq!(led(&dir, ended()).await.jobs.len(), 1);
    }

    #[tokio::test]
    async fn a_scheduler_finds_out_that_others_are_past_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let first = led(&dir, Leader::here("first:1")).await;
        let log = log(&dir);
        let next = log.read().await.unwrap().next;
        let other = Bytes::from(Segment::new().encode_to_vec());
        assert!(log.append(next, &other).await.unwrap());
        log.compact(next + 1, other).await.unwrap();
        let ends = tokio::spawn(first.writer.run(std::future::pending()));
        open(&first.record, &Submission::query("j"));
        assert!(first.record.written().await.is_err());
        assert!(!ends.await.unwrap());
    }

    #[tokio::test]
    async fn one_that_gives_up_the_record_is_followed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let first = led(&dir, Leader::here("first:1")).await;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(first.writer.run(async {
            stopped.await.ok();
        }));
        open(&first.record, &Submission::query("j"));
        stop.send(()).unwrap();
        assert!(running.await.unwrap());
        let second = led(&dir, Leader::here("second:1")).await;
        assert_eq!(second.jobs.len(), 1, "what was pending is written");
    }
}
