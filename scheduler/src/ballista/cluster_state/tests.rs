//! Tests of the cluster's state.

use std::sync::atomic::{AtomicBool, Ordering};

use ballista_core::serde::scheduler::{
    ExecutorOperatingSystemSpecification, ExecutorSpecification,
};
use tokio::sync::Notify;

use super::*;

/// Takes its time to tell jobs that an executor is lost.
#[derive(Debug, Default)]
struct Slow {
    telling: Notify,
    go_on: Notify,
    told: AtomicBool,
}

#[async_trait]
impl ClusterEvents for Slow {
    fn gang_wish(&self, _: &TrainSpec, _: usize) -> Wish {
        unreachable!()
    }
    fn gang_arrives(&self, _: &TrainSpec) -> std::result::Result<(), String> {
        Ok(())
    }
    fn gang_starts(&self, _: TrainId, _: &str, _: Vec<(usize, String)>) {}
    fn gang_waits(&self, _: TrainId, _: String) {}
    fn gang_may_grow(&self, _: &TrainSpec) -> bool {
        false
    }
    fn gang_grows(&self, _: TrainId, _: &str) {}
    fn gang_meets_again(&self, _: TrainId) -> bool {
        false
    }
    fn has_begun(&self, _: TrainId) -> bool {
        false
    }
    fn arrival(&self, attempt: &str) -> String {
        attempt.to_owned()
    }
    fn is_doomed(&self, _: &str) -> bool {
        false
    }
    fn end_attempt(&self, _: &str, _: Ending) {}
    fn job_waits(&self, _: &str, _: Option<String>) {}
    async fn executor_lost(&self, _: &str) {
        self.telling.notify_one();
        self.go_on.notified().await;
        self.told.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn nobody_has_removed_an_executor_before_the_jobs_are_told() {
    let events = Arc::new(Slow::default());
    let cluster = Arc::new(VolleyClusterState::new(events.clone(), Slots::default()));
    let metadata = ExecutorMetadata {
        id: "e".to_owned(),
        host: "127.0.0.1".to_owned(),
        port: 1,
        grpc_port: 2,
        specification: ExecutorSpecification::default().with_vcores(1),
        os_info: ExecutorOperatingSystemSpecification::default(),
    };
    let data = ExecutorData {
        executor_id: "e".to_owned(),
        total_vcores: 1,
        available_vcores: 1,
    };
    cluster.register_executor(metadata, data).await.unwrap();

    let remove = || {
        let (cluster, events) = (cluster.clone(), events.clone());
        tokio::spawn(async move {
            cluster.remove_executor("e").await.unwrap();
            assert!(events.told.load(Ordering::SeqCst));
        })
    };
    let first = remove();
    events.telling.notified().await;
    let second = remove();
    // Lets the second go as far as it can.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    events.go_on.notify_one();
    first.await.unwrap();
    second.await.unwrap();
}
