//! Clients of a long run, each of which runs one statement after the other and checks its outcome.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use volley_tests::{Client, Cluster, JobState, Numbers, Run, eventually};

use super::PATIENCE;
use crate::asking::work;
use crate::dice::Dice;
use crate::fault::say;
use crate::fitting::{Fit, setup};
use crate::scene::SOON;

/// Number of clients that ask.
const ASKERS: usize = 7;
/// Longest rest of a client.
const REST: Duration = Duration::from_secs(1);
/// Longest rest between trainings that nobody waits for.
const LONG_REST: Duration = Duration::from_secs(60);
/// Number of models that a client trains by turns.
const NAMES: usize = 8;
/// Number of causes of errors that are told apart.
const CAUSES: usize = 64;

/// Rows that a query must have.
enum Expected {
    Rows(Vec<Value>),
    Csv(String),
    /// One row, whatever it has counted.
    Count,
}

/// Statements of a client.
#[derive(Debug, Clone, Copy)]
enum Part {
    Asks,
    Trains,
    /// Submits trainings, and finds them again.
    Detaches,
}

/// Client, which does one thing after the other.
struct Seat {
    part: Part,
    work: Work,
    since: Instant,
    /// Number of statements so far.
    count: usize,
}

enum Work {
    /// It begins something when this is over.
    Rest(Duration),
    Question(Client, Expected),
    Training(Fit),
    Submission(Fit),
    /// The job that was submitted, by its id, which a client follows.
    Followed(Fit, String),
}

/// Outcomes.
#[derive(Debug, Default)]
pub(super) struct Counts {
    answered: usize,
    trained: usize,
    /// Trainings that were found again and had succeeded.
    detached: usize,
    /// Clear errors, by their cause.
    failed: BTreeMap<String, usize>,
}

pub(super) struct Clients {
    seats: Vec<Seat>,
    numbers: Numbers,
    /// Questions of several amounts of work, and their answers.
    answers: Vec<(String, Vec<Value>)>,
    dice: Dice,
    pub(super) counts: Counts,
}

impl Clients {
    pub(super) fn new(cluster: &Cluster, dice: Dice) -> Self {
        let numbers = Numbers::write(cluster.dir(), 6_000);
        let answer = |times| (numbers.question(work(times)), numbers.answer(work(times)));
        let parts = [Part::Asks; ASKERS].into_iter();
        let parts = parts.chain([Part::Trains, Part::Detaches]);
        Self {
            seats: parts.map(Seat::new).collect(),
            answers: [1, 2, 4].map(answer).to_vec(),
            numbers,
            dice,
            counts: Counts::default(),
        }
    }

    /// Checks whether all of them rest.
    pub(super) fn rest(&self) -> bool {
        let rests = |seat: &Seat| matches!(seat.work, Work::Rest(_));
        self.seats.iter().all(rests)
    }

    /// Looks after each client; one that has rested begins something if it is to go on.
    pub(super) fn go_on(&mut self, cluster: &mut Cluster, again: bool) {
        for mut seat in std::mem::take(&mut self.seats) {
            let work = std::mem::replace(&mut seat.work, Work::Rest(Duration::ZERO));
            seat.work = self.proceed(&mut seat, work, cluster, again);
            self.seats.push(seat);
        }
    }

    /// Returns what a client does next.
    fn proceed(
        &mut self,
        seat: &mut Seat,
        mut work: Work,
        cluster: &mut Cluster,
        again: bool,
    ) -> Work {
        let client = match &mut work {
            Work::Rest(rest) if again && seat.since.elapsed() >= *rest => {
                return self.begin(seat, cluster);
            }
            Work::Rest(_) => return work,
            Work::Question(client, _) => client,
            Work::Training(fit) | Work::Submission(fit) | Work::Followed(fit, _) => &mut fit.client,
        };
        let Some(status) = client.process().ended() else {
            let said = client.said();
            assert!(seat.since.elapsed() < PATIENCE, "it hangs:\n{said}");
            return work;
        };
        match work {
            Work::Question(client, expected) if status.success() => {
                expected.check(&client.wait(PATIENCE));
                self.counts.answered += 1;
            }
            Work::Training(fit) if status.success() => {
                fit.trained(cluster);
                self.counts.trained += 1;
            }
            Work::Submission(mut fit) if status.success() => {
                let run = fit.client.end(PATIENCE);
                let id = run.stdout.lines().last().unwrap_or_default();
                return seat.follow(fit, id, cluster);
            }
            Work::Followed(mut fit, id) => {
                let run = fit.client.end(PATIENCE);
                cluster.scheduler().thaw();
                let known = format!("job {id}, which was accepted, to be known");
                let job = eventually(&known, SOON, || cluster.job(&id));
                match job.state {
                    // Its client has lost the scheduler.
                    JobState::Running => return seat.follow(fit, &id, cluster),
                    JobState::Succeeded => {
                        fit.has_published(cluster);
                        self.counts.detached += 1;
                    }
                    JobState::Failed | JobState::Cancelled => self.fails(&run),
                }
            }
            Work::Question(client, _)
            | Work::Training(Fit { client, .. })
            | Work::Submission(Fit { client, .. }) => self.fails(&client.wait(PATIENCE)),
            Work::Rest(_) => unreachable!("it has no client"),
        }
        seat.since = Instant::now();
        Work::Rest(self.dice.up_to(match seat.part {
            Part::Asks | Part::Trains => REST,
            Part::Detaches => LONG_REST,
        }))
    }

    /// Begins a client's next statement.
    fn begin(&mut self, seat: &mut Seat, cluster: &Cluster) -> Work {
        seat.since = Instant::now();
        seat.count += 1;
        match seat.part {
            Part::Asks => self.ask(cluster),
            Part::Trains => Work::Training(seat.train("m", 1_000, &[], cluster)),
            Part::Detaches => Work::Submission(seat.train("n", 900, &["--detach"], cluster)),
        }
    }

    fn ask(&mut self, cluster: &Cluster) -> Work {
        let id = self.dice.below(self.numbers.facts() as usize);
        let (format, sql, expected) = match self.dice.below(8) {
            0 => {
                let sql = format!("SELECT id FROM facts WHERE id = {id}");
                ("json", sql, Expected::Rows(vec![json!({"id": id})]))
            }
            1 => {
                let sql = format!("SELECT count(*) AS n FROM facts WHERE id < {id}");
                ("json", sql, Expected::Rows(vec![json!({"n": id})]))
            }
            2 => {
                let listed = Expected::Csv(self.numbers.listed());
                ("csv", self.numbers.listing(), listed)
            }
            3 => {
                let tables = ["jobs", "stages", "executors", "log", "training_runs"];
                let table = self.dice.pick(&tables);
                let sql = format!("SELECT count(*) AS n FROM volley.{table}");
                ("json", sql, Expected::Count)
            }
            _ => {
                let (sql, rows) = &self.answers[self.dice.below(self.answers.len())];
                ("json", sql.clone(), Expected::Rows(rows.clone()))
            }
        };
        let sql = format!("{} {sql}", self.numbers.tables());
        let mut command = cluster.command();
        let asked = command.args(["--quiet", "--format", format, "-c", &sql]);
        Work::Question(cluster.spawn(asked), expected)
    }

    /// Accepts that a command has succeeded, or that its error is clear. Returns whether it has succeeded.
    pub(super) fn succeeds_or_fails(&mut self, run: &Run) -> bool {
        if run.code != Some(0) {
            self.fails(run);
        }
        run.code == Some(0)
    }

    /// Accepts a failure if its error is clear: executors and the scheduler may go faster than a job proceeds.
    fn fails(&mut self, run: &Run) {
        let said = run.error().lines().rev();
        // Its first line says what was done, the others why it failed.
        let mut causes = said.take_while(|line| !line.starts_with("error: "));
        let names_one = |line: &&str| line.contains("executor") || line.contains("scheduler");
        let first = run.stderr.lines().rfind(|line| line.starts_with("error: "));
        let cause = causes.find(names_one).or(first.filter(names_one));
        let cause = cause.unwrap_or_else(|| panic!("it names nobody: {}", run.stderr));
        say(&format!("soak: {}", cause.trim()));
        let words = cause.split_whitespace();
        let words = words.map(|word| match word.contains(char::is_numeric) {
            true => "#",
            false => word,
        });
        let cause = words.collect::<Vec<_>>().join(" ");
        let failed = &mut self.counts.failed;
        let is_told = failed.len() < CAUSES || failed.contains_key(&cause);
        let cause = if is_told { cause } else { "others".to_owned() };
        *failed.entry(cause).or_default() += 1;
    }
}

impl Seat {
    fn new(part: Part) -> Self {
        Self {
            part,
            work: Work::Rest(Duration::ZERO),
            since: Instant::now(),
            count: 0,
        }
    }

    /// Starts to train a model, which replaces an earlier one of its name.
    fn train(&self, name: &str, rows: usize, args: &[&str], cluster: &Cluster) -> Fit {
        let name = format!("{name}{}", self.count % NAMES);
        let options = "ranks = 3, min_ranks = 1, on_too_few_ranks = 'wait', regroup_timeout = '2s', \
                       checkpoint_every = 10";
        let dropped = format!("DROP MODEL IF EXISTS {name};");
        let mut setup = setup(&name, options).rows(rows).epochs(100);
        for arg in args.iter().chain(&["-c", &dropped]) {
            setup = setup.arg(arg);
        }
        setup.start(cluster)
    }

    /// Follows a job that was accepted to its end.
    fn follow(&mut self, mut fit: Fit, id: &str, cluster: &Cluster) -> Work {
        self.since = Instant::now();
        let mut command = cluster.jobs_command();
        fit.client = cluster.spawn(command.args(["attach", id]));
        Work::Followed(fit, id.to_owned())
    }
}

impl Expected {
    fn check(&self, run: &Run) {
        match self {
            Self::Rows(rows) => assert_eq!(run.rows(), *rows, "wrong rows"),
            Self::Csv(csv) => assert_eq!(run.stdout, *csv, "wrong rows"),
            Self::Count => assert!(run.rows()[0]["n"].is_u64(), "{}", run.stdout),
        }
    }
}
