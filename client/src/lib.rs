//! client.

pub mod rossmann;
