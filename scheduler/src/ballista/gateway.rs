//! The job gateway: Ballista's service for clients and executors, with jobs that outlive their attempts.
//!
//! All calls pass through to Ballista. Calls that name a job are translated between the id that the client knows and
//! the current attempt, and are allowed to the job's owner and to administrators. The gateway tells the controller
//! what it needs to know. Locations of result rows go to the client with a ticket, which executors require.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use ballista_core::config::BALLISTA_JOB_NAME;
use ballista_core::serde::protobuf::execute_query_params::Query;
use ballista_core::serde::protobuf::scheduler_grpc_server::SchedulerGrpc;
use ballista_core::serde::protobuf::{
    CancelJobParams, CancelJobResult, CleanJobDataParams, CleanJobDataResult,
    CreateUpdateSessionParams, CreateUpdateSessionResult, ExecuteQueryParams, ExecuteQueryResult,
    ExecuteQuerySuccessResult, ExecutorStoppedParams, ExecutorStoppedResult, FailedJob,
    GetJobMetricsParams, GetJobMetricsResult, GetJobStatusParams, GetJobStatusResult,
    HeartBeatParams, HeartBeatResult, JobStatus, KeyValuePair, PartitionLocation, PollWorkParams,
    PollWorkResult, RegisterExecutorParams, RegisterExecutorResult, RemoveSessionParams,
    RemoveSessionResult, RunningJob, UpdateTaskStatusParams, UpdateTaskStatusResult,
    execute_query_result, job_status, task_status,
};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use futures::{Stream, TryStreamExt};
use prost::Message;
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status};
use uuid::Uuid;
use volley_engine::object_stores::Stores;
use volley_engine::settings::{
    JOB, JobSettings, MemoryLimit, PREFIX, PRIORITY, QUEUE, SHUFFLE_STORE,
};
use volley_proto::access::ClusterSecret;
use volley_proto::attempts::removal;
use volley_proto::failure::CANCELLED;
use volley_proto::nesting;
use volley_proto::object_stores::redacted;
use volley_proto::settings::QUEUE_DEFAULT;
use volley_proto::tables::JobState;

use super::handover::Departures;
use super::kept::Kept;
use super::permissions::Permissions;
use super::reading::Reading;
use super::small_results::SmallResults;
use super::submissions::Submissions;
use super::task_metrics::keep_metrics_of_stage;
use super::{BallistaScheduler, optimized};
use crate::access::{Caller, GpuHours, RoleLimits};
use crate::control::{
    Controller, Event, GpuQuota, Job, JobLimits, MemoryQuota, Submission, Task, Topic,
};
use crate::handle::Control;
use crate::record::{Record, Submitted};

/// Long-poll limit of GetJobStatus: a client asks again 50 ms after each answer, which is longer than a small query
/// takes.
pub(super) const HOLD: Duration = Duration::from_secs(1);

/// Maximum length of the statement that is kept of a job, in bytes.
const STATEMENT_BYTES: usize = 64 * 1024;

/// Time for the executors of an earlier scheduler to come back before a training is submitted.
const COMING: Duration = Duration::from_secs(20);
/// Pause between two looks for them.
const AGAIN: Duration = Duration::from_millis(250);

/// Service in front of Ballista's.
pub(crate) struct JobGateway {
    pub(super) ballista: BallistaScheduler,
    pub(super) control: Control,
    pub(super) submissions: Submissions,
    pub(super) small_results: SmallResults,
    pub(super) departures: Departures,
    pub(super) kept: Kept,
    pub(super) reading: Reading,
    pub(super) permissions: Permissions,
    pub(super) stores: Stores,
    pub(super) secret: ClusterSecret,
    pub(super) record: Record,
}

impl JobGateway {
    /// # Errors
    /// When the job belongs to somebody else. A job that is not known has no known owner, so only administrators may
    /// name it.
    fn check(&self, caller: &Caller, action: &str, id: &str) -> Result<(), Status> {
        let owner = |control: &Controller| control.owner_of(id).map(str::to_owned);
        match self.control.look(owner) {
            Some(owner) => caller.may_touch(action, id, &owner),
            None if caller.sees().is_none() => Ok(()),
            None => Err(unknown(id)),
        }
    }

    /// # Errors
    /// When the queue does not exist.
    fn check_queue(&self, queue: &str) -> Result<(), Status> {
        let checked = self.control.look(|control| control.check_queue(queue));
        checked
            .map_err(|reason| Status::invalid_argument(format!("SET {QUEUE} = {queue}: {reason}")))
    }

    /// # Errors
    /// When the caller has as many jobs as its role allows at a time.
    fn check_jobs(&self, caller: &Caller) -> Result<(), Status> {
        let Some(most) = caller.limits.jobs else {
            return Ok(());
        };
        let (owner, role) = (&caller.principal.name, caller.principal.role);
        let running = self.control.look(|control| control.running_jobs(owner));
        match running < most {
            true => Ok(()),
            false => Err(Status::resource_exhausted(format!(
                "{running} of your jobs have not ended, and the limit jobs of the role {role} is {most}: wait for one to \
                 end, or cancel one with volley jobs cancel"
            ))),
        }
    }

    /// Returns the memory limit on the tasks of a caller's job, if there is one.
    ///
    /// # Errors
    /// When there is no slot yet to share the limit.
    fn memory_limit(&self, caller: &Caller) -> Result<Option<MemoryLimit>, Status> {
        let role = caller.principal.role.to_string();
        // A task that may hold more for a slot than its owner's queries together would never start.
        let of_owner = caller.limits.memory.map(|bytes| MemoryLimit {
            role: role.clone(),
            bytes,
            per_slot: bytes,
            of_owner: true,
        });
        let Some(bytes) = caller.limits.query_memory else {
            return Ok(of_owner);
        };
        match self.control.look(Controller::query_slots) {
            0 => Err(Status::failed_precondition(format!(
                "no executor for queries has registered yet, and the limit query_memory of the role {role} is \
                 shared among their \
                 slots: try again when one is"
            ))),
            slots => {
                let of_query = MemoryLimit {
                    role,
                    bytes,
                    per_slot: bytes / slots as u64,
                    of_owner: false,
                };
                let limits = [Some(of_query), of_owner].into_iter().flatten();
                Ok(limits.min_by_key(|limit| limit.per_slot))
            }
        }
    }

    /// # Errors
    /// When the query trains where GPUs may be taken, and the caller's trainings have used up their GPU hours.
    fn check_gpu_hours(&self, caller: &Caller, query: &ExecuteQueryParams) -> Result<(), Status> {
        let Some(quota) = gpu_quota(caller) else {
            return Ok(());
        };
        let (user, role) = (&caller.principal.name, caller.principal.role);
        let spent = self
            .control
            .ask(|control, now| control.spent_gpu_hours(user, (role, quota), now));
        let Some(spent) = spent else {
            return Ok(());
        };
        let devices = self.permissions.devices(query)?;
        let takes_gpus = self.control.look(|control| {
            let mut devices = devices.iter();
            devices.any(|device| control.may_take_gpus(*device))
        });
        match takes_gpus {
            true => Err(Status::resource_exhausted(spent.to_string())),
            false => Ok(()),
        }
    }

    /// Registers the options of stores that a job's plan refers to by name only.
    ///
    /// # Errors
    /// When a store is outside the paths that plans may read and write.
    fn receive_stores(&self, caller: &Caller, job: &mut JobSettings) -> Result<(), Status> {
        let allowed = self.stores.check(&job.stores);
        allowed.map_err(|denied| {
            caller.refused("submit", "options of a store", &denied.to_string())
        })?;
        self.stores.receive(std::mem::take(&mut job.stores));
        Ok(())
    }

    /// Waits for a while for the executors of an earlier scheduler: without them, a training may seem to need more than
    /// the cluster has.
    async fn await_executors(&self) {
        let deadline = Instant::now() + COMING;
        while self.control.look(Controller::expects_executors) && Instant::now() < deadline {
            sleep(AGAIN).await;
        }
    }

    /// Submits a query, whose client takes rows of small results with the outcome or does not. A submission that its client
    /// sends again, because it got no answer, is answered with the job that it became.
    pub(super) async fn submit(
        &self,
        mut request: Request<ExecuteQueryParams>,
        small_results: bool,
    ) -> Result<Response<ExecuteQueryResult>, Status> {
        let caller = Caller::of(&request)?;
        let ExecuteQueryParams {
            operation_id: operation,
            session_id,
            ..
        } = request.get_ref();
        let operation = operation.clone();
        let owner = &caller.principal.name;
        let Some(_under_way) = self.submissions.begin(owner, &operation) else {
            let reason = "this submission is under way: its answer was lost with a connection";
            return Err(Status::unavailable(reason));
        };
        let known = |control: &Controller| {
            let job = control.job_of_operation(owner, &operation);
            job.map(str::to_owned)
        };
        if let Some(job_id) = self.control.look(known) {
            let accepted = ExecuteQuerySuccessResult {
                job_id,
                session_id: session_id.clone(),
            };
            return Ok(Response::new(ExecuteQueryResult {
                operation_id: operation,
                result: Some(execute_query_result::Result::Success(accepted)),
            }));
        }
        check_plan(request.get_ref())?;
        let mut job = job_settings(request.get_ref())?;
        self.check_queue(&job.queue)?;
        self.check_jobs(&caller)?;
        self.permissions.check(&caller, request.get_ref())?;
        self.permissions.check_shuffle_store(&caller, &job)?;
        self.check_gpu_hours(&caller, request.get_ref())?;
        let stores =
            serde_json::to_vec(&job.stores).map_err(|error| Status::internal(error.to_string()))?;
        self.receive_stores(&caller, &mut job)?;
        job.memory = self.memory_limit(&caller)?;
        job.small_results = small_results;
        let statement = std::mem::take(&mut job.statement);
        put_settings(request.get_mut(), &job);
        // Clients other than Volley's may send any text.
        job.statement = redacted(&statement);
        let end = job.statement.floor_char_boundary(STATEMENT_BYTES);
        job.statement.truncate(end);
        if job.train_id.is_some() {
            self.await_executors().await;
            self.check_jobs(&caller)?;
        }
        let submission = request.get_ref().clone();
        let RoleLimits {
            memory, gpu_hours, ..
        } = caller.limits;
        let has_quotas = memory.is_some() || gpu_hours.is_some();
        let opening = has_quotas.then(|| self.control.opens());
        let response = SchedulerGrpc::execute_query(&self.ballista, request).await?;
        if let Some(execute_query_result::Result::Success(success)) = &response.get_ref().result {
            let id = success.job_id.clone();
            caller.did("submit", &id);
            let job = submitted(&id, operation, &caller, job);
            let outlives_client = !job.ends_with_client();
            if self.record.keeps() {
                self.record.opened(Submitted {
                    submission: &job,
                    submitted: SystemTime::now(),
                    request: submission.encode_to_vec().into(),
                    stores,
                });
            }
            self.submissions.keep(&id, submission);
            self.control.on(Event::JobSubmitted(job));
            drop(opening);
            if outlives_client && let Err(error) = self.record.written().await {
                let reason = format!("the job is refused, because it cannot be recorded: {error}");
                self.control.on(Event::AttemptFails {
                    attempt: id,
                    reason: reason.clone(),
                });
                // No status of a connection: the client is not to send it again.
                return Err(Status::aborted(reason));
            }
        }
        Ok(response)
    }

    /// Returns the status of a job, once it has ended, or `hold` has passed.
    pub(super) async fn status(
        &self,
        caller: &Caller,
        id: String,
        hold: Duration,
    ) -> Result<GetJobStatusResult, Status> {
        self.check(caller, "ask for", &id)?;
        let asked = || Event::ClientAsked { job: id.clone() };
        self.control.on(asked());
        let over = self.control.wait(Topic::Job(id.clone()), hold, |control| {
            control.job(&id).is_none_or(Job::has_ended).then_some(())
        });
        over.await;
        self.control.on(asked());
        self.record.settled(&id).await;
        let current = |control: &Controller| control.job(&id).map(|job| job.attempt().to_owned());
        let known = self.control.look(current);
        let attempt = known.clone().unwrap_or_else(|| id.clone());
        let inner = Request::new(GetJobStatusParams {
            job_id: attempt.clone(),
        });
        let answer = SchedulerGrpc::get_job_status(&self.ballista, inner).await?;
        let mut answer = answer.into_inner();
        with_tickets(&mut answer, &self.secret);
        let told = &mut answer.status;
        if told.is_none() && known.is_none() {
            return Err(unknown(&id));
        }
        // The controller learns of an attempt's end before anyone else, so it is asked last.
        let known = self.control.look(|control| {
            let job = control.job(&id)?;
            let is_current = job.attempt() == attempt;
            let gone = job.rows_removed().map(str::to_owned);
            let (state, error) = (job.state, job.error.clone());
            Some((is_current, state, error, job.name.clone(), gone))
        });
        let Some((is_current, state, error, job_name, gone)) = known else {
            return Ok(answer);
        };
        if let Some(reason) = gone {
            return Err(Status::failed_precondition(format!(
                "job {id} has succeeded, and its rows are not kept any more: {reason}"
            )));
        }
        if told.is_none() && state == JobState::Succeeded {
            return Err(Status::failed_precondition(format!(
                "job {id} has ended, and its result is no longer kept"
            )));
        }
        if told.is_none() && state.has_ended() {
            // An earlier scheduler ran it.
            *told = Some(JobStatus::default());
        }
        let goes_on = !is_current || state == JobState::Rerunning;
        let ended = told.as_ref().is_some_and(has_ended);
        if goes_on || (ended && state == JobState::Running) {
            *told = Some(JobStatus {
                job_id: id,
                job_name,
                status: Some(job_status::Status::Running(RunningJob::default())),
            });
            return Ok(answer);
        }
        if let Some(status) = told {
            status.job_id = id;
            let error = match state {
                JobState::Failed => error.unwrap_or_default(),
                JobState::Cancelled => CANCELLED.to_owned(),
                _ => return Ok(answer),
            };
            // This applies even if the attempt does not know of its end yet.
            let failed = match status.status.take() {
                Some(job_status::Status::Failed(failed)) => failed,
                _ => FailedJob::default(),
            };
            status.status = Some(job_status::Status::Failed(FailedJob { error, ..failed }));
        }
        Ok(answer)
    }

    /// Returns the current attempt of a job.
    pub(super) fn attempt(&self, id: String) -> String {
        let attempt = |control: &Controller| control.job(&id).map(|job| job.attempt().to_owned());
        self.control.look(attempt).unwrap_or(id)
    }
}

/// Returns the limits on a job and on its owner's other jobs by their role, if there are any; a task of the job may hold
/// `slot` bytes for each of its slots.
fn job_limits(caller: &Caller, slot: Option<u64>) -> Option<JobLimits> {
    let RoleLimits {
        query_time: time,
        result_rows: rows,
        memory: limit,
        jobs,
        ..
    } = caller.limits;
    let role = caller.principal.role;
    let limits = JobLimits {
        role,
        time,
        rows,
        jobs: jobs.map(|jobs| jobs as u64),
        memory: MemoryQuota { limit, slot },
        gpus: gpu_quota(caller),
    };
    (limits != JobLimits::none(role)).then_some(limits)
}

/// Returns the quota of a caller's GPU hours, if there is one.
fn gpu_quota(caller: &Caller) -> Option<GpuQuota> {
    let GpuHours { time, days } = caller.limits.gpu_hours?;
    Some(GpuQuota { time, days })
}

/// Reads a job's settings from its client's submission.
///
/// # Errors
/// When they are malformed.
fn job_settings(submission: &ExecuteQueryParams) -> Result<JobSettings, Status> {
    let mut job = settings_of(submission)?;
    job.id = Some(Uuid::now_v7().simple().to_string());
    job.first_attempt = None;
    job.restored = false;
    Ok(job)
}

/// Returns a job's settings as its submission has them.
///
/// # Errors
/// When they are malformed.
#[allow(clippy::result_large_err)] // tonic's Status is large
pub(super) fn settings_of(submission: &ExecuteQueryParams) -> Result<JobSettings, Status> {
    let setting = |key: &str| {
        let mut settings = submission.settings.iter();
        let setting = settings.find(|setting| setting.key == key);
        setting.and_then(|setting| setting.value.as_deref())
    };
    let own = |setting: &&KeyValuePair| is_own(&setting.key);
    if setting(JOB).is_none()
        && let Some(unknown) = submission.settings.iter().find(own)
    {
        return Err(Status::invalid_argument(format!(
            "{} is not a setting of a job: Volley's own are sent as {JOB}",
            unknown.key
        )));
    }
    let job = setting(JOB).map(JobSettings::parse).transpose();
    let mut job = job
        .map_err(|error| Status::invalid_argument(error.to_string()))?
        .unwrap_or_default();
    if job.name.is_empty() {
        // The client is not Volley's.
        job.name = setting(BALLISTA_JOB_NAME).unwrap_or_default().to_owned();
    }
    Ok(job)
}

/// Checks by its key whether a setting is Volley's.
fn is_own(key: &str) -> bool {
    matches!(key.split('.').next(), Some(PREFIX | optimized::NAMESPACE))
}

/// Puts a job's settings into its submission, where the plans of all its attempts find them.
pub(super) fn put_settings(submission: &mut ExecuteQueryParams, job: &JobSettings) {
    let settings = &mut submission.settings;
    settings.retain(|setting| !is_own(&setting.key) && setting.key != BALLISTA_JOB_NAME);
    let name = (!job.name.is_empty()).then(|| (BALLISTA_JOB_NAME, job.name.clone()));
    let plan = optimized::key(submission, job).map(|key| (optimized::KEY, key));
    for (key, value) in name.into_iter().chain([(JOB, job.text())]).chain(plan) {
        submission.settings.push(KeyValuePair {
            key: key.to_owned(),
            value: Some(value),
        });
    }
}

/// Builds the submission of a caller's job that the engine has accepted.
fn submitted(id: &str, operation: String, caller: &Caller, job: JobSettings) -> Submission {
    Submission {
        job: id.to_owned(),
        operation,
        owner: caller.principal.name.clone(),
        name: job.name,
        statement: job.statement,
        train: job.train_id,
        on_client_loss: job.on_client_loss,
        limits: job_limits(caller, job.memory.map(|memory| memory.per_slot)),
        queue: job.queue,
        priority: job.priority,
    }
}

/// Refuses a plan that nests so deeply that decoding it would end the process.
#[allow(clippy::result_large_err)] // tonic's Status is large
fn check_plan(submission: &ExecuteQueryParams) -> Result<(), Status> {
    let checked = match &submission.query {
        Some(Query::LogicalPlan(plan)) => nesting::decode::<LogicalPlanNode>(plan).map(drop),
        Some(Query::PhysicalPlan(plan)) => nesting::decode::<PhysicalPlanNode>(plan).map(drop),
        Some(Query::SubstraitPlan(_)) | None => Ok(()),
    };
    checked.map_err(|error| Status::invalid_argument(format!("the query's plan: {error}")))
}

/// Returns the error about an unknown job. No other answer about a job's status has this code: the client that
/// submitted the job takes it for a restart of the scheduler.
fn unknown(id: &str) -> Status {
    // A client would take an absent status for a job that has not begun.
    Status::not_found(format!(
        "job {id} is not known to this scheduler: it may have been restarted since"
    ))
}

/// Replaces the job ids in the locations of a job's rows by the tickets that executors require.
fn with_tickets(status: &mut GetJobStatusResult, secret: &ClusterSecret) {
    let status = status.status.as_mut().and_then(|told| told.status.as_mut());
    let Some(job_status::Status::Successful(succeeded)) = status else {
        return;
    };
    let places = succeeded.partition_location.iter_mut();
    for partition in places.filter_map(|place| place.partition_id.as_mut()) {
        partition.job_id = secret.ticket(&partition.job_id);
    }
}

/// Returns the places of the rows of a job that has succeeded.
pub(super) fn places(status: &GetJobStatusResult) -> Option<&[PartitionLocation]> {
    match status.status.as_ref()?.status.as_ref()? {
        job_status::Status::Successful(succeeded) => Some(&succeeded.partition_location),
        _ => None,
    }
}

/// Checks whether an attempt with this status has ended.
pub(super) fn has_ended(status: &JobStatus) -> bool {
    matches!(
        status.status,
        Some(job_status::Status::Failed(_) | job_status::Status::Successful(_))
    )
}

#[tonic::async_trait]
impl SchedulerGrpc for JobGateway {
    type ExecuteQueryPushStream =
        Pin<Box<dyn Stream<Item = Result<GetJobStatusResult, Status>> + Send>>;

    async fn execute_query(
        &self,
        request: Request<ExecuteQueryParams>,
    ) -> Result<Response<ExecuteQueryResult>, Status> {
        self.submit(request, false).await
    }

    /// Submits a job whose statuses go straight to the client, so it fails instead of being rerun. Other calls about
    /// it are for administrators.
    async fn execute_query_push(
        &self,
        mut request: Request<ExecuteQueryParams>,
    ) -> Result<Response<Self::ExecuteQueryPushStream>, Status> {
        let caller = Caller::of(&request)?;
        if job_limits(&caller, None).is_some() {
            let role = caller.principal.role;
            let reason = format!(
                "the role {role} has limits of jobs, memory, query_time, result_rows or gpu_hours, which are kept for jobs \
                 whose client asks for their status: set ballista.client.pull to true"
            );
            return Err(caller.refused("submit", "a job whose states are pushed", &reason));
        }
        check_plan(request.get_ref())?;
        let mut job = job_settings(request.get_ref())?;
        if job.queue != QUEUE_DEFAULT || job.priority != 0 || job.shuffle_store.is_some() {
            return Err(Status::invalid_argument(format!(
                "{QUEUE}, {PRIORITY} and {SHUFFLE_STORE} are for jobs whose client asks for their status: set ballista.client.pull to true"
            )));
        }
        self.permissions.check(&caller, request.get_ref())?;
        self.receive_stores(&caller, &mut job)?;
        job.memory = self.memory_limit(&caller)?;
        job.small_results = false;
        job.statement.clear();
        put_settings(request.get_mut(), &job);
        let pushed = SchedulerGrpc::execute_query_push(&self.ballista, request).await?;
        caller.did("submit", "a job whose states are pushed");
        let secret = self.secret.clone();
        Ok(pushed.map(|statuses| {
            let statuses = statuses.map_ok(move |mut status| {
                with_tickets(&mut status, &secret);
                status
            });
            Box::pin(statuses) as Self::ExecuteQueryPushStream
        }))
    }

    async fn get_job_status(
        &self,
        request: Request<GetJobStatusParams>,
    ) -> Result<Response<GetJobStatusResult>, Status> {
        let caller = Caller::of(&request)?;
        let id = request.into_inner().job_id;
        let status = self.status(&caller, id.clone(), HOLD).await?;
        let rows = self.small_results.of(&self.attempt(id.clone()));
        let mut places = places(&status).into_iter().flatten();
        if rows.is_some_and(|rows| places.any(|place| rows.hold(place))) {
            return Err(Status::failed_precondition(format!(
                "job {id} has succeeded; it was submitted by a client of Volley's, and `volley jobs attach {id}` returns its rows"
            )));
        }
        Ok(Response::new(status))
    }

    async fn cancel_job(
        &self,
        request: Request<CancelJobParams>,
    ) -> Result<Response<CancelJobResult>, Status> {
        let caller = Caller::of(&request)?;
        let id = &request.get_ref().job_id;
        self.check(&caller, "cancel", id)?;
        caller.did("cancel", id);
        if self.control.ask(|control, now| control.cancel(id, now)) {
            self.record.settled(id).await;
            return Ok(Response::new(CancelJobResult { cancelled: true }));
        }
        SchedulerGrpc::cancel_job(&self.ballista, request).await
    }

    async fn get_job_metrics(
        &self,
        request: Request<GetJobMetricsParams>,
    ) -> Result<Response<GetJobMetricsResult>, Status> {
        let caller = Caller::of(&request)?;
        let id = request.into_inner().job_id;
        self.check(&caller, "measure", &id)?;
        let job_id = self.attempt(id);
        let inner = Request::new(GetJobMetricsParams { job_id });
        SchedulerGrpc::get_job_metrics(&self.ballista, inner).await
    }

    async fn clean_job_data(
        &self,
        request: Request<CleanJobDataParams>,
    ) -> Result<Response<CleanJobDataResult>, Status> {
        let caller = Caller::of(&request)?;
        let mut params = request.into_inner();
        self.check(&caller, "remove", &params.job_id)?;
        caller.did("remove", &params.job_id);
        params.job_id = removal(&self.attempt(params.job_id));
        SchedulerGrpc::clean_job_data(&self.ballista, Request::new(params)).await
    }

    async fn poll_work(
        &self,
        request: Request<PollWorkParams>,
    ) -> Result<Response<PollWorkResult>, Status> {
        SchedulerGrpc::poll_work(&self.ballista, request).await
    }

    async fn register_executor(
        &self,
        request: Request<RegisterExecutorParams>,
    ) -> Result<Response<RegisterExecutorResult>, Status> {
        SchedulerGrpc::register_executor(&self.ballista, request).await
    }

    async fn heart_beat_from_executor(
        &self,
        request: Request<HeartBeatParams>,
    ) -> Result<Response<HeartBeatResult>, Status> {
        SchedulerGrpc::heart_beat_from_executor(&self.ballista, request).await
    }

    async fn update_task_status(
        &self,
        mut request: Request<UpdateTaskStatusParams>,
    ) -> Result<Response<UpdateTaskStatusResult>, Status> {
        let UpdateTaskStatusParams {
            executor_id,
            task_status,
        } = request.get_mut();
        for status in task_status {
            keep_metrics_of_stage(&self.ballista, status).await;
            let task = Task {
                attempt: status.job_id.clone(),
                stage: status.stage_id as usize,
                number: status.task_id as usize,
            };
            let executor = executor_id.clone();
            match &status.status {
                Some(task_status::Status::Successful(_)) => {
                    self.control.on(Event::TaskSucceeded { executor, task });
                }
                Some(task_status::Status::Failed(_)) => {
                    self.control.on(Event::TaskFailed { executor, task });
                }
                Some(task_status::Status::Running(_)) | None => {}
            }
        }
        SchedulerGrpc::update_task_status(&self.ballista, request).await
    }

    async fn create_update_session(
        &self,
        request: Request<CreateUpdateSessionParams>,
    ) -> Result<Response<CreateUpdateSessionResult>, Status> {
        SchedulerGrpc::create_update_session(&self.ballista, request).await
    }

    async fn remove_session(
        &self,
        request: Request<RemoveSessionParams>,
    ) -> Result<Response<RemoveSessionResult>, Status> {
        SchedulerGrpc::remove_session(&self.ballista, request).await
    }

    async fn executor_stopped(
        &self,
        request: Request<ExecutorStoppedParams>,
    ) -> Result<Response<ExecutorStoppedResult>, Status> {
        let ExecutorStoppedParams {
            executor_id,
            reason,
        } = request.into_inner();
        let departures = self.departures.clone();
        // The executor may not wait for it.
        tokio::spawn(async move { departures.remove(executor_id, reason).await });
        Ok(Response::new(ExecutorStoppedResult {}))
    }
}
