//! Drawing of conditions: comparisons, tests and subqueries.

use super::scalar::column;
use super::{Draw, Relation, reference};
use crate::query::{Body, Expr, Item, Part, Query, Select, Source};
use crate::tables::Type;

const COMPARISONS: [&str; 8] = [
    "{} = {}",
    "{} <> {}",
    "{} < {}",
    "{} <= {}",
    "{} > {}",
    "{} >= {}",
    "{} IS NOT DISTINCT FROM {}",
    "{} IS DISTINCT FROM {}",
];

impl Draw<'_> {
    /// Draws a condition without subqueries.
    pub(super) fn predicate(&mut self, scope: &[Relation], depth: usize) -> Expr {
        if depth > 0 && self.dice.chance(30) {
            let template = self.dice.pick(&["({} AND {})", "({} OR {})", "(NOT {})"]);
            let count = template.matches("{}").count();
            let holes = (0..count).map(|_| self.predicate(scope, depth - 1).into());
            let holes = holes.collect();
            return Expr::of(Type::Bool, template, holes);
        }
        let of = match self.some_column(scope) {
            Some((of, _)) => of,
            None => self.dice.pick(&Type::PLAIN),
        };
        let value = |draw: &mut Self| Part::from(draw.scalar(of, scope, depth));
        let a = value(self);
        match self.dice.below(10) {
            0 => Expr::of(Type::Bool, "({} IS NULL)", vec![a]),
            1 => Expr::of(Type::Bool, "({} IS NOT NULL)", vec![a]),
            2 if of != Type::Bool => {
                let (b, c) = (value(self), value(self));
                let not = self.dice.pick(&["", "NOT "]);
                Expr::of(
                    Type::Bool,
                    &format!("({{}} {not}BETWEEN {{}} AND {{}})"),
                    vec![a, b, c],
                )
            }
            3 if of != Type::Bool => {
                let count = self.dice.pick(&[1, 3, 5]);
                let values = (0..count).map(|_| self.literal(of).into());
                let holes = std::iter::once(a).chain(values).collect();
                let not = self.dice.pick(&["", "NOT "]);
                let list = vec!["{}"; count].join(", ");
                Expr::of(Type::Bool, &format!("({{}} {not}IN ({list}))"), holes)
            }
            4 | 5 if of == Type::Text => {
                let pattern = self.dice.pick(&["'a%'", "'%b%'", "'_'", "'%'", "'a_c'"]);
                let like = self.dice.pick(&["LIKE", "NOT LIKE", "ILIKE"]);
                Expr::of(Type::Bool, &format!("({{}} {like} {pattern})"), vec![a])
            }
            6 if of == Type::Text => {
                let test = self.dice.pick(&[
                    "starts_with({}, 'a')",
                    "({} ~ '^[a-c]')",
                    "contains({}, 'b')",
                ]);
                Expr::of(Type::Bool, test, vec![a])
            }
            6 if of == Type::Int && !column(scope, Type::List).is_empty() => {
                let list = self.scalar(Type::List, scope, depth.min(1)).into();
                Expr::of(Type::Bool, "array_has({}, {})", vec![list, a])
            }
            4 if of == Type::Bool => Expr::of(Type::Bool, "({} IS NOT TRUE)", vec![a]),
            _ => {
                let b = value(self);
                let comparison = self.dice.pick(&COMPARISONS);
                Expr::of(Type::Bool, &format!("({comparison})"), vec![a, b])
            }
        }
    }

    /// Draws a condition for `WHERE`, which may contain a subquery.
    pub(super) fn filter(&mut self, scope: &[Relation]) -> Expr {
        if !self.dice.chance(25) {
            return self.predicate(scope, 2);
        }
        let asks = self.asks(scope);
        match self.dice.chance(20) {
            true => {
                let other = self.predicate(scope, 1);
                let template = self.dice.weighted(&[
                    (6, "({} OR {})"),
                    (2, "(NOT ({} AND {}))"),
                    (1, "(({} OR {}) IS NOT TRUE)"),
                    (1, "(({} AND {}) IS NULL)"),
                ]);
                Expr::of(Type::Bool, template, vec![asks.into(), other.into()])
            }
            false => asks,
        }
    }

    fn asks(&mut self, scope: &[Relation]) -> Expr {
        let inner = self.small_relation();
        let within = [inner.clone()];
        let not = self.dice.pick(&["", "NOT "]);
        match self.dice.below(3) {
            0 => {
                let mut filters = vec![self.correlation(scope, &inner, true)];
                if self.dice.chance(30) {
                    filters.push(self.correlation(scope, &inner, false));
                }
                if self.dice.chance(30) {
                    filters.push(self.predicate(&within, 0));
                }
                let query = read(&inner, Expr::text(Type::Int, "1"), filters);
                Expr::of(
                    Type::Bool,
                    &format!("{not}EXISTS ({{}})"),
                    vec![query.into()],
                )
            }
            1 => {
                let of = self.common_type(scope, &inner);
                let mut filters = Vec::new();
                if self.dice.chance(50) {
                    filters.push(self.predicate(&within, 1));
                }
                if self.dice.chance(25) {
                    filters.push(self.correlation(scope, &inner, true));
                }
                let item = self.scalar(of, &within, 1);
                let query = read(&inner, item, filters);
                let value = self.scalar(of, scope, 1).into();
                Expr::of(
                    Type::Bool,
                    &format!("({{}} {not}IN ({{}}))"),
                    vec![value, query.into()],
                )
            }
            _ => {
                let of = self.common_type(scope, &inner);
                let value = self.scalar(of, scope, 1).into();
                let query = self.single(of, scope, &inner).into();
                let query = Expr::of(of, "({})", vec![query]).into();
                let comparison = self.dice.pick(&COMPARISONS);
                Expr::of(Type::Bool, &format!("({comparison})"), vec![value, query])
            }
        }
    }

    /// Draws a subquery with one value, which may depend on the row.
    pub(super) fn scalar_query(&mut self, of: Type, scope: &[Relation]) -> Expr {
        let inner = self.small_relation();
        let query = self.single(of, scope, &inner);
        Expr::of(of, "({})", vec![query.into()])
    }

    /// Draws a subquery with one value that depends on no row. It returns at most one row, except a few that are
    /// meant to fail.
    pub(super) fn lone_query(&mut self, of: Type) -> Expr {
        let inner = self.small_relation();
        if self.dice.chance(60) {
            let query = self.single(of, &[], &inner);
            return Expr::of(of, "({})", vec![query.into()]);
        }
        let within = [inner.clone()];
        let item = self.scalar(of, &within, 0);
        let filters = match inner.unique.as_deref() {
            Some([unique]) => {
                let id = self.dice.between(0, 9);
                vec![Expr::text(
                    Type::Bool,
                    format!("{}.{unique} = {id}", inner.name),
                )]
            }
            _ => vec![],
        };
        Expr::of(of, "({})", vec![read(&inner, item, filters).into()])
    }

    /// Draws a query with one value for each row, and returns the relation it reads.
    pub(super) fn of_each(&mut self, of: Type, scope: &[Relation]) -> (Query, Relation) {
        let inner = self.small_relation();
        (self.single(of, scope, &inner), inner)
    }

    fn single(&mut self, of: Type, scope: &[Relation], inner: &Relation) -> Query {
        let within = [inner.clone()];
        let value = self.scalar(of, &within, 1).into();
        let item = match of {
            Type::Bool => Expr::of(of, "bool_or({})", vec![value]),
            Type::Int if self.dice.chance(25) => Expr::text(of, "count(*)"),
            _ => Expr::of(of, self.dice.pick(&["max({})", "min({})"]), vec![value]),
        };
        let mut filters = Vec::new();
        if self.dice.chance(60) {
            filters.push(self.correlation(scope, inner, true));
        }
        if self.dice.chance(30) {
            filters.push(self.predicate(&within, 1));
        }
        read(inner, item, filters)
    }

    /// Draws a condition between a row within a subquery and the outer row.
    fn correlation(&mut self, scope: &[Relation], inner: &Relation, equal: bool) -> Expr {
        let of = self.common_type(scope, inner);
        let here = column(scope, of);
        let there: Vec<_> = inner
            .of_type(of)
            .map(|column| reference(inner, column))
            .collect();
        if here.is_empty() || there.is_empty() {
            return Expr::text(Type::Bool, "true");
        }
        let holes = vec![self.dice.pick(&there).into(), self.dice.pick(&here).into()];
        let template = match equal {
            true => "{} = {}",
            false => self.dice.pick(&["{} < {}", "{} <> {}", "{} >= {}"]),
        };
        Expr::of(Type::Bool, template, holes)
    }

    /// Draws a type that columns on both sides have, most often that of keys.
    pub(super) fn common_type(&mut self, scope: &[Relation], inner: &Relation) -> Type {
        let both =
            |of: &&Type| inner.of_type(**of).next().is_some() && !column(scope, **of).is_empty();
        let types: Vec<_> = Type::PLAIN.iter().filter(both).copied().collect();
        match types.is_empty() || types.contains(&Type::Int) && self.dice.chance(60) {
            true => Type::Int,
            false => self.dice.pick(&types),
        }
    }

    /// Draws a small table or named query, under an alias.
    fn small_relation(&mut self) -> Relation {
        let small: Vec<_> = self
            .known
            .iter()
            .filter(|known| known.rows <= 400)
            .collect();
        let choices = if small.is_empty() {
            self.known.iter().collect()
        } else {
            small
        };
        let relation = choices[self.dice.below(choices.len())].clone();
        Relation {
            name: self.alias(),
            ..relation
        }
    }
}

/// Returns a query that reads one column of a relation.
fn read(inner: &Relation, item: Expr, filters: Vec<Expr>) -> Query {
    Query::of(Body::Select(Box::new(Select {
        distinct: false,
        items: vec![Item {
            expr: item,
            name: "v".to_owned(),
        }],
        from: Some(Source::Table {
            name: inner.source.clone(),
            alias: inner.name.clone(),
        }),
        filters,
        group: None,
        having: None,
        qualify: None,
    })))
}
