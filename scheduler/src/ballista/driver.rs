//! The driver: carries out the controller's commands on Ballista, and tells the controller that time passes.

use std::time::Duration;

use ballista_core::JobId;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{
    PartitionLocation, execute_query_failure_result::Failure, execute_query_result, job_status,
};
use ballista_core::version::insert_version_header;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tonic::Request;
use volley_proto::attempts::removal;
use volley_proto::failure::DataLost;
use volley_proto::tables::JobState;

use super::copies::Copies;
use super::gateway::{put_settings, settings_of};
use super::handover::Departures;
use super::job_state::{end_of_failure, end_of_success};
use super::kept::Kept;
use super::small_results::SmallResults;
use super::submissions::Submissions;
use super::{BallistaScheduler, losses};
use crate::control::{Command, Controller, Event};
use crate::handle::Control;
use crate::record::Record;

/// Interval at which the controller is told that time passes.
const TICK: Duration = Duration::from_millis(250);
/// Time without a beat after which the process counts as stopped.
const STOPPED: Duration = Duration::from_secs(3);

/// Driver of a scheduler.
pub(crate) struct Driver {
    pub(super) ballista: BallistaScheduler,
    pub(super) control: Control,
    pub(super) submissions: Submissions,
    pub(super) small_results: SmallResults,
    pub(super) kept: Kept,
    pub(super) departures: Departures,
    pub(super) copies: Copies,
    pub(super) record: Record,
}

/// Pulse of this process, which misses beats while the process is stopped, as with SIGSTOP.
struct Pulse {
    control: Control,
    last: Mutex<Instant>,
}

impl Pulse {
    /// Tells the controller if there has been no beat for longer than a running process may take.
    fn check(&self) {
        if self.last.lock().elapsed() > STOPPED {
            self.control.on(Event::Resumed);
        }
    }

    /// Beats for as long as this is polled.
    async fn beat(&self) {
        loop {
            sleep(TICK).await;
            self.check();
            *self.last.lock() = Instant::now();
        }
    }
}

impl Driver {
    /// Runs for as long as the scheduler does.
    pub(crate) async fn run(self, commands: mpsc::UnboundedReceiver<Command>) {
        let pulse = Pulse {
            control: self.control.clone(),
            last: Mutex::new(Instant::now()),
        };
        // Commands may take long, and the process runs meanwhile.
        tokio::select! {
            () = self.drive(&pulse, commands) => {}
            () = pulse.beat() => {}
        }
    }

    async fn drive(&self, pulse: &Pulse, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.carry_out(command).await,
                    None => return,
                },
                _ = tick.tick() => {
                    pulse.check();
                    self.control.on(Event::Tick);
                    self.reconcile().await;
                    self.find_drained().await;
                }
            }
        }
    }

    async fn carry_out(&self, command: Command) {
        match command {
            Command::CancelAttempt { attempt } => self.cancel(&attempt).await,
            Command::Resubmit { job } => self.resubmit(job).await,
            Command::Release { job } => {
                if let Some(submission) = self.submissions.release(&job) {
                    self.copies.remove(&job, &submission);
                }
                self.kept.release(&job);
            }
            Command::RemoveRows { attempt } => self.remove_rows(attempt).await,
            Command::RemoveExecutor { executor, reason } => {
                self.departures.remove(executor, reason).await;
            }
            Command::FindDrained => self.find_drained().await,
            Command::Offer => self.departures.offer().await,
            // `Control` returns bindings to the caller of `place`, wakes waiters, and records changes itself.
            Command::Bind(_) | Command::Wake(_) | Command::Record(_) => {}
        }
    }

    /// Cancels an attempt if Ballista runs it: Ballista does not know one that is still being planned.
    async fn cancel(&self, attempt: &str) {
        let running = self.ballista.state.task_manager.get_running_job_cache();
        let id = JobId::from(attempt.to_owned());
        if running.contains_key(&id)
            && let Err(error) = self.ballista.cancel_job(id).await
        {
            let of = |control: &Controller| control.jobs().job_of(attempt).to_owned();
            let job = self.control.look(of);
            tracing::error!(job, attempt, %error, "cannot end an attempt");
        }
    }

    async fn resubmit(&self, job: String) {
        let Some(mut submission) = self.submissions.of(&job) else {
            return; // the job has been cancelled meanwhile
        };
        // Its settings were read when it was submitted.
        if let Ok(mut settings) = settings_of(&submission) {
            settings.first_attempt = Some(job.clone());
            put_settings(&mut submission, &settings);
        }
        self.record.submits(&job).await;
        let mut request = Request::new(submission);
        insert_version_header(request.metadata_mut());
        let _opening = self.control.opens();
        let submitted = SchedulerGrpc::execute_query(&self.ballista, request).await;
        let error = match submitted.map(|response| response.into_inner().result) {
            Ok(Some(execute_query_result::Result::Success(success))) => {
                let attempt = success.job_id;
                return self.control.on(Event::JobResubmitted { job, attempt });
            }
            Ok(Some(execute_query_result::Result::Failure(failure))) => match failure.failure {
                Some(
                    Failure::PlanParsingFailure(text)
                    | Failure::SqlParsingFailure(text)
                    | Failure::SessionNotFound(text),
                ) => text,
                None => "no reason given".to_owned(),
            },
            Ok(None) => "no answer".to_owned(),
            Err(status) => status.message().to_owned(),
        };
        self.control.on(Event::ResubmissionFailed { job, error });
    }

    /// Removes an attempt's rows: those that are kept here, and the files of executors, if there may be any.
    async fn remove_rows(&self, attempt: String) {
        self.departures.moved.release(&attempt);
        let kept = self.small_results.release(&attempt);
        if let Some(kept) = kept
            && !kept.have_files()
            && let Some(places) = self.places(&attempt).await
            && places.iter().all(|place| kept.hold(place))
        {
            return;
        }
        let executors = &self.ballista.state.executor_manager;
        executors.clean_up_job_data(JobId::from(removal(&attempt)));
    }

    /// Returns the places of an attempt's result rows; `None` unless it has succeeded.
    async fn places(&self, attempt: &str) -> Option<Vec<PartitionLocation>> {
        let attempt = JobId::from(attempt.to_owned());
        let status = self.ballista.state.task_manager.get_job_status(&attempt);
        match status.await.ok()??.status {
            Some(job_status::Status::Successful(succeeded)) => Some(succeeded.partition_location),
            _ => None,
        }
    }

    /// Tells the controller which draining executors hold no data that an attempt needs, and no rows that a reader needs.
    async fn find_drained(&self) {
        // Listed before the graphs are read: an attempt that ends meanwhile is among those with rows.
        let (mut drained, with_rows) = self.control.look(|control| {
            let maybe = control.idle_draining();
            (maybe, control.attempts_with_rows())
        });
        self.departures.hand_over(&mut drained).await;
        if drained.is_empty() {
            return;
        }
        // Without an executor that takes tasks, nobody reads what is there.
        if self.control.look(Controller::query_slots) > 0 {
            let running = self.ballista.state.task_manager.get_running_job_cache();
            for (attempt, job) in running.iter() {
                let is_over = |control: &Controller| control.jobs().is_over(attempt.as_str());
                let graph = job.execution_graph.read().await;
                if !self.control.look(is_over) {
                    let places = self.departures.moved.places(attempt.as_str());
                    drained.retain(|executor| !losses::needs(&graph, executor, &places));
                }
            }
        }
        for attempt in with_rows {
            let kept = self.small_results.of(&attempt);
            let places = self.places(&attempt).await.unwrap_or_default();
            drained.retain(|executor| {
                !places.iter().any(|place| {
                    let on = place.executor_meta.as_ref();
                    on.is_some_and(|on| on.id == *executor)
                        && !kept.as_ref().is_some_and(|kept| kept.hold(place))
                })
            });
        }
        for executor in drained {
            self.control.on(Event::ExecutorDrained { executor });
        }
    }

    /// Reports attempts that have ended silently, such as those that Ballista could not take into its state.
    async fn reconcile(&self) {
        let running = self.control.look(|control| {
            let jobs = control.jobs();
            let running = jobs.iter().filter(|job| job.state == JobState::Running);
            // Attempts ended on purpose are reported by `VolleyJobState`.
            let running = running.filter(|job| !jobs.is_ending(job.attempt()));
            running
                .map(|job| job.attempt().to_owned())
                .collect::<Vec<_>>()
        });
        for attempt in running {
            let id = attempt.as_str().into();
            let status = self.ballista.state.task_manager.get_job_status(&id).await;
            let end = match status.ok().flatten().and_then(|status| status.status) {
                // So is lost data.
                Some(job_status::Status::Failed(failed))
                    if DataLost::find(&failed.error).is_some() =>
                {
                    continue;
                }
                Some(job_status::Status::Failed(failed)) => end_of_failure(&failed.error),
                Some(job_status::Status::Successful(succeeded)) => end_of_success(&succeeded),
                _ => continue,
            };
            self.control.on(Event::AttemptEnded { attempt, end });
        }
    }
}
