//! A real S3 server in the test's process, and a proxy before it that fails as S3 does under load.
//!
//! ```text
//!   client ══► FaultyProxy ══► S3Server ══► a folder
//!              503, 500, resets, halves of answers, delays
//! ```
//!
//! Requests are signed, and go over HTTP on loopback. The server is not a benchmark of S3, and a client sees no pages
//! in its listings. It serves tests of clients whose requests fail, or that want the same object.

mod faults;
mod proxy;
mod serial;
mod server;
#[cfg(test)]
mod tests;

pub use faults::{Fault, FaultPlan};
pub use proxy::FaultyProxy;
pub use server::S3Server;
