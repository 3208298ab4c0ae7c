//! The state of a cluster, as it reports it over REST and over Volley's own services, and the files in its executors'
//! folders.
//!
//! This is the only file of the tests that knows the wire. An answer that does not come is `None`, because these
//! tests kill, freeze and cut off schedulers.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tonic::transport::Endpoint;
use volley_proto::access::{Authorized, Bearer, Credential, Holder};
use volley_proto::schedulers::Schedulers;
use volley_proto::tls::{self, Tls, TlsFiles};
use volley_proto::wire::attendance_client::AttendanceClient;
use volley_proto::wire::cluster_client::ClusterClient;
use volley_proto::{tables, wire};

use crate::Cluster;

/// Timeout of one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Job, under the id that its client knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Id of the job.
    pub id: String,
    /// State of the job.
    pub state: JobState,
    /// The engine's job of each attempt, the current one last.
    pub attempts: Vec<String>,
    /// Reason of its failure.
    pub error: Option<String>,
}

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// The job runs, or is being run again.
    Running,
    /// The job has succeeded.
    Succeeded,
    /// The job has failed.
    Failed,
    /// The job was cancelled.
    Cancelled,
}

impl Job {
    /// Returns the engine's job of the current attempt.
    pub fn attempt(&self) -> &str {
        self.attempts.last().unwrap_or(&self.id)
    }
}

/// Stage of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Number of the stage; a stage's inputs have lower numbers.
    pub id: usize,
    /// True if all of its tasks are done.
    pub done: bool,
    /// Number of running tasks.
    pub running: usize,
    /// Number of tasks that are done.
    pub finished: usize,
}

/// Size of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Number of registered executors.
    pub executors: u64,
    /// Number of their slots for queries.
    pub all: u64,
    /// Number of these slots that no task holds.
    pub free: u64,
}

impl Cluster {
    /// Returns the body of the scheduler's answer to a GET with this user's token; empty if there is none.
    pub fn get(&self, path: &str) -> String {
        self.get_from(self.address(), path)
    }

    /// Returns the body of the answer of a process of the cluster to a GET with this user's token; empty if there is none.
    pub fn get_from(&self, address: &str, path: &str) -> String {
        let token = self
            .token()
            .map(|token| format!("Authorization: Bearer {}\r\n", token.reveal()));
        let token = token.unwrap_or_default();
        let answer = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(ANSWER))?;
            write!(
                stream,
                "GET {path} HTTP/1.0\r\nHost: localhost\r\n{token}Accept: application/json\r\n\r\n"
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer
                .split_once("\r\n\r\n")
                .map(|(_, body)| body.to_owned())
                .unwrap_or_default())
        };
        answer().unwrap_or_default()
    }

    /// Returns the ids of the registered executors.
    pub fn registered(&self) -> Option<Vec<String>> {
        let (json, id) = match self.ca() {
            None => (self.get("/api/executors"), "id"),
            Some(_) => (self.table("executors")?, "executor_id"),
        };
        let executors: Value = serde_json::from_str(&json).ok()?;
        let ids = executors.as_array()?.iter();
        ids.map(|executor| Some(executor[id].as_str()?.to_owned()))
            .collect()
    }

    /// Returns a system table as JSON.
    fn table(&self, name: &str) -> Option<String> {
        self.ask(async |channel| {
            let request = wire::ReadTableRequest {
                table: name.to_owned(),
                ..wire::ReadTableRequest::default()
            };
            let answer = ClusterClient::new(channel).read_table(request).await.ok()?;
            String::from_utf8(answer.into_inner().rows).ok()
        })
    }

    /// Returns the scheduler's refusal of a client that reports to it as an executor; `None` if it accepts the report.
    pub fn refuses_a_client_as_executor(&self) -> Option<String> {
        self.ask_as(Holder::Executor, async |channel| {
            let request = wire::TellRequest {
                executor_id: "executor-0".to_owned(),
                notices: Vec::new(),
            };
            let told = AttendanceClient::new(channel).tell(request).await;
            Some(told.err()?.message().to_owned())
        })
    }

    /// Returns the stages of an attempt, by number.
    pub fn stages(&self, attempt: &str) -> Option<Vec<Stage>> {
        let answer = self.get(&format!("/api/job/{attempt}/stages"));
        let answer: Value = serde_json::from_str(&answer).ok()?;
        let mut stages = answer["stages"]
            .as_array()?
            .iter()
            .map(stage)
            .collect::<Option<Vec<_>>>()?;
        stages.sort_by_key(|stage| stage.id);
        Some(stages)
    }

    /// Returns the jobs that the scheduler knows, the newest first.
    pub fn jobs(&self) -> Option<Vec<Job>> {
        self.ask(async |channel| {
            let mut client = ClusterClient::new(channel);
            let request = wire::ReadTableRequest {
                table: tables::Table::Jobs.to_string(),
                job_id: None,
                train_id: None,
            };
            let answer = client.read_table(request).await.ok()?;
            let jobs: Vec<tables::Job> = tables::rows(&answer.into_inner().rows).ok()?;
            Some(jobs.into_iter().map(job).collect())
        })
    }

    /// Returns one job.
    pub fn job(&self, id: &str) -> Option<Job> {
        self.jobs()?.into_iter().find(|job| job.id == id)
    }

    /// Returns the current size of the cluster.
    pub fn slots(&self) -> Option<Slots> {
        self.ask(async |channel| {
            let mut client = ClusterClient::new(channel);
            let answer = client.describe(wire::DescribeRequest {}).await.ok()?;
            let size = answer.into_inner();
            Some(Slots {
                executors: size.executors,
                all: size.slots,
                free: size.free_slots,
            })
        })
    }

    /// Checks whether an executor's work folder has shuffle files of an attempt.
    pub fn holds_data(&self, executor: usize, attempt: &str) -> bool {
        // Each incarnation of an executor has a folder of its own in there.
        let folders = std::fs::read_dir(self.work_dir(executor));
        let mut folders = folders.into_iter().flatten().flatten();
        folders.any(|folder| has_file(&folder.path().join(attempt)))
    }

    fn ask<T, F: Future<Output = Option<T>>>(
        &self,
        question: impl FnOnce(Authorized) -> F,
    ) -> Option<T> {
        self.ask_as(Holder::Client, question)
    }

    fn ask_as<T, F: Future<Output = Option<T>>>(
        &self,
        holder: Holder,
        question: impl FnOnce(Authorized) -> F,
    ) -> Option<T> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address())).ok()?;
        let schedulers = Schedulers::new(self.address());
        let files = self.ca().map(|ca| TlsFiles { ca, identity: None });
        let tls = files.map(Tls::open).transpose().ok()?;
        // The test's own token is a client's.
        let found = Credential::Found.token(self.address(), holder);
        let found = found.ok().flatten().map(Credential::Given);
        let credential = found.unwrap_or_else(|| self.credential());
        let bearer = Bearer::new(&credential, self.address(), holder).ok()?;
        let connect = tls::connect(endpoint, &schedulers, tls.as_ref());
        let answer = async { question(bearer.over(connect.await.ok()?)).await };
        let answer = async { tokio::time::timeout(ANSWER, answer).await.ok()? };
        runtime.block_on(answer)
    }
}

fn stage(stage: &Value) -> Option<Stage> {
    let tasks = stage["tasks"].as_array()?;
    let with = |status: &str| {
        let has = |task: &&Value| task["status"] == status;
        tasks.iter().filter(has).count()
    };
    Some(Stage {
        id: stage["stage_id"].as_str()?.parse().ok()?,
        done: stage["stage_status"] == "Successful",
        running: with("Running"),
        finished: with("Successful"),
    })
}

fn job(job: tables::Job) -> Job {
    let state = match job.state {
        tables::JobState::Running | tables::JobState::Rerunning => JobState::Running,
        tables::JobState::Succeeded => JobState::Succeeded,
        tables::JobState::Failed => JobState::Failed,
        tables::JobState::Cancelled => JobState::Cancelled,
    };
    Job {
        state,
        id: job.job_id,
        attempts: job.attempt_ids,
        error: job.error,
    }
}

/// Checks whether a folder has a file that is not empty, at any depth.
fn has_file(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => has_file(&entry.path()),
        Ok(found) => found.len() > 0,
        Err(_) => false,
    })
}
