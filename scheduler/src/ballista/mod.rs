//! The one adapter to Ballista's scheduler: everything that names Ballista, its graphs and its protocol is in here.
//!
//! ```text
//!   clients, executors ── Ballista's protocol ──► gateway ──► Ballista ──┬ cluster_state  offers, executors
//!                                                    │                   └ job_state      ends of attempts
//!                                                    │ events                 │ facts of graphs (demands, losses)
//!                                                    ▼                        ▼
//!   driver ◄── commands ──────────────────────── crate::control ◄─────────────┘
//!     └─► cancels, submits again, removes rows and executors, asks for offers
//! ```
//!
//! Graphs become plain facts ([`demands`], [`losses`]), and bindings become tasks ([`bind`]). An attempt after a loss takes
//! the rows that are still there ([`kept`]), on executors or as [`copies`] in a store; rows move away from an executor that
//! drains ([`handover`]); and equal queries are optimized once ([`optimized`]). The module decides nothing about jobs and
//! executors; [`crate::planning`] turns queries into stages.

mod bind;
mod cluster_state;
mod copies;
mod demands;
mod dial;
mod driver;
mod gateway;
mod graphs;
mod handover;
mod job_ids;
mod job_state;
mod kept;
mod launch;
mod losses;
mod nesting;
mod optimized;
mod panics;
mod permissions;
mod planner;
mod prepared;
mod queries;
mod reading;
mod small_results;
mod start;
mod submissions;
mod task_metrics;

pub(crate) use driver::Driver;
pub(crate) use gateway::JobGateway;
pub(crate) use queries::QueryService;
pub(crate) use start::{Ballista, start};

/// The scheduler with the plan encodings that Ballista uses on the wire.
pub(crate) type BallistaScheduler = ballista_scheduler::scheduler_server::SchedulerServer<
    datafusion_proto::protobuf::LogicalPlanNode,
    datafusion_proto::protobuf::PhysicalPlanNode,
>;

/// A job's execution graph, as Ballista shares it.
type SharedGraph = std::sync::Arc<
    tokio::sync::RwLock<ballista_scheduler::state::execution_graph::ExecutionGraphBox>,
>;
