//! One training run: a state machine of events in, answers out.
//!
//! ```text
//!   planned ──► generation 1 ──► rank lost, executor joined ──► generation 2 ──► … ──► finished
//!                  │  joined, training                                           └──► failed
//!                  └── over: the reason every rank that holds a seat is told
//! ```
//!
//! A run outlives the engine's jobs: a job that is run again continues the same run.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use url::Url;
use volley_proto::spec::{Ranks, TooFew};
use volley_proto::{GpuId, ModelName, PreparedId, Secret};

use super::events::{EventLog, Failure, RunEvent, Shown};
use super::progress::{RunProgress, StepReport};
use super::shards::{assign, uneven};
use crate::control::placement::RankRequest;
use crate::control::prepared::Keeps;
use crate::control::retained::Ends;
use crate::control::{Gang, Now};

/// Number of consecutive generations that may end without progress: a step, or a shard that is loaded for the first
/// time.
const FRUITLESS: usize = 4;
/// Time for which a generation takes steps before it is ended for an executor that joined.
const SETTLE: Duration = Duration::from_secs(5);

/// Number of generations that an earlier scheduler may have bound without their being recorded: their numbers are not
/// given out again, because a later one takes the right to write checkpoints from an earlier one.
const UNRECORDED: u64 = 100;

/// Most shards that are remembered as loaded.
const MOST_SHARDS: usize = 1 << 20;

/// A training run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    generation: u64,
    /// Secret of the generation, told only to its ranks.
    secret: Option<Secret>,
    /// Attempt of the generation.
    attempt: String,
    members: Vec<Member>,
    /// Number of ranks of the current generation, which the next one is to have as well.
    wanted: usize,
    /// Reason why the current generation has ended, told to ranks whose seats are void.
    over: Option<String>,
    /// Time when the current generation began or, if it is over, ended.
    since: Option<Instant>,
    /// Time when the current generation reported its first step.
    stepping_since: Option<Instant>,
    /// Failure that ended the run.
    root: Option<Failure>,
    /// Generations since the last one that made progress.
    fruitless: usize,
    /// Optimizer steps done.
    steps: u64,
    /// Shards that some rank has loaded.
    loaded: BTreeSet<u64>,
    /// Id by which executors keep the encoded shards, if they do, and the rows of each.
    prepared: Option<(PreparedId, Vec<u64>)>,
    /// True once its last epoch is done.
    trained: bool,
    /// True once a client has asked for its end after the epoch under way.
    stopped: bool,
    /// Time since which there have been too few executors to begin.
    short_since: Option<Instant>,
    finished: bool,
    events: EventLog,
    /// Model and limits of the training, once a gang has been requested.
    trains: Option<Trains>,
    progress: RunProgress,
}

/// Model and limits of a run's training.
#[derive(Debug, Clone)]
struct Trains {
    model: ModelName,
    store: Url,
    /// Most ranks that it grows to.
    most: usize,
    /// True if it waits for executors however long that takes.
    is_patient: bool,
}

/// A rank's task in the current generation; its index is its rank.
#[derive(Debug, Clone)]
struct Member {
    bound: BoundRank,
    endpoint: Option<Bytes>,
}

/// Rank that has been bound to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoundRank {
    /// Number of the task in its stage.
    pub(crate) task: usize,
    pub(crate) executor: String,
    /// Shards that it takes.
    pub(crate) shards: Vec<usize>,
    /// GPU assigned to the rank; `None` for the CPU.
    pub(crate) gpu: Option<GpuId>,
}

/// Identity of a generation for its ranks: numbers begin anew with each scheduler, attempts do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) attempt: String,
    pub(crate) number: u64,
}

/// Membership of a generation, as one rank gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) generation: u64,
    pub(crate) rank: usize,
    pub(crate) endpoints: Vec<Bytes>,
    pub(crate) executors: Vec<String>,
    pub(crate) secret: Secret,
    /// GPU assigned to the rank; `None` for the CPU.
    pub(crate) gpu: Option<GpuId>,
}

/// Progress of a rank, which is stale if its generation has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RankProgress {
    /// Event for the run's log.
    Event(RunEvent),
    /// Steps done since the previous such report.
    Steps { rank: usize, steps: StepReport },
    /// Shards that the rank has streamed, reported before it has met its peers.
    Streamed {
        shards: Vec<u64>,
        /// Bytes of their files, if the executor keeps them for the next training on the same rows.
        kept_bytes: Option<u64>,
    },
}

/// Instruction to a rank that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// Report its own failure: it is the cause, or no better cause is known.
    Own,
    /// Report another rank's failure: it is the cause.
    Root(Failure),
    /// Keep its state and end its task: the ranks meet again.
    Regroup,
}

impl Ends for Run {
    fn is_over(&self) -> bool {
        self.finished
    }
}

impl Run {
    /// Records what the run trains.
    pub(crate) fn is_of(&mut self, gang: &Gang) {
        self.trains.get_or_insert_with(|| Trains {
            model: gang.model.clone(),
            store: gang.store.clone(),
            most: gang.most,
            is_patient: gang.elastic.too_few == TooFew::Wait,
        });
    }

    /// Checks whether the run waits for executors however long that takes.
    pub(crate) fn is_patient(&self) -> bool {
        self.trains.as_ref().is_some_and(|trains| trains.is_patient)
    }

    /// Checks whether the run trains this model of this store.
    pub(crate) fn trains(&self, model: &ModelName, store: &Url) -> bool {
        let is = |trains: &Trains| trains.model == *model && trains.store == *store;
        self.trains.as_ref().is_some_and(is)
    }

    /// Logs what the gang waits for, once for each reason. Returns whether the reason is new.
    pub(crate) fn waits(&mut self, reason: String, now: Now) -> bool {
        let last = self.events.last();
        let said = matches!(last, Some(RunEvent::Waiting { reason: last }) if *last == reason);
        if !said {
            self.tell(RunEvent::Waiting { reason }, now.time);
        }
        !said
    }

    /// Returns the ranks that the next generation requests, given the number of executors that run ranks.
    pub(crate) fn rank_request(
        &mut self,
        gang: &Gang,
        registered: usize,
        now: Instant,
    ) -> RankRequest {
        let (elastic, most) = (&gang.elastic, gang.most);
        let too_few = elastic.too_few;
        if !self.has_begun() {
            let needed = match gang.ranks {
                Ranks::Exactly(needed) => needed,
                Ranks::All => 1,
            };
            let short = needed > registered;
            let since = short.then(|| self.short_since.unwrap_or(now));
            self.short_since = since;
            let waited = since.is_some_and(|since| now - since >= elastic.regroup_timeout);
            return RankRequest::Begin {
                ranks: gang.ranks,
                most,
                patience_over: waited,
                too_few,
            };
        }
        let waited = self.since.map_or(Duration::ZERO, |since| now - since);
        RankRequest::Regroup {
            wanted: self.wanted,
            least: elastic.min_ranks,
            most,
            patience_over: waited >= elastic.regroup_timeout,
            too_few,
        }
    }

    /// Continues the run of an earlier scheduler after its last generation, which had this many ranks.
    pub(crate) fn continues(&mut self, generation: u64, ranks: usize, now: Now) {
        self.generation = generation + UNRECORDED;
        self.wanted = ranks;
        self.over = Some("the scheduler was restarted".to_owned());
        self.since = Some(now.instant);
    }

    /// Checks whether a generation has been bound before.
    pub(crate) fn has_begun(&self) -> bool {
        self.generation > 0
    }

    /// Checks whether the run waits for ranks, which time alone may end.
    pub(crate) fn awaits_ranks(&self) -> bool {
        (self.over.is_some() || self.short_since.is_some()) && !self.finished
    }

    /// Checks whether the current generation has ended and the next has not been bound.
    pub(crate) fn meets_again(&self) -> bool {
        self.over.is_some() && !self.finished
    }

    /// Returns the number of ranks if more might join. The generation must have taken steps for a while first:
    /// otherwise executors that come one by one would keep it from its first step.
    pub(crate) fn may_grow(&self, now: Instant) -> Option<usize> {
        let (ranks, trains) = (self.members.len(), self.trains.as_ref());
        let settled = self
            .stepping_since
            .is_some_and(|since| now - since >= SETTLE);
        let goes_on = self.over.is_none() && !self.trained && !self.finished;
        let is_room = trains.is_none_or(|trains| ranks < trains.most);
        (settled && goes_on && is_room).then_some(ranks)
    }

    /// Assigns shards, with these rows each, to the next generation's ranks on these executors, in the attempt. The first
    /// generation of prepared rows takes them where they are held.
    pub(crate) fn assign(
        &self,
        attempt: &str,
        rows: &[u64],
        executors: &[&str],
        holders: &[(String, Vec<usize>)],
    ) -> Vec<Vec<usize>> {
        // Executors keep shards only for their attempt, or as prepared rows.
        let members = self.members.iter().filter(|_| self.attempt == attempt);
        let members = members.map(|member| (&*member.bound.executor, &member.bound.shards[..]));
        let mut had: Vec<_> = members.collect();
        if had.is_empty() {
            let held = holders.iter();
            had.extend(held.map(|(executor, shards)| (executor.as_str(), &shards[..])));
        }
        assign(rows, executors, &had)
    }

    /// Records the rows of each shard, and the id by which executors keep the encoded shards, if they do.
    pub(crate) fn keeps(&mut self, prepared: Option<PreparedId>, rows: Vec<u64>) {
        self.prepared = prepared.map(|id| (id, rows));
    }

    /// Returns the prepared rows of which a rank of the current generation keeps these shards, in files of `bytes` bytes.
    pub(crate) fn kept(
        &self,
        generation: &Generation,
        shards: &[u64],
        bytes: u64,
    ) -> Option<(PreparedId, Keeps<'_>)> {
        let (id, rows) = self.prepared.as_ref()?;
        let streams = |member: &&Member| {
            let own = member.bound.shards.iter().map(|shard| *shard as u64);
            own.eq(shards.iter().copied())
        };
        let member = self.members.iter().find(streams)?;
        let of_shard = |shard: &usize| Some((*shard, *rows.get(*shard)?));
        let shards = member.bound.shards.iter().filter_map(of_shard);
        let keeps = Keeps {
            executor: &member.bound.executor,
            shards: shards.collect(),
            bytes,
        };
        self.is_current(generation).then_some((*id, keeps))
    }

    /// Logs a message for the user.
    pub(crate) fn notes(&mut self, note: String, now: Now) {
        self.tell(RunEvent::Note(note), now.time);
    }

    /// Ends training after the epoch under way, in whatever generation that is.
    pub(crate) fn stops(&mut self, now: Now) {
        if !self.stopped && !self.trained && !self.finished {
            self.stopped = true;
            let note = "a client ends training after this epoch".to_owned();
            self.tell(RunEvent::Note(note), now.time);
        }
    }

    /// Checks whether training is to end after the epoch under way.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Logs that shards are assigned so that some ranks have many more rows than others, or that there are too few for
    /// a rank on each of the `able` executors.
    pub(crate) fn dealt(
        &mut self,
        gang: &Gang,
        (rows, assigned): (&[u64], &[Vec<usize>]),
        able: usize,
        now: Now,
    ) {
        let takes_all = gang.ranks == Ranks::All && gang.elastic.max_ranks.is_none();
        if takes_all && assigned.len() == rows.len() && able > rows.len() {
            let shards = rows.len();
            let note = format!(
                "{} of {able} executors have no rank, because there are {shards} shards: use more shards",
                able - shards
            );
            self.tell(RunEvent::Note(note), now.time);
        }
        if let Some(note) = uneven(rows, assigned) {
            self.tell(RunEvent::Note(note), now.time);
        }
    }

    /// Starts a new generation, bound to these tasks of an attempt.
    pub(crate) fn starts(&mut self, attempt: &str, ranks: Vec<BoundRank>, now: Now) {
        self.generation += 1;
        self.secret = Some(Secret::random());
        self.attempt = attempt.to_owned();
        self.stepping_since = None;
        self.fruitless += 1;
        self.since = Some(now.instant);
        self.over = None;
        self.root = None;
        let executors = ranks.iter().map(|rank| rank.executor.clone()).collect();
        let member = |bound| Member {
            bound,
            endpoint: None,
        };
        self.members = ranks.into_iter().map(member).collect();
        self.wanted = self.members.len();
        self.progress.starts(self.members.len(), now.time);
        let generation = self.generation;
        let started = RunEvent::Started {
            generation,
            executors,
        };
        self.tell(started, now.time);
    }

    /// Records where the rank of an attempt's task can be reached. Returns its generation.
    ///
    /// # Errors
    /// When the task has no seat, with the reason: peers would dial a rank of an earlier attempt or generation in vain.
    pub(crate) fn joins(
        &mut self,
        (attempt, task): (&str, usize),
        executor: &str,
        endpoint: Bytes,
    ) -> Result<Generation, String> {
        let generation = self.generation;
        if attempt != self.attempt {
            return Err(format!(
                "its attempt is over: generation {generation} belongs to attempt {}",
                self.attempt
            ));
        }
        let mine =
            |member: &&mut Member| member.bound.task == task && member.bound.executor == executor;
        let member = self.members.iter_mut().find(mine);
        let member = member.ok_or_else(|| format!("generation {generation} has no such task"))?;
        member.endpoint = Some(endpoint);
        Ok(self.current())
    }

    /// Returns the membership for a task, once all have joined.
    pub(crate) fn membership(&self, task: usize) -> Option<Membership> {
        let mut members = self.members.iter();
        let rank = members.position(|member| member.bound.task == task)?;
        let endpoints = self
            .members
            .iter()
            .map(|m| m.endpoint.clone())
            .collect::<Option<_>>()?;
        let executors = self.executors().into_iter().map(str::to_owned).collect();
        Some(Membership {
            generation: self.generation,
            rank,
            endpoints,
            executors,
            secret: self.secret.clone()?,
            gpu: self.members[rank].bound.gpu,
        })
    }

    /// Names the ranks that have not joined.
    pub(crate) fn missing(&self) -> String {
        let missing: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.endpoint.is_none())
            .map(|(rank, member)| format!("rank {rank} on executor {}", member.bound.executor))
            .collect();
        missing.join(", ")
    }

    /// Returns the current generation's number.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    fn current(&self) -> Generation {
        Generation {
            attempt: self.attempt.clone(),
            number: self.generation,
        }
    }

    fn is_current(&self, generation: &Generation) -> bool {
        generation.number == self.generation && generation.attempt == self.attempt
    }

    /// Returns why the ranks of this generation meet again, if they do.
    pub(crate) fn ended(&self, generation: &Generation) -> Option<String> {
        if !self.is_current(generation) {
            return Some(format!("generation {} has begun", self.generation));
        }
        self.over.clone()
    }

    /// Returns why the current generation has ended, if it has.
    pub(crate) fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// Returns why a seat of this generation is void, if it is.
    pub(crate) fn void(&self, generation: &Generation) -> Option<String> {
        let failed = |root: &Failure| format!("rank {} failed: {}", root.rank, root.error);
        let ended = self.ended(generation);
        ended.or_else(|| self.root.as_ref().map(failed))
    }

    /// Ends the current generation; its ranks meet again.
    pub(crate) fn regroup(&mut self, reason: String, now: Now) {
        if self.has_begun() && self.over.is_none() && !self.finished {
            let generation = self.generation;
            let note = format!("generation {generation} ends: {reason}");
            self.tell(RunEvent::Note(note), now.time);
            self.over = Some(reason);
            self.since = Some(now.instant);
        }
    }

    /// Handles the loss of an executor: ends the generation if it had a rank there. If too many generations have
    /// ended without progress, ends the run and returns why.
    pub(crate) fn loses(&mut self, executor: &str, now: Now) -> Option<String> {
        let rank = self
            .members
            .iter()
            .position(|m| m.bound.executor == executor)?;
        let reason = format!("rank {rank} was lost with executor {executor}");
        let is_under_way = self.over.is_none() && self.root.is_none() && !self.finished;
        if !(is_under_way && self.is_fruitless()) {
            self.regroup(reason, now);
            return None;
        }
        let error = format!(
            "{reason}, and {FRUITLESS} generations in a row have ended without a step or a shard loaded for the first \
             time: executors whose ranks run out of memory end so, see their logs; use more ranks, or executors with \
             more memory"
        );
        let failure = Failure {
            rank,
            executor: executor.to_owned(),
            error: error.clone(),
        };
        self.fails(&self.current(), failure, false, now);
        Some(error)
    }

    /// Handles the planned departure of an executor: ends the generation if it has a rank there, which is no failure.
    pub(crate) fn leaves(&mut self, executor: &str, now: Now) {
        let mut members = self.members.iter();
        let rank = members.position(|member| member.bound.executor == executor);
        if let Some(rank) = rank.filter(|_| self.over.is_none()) {
            self.fruitless = self.fruitless.saturating_sub(1);
            self.regroup(format!("rank {rank} leaves with executor {executor}"), now);
        }
    }

    /// Checks for a rank on an executor that has steps left to do.
    pub(crate) fn trains_on(&self, executor: &str) -> bool {
        let mut members = self.members.iter();
        let is_there = members.any(|member| member.bound.executor == executor);
        is_there && !self.trained && !self.finished
    }

    /// Checks whether the allowed number of generations has ended without progress.
    fn is_fruitless(&self) -> bool {
        self.fruitless >= FRUITLESS
    }

    /// Handles a report of a rank. Reports of other generations are dropped.
    pub(crate) fn reports(&mut self, generation: &Generation, report: RankProgress, now: Now) {
        if !self.is_current(generation) {
            return;
        }
        self.progress.hears(now.time);
        match report {
            RankProgress::Streamed { shards, .. } => {
                let before = self.loaded.len();
                let room = MOST_SHARDS.saturating_sub(before);
                self.loaded.extend(shards.into_iter().take(room));
                if self.loaded.len() > before {
                    self.fruitless = 0;
                }
            }
            RankProgress::Steps { rank, steps } => {
                if steps.total > self.steps {
                    self.stepping_since.get_or_insert(now.instant);
                    self.steps = steps.total;
                    self.fruitless = 0;
                }
                self.progress.steps(self.generation, rank, steps, now.time);
            }
            RankProgress::Event(event) => {
                match &event {
                    RunEvent::Epoch(record) => {
                        let last = self.progress.last().map(|last| last.epochs);
                        let is_last = last.is_some_and(|last| record.epoch as u64 >= last);
                        self.trained |= is_last || record.ended.is_some();
                    }
                    RunEvent::Loaded {
                        rank,
                        rows,
                        seconds,
                    } => self.progress.loads(*rank, *rows, *seconds),
                    _ => {}
                }
                self.tell(event, now.time);
            }
        }
    }

    /// Records a rank's failure. The first that is not the loss of a peer is the root cause.
    pub(crate) fn fails(
        &mut self,
        generation: &Generation,
        failure: Failure,
        peer_lost: bool,
        now: Now,
    ) {
        let current = self.is_current(generation) && self.over.is_none();
        if current && self.root.is_none() && !peer_lost {
            self.tell(RunEvent::Failed(failure.clone()), now.time);
            self.root = Some(failure);
        }
    }

    /// Returns what a rank that lost a peer must do; `None` while that is not known.
    pub(crate) fn resolution(&self, generation: &Generation, rank: usize) -> Option<Resolution> {
        match &self.root {
            _ if self.ended(generation).is_some() => Some(Resolution::Regroup),
            Some(root) if root.rank == rank => Some(Resolution::Own),
            Some(root) => Some(Resolution::Root(root.clone())),
            None => None,
        }
    }

    /// Resolves the failure of ranks that lost each other for an unknown reason: they meet again, but not for ever.
    pub(crate) fn gives_up(
        &mut self,
        generation: &Generation,
        failure: &Failure,
        now: Now,
    ) -> Resolution {
        if let Some(resolution) = self.resolution(generation, failure.rank) {
            return resolution;
        }
        if self.is_fruitless() {
            self.fails(generation, failure.clone(), false, now);
            return Resolution::Own;
        }
        let Failure { rank, error, .. } = failure;
        self.regroup(format!("rank {rank} lost a peer: {error}"), now);
        Resolution::Regroup
    }

    /// Returns the failure that ended the run.
    pub(crate) fn root(&self) -> Option<&Failure> {
        self.root.as_ref()
    }

    /// Records that the run's job has ended.
    pub(crate) fn finishes(&mut self) {
        self.finished = true;
    }

    /// Checks whether the run's generation belongs to this attempt.
    pub(crate) fn is_of_attempt(&self, attempt: &str) -> bool {
        self.attempt == attempt
    }

    /// Handles pending shards of a stage whose ranks all ran: ends the generation if it goes on, since the other ranks
    /// would wait for the missing one, and only a run that waits for ranks is offered again as time passes. Returns
    /// `None` if nothing changes, else why the run is given up, if it is.
    pub(crate) fn misses_a_rank(&mut self, attempt: &str, now: Now) -> Option<Option<String>> {
        if !self.has_begun() || self.over.is_some() || self.finished {
            return None;
        }
        if !self.is_of_attempt(attempt) {
            self.regroup("its job is run again".to_owned(), now);
            return Some(None);
        }
        if self.root.is_some() {
            return None;
        }
        let reason = "a rank's task has ended without a reason".to_owned();
        if self.is_fruitless() {
            let error = format!("{reason}, after {FRUITLESS} generations without progress");
            return Some(Some(error));
        }
        self.regroup(reason, now);
        Some(None)
    }

    /// Returns the optimizer steps done.
    pub(crate) fn steps_done(&self) -> u64 {
        self.steps
    }

    /// Checks whether the run's last epoch is done.
    pub(crate) fn is_trained(&self) -> bool {
        self.trained
    }

    /// Returns the store that the run publishes to.
    pub(super) fn store(&self) -> Option<&Url> {
        self.trains.as_ref().map(|trains| &trains.store)
    }

    /// Returns the model that the run trains.
    pub(super) fn model(&self) -> String {
        let model = self.trains.as_ref().map(|trains| trains.model.to_string());
        model.unwrap_or_default()
    }

    /// Returns the executors of the current generation's ranks, by rank.
    pub(super) fn executors(&self) -> Vec<&str> {
        let members = self.members.iter();
        members
            .map(|member| member.bound.executor.as_str())
            .collect()
    }

    /// Returns the progress of the run.
    pub(super) fn progress(&self) -> &RunProgress {
        &self.progress
    }

    /// Returns the event log.
    pub(super) fn events(&self) -> &EventLog {
        &self.events
    }

    /// Returns the events after number `seen`, if there are any.
    pub(crate) fn events_since(&self, seen: u64) -> Option<Shown> {
        self.events.since(seen)
    }

    fn tell(&mut self, event: RunEvent, at: SystemTime) {
        self.events.push(event, at);
    }
}

#[cfg(test)]
mod tests;
