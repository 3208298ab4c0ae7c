//! What DataFusion gets wrong, and what is done about it.

pub(crate) mod aggregate_orders;
pub(crate) mod distinct_counts;
pub(crate) mod empty_grouping_sets;
pub(crate) mod fence;
pub(crate) mod filters;
pub(crate) mod float_extremes;
pub(crate) mod float_ranges;
pub(crate) mod leaf_projections;
pub(crate) mod merge_joins;
pub(crate) mod null_safe_joins;
pub(crate) mod own_equalities;
pub(crate) mod requirements;
pub(crate) mod reversed_aggregates;
pub(crate) mod single_distinct;
pub(crate) mod sliding;
pub(crate) mod sorts;
pub(crate) mod unnested_keys;
pub(crate) mod window_limits;
