//! `GROUP BY` of tuples, with modifiers, and of positions within grouping sets.

use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, GroupByWithModifier, Select, SelectItem, Value,
};

use crate::mends::clauses::{Clause, Reading, refuse_if, wrong};
use crate::mends::list::{Act, Mend, Upstream};

/// The entry in the list of mends.
pub(super) const MEND: Mend = Mend {
    name: "group_modifiers",
    wrong: "`GROUP BY a WITH ROLLUP` and `WITH CUBE` return no totals",
    upstream: Upstream::Report(include_str!("upstream.md")),
    query: include_str!("query.sql"),
    acts: &[Act::Clause(Clause::Select(select))],
};

/// Rewrites a query's `GROUP BY` as plain expressions and grouping sets.
fn select(select: &mut Select, _: &Reading<'_>) -> Result<()> {
    let (by, modifiers) = match &mut select.group_by {
        GroupByExpr::All(modifiers) => {
            return refuse_if(!modifiers.is_empty(), || {
                "GROUP BY ALL with a modifier: name the columns, GROUP BY ROLLUP (a, b)".to_owned()
            });
        }
        GroupByExpr::Expressions(by, modifiers) => (by, modifiers),
    };
    *by = std::mem::take(by).into_iter().flat_map(members).collect();
    match std::mem::take(modifiers).as_slice() {
        [] => {}
        [GroupByWithModifier::Rollup] => *by = vec![Expr::Rollup(each(by))],
        [GroupByWithModifier::Cube] => *by = vec![Expr::Cube(each(by))],
        // As in Hive: the sets are made of the expressions before.
        [GroupByWithModifier::GroupingSets(sets)] => *by = vec![sets.clone()],
        [GroupByWithModifier::Totals] => {
            return refuse_if(true, || {
                "WITH TOTALS: GROUP BY GROUPING SETS ((a, b), ()) has a row of all".to_owned()
            });
        }
        several => {
            let several: Vec<_> = several.iter().map(ToString::to_string).collect();
            return wrong(
                "GROUP BY",
                format!("it has several modifiers: {}", several.join(" ")),
            );
        }
    }
    for expr in by {
        let (Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets)) = expr else {
            continue;
        };
        for member in sets.iter_mut().flatten() {
            if let Some(item) = position(member) {
                *member = named(&select.projection, item)?;
            }
        }
    }
    Ok(())
}

/// Splits the tuple `(a, b)` into its expressions.
fn members(expr: Expr) -> Vec<Expr> {
    match expr {
        Expr::Tuple(members) if !members.is_empty() => members,
        expr => vec![expr],
    }
}

fn each(by: &mut Vec<Expr>) -> Vec<Vec<Expr>> {
    std::mem::take(by)
        .into_iter()
        .map(|expr| vec![expr])
        .collect()
}

fn position(expr: &Expr) -> Option<usize> {
    let Expr::Value(value) = expr else {
        return None;
    };
    match &value.value {
        Value::Number(number, _) => number.parse().ok(),
        _ => None,
    }
}

/// Returns the expression at a position of the select list, from 1.
fn named(items: &[SelectItem], position: usize) -> Result<Expr> {
    let item = position.checked_sub(1).and_then(|item| items.get(item));
    match item {
        Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => {
            Ok(expr.clone())
        }
        Some(item) => wrong(
            "GROUP BY",
            format!("position {position} is {item}: name a column"),
        ),
        None => wrong(
            "GROUP BY",
            format!(
                "there is no position {position}, {} are selected",
                items.len()
            ),
        ),
    }
}
