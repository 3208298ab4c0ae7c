//! Questions under way: run until the phase in which a fault strikes, and checked at their end.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use volley_tests::{Client, Cluster, Job, JobState, Numbers, Run, Stage, Work};

use crate::fault::{effort, missed};
use crate::scene::SOON;

/// Phase of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Tables are read; at most one exchange is complete.
    Scan,
    /// Exchanges hold data that tasks read.
    Shuffle,
    /// The last stage runs, which makes the rows that the client fetches.
    Last,
}

impl Phase {
    fn is(self, stages: &[Stage]) -> bool {
        let done = stages.iter().filter(|stage| stage.done).count();
        let Some((last, earlier)) = stages.split_last() else {
            return false;
        };
        let runs = earlier.iter().any(|stage| stage.running > 0);
        let last_begun = last.running + last.finished > 0;
        match self {
            Self::Scan => runs && done < 2,
            Self::Shuffle => runs && done >= 2 && !last_begun,
            Self::Last => last.running > 0,
        }
    }
}

/// Statement that runs as a job.
pub(crate) struct Asked {
    pub(crate) client: Client,
    /// Id that the client knows.
    pub(crate) id: String,
    pub(crate) attempt: String,
}

/// Starts the command that `start` makes for an amount of work, and waits until its job is in a phase. A job that was
/// too quick is repeated with more work.
pub(crate) fn reach<T>(
    phase: Phase,
    cluster: &Cluster,
    mut start: impl FnMut(u64) -> (Client, T),
) -> (Asked, T) {
    for work in [1, 4, 16, 64].map(|work| work * effort()) {
        let known = cluster.jobs().map_or(0, |jobs| jobs.len());
        let (mut client, more) = start(work);
        if let Some(job) = await_phase(phase, cluster, known, &mut client) {
            let (attempt, id) = (job.attempt().to_owned(), job.id);
            let asked = Asked {
                client,
                id,
                attempt,
            };
            return (asked, more);
        }
    }
    missed(&format!("no job was slow enough to be met in {phase:?}"))
}

/// Waits until the job after `known` others is in the phase, and returns it; `None` if it ends before.
fn await_phase(phase: Phase, cluster: &Cluster, known: usize, client: &mut Client) -> Option<Job> {
    let started = Instant::now();
    loop {
        let ended = client.process().ended().is_some();
        let jobs = cluster.jobs().unwrap_or_default();
        if let Some(job) = jobs.first().filter(|_| jobs.len() > known) {
            let stages = cluster.stages(job.attempt()).unwrap_or_default();
            if job.state == JobState::Running && phase.is(&stages) {
                return Some(job.clone());
            }
        }
        if ended {
            return None;
        }
        assert!(
            started.elapsed() < SOON,
            "waited {SOON:?} for {phase:?}: {jobs:?}\n{}",
            client.said()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the work of a question that takes a few seconds.
pub(crate) fn work(times: u64) -> Work {
    Work {
        scan: 200 * times,
        join: 100 * times,
    }
}

/// Starts the question over the numbers.
pub(crate) fn ask(numbers: &Numbers, work: Work, cluster: &Cluster, command: Command) -> Client {
    let mut command = command;
    let sql = format!("{} {}", numbers.tables(), numbers.question(work));
    cluster.spawn(command.args(["--format", "json", "-c", &sql]))
}

/// Asks the question and waits until it is in a phase.
pub(crate) fn question(phase: Phase, cluster: &Cluster, numbers: &Numbers) -> Question {
    question_by(phase, cluster, numbers, || cluster.command())
}

/// Does the same as [`question`], with the caller's command.
pub(crate) fn question_by(
    phase: Phase,
    cluster: &Cluster,
    numbers: &Numbers,
    command: impl Fn() -> Command,
) -> Question {
    let (asked, answer) = reach(phase, cluster, |times| {
        let work = work(times);
        let client = ask(numbers, work, cluster, command());
        (client, numbers.answer(work))
    });
    Question { asked, answer }
}

/// Question under way, and the rows that it must end with.
pub(crate) struct Question {
    pub(crate) asked: Asked,
    pub(crate) answer: Vec<Value>,
}

impl Question {
    /// Waits for its end, checks the rows, and returns the job.
    pub(crate) fn answered(self, cluster: &Cluster) -> Job {
        let run = self.asked.client.wait(SOON);
        assert_eq!(run.rows(), self.answer, "{}", run.stderr);
        let job = cluster.job(&self.asked.id).expect("the job is known");
        assert_eq!(job.state, JobState::Succeeded, "{job:?}");
        job
    }

    /// Waits for its end and checks the rows, whichever job made them.
    pub(crate) fn answered_by_any(self) {
        let run = self.asked.client.wait(SOON);
        assert_eq!(run.rows(), self.answer, "{}", run.stderr);
    }

    /// Does the same as [`Self::answered`], and requires more than one attempt.
    pub(crate) fn answered_again(self, cluster: &Cluster) -> Job {
        let job = self.answered(cluster);
        if job.attempts.len() == 1 {
            missed("the question was answered before the loss");
        }
        job
    }

    /// Waits for the error that it must end with.
    pub(crate) fn fails(self) -> Run {
        let run = self.asked.client.wait(SOON);
        if run.code == Some(0) {
            missed("the question was answered before the fault");
        }
        run
    }
}
