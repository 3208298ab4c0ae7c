//! Known errors of DataFusion alone that say nothing about Volley.
//!
//! These texts only identify failures of the *reference*. Where the reference has an answer, an error of Volley's is
//! a failure whatever its text, except for [`refused`] and [`SEVERAL_ROWS`].

/// Error for two ordered aggregates in different orders, on both sides. DataFusion alone wrongly takes a column for
/// constant after an outer join, and then sees no order in an aggregate over it.
const TWO_ORDERS: &str = "Conflicting ordering requirements in aggregate functions";

/// Error for a scalar subquery with several rows. If it is compared with NULL, Volley computes it, but DataFusion
/// alone does not.
pub(crate) const SEVERAL_ROWS: &str = "Scalar subquery returned more than one row";

/// Error when reading a location where no row was written.
const NO_FILE: &str = "Cannot infer schema from an empty location";

/// Texts of known errors, without numbers, and their causes.
const KNOWN: &[(&str, &str)] = &[
    (
        "index out of bounds",
        "sort-merge joins with a filter panic (`sort_merge_join/filter.rs`)",
    ),
    (
        "Physical input schema should be the same as the one converted from logical input schema",
        "unions of columns that can and that cannot be NULL fail a check of nullability",
    ),
    (
        "SanityCheckPlan caused by",
        "an order by a column that stands in the result twice is not enforced in a union",
    ),
    (
        "Optimizer rule 'optimize_projections' failed",
        "a value for each row beside a lateral join loses its column",
    ),
    (
        "Window schema has wrong number of fields",
        "windows beside a lateral join lose a column",
    ),
    (
        "Physical plan does not support logical expression OuterReferenceColumn",
        "a lateral join is not turned into a join where another one is below it",
    ),
    (
        "Physical plan does not support undecorrelated Subquery",
        "a lateral join is not turned into a join beside a condition that is always false",
    ),
    (
        "Physical plan does not support logical expression Exists",
        "EXISTS of a CTE with a lateral join stays a subquery",
    ),
    (
        "Physical plan does not support logical expression ScalarSubquery",
        "so does a value of it",
    ),
    ("Expects PARTITION BY expression to be ordered", "as below"),
    (
        "All partition by columns should have an ordering",
        "a window partitioned and ordered by a column that a condition makes equal to another",
    ),
    (
        "declared as non-nullable but contains null values",
        "a value of no row is NULL where its column cannot be, and so is a constant among VALUES",
    ),
    (
        "null_aware anti join only supports single column join key",
        "NOT IN a subquery that depends on the row",
    ),
    (
        "Optimizer rule 'decorrelate_lateral_join' failed",
        "a lateral join beside another",
    ),
    (
        "Optimizer rule 'scalar_subquery_to_join' failed",
        "a value for each row of a CTE with a lateral join",
    ),
    (
        "Optimizer rule 'eliminate_group_by_constant' failed",
        "a column and a cast of it as keys, neither of which is read",
    ),
    (
        "Optimizer rule 'eliminate_duplicated_expr' failed",
        "the same value as a key of several grouping sets",
    ),
    (
        "Schema error: No field named",
        "a lateral join loses columns of what is beside it",
    ),
    (
        SEVERAL_ROWS,
        "a value that nothing reads is not computed here",
    ),
    (
        "assertion `left == right` failed",
        "an ordered aggregate panics where its order names a column twice",
    ),
    (
        "column types must match schema types",
        "an ordered aggregate in two steps fails where its order names a column twice",
    ),
    (
        "must match number of fields",
        "as above, of several columns",
    ),
    (
        "Incorrect datatype for StructArray field",
        "as above, where types differ",
    ),
    (
        "Optimizer rule 'push_down_leaf_projections' failed",
        "parts of structs are read where they are stored, which fails over joins",
    ),
    (NO_FILE, "a query without rows writes no file"),
    (
        "Mismatch between schema and batches",
        "a table made of values that cannot be NULL, and are planned as such that can",
    ),
    (
        "attempt to subtract with overflow",
        "an ordered nth_value panics over groups without rows",
    ),
    (
        "Cannot infer common argument type for comparison operation",
        "a filter is pushed down to another column of the same name, which has another type",
    ),
    (
        "Can't compare arrays of different types",
        "a union of a dictionary and text, compared below IN",
    ),
    (
        "entered unreachable code",
        "distinct floats that are not numbers, in an order with a limit",
    ),
    (
        "Optimizer rule 'decorrelate_predicate_subquery' failed",
        "a value within what NOT IN is asked of, above a join",
    ),
    (
        TWO_ORDERS,
        "aggregates in two orders are refused before a limit of no rows takes them away",
    ),
    (
        "inner future panicked during poll",
        "as any of these panics, where another partition waits for the same side of a join",
    ),
    (
        "Can not create index of type",
        "a window's values of a dictionary with small keys, more than these tell apart",
    ),
    (
        "can not be used as a sliding accumulator",
        "aggregates of bits and truth values have no retraction",
    ),
    (
        "Arrow: Incompatible type. Field",
        "rows of a union are inserted in other types than the table's",
    ),
    (
        "duplicate qualified field name written.",
        "a partition column that stands in the files too has two places",
    ),
    (
        "Resources exhausted",
        "it may take so much memory for a question, and no more",
    ),
    (
        "could not cast array of type LargeUtf8",
        "levenshtein of text in two layouts",
    ),
    (
        "first_last.rs",
        "ordered aggregates panic over groups that a filter leaves empty",
    ),
];

/// Questions of the fixed budget about which DataFusion alone is wrong in any form, by their seeds, and what it takes for
/// what. It is a failure if both sides agree about one.
const WRONG: &[(u64, &str)] = &[(239, "the variance of one NaN for 0, except in groups")];

/// Returns why DataFusion alone is wrong about the question of this seed, if it is known.
pub(crate) fn wrong(seed: u64) -> Option<&'static str> {
    let known = WRONG.iter().find(|(known, _)| *known == seed);
    known.map(|(_, why)| *why)
}

/// Returns whether the reference is known to fail with this error.
pub(crate) fn is_known(error: &str) -> bool {
    KNOWN.iter().any(|(text, _)| error.contains(text))
}

/// Returns whether a write had no rows, and so made no file.
pub(crate) fn writes_no_file(error: &str) -> bool {
    error.contains(NO_FILE)
}

/// Returns the reason why Volley may give this error where the reference has an answer.
pub(crate) fn refused(error: &str, no_rows: impl Fn() -> bool) -> Option<&'static str> {
    let table = error.contains("and a table in memory is sent with each query that reads it");
    let no_file = writes_no_file(error) && no_rows();
    let two_orders = error.contains(TWO_ORDERS);
    match () {
        () if table => Some("a table in memory is too large"),
        () if no_file => Some("a query without rows writes no file"),
        () if two_orders => Some("aggregates in two orders are refused"),
        () => None,
    }
}
