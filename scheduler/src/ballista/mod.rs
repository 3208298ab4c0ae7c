//! The one adapter to Ballista's scheduler internals.
//!
//! Everything that names a graph, a running stage or a cluster state of Ballista's is in here; the
//! decisions come from [`crate::placement`] and go back as bound tasks.

mod bind;
mod cluster_state;
mod graphs;
mod job_ids;
mod job_state;
mod launch;
mod losses;
mod nesting;
mod panics;
mod planner;
mod task_metrics;

pub(crate) use cluster_state::{Attendee, VolleyClusterState};
pub(crate) use graphs::Graphs;
pub(crate) use job_ids::JobIds;
pub(crate) use job_state::VolleyJobState;
pub(crate) use losses::Losses;
pub(crate) use planner::session_builder;
pub(crate) use task_metrics::keep_metrics_of_stage;

/// The scheduler with the plan encodings that Ballista uses on the wire.
pub(crate) type BallistaScheduler = ballista_scheduler::scheduler_server::SchedulerServer<
    datafusion_proto::protobuf::LogicalPlanNode,
    datafusion_proto::protobuf::PhysicalPlanNode,
>;
