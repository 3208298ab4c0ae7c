//! The slots of executors, and GPUs, that tasks hold: from when tasks are bound until they have ended.
//!
//! ```text
//!   bound ──► held ──► succeeded, or failed by itself ──────────────────────────► free
//!               │
//!               └ its attempt is over (cancelled, failed, run again): ending ──► free
//!                        told to the executor until it says that the task has ended
//! ```
//!
//! A lost executor takes its tasks with it. Reports say that a task is there or not, and the order to end a task is
//! repeated each second, so a lost message leaks no slot and no GPU. Sums over tasks, by executor, attempt, queue and
//! user, change only where a task comes ([`Slots::bind`]) or goes ([`Slots::remove`]). A task that cannot be stopped
//! holds its slot for as long as it computes.
//!
//! Not here: the choice of slots for tasks, and the content of tasks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Now;
use super::devices::{Grant, HeldGpus, HostGpu};
use super::ledger::{Holding, Ledger};
use super::queues::{Account, Usage};
use super::quotas::HeldMemory;

/// Time after which a task that was to end and still runs is logged.
const STUBBORN: Duration = Duration::from_secs(10);

/// Task of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Task {
    pub(crate) attempt: String,
    pub(crate) stage: usize,
    /// Number of the task in the stage.
    pub(crate) number: usize,
}

/// Holder of slots, as described to those who wait.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// Training of this model.
    Training(String),
    /// Query of the job with this id.
    Query(String),
}

/// Reader of a description of holders: it names what is the reader's own, and only counts what others hold.
pub(crate) type Viewer<'a> = Option<&'a str>;

/// Holder as a reader may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen<'a> {
    Named(&'a Holder),
    /// Trainings of other users.
    Trainings,
    /// Queries of other users.
    Queries,
}

/// Total of the holders that a reader sees as one.
#[derive(Debug, Default)]
struct Share<'a> {
    /// The holders, with their users.
    holders: BTreeSet<(&'a str, &'a Holder)>,
    slots: usize,
    gpus: BTreeSet<&'a HostGpu>,
}

/// Holdings by holder, and by whether its job is over.
type Shares<'a> = BTreeMap<(Seen<'a>, bool), Share<'a>>;

impl Claim {
    /// Returns the user who holds the slots; empty if that is not known.
    fn user(&self) -> &str {
        let of_query = self.account.as_ref().map(|account| &account.user);
        of_query
            .or(self.rank_of.as_ref())
            .map_or("", |user| &**user)
    }

    /// Returns the holder as the reader may see it. Administrators see all, hence no viewer.
    fn seen_by(&self, viewer: Viewer<'_>) -> Seen<'_> {
        match &self.holder {
            holder if viewer.is_none_or(|viewer| viewer == self.user()) => Seen::Named(holder),
            Holder::Training(_) => Seen::Trainings,
            Holder::Query(_) => Seen::Queries,
        }
    }
}

/// Purpose for which a task holds slots.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) holder: Holder,
    /// User whose share a query's slots count to.
    pub(crate) account: Option<Account>,
    /// User whose rank it is, if it is one.
    pub(crate) rank_of: Option<Arc<str>>,
    /// GPU that a rank was dealt.
    pub(crate) gpu: Option<Grant>,
    /// Bytes that a query's task may hold; 0 for ranks.
    pub(crate) memory: u64,
}

#[derive(Debug)]
struct Held {
    slots: usize,
    claim: Claim,
    ending: Option<Ending>,
}

/// Tasks of an executor.
#[derive(Debug, Default)]
struct OfExecutor {
    tasks: BTreeMap<Task, Held>,
    /// Slots that the tasks hold together.
    held: usize,
}

#[derive(Debug, Clone, Copy)]
struct Ending {
    since: Instant,
    /// True once the log says that this takes long.
    said: bool,
}

/// Slots of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Tasks of each registered executor.
    executors: BTreeMap<String, OfExecutor>,
    /// Number of tasks of each attempt, by executor.
    attempts: HashMap<String, BTreeMap<String, usize>>,
    usage: Usage,
    memory: HeldMemory,
    /// Holdings of each user's ranks.
    ranks: BTreeMap<Arc<str>, Holding>,
    gpus: HeldGpus,
    ledger: Ledger,
}

impl Slots {
    /// Lets time pass: what users hold counts up to now.
    pub(crate) fn pass(&mut self, now: Now) {
        let queries = self.usage.users().map(|(user, slots)| {
            let holding = Holding {
                slots,
                ..Holding::default()
            };
            (user, holding)
        });
        let ranks = self.ranks.iter().map(|(user, held)| (user, *held));
        self.ledger.add(now, queries.chain(ranks));
    }

    /// Returns the time for which each user's tasks have held slots and GPUs.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Adds an executor; tasks that ran there before are removed.
    pub(crate) fn joins(&mut self, executor: &str) {
        self.leaves(executor);
        let none = OfExecutor::default();
        self.executors.insert(executor.to_owned(), none);
    }

    /// Removes an executor and its tasks.
    pub(crate) fn leaves(&mut self, executor: &str) {
        let known = self.executors.get(executor);
        let tasks = known.into_iter().flat_map(|known| known.tasks.keys());
        for task in tasks.cloned().collect::<Vec<_>>() {
            self.remove(executor, &task);
        }
        self.executors.remove(executor);
    }

    /// Returns the attempt and the stages of the tasks on an executor; `None` if they are of several attempts, or some
    /// are ranks.
    pub(crate) fn only_attempt(&self, executor: &str) -> Option<(String, BTreeSet<usize>)> {
        let tasks = &self.executors.get(executor)?.tasks;
        let attempt = &tasks.keys().next()?.attempt;
        let is_alone = tasks.iter().all(|(task, held)| {
            task.attempt == *attempt && matches!(held.claim.holder, Holder::Query(_))
        });
        let stages = tasks.keys().map(|task| task.stage);
        is_alone.then(|| (attempt.clone(), stages.collect()))
    }

    /// Adds a task that is about to be sent to an executor. A query's is counted to an account.
    pub(crate) fn bind(&mut self, executor: &str, task: Task, slots: usize, claim: Claim) {
        if !self.executors.contains_key(executor) {
            return;
        }
        self.remove(executor, &task);
        if let Some(account) = &claim.account {
            self.usage.add(account, slots);
            self.memory.add(&account.user, claim.memory);
        }
        if let Some(Grant { gpu, shares, .. }) = &claim.gpu {
            self.gpus.take(gpu, *shares);
        }
        if let Some(user) = &claim.rank_of {
            let held = self.ranks.entry(Arc::clone(user)).or_default();
            held.ranks += slots;
            held.gpus += usize::from(claim.gpu.is_some());
        }
        let attempt = self.attempts.entry(task.attempt.clone()).or_default();
        *attempt.entry(executor.to_owned()).or_default() += 1;
        let known = self.executors.entry(executor.to_owned()).or_default();
        known.held += slots;
        let held = Held {
            slots,
            claim,
            ending: None,
        };
        known.tasks.insert(task, held);
    }

    /// Removes a task, if it is there.
    fn remove(&mut self, executor: &str, task: &Task) {
        let Some(known) = self.executors.get_mut(executor) else {
            return;
        };
        let Some(held) = known.tasks.remove(task) else {
            return;
        };
        known.held -= held.slots;
        if let Some(account) = &held.claim.account {
            self.usage.remove(account, held.slots);
            self.memory.remove(&account.user, held.claim.memory);
        }
        if let Some(grant) = &held.claim.gpu {
            self.gpus.give_back(&grant.gpu);
        }
        if let Some(user) = &held.claim.rank_of
            && let Some(of_user) = self.ranks.get_mut(user)
        {
            of_user.ranks -= held.slots;
            of_user.gpus -= usize::from(held.claim.gpu.is_some());
            if *of_user == Holding::default() {
                self.ranks.remove(user);
            }
        }
        let Some(attempt) = self.attempts.get_mut(&task.attempt) else {
            return;
        };
        if let Some(tasks) = attempt.get_mut(executor) {
            *tasks -= 1;
            if *tasks == 0 {
                attempt.remove(executor);
            }
        }
        if attempt.is_empty() {
            self.attempts.remove(&task.attempt);
        }
    }

    fn held_by_task(&self, executor: &str, task: &Task) -> Option<&Held> {
        self.executors.get(executor)?.tasks.get(task)
    }

    /// Removes a task that has succeeded.
    pub(crate) fn succeeds(&mut self, executor: &str, task: &Task) {
        self.remove(executor, task);
    }

    /// Records a task's reported failure. If the task was to end, only the wait for it has failed: its computation
    /// may go on.
    pub(crate) fn fails(&mut self, executor: &str, task: &Task) {
        let held = self.held_by_task(executor, task);
        if held.is_some_and(|held| held.ending.is_none()) {
            self.remove(executor, task);
        }
    }

    /// Marks the running tasks of an attempt as ending. Returns whether there are any.
    pub(crate) fn attempt_ends(&mut self, attempt: &str, now: Instant) -> bool {
        let (since, said) = (now, false);
        self.each_of(attempt, |held, _, _| {
            held.ending.get_or_insert(Ending { since, said });
        });
        self.runs(attempt)
    }

    /// Counts an attempt's slots to this account, whatever account they were counted to when bound: the engine may
    /// begin with a job before its owner is known.
    pub(crate) fn count_to(&mut self, attempt: &str, account: &Account) {
        self.each_of(attempt, |held, usage, memory| {
            let counted = held.claim.account.as_mut();
            let counted = counted.filter(|counted| *counted != account);
            if let Some(counted) = counted {
                usage.remove(counted, held.slots);
                usage.add(account, held.slots);
                memory.remove(&counted.user, held.claim.memory);
                memory.add(&account.user, held.claim.memory);
                *counted = account.clone();
            }
        });
    }

    /// Visits the holdings of each task of an attempt, with the sums that include them.
    fn each_of(
        &mut self,
        attempt: &str,
        mut visit: impl FnMut(&mut Held, &mut Usage, &mut HeldMemory),
    ) {
        let first = Task {
            attempt: attempt.to_owned(),
            stage: 0,
            number: 0,
        };
        let executors = self.attempts.get(attempt).into_iter();
        for executor in executors.flat_map(BTreeMap::keys) {
            let Some(known) = self.executors.get_mut(executor) else {
                continue;
            };
            let tasks = known.tasks.range_mut::<Task, _>(&first..);
            for (_, held) in tasks.take_while(|(task, _)| task.attempt == attempt) {
                visit(held, &mut self.usage, &mut self.memory);
            }
        }
    }

    /// Removes tasks whose end the executor reports. Returns whether slots have become free.
    pub(crate) fn ended(&mut self, executor: &str, ended: &[Task]) -> bool {
        let before = self.held_by(executor);
        for task in ended {
            // A task that was not to end reports its own outcome.
            let held = self.held_by_task(executor, task);
            if held.is_some_and(|held| held.ending.is_some()) {
                self.remove(executor, task);
            }
        }
        self.held_by(executor) < before
    }

    /// Returns the tasks of an executor that were to end and have not, and log lines about those among them that take
    /// long.
    pub(crate) fn ending(&mut self, executor: &str, now: Instant) -> (Vec<Task>, Vec<String>) {
        let (mut all, mut lines) = (Vec::new(), Vec::new());
        let known = self.executors.get_mut(executor).into_iter();
        for (task, held) in known.flat_map(|known| &mut known.tasks) {
            let Some(ending) = &mut held.ending else {
                continue;
            };
            all.push(task.clone());
            if !ending.said && now.duration_since(ending.since) > STUBBORN {
                ending.said = true;
                lines.push(format!(
                    "task {} of stage {} still computes {STUBBORN:?} after its job ended, and \
                     holds {}: an operator or function does not reach a point where it can stop",
                    task.number,
                    task.stage,
                    count(held.slots),
                ));
            }
        }
        (all, lines)
    }

    /// Returns the number of slots that tasks hold, by executor.
    pub(crate) fn held(&self) -> BTreeMap<String, usize> {
        let executors = self.executors.iter();
        executors
            .map(|(id, known)| (id.clone(), known.held))
            .collect()
    }

    /// Returns the number of slots of an executor that tasks hold.
    pub(crate) fn held_by(&self, executor: &str) -> usize {
        self.executors.get(executor).map_or(0, |known| known.held)
    }

    /// Returns the numbers of an executor's tasks, and of the slots that they hold, by attempt and stage.
    pub(crate) fn tasks_of(&self, executor: &str) -> BTreeMap<(&str, usize), (usize, usize)> {
        let known = self.executors.get(executor).into_iter();
        let tasks = known.flat_map(|known| &known.tasks);
        let mut all = BTreeMap::new();
        for (task, held) in tasks {
            let (tasks, slots) = all.entry((task.attempt.as_str(), task.stage)).or_default();
            *tasks += 1;
            *slots += held.slots;
        }
        all
    }

    /// Returns the slots that the queries of queues and users hold.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns the memory that the queries of users may hold.
    pub(crate) fn memory(&self) -> &HeldMemory {
        &self.memory
    }

    /// Returns the GPUs that ranks hold.
    pub(crate) fn gpus(&self) -> &HeldGpus {
        &self.gpus
    }

    /// Returns the holders of each held GPU: "training m (its id)".
    pub(crate) fn gpu_holders(&self, viewer: Viewer<'_>) -> BTreeMap<&HostGpu, Vec<String>> {
        let mut holders: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (held, grant) in self.grants() {
            let seen = held.claim.seen_by(viewer);
            let mut name = name(seen, 1, held.ending.is_some());
            if matches!(seen, Seen::Named(_)) {
                name = format!("{name} ({})", grant.train);
            }
            holders.entry(&grant.gpu).or_default().push(name);
        }
        holders
    }

    /// Describes who holds these GPUs: "training m holds 1 of 2 GPUs". Returns `None` if nobody does.
    pub(crate) fn gpus_told(
        &self,
        gpus: &BTreeSet<&HostGpu>,
        viewer: Viewer<'_>,
    ) -> Option<String> {
        let mut shares = Shares::new();
        for (held, grant) in self.grants() {
            if gpus.contains(&grant.gpu) {
                let share = share_of(&mut shares, held, viewer);
                share.gpus.insert(&grant.gpu);
            }
        }
        told(
            &shares,
            |share| share.gpus.len(),
            |held| match gpus.len() {
                1 => "the only GPU".to_owned(),
                all => format!("{held} of {all} GPUs"),
            },
        )
    }

    /// Returns the tasks that hold a GPU.
    fn grants(&self) -> impl Iterator<Item = (&Held, &Grant)> {
        let tasks = self
            .executors
            .values()
            .flat_map(|known| known.tasks.values());
        tasks.filter_map(|held| Some((held, held.claim.gpu.as_ref()?)))
    }

    /// Checks whether a task of the attempt runs, or is about to.
    pub(crate) fn runs(&self, attempt: &str) -> bool {
        self.attempts.contains_key(attempt)
    }

    /// Describes who holds the slots of these executors, `all` in total: "training m holds both slots". Returns
    /// `None` if nobody does.
    pub(crate) fn told<'a>(
        &self,
        executors: impl Iterator<Item = &'a str>,
        all: usize,
        viewer: Viewer<'_>,
    ) -> Option<String> {
        let mut shares = Shares::new();
        for held in executors
            .filter_map(|id| self.executors.get(id))
            .flat_map(|known| known.tasks.values())
        {
            share_of(&mut shares, held, viewer).slots += held.slots;
        }
        told(
            &shares,
            |share| share.slots,
            |slots| match all {
                1 if slots == 1 => "the only slot".to_owned(),
                2 if slots == 2 => "both slots".to_owned(),
                _ if slots == all => format!("all {all} slots"),
                _ => format!("{slots} of {all} slots"),
            },
        )
    }
}

/// Returns the share that a task's holdings count to.
fn share_of<'a, 's>(
    shares: &'s mut Shares<'a>,
    held: &'a Held,
    viewer: Viewer<'_>,
) -> &'s mut Share<'a> {
    let claim = &held.claim;
    let key = (claim.seen_by(viewer), held.ending.is_some());
    let share = shares.entry(key).or_default();
    share.holders.insert((claim.user(), &claim.holder));
    share
}

/// Describes shares: "training m holds 2 of 4 slots, job k 2". Returns `None` if there are none.
fn told(
    shares: &Shares<'_>,
    held: impl Fn(&Share<'_>) -> usize,
    of_all: impl Fn(usize) -> String,
) -> Option<String> {
    let mut shares = shares.iter();
    let ((seen, ending), share) = shares.next()?;
    let holders = share.holders.len();
    // A name stands for itself, however many users train a model of that name.
    let is_one = holders == 1 || matches!(seen, Seen::Named(_));
    let holds = if is_one { "holds" } else { "hold" };
    let mut text = format!(
        "{} {holds} {}",
        name(*seen, holders, *ending),
        of_all(held(share))
    );
    for ((seen, ending), share) in shares {
        let name = name(*seen, share.holders.len(), *ending);
        // Writing to a string cannot fail.
        let _ = write!(text, ", {name} {}", held(share));
    }
    Some(text)
}

/// Names so many holders that a reader sees as one.
fn name(seen: Seen<'_>, holders: usize, ending: bool) -> String {
    let name = match (seen, holders) {
        (Seen::Named(Holder::Training(model)), _) => format!("training {model}"),
        (Seen::Named(Holder::Query(job)), _) => format!("job {job}"),
        (Seen::Trainings, 1) => "a training of another user".to_owned(),
        (Seen::Trainings, holders) => format!("{holders} trainings of other users"),
        (Seen::Queries, 1) => "a job of another user".to_owned(),
        (Seen::Queries, holders) => format!("{holders} jobs of other users"),
    };
    match ending {
        true => format!("{name} (over, but still computing)"),
        false => name,
    }
}

fn count(slots: usize) -> String {
    match slots {
        1 => "its slot".to_owned(),
        _ => format!("its {slots} slots"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(attempt: &str, number: usize) -> Task {
        let attempt = attempt.to_owned();
        Task {
            attempt,
            stage: 1,
            number,
        }
    }

    fn query(job: &str) -> Claim {
        Claim {
            holder: Holder::Query(job.to_owned()),
            account: Some(account()),
            rank_of: None,
            gpu: None,
            memory: 10,
        }
    }

    fn account() -> Account {
        Account::new("default", "u")
    }

    fn cluster() -> Slots {
        let mut slots = Slots::default();
        for executor in ["a", "b"] {
            slots.joins(executor);
        }
        slots
    }

    fn held(slots: &Slots) -> [usize; 2] {
        let held = slots.held();
        ["a", "b"].map(|executor| held.get(executor).copied().unwrap_or(0))
    }

    #[test]
    fn a_cancelled_task_holds_its_slots_until_the_executor_says_that_it_ended() {
        let (mut slots, now) = (cluster(), Instant::now());
        slots.bind("a", task("j", 0), 2, query("j"));
        slots.bind("b", task("j", 1), 1, query("j"));
        slots.bind("b", task("k", 0), 1, query("k"));
        slots.attempt_ends("j", now);
        assert_eq!(held(&slots), [2, 2]);
        slots.fails("a", &task("j", 0));
        assert_eq!(held(&slots), [2, 2], "that is what aborting it says");
        assert_eq!(slots.ending("a", now).0, [task("j", 0)]);
        assert_eq!(slots.ending("b", now).0, [task("j", 1)]);
        assert!(slots.ended("a", &[task("j", 0), task("x", 0)]));
        assert!(!slots.ended("a", &[task("j", 0)]), "once");
        assert!(!slots.ended("b", &[task("k", 0)]), "it runs on");
        assert_eq!(held(&slots), [0, 2]);
        assert!(slots.ending("a", now).0.is_empty());
    }

    #[test]
    fn what_ends_by_itself_frees_its_slots_at_once() {
        let mut slots = cluster();
        slots.bind("a", task("j", 0), 2, query("j"));
        slots.bind("a", task("j", 1), 1, query("j"));
        slots.succeeds("a", &task("j", 0));
        assert_eq!(held(&slots), [1, 0]);
        assert!(slots.runs("j"));
        slots.fails("a", &task("j", 1));
        assert_eq!(held(&slots), [0, 0]);
        assert!(!slots.runs("j"));
    }

    #[test]
    fn an_executor_takes_its_tasks_with_it() {
        let (mut slots, now) = (cluster(), Instant::now());
        slots.bind("a", task("j", 0), 2, query("j"));
        slots.leaves("a");
        slots.bind("a", task("j", 1), 2, query("j"));
        assert_eq!(held(&slots), [0, 0]);
        slots.joins("a");
        slots.attempt_ends("j", now);
        assert_eq!((held(&slots), slots.ending("a", now).0), ([0, 0], vec![]));
    }

    #[test]
    fn what_does_not_end_is_told_once() {
        let (mut slots, now) = (cluster(), Instant::now());
        slots.bind("a", task("j", 3), 2, query("j"));
        slots.attempt_ends("j", now);
        assert!(slots.ending("a", now).1.is_empty());
        let later = now + STUBBORN + Duration::from_secs(1);
        let lines = slots.ending("a", later).1;
        assert!(
            lines[0].starts_with("task 3 of stage 1 still computes"),
            "{lines:?}"
        );
        assert_eq!(slots.ending("a", later), (vec![task("j", 3)], vec![]));
    }

    #[test]
    fn those_who_wait_are_told_who_holds_what() {
        let mut slots = cluster();
        let told = |slots: &Slots, all| {
            let told = slots.told(["a", "b"].into_iter(), all, None);
            told.unwrap_or_default()
        };
        assert_eq!(told(&slots, 2), "");
        let training = || Claim {
            holder: Holder::Training("m".to_owned()),
            account: None,
            rank_of: Some("o".into()),
            gpu: None,
            memory: 0,
        };
        let start = Now::read();
        slots.pass(start);
        slots.bind("a", task("j", 0), 1, training());
        slots.pass(start + Duration::from_secs(3));
        assert_eq!(slots.ledger().users()["o"].rank_seconds, 3.0);
        assert_eq!(told(&slots, 1), "training m holds the only slot");
        slots.bind("b", task("j", 1), 1, training());
        assert_eq!(told(&slots, 2), "training m holds both slots");
        slots.bind("b", task("k", 0), 2, query("k"));
        assert_eq!(told(&slots, 4), "training m holds 2 of 4 slots, job k 2");
        slots.attempt_ends("k", Instant::now());
        assert_eq!(
            told(&slots, 4),
            "training m holds 2 of 4 slots, job k (over, but still computing) 2"
        );
    }

    #[test]
    fn those_who_wait_are_told_of_no_other_user_s_jobs() {
        let mut slots = cluster();
        let claim = |holder: Holder, user: &str| Claim {
            account: Some(Account::new("default", user)),
            ..Claim {
                holder,
                ..query("")
            }
        };
        let training = Claim {
            holder: Holder::Training("secret".to_owned()),
            account: None,
            rank_of: Some("o".into()),
            gpu: None,
            memory: 0,
        };
        slots.bind("a", task("t", 0), 2, training);
        for (number, job) in ["x", "y", "z"].into_iter().enumerate() {
            let claim = claim(Holder::Query(job.to_owned()), "o");
            slots.bind("b", task(job, number), 1, claim);
        }
        slots.bind("b", task("mine", 0), 1, query("mine"));
        let told = |viewer| slots.told(["a", "b"].into_iter(), 8, viewer).unwrap();
        assert_eq!(
            told(Some("u")),
            "job mine holds 1 of 8 slots, a training of another user 2, 3 jobs of other users 3"
        );
        assert_eq!(
            told(Some("v")),
            "a training of another user holds 2 of 8 slots, 4 jobs of other users 4"
        );
        assert_eq!(
            told(Some("o")),
            "training secret holds 2 of 8 slots, job x 1, job y 1, job z 1, a job of another user 1"
        );
        assert!(told(None).contains("job mine"), "an administrator sees all");
    }

    #[test]
    fn sums_are_those_of_the_tasks_that_are_there() {
        let (mut slots, now) = (cluster(), Instant::now());
        let user = |slots: &Slots| slots.usage().of_user(&account());
        slots.bind("a", task("j", 0), 2, query("j"));
        slots.bind("b", task("j", 1), 1, query("j"));
        slots.bind("b", task("k", 0), 1, query("k"));
        // A task that is bound twice is there once.
        slots.bind("b", task("k", 0), 1, query("k"));
        assert_eq!((user(&slots), slots.held_by("b")), (4, 2));
        slots.succeeds("b", &task("j", 1));
        slots.succeeds("b", &task("j", 1));
        assert_eq!((user(&slots), slots.held_by("b")), (3, 1));
        assert!(slots.runs("j") && slots.runs("k"));
        slots.attempt_ends("j", now);
        assert!(slots.ended("a", &[task("j", 0)]));
        assert!(!slots.runs("j"));
        // The job turns out to be another user's; training counts to nobody.
        let other = Account::new("etl", "v");
        slots.bind("a", task("k", 1), 3, query("k"));
        slots.bind(
            "a",
            task("k", 2),
            4,
            Claim {
                holder: Holder::Training("m".to_owned()),
                account: None,
                rank_of: None,
                gpu: None,
                memory: 0,
            },
        );
        assert_eq!((slots.memory().of("u"), slots.memory().of("v")), (20, 0));
        slots.count_to("k", &other);
        assert_eq!((user(&slots), slots.usage().of_user(&other)), (0, 4));
        assert_eq!((slots.memory().of("u"), slots.memory().of("v")), (0, 20));
        slots.leaves("a");
        slots.leaves("b");
        assert_eq!(slots.usage().of_user(&other), 0);
        assert_eq!(slots.memory().of("v"), 0);
        assert_eq!((user(&slots), slots.usage().of_queue("default")), (0, 0));
        assert!(!slots.runs("k"));
        assert!(slots.attempts.is_empty());
    }
}
