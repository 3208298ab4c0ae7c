//! Probes: the scheduler has executors dial each other, and tells a client what each link is like.
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
//! What is asked goes over the stream that each executor keeps open ([`super::attendance`]), and what came of it comes
//! back as a request. Only executors that are registered are dialled, and by what they advertise: nobody is sent to
//! look at other hosts. One client is served at a time, or one measurement would be of the other's bytes.

mod ask;
mod rounds;
mod run;

pub(crate) use ask::Probes;
pub(crate) use run::Prober;
