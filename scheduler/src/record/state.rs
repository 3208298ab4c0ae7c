//! Content of the record: jobs, the registered executors, usage, and the leader.
//!
//! A segment of the log has the jobs that have changed, whole but for their submissions, which are written once, and the
//! usage of users for whom it has changed, whole. So reading is taking the last of each. The encoding is that of protocol buffers: fields that a build does not know are
//! skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use indexmap::IndexMap;
use prost::Message;
use serde::de::DeserializeOwned;
use volley_proto::store::Replay;
use volley_proto::tables::millis;
use volley_proto::version::WIRE;
use volley_proto::{Error, Result};

use super::Leader;
use crate::control::{
    Change, GpuDays, GpuQuota, Held, JobEnd, JobLimits, MemoryQuota, Note, Recorded, RecordedUsage,
    Submission, Totals, UserUsage,
};

/// Version of the encoding that this build writes and reads.
const FORMAT: u32 = 1;

/// Number of ended jobs that are kept: as many as the controller lists.
const ENDED: usize = 256;

/// Job that the engine has accepted, with what is needed to submit it again.
#[derive(Debug)]
pub(crate) struct Submitted<'a> {
    pub(crate) submission: &'a Submission,
    pub(crate) submitted: SystemTime,
    /// The engine's message.
    pub(crate) request: Bytes,
    /// Options of stores that its plan refers to by name, as JSON.
    pub(crate) stores: Vec<u8>,
}

/// Submission of a recorded job, with which it is submitted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) job: String,
    pub(crate) request: Bytes,
    pub(crate) stores: Vec<u8>,
    /// Number of the protocol in which it is encoded.
    pub(crate) wire: u32,
}

/// Segment, or snapshot, of the log.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Segment {
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    /// Scheduler that takes over with this segment, as JSON.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) leader: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "3")]
    pub(super) jobs: Vec<JobRecord>,
    /// Executors that are registered, if that has changed.
    #[prost(message, optional, tag = "4")]
    pub(super) executors: Option<Executors>,
    /// True if the scheduler that writes gives up the record with this segment.
    #[prost(bool, tag = "5")]
    pub(super) resigns: bool,
    /// Id of the scheduler that writes.
    #[prost(string, tag = "6")]
    pub(super) writer: String,
    /// Users whose usage has changed.
    #[prost(message, repeated, tag = "7")]
    pub(super) usage: Vec<UsageRecord>,
    /// Time since which usage counts, in milliseconds since 1970; 0 in a segment without any.
    #[prost(uint64, tag = "8")]
    pub(super) usage_since: u64,
}

/// Usage of a user.
#[derive(Clone, PartialEq, Message)]
pub(super) struct UsageRecord {
    #[prost(string, tag = "1")]
    owner: String,
    /// Numbers of jobs, in all and by their end.
    #[prost(uint64, tag = "2")]
    jobs: u64,
    #[prost(uint64, tag = "3")]
    succeeded: u64,
    #[prost(uint64, tag = "4")]
    failed: u64,
    #[prost(uint64, tag = "5")]
    cancelled: u64,
    #[prost(double, tag = "6")]
    slot_seconds: f64,
    #[prost(double, tag = "7")]
    rank_seconds: f64,
    #[prost(double, tag = "8")]
    gpu_seconds: f64,
    /// GPU seconds by the number of the day since 1970.
    #[prost(btree_map = "uint32, double", tag = "9")]
    gpu_days: BTreeMap<u32, f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Executors {
    #[prost(string, repeated, tag = "1")]
    ids: Vec<String>,
}

/// Job.
#[derive(Clone, PartialEq, Message)]
pub(super) struct JobRecord {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    owner: String,
    #[prost(string, optional, tag = "4")]
    train: Option<String>,
    #[prost(string, tag = "5")]
    on_client_loss: String,
    /// Limits by its owner's role.
    #[prost(message, optional, tag = "6")]
    limits: Option<LimitsRecord>,
    #[prost(string, tag = "7")]
    queue: String,
    #[prost(int32, tag = "8")]
    priority: i32,
    /// Time of submission, in milliseconds since 1970.
    #[prost(uint64, tag = "9")]
    submitted: u64,
    #[prost(string, repeated, tag = "10")]
    attempts: Vec<String>,
    #[prost(uint32, tag = "11")]
    futile: u32,
    /// Last generation of its training, from 1; 0 if there is none.
    #[prost(uint64, tag = "12")]
    generation: u64,
    #[prost(uint64, tag = "13")]
    ranks: u64,
    #[prost(message, optional, tag = "14")]
    end: Option<EndRecord>,
    /// Its submission, with the first segment that has the job; not of one that has ended.
    #[prost(message, optional, tag = "15")]
    kept: Option<KeptRecord>,
    #[prost(string, tag = "16")]
    statement: String,
    #[prost(string, tag = "17")]
    operation: String,
}

#[derive(Clone, PartialEq, Message)]
struct LimitsRecord {
    #[prost(string, tag = "1")]
    role: String,
    #[prost(uint64, optional, tag = "2")]
    time_ms: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    rows: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    jobs: Option<u64>,
    /// Memory of its owner's queries, and of a task of the job for each of its slots.
    #[prost(uint64, optional, tag = "5")]
    memory: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    slot_memory: Option<u64>,
    /// GPU time of its owner's trainings, in a window of days.
    #[prost(uint64, optional, tag = "7")]
    gpu_ms: Option<u64>,
    #[prost(uint32, tag = "8")]
    gpu_days: u32,
}

#[derive(Clone, PartialEq, Message)]
struct EndRecord {
    #[prost(string, tag = "1")]
    state: String,
    #[prost(string, optional, tag = "2")]
    error: Option<String>,
    #[prost(uint64, tag = "3")]
    at: u64,
    #[prost(message, repeated, tag = "4")]
    notes: Vec<NoteRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct NoteRecord {
    #[prost(uint64, tag = "1")]
    at: u64,
    #[prost(string, tag = "2")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct KeptRecord {
    #[prost(bytes = "bytes", tag = "1")]
    request: Bytes,
    #[prost(bytes = "vec", tag = "2")]
    stores: Vec<u8>,
    #[prost(uint32, tag = "3")]
    wire: u32,
}

/// Part of the state that a change has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Changed {
    Job(String),
    Executors,
    Usage,
}

/// Change of a job's record.
type Update = Box<dyn FnOnce(&mut JobRecord)>;

/// Jobs by id, in the order of their submission, and what else the record says.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    jobs: IndexMap<String, Entry>,
    executors: BTreeSet<String>,
    usage: BTreeMap<String, UsageRecord>,
    /// Time since which usage counts, in milliseconds since 1970; 0 if there is none.
    usage_since: u64,
    /// Users whose usage is not written yet.
    unwritten_usage: BTreeSet<String>,
    /// Scheduler that writes; `None` if the last one has given it up.
    pub(super) leader: Option<Leader>,
}

#[derive(Debug, Clone)]
struct Entry {
    job: JobRecord,
    /// True once its submission is written.
    kept_is_written: bool,
    /// True once the record may have it.
    maybe_written: bool,
}

impl State {
    /// Reads the state that a log amounts to.
    ///
    /// # Errors
    /// When it cannot be decoded, or a later build has written it.
    pub(super) fn of(replay: &Replay) -> Result<Self> {
        let mut state = Self::default();
        for content in replay.snapshot.iter().chain(&replay.segments) {
            let segment = Segment::decode(content.clone())
                .map_err(|error| Error::malformed("record of jobs", error))?;
            if segment.format != FORMAT {
                let found = segment.format;
                let reason = format!("its format is {found}, this build reads {FORMAT}");
                return Err(Error::malformed("record of jobs", reason));
            }
            state.take(segment)?;
        }
        state.evict(&BTreeSet::new());
        Ok(state)
    }

    fn take(&mut self, segment: Segment) -> Result<()> {
        if let Some(leader) = &segment.leader {
            self.leader = Some(json(leader)?);
        }
        if segment.resigns {
            self.leader = None;
        }
        if let Some(executors) = segment.executors {
            self.executors = executors.ids.into_iter().collect();
        }
        if segment.usage_since > 0 {
            self.usage_since = segment.usage_since;
        }
        for usage in segment.usage {
            self.usage.insert(usage.owner.clone(), usage);
        }
        for mut job in segment.jobs {
            let before = self.jobs.get_mut(&job.id);
            if job.end.is_none() && job.kept.is_none() {
                job.kept = before.and_then(|before| before.job.kept.take());
            }
            let kept_is_written = job.kept.is_some();
            let entry = Entry {
                job,
                kept_is_written,
                maybe_written: true,
            };
            self.jobs.insert(entry.job.id.clone(), entry);
        }
        Ok(())
    }

    /// Adds a job.
    pub(super) fn open(&mut self, submitted: Submitted<'_>) {
        let Submitted {
            submission,
            submitted,
            request,
            stores,
        } = submitted;
        let limits = submission.limits.map(LimitsRecord::from);
        let job = JobRecord {
            id: submission.job.clone(),
            name: submission.name.clone(),
            statement: submission.statement.clone(),
            operation: submission.operation.clone(),
            owner: submission.owner.clone(),
            train: submission.train.map(|train| train.to_string()),
            on_client_loss: submission.on_client_loss.to_string(),
            limits,
            queue: submission.queue.clone(),
            priority: submission.priority,
            submitted: millis(submitted),
            attempts: vec![submission.job.clone()],
            futile: 1,
            generation: 0,
            ranks: 0,
            end: None,
            kept: Some(KeptRecord {
                request,
                stores,
                wire: WIRE,
            }),
        };
        let entry = Entry {
            job,
            kept_is_written: false,
            maybe_written: false,
        };
        self.jobs.insert(submission.job.clone(), entry);
    }

    /// Records that a job is about to be submitted again.
    pub(super) fn submits(&mut self, job: &str) {
        if let Some(entry) = self.jobs.get_mut(job) {
            entry.job.futile += 1;
        }
    }

    /// Checks whether a later scheduler must not miss a change: it would give out the number of a generation again, which
    /// fences the checkpoints of earlier ones, or run a job again that has ended.
    pub(super) fn is_urgent(&self, change: &Change) -> bool {
        match change {
            Change::Generation { .. } => true,
            Change::Ended { job, .. } => {
                let known = self.jobs.get(job);
                known.is_some_and(|entry| entry.maybe_written)
            }
            Change::Attempt { .. }
            | Change::Planned { .. }
            | Change::Executors(_)
            | Change::Usage(_) => false,
        }
    }

    /// Applies a change. Returns what has changed.
    pub(super) fn apply(&mut self, change: Change) -> Changed {
        let (id, change): (String, Update) = match change {
            Change::Executors(executors) => {
                self.executors = executors;
                return Changed::Executors;
            }
            Change::Usage(RecordedUsage { since, users }) => {
                self.usage_since = millis(since);
                for user in users {
                    self.unwritten_usage.insert(user.owner.clone());
                    self.usage.insert(user.owner.clone(), user.into());
                }
                return Changed::Usage;
            }
            Change::Attempt { job, attempt } => {
                (job, Box::new(|record| record.attempts.push(attempt)))
            }
            Change::Planned { job } => (job, Box::new(|record| record.futile = 0)),
            Change::Generation {
                job,
                generation,
                ranks,
            } => {
                let set = move |record: &mut JobRecord| {
                    record.generation = record.generation.max(generation);
                    record.ranks = ranks as u64;
                };
                (job, Box::new(set))
            }
            Change::Ended { job, end } => {
                let set = move |record: &mut JobRecord| {
                    record.end = Some(EndRecord::from(end));
                    record.kept = None;
                };
                (job, Box::new(set))
            }
        };
        if let Some(entry) = self.jobs.get_mut(&id) {
            change(&mut entry.job);
        }
        Changed::Job(id)
    }

    /// Checks whether there is usage that is not written yet.
    pub(super) fn has_unwritten_usage(&self) -> bool {
        !self.unwritten_usage.is_empty()
    }

    /// Drops the oldest of too many jobs that have ended. One whose end is not written stays if the record has it, because
    /// it would be run again.
    pub(super) fn evict(&mut self, changed: &BTreeSet<String>) {
        if self.jobs.len() <= ENDED {
            return;
        }
        let ended = self.jobs.values().filter(|entry| entry.job.end.is_some());
        let mut surplus = ended.count().saturating_sub(ENDED);
        if surplus > 0 {
            self.jobs.retain(|id, entry| {
                let is_known = !entry.maybe_written || !changed.contains(id);
                let evict = surplus > 0 && entry.job.end.is_some() && is_known;
                surplus -= usize::from(evict);
                !evict
            });
        }
    }

    /// Returns a segment with these jobs, as far as they are still there, the usage that is not written, and the executors if
    /// they have changed.
    pub(super) fn segment(&mut self, changed: &BTreeSet<String>, executors: bool) -> Segment {
        for id in changed {
            if let Some(entry) = self.jobs.get_mut(id) {
                entry.maybe_written = true;
            }
        }
        let users = std::mem::take(&mut self.unwritten_usage);
        let usage = users.iter().filter_map(|user| self.usage.get(user));
        let usage: Vec<_> = usage.cloned().collect();
        let jobs = changed.iter().filter_map(|id| self.jobs.get(id));
        let jobs = jobs.map(|entry| {
            let kept = entry.job.kept.clone().filter(|_| !entry.kept_is_written);
            JobRecord {
                kept,
                ..entry.job.clone()
            }
        });
        Segment {
            jobs: jobs.collect(),
            executors: executors.then(|| self.executors()),
            usage_since: if usage.is_empty() {
                0
            } else {
                self.usage_since
            },
            usage,
            ..Segment::new()
        }
    }

    /// Records that a segment is not written.
    pub(super) fn unwrote(&mut self, segment: Segment) {
        let users = segment.usage.into_iter().map(|usage| usage.owner);
        self.unwritten_usage.extend(users);
    }

    /// Records that the submissions of these jobs are written.
    pub(super) fn wrote(&mut self, segment: &Segment) {
        for job in segment.jobs.iter().filter(|job| job.kept.is_some()) {
            if let Some(entry) = self.jobs.get_mut(&job.id) {
                entry.kept_is_written = true;
            }
        }
    }

    /// Returns everything, for a snapshot of what is written.
    ///
    /// # Errors
    /// When the leader cannot be encoded.
    pub(super) fn snapshot(&mut self) -> Result<Segment> {
        for entry in self.jobs.values_mut() {
            entry.maybe_written = true;
        }
        let leader = self.leader.as_ref().map(Leader::encoded).transpose()?;
        let jobs = self.jobs.values();
        Ok(Segment {
            leader,
            jobs: jobs.map(|entry| entry.job.clone()).collect(),
            executors: Some(self.executors()),
            usage: self.usage.values().cloned().collect(),
            usage_since: self.usage_since,
            ..Segment::new()
        })
    }

    fn executors(&self) -> Executors {
        Executors {
            ids: self.executors.iter().cloned().collect(),
        }
    }

    /// Returns the usage of all users, if there is any.
    pub(super) fn usage(&self) -> Option<RecordedUsage> {
        (self.usage_since > 0).then(|| RecordedUsage {
            since: time(self.usage_since),
            users: self.usage.values().map(UserUsage::from).collect(),
        })
    }

    /// Returns the jobs and executors for the controller, and what is needed to submit unfinished jobs again. A job that a
    /// later build has written in another form is left out, and logged.
    pub(super) fn restored(&self) -> (Vec<Recorded>, BTreeSet<String>, Vec<Kept>) {
        let jobs = self.jobs.values().filter_map(|entry| {
            let recorded = entry.job.recorded();
            let lost = |error| {
                let (job, error) = (&entry.job.id, volley_proto::failure::chain(&error));
                tracing::error!(
                    job,
                    error,
                    "the record has a job in a format that this build cannot read"
                );
            };
            recorded.map_err(lost).ok()
        });
        let jobs = jobs.collect();
        let kept = self.jobs.values().filter_map(|entry| {
            let kept = entry.job.kept.clone()?;
            let KeptRecord {
                request,
                stores,
                wire,
            } = kept;
            Some(Kept {
                job: entry.job.id.clone(),
                request,
                stores,
                wire,
            })
        });
        (jobs, self.executors.clone(), kept.collect())
    }

    /// Checks whether a job's end is to be written before it is told: the record has the job as one that runs.
    pub(super) fn is_owed(&self, job: &str) -> bool {
        let known = self.jobs.get(job);
        known.is_some_and(|entry| entry.maybe_written && entry.job.end.is_some())
    }
}

impl Segment {
    /// Creates an empty segment.
    pub(super) fn new() -> Self {
        Self {
            format: FORMAT,
            ..Self::default()
        }
    }
}

impl JobRecord {
    fn recorded(&self) -> Result<Recorded> {
        let limits = self.limits.as_ref().map(LimitsRecord::recorded);
        let submission = Submission {
            job: self.id.clone(),
            name: self.name.clone(),
            statement: self.statement.clone(),
            operation: self.operation.clone(),
            owner: self.owner.clone(),
            train: self.train.as_deref().map(str::parse).transpose()?,
            on_client_loss: self.on_client_loss.parse()?,
            limits: limits.transpose()?,
            queue: self.queue.clone(),
            priority: self.priority,
        };
        Ok(Recorded {
            submission,
            submitted: time(self.submitted),
            attempts: self.attempts.clone(),
            futile: self.futile,
            generation: (self.generation > 0).then_some((self.generation, self.ranks as usize)),
            end: self.end.as_ref().map(EndRecord::recorded).transpose()?,
        })
    }
}

impl LimitsRecord {
    fn recorded(&self) -> Result<JobLimits> {
        let role = self.role.parse();
        let gpus = self.gpu_ms.map(|time| GpuQuota {
            time: Duration::from_millis(time),
            days: self.gpu_days,
        });
        Ok(JobLimits {
            role: role.map_err(|error: String| Error::malformed("record of jobs", error))?,
            time: self.time_ms.map(Duration::from_millis),
            rows: self.rows,
            jobs: self.jobs,
            memory: MemoryQuota {
                limit: self.memory,
                slot: self.slot_memory,
            },
            gpus,
        })
    }
}

impl From<JobLimits> for LimitsRecord {
    fn from(limits: JobLimits) -> Self {
        let JobLimits {
            role,
            time,
            rows,
            jobs,
            memory:
                MemoryQuota {
                    limit: memory,
                    slot: slot_memory,
                },
            gpus,
        } = limits;
        Self {
            role: role.to_string(),
            time_ms: time.map(|time| time.as_millis() as u64),
            rows,
            jobs,
            memory,
            slot_memory,
            gpu_ms: gpus.map(|gpus| gpus.time.as_millis() as u64),
            gpu_days: gpus.map_or(0, |gpus| gpus.days),
        }
    }
}

impl From<UserUsage> for UsageRecord {
    fn from(usage: UserUsage) -> Self {
        let UserUsage { owner, jobs, held } = usage;
        let Totals {
            submitted,
            reruns: _,
            succeeded,
            failed,
            cancelled,
        } = jobs;
        Self {
            owner,
            jobs: submitted,
            succeeded,
            failed,
            cancelled,
            slot_seconds: held.slot_seconds,
            rank_seconds: held.rank_seconds,
            gpu_seconds: held.gpu_seconds,
            gpu_days: held.gpu_days.iter().collect(),
        }
    }
}

impl From<&UsageRecord> for UserUsage {
    fn from(record: &UsageRecord) -> Self {
        let days = record.gpu_days.iter();
        Self {
            owner: record.owner.clone(),
            jobs: Totals {
                submitted: record.jobs,
                reruns: 0,
                succeeded: record.succeeded,
                failed: record.failed,
                cancelled: record.cancelled,
            },
            held: Held {
                slot_seconds: record.slot_seconds,
                rank_seconds: record.rank_seconds,
                gpu_seconds: record.gpu_seconds,
                gpu_days: GpuDays::restored(days.map(|(day, seconds)| (*day, *seconds))),
            },
        }
    }
}

impl EndRecord {
    fn recorded(&self) -> Result<JobEnd> {
        let state = serde_json::Value::String(self.state.clone());
        let state = serde_json::from_value(state);
        let notes = self.notes.iter().map(|note| Note {
            at: time(note.at),
            text: note.text.clone(),
        });
        Ok(JobEnd {
            state: state.map_err(|error| Error::malformed("record of jobs", error))?,
            error: self.error.clone(),
            at: time(self.at),
            notes: notes.collect(),
        })
    }
}

impl From<JobEnd> for EndRecord {
    fn from(end: JobEnd) -> Self {
        let notes = end.notes.into_iter().map(|note| NoteRecord {
            at: millis(note.at),
            text: note.text,
        });
        Self {
            state: end.state.to_string(),
            error: end.error,
            at: millis(end.at),
            notes: notes.collect(),
        }
    }
}

fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::malformed("record of jobs", error))
}
