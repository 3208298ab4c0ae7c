//! A client's probe of all links between the scheduler and its executors.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tokio::time::timeout;
use tonic::Status;
use uuid::Uuid;
use volley_proto::probe::{Link, LinkEnd, Measured, Port, Probe, Probed, Service, Target, reach};
use volley_proto::tls::Tls;
use volley_proto::wire::ProbeResponse;

use super::Probes;
use super::rounds::rounds;
use crate::control::{Controller, ExecutorEndpoint, RegisteredExecutor};
use crate::handle::Control;

/// Timeout of the whole probe.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// Number of links buffered for a client.
const AHEAD: usize = 64;

type Answers = mpsc::Sender<Result<ProbeResponse, Status>>;

/// Prober of a cluster's links; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Prober {
    probes: Probes,
    control: Control,
    /// Address at which executors dial the scheduler.
    address: String,
    /// TLS, if it is spoken.
    tls: Option<Tls>,
    turn: Arc<Mutex<()>>,
}

/// Executor that takes part.
#[derive(Debug)]
struct Peer {
    id: String,
    host: String,
    tasks: u16,
    flight: u16,
    runs_queries: bool,
    runs_ranks: bool,
    token: String,
    /// Port for the probe and the executor's port range, or why it takes no part.
    listens: Result<(Option<u16>, Option<String>), String>,
}

impl Prober {
    pub(crate) fn new(control: Control, address: String, tls: Option<Tls>) -> Self {
        Self {
            probes: Probes::default(),
            control,
            address,
            tls,
            turn: Arc::default(),
        }
    }

    pub(crate) fn probes(&self) -> Probes {
        self.probes.clone()
    }

    /// Starts to probe all links and streams the results, until the receiver is dropped.
    ///
    /// # Errors
    /// While another client is being served.
    pub(crate) fn begin(&self) -> Result<mpsc::Receiver<Result<ProbeResponse, Status>>, Status> {
        let turn = Arc::clone(&self.turn).try_lock_owned().map_err(|_| {
            Status::resource_exhausted(
                "another client is measuring the cluster: try again when it is done",
            )
        })?;
        let (answers, links) = mpsc::channel(AHEAD);
        tokio::spawn(self.clone().run(answers, turn));
        Ok(links)
    }

    async fn run(self, answers: Answers, _turn: OwnedMutexGuard<()>) {
        let trying = async {
            let peers = self.peers().await;
            for peer in &peers {
                for link in self.with_scheduler(peer).await {
                    tell(&answers, &link).await;
                }
            }
            for round in rounds(peers.len()) {
                let links = round
                    .into_iter()
                    .map(|(from, to)| self.between(&peers[from], &peers[to]));
                for link in join_all(links).await {
                    tell(&answers, &link).await;
                }
            }
        };
        tokio::select! {
            () = answers.closed() => {}
            tried = timeout(PATIENCE, trying) => if tried.is_err() {
                let late = format!("not all links were tried within {PATIENCE:?}");
                answers.send(Err(Status::deadline_exceeded(late))).await.ok();
            }
        }
        for executor in self.control.look(Controller::registered_executors) {
            self.probes.stop(&executor.id);
        }
    }

    /// Makes the executors listen for each other.
    async fn peers(&self) -> Vec<Peer> {
        let executors = self.control.look(Controller::registered_executors);
        let peers = executors.into_iter().map(|executor| {
            let RegisteredExecutor { id, role, endpoint } = executor;
            let ExecutorEndpoint {
                host,
                port,
                task_port,
            } = endpoint;
            let token = Uuid::new_v4().to_string();
            async move {
                let listen = Probe::Listen {
                    token: token.clone(),
                    patience: PATIENCE,
                };
                let listens = match self.probes.ask(&id, &listen).await {
                    Ok(Probed::Listens { port, range }) => Ok((port, range)),
                    Ok(Probed::Failed(reason)) => Err(format!("{id}: {reason}")),
                    Ok(Probed::Measured(_)) => Err(unasked(&id)),
                    Err(reason) => Err(reason),
                };
                Peer {
                    runs_queries: role.runs_queries(),
                    runs_ranks: role.runs_ranks(),
                    id,
                    host,
                    tasks: task_port,
                    flight: port,
                    token,
                    listens,
                }
            }
        });
        join_all(peers).await
    }

    /// Measures the links from the scheduler to an executor and back.
    async fn with_scheduler(&self, peer: &Peer) -> [Link; 2] {
        let measured = match &peer.listens {
            Err(reason) => Err(reason.clone()),
            Ok(_) => self.measured(peer, &Probe::Scheduler).await,
        };
        let reached = reach(&peer.host, peer.tasks, self.tls.as_ref()).await;
        let fault = reached.err();
        let port = Port {
            service: Service::Tasks,
            number: peer.tasks,
            fault,
        };
        let there = measured.as_ref().map_or_else(
            |_| Measured::default(),
            |measured| Measured {
                rate: measured.rate_back,
                ..measured.clone()
            },
        );
        let there = Measured {
            ports: vec![port],
            ..there
        };
        let executor = || LinkEnd::Executor(peer.id.clone());
        [
            Link {
                from: LinkEnd::Scheduler,
                to: executor(),
                host: peer.host.clone(),
                range: peer.range(),
                outcome: Ok(there),
            },
            Link {
                from: executor(),
                to: LinkEnd::Scheduler,
                host: self.address.clone(),
                range: None,
                outcome: measured,
            },
        ]
    }

    /// Measures the link from one executor to another.
    async fn between(&self, from: &Peer, to: &Peer) -> Link {
        let outcome = match (&from.listens, &to.listens) {
            (Ok(_), Ok((port, _))) => {
                let dial = Probe::Dial(Target {
                    host: to.host.clone(),
                    flight: to.runs_queries.then_some(to.flight),
                    ranks: *port,
                    token: to.token.clone(),
                });
                let mut measured = self.measured(from, &dial).await;
                // The ranks' port was used to measure, but these two executors do not need it.
                if let Ok(measured) = &mut measured
                    && !(from.runs_ranks && to.runs_ranks)
                {
                    measured.ports.retain(|port| port.service != Service::Ranks);
                }
                measured
            }
            (Err(reason), _) | (_, Err(reason)) => Err(reason.clone()),
        };
        Link {
            from: LinkEnd::Executor(from.id.clone()),
            to: LinkEnd::Executor(to.id.clone()),
            host: to.host.clone(),
            range: to.range(),
            outcome,
        }
    }

    async fn measured(&self, peer: &Peer, probe: &Probe) -> Result<Measured, String> {
        match self.probes.ask(&peer.id, probe).await? {
            Probed::Measured(measured) => Ok(measured),
            Probed::Failed(reason) => Err(format!("{}: {reason}", peer.id)),
            Probed::Listens { .. } => Err(unasked(&peer.id)),
        }
    }
}

impl Peer {
    fn range(&self) -> Option<String> {
        let (_, range) = self.listens.as_ref().ok()?;
        range.clone()
    }
}

fn unasked(executor: &str) -> String {
    format!("{executor} sent an unexpected answer")
}

async fn tell(answers: &Answers, link: &Link) {
    let link = serde_json::to_vec(link).map(|link| ProbeResponse { link });
    let link = link.map_err(|error| Status::internal(error.to_string()));
    // The client may be gone.
    answers.send(link).await.ok();
}
