//! What the loss of an executor means for each job, read from the graphs before Ballista mends them.
//!
//! ```text
//!   nothing of the job was there ─────────────────────────────► untouched
//!   only ranks of its barrier stage ran there ────────────────► they meet again: new generation
//!   a stage that is not done reads data from there, or had
//!   tasks of its own there ───────────────────────────────────► the attempt ends, the job is rerun
//! ```

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use async_trait::async_trait;
use ballista_core::serde::protobuf::task_status::Status;
use ballista_scheduler::state::SchedulerState;
use ballista_scheduler::state::execution_graph::ExecutionGraphBox;
use ballista_scheduler::state::execution_stage::{
    ExecutionStage, RunningStage, StageOutput, TaskInfo,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use volley_proto::TrainId;
use volley_proto::failure::DataLost;
use volley_proto::plan::{TrainExec, adds_files};

use super::cluster_state::ClusterEvents;
use crate::jobs::{Book, Ending};
use crate::placement::Wish;
use crate::planning::{find, in_stages};
use volley_proto::spec::{Start, TrainSpec};

type State = SchedulerState<LogicalPlanNode, PhysicalPlanNode>;

/// Tells jobs and training runs what happens in the cluster.
#[derive(Debug)]
pub(crate) struct Losses {
    book: Book,
    /// Ballista's state, which owns the cluster's, which owns this.
    state: OnceLock<WeakState>,
}

struct WeakState(Weak<State>);

impl std::fmt::Debug for WeakState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakState")
    }
}

impl Losses {
    pub(crate) fn new(book: Book) -> Self {
        let state = OnceLock::new();
        Self { book, state }
    }

    /// Shows it the graphs, once there are any.
    pub(crate) fn observe(&self, state: &Arc<State>) {
        // It is observed once, by whoever starts Ballista.
        self.state.set(WeakState(Arc::downgrade(state))).ok();
    }

    fn graphs(&self) -> Option<Arc<State>> {
        self.state.get()?.0.upgrade()
    }
}

#[async_trait]
impl ClusterEvents for Losses {
    fn gang_wish(&self, spec: &TrainSpec, registered: usize) -> Wish {
        let now = Instant::now();
        let wish = |run: &mut crate::training::Run| {
            run.is_of(&spec.model, &spec.store, spec.most_ranks());
            run.wish(spec.ranks, &spec.elastic, registered, now)
        };
        self.book.runs().update(spec.train_id, wish)
    }

    fn gang_arrives(&self, spec: &TrainSpec) -> Result<(), String> {
        let (train, model, store) = (spec.train_id, &spec.model, &spec.store);
        // A job that is run again is planned again, and has been admitted.
        let is_known = self
            .book
            .runs()
            .look(&train, |run| run.trains(model, store))
            == Some(true);
        if spec.start == Start::Resume && !is_known {
            self.book.may_resume(train, model, store)?;
        }
        self.book
            .trains(train, |run| run.is_of(model, store, spec.most_ranks()));
        Ok(())
    }

    fn gang_starts(&self, train: TrainId, attempt: &str, tasks: Vec<(usize, String)>) {
        tracing::info!(%train, attempt, ranks = tasks.len(), "gang bound");
        self.book
            .runs()
            .update(train, |run| run.starts(attempt, tasks, Instant::now()));
    }

    fn gang_waits(&self, train: TrainId, reason: String) {
        self.book.runs().update(train, |run| run.waits(reason));
    }

    fn gang_may_grow(&self, spec: &TrainSpec) -> bool {
        let may_grow = |run: &crate::training::Run| run.may_grow(Instant::now()).is_some();
        self.book.runs().look(&spec.train_id, may_grow) == Some(true)
    }

    fn gang_grows(&self, train: TrainId, executor: &str) {
        let reason = format!("executor {executor} joins");
        let now = Instant::now();
        self.book
            .runs()
            .change(&train, |run| run.regroup(reason, now));
    }

    fn gang_meets_again(&self, train: TrainId) -> bool {
        self.book
            .runs()
            .look(&train, crate::training::Run::meets_again)
            == Some(true)
    }

    fn has_begun(&self, train: TrainId) -> bool {
        self.book
            .runs()
            .look(&train, crate::training::Run::has_begun)
            == Some(true)
    }

    fn arrival(&self, attempt: &str) -> String {
        self.book.job_of(attempt)
    }

    fn is_doomed(&self, attempt: &str) -> bool {
        self.book.is_doomed(attempt)
    }

    fn end_attempt(&self, attempt: &str, ending: Ending) {
        self.book.doom(attempt, ending);
    }

    fn job_waits(&self, attempt: &str, reason: Option<String>) {
        self.book.waits(attempt, reason);
    }

    async fn executor_lost(&self, executor: &str) {
        let Some(state) = self.graphs() else {
            return;
        };
        for (attempt, info) in state.task_manager.get_running_job_cache().iter() {
            let graph = info.execution_graph.read().await;
            if let Some(train) = ranks_on(&graph, executor) {
                let runs = self.book.runs();
                let given_up = runs.change(&train, |run| run.loses(executor, Instant::now()));
                if let Some(reason) = given_up.flatten() {
                    self.book.doom(attempt.as_str(), Ending::Failed(reason));
                }
            }
            if is_tainted(&graph, executor) {
                let ending = lost(&graph, executor, "it is gone");
                self.book.doom(attempt.as_str(), ending);
            }
        }
    }
}

/// The ending of an attempt that lost data.
pub(super) fn lost(graph: &ExecutionGraphBox, executor: &str, reason: &str) -> Ending {
    Ending::Lost {
        loss: DataLost {
            executor: executor.to_owned(),
            reason: reason.to_owned(),
        },
        written: written(graph),
    }
}

/// Whether the job needs data that was on the executor, or had other tasks than ranks there.
fn is_tainted(graph: &ExecutionGraphBox, executor: &str) -> bool {
    graph.stages().values().any(|stage| match stage {
        ExecutionStage::UnResolved(stage) => reads_from(&stage.inputs, executor),
        ExecutionStage::Resolved(stage) => reads_from(&stage.inputs, executor),
        ExecutionStage::Running(stage) => {
            let ranks = find::<TrainExec>(stage.plan.as_ref()).is_some();
            let counts = |task: &TaskInfo| match where_of(task) {
                // Only a rank that has not ended can be replaced.
                Some((on, running)) => on == executor && !(ranks && running),
                None => false,
            };
            reads_from(&stage.inputs, executor) || stage.task_infos.iter().any(counts)
        }
        ExecutionStage::Successful(_) | ExecutionStage::Failed(_) => false,
    })
}

/// The training run that has a running rank on the executor.
fn ranks_on(graph: &ExecutionGraphBox, executor: &str) -> Option<TrainId> {
    graph.stages().values().find_map(|stage| match stage {
        ExecutionStage::Running(stage) => {
            let train = find::<TrainExec>(stage.plan.as_ref())?.spec().train_id;
            let on = |task: &TaskInfo| where_of(task) == Some((executor, true));
            stage.task_infos.iter().any(on).then_some(train)
        }
        _ => None,
    })
}

/// The executor a task runs or ran on, and whether it still runs.
fn where_of(task: &TaskInfo) -> Option<(&str, bool)> {
    match &task.task_status {
        Status::Running(running) => Some((&running.executor_id, true)),
        Status::Successful(successful) => Some((&successful.executor_id, false)),
        Status::Failed(_) => None,
    }
}

fn reads_from(inputs: &HashMap<usize, StageOutput>, executor: &str) -> bool {
    let mut locations = inputs
        .values()
        .flat_map(|output| output.partition_locations.values().flatten());
    locations.any(|location| location.executor_meta.id == executor)
}

/// What a job that is run again would write twice: rows in an order, whose writer adds files in place.
fn written(graph: &ExecutionGraphBox) -> Option<String> {
    let begun = |stage: &RunningStage| !stage.task_infos.is_empty();
    graph.stages().values().find_map(|stage| {
        let plan = match stage {
            ExecutionStage::Running(stage) if begun(stage) => &stage.plan,
            ExecutionStage::Successful(stage) => &stage.plan,
            ExecutionStage::Failed(stage) => &stage.plan,
            _ => return None,
        };
        find_in(&in_stages(plan).ok()?, &adds_files)
    })
}

/// What the first operator of a plan has, that has it.
fn find_in<T>(
    plan: &Arc<dyn ExecutionPlan>,
    look: &impl Fn(&dyn ExecutionPlan) -> Option<T>,
) -> Option<T> {
    look(plan.as_ref()).or_else(|| {
        let mut inputs = plan.children().into_iter();
        inputs.find_map(|input| find_in(input, look))
    })
}
