//! Content of the record: jobs, the registered executors, usage, and the leader.
//!
//! A segment of the log has the jobs that have changed, whole but for their submissions, which are written once, and the
//! usage of users for whom it has changed, whole. So reading is taking the last of each. A segment is encoded as protocol
//! buffers are, and jobs and usage in it as JSON: fields that a build does not know are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use indexmap::IndexMap;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use volley_proto::failure::chain;
use volley_proto::store::Replay;
use volley_proto::tables::millis;
use volley_proto::version::WIRE;
use volley_proto::{Error, Result};

use super::Leader;
use crate::control::{Change, Recorded, RecordedUsage, Submission, UserUsage};

/// Version of the encoding that this build writes and reads.
const FORMAT: u32 = 2;

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
    /// Usage of users for whom it has changed, as JSON.
    #[prost(btree_map = "string, bytes", tag = "7")]
    pub(super) usage: BTreeMap<String, Vec<u8>>,
    /// Time since which usage counts, in milliseconds since 1970; 0 in a segment without any.
    #[prost(uint64, tag = "8")]
    pub(super) usage_since: u64,
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
    /// The job as [`Recorded`], as JSON.
    #[prost(bytes = "vec", tag = "2")]
    recorded: Vec<u8>,
    /// Its submission, with the first segment that has the job; not of one that has ended.
    #[prost(message, optional, tag = "3")]
    kept: Option<KeptRecord>,
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

/// Change of a job.
type Update = Box<dyn FnOnce(&mut Entry)>;

/// Jobs by id, in the order of their submission, and what else the record says.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    jobs: IndexMap<String, Entry>,
    executors: BTreeSet<String>,
    usage: BTreeMap<String, UserUsage>,
    /// Time since which usage counts, in milliseconds since 1970; 0 if there is none.
    usage_since: u64,
    /// Users whose usage is not written yet.
    unwritten_usage: BTreeSet<String>,
    /// Scheduler that writes; `None` if the last one has given it up.
    pub(super) leader: Option<Leader>,
}

#[derive(Debug, Clone)]
struct Entry {
    job: Recorded,
    /// Its submission, until it has ended.
    kept: Option<KeptRecord>,
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
                let reason = format!(
                    "its format is {found}, and this build reads {FORMAT}: remove it with the jobs in it, name another \
                     one with --record, or continue with the build that has written it"
                );
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
        for (owner, usage) in segment.usage {
            self.usage.insert(owner, json(&usage)?);
        }
        for JobRecord { id, recorded, kept } in segment.jobs {
            // One that a later build has written in another form is left out.
            let job: Recorded = match json(&recorded) {
                Ok(job) => job,
                Err(error) => {
                    tracing::error!(
                        job = id,
                        error = chain(&error),
                        "the record has a job in a format that this build cannot read"
                    );
                    self.jobs.shift_remove(&id);
                    continue;
                }
            };
            let before = self.jobs.get_mut(&id).filter(|_| job.end.is_none());
            let kept = kept.or_else(|| before.and_then(|before| before.kept.take()));
            let entry = Entry {
                job,
                kept_is_written: kept.is_some(),
                kept,
                maybe_written: true,
            };
            self.jobs.insert(id, entry);
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
        let job = Recorded {
            submission: submission.clone(),
            submitted,
            attempts: vec![submission.job.clone()],
            futile: 1,
            generation: None,
            end: None,
        };
        let entry = Entry {
            job,
            kept: Some(KeptRecord {
                request,
                stores,
                wire: WIRE,
            }),
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
                    self.usage.insert(user.owner.clone(), user);
                }
                return Changed::Usage;
            }
            Change::Attempt { job, attempt } => {
                (job, Box::new(|entry| entry.job.attempts.push(attempt)))
            }
            Change::Planned { job } => (job, Box::new(|entry| entry.job.futile = 0)),
            Change::Generation {
                job,
                generation,
                ranks,
            } => {
                let set = move |entry: &mut Entry| {
                    let last = entry.job.generation.map_or(0, |(last, _)| last);
                    entry.job.generation = Some((last.max(generation), ranks));
                };
                (job, Box::new(set))
            }
            Change::Ended { job, end } => {
                let set = move |entry: &mut Entry| {
                    entry.job.end = Some(end);
                    entry.kept = None;
                };
                (job, Box::new(set))
            }
        };
        if let Some(entry) = self.jobs.get_mut(&id) {
            change(entry);
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
        let usage = self.usage.iter().filter(|(user, _)| users.contains(*user));
        let usage = encoded_usage(usage);
        let jobs = changed.iter().filter_map(|id| self.jobs.get(id));
        let jobs = jobs.map(|entry| {
            let kept = entry.kept.clone().filter(|_| !entry.kept_is_written);
            JobRecord::of(&entry.job, kept)
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
        self.unwritten_usage.extend(segment.usage.into_keys());
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
            jobs: jobs
                .map(|entry| JobRecord::of(&entry.job, entry.kept.clone()))
                .collect(),
            executors: Some(self.executors()),
            usage: encoded_usage(&self.usage),
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
            users: self.usage.values().cloned().collect(),
        })
    }

    /// Returns the jobs and executors for the controller, and what is needed to submit unfinished jobs again.
    pub(super) fn restored(&self) -> (Vec<Recorded>, BTreeSet<String>, Vec<Kept>) {
        let jobs = self.jobs.values().map(|entry| entry.job.clone()).collect();
        let kept = self.jobs.values().filter_map(|entry| {
            let KeptRecord {
                request,
                stores,
                wire,
            } = entry.kept.clone()?;
            Some(Kept {
                job: entry.job.submission.job.clone(),
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
    fn of(job: &Recorded, kept: Option<KeptRecord>) -> Self {
        Self {
            id: job.submission.job.clone(),
            recorded: encoded(job),
            kept,
        }
    }
}

fn time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

fn encoded_usage<'a>(
    usage: impl IntoIterator<Item = (&'a String, &'a UserUsage)>,
) -> BTreeMap<String, Vec<u8>> {
    let usage = usage.into_iter();
    usage
        .map(|(user, usage)| (user.clone(), encoded(usage)))
        .collect()
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    // It fails for times before 1970 alone.
    serde_json::to_vec(value).unwrap_or_default()
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| Error::malformed("record of jobs", error))
}
