//! Fail-stop: ends the jobs that must not go on, and says why.
//!
//! Ballista mends lost shuffle data wrongly (rows are counted twice, or the job hangs), so a job
//! that had a task on a lost executor is ended at once, with the executor's name. A gang that lost
//! a rank ends its job too.

use ballista_core::JobId;
use ballista_scheduler::state::execution_stage::ExecutionStage;
use tokio::sync::mpsc;
use volley_proto::TrainId;

use super::bind::ran_on;
use super::cluster_state::ClusterEvents;
use super::{AbortReasons, BallistaScheduler};
use crate::training::Registry;

/// Carries out what the cluster's state asks for, outside of its locks.
pub(crate) struct FailStop {
    commands: mpsc::UnboundedReceiver<Command>,
    reasons: AbortReasons,
}

enum Command {
    Abort { job: JobId, reason: String },
    ExecutorLost(String),
}

impl FailStop {
    /// The events' sender and their executor. Gangs' events go to the registry.
    pub(crate) fn new(registry: Registry, reasons: AbortReasons) -> (impl ClusterEvents, Self) {
        let (sender, commands) = mpsc::unbounded_channel();
        (
            Events {
                registry,
                commands: sender,
            },
            Self { commands, reasons },
        )
    }

    /// Ends jobs as asked, for as long as the cluster's state exists.
    pub(crate) async fn run(mut self, ballista: BallistaScheduler) {
        while let Some(command) = self.commands.recv().await {
            match command {
                Command::Abort { job, reason } => self.end(&ballista, job, reason).await,
                Command::ExecutorLost(executor) => {
                    for job in jobs_on(&ballista, &executor).await {
                        let reason = format!(
                            "executor {executor} was lost with data of this job; run it again"
                        );
                        self.end(&ballista, job, reason).await;
                    }
                }
            }
        }
    }

    async fn end(&self, ballista: &BallistaScheduler, job: JobId, reason: String) {
        tracing::error!(%job, reason, "ending job");
        self.reasons.lock().insert(job.clone(), reason);
        if let Err(error) = ballista.cancel_job(job.clone()).await {
            tracing::error!(%job, %error, "cannot end job");
        }
    }
}

async fn jobs_on(ballista: &BallistaScheduler, executor: &str) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for (job, info) in ballista.state.task_manager.get_running_job_cache().iter() {
        let graph = info.execution_graph.read().await;
        if graph
            .stages()
            .values()
            .any(|stage: &ExecutionStage| ran_on(stage, executor))
        {
            jobs.push(job.clone());
        }
    }
    jobs
}

struct Events {
    registry: Registry,
    commands: mpsc::UnboundedSender<Command>,
}

impl Events {
    fn send(&self, command: Command) {
        if self.commands.send(command).is_err() {
            tracing::debug!("the scheduler is stopping: an event of its cluster is dropped");
        }
    }
}

impl ClusterEvents for Events {
    fn gang_started(&self, train: TrainId, tasks: Vec<(usize, String)>) {
        tracing::info!(%train, ranks = tasks.len(), "gang bound");
        self.registry.update(train, |run| run.starts(tasks));
    }

    fn gang_waits(&self, train: TrainId, reason: String) {
        tracing::info!(%train, reason, "gang waits");
        self.registry.update(train, |run| run.waits(reason));
    }

    fn abort_job(&self, job: JobId, reason: String) {
        self.send(Command::Abort { job, reason });
    }

    fn executor_lost(&self, executor: &str) {
        self.send(Command::ExecutorLost(executor.to_owned()));
    }
}
