//! Rules of plans built from one function each, and functions around DataFusion's rules.
//!
//! The module [`session`](crate::session) selects the rules of a session.

pub(crate) mod logical;
pub(crate) mod names;
pub(crate) mod physical;
