//! Mends of DataFusion's bugs: a folder for each, with the smallest query that shows the bug, and the thread about it or a
//! report to be filed.
//!
//! ```text
//! list.rs   all mends, and where among DataFusion's rules each acts
//! apply.rs  DataFusion's rules with the mends
//! clauses/  the pass over a statement that mends of clauses share
//! tests.rs  each mend is still needed, and each rule that it wraps still exists
//! ```

pub(crate) mod aggregate_orders;
pub(crate) mod checked_arithmetic;
pub(crate) mod checked_sums;
pub(crate) mod clauses;
pub(crate) mod correlated_names;
pub(crate) mod dates_and_numbers;
pub(crate) mod definitions;
pub(crate) mod distinct_counts;
pub(crate) mod distinct_from;
pub(crate) mod empty_grouping_sets;
pub(crate) mod far_dates;
pub(crate) mod filters;
pub(crate) mod float_extremes;
pub(crate) mod float_ranges;
pub(crate) mod function_clauses;
pub(crate) mod group_modifiers;
pub(crate) mod in_subqueries;
pub(crate) mod inserted_values;
pub(crate) mod keys_of_groups;
pub(crate) mod leaf_projections;
pub(crate) mod lookahead;
pub(crate) mod merge_joins;
pub(crate) mod merged_columns;
pub(crate) mod merged_sorts;
pub(crate) mod monotonic_windows;
pub(crate) mod named_windows;
pub(crate) mod negative_zeros;
pub(crate) mod null_safe_joins;
pub(crate) mod own_equalities;
pub(crate) mod padded_constants;
pub(crate) mod quantified;
pub(crate) mod query_clauses;
pub(crate) mod quoted_partitions;
pub(crate) mod relation_clauses;
pub(crate) mod requirements;
pub(crate) mod reversed_aggregates;
pub(crate) mod row_copies;
pub(crate) mod similar_to;
pub(crate) mod single_distinct;
pub(crate) mod sliding;
pub(crate) mod sort_limits;
pub(crate) mod text_layouts;
pub(crate) mod topk_partitions;
pub(crate) mod unnested_keys;
pub(crate) mod unspilled_joins;

mod apply;
mod list;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub(crate) use apply::Mended;
pub use list::{MENDS, Mend, Upstream};
