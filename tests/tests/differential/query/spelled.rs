//! Equivalent queries in forms that DataFusion alone answers correctly.
//!
//! DataFusion alone takes UNKNOWN for false where `IN` stands inside `OR`, and where a computed value may be NULL;
//! and it plans `INTERSECT ALL` and `EXCEPT ALL` as if duplicates did not count. Its answer to the equivalent form
//! shows whether another answer is right.

use super::{Body, Expr, Item, Named, Part, Query, Select, Source};
use crate::tables::Type;

/// Returns the query with `EXISTS` in place of `IN`.
pub(crate) fn without_in(query: &Query) -> Query {
    Spelling {
        body: |_| {},
        expr: exists_for_in,
    }
    .of(query)
}

/// Returns the query with numbered, therefore unique, rows in place of `INTERSECT ALL` and `EXCEPT ALL`.
pub(crate) fn with_numbers(query: &Query) -> Query {
    Spelling {
        body: numbers_for_all,
        expr: |_| {},
    }
    .of(query)
}

/// Replacements of bodies and expressions, applied from the inside out.
#[derive(Clone, Copy)]
struct Spelling {
    body: fn(&mut Body),
    expr: fn(&mut Expr),
}

impl Spelling {
    fn of(self, query: &Query) -> Query {
        let mut query = query.clone();
        self.query(&mut query);
        query
    }

    fn query(self, query: &mut Query) {
        for cte in &mut query.with {
            if let Named::Query(named) = &mut cte.query {
                self.query(named);
            }
        }
        self.body(&mut query.body);
    }

    fn body(self, body: &mut Body) {
        match body {
            Body::Select(select) => self.select(select),
            Body::Set { left, right, .. } => {
                self.body(left);
                self.body(right);
            }
            Body::Values { rows, .. } => {
                rows.iter_mut().flatten().for_each(|value| self.expr(value))
            }
        }
        (self.body)(body);
    }

    fn select(self, select: &mut Select) {
        for item in &mut select.items {
            self.expr(&mut item.expr);
        }
        if let Some(from) = &mut select.from {
            self.source(from);
        }
        let group = select.group.iter_mut().flat_map(|group| &mut group.by);
        let conditions = select.filters.iter_mut().chain(&mut select.having);
        for expr in conditions.chain(&mut select.qualify).chain(group) {
            self.expr(expr);
        }
    }

    fn source(self, source: &mut Source) {
        match source {
            Source::Table { .. } => {}
            Source::Query { query, .. } => self.query(query),
            Source::Join {
                left, right, on, ..
            } => {
                self.source(left);
                self.source(right);
                on.iter_mut().for_each(|condition| self.expr(condition));
            }
        }
    }

    fn expr(self, expr: &mut Expr) {
        for part in &mut expr.parts {
            match part {
                Part::Text(_) | Part::Optional(_) => {}
                Part::Expr(expr) => self.expr(expr),
                Part::Query(query) => self.query(query),
            }
        }
        (self.expr)(expr);
    }
}

fn numbers_for_all(body: &mut Body) {
    let Body::Set {
        operator,
        left,
        right,
    } = body
    else {
        return;
    };
    let operator = match *operator {
        "INTERSECT ALL" => "INTERSECT",
        "EXCEPT ALL" => "EXCEPT",
        _ => return,
    };
    let names = left.names();
    let numbered = |side: &mut Box<Body>| {
        let nothing = Body::Values {
            names: vec![],
            rows: vec![],
        };
        let side = std::mem::replace(&mut **side, nothing);
        let columns: Vec<_> = side
            .names()
            .iter()
            .map(|name| format!("r.{name}"))
            .collect();
        let number = format!("row_number() OVER (PARTITION BY {})", columns.join(", "));
        let columns = columns.into_iter().zip(&names);
        let columns = columns.map(|(column, name)| (column, name.clone()));
        Box::new(select(columns.chain([(number, "number".to_owned())]), side))
    };
    let set = Body::Set {
        operator,
        left: numbered(left),
        right: numbered(right),
    };
    let columns = names.into_iter().map(|name| (format!("r.{name}"), name));
    *body = select(columns, set);
}

/// Returns a `SELECT` of columns, with their names, from the rows `r`.
fn select(columns: impl Iterator<Item = (String, String)>, rows: Body) -> Body {
    let item = |(text, name)| Item {
        expr: Expr::any(None, "{}", vec![Part::Text(text)]),
        name,
    };
    Body::Select(Box::new(Select {
        distinct: false,
        items: columns.map(item).collect(),
        from: Some(Source::Query {
            query: Box::new(Query::of(rows)),
            alias: "r".to_owned(),
        }),
        filters: vec![],
        group: None,
        having: None,
        qualify: None,
    }))
}

fn exists_for_in(expr: &mut Expr) {
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
