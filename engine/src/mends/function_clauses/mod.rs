//! Clauses of function calls.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArgumentList, FunctionArguments, OrderByExpr,
};

use crate::mends::clauses::{Clause, Reading, refuse_if};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "function_clauses",
    wrong: "`DISTINCT`, `FILTER` and `OVER` of a function that is no aggregate are ignored",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Clause(Clause::Expr(check))],
};

/// Aggregates that are ordered by their first argument, which the planner takes from the `ORDER BY`.
const ORDERED_SETS: [&str; 4] = [
    "percentile_cont",
    "quantile_cont",
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
];

/// Refuses clauses of a call that the planner ignores.
fn check(expr: &mut Expr, reading: &Reading<'_>) -> Result<()> {
    let Expr::Function(function) = &*expr else {
        return Ok(());
    };
    let Function {
        name,
        uses_odbc_syntax: _,
        parameters,
        args,
        filter,
        null_treatment,
        over,
        within_group,
    } = function;
    refuse_if(*parameters != FunctionArguments::None, || {
        format!("two lists of arguments: {function}")
    })?;
    let name = match name.0.as_slice() {
        [part] => part.as_ident().map(|name| match name.quote_style {
            Some(_) => name.value.clone(),
            None => name.value.to_lowercase(),
        }),
        _ => None,
    };
    let Some(name) = name else {
        return Ok(());
    };
    let (distinct, values, clauses) = match args {
        FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment,
            args,
            clauses,
        }) => (
            *duplicate_treatment == Some(DuplicateTreatment::Distinct),
            args.as_slice(),
            clauses.as_slice(),
        ),
        FunctionArguments::None | FunctionArguments::Subquery(_) => (false, &[][..], &[][..]),
    };
    let order = clauses.iter().find_map(|clause| match clause {
        FunctionArgumentClause::OrderBy(order) => Some(order.as_slice()),
        _ => None,
    });
    if ORDERED_SETS.contains(&name.as_str()) && values.len() > 1 {
        let is_of_others = order.is_some_and(|order| !is_by(order, &values[0]));
        return refuse_if(is_of_others, || {
            format!(
                "{function}: {name} takes the values that it orders by; order by the first argument"
            )
        });
    }
    refuse_if(name == "any_value" && order.is_some(), || {
        format!("ORDER BY in {function}: first_value(x ORDER BY y) is the first of an order")
    })?;
    if !reading.is_scalar(&name) {
        return Ok(());
    }
    let said = [
        (distinct, "DISTINCT"),
        (filter.is_some(), "FILTER"),
        (over.is_some(), "OVER"),
        (!within_group.is_empty(), "WITHIN GROUP"),
        (
            null_treatment.is_some()
                || clauses.iter().any(|clause| {
                    matches!(clause, FunctionArgumentClause::IgnoreOrRespectNulls(_))
                }),
            "IGNORE NULLS and RESPECT NULLS",
        ),
        (order.is_some(), "ORDER BY"),
    ];
    let said = said.iter().find(|(is_there, _)| *is_there);
    refuse_if(said.is_some(), || {
        let (_, clause) = said.copied().unwrap_or_default();
        format!(
            "{clause} in {function}: {name} is computed of each row by itself, aggregates and window functions are not"
        )
    })
}

/// Checks whether an order is by exactly this argument.
fn is_by(order: &[OrderByExpr], argument: &FunctionArg) -> bool {
    match (order, argument) {
        ([by], FunctionArg::Unnamed(FunctionArgExpr::Expr(value))) => {
            plain(&by.expr) == plain(value)
        }
        _ => false,
    }
}

/// Strips the parentheses around an expression.
fn plain(mut expr: &Expr) -> &Expr {
    while let Expr::Nested(inner) = expr {
        expr = inner;
    }
    expr
}
