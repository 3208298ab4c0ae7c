//! The server for the scheduler's requests: run tasks, cancel them, remove their data.
//!
//! ```text
//!   scheduler ── with a proof ──► LaunchMultiTask: decode ──► queue ──► runner's threads
//!                 │ none, or a wrong one                                  │ how it ended
//!                 └──► refused unread               scheduler ◄── UpdateTaskStatus, in bundles
//! ```
//!
//! Ballista's own server binds its port by itself, has no TLS, and accepts tasks from any client that reaches it.
//! This one is the same service over Volley's listener, for the scheduler alone.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ballista_core::serde::BallistaCodec;
use ballista_core::serde::protobuf::executor_grpc_server::{ExecutorGrpc, ExecutorGrpcServer};
use ballista_core::serde::protobuf::{
    CancelTasksParams, CancelTasksResult, LaunchMultiTaskParams, LaunchMultiTaskResult,
    LaunchTaskParams, LaunchTaskResult, RemoveJobDataParams, RemoveJobDataResult,
    StopExecutorParams, StopExecutorResult,
};
use ballista_core::serde::scheduler::TaskDefinition;
use ballista_core::serde::scheduler::from_proto::get_task_definition_vec;
use ballista_executor::executor::Executor as BallistaExecutor;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};
use volley_proto::attempts::removed;
use volley_proto::connections::{self, Listener};
use volley_proto::limits::{LAUNCH_LIMIT, MESSAGE_LIMIT};

use super::proof::Proven;

/// Time limit for a request to arrive and be processed.
const REQUEST: Duration = Duration::from_secs(60);

/// Parts of the service.
pub(super) struct TaskServer {
    pub(super) executor: Arc<BallistaExecutor>,
    pub(super) codec: BallistaCodec<LogicalPlanNode, PhysicalPlanNode>,
    pub(super) tasks: mpsc::Sender<TaskDefinition>,
    /// Sender of the scheduler's requests to stop the executor.
    pub(super) stop: mpsc::Sender<bool>,
}

/// Serves until told to stop.
pub(super) async fn serve(
    server: TaskServer,
    listener: Listener,
    proven: Proven,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = ExecutorGrpcServer::new(server)
        .max_encoding_message_size(MESSAGE_LIMIT)
        .max_decoding_message_size(LAUNCH_LIMIT as usize);
    // Requests without a proof are refused before they are decoded.
    let service = InterceptedService::new(service, move |request: Request<()>| {
        proven.check(&request, "take orders")?;
        Ok(request)
    });
    connections::server()
        .timeout(REQUEST)
        .add_service(service)
        .serve_with_incoming_shutdown(listener.into_stream(), stop.cancelled_owned())
        .await
}

#[tonic::async_trait]
impl ExecutorGrpc for TaskServer {
    async fn launch_task(
        &self,
        _: Request<LaunchTaskParams>,
    ) -> Result<Response<LaunchTaskResult>, Status> {
        Err(Status::unimplemented(
            "tasks are launched by LaunchMultiTask",
        ))
    }

    /// Queues tasks to run. If a job's tasks cannot be decoded, only that job fails.
    async fn launch_multi_task(
        &self,
        request: Request<LaunchMultiTaskParams>,
    ) -> Result<Response<LaunchMultiTaskResult>, Status> {
        let mut failed_jobs = Vec::new();
        for launched in request.into_inner().multi_tasks {
            let job = launched.job_id.clone();
            let functions = &self.executor.function_registry;
            let decoded = get_task_definition_vec(
                launched,
                Arc::clone(&self.executor.runtime_producer),
                self.executor.produce_config(),
                functions.scalar_functions.clone(),
                functions.aggregate_functions.clone(),
                functions.window_functions.clone(),
                functions.higher_order_functions.clone(),
                self.codec.clone(),
            );
            let tasks = match decoded {
                Ok(tasks) => tasks,
                Err(error) => {
                    tracing::error!(attempt = job, %error, "tasks cannot be decoded");
                    if !failed_jobs.contains(&job) {
                        failed_jobs.push(job);
                    }
                    continue;
                }
            };
            for task in tasks {
                let taken = self.tasks.send(task).await;
                taken.map_err(|_| Status::unavailable("the executor stops"))?;
            }
        }
        Ok(Response::new(LaunchMultiTaskResult { failed_jobs }))
    }

    async fn stop_executor(
        &self,
        request: Request<StopExecutorParams>,
    ) -> Result<Response<StopExecutorResult>, Status> {
        let StopExecutorParams {
            executor_id,
            reason,
            force,
        } = request.into_inner();
        let own = &self.executor.metadata.id;
        if executor_id == *own {
            tracing::info!(reason, force, "told to stop");
            // A full queue means that the executor is already stopping.
            self.stop.try_send(force).ok();
        } else {
            tracing::warn!(executor_id, own, "told to stop another executor");
        }
        Ok(Response::new(StopExecutorResult {}))
    }

    async fn cancel_tasks(
        &self,
        request: Request<CancelTasksParams>,
    ) -> Result<Response<CancelTasksResult>, Status> {
        let mut cancelled = true;
        for task in request.into_inner().task_infos {
            let (stage, number) = (task.stage_id as usize, task.task_id as usize);
            let attempt = &task.job_id;
            tracing::info!(attempt, stage, number, "cancelling a task");
            let done = self
                .executor
                .cancel_task(attempt.clone().into(), stage, number);
            if let Err(error) = done.await {
                tracing::error!(attempt, stage, number, %error, "a task cannot be cancelled");
                cancelled = false;
            }
        }
        Ok(Response::new(CancelTasksResult { cancelled }))
    }

    async fn remove_job_data(
        &self,
        request: Request<RemoveJobDataParams>,
    ) -> Result<Response<RemoveJobDataResult>, Status> {
        let RemoveJobDataParams {
            job_id,
            remove_stage_ids,
        } = request.into_inner();
        let work_dir = Path::new(self.executor.work_dir());
        let folders = match removed(&job_id) {
            Some(attempt) => folders(work_dir, attempt, &remove_stage_ids),
            // The next attempt of the job may take its rows.
            None if remove_stage_ids.is_empty() => {
                return Ok(Response::new(RemoveJobDataResult {}));
            }
            None => folders(work_dir, &job_id, &remove_stage_ids),
        };
        let folders = folders
            .ok_or_else(|| Status::invalid_argument(format!("{job_id:?} is not a job's id")))?;
        for folder in folders {
            match tokio::fs::remove_dir_all(&folder).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Status::internal(format!("{}: {error}", folder.display())));
                }
                _ => {
                    tracing::info!(attempt = job_id, folder = %folder.display(), "removed a job's data")
                }
            }
        }
        Ok(Response::new(RemoveJobDataResult {}))
    }
}

/// Returns the folders of a job's data: the stages' folders, or the job's if no stage is given. `None` if the id is
/// not a valid folder name.
fn folders(work_dir: &Path, job: &str, stages: &[u32]) -> Option<Vec<PathBuf>> {
    let mut components = Path::new(job).components();
    let (Some(Component::Normal(name)), None) = (components.next(), components.next()) else {
        return None;
    };
    let folder = work_dir.join(name);
    Some(match stages {
        [] => vec![folder],
        stages => stages
            .iter()
            .map(|stage| folder.join(stage.to_string()))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_outside_of_a_jobs_folder_is_out_of_reach() {
        let work = Path::new("/work");
        let of_job = vec![PathBuf::from("/work/j1")];
        assert_eq!(folders(work, "j1", &[]), Some(of_job));
        let of_stages = ["/work/j1/1", "/work/j1/4"].map(PathBuf::from).to_vec();
        assert_eq!(folders(work, "j1", &[1, 4]), Some(of_stages));
        for job in ["", ".", "..", "../x", "/etc", "a/b", "a/../.."] {
            assert_eq!(folders(work, job, &[]), None, "{job}");
        }
    }
}
