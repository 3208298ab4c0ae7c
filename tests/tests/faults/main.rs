//! Faults over real processes, on one host and over several: {killed, frozen, told to end, cut off, late, full, gone}
//! × {reading tables, exchanges, the last stage, fetching, meeting, streaming, all-reduce, between epochs,
//! checkpoints, publishing, prediction}.
//!
//! Each ends in the right answer or in a clear error by a deadline, and leaves a cluster that has recovered. Phases
//! are found by observation (the scheduler's REST and job services, clients' output, files in the store), and work
//! that was too quick for a phase is repeated with more of it.
//!
//! ```text
//!   cargo test --workspace --test faults                          all of them
//!   VOLLEY_FAULT='query: a holder' cargo test … --test faults     those with this in their names
//!   VOLLEY_SEED=17 cargo test … --test faults wrong_rows          the same random moments again
//!   VOLLEY_SOAK=1h cargo test … --test faults -- --ignored soak   random faults under eight clients for an hour
//!   cargo test … --test faults -- --ignored twenty_thousand       memory and files after 20,000 queries
//! ```

#![allow(clippy::unwrap_used)]

mod asking;
mod attacks;
mod clients;
mod copies;
mod dice;
mod exactness;
mod fault;
mod fitting;
mod forged;
mod growth;
mod hosts;
mod limits;
mod main_job;
mod moments;
mod network;
mod predictions;
mod queries;
mod remote_store;
mod results;
mod scene;
mod schedulers;
mod soak;
mod stores;
mod training;
mod watcher;
mod wrong_rows;

#[test]
fn queries() {
    fault::each("query", queries::FAULTS);
}

#[test]
fn copies() {
    fault::each("copies", copies::FAULTS);
}

#[test]
fn results() {
    fault::each("result", results::FAULTS);
}

#[test]
fn limits() {
    fault::each("limit", limits::FAULTS);
}

#[test]
fn attacks() {
    fault::each("attack", attacks::FAULTS);
}

#[test]
fn predictions() {
    fault::each("prediction", predictions::FAULTS);
}

#[test]
fn wrong_rows() {
    fault::each("wrong rows", wrong_rows::FAULTS);
}

#[test]
fn network() {
    fault::each("network", network::FAULTS);
}

/// Runs faults over several hosts on this one; says so if hosts are impossible.
#[test]
fn hosts() {
    if volley_tests::Hosts::start(&[]).is_some() {
        fault::each("hosts", hosts::FAULTS);
    }
}

#[test]
fn training() {
    fault::each("training", training::FAULTS);
}

#[test]
fn exactness() {
    fault::each("exactness", exactness::FAULTS);
}

#[test]
fn stores() {
    fault::each("store", stores::FAULTS);
}

#[test]
fn remote_store() {
    fault::each("remote store", remote_store::FAULTS);
}

#[test]
fn schedulers() {
    fault::each("scheduler", schedulers::FAULTS);
}

#[test]
fn moments() {
    fault::each("the scheduler is killed while", moments::FAULTS);
}

#[test]
fn clients() {
    fault::each("client", clients::FAULTS);
}

#[test]
fn many_queries_leave_nothing() {
    growth::run(600);
}

#[test]
#[ignore = "it asks 20,000 queries"]
fn twenty_thousand_queries_leave_nothing() {
    growth::run(20_000);
}

#[test]
#[ignore = "it goes on for VOLLEY_SOAK, ten minutes unless said"]
fn soak() {
    soak::run();
}
