//! The scheduler's jobs, by the id their clients know and by attempt.

use std::collections::HashMap;
use std::sync::Arc;

use ballista_core::serde::protobuf::ExecuteQueryParams;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use url::Url;
use volley_proto::{ModelName, TrainId};

use super::job::{Ending, Job, Now, State};
use crate::training::{Run, Runs};
use crate::watched::{Ends, Watched};

/// From this many on, attempts of jobs that are forgotten are forgotten too.
const ATTEMPTS_KEPT: usize = 4096;

/// What the book asks the keeper to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// End an attempt; how is noted already.
    End { attempt: String },
    /// Submit a job again.
    Resubmit { job: String },
    /// Look for work to place: slots have become free.
    Offer,
}

/// The jobs; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Book {
    pub(super) jobs: Watched<String, Job>,
    runs: Runs,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The job of each attempt.
    attempts: Mutex<HashMap<String, String>>,
    /// What was submitted, of jobs that have not ended.
    submissions: Mutex<HashMap<String, ExecuteQueryParams>>,
    /// How attempts are to end, noted before they are ended.
    doomed: Mutex<HashMap<String, Ending>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Book {
    /// An empty book, and the commands that come out of it.
    pub(crate) fn new(runs: Runs) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let shared = Shared {
            attempts: Mutex::default(),
            submissions: Mutex::default(),
            doomed: Mutex::default(),
            commands,
        };
        let book = Self {
            jobs: Watched::default(),
            runs,
            shared: Arc::new(shared),
        };
        (book, receiver)
    }

    /// The training runs that some of the jobs are.
    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    pub(super) fn open(&self, job: Job, submission: ExecuteQueryParams) {
        let id = job.id.clone();
        let mut attempts = self.shared.attempts.lock();
        if attempts.len() > ATTEMPTS_KEPT {
            attempts.retain(|_, job| self.jobs.look(job, |_| ()).is_some());
        }
        attempts.insert(id.clone(), id.clone());
        drop(attempts);
        self.shared
            .submissions
            .lock()
            .insert(id.clone(), submission);
        self.jobs.add(id, job);
    }

    pub(super) fn submission(&self, job: &str) -> Option<ExecuteQueryParams> {
        self.shared.submissions.lock().get(job).cloned()
    }

    /// A job has been submitted again. If it has been cancelled meanwhile, so is the attempt.
    pub(super) fn resubmitted(&self, job: &str, attempt: String) {
        self.shared
            .attempts
            .lock()
            .insert(attempt.clone(), job.to_owned());
        let resubmitted = self.change(job, |job| job.resubmitted(attempt.clone(), Now::read()));
        if resubmitted != Some(true) {
            self.doom(&attempt, Ending::Cancelled);
        }
    }

    /// Checks that no other run of a model is alive, whose checkpoints a run that resumes would go on from.
    ///
    /// # Errors
    /// Names the run and its job, and says what to do.
    pub(crate) fn may_resume(
        &self,
        train: TrainId,
        model: &ModelName,
        store: &Url,
    ) -> Result<(), String> {
        let of_model = |other: &TrainId, run: &Run| {
            let is_other = *other != train && run.trains(model, store);
            is_other.then_some(*other)
        };
        for other in self.runs.scan(of_model) {
            let jobs = self.jobs.scan(|id, job| {
                let is_alive = job.train == Some(other) && !job.is_over();
                is_alive.then(|| id.clone())
            });
            if let Some(job) = jobs.first() {
                return Err(format!(
                    "resume = true goes on from a run that has ended, and run {other} of model {model} is alive, as job \
                     {job}: follow it with volley jobs attach {job}, or end it first with volley jobs cancel {job}"
                ));
            }
        }
        Ok(())
    }

    /// Changes a run, made if need be, whose job may have ended while it was planned.
    pub(crate) fn trains(&self, train: TrainId, change: impl FnOnce(&mut Run)) {
        self.runs.update(train, change);
        let of_run = |_: &String, job: &Job| (job.train == Some(train)).then_some(job.is_over());
        if self.jobs.scan(of_run).contains(&true) {
            self.runs.change(&train, Run::finishes);
        }
    }

    /// Whether the job of an attempt has not been evicted.
    pub(crate) fn knows(&self, attempt: &str) -> bool {
        self.jobs.look(&self.job_of(attempt), |_| ()).is_some()
    }

    /// The job that an attempt belongs to, whose id is that of its first attempt.
    pub(crate) fn job_of(&self, attempt: &str) -> String {
        let known = self.shared.attempts.lock().get(attempt).cloned();
        known.unwrap_or_else(|| attempt.to_owned())
    }

    /// Whose a job is, by its id or that of an attempt.
    pub(crate) fn owner_of(&self, id: &str) -> Option<String> {
        self.jobs.look(&self.job_of(id), |job| job.owner.clone())
    }

    /// The job that is a training run, and whose it is.
    pub(crate) fn owner_of_run(&self, train: TrainId) -> Option<(String, String)> {
        let of_run = |id: &String, job: &Job| {
            (job.train == Some(train)).then(|| (id.clone(), job.owner.clone()))
        };
        self.jobs.scan(of_run).into_iter().next()
    }

    /// Notes how an attempt is to end, and has it ended. From now on nothing of it is started.
    pub(crate) fn doom(&self, attempt: &str, ending: Ending) {
        let mut doomed = self.shared.doomed.lock();
        if doomed.contains_key(attempt) {
            return;
        }
        tracing::warn!(attempt, ?ending, "ending an attempt");
        doomed.insert(attempt.to_owned(), ending);
        self.send(Command::End {
            attempt: attempt.to_owned(),
        });
    }

    /// Notes what an attempt waits for, or that it does not any more.
    pub(crate) fn waits(&self, attempt: &str, reason: Option<String>) {
        let job = self.job_of(attempt);
        let known = self.jobs.look(&job, |job| job.waits == reason);
        if known == Some(false) {
            self.jobs.change(&job, |job| {
                job.waits = reason.filter(|_| !job.is_over());
            });
        }
    }

    /// Has the scheduler look for work to place.
    pub(crate) fn offer(&self) {
        self.send(Command::Offer);
    }

    /// Whether the attempt is to end.
    pub(crate) fn is_doomed(&self, attempt: &str) -> bool {
        self.shared.doomed.lock().contains_key(attempt)
    }

    /// How an attempt that ends now was to end, if that was noted.
    pub(crate) fn doom_of(&self, attempt: &str) -> Option<Ending> {
        self.shared.doomed.lock().get(attempt).cloned()
    }

    /// An attempt has ended.
    pub(crate) fn attempt_ends(&self, attempt: &str, ending: Ending) {
        let job = self.job_of(attempt);
        let train = self.jobs.look(&job, |job| job.train).flatten();
        let steps = train.and_then(|train| self.runs.look(&train, Run::steps_done));
        let again = self.change(&job, |job| {
            job.attempt_ends(attempt, ending, steps.unwrap_or(0), Now::read())
        });
        // Not before: whoever looks meanwhile would take the attempt for one that was cancelled.
        self.shared.doomed.lock().remove(attempt);
        if again == Some(true) {
            self.send(Command::Resubmit { job });
        }
    }

    /// Ends a job that runs, and its current attempt. False when there is no such job.
    pub(super) fn end(&self, id: &str, state: State) -> bool {
        let attempt = self.change(id, |job| {
            let ends = job.ends(state, Now::read());
            ends.then(|| job.attempt().to_owned())
        });
        if let Some(Some(attempt)) = &attempt {
            self.doom(attempt, Ending::Cancelled);
        }
        attempt.is_some()
    }

    /// Changes a job; what is kept for it goes when it is over.
    fn change<T>(&self, id: &str, change: impl FnOnce(&mut Job) -> T) -> Option<T> {
        let changed = self.jobs.change(&id.to_owned(), |job| {
            (change(job), job.is_over().then_some(job.train))
        });
        let (changed, over) = changed?;
        if let Some(train) = over {
            self.shared.submissions.lock().remove(id);
            if let Some(train) = train {
                self.runs.change(&train, Run::finishes);
            }
        }
        Some(changed)
    }

    fn send(&self, command: Command) {
        if self.shared.commands.send(command).is_err() {
            tracing::debug!("the scheduler is stopping: a command about a job is dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::settings::OnClientLoss;

    use super::*;

    #[test]
    fn a_run_that_is_alive_is_not_resumed() {
        let (book, _commands) = Book::new(Runs::default());
        let store = Url::parse("file:///models/").unwrap();
        let model = |name: &str| name.parse::<ModelName>().unwrap();
        let (alive, resumes) = (TrainId::generate(), TrainId::generate());
        let now = Now::read();
        let job = Job::new(
            "j".into(),
            String::new(),
            Some(alive),
            OnClientLoss::Auto,
            now,
        );
        book.open(job, ExecuteQueryParams::default());
        book.trains(alive, |run| run.is_of(&model("m"), &store, 2));
        let refused = book.may_resume(resumes, &model("m"), &store).unwrap_err();
        let id = alive.to_string();
        for part in [id.as_str(), "model m", "volley jobs cancel j"] {
            assert!(refused.contains(part), "{part} in {refused}");
        }
        assert_eq!(book.may_resume(resumes, &model("n"), &store), Ok(()));
        assert_eq!(
            book.may_resume(alive, &model("m"), &store),
            Ok(()),
            "itself"
        );
        book.end("j", State::Cancelled);
        assert_eq!(book.may_resume(resumes, &model("m"), &store), Ok(()));
        book.trains(alive, |run| run.is_of(&model("m"), &store, 2));
        assert_eq!(book.runs().look(&alive, Ends::is_over), Some(true));
    }
}
