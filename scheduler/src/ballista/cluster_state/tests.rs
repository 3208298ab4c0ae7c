use ballista_core::serde::scheduler::{
    ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use ballista_scheduler::planner::DefaultDistributedPlanner;
use ballista_scheduler::state::execution_graph::StaticExecutionGraph;
use datafusion::prelude::SessionContext;

use super::*;
use crate::handle::testing::control;

/// Builds the graph of `SELECT 1`.
pub(in crate::ballista) async fn graph(job: &str) -> ExecutionGraphBox {
    let session = SessionContext::new();
    let plan = session.sql("SELECT 1").await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let graph = StaticExecutionGraph::new(
        "scheduler",
        &JobId::from(job.to_owned()),
        "SELECT 1",
        "session",
        plan,
        0,
        Arc::new(session.copied_config()),
        &mut DefaultDistributedPlanner::new(),
        None,
    );
    Box::new(graph.unwrap())
}

async fn register(cluster: &VolleyClusterState, id: &str) {
    let metadata = ExecutorMetadata {
        id: id.to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 1,
        grpc_port: 2,
        specification: ExecutorSpecification::default().with_vcores(1),
        os_info: ExecutorOperatingSystemSpecification::default(),
    };
    let data = ExecutorData {
        executor_id: id.to_owned(),
        total_vcores: 1,
        available_vcores: 1,
    };
    cluster.register_executor(metadata, data).await.unwrap();
}

#[tokio::test]
async fn nobody_has_removed_an_executor_before_the_controller_is_told_what_it_meant() {
    let (control, _commands) = control();
    let cluster = Arc::new(VolleyClusterState::new(
        control.clone(),
        Kept::default(),
        Moved::default(),
    ));
    register(&cluster, "e").await;
    let graph = JobInfoCache::new(graph("j").await);
    let active = Arc::new(HashMap::from([(
        JobId::from("j".to_owned()),
        graph.clone(),
    )]));
    let offer = cluster.bind_schedulable_tasks(TaskDistributionPolicy::Bias, active, None);
    let bound = offer.await.unwrap();
    assert_eq!(bound.len(), 1, "its task is on e");

    // Readers of the graph wait.
    let held = graph.execution_graph.write().await;
    let is_ending = |control: &Controller| control.jobs().is_ending("j");
    let remove = || {
        let (cluster, control) = (Arc::clone(&cluster), control.clone());
        tokio::spawn(async move {
            cluster.remove_executor("e").await.unwrap();
            assert!(control.look(is_ending), "its attempt ends");
        })
    };
    let (first, second) = (remove(), remove());
    // Lets both run as far as they can.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!control.look(is_ending) && !control.look(|c| c.is_registered("e")));
    drop(held);
    first.await.unwrap();
    second.await.unwrap();
}
