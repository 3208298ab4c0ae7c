//! The wire's side of the cluster's size.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use volley_proto::wire::cluster_server::{Cluster, ClusterServer};
use volley_proto::wire::{DescribeRequest, DescribeResponse};

use crate::ballista::VolleyClusterState;

/// The service over the cluster's state.
pub(crate) fn cluster_service(cluster: Arc<VolleyClusterState>) -> ClusterServer<Service> {
    ClusterServer::new(Service { cluster })
}

#[derive(Debug)]
pub(crate) struct Service {
    cluster: Arc<VolleyClusterState>,
}

#[tonic::async_trait]
impl Cluster for Service {
    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let (slots, free_slots) = self.cluster.slots().await;
        Ok(Response::new(DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            executors: self.cluster.executors() as u64,
            slots: slots as u64,
            free_slots: free_slots as u64,
        }))
    }
}
