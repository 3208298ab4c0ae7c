//! A long run of eight clients at a time, seven that ask and one that trains, while executors come and go at random and
//! the scheduler is restarted again and again. Now and then, a training is submitted besides that nobody waits for.
//!
//! ```text
//!   clients    ask or train ─► right, or a clear error ─► rest ─► …
//!   executors  killed, told to end, drained, frozen, cut off ─► started again, or replaced; one stays throughout
//!   scheduler  ├─ a life: frozen now and then ─┤ killed or told to end ├─ the next life ─┤ …
//!                              └ least held in this half, compared between lives
//! ```
//!
//! The faults do not wait for phases. Each result must be right or its error clear, nothing may hang or panic, no accepted
//! training may be lost, and the cluster must have recovered at the end. Memory, descriptors and files must not grow.

mod clients;
mod sample;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use volley_tests::{
    Client, Cluster, ExecutorSetup, JobState, Process, Proxy, eventually, executor_id,
};

use crate::dice::Dice;
use crate::fault::{say, seed};
use crate::scene::{self, SOON};
use clients::Clients;
use sample::Sample;

/// Duration without `VOLLEY_SOAK`.
const TEN_MINUTES: Duration = Duration::from_secs(600);
/// Longest life of a scheduler; it is a tenth of a shorter run.
const LIFE: Duration = TEN_MINUTES;
const EXECUTORS: usize = 4;
/// Timeout of a job, and of an executor that leaves, which hang if they take longer.
const PATIENCE: Duration = Duration::from_secs(600);
const TICK: Duration = Duration::from_millis(50);
/// Twice the time for which rows that have been read are kept.
const AT_REST: Duration = Duration::from_secs(30);
/// Time between two measurements.
const BEAT: Duration = Duration::from_secs(1);

/// Next fault.
#[derive(Debug, Clone, Copy)]
enum Event {
    Kill,
    Terminate,
    Drain,
    Freeze(Duration),
    Cut,
    CutOff(Duration),
    /// The scheduler stops for a moment.
    SchedulerFreezes(Duration),
}

/// Executor, with its proxy to the scheduler.
struct Executor {
    number: usize,
    proxy: Proxy,
    /// Time when it continues, if it is frozen or cut off.
    until: Option<Instant>,
}

/// Executor that was told to end.
struct Leaver {
    executor: Executor,
    since: Instant,
    /// Client that drains it, if it was not told by a signal.
    drain: Option<Client>,
}

struct Soak {
    cluster: Cluster,
    clients: Clients,
    /// The first one stays.
    executors: Vec<Executor>,
    leavers: Vec<Leaver>,
    dice: Dice,
    scheduler_until: Option<Instant>,
    /// Number of faults of each kind.
    events: BTreeMap<&'static str, usize>,
    /// Number of panics of executors and schedulers at each place.
    panics: BTreeMap<String, usize>,
}

/// Runs for as long as `VOLLEY_SOAK` says.
pub(crate) fn run() {
    let seed = seed("soak");
    let time = std::env::var("VOLLEY_SOAK").ok();
    let time = time.map_or(TEN_MINUTES, |time| {
        humantime::parse_duration(&time).expect("VOLLEY_SOAK is a time such as 10m")
    });
    let mut soak = Soak::start(seed);
    let (started, life) = (Instant::now(), LIFE.min(time / 10));
    let (mut next, mut born, mut sampled, mut told) = (started, started, started, started);
    let (mut lives, mut least) = (Vec::new(), None);
    while started.elapsed() < time {
        soak.go_on(true);
        if Instant::now() >= next {
            soak.happens();
            let pause = Duration::from_secs(1) + soak.dice.up_to(Duration::from_secs(9));
            next = Instant::now() + pause;
        }
        if born.elapsed() > life / 2 && sampled.elapsed() > BEAT {
            least = Some(soak.sample().least(least));
            sampled = Instant::now();
        }
        if born.elapsed() > life {
            lives.extend(least.take());
            soak.restart_scheduler();
            born = Instant::now();
        }
        if told.elapsed() > life / 3 {
            let minutes = started.elapsed().as_secs() / 60;
            say(&format!("soak: {minutes} min: {}", soak.counts()));
            told = Instant::now();
        }
    }
    lives.extend(least);
    soak.settle();
    let (before, after) = (lives[lives.len() / 4], lives[lives.len() - 1]);
    let settled = soak.sample_at_rest();
    say(&format!(
        "soak: a quarter: {before:?}; the end: {after:?}; settled: {settled:?}"
    ));
    say(&format!("soak, seed {seed}: {}", soak.counts()));
    after.is_flat_since(before);
    settled.is_flat_since(before);
    assert!(soak.panics.is_empty(), "panics: {:?}", soak.panics);
}

impl Soak {
    /// Starts the cluster, with all clients at rest.
    fn start(seed: u64) -> Self {
        let mut open = scene::setup(0);
        // Each scheduler would make tokens of its own, and a client that begins may have read the earlier one's.
        open.scheduler_args.push("--insecure".to_owned());
        // Prepared rows are files by design, up to a limit.
        let space = ["--prepared-space", "64KiB"].map(str::to_owned);
        open.executor_args.extend(space);
        let cluster = Cluster::start_with(open);
        let mut soak = Self {
            clients: Clients::new(&cluster, Dice::new(seed, 1)),
            cluster,
            executors: Vec::new(),
            leavers: Vec::new(),
            dice: Dice::new(seed, 0),
            scheduler_until: None,
            events: BTreeMap::new(),
            panics: BTreeMap::new(),
        };
        for _ in 0..EXECUTORS {
            soak.start_executor(None);
        }
        soak.cluster.await_executors(EXECUTORS);
        soak
    }

    /// Starts an executor: another one, or one that has ended, by its number.
    fn start_executor(&mut self, again: Option<usize>) {
        let proxy = Proxy::to(self.cluster.address());
        let setup = ExecutorSetup {
            scheduler: Some(proxy.address()),
            ..ExecutorSetup::default()
        };
        let number = match again {
            None => self.cluster.add_executor_with(setup),
            Some(number) => {
                drop(self.cluster.start_executor_again_with(number, setup));
                number
            }
        };
        self.executors.push(Executor {
            number,
            proxy,
            until: None,
        });
    }

    fn happens(&mut self) {
        let long = self.dice.up_to(2 * scene::SILENCE);
        let short = self.dice.up_to(scene::SILENCE / 2);
        let event = self.dice.pick(&[
            Event::Kill,
            Event::Kill,
            Event::Kill,
            Event::Terminate,
            Event::Drain,
            Event::Freeze(long),
            Event::Freeze(long),
            Event::Cut,
            Event::CutOff(long),
            Event::SchedulerFreezes(short),
        ]);
        // Half of the executors are left alone at any time, so that jobs can end.
        let away = self.executors.iter().filter(|e| e.until.is_some()).count();
        let index = self.dice.below(self.executors.len());
        let stays = index == 0 && matches!(event, Event::Kill | Event::Terminate | Event::Drain);
        if stays || away >= EXECUTORS / 2 || self.executors[index].until.is_some() {
            return;
        }
        let number = self.executors[index].number;
        say(&format!("soak: executor-{number}: {event:?}"));
        let process = &mut self.cluster.executors()[number];
        let kind = match event {
            Event::Kill => {
                process.kill();
                self.executors.remove(index);
                let comes_back = self.dice.below(2) == 0;
                self.has_ended(number, comes_back);
                self.start_executor(comes_back.then_some(number));
                if comes_back {
                    "killed"
                } else {
                    "killed for good"
                }
            }
            Event::Terminate => {
                process.terminate();
                self.leaves(index, None);
                "told to end"
            }
            Event::Drain => {
                let mut command = self.cluster.executors_command();
                let drain = self
                    .cluster
                    .spawn(command.args(["drain", &executor_id(number)]));
                self.leaves(index, Some(drain));
                "drained"
            }
            Event::Freeze(time) => {
                process.freeze();
                self.executors[index].until = Some(Instant::now() + time);
                "frozen"
            }
            Event::Cut => {
                self.executors[index].proxy.cut();
                "cut"
            }
            Event::CutOff(time) => {
                self.executors[index].proxy.hold_both();
                self.executors[index].until = Some(Instant::now() + time);
                "cut off"
            }
            Event::SchedulerFreezes(time) => {
                self.cluster.scheduler().freeze();
                self.scheduler_until = Some(Instant::now() + time);
                "scheduler frozen"
            }
        };
        *self.events.entry(kind).or_default() += 1;
    }

    /// Replaces an executor that was told to end.
    fn leaves(&mut self, index: usize, drain: Option<Client>) {
        let executor = self.executors.remove(index);
        self.leavers.push(Leaver {
            executor,
            since: Instant::now(),
            drain,
        });
        self.start_executor(None);
    }

    /// Removes the log of an executor that has ended and, if it does not come back, the work folder, as with its host.
    fn has_ended(&mut self, number: usize, comes_back: bool) {
        let process = &self.cluster.executors()[number];
        count_panics(process, &mut self.panics);
        process.remove_output();
        if !comes_back {
            fs::remove_dir_all(self.cluster.work_dir(number)).expect("it is the test's own");
        }
    }

    /// Kills the scheduler or tells it to end, and starts it again. Before, removes what the model store does not need.
    fn restart_scheduler(&mut self) {
        self.cluster.scheduler().thaw();
        self.scheduler_until = None;
        let address = self.cluster.address().to_owned();
        let gc = ["gc", "--scheduler", &address, "--older-than", "2m"];
        self.clients
            .succeeds_or_fails(&self.cluster.manage_store(&gc));
        let (killed, told) = ("scheduler killed", "scheduler told to end");
        let kind = self.dice.pick(&[killed, told]);
        say(&format!("soak: {kind}"));
        if kind == told {
            let scheduler = self.cluster.scheduler();
            scheduler.terminate();
            eventually("the scheduler to end", SOON, || scheduler.ended());
        }
        self.cluster.restart_scheduler();
        *self.events.entry(kind).or_default() += 1;
    }

    /// Lets everything take its next step: processes that were stopped for long enough continue, and clients that have
    /// rested begin something if they are to go on.
    fn go_on(&mut self, again: bool) {
        let now = Instant::now();
        if self.scheduler_until.is_some_and(|until| until <= now) {
            self.cluster.scheduler().thaw();
            self.scheduler_until = None;
        }
        for executor in &mut self.executors {
            if executor.until.is_some_and(|until| until <= now) {
                self.cluster.executors()[executor.number].thaw();
                executor.proxy.heal();
                executor.until = None;
            }
        }
        self.clients.go_on(&mut self.cluster, again);
        for leaver in std::mem::take(&mut self.leavers) {
            self.look_after(leaver);
        }
        std::thread::sleep(TICK);
    }

    fn look_after(&mut self, mut leaver: Leaver) {
        let number = leaver.executor.number;
        let process = &mut self.cluster.executors()[number];
        let has_ended = |client: &mut Client| client.process().ended().is_some();
        if let Some(client) = leaver.drain.take_if(has_ended) {
            let told = self.clients.succeeds_or_fails(&client.wait(PATIENCE));
            if !told {
                // A scheduler that was restarted just then has not told it.
                process.terminate();
            }
        }
        match process.ended() {
            Some(status) if leaver.drain.is_none() => {
                let said = process.output();
                // One that has just been started may end by the signal, or because the scheduler is away.
                let registered = said.contains("registered with the scheduler");
                let listens = said.contains("starting");
                let ends = status.success() || !registered;
                assert!(
                    ends && (status.code().is_some() || !listens),
                    "{status}: {said}"
                );
                self.has_ended(number, false);
            }
            _ => {
                assert!(leaver.since.elapsed() < PATIENCE, "executor-{number} stays");
                self.leavers.push(leaver);
            }
        }
    }

    /// Waits until everything has ended, and checks that the cluster has recovered.
    fn settle(&mut self) {
        while self.scheduler_until.is_some()
            || self.executors.iter().any(|one| one.until.is_some())
            || !self.clients.rest()
            || !self.leavers.is_empty()
        {
            self.go_on(false);
        }
        // A client that has lost the scheduler leaves its training behind.
        eventually("all jobs to end", PATIENCE, || {
            let jobs = self.cluster.jobs()?;
            let run = jobs.iter().any(|job| job.state == JobState::Running);
            (!run).then_some(())
        });
        scene::is_well(&self.cluster, EXECUTORS);
        for scheduler in self.cluster.schedulers() {
            count_panics(scheduler, &mut self.panics);
        }
        for executor in &self.executors {
            let process = &self.cluster.executors()[executor.number];
            count_panics(process, &mut self.panics);
        }
    }

    /// Returns the least that is held within the time after which rows that have been read are removed.
    fn sample_at_rest(&mut self) -> Sample {
        let started = Instant::now();
        let mut least = self.sample();
        while started.elapsed() < AT_REST {
            std::thread::sleep(BEAT);
            least = self.sample().least(Some(least));
        }
        least
    }

    /// Returns what is held now.
    fn sample(&mut self) -> Sample {
        let leavers = self.leavers.iter().map(|leaver| &leaver.executor);
        let present = self.executors.iter().chain(leavers);
        let present: Vec<_> = present.map(|executor| executor.number).collect();
        Sample::of(&mut self.cluster, &present)
    }

    fn counts(&self) -> String {
        let counts = &self.clients.counts;
        format!("{:?}; {counts:?}; panics {:?}", self.events, self.panics)
    }
}

/// Counts the panics in a process's log, by their places.
fn count_panics(process: &Process, panics: &mut BTreeMap<String, usize>) {
    let said = process.output();
    let lines: Vec<_> = said.lines().collect();
    for lines in lines.windows(2) {
        if let Some((_, place)) = lines[0].split_once(" panicked at ") {
            let count = panics.entry(place.to_owned()).or_default();
            *count += 1;
            if *count == 1 {
                say(&format!("soak: {}", lines.join(" ")));
            }
        }
    }
}
