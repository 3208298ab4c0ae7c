//! Traces of jobs over all processes, sent to a collector by OTLP over gRPC.
//!
//! ```text
//!   job                                  the scheduler
//!    ├─ client                           the process that submitted it
//!    └─ attempt                          the scheduler
//!        ├─ planning                     the scheduler
//!        └─ stage                        the scheduler
//!            ├─ task                     an executor
//!            │   └─ rank                 an executor
//!            │       ├─ checkpoint       an executor
//!            │       └─ publication      the executor of rank 0
//!            └─ generation               the scheduler
//! ```
//!
//! A [`Place`] is a span's place in this tree. The ids of its trace, of its span and of the span above follow from it, by
//! a hash: all processes, and a restarted scheduler, give one job one trace, and no message carries any of it.
//!
//! Each process sends its own spans when they end, through an [`Exporter`]. Nothing waits for it: a span that finds the
//! queue full is dropped and counted. Not here: what is traced, which the scheduler, executors and clients decide; and
//! the spans of libraries, which are not traced.
//!
//! The SDK of OpenTelemetry is not used: its spans begin in a context, which would have to travel with every message. What
//! remains is one request of a stable protocol, whose messages are generated from its own files with the compiler that is
//! part of every build.

mod endpoint;
mod export;
mod place;
mod span;
pub mod wire;

pub use endpoint::OtlpEndpoint;
pub use export::{Exporter, Service, Traces};
pub use place::{Part, Place, SpanId, TraceId};
pub use span::{Span, SpanEvent, Value};
