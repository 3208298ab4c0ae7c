//! Names of DataFusion's rules that several of Volley's act upon.

/// The rule that chooses how joins are done.
pub(crate) const JOIN_SELECTION: &str = "join_selection";
/// The rule that sorts partitions, merges and exchanges them.
pub(crate) const ENSURE_REQUIREMENTS: &str = "EnsureRequirements";
/// The rule that refuses plans whose requirements do not hold.
pub(crate) const SANITY_CHECK: &str = "SanityCheckPlan";
