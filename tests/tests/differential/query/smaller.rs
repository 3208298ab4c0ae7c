//! Steps that make a query smaller, the large ones first.
//!
//! A step may give an invalid query (with a column that is gone): both sides then fail, and it is rejected. A step
//! never removes anything that makes the answer unique: a limit goes before the order that it needs.

use super::{Body, Cte, Expr, Grouping, Named, Part, Query, Select, Source};
use crate::tables::Type;

/// Returns the query after the step of this number; `None` if there are fewer steps.
pub(crate) fn smaller(query: &Query, step: usize) -> Option<Query> {
    let mut query = query.clone();
    let mut steps = Steps { left: step };
    steps.query(&mut query).then_some(query)
}

/// Counter of steps along the tree, which applies the one of its number.
struct Steps {
    left: usize,
}

impl Steps {
    /// Returns true if the next step is the one to apply, and counts it otherwise.
    fn is_next(&mut self) -> bool {
        match self.left {
            0 => true,
            _ => {
                self.left -= 1;
                false
            }
        }
    }

    /// Removes one of the items if there are more than `least`.
    fn without_one<T>(&mut self, items: &mut Vec<T>, least: usize) -> bool {
        if items.len() <= least {
            return false;
        }
        for at in 0..items.len() {
            if self.is_next() {
                items.remove(at);
                return true;
            }
        }
        false
    }

    fn query(&mut self, query: &mut Query) -> bool {
        // The query is replaced by one of its inner queries.
        if let Body::Select(select) = &mut query.body
            && let Some(Source::Query { query: inner, .. }) = &mut select.from
            && self.is_next()
        {
            let mut inner = (**inner).clone();
            inner.with.splice(0..0, query.with.drain(..));
            *query = inner;
            return true;
        }
        for at in 0..query.with.len() {
            if let Named::Query(named) = &query.with[at].query
                && self.is_next()
            {
                let mut named = named.clone();
                named.with.splice(0..0, query.with.drain(..at));
                *query = named;
                return true;
            }
        }
        if self.without_one::<Cte>(&mut query.with, 0) || self.set(query) {
            return true;
        }
        for field in [&mut query.offset, &mut query.limit] {
            if field.is_some() && self.is_next() {
                *field = None;
                return true;
            }
        }
        // With a limit, the order decides which rows are returned.
        if query.limit.is_none() && query.offset.is_none() {
            if !query.order.is_empty() && self.is_next() {
                query.order.clear();
                return true;
            }
            if self.without_one(&mut query.order, 1) {
                return true;
            }
        }
        if self.column(query) || self.body(&mut query.body) {
            return true;
        }
        for cte in &mut query.with {
            if let Named::Query(query) = &mut cte.query
                && self.query(query)
            {
                return true;
            }
        }
        false
    }

    /// Replaces a set operation by one of its sides.
    fn set(&mut self, query: &mut Query) -> bool {
        fn within(steps: &mut Steps, body: &mut Body) -> bool {
            let Body::Set { left, right, .. } = body else {
                return false;
            };
            for side in [left.clone(), right.clone()] {
                if steps.is_next() {
                    *body = *side;
                    return true;
                }
            }
            within(steps, left) || within(steps, right)
        }
        within(self, &mut query.body)
    }

    /// Removes one column from all branches.
    fn column(&mut self, query: &mut Query) -> bool {
        fn remove(body: &mut Body, at: usize) {
            match body {
                Body::Select(select) => {
                    select.items.remove(at);
                }
                Body::Set { left, right, .. } => {
                    remove(left, at);
                    remove(right, at);
                }
                Body::Values { names, rows } => {
                    names.remove(at);
                    for row in rows {
                        row.remove(at);
                    }
                }
            }
        }
        let names = query.body.names();
        if names.len() < 2 {
            return false;
        }
        for (at, name) in names.iter().enumerate() {
            if self.is_next() {
                remove(&mut query.body, at);
                // The remaining keys still include all columns.
                query.order.retain(|key| key.name != *name);
                return true;
            }
        }
        false
    }

    fn body(&mut self, body: &mut Body) -> bool {
        match body {
            Body::Select(select) => self.select(select),
            Body::Set { left, right, .. } => self.body(left) || self.body(right),
            Body::Values { rows, .. } => {
                self.without_one(rows, 1) || rows.iter_mut().flatten().any(|expr| self.expr(expr))
            }
        }
    }

    fn select(&mut self, select: &mut Select) -> bool {
        if let Some(from) = &mut select.from
            && self.join(from)
        {
            return true;
        }
        if self.without_one(&mut select.filters, 0) {
            return true;
        }
        if select.having.is_some() && self.is_next() {
            select.having = None;
            return true;
        }
        if select.qualify.is_some() && self.is_next() {
            select.qualify = None;
            return true;
        }
        if select.distinct && self.is_next() {
            select.distinct = false;
            return true;
        }
        if let Some(group) = &mut select.group {
            if self.is_next() {
                select.group = None;
                return true;
            }
            if !matches!(group.form, Grouping::Plain) && self.is_next() {
                group.form = Grouping::Plain;
                return true;
            }
            let reduced = match &mut group.form {
                Grouping::Sets(sets) => self.without_one(sets, 1),
                _ => self.without_one(&mut group.by, 1),
            };
            if reduced || group.by.iter_mut().any(|expr| self.expr(expr)) {
                return true;
            }
        }
        if let Some(from) = &mut select.from
            && self.source(from)
        {
            return true;
        }
        select.filters.iter_mut().any(|expr| self.expr(expr))
            || select.having.iter_mut().any(|expr| self.expr(expr))
            || select.qualify.iter_mut().any(|expr| self.expr(expr))
            || select
                .items
                .iter_mut()
                .any(|item| self.expr(&mut item.expr))
    }

    /// Replaces a join by one of its sides.
    fn join(&mut self, source: &mut Source) -> bool {
        let Source::Join { left, right, .. } = source else {
            return false;
        };
        for side in [left.clone(), right.clone()] {
            if self.is_next() {
                *source = *side;
                return true;
            }
        }
        self.join(left) || self.join(right)
    }

    /// Simplifies sources and joins.
    fn source(&mut self, source: &mut Source) -> bool {
        match source {
            Source::Table { .. } => false,
            Source::Query { query, alias } => {
                if let Body::Select(select) = &query.body
                    && let Some(Source::Table { name, .. }) = &select.from
                    && self.is_next()
                {
                    *source = Source::Table {
                        name: name.clone(),
                        alias: alias.clone(),
                    };
                    return true;
                }
                self.query(query)
            }
            Source::Join {
                kind,
                left,
                right,
                on,
            } => {
                if !matches!(*kind, "JOIN" | "CROSS JOIN") && self.is_next() {
                    *kind = "JOIN";
                    return true;
                }
                self.without_one(on, 1)
                    || self.source(left)
                    || self.source(right)
                    || on.iter_mut().any(|expr| self.expr(expr))
            }
        }
    }

    fn expr(&mut self, expr: &mut Expr) -> bool {
        let is_simple = matches!(expr.parts.as_slice(), [Part::Text(_)]);
        if !is_simple {
            // Replaces the expression by one of its parts of the same type.
            for at in 0..expr.parts.len() {
                if let Part::Expr(part) = &expr.parts[at]
                    && part.of.is_some()
                    && part.of == expr.of
                    && self.is_next()
                {
                    *expr = part.clone();
                    return true;
                }
            }
            if let Some(constant) = expr.of.and_then(constant)
                && self.is_next()
            {
                expr.parts = vec![Part::Text(constant.to_owned())];
                return true;
            }
        }
        for at in 0..expr.parts.len() {
            if matches!(expr.parts[at], Part::Optional(_)) && self.is_next() {
                expr.parts.remove(at);
                return true;
            }
        }
        expr.parts.iter_mut().any(|part| match part {
            Part::Text(_) | Part::Optional(_) => false,
            Part::Expr(expr) => self.expr(expr),
            Part::Query(query) => self.query(query),
        })
    }
}

/// Returns the simplest constant of a type.
fn constant(of: Type) -> Option<&'static str> {
    Some(match of {
        Type::Bool => "true",
        Type::Small => "CAST(1 AS INT)",
        Type::Int => "1",
        Type::Double => "CAST(1 AS DOUBLE)",
        Type::Decimal => "CAST(1 AS DECIMAL(12, 2))",
        Type::Text => "'a'",
        Type::Date => "DATE '2021-01-01'",
        Type::Timestamp => "TIMESTAMP '2021-01-01T00:00:00'",
        Type::List | Type::Struct => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::{query, tables};

    #[test]
    fn every_way_down_ends() {
        for seed in 0..40 {
            let mut dice = Dice::new(seed);
            let tables = tables::draw(&mut dice);
            let mut query = query::draw(&mut dice, &tables);
            let mut taken = 0;
            while let Some(next) = smaller(&query, 0) {
                query = next;
                taken += 1;
                assert!(taken < 5_000, "seed {seed}: {query}");
            }
            assert!(query.to_string().len() < 200, "seed {seed}: {query}");
        }
    }

    #[test]
    fn a_limit_goes_before_its_order() {
        let mut query = Query::of(Body::Values {
            names: vec!["c0".into()],
            rows: vec![vec![Expr::text(Type::Int, "1")]],
        });
        query.order = vec![super::super::Key {
            name: "c0".into(),
            descending: false,
            nulls_first: None,
        }];
        query.limit = Some(1);
        let steps = (0..).map_while(|step| smaller(&query, step));
        for step in steps {
            assert!(step.limit.is_none() || !step.order.is_empty(), "{step}");
        }
        let without = smaller(&query, 0).expect("the limit can go");
        assert_eq!(without.limit, None);
        let without = smaller(&without, 0).expect("the order can go");
        assert!(without.order.is_empty());
    }
}
