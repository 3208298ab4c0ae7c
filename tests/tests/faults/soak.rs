//! A long run of questions and training, one after the other, while executors come and go at random.
//!
//! The faults do not wait for phases; each result must be right or its error clear, nothing may hang, and the cluster
//! must have recovered at the end.

use std::time::{Duration, Instant};

use serde_json::Value;
use volley_tests::{Client, Cluster, ExecutorSetup, Numbers, Proxy, Run};

use crate::asking::{ask, work};
use crate::dice::Dice;
use crate::fault::{say, seed};
use crate::fitting::{Fit, setup};
use crate::scene;

/// Duration without `VOLLEY_SOAK`.
const TEN_MINUTES: Duration = Duration::from_secs(600);
const EXECUTORS: usize = 4;
/// Timeout of a job, which hangs if it takes longer.
const PATIENCE: Duration = Duration::from_secs(240);
const TICK: Duration = Duration::from_millis(50);

/// Next fault of an executor.
#[derive(Debug, Clone, Copy)]
enum Event {
    Kill,
    Terminate,
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

struct Soak {
    cluster: Cluster,
    executors: Vec<Executor>,
    dice: Dice,
    numbers: Numbers,
    answer: Vec<Value>,
    question: Option<(Client, Instant)>,
    fit: Option<(Fit, Instant)>,
    scheduler_until: Option<Instant>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    events: usize,
    answered: usize,
    trained: usize,
    /// Number of jobs that ended with a clear error.
    failed: usize,
}

/// Runs for as long as `VOLLEY_SOAK` says.
pub(crate) fn run() {
    let seed = seed("soak");
    let time = std::env::var("VOLLEY_SOAK").ok();
    let time = time.map_or(TEN_MINUTES, |time| {
        humantime::parse_duration(&time).expect("VOLLEY_SOAK is a time such as 10m")
    });
    let cluster = scene::cluster(0);
    let numbers = Numbers::write(cluster.dir(), 6_000);
    let answer = numbers.answer(work(1));
    let mut soak = Soak {
        cluster,
        executors: Vec::new(),
        dice: Dice::new(seed, 0),
        numbers,
        answer,
        question: None,
        fit: None,
        scheduler_until: None,
        counts: Counts::default(),
    };
    for _ in 0..EXECUTORS {
        soak.add_executor();
    }
    soak.cluster.await_executors(EXECUTORS);
    let started = Instant::now();
    let mut next = started;
    while started.elapsed() < time {
        soak.go_on();
        soak.look_after_question(true);
        soak.look_after_training(true);
        if Instant::now() >= next {
            soak.happens();
            next =
                Instant::now() + Duration::from_secs(1) + soak.dice.up_to(Duration::from_secs(9));
        }
        std::thread::sleep(TICK);
    }
    while soak.question.is_some() || soak.fit.is_some() {
        soak.go_on();
        soak.look_after_question(false);
        soak.look_after_training(false);
        std::thread::sleep(TICK);
    }
    while soak
        .executors
        .iter()
        .any(|executor| executor.until.is_some())
    {
        soak.go_on();
        std::thread::sleep(TICK);
    }
    scene::is_well(&soak.cluster, EXECUTORS);
    say(&format!("soak, seed {seed}: {:?}", soak.counts));
}

impl Soak {
    fn add_executor(&mut self) {
        let proxy = Proxy::to(self.cluster.address());
        let number = self.cluster.add_executor_with(ExecutorSetup {
            scheduler: Some(proxy.address()),
            ..ExecutorSetup::default()
        });
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
            Event::Freeze(long),
            Event::Freeze(long),
            Event::Cut,
            Event::CutOff(long),
            Event::SchedulerFreezes(short),
        ]);
        // Half of the executors are left alone at any time, so that jobs can end.
        let away = self.executors.iter().filter(|e| e.until.is_some()).count();
        let index = self.dice.below(self.executors.len());
        if away >= EXECUTORS / 2 || self.executors[index].until.is_some() {
            return;
        }
        self.counts.events += 1;
        let number = self.executors[index].number;
        say(&format!("soak: executor-{number}: {event:?}"));
        let process = &mut self.cluster.executors()[number];
        match event {
            Event::Kill | Event::Terminate => {
                match event {
                    Event::Kill => process.kill(),
                    _ => process.terminate(),
                }
                self.executors.remove(index);
                self.add_executor();
            }
            Event::Freeze(time) => {
                process.freeze();
                self.executors[index].until = Some(Instant::now() + time);
            }
            Event::Cut => self.executors[index].proxy.cut(),
            Event::CutOff(time) => {
                self.executors[index].proxy.hold_both();
                self.executors[index].until = Some(Instant::now() + time);
            }
            Event::SchedulerFreezes(time) => {
                self.cluster.scheduler().freeze();
                self.scheduler_until = Some(Instant::now() + time);
            }
        }
    }

    /// Continues processes that were stopped for long enough.
    fn go_on(&mut self) {
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
    }

    fn look_after_question(&mut self, again: bool) {
        let Some((mut client, since)) = self.question.take() else {
            if again {
                let command = self.cluster.command();
                let client = ask(&self.numbers, work(1), &self.cluster, command);
                self.question = Some((client, Instant::now()));
            }
            return;
        };
        if client.process().ended().is_none() {
            assert!(since.elapsed() < PATIENCE, "it hangs:\n{}", client.said());
            self.question = Some((client, since));
            return;
        }
        let run = client.wait(PATIENCE);
        if run.code == Some(0) {
            assert_eq!(run.rows(), self.answer, "wrong rows");
            self.counts.answered += 1;
        } else {
            self.fails(&run);
        }
    }

    fn look_after_training(&mut self, again: bool) {
        let Some((mut fit, since)) = self.fit.take() else {
            if again {
                let name = format!("m{}", self.counts.trained + self.counts.failed);
                let options = "ranks = 3, min_ranks = 1, on_too_few_ranks = 'wait', \
                               regroup_timeout = '2s', checkpoint_every = 10";
                let fit = setup(&name, options).epochs(200).start(&self.cluster);
                self.fit = Some((fit, Instant::now()));
            }
            return;
        };
        match fit.client.process().ended() {
            None => {
                let said = fit.client.said();
                assert!(since.elapsed() < PATIENCE, "it hangs:\n{said}");
                self.fit = Some((fit, since));
            }
            Some(status) if status.success() => {
                fit.trained(&self.cluster);
                self.counts.trained += 1;
            }
            Some(_) => {
                let run = fit.client.wait(PATIENCE);
                self.fails(&run);
            }
        }
    }

    /// Accepts the failure of a job if its error is clear: executors may go faster than it proceeds.
    fn fails(&mut self, run: &Run) {
        let said = run.error().lines().last().unwrap_or_default();
        say(&format!("soak: {said}"));
        assert!(said.contains("executor"), "it names nobody: {}", run.stderr);
        self.counts.failed += 1;
    }
}
