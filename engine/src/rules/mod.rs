//! Rules of plans that are one function each, and functions around rules of DataFusion's.
//!
//! Which rules a session has is said in [`session`](crate::session).

pub(crate) mod logical;
pub(crate) mod names;
pub(crate) mod physical;
