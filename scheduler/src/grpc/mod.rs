//! Volley's own services on the scheduler's port: the wire side of what the controller knows and decides.
//!
//! ```text
//!   attendance   an executor is present for as long as its stream is open
//!   rendezvous   ranks meet: generation, rank, peers; progress and failures
//!   training     clients watch a run, and end it early
//!   jobs         clients follow jobs, and report that they read rows
//!   cluster      the size of the cluster, the tables about its work, and probes of the links between its processes
//! ```
//!
//! Requests pass [`check_message`] before anything decodes them, and [`crate::access`] before that.
//!
//! Generated types are named only here in the scheduler. Every wait has a deadline. The service that speaks
//! Ballista's protocol is the [job gateway](crate::ballista), because its work is Ballista's.

mod attendance;
mod cluster;
mod jobs;
mod probes;
mod rendezvous;
mod requests;
mod training;

use tonic::Status;
use volley_proto::{Error, TrainId};

pub(crate) use attendance::attendance_service;
pub(crate) use cluster::cluster_service;
pub(crate) use jobs::jobs_service;
pub(crate) use probes::Prober;
pub(crate) use rendezvous::rendezvous_service;
pub(crate) use requests::check_message;
pub(crate) use training::training_service;

fn train_id(text: &str) -> Result<TrainId, Status> {
    text.parse().map_err(|error| invalid(&error))
}

fn index(number: u64) -> Result<usize, Status> {
    usize::try_from(number).map_err(|_| Status::invalid_argument(format!("{number}: too large")))
}

fn invalid(error: &Error) -> Status {
    Status::invalid_argument(error.to_string())
}

fn unknown_run(train: TrainId) -> Status {
    Status::not_found(format!("training {train} is not known to this scheduler"))
}
