//! `INTERSECT ALL` and `EXCEPT ALL`, by the number of copies of each row.
//!
//! A row with m copies on the left and n on the right appears min(m, n) times in the intersection and max(m − n, 0)
//! times in the difference. DataFusion 55 plans both as a semi and an anti join by all columns, which keep every copy
//! of a row or none. Here the copies of each side are numbered, and joined by their number as well.
//!
//! ```text
//! Projection: the left's columns
//!   LeftSemi | LeftAnti: the left's columns = the right's, __copy_1 = __copy_2; NULLs are equal
//!     Projection: the left's columns, row_number() OVER (PARTITION BY these) AS __copy_1
//!       left
//!     Projection: the right's columns, row_number() OVER (PARTITION BY these) AS __copy_2
//!       right
//! ```
//!
//! Both are recognized by DataFusion's plan of them: no other statement becomes a semi or an anti join by all columns
//! of both sides with equal NULLs.

use datafusion::common::alias::AliasGenerator;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{
    Distinct, Expr, ExprFunctionExt, Join, JoinConstraint, LogicalPlan, LogicalPlanBuilder,
};
use datafusion::optimizer::OptimizerConfig;

use crate::mends::list::{Act, Mend, Upstream};
use crate::rules::logical::top_down;

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "row_copies",
    wrong: "`INTERSECT ALL` and `EXCEPT ALL` keep every copy of a row, or none",
    upstream: Upstream::Thread("apache/datafusion#12955"),
    query: include_str!("query.sql"),
    acts: &[Act::FirstSent(|| top_down("number_copies", number_copies))],
};

/// Prefix of the names of copy numbers.
const COPY: &str = "__copy";

/// Adds copy numbers to the join of an `INTERSECT ALL` or an `EXCEPT ALL`.
fn number_copies(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let join = match plan {
        LogicalPlan::Join(join) if keeps_copies(&join) => join,
        plan => return Ok(Transformed::no(plan)),
    };
    let names = config.alias_generator();
    let columns: Vec<_> = join.left.schema().columns();
    let (keys, others): (Vec<_>, Vec<_>) = join.on.iter().cloned().unzip();
    let (left, copy) = numbered(&join.left, keys, names)?;
    let (right, other) = numbered(&join.right, others, names)?;
    let mut on = join.on;
    on.push((copy, other));
    let joined = Join::try_new(
        left.into(),
        right.into(),
        on,
        None,
        join.join_type,
        JoinConstraint::On,
        NullEquality::NullEqualsNull,
        join.null_aware,
    )?;
    let plan = LogicalPlanBuilder::from(LogicalPlan::Join(joined))
        .project(columns.into_iter().map(Expr::Column))?
        .build()?;
    Ok(Transformed::yes(plan))
}

/// Checks whether a join is an `INTERSECT ALL` or an `EXCEPT ALL` without copy numbers.
fn keeps_copies(join: &Join) -> bool {
    let sides = [&join.left, &join.right].map(|side| side.schema().columns());
    let [left, right] = &sides;
    let has_numbers = left.last().is_some_and(|last| last.name.starts_with(COPY));
    // Each row occurs once.
    let is_distinct = matches!(join.left.as_ref(), LogicalPlan::Distinct(Distinct::All(_)));
    let by_all = join.on.len() == left.len()
        && join.on.len() == right.len()
        && join
            .on
            .iter()
            .zip(left)
            .all(|((key, _), column)| is_of(key, column))
        && join
            .on
            .iter()
            .zip(right)
            .all(|((_, key), column)| is_of(key, column));
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.filter.is_none()
        && by_all
        && !is_distinct
        && !has_numbers
}

/// Checks whether a key is a column, or a cast of it.
fn is_of(mut key: &Expr, column: &Column) -> bool {
    while let Expr::Cast(cast) = key {
        key = &cast.expr;
    }
    matches!(key, Expr::Column(other) if other.name == column.name
        && (other.relation.is_none() || other.relation == column.relation))
}

/// Adds to each row its number among its copies.
fn numbered(
    rows: &LogicalPlan,
    by: Vec<Expr>,
    names: &AliasGenerator,
) -> Result<(LogicalPlan, Expr)> {
    let number = row_number().partition_by(by).build()?;
    let computed = Column::new_unqualified(number.schema_name().to_string());
    let name = names.next(COPY);
    let columns = rows.schema().columns();
    let numbered = LogicalPlanBuilder::from(rows.clone())
        .window([number])?
        .project(
            columns
                .into_iter()
                .map(Expr::Column)
                .chain([Expr::Column(computed).alias(&name)]),
        )?
        .build()?;
    Ok((numbered, Expr::Column(Column::new_unqualified(name))))
}
