//! Queries with `IN` of a subquery spelled out: where it is true, and where it is UNKNOWN.
//!
//! DataFusion alone takes UNKNOWN for false inside of `OR`, and where a computed value may be NULL. What it says
//! to the same spelled out tells whether another answer is right.

use super::{Body, Expr, Named, Part, Query, Select, Source};
use crate::tables::Type;

/// The query with `EXISTS` for `IN`.
pub(crate) fn spelled_out(query: &Query) -> Query {
    let mut query = query.clone();
    in_query(&mut query);
    query
}

fn in_query(query: &mut Query) {
    for cte in &mut query.with {
        if let Named::Query(named) = &mut cte.query {
            in_query(named);
        }
    }
    in_body(&mut query.body);
}

fn in_body(body: &mut Body) {
    match body {
        Body::Select(select) => in_select(select),
        Body::Set { left, right, .. } => {
            in_body(left);
            in_body(right);
        }
        Body::Values { rows, .. } => rows.iter_mut().flatten().for_each(in_expr),
    }
}

fn in_select(select: &mut Select) {
    select
        .items
        .iter_mut()
        .for_each(|item| in_expr(&mut item.expr));
    select.from.iter_mut().for_each(in_source);
    let group = select.group.iter_mut().flat_map(|group| &mut group.by);
    let conditions = select.filters.iter_mut().chain(&mut select.having);
    conditions
        .chain(&mut select.qualify)
        .chain(group)
        .for_each(in_expr);
}

fn in_source(source: &mut Source) {
    match source {
        Source::Table { .. } => {}
        Source::Query { query, .. } => in_query(query),
        Source::Join {
            left, right, on, ..
        } => {
            in_source(left);
            in_source(right);
            on.iter_mut().for_each(in_expr);
        }
    }
}

fn in_expr(expr: &mut Expr) {
    for part in &mut expr.parts {
        match part {
            Part::Text(_) | Part::Optional(_) => {}
            Part::Expr(expr) => in_expr(expr),
            Part::Query(query) => in_query(query),
        }
    }
    let [_, Part::Expr(value), Part::Text(is), Part::Query(rows), _] = &expr.parts[..] else {
        return;
    };
    let not = match is.as_str() {
        " IN (" => "",
        " NOT IN (" => "NOT ",
        _ => return,
    };
    let Body::Select(select) = &rows.body else {
        return;
    };
    let [item] = &select.items[..] else {
        return;
    };
    let with = |template: &str| {
        let mut rows = rows.clone();
        if let Body::Select(select) = &mut rows.body {
            let holes = vec![value.clone().into(), item.expr.clone().into()];
            select.filters.push(Expr::of(Type::Bool, template, holes));
        }
        Part::Query(rows)
    };
    let (equal, unknown) = (with("({} = {})"), with("(({} = {}) IS NULL)"));
    *expr = Expr::of(
        Type::Bool,
        &format!(
            "({not}CASE WHEN EXISTS ({{}}) THEN true WHEN EXISTS ({{}}) THEN NULL ELSE false END)"
        ),
        vec![equal, unknown],
    );
}
