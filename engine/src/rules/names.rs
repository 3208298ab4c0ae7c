//! Names of DataFusion's rules that several of Volley's rules refer to.

/// Rule that chooses the execution of joins.
pub(crate) const JOIN_SELECTION: &str = "join_selection";
/// Rule that sorts, merges and exchanges partitions.
pub(crate) const ENSURE_REQUIREMENTS: &str = "EnsureRequirements";
/// Rule that refuses plans with unsatisfied requirements.
pub(crate) const SANITY_CHECK: &str = "SanityCheckPlan";
