//! Functions and operators of Volley's own, which are faster than DataFusion's or which it lacks.
//!
//! Those that mend wrong results are in [`mends`](crate::mends).

pub(crate) mod expand;
pub(crate) mod fence;
pub(crate) mod folded;
pub(crate) mod grace_aggregate;
pub(crate) mod grace_join;
pub(crate) mod normalized_keys;
pub(crate) mod partitioned_windows;
pub(crate) mod row_hash;
pub(crate) mod running;
pub(crate) mod single_value;
mod spilled;
pub(crate) mod stage_rows;
pub(crate) mod window_exprs;
