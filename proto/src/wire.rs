//! Generated messages and services of `proto/volley.proto`.
//!
//! They are named only where a crate talks to the wire; everything else uses domain types.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    clippy::all
)]

tonic::include_proto!("volley.v1");
