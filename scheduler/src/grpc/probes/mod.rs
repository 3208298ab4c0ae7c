//! Probes: the scheduler has executors dial each other, and reports each link to a client.
//!
//! ```text
//!   client ── Probe ──► Prober: who is there?
//!                         │  Listen to each ─► a port among its ranks', for as long as this takes
//!                         │  Scheduler to one after the other ─► there and back over its own connection
//!                         │  Dial in rounds: each dials one and is dialled by one
//!                         ▼
//!                       links, as they are known
//! ```
//!
//! Requests go over the stream that each executor keeps open ([`super::attendance`]), and results come back as
//! requests. Only registered executors are dialled, at their advertised addresses, so no executor is sent to look at
//! other hosts. One client is served at a time, or a measurement would include the bytes of another.

mod ask;
mod rounds;
mod run;

pub(crate) use ask::Probes;
pub(crate) use run::Prober;
