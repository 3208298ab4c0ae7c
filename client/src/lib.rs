//! client.

#[cfg(feature = "standalone")]
pub mod standalone;
