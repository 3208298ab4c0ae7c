//! The tables about the cluster's work, read from where the work is: SQL, the command line and the
//! web page are shown the same rows.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use volley_proto::store::ModelStore;
use volley_proto::tables::{Model, Table};
use volley_proto::wire::cluster_server::{Cluster, ClusterServer};
use volley_proto::wire::{
    DescribeRequest, DescribeResponse, ProbeRequest, ProbeResponse, ReadTableRequest,
    ReadTableResponse,
};
use volley_proto::{ModelName, TrainId};

use crate::access::Caller;
use crate::ballista::{Graphs, VolleyClusterState};
use crate::heard::Heard;
use crate::jobs::Book;
use crate::probes::Prober;

/// How long a model store is waited for, by who looks at a page or a table.
const STORE: Duration = Duration::from_secs(10);

/// What is told of the cluster's work; cheap to clone.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) book: Book,
    pub(crate) cluster: Arc<VolleyClusterState>,
    pub(crate) graphs: Graphs,
    pub(crate) heard: Heard,
}

/// Whose rows are wanted; of all, where neither is said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Only {
    pub(crate) job: Option<String>,
    pub(crate) train: Option<TrainId>,
    /// Of points of a curve, only those after this time, in milliseconds since 1970. Steps would
    /// not do: after a loss of ranks they are counted again from the checkpoint.
    pub(crate) after: Option<u64>,
    /// Only what belongs to this principal, and what is nobody's.
    pub(crate) owner: Option<String>,
}

impl Only {
    fn takes(&self, job: &str, train: Option<TrainId>, owner: &str) -> bool {
        self.owner.as_ref().is_none_or(|wanted| wanted == owner)
            && self.job.as_ref().is_none_or(|wanted| wanted == job)
            && self.train.is_none_or(|wanted| train == Some(wanted))
    }
}

impl Tables {
    /// A table's rows as a JSON array.
    ///
    /// # Errors
    /// When a row has no JSON form.
    pub(crate) async fn read(&self, table: Table, only: &Only) -> serde_json::Result<Vec<u8>> {
        // Where only a job is named, its run is meant.
        let train = match &only.job {
            None => only.train,
            Some(job) => match self.book.train_of(job) {
                Some(train) => Some(train),
                // No run is of this id.
                None => Some(TrainId::generate()),
            },
        };
        let runs = self.book.runs();
        // Those of others are left out of what there is of all.
        let own: Option<HashSet<String>> = only.owner.as_ref().map(|_| {
            let own = self
                .book
                .attempts(|job, train, owner| only.takes(job, train, owner));
            own.into_iter()
                .filter_map(|(_, _, train)| Some(train?.to_string()))
                .collect()
        });
        let is_own = |train: &str| own.as_ref().is_none_or(|own| own.contains(train));
        match table {
            Table::Jobs => json(
                &self
                    .book
                    .rows(|job, train, owner| only.takes(job, train, owner)),
            ),
            Table::Stages => json(&self.stages(only).await),
            Table::Executors => json(&self.cluster.rows().await),
            Table::TrainingRuns => json(&kept(runs.run_rows(train), |row| is_own(&row.train_id))),
            Table::TrainingRanks => json(&kept(runs.rank_rows(train), |row| is_own(&row.train_id))),
            Table::TrainingEpochs => {
                json(&kept(runs.epoch_rows(train), |row| is_own(&row.train_id)))
            }
            Table::TrainingSteps => {
                let mut points = runs.point_rows(train);
                points.retain(|point| {
                    only.after.is_none_or(|after| point.at > after) && is_own(&point.train_id)
                });
                json(&points)
            }
            Table::Models => json(&self.models().await),
            Table::Log => {
                let mut lines = self
                    .book
                    .lines(|job, train, owner| only.takes(job, train, owner));
                let of_runs = runs.lines(train);
                lines.extend(kept(of_runs, |line| {
                    line.train_id.as_deref().is_none_or(is_own)
                }));
                lines.extend(self.heard.lines(|line| {
                    let job = line.job_id.as_deref();
                    let train = line.train_id.as_ref().and_then(|id| id.parse().ok());
                    let owner = match (job, &only.owner) {
                        (Some(job), _) => self.book.owner_of(job).unwrap_or_default(),
                        // About an executor: for everybody.
                        (None, owner) => owner.clone().unwrap_or_default(),
                    };
                    only.takes(job.unwrap_or_default(), train, &owner)
                }));
                lines.sort_by_key(|line| line.at);
                json(&lines)
            }
        }
    }

    /// The models in the stores of all runs, as far as these can be read from here.
    async fn models(&self) -> Vec<Model> {
        let mut models = Vec::new();
        for url in self.book.runs().stores() {
            let rows = async { ModelStore::open(&url)?.rows().await };
            match timeout(STORE, rows).await {
                Ok(Ok(rows)) => models.extend(rows),
                Ok(Err(error)) => tracing::debug!(%url, %error, "a store's models are not told"),
                Err(_) => tracing::debug!(%url, ?STORE, "a store has not told its models in time"),
            }
        }
        models
    }

    /// The report that is kept beside a version, which this run has trained: models of the same name may be in several
    /// stores.
    pub(crate) async fn report(
        &self,
        model: &ModelName,
        version: u32,
        train: TrainId,
    ) -> Option<Bytes> {
        for url in self.book.runs().stores() {
            let Ok(store) = ModelStore::open(&url) else {
                continue;
            };
            let report = async {
                let manifest = store.manifest(model, Some(version)).await;
                if !manifest.is_ok_and(|manifest| manifest.spec.train_id == train) {
                    return None;
                }
                Some(store.report(model, version).await)
            };
            match timeout(STORE, report).await {
                Ok(None) => {}
                Ok(Some(Ok(report))) => return report,
                Ok(Some(Err(error))) => tracing::debug!(%url, %error, "a report is not shown"),
                Err(_) => tracing::debug!(%url, ?STORE, "a store has not told of a report in time"),
            }
        }
        None
    }

    async fn stages(&self, only: &Only) -> Vec<volley_proto::tables::Stage> {
        let attempts = self
            .book
            .attempts(|job, train, owner| only.takes(job, train, owner));
        let mut stages = Vec::new();
        for (job, attempt, train) in attempts {
            let train = train.map(|train| train.to_string());
            stages.extend(self.graphs.stages(&job, &attempt, train.as_deref()).await);
        }
        stages
    }
}

fn kept<T>(mut rows: Vec<T>, keep: impl Fn(&T) -> bool) -> Vec<T> {
    rows.retain(keep);
    rows
}

fn json<T: Serialize>(rows: &[T]) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(rows)
}

/// The wire's side of it.
pub(crate) fn cluster_service(tables: Tables, prober: Prober) -> ClusterServer<Service> {
    ClusterServer::new(Service { tables, prober })
}

pub(crate) struct Service {
    tables: Tables,
    prober: Prober,
}

#[tonic::async_trait]
impl Cluster for Service {
    type ProbeStream = ReceiverStream<Result<ProbeResponse, Status>>;

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<Self::ProbeStream>, Status> {
        let ways = self.prober.begin()?;
        Ok(Response::new(ReceiverStream::new(ways)))
    }

    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let cluster = &self.tables.cluster;
        let (slots, free_slots) = cluster.slots();
        Ok(Response::new(DescribeResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            executors: cluster.executors() as u64,
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
            train_id,
        } = request.into_inner();
        let invalid = |error: volley_proto::Error| Status::invalid_argument(error.to_string());
        let table: Table = table.parse().map_err(invalid)?;
        let train = train_id.map(|id| id.parse()).transpose();
        let only = Only {
            job: job_id,
            train: train.map_err(invalid)?,
            after: None,
            owner: caller.sees().map(str::to_owned),
        };
        let rows = self.tables.read(table, &only).await;
        let rows = rows.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(ReadTableResponse { rows }))
    }
}
