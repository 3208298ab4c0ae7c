//! The Cluster service: the size of the cluster, the tables about its work, probes of the links between its processes,
//! and executors that are to leave.

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use volley_proto::PreparedId;
use volley_proto::version::Version;
use volley_proto::wire::cluster_server::{Cluster, ClusterServer};
use volley_proto::wire::{
    DescribeRequest, DescribeResponse, DrainRequest, DrainResponse, DropPreparedRequest,
    DropPreparedResponse, ProbeRequest, ProbeResponse, ReadTableRequest, ReadTableResponse,
};

use super::probes::Prober;
use super::{invalid, train_id};
use crate::access::Caller;
use crate::control::{Controller, Event};
use crate::handle::Control;
use crate::tables::{Only, Tables};

/// Builds the service.
pub(crate) fn cluster_service(
    control: Control,
    tables: Tables,
    prober: Prober,
) -> ClusterServer<Service> {
    ClusterServer::new(Service {
        control,
        tables,
        prober,
    })
}

#[derive(Debug)]
pub(crate) struct Service {
    control: Control,
    tables: Tables,
    prober: Prober,
}

#[tonic::async_trait]
impl Cluster for Service {
    type ProbeStream = ReceiverStream<Result<ProbeResponse, Status>>;

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<Self::ProbeStream>, Status> {
        let links = self.prober.begin()?;
        Ok(Response::new(ReceiverStream::new(links)))
    }

    async fn drain(
        &self,
        request: Request<DrainRequest>,
    ) -> Result<Response<DrainResponse>, Status> {
        let caller = Caller::of(&request)?;
        let executor = request.get_ref().executor_id.clone();
        let known: Vec<_> = self.control.look(|control| {
            let known = control.registered_executors().into_iter();
            known.map(|executor| executor.id).collect()
        });
        if !known.contains(&executor) {
            let registered = match known.len() {
                0 => "none".to_owned(),
                _ => known.join(", "),
            };
            return Err(Status::not_found(format!(
                "unknown executor {executor}; registered: {registered}"
            )));
        }
        caller.did("drain", &executor);
        let knows = false;
        self.control.on(Event::ExecutorDrains { executor, knows });
        Ok(Response::new(DrainResponse {}))
    }

    async fn drop_prepared(
        &self,
        request: Request<DropPreparedRequest>,
    ) -> Result<Response<DropPreparedResponse>, Status> {
        let caller = Caller::of(&request)?;
        let id = request.get_ref().id.as_deref();
        let id = id.map(str::parse::<PreparedId>).transpose();
        let id = id.map_err(|error| invalid(&error))?;
        let owner = caller.sees();
        let dropped = self
            .control
            .ask(|control, _| control.drop_prepared(id, owner));
        if let Some(id) = id.filter(|_| dropped == 0) {
            return Err(Status::not_found(format!(
                "unknown prepared rows {id}; SELECT * FROM volley.prepared lists them"
            )));
        }
        Ok(Response::new(DropPreparedResponse {
            dropped: dropped as u64,
        }))
    }

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let (executors, slots, free_slots) = self.control.look(Controller::size);
        let own = Version::own();
        Ok(Response::new(DescribeResponse {
            version: own.build,
            wire: own.wire,
            executors: executors as u64,
            slots: slots as u64,
            free_slots: free_slots as u64,
        }))
    }

    async fn read_table(
        &self,
        request: Request<ReadTableRequest>,
    ) -> Result<Response<ReadTableResponse>, Status> {
        let caller = Caller::of(&request)?;
        let ReadTableRequest {
            table,
            job_id,
            train_id: train,
        } = request.into_inner();
        let table = table.parse().map_err(|error| invalid(&error))?;
        let only = Only {
            job: job_id,
            train: train.as_deref().map(train_id).transpose()?,
            executor: None,
            after: None,
            owner: caller.sees().map(str::to_owned),
        };
        let rows = self.tables.read(table, &only).await;
        let rows = rows.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(ReadTableResponse { rows }))
    }
}
