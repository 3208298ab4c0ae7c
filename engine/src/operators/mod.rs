//! Volley's own functions and operators: faster than DataFusion's, or missing there.
//!
//! Replacements that correct wrong results are in [`mends`](crate::mends).

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
