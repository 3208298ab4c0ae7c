//! Drawing of the source of a `SELECT`: tables, named queries, subqueries, and joins of these.

use super::scalar::column;
use super::{Col, Draw, MOST_ROWS, Relation, reference};
use crate::query::{Body, Expr, Group, Grouping, Item, Query, Select, Source};
use crate::tables::Type;

/// Kinds of joins, with their weights.
const KINDS: &[(usize, &str)] = &[
    (6, "JOIN"),
    (5, "LEFT JOIN"),
    (3, "RIGHT JOIN"),
    (4, "FULL JOIN"),
    (2, "CROSS JOIN"),
    (2, "LEFT SEMI JOIN"),
    (2, "LEFT ANTI JOIN"),
    (1, "RIGHT SEMI JOIN"),
    (1, "RIGHT ANTI JOIN"),
];

/// Comparison of a join's sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Equal,
    Same,
    Unequal,
    Mixed,
}

impl Draw<'_> {
    /// Draws a source, and returns the relations whose columns can be used.
    pub(super) fn source(&mut self, depth: usize) -> (Source, Vec<Relation>) {
        let (mut source, first) = self.relation(depth);
        let mut scope = vec![first];
        let joins = self.dice.weighted(&[(5, 0), (6, 1), (3, 2), (1, 3)]);
        for _ in 0..joins {
            if self.dice.chance(5) {
                let (right, of_right) = self.lateral(&scope);
                let rows = scope.iter().map(|relation| relation.rows).max();
                let kind = self.dice.pick(&["JOIN LATERAL", "LEFT JOIN LATERAL"]);
                let on = vec![Expr::text(Type::Bool, "true")];
                let (left, right) = (Box::new(source), Box::new(right));
                source = Source::Join {
                    kind,
                    left,
                    right,
                    on,
                };
                scope.push(Relation {
                    rows: rows.unwrap_or(1),
                    ..of_right
                });
                continue;
            }
            let (right, of_right) = self.relation(depth);
            (source, scope) = self.join(source, scope, right, of_right);
        }
        (source, scope)
    }

    fn relation(&mut self, depth: usize) -> (Source, Relation) {
        let alias = self.alias();
        if depth > 0 && self.dice.chance(35) {
            let (query, mut shape) = self.inner(depth - 1);
            (shape.source, shape.name) = (String::new(), alias.clone());
            let query = Box::new(query);
            return (Source::Query { query, alias }, shape);
        }
        let mut relation = self.dice.pick(&self.known);
        relation.name.clone_from(&alias);
        if self.dice.chance(20)
            && let Some(unnested) = self.unnested(&relation)
        {
            return unnested;
        }
        let name = relation.source.clone();
        (Source::Table { name, alias }, relation)
    }

    /// Draws a value for each row of the preceding relations.
    fn lateral(&mut self, scope: &[Relation]) -> (Source, Relation) {
        let of = self.dice.pick(&[Type::Int, Type::Text, Type::Date]);
        let (query, inner) = self.of_each(of, scope);
        let shape = Relation {
            source: String::new(),
            name: self.alias(),
            columns: vec![Col {
                name: "v".to_owned(),
                of: Some(of),
                exact: true,
            }],
            // It has one row each, so the join has a key if the other relations have one.
            unique: Some(Vec::new()),
            ..inner
        };
        let alias = shape.name.clone();
        let query = Box::new(query);
        (Source::Query { query, alias }, shape)
    }

    /// Draws a source with a row for each entry of a list, from a table or from its groups.
    fn unnested(&mut self, relation: &Relation) -> Option<(Source, Relation)> {
        let of_type = |of| relation.of_type(of).cloned().collect::<Vec<_>>();
        let (lists, ints) = (of_type(Type::List), of_type(Type::Int));
        let (id, key) = (ints.first()?, ints.get(1));
        let table = Relation {
            name: self.alias(),
            ..relation.clone()
        };
        let item = |expr: Expr, name: &str| Item {
            expr,
            name: name.to_owned(),
        };
        let select = |items, from, group| {
            Query::of(Body::Select(Box::new(Select {
                distinct: false,
                items,
                from: Some(from),
                filters: Vec::new(),
                group,
                having: None,
                qualify: None,
            })))
        };
        let from = Source::Table {
            name: table.source.clone(),
            alias: table.name.clone(),
        };
        let of = |expr: Expr, template| Expr::of(Type::Int, template, vec![expr.into()]);
        let groups = self.dice.chance(50);
        let (from, unique, list) = match key {
            Some(key) if groups => {
                let key = reference(&table, key);
                let list = of(reference(&table, id), "array_agg({})");
                let group = Group {
                    by: vec![key.clone()],
                    form: Grouping::Plain,
                };
                let query = select(vec![item(key, "k"), item(list, "l")], from, Some(group));
                let alias = self.alias();
                let name = |column: &str| Expr::text(Type::Int, format!("{alias}.{column}"));
                let (key, list) = (name("k"), name("l"));
                let query = Box::new(query);
                (Source::Query { query, alias }, key, list)
            }
            _ if lists.is_empty() => return None,
            _ => {
                let list = reference(&table, &self.dice.pick(&lists));
                (from, reference(&table, id), list)
            }
        };
        let items = vec![item(unique, "k"), item(of(list, "unnest({})"), "u")];
        let query = select(items, from, None);
        let column = |name: &str| Col {
            name: name.to_owned(),
            of: Some(Type::Int),
            exact: true,
        };
        let shape = Relation {
            source: String::new(),
            name: relation.name.clone(),
            columns: vec![column("k"), column("u")],
            unique: None,
            rows: relation.rows * 2,
        };
        let source = Source::Query {
            query: Box::new(query),
            alias: relation.name.clone(),
        };
        Some((source, shape))
    }

    fn join(
        &mut self,
        left: Source,
        mut scope: Vec<Relation>,
        right: Source,
        of_right: Relation,
    ) -> (Source, Vec<Relation>) {
        let rows = scope
            .iter()
            .map(|relation| relation.rows)
            .max()
            .unwrap_or(1);
        let pairs = rows.saturating_mul(of_right.rows);
        let mut kind = self.dice.weighted(KINDS);
        let mut condition = self.dice.weighted(&[
            (10, Condition::Equal),
            (2, Condition::Same),
            (4, Condition::Unequal),
            (3, Condition::Mixed),
        ]);
        let keeps_rows = kind.contains("SEMI") || kind.contains("ANTI");
        let has_keys = self.on_ids(&scope, &of_right).is_some();
        let mut on = Vec::new();
        let comes_to = match (kind, condition) {
            ("CROSS JOIN", _) => pairs,
            _ if keeps_rows => rows.max(of_right.rows),
            (_, Condition::Unequal) => pairs,
            _ => pairs / 4,
        };
        let mut comes_to = comes_to.max(rows).max(of_right.rows);
        if comes_to > MOST_ROWS || pairs > 1_000_000 {
            if kind == "CROSS JOIN" {
                kind = "JOIN";
            }
            condition = Condition::Equal;
            comes_to = rows.max(of_right.rows);
            match self.on_ids(&scope, &of_right) {
                Some(ids) => on.push(ids),
                // This join returns no more rows than the left side has.
                None => kind = "LEFT SEMI JOIN",
            }
            debug_assert_eq!(has_keys, !on.is_empty());
        }
        if kind != "CROSS JOIN" {
            if on.is_empty() {
                on.push(self.condition(&scope, &of_right, condition));
            }
            if self.dice.chance(15) {
                let again = self.dice.pick(&[Condition::Equal, Condition::Unequal]);
                on.push(self.condition(&scope, &of_right, again));
            }
            if self.dice.chance(12) {
                // About one side or both; in an outer join it removes no row of the preserved side.
                let mut both = scope.clone();
                both.push(of_right.clone());
                on.push(self.predicate(&both, 1));
            }
        }
        let source = Source::Join {
            kind,
            left: Box::new(left),
            right: Box::new(right),
            on,
        };
        if kind.starts_with("RIGHT SEMI") || kind.starts_with("RIGHT ANTI") {
            return (source, vec![of_right]);
        }
        if !kind.contains("SEMI") && !kind.contains("ANTI") {
            scope.push(of_right);
            for relation in &mut scope {
                relation.rows = comes_to;
            }
        }
        (source, scope)
    }

    /// Returns a condition that the unique columns of both sides are equal: the join has no more rows than either
    /// side.
    fn on_ids(&self, scope: &[Relation], of_right: &Relation) -> Option<Expr> {
        let id = |relation: &Relation| match relation.unique.as_deref() {
            Some([unique]) => {
                let mut ints = relation.of_type(Type::Int);
                ints.find(|column| column.name == *unique)
                    .map(|column| reference(relation, column))
            }
            _ => None,
        };
        let (left, right) = (scope.iter().find_map(id)?, id(of_right)?);
        let holes = vec![left.into(), right.into()];
        Some(Expr::of(Type::Bool, "{} = {}", holes))
    }

    fn condition(&mut self, scope: &[Relation], of_right: &Relation, condition: Condition) -> Expr {
        let of = self.common_type(scope, of_right);
        let pair = |draw: &mut Self, of| {
            let [left, right] = [
                column(scope, of),
                column(std::slice::from_ref(of_right), of),
            ];
            let mut side = |columns: Vec<Expr>, scope: &[Relation]| match columns.is_empty() {
                true => draw.literal(of),
                false if draw.dice.chance(12) => draw.scalar(of, scope, 1),
                false => draw.dice.pick(&columns),
            };
            let left = side(left, scope);
            let right = side(right, std::slice::from_ref(of_right));
            vec![left.into(), right.into()]
        };
        match condition {
            Condition::Equal => Expr::of(Type::Bool, "{} = {}", pair(self, of)),
            Condition::Same => Expr::of(Type::Bool, "({} IS NOT DISTINCT FROM {})", pair(self, of)),
            Condition::Unequal => {
                let holes = pair(self, of);
                let template = self
                    .dice
                    .pick(&["{} < {}", "{} >= {}", "{} <> {}", "{} <= {}"]);
                Expr::of(Type::Bool, template, holes)
            }
            Condition::Mixed => {
                let mut holes = pair(self, of);
                let other = self.common_type(scope, of_right);
                holes.extend(pair(self, other));
                let template = self.dice.pick(&[
                    "{} = {} AND {} < {}",
                    "{} = {} AND {} <> {}",
                    "({} = {} OR {} > {})",
                ]);
                Expr::of(Type::Bool, template, holes)
            }
        }
    }
}
