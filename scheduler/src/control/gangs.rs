//! The controller's part in training: admission, generations, and reports of ranks.

use std::time::Duration;

use bytes::Bytes;
use url::Url;
use volley_proto::spec::{RankMemory, Ranks};
use volley_proto::tables::PreparedRows;
use volley_proto::{ModelName, PreparedId, TrainId};

use super::clock::Now;
use super::controller::Controller;
use super::event::{Command, Gang, Topic};
use super::executors::Drain;
use super::jobs::Job;
use super::placement::{Memory, never_fits, reach};
use super::prepared::{Fingerprint, Found, Preparation};
use super::recorded::Change;
use super::retained::Ends;
use super::training::{BoundRank, Failure, Generation, RankProgress, Resolution, Run, Runs};

impl Controller {
    /// Returns a training run.
    pub(crate) fn run(&self, train: TrainId) -> Option<&Run> {
        self.runs.get(&train)
    }

    /// Returns all training runs.
    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Changes a run, if it is there, and wakes its waiters.
    pub(super) fn change_run<T>(
        &mut self,
        train: TrainId,
        change: impl FnOnce(&mut Run) -> T,
    ) -> Option<T> {
        let changed = change(self.runs.get_mut(&train)?);
        self.wake(Topic::Run(train));
        Some(changed)
    }

    /// Admits a gang whose job is being planned; `of_rank` is a rank's memory besides its rows, if known.
    ///
    /// # Errors
    /// When the gang can never run on this cluster, or the run that it would resume is alive.
    pub(crate) fn admit_gang(
        &mut self,
        gang: &Gang,
        of_rank: Option<RankMemory>,
    ) -> Result<(), String> {
        let known = self.runs.get(&gang.train);
        // A run that has begun continues with what there is.
        if !known.is_some_and(Run::has_begun) {
            // The number of rows is unknown until they exist.
            let memory = Memory {
                of_rank,
                rows: None,
                largest_shard: 0,
            };
            let reach = reach(&self.pool, gang.device);
            if let Some(reason) = never_fits(gang.ranks, &memory, &reach) {
                return Err(reason);
            }
        }
        // A job that is run again is planned again, but has been admitted already.
        let is_known = known.is_some_and(|run| run.trains(&gang.model, &gang.store));
        if gang.resumes && !is_known {
            self.may_resume(gang.train, &gang.model, &gang.store)?;
        }
        self.runs.entry(&gang.train).is_of(gang);
        self.wake(Topic::Run(gang.train));
        // The job may have ended while it was being planned.
        let is_over = |job: &Job| job.train == Some(gang.train) && job.has_ended();
        if self.jobs.iter().any(is_over) {
            self.change_run(gang.train, Run::finishes);
        }
        Ok(())
    }

    /// Decides where the rows of a training that is being planned come from: executors that keep them, if a training has
    /// prepared the same rows, in as many shards, on as many executors as it is to run on; else its query, and executors
    /// keep the rows by a new id. Returns the id, and the rows of each shard that is there already; `None` if nobody is known
    /// to own the training.
    pub(crate) fn prepare(
        &mut self,
        gang: &Gang,
        (fingerprint, shards): (Fingerprint, usize),
        now: Now,
    ) -> Option<(PreparedId, Option<Vec<u64>>)> {
        let train = gang.train;
        let owner = self.job_of_run(train)?.owner.clone();
        if self.runs.get(&train).is_some_and(Run::has_begun) {
            // It is run again, perhaps because it missed prepared rows.
            self.prepared.missed(train);
        } else if let Some(Found {
            id,
            rows,
            executors,
        }) = self.prepared.find(&fingerprint, &owner)
        {
            let ranks = match gang.ranks {
                Ranks::Exactly(ranks) => ranks,
                Ranks::All => {
                    let able = reach(&self.pool, gang.device).executors();
                    able.min(gang.most).clamp(1, shards)
                }
            };
            let mut holders = executors.iter();
            let are_free = holders.all(|holder| {
                let slots = self.executors.slots_of(holder);
                let stays = self.executors.drain(holder) == Some(Drain::No);
                stays && slots.is_some_and(|slots| slots > self.slots.held_by(holder))
            });
            if are_free && ranks == executors.len() && rows.len() == shards {
                let since = self.prepared.reads(id, train, now.time);
                let since = since.unwrap_or(now.time);
                let age = now.time.duration_since(since).unwrap_or_default();
                let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
                let note =
                    format!("reusing rows that were encoded {age} ago; the query is skipped");
                self.runs.entry(&train).notes(note, now);
                self.wake(Topic::Run(train));
                return Some((id, Some(rows)));
            }
        }
        let of = Preparation {
            fingerprint,
            train,
            model: gang.model.clone(),
            owner,
            shards,
        };
        Some((self.prepared.begin(of, now.time), None))
    }

    /// Forgets rows that ended trainings have not prepared to the end.
    pub(super) fn sweep_prepared(&mut self) {
        let runs = &self.runs;
        let is_over = |train| runs.get(&train).is_none_or(Run::is_over);
        self.prepared.sweep(is_over);
    }

    /// Drops the prepared rows with an id, or all, of an owner or of anybody. Returns how many.
    pub(crate) fn drop_prepared(&mut self, id: Option<PreparedId>, owner: Option<&str>) -> usize {
        let dropped = self.prepared.drop(id, owner);
        // Executors are told with the tasks that are to end there.
        self.wake(Topic::Endings);
        dropped
    }

    /// Takes the ids of prepared rows whose files an executor is to remove.
    pub(crate) fn take_removals(&mut self, executor: &str) -> Vec<PreparedId> {
        self.prepared.take_removals(executor).into_iter().collect()
    }

    /// Returns the rows of the table of prepared rows, of an owner or of anybody.
    pub(crate) fn prepared_rows(&self, owner: Option<&str>) -> Vec<PreparedRows> {
        self.prepared.rows(owner)
    }

    /// Finishes the runs of an ended attempt that has no job: nothing else ends them.
    pub(super) fn finish_runs_of(&mut self, attempt: &str) {
        let runs = self
            .runs
            .iter()
            .filter(|(_, run)| run.is_of_attempt(attempt));
        for train in runs.map(|(train, _)| *train).collect::<Vec<_>>() {
            self.change_run(train, Run::finishes);
        }
    }

    /// Checks that no other run of a model is alive, from whose checkpoints a resuming run would continue.
    fn may_resume(&self, train: TrainId, model: &ModelName, store: &Url) -> Result<(), String> {
        let runs = self.runs.iter();
        let others = runs.filter(|(other, run)| **other != train && run.trains(model, store));
        for (other, _) in others {
            let mut jobs = self.jobs.iter();
            if let Some(job) = jobs.find(|job| job.train == Some(*other) && !job.has_ended()) {
                let job = &job.id;
                return Err(format!(
                    "resume = true continues a run that has ended, and run {other} of model {model} is alive, as job \
                     {job}: follow it with volley jobs attach {job}, or end it first with volley jobs cancel {job}"
                ));
            }
        }
        Ok(())
    }

    /// Checks whether something may be placed now only because time has passed.
    pub(super) fn time_matters(&self, now: Now) -> bool {
        let executors = self.pool.able().executors();
        let mut runs = self.runs.iter();
        let may_regroup = runs.any(|(_, run)| {
            let grows = run.may_grow(now.instant);
            run.awaits_ranks() || grows.is_some_and(|ranks| ranks < executors)
        });
        let limit = self.policy.reservation_limit;
        may_regroup || self.aging.is_due(limit, now.instant)
    }

    /// Checks whether a gang whose shards are all taken needs a decision: it meets again, or could grow.
    pub(crate) fn could_regroup(&self, train: TrainId, now: Now) -> bool {
        let run = self.runs.get(&train);
        run.is_some_and(|run| run.meets_again() || run.may_grow(now.instant).is_some())
    }

    /// Begins a generation of a gang whose ranks are bound.
    pub(super) fn gang_starts(
        &mut self,
        gang: &Gang,
        attempt: &str,
        ranks: Vec<BoundRank>,
        now: Now,
    ) {
        let train = gang.train;
        let job = self.jobs.job_of(attempt);
        tracing::info!(job, attempt, %train, ranks = ranks.len(), "gang bound");
        let run = self.runs.entry(&train);
        run.is_of(gang);
        let wanted = ranks.len();
        run.starts(attempt, ranks, now);
        let generation = run.generation();
        self.command(Command::Record(Change::Generation {
            job: self.jobs.job_of(attempt).to_owned(),
            generation,
            ranks: wanted,
        }));
        self.wake(Topic::Run(train));
    }

    /// Records the loss of an executor with a rank. Returns why the run is given up, if it is.
    pub(super) fn rank_lost(&mut self, train: TrainId, executor: &str, now: Now) -> Option<String> {
        self.change_run(train, |run| run.loses(executor, now))?
    }

    /// Ends a run after the epoch under way. Returns `None` for an unknown run.
    pub(crate) fn stop_run(&mut self, train: TrainId, now: Now) -> Option<()> {
        self.change_run(train, |run| run.stops(now))
    }

    /// Records where the rank of an attempt's task can be reached. Returns its generation; `None` for an unknown run.
    pub(crate) fn join(
        &mut self,
        train: TrainId,
        task: (&str, usize),
        executor: &str,
        endpoint: Bytes,
    ) -> Option<Result<Generation, String>> {
        self.change_run(train, |run| run.joins(task, executor, endpoint))
    }

    pub(super) fn rank_reported(
        &mut self,
        train: TrainId,
        generation: &Generation,
        report: RankProgress,
        now: Now,
    ) {
        if let RankProgress::Streamed {
            shards,
            kept_bytes: Some(bytes),
        } = &report
            && let Some(run) = self.runs.get(&train)
            && let Some((id, keeps)) = run.kept(generation, shards, *bytes)
        {
            self.prepared.keeps(id, keeps, now.time);
        }
        self.change_run(train, |run| run.reports(generation, report, now));
    }

    /// Records a rank's failure, which may be the loss of a peer: a consequence, not a cause.
    pub(crate) fn rank_failed(
        &mut self,
        train: TrainId,
        generation: &Generation,
        failure: Failure,
        peer_lost: bool,
        now: Now,
    ) {
        self.change_run(train, |run| run.fails(generation, failure, peer_lost, now));
    }

    /// Returns what a rank that lost a peer must do if no root cause is known in time; `None` for an unknown run.
    pub(crate) fn resolve(
        &mut self,
        train: TrainId,
        generation: &Generation,
        failure: &Failure,
        now: Now,
    ) -> Option<Resolution> {
        self.change_run(train, |run| run.gives_up(generation, failure, now))
    }
}
