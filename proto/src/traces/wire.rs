//! Generated messages and service of OTLP's traces, from `proto/otlp.proto`.
//!
//! They are named only in this module's parent, and by receivers in tests; everything else uses [`Span`](super::Span).

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all
)]

tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
