//! One training run as the scheduler knows it: a state machine of events in, answers out.
//!
//! ```text
//!   planned ──► generation 1 ──► rank lost, executor joined ──► generation 2 ──► … ──► finished
//!                  │  joined, training                                           └──► failed
//!                  └── over: the reason every rank that holds a seat is told
//! ```
//!
//! It outlives the engine's jobs: a job that is run again goes on with the same run. The clock that
//! decides is passed in; the one that is told is read.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use url::Url;
use volley_proto::ModelName;
use volley_proto::spec::{Elastic, Ranks, TooFew, TrainSpec};
use volley_proto::store::EpochRecord;
use volley_proto::wire::Steps;

use super::progress::Progress;

use crate::placement::Wish;
use crate::watched::Ends;

/// Generations that may end in a row without a single step in between.
const FRUITLESS: usize = 4;
/// A generation is given this long before it is ended for an executor that joined.
const SETTLE: Duration = Duration::from_secs(5);

/// One training run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    generation: u64,
    members: Vec<Member>,
    /// Why the current generation has ended, for those whose seats are void.
    over: Option<String>,
    /// When the current generation began or, if it is over, ended.
    since: Option<Instant>,
    /// The failure that ended the run.
    root: Option<Failure>,
    /// Generations since the last that made progress.
    fruitless: usize,
    /// Optimizer steps done.
    steps: u64,
    /// Whether its last epoch is done.
    trained: bool,
    /// Since when there have been too few executors to begin.
    short_since: Option<Instant>,
    finished: bool,
    events: Vec<(SystemTime, Event)>,
    /// What is trained, once a gang has been asked for.
    trains: Option<Trains>,
    progress: Progress,
}

/// What a run trains.
#[derive(Debug, Clone)]
struct Trains {
    model: ModelName,
    store: Url,
}

/// A rank's task in the current generation; its index is its rank.
#[derive(Debug, Clone)]
struct Member {
    task: usize,
    executor: String,
    endpoint: Option<Bytes>,
}

/// What has happened, for those who watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// The gang waits for slots.
    Waiting { reason: String },
    /// A generation has been bound.
    Started {
        generation: u64,
        executors: Vec<String>,
    },
    /// A rank has streamed its shards.
    Loaded {
        rank: usize,
        rows: u64,
        seconds: f64,
    },
    /// An epoch is done.
    Epoch(Box<EpochRecord>),
    /// The generation has ended in failure.
    Failed(Failure),
    /// Something a user should know.
    Note(String),
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) executor: String,
    pub(crate) error: String,
}

/// A generation's membership as one rank gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) generation: u64,
    pub(crate) rank: usize,
    pub(crate) endpoints: Vec<Bytes>,
    pub(crate) executors: Vec<String>,
}

/// What a rank that failed is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its failure is the cause, or there is nothing better to say.
    Own,
    /// Another rank's failure is the cause.
    Root(Failure),
    /// The ranks meet again: it keeps its state and ends its task.
    Regroup,
}

impl Ends for Run {
    fn is_over(&self) -> bool {
        self.finished
    }
}

impl Run {
    /// What the run trains.
    pub(crate) fn is_of(&mut self, spec: &TrainSpec) {
        self.trains.get_or_insert_with(|| Trains {
            model: spec.model.clone(),
            store: spec.store.clone(),
        });
    }

    /// The gang waits; said once for each reason.
    pub(crate) fn waits(&mut self, reason: String) {
        let last = self.events.last().map(|(_, event)| event);
        let said = matches!(last, Some(Event::Waiting { reason: last }) if *last == reason);
        if !said {
            self.tell(Event::Waiting { reason });
        }
    }

    /// How many ranks the next generation wants.
    pub(crate) fn wish(
        &mut self,
        ranks: Ranks,
        elastic: &Elastic,
        registered: usize,
        now: Instant,
    ) -> Wish {
        if !self.has_begun() {
            let short = matches!(ranks, Ranks::Exactly(needed) if needed > registered);
            let since = short.then(|| self.short_since.unwrap_or(now));
            self.short_since = since;
            let waited = since.is_some_and(|since| now - since >= elastic.regroup_timeout);
            return Wish::Begin {
                ranks,
                gives_up: waited && elastic.too_few == TooFew::Fail,
            };
        }
        let waited = self.since.map_or(Duration::ZERO, |since| now - since);
        Wish::Regroup {
            wanted: self.members.len(),
            least: elastic.min_ranks,
            most: elastic.max_ranks.unwrap_or(usize::MAX),
            patience_over: waited >= elastic.regroup_timeout,
            too_few: elastic.too_few,
        }
    }

    /// Whether a generation has been bound before.
    pub(crate) fn has_begun(&self) -> bool {
        self.generation > 0
    }

    /// Whether ranks are waited for, which time alone may end.
    pub(crate) fn awaits_ranks(&self) -> bool {
        (self.over.is_some() || self.short_since.is_some()) && !self.finished
    }

    /// How many ranks there are, if they might be joined by more now.
    pub(crate) fn may_grow(&self, now: Instant) -> Option<usize> {
        let settled = self.since.is_some_and(|since| now - since >= SETTLE);
        let joined = self.members.iter().all(|member| member.endpoint.is_some());
        (self.has_begun() && settled && joined && self.over.is_none() && !self.finished)
            .then_some(self.members.len())
    }

    /// A new generation has been bound to these tasks.
    pub(crate) fn starts(&mut self, tasks: Vec<(usize, String)>, now: Instant) {
        self.generation += 1;
        self.fruitless += 1;
        self.since = Some(now);
        self.over = None;
        self.root = None;
        let executors = tasks.iter().map(|(_, executor)| executor.clone()).collect();
        let member = |(task, executor)| Member {
            task,
            executor,
            endpoint: None,
        };
        self.members = tasks.into_iter().map(member).collect();
        self.progress.starts(self.members.len(), SystemTime::now());
        self.tell(Event::Started {
            generation: self.generation,
            executors,
        });
    }

    /// A task reports where its rank can be reached. False when it is no member.
    pub(crate) fn joins(&mut self, task: usize, executor: &str, endpoint: Bytes) -> bool {
        let mine = |member: &&mut Member| member.task == task && member.executor == executor;
        let member = self.members.iter_mut().find(mine);
        member
            .map(|member| member.endpoint = Some(endpoint))
            .is_some()
    }

    /// The membership for a task, once all have joined.
    pub(crate) fn membership(&self, task: usize) -> Option<Membership> {
        let rank = self.members.iter().position(|member| member.task == task)?;
        let endpoints = self
            .members
            .iter()
            .map(|m| m.endpoint.clone())
            .collect::<Option<_>>()?;
        let executors = self.members.iter().map(|m| m.executor.clone()).collect();
        Some(Membership {
            generation: self.generation,
            rank,
            endpoints,
            executors,
        })
    }

    /// The ranks that have not joined, as text.
    pub(crate) fn missing(&self) -> String {
        let missing: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.endpoint.is_none())
            .map(|(rank, member)| format!("rank {rank} on executor {}", member.executor))
            .collect();
        missing.join(", ")
    }

    /// The current generation's number.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Why the ranks of this generation meet again, if they do.
    pub(crate) fn ended(&self, generation: u64) -> Option<String> {
        if generation != self.generation {
            return Some(format!("generation {} has begun", self.generation));
        }
        self.over.clone()
    }

    /// Why a seat of this generation is void, if it is.
    pub(crate) fn void(&self, generation: u64) -> Option<String> {
        let failed = |root: &Failure| format!("rank {} failed: {}", root.rank, root.error);
        let ended = self.ended(generation);
        ended.or_else(|| self.root.as_ref().map(failed))
    }

    /// Ends the current generation; its ranks meet again.
    pub(crate) fn regroup(&mut self, reason: String, now: Instant) {
        if self.has_begun() && self.over.is_none() && !self.finished {
            let generation = self.generation;
            self.tell(Event::Note(format!(
                "generation {generation} ends: {reason}"
            )));
            self.over = Some(reason);
            self.since = Some(now);
        }
    }

    /// An executor is gone. Ends the generation if it had a rank there.
    pub(crate) fn loses(&mut self, executor: &str, now: Instant) {
        let rank = self.members.iter().position(|m| m.executor == executor);
        if let Some(rank) = rank {
            self.regroup(
                format!("rank {rank} was lost with executor {executor}"),
                now,
            );
        }
    }

    /// A rank reports progress. Reports of other generations are dropped.
    pub(crate) fn reports(&mut self, generation: u64, event: Event) {
        if generation == self.generation {
            match &event {
                Event::Epoch(record) => {
                    let last = self.progress.last().map(|last| last.epochs);
                    let is_last = last.is_some_and(|last| record.epoch as u64 >= last);
                    self.trained |= is_last || record.ended.is_some();
                }
                Event::Loaded {
                    rank,
                    rows,
                    seconds,
                } => self.progress.loads(*rank, *rows, *seconds),
                _ => {}
            }
            self.tell(event);
        }
    }

    /// A rank reports its last steps. Reports of other generations are dropped.
    pub(crate) fn steps(&mut self, generation: u64, rank: usize, steps: Steps) {
        if generation != self.generation {
            return;
        }
        if steps.total > self.steps {
            self.steps = steps.total;
            self.fruitless = 0;
        }
        self.progress
            .steps(generation, rank, steps, SystemTime::now());
    }

    /// A rank reports its failure. The first that is not the loss of a peer is the root cause.
    pub(crate) fn fails(&mut self, generation: u64, failure: Failure, peer_lost: bool) {
        let current = generation == self.generation && self.over.is_none();
        if current && self.root.is_none() && !peer_lost {
            self.tell(Event::Failed(failure.clone()));
            self.root = Some(failure);
        }
    }

    /// What a rank that lost a peer is to do; `None` while that is not known.
    pub(crate) fn verdict(&self, generation: u64, rank: usize) -> Option<Verdict> {
        match &self.root {
            _ if self.ended(generation).is_some() => Some(Verdict::Regroup),
            Some(root) if root.rank == rank => Some(Verdict::Own),
            Some(root) => Some(Verdict::Root(root.clone())),
            None => None,
        }
    }

    /// Ranks lost each other, and nobody knows why: they meet again, but not for ever.
    pub(crate) fn gives_up(&mut self, generation: u64, failure: &Failure, now: Instant) -> Verdict {
        if let Some(verdict) = self.verdict(generation, failure.rank) {
            return verdict;
        }
        if self.fruitless >= FRUITLESS {
            self.fails(generation, failure.clone(), false);
            return Verdict::Own;
        }
        let Failure { rank, error, .. } = failure;
        self.regroup(format!("rank {rank} lost a peer: {error}"), now);
        Verdict::Regroup
    }

    /// The failure that ended the run.
    pub(crate) fn root(&self) -> Option<&Failure> {
        self.root.as_ref()
    }

    /// The run's job has come to its end.
    pub(crate) fn finishes(&mut self) {
        self.finished = true;
    }

    /// Optimizer steps done.
    pub(crate) fn steps_done(&self) -> u64 {
        self.steps
    }

    /// Whether its last epoch is done.
    pub(crate) fn is_trained(&self) -> bool {
        self.trained
    }

    /// The store that it publishes to.
    pub(super) fn store(&self) -> Option<&Url> {
        self.trains.as_ref().map(|trains| &trains.store)
    }

    /// The model that it trains.
    pub(super) fn model(&self) -> String {
        let model = self.trains.as_ref().map(|trains| trains.model.to_string());
        model.unwrap_or_default()
    }

    /// Where the current generation's ranks are, by rank.
    pub(super) fn executors(&self) -> Vec<&str> {
        let members = self.members.iter();
        members.map(|member| member.executor.as_str()).collect()
    }

    /// How far it is.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// What has happened so far, and when.
    pub(crate) fn events(&self) -> &[(SystemTime, Event)] {
        &self.events
    }

    fn tell(&mut self, event: Event) {
        self.events.push((SystemTime::now(), event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(now: Instant) -> Run {
        let mut run = Run::default();
        run.starts(vec![(0, "a".into()), (1, "b".into())], now);
        run
    }

    fn joined(now: Instant) -> Run {
        let mut run = bound(now);
        run.joins(0, "a", "A".into());
        run.joins(1, "b", "B".into());
        run
    }

    fn failure(rank: usize, error: &str) -> Failure {
        Failure {
            rank,
            executor: "x".into(),
            error: error.into(),
        }
    }

    fn elastic() -> Elastic {
        Elastic {
            min_ranks: 1,
            max_ranks: Some(3),
            regroup_timeout: Duration::from_secs(30),
            too_few: TooFew::Fail,
        }
    }

    #[test]
    fn membership_is_handed_out_once_all_have_joined() {
        let mut run = bound(Instant::now());
        assert!(run.joins(1, "b", "B".into()));
        assert_eq!(run.membership(1), None);
        assert_eq!(run.missing(), "rank 0 on executor a");
        assert!(run.joins(0, "a", "A".into()));
        let membership = run.membership(1).unwrap();
        assert_eq!((membership.generation, membership.rank), (1, 1));
        assert_eq!(membership.endpoints, ["A", "B"]);
        assert_eq!(membership.executors, ["a", "b"]);
    }

    #[test]
    fn strangers_do_not_join() {
        let mut run = bound(Instant::now());
        assert!(!run.joins(7, "a", "A".into()));
        assert!(!run.joins(0, "b", "A".into()));
    }

    #[test]
    fn a_new_generation_starts_without_members_endpoints() {
        let now = Instant::now();
        let mut run = joined(now);
        run.starts(vec![(2, "a".into()), (3, "c".into())], now);
        assert_eq!(run.membership(2), None);
        run.reports(1, Event::Note("stale".into()));
        let stale = Event::Note("stale".into());
        assert!(run.events().iter().all(|(_, event)| *event != stale));
        assert_eq!(run.ended(1).unwrap(), "generation 2 has begun");
        assert_eq!(run.ended(2), None);
    }

    #[test]
    fn the_root_cause_is_the_first_failure_that_is_not_a_lost_peer() {
        let now = Instant::now();
        let mut run = bound(now);
        run.fails(1, failure(0, "peer 1 closed"), true);
        assert_eq!(run.verdict(1, 0), None);
        run.fails(1, failure(1, "label is null"), false);
        run.fails(1, failure(0, "other"), false);
        assert_eq!(run.root().unwrap().error, "label is null");
        assert_eq!(
            run.verdict(1, 0),
            Some(Verdict::Root(failure(1, "label is null")))
        );
        assert_eq!(run.verdict(1, 1), Some(Verdict::Own));
        run.fails(9, failure(0, "stale"), false);
        assert_eq!(run.root().unwrap().rank, 1);
    }

    #[test]
    fn a_lost_executor_ends_the_generation_for_all() {
        let now = Instant::now();
        let mut run = joined(now);
        run.loses("z", now);
        assert_eq!(run.ended(1), None);
        run.loses("b", now);
        assert_eq!(run.ended(1).unwrap(), "rank 1 was lost with executor b");
        assert_eq!(run.verdict(1, 0), Some(Verdict::Regroup));
        assert!(run.awaits_ranks());
        let mut wish = |after: u64| {
            let now = now + Duration::from_secs(after);
            run.wish(Ranks::All, &elastic(), 1, now)
        };
        let expected = |patience_over| Wish::Regroup {
            wanted: 2,
            least: 1,
            most: 3,
            patience_over,
            too_few: TooFew::Fail,
        };
        assert_eq!((wish(29), wish(30)), (expected(false), expected(true)));
    }

    #[test]
    fn ranks_that_lose_each_other_meet_again_but_not_for_ever() {
        let now = Instant::now();
        let mut run = joined(now);
        for generation in 1..FRUITLESS as u64 {
            let verdict = run.gives_up(generation, &failure(0, "closed"), now);
            assert_eq!(verdict, Verdict::Regroup, "generation {generation}");
            run.starts(vec![(0, "a".into()), (1, "b".into())], now);
        }
        let last = FRUITLESS as u64;
        let mut progressing = joined(now);
        assert_eq!(run.gives_up(last, &failure(1, "closed"), now), Verdict::Own);
        assert_eq!(run.root().unwrap().rank, 1);

        for generation in 1..20 {
            let steps = Steps {
                total: generation * 10,
                ..Steps::default()
            };
            progressing.steps(generation, 0, steps);
            let verdict = progressing.gives_up(generation, &failure(0, "closed"), now);
            assert_eq!(verdict, Verdict::Regroup);
            progressing.starts(vec![(0, "a".into()), (1, "b".into())], now);
        }
    }

    #[test]
    fn a_run_grows_once_it_has_settled() {
        let now = Instant::now();
        let run = joined(now);
        assert_eq!(run.may_grow(now), None);
        assert_eq!(run.may_grow(now + SETTLE), Some(2));
        assert_eq!(bound(now).may_grow(now + SETTLE), None, "nobody has joined");
        let mut over = joined(now);
        over.finishes();
        assert_eq!(over.may_grow(now + SETTLE), None);
    }

    #[test]
    fn a_run_that_cannot_begin_gives_up() {
        let (mut run, now) = (Run::default(), Instant::now());
        let mut gives_up = |registered, after| {
            let now = now + Duration::from_secs(after);
            match run.wish(Ranks::Exactly(2), &elastic(), registered, now) {
                Wish::Begin { gives_up, .. } => gives_up,
                Wish::Regroup { .. } => panic!("it has not begun"),
            }
        };
        assert!(!gives_up(1, 0) && !gives_up(1, 29) && gives_up(1, 30));
        assert!(!gives_up(2, 40) && !gives_up(1, 41), "there were enough");
    }

    #[test]
    fn waiting_is_said_once() {
        let mut run = Run::default();
        run.waits("a".into());
        run.waits("a".into());
        run.waits("b".into());
        assert_eq!(run.events().len(), 2);
    }
}
